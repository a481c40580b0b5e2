"""Sums over a run's rows, divided at the very end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class LossSpread:
    """Mean and spread of losses.

    Attributes:
        n: Number of losses.
        mean: Their mean.
        sample_variance: Sum of squared deviations / (n - 1); None for a single loss, whose spread is unknown.
        population_variance: Sum of squared deviations / n.
    """

    n: int
    mean: float
    sample_variance: float | None
    population_variance: float


def loss_spread(losses: object) -> LossSpread:
    """Give mean and variance of losses, in float64 and in two passes.

    The one-pass form, mean of squares less square of the mean, loses all digits of a small spread around a large mean.

    Args:
        losses: Finite numbers (n,), n >= 1.

    Returns:
        The spread, both as that of a sample and as that of a population.

    Raises:
        ValueError: If there are no losses, one is NaN or infinite, or their variance is larger than any float64.
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"losses has shape {values.shape}; legal: one dimension, at least one loss")
    _check_finite("losses", values)
    n = len(values)
    # A power of two takes no digits, and sums of values up to 1 never overflow.
    exponent = math.frexp(float(np.abs(values).max()))[1]
    scaled = np.ldexp(values, -exponent)
    mean = float(scaled.mean())
    deviations = scaled - mean
    # The correction takes out what rounding of the mean has left in the deviations.
    squares = max(0.0, float(np.square(deviations).sum() - deviations.sum() ** 2 / n))
    try:
        variances = [math.ldexp(squares / count, 2 * exponent) for count in (n, n - 1) if count]
    except OverflowError:
        raise ValueError(
            f"losses from {values.min()} to {values.max()} have a variance over {np.finfo(np.float64).max}; legal: "
            f"losses whose variance is a float64"
        ) from None
    return LossSpread(
        n=n,
        mean=math.ldexp(mean, exponent),
        sample_variance=variances[1] if n > 1 else None,
        population_variance=variances[0],
    )


def ratio_of_sums(
    table: pl.DataFrame, numerator: str, denominator: str, *, by: str | Sequence[str] | None = None
) -> pl.DataFrame:
    """Divide a sum by a sum, over all rows or in groups; never a mean of ratios.

    Args:
        table: One row a batch, a step or anything else that is counted.
        numerator: Name of the column on top, numbers without nulls.
        denominator: Name of the column below, numbers without nulls.
        by: Names of the grouping columns; None for one row over all.

    Returns:
        The groups in sorted order: the columns of `by`, num_rows, `numerator` and `denominator` (sums, int64 of whole
        numbers and float64 of others), ratio (null where the denominator's sum is 0).

    Raises:
        ValueError: If a column is missing, or has a null or a value that is not finite, or two columns of the result
            would have one name.
    """
    keys = [by] if isinstance(by, str) else list(by or [])
    _check_columns(table, [*keys, numerator, denominator])
    summed = list(dict.fromkeys([numerator, denominator]))
    twice = [name for name, times in Counter([*keys, "num_rows", *summed, "ratio"]).items() if times > 1]
    if twice:
        raise ValueError(
            f"the result would have two columns {', '.join(twice)}; legal: grouping and summed columns that differ, "
            f"none of them named num_rows or ratio"
        )
    for name in summed:
        _check_numbers(table, name)
    # Polars sums 32-bit columns in 32 bits, and says nothing when they overflow.
    wide = [pl.col(name).cast(pl.Int64 if table[name].dtype.is_integer() else pl.Float64) for name in summed]
    sums = [pl.len().cast(pl.Int64).alias("num_rows"), *(column.sum() for column in wide)]
    grouped = table.group_by(keys).agg(sums).sort(keys) if keys else table.select(sums)
    return grouped.with_columns(_ratio(numerator, denominator).alias("ratio"))


def loss_by_bucket(table: pl.DataFrame) -> pl.DataFrame:
    """Give loss and accuracy of each bucket.

    Args:
        table: One row a batch or step of one bucket: bucket_id, loss_sum, loss_weight, correct, total (sums and
            counts, without nulls but in bucket_id).

    Returns:
        One row a bucket, shortest first: bucket_id, num_rows, loss_sum, loss_weight, loss (ratio of the two), correct,
        total, accuracy (ratio of the two); a ratio over nothing is null.

    Raises:
        ValueError: If a column is missing, or has a null or a value that is not finite.
    """
    losses = ratio_of_sums(table, "loss_sum", "loss_weight", by="bucket_id").rename({"ratio": "loss"})
    counts = ratio_of_sums(table, "correct", "total", by="bucket_id").rename({"ratio": "accuracy"})
    return losses.with_columns(counts["correct", "total", "accuracy"].get_columns())


def _ratio(numerator: str, denominator: str) -> pl.Expr:
    return pl.when(pl.col(denominator) != 0).then(pl.col(numerator) / pl.col(denominator))


def _check_columns(table: pl.DataFrame, names: list[str]) -> None:
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise ValueError(f"the table has no column {', '.join(missing)}; it has {', '.join(table.columns) or 'none'}")


def _check_numbers(table: pl.DataFrame, name: str) -> None:
    column = table[name]
    if not column.dtype.is_numeric():
        raise ValueError(f"column {name} has dtype {column.dtype}; legal: numbers")
    if column.null_count():
        first = column.is_null().arg_max()
        raise ValueError(f"column {name} has {column.null_count()} nulls, the first in row {first}; legal: none")
    _check_finite(f"column {name}", column.to_numpy())


def _check_finite(name: str, values: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"{name} has {values[bad[0]]} at position {bad[0]} ({bad.size} such values); legal: finite numbers"
        )
