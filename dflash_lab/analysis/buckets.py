"""Buckets of a plan as tables: their intervals, their shares, and the runs of batches they come in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.batching.config import check_bounds, whole_number

RUN_SCHEMA = {"bucket_id": pl.Int64, "start_batch": pl.Int64, "run_batches": pl.Int64}
BUCKET_COLUMNS = ("bucket_id", "bucket", "bucket_from_tokens", "bucket_to_tokens")
# No upper end: the last bucket also takes what lies at or past the last bound.
NO_END = "\N{INFINITY}"


@dataclass(frozen=True)
class RunSummary:
    """How long one bucket lasts in the order of training.

    Attributes:
        num_runs: Maximal runs of batches of one bucket.
        longest_batches: Batches in the longest of them; 0 where there are none.
        mean_batches: Batches a run; None where there are none.
    """

    num_runs: int
    longest_batches: int
    mean_batches: float | None


def bucket_intervals(bucket_bounds: tuple[int, ...]) -> pl.DataFrame:
    """List the buckets that bounds make.

    Args:
        bucket_bounds: Increasing whole numbers starting at 0, in tokens, at least two.

    Returns:
        One row a bucket: bucket_id, bucket (the half-open interval as text, an Enum of all buckets),
        bucket_from_tokens, bucket_to_tokens (null for the last bucket, which takes every longer sample).

    Raises:
        ValueError: If the bounds are not legal.
    """
    bounds = check_bounds(bucket_bounds)
    ends = [*bounds[1:-1], None]
    labels = [f"[{low}, {NO_END if high is None else high})" for low, high in zip(bounds[:-1], ends, strict=True)]
    return intervals_of_labels(labels)


def intervals_of_labels(labels: list[str]) -> pl.DataFrame:
    """Read the interval texts of `bucket_intervals` back.

    Args:
        labels: Texts such as "[770, 1216)", shortest bucket first.

    Returns:
        The table of `bucket_intervals`.
    """
    pairs = [label.strip("[)").split(", ") for label in labels]
    return pl.DataFrame(
        {
            "bucket_id": range(len(labels)),
            "bucket": labels,
            "bucket_from_tokens": [int(low) for low, _ in pairs],
            "bucket_to_tokens": [None if high == NO_END else int(high) for _, high in pairs],
        },
        schema={
            "bucket_id": pl.Int16,
            "bucket": pl.Enum(labels),
            "bucket_from_tokens": pl.Int64,
            "bucket_to_tokens": pl.Int64,
        },
    )


def bucket_runs(bucket_ids: object) -> pl.DataFrame:
    """Find the maximal runs of one bucket in the order of training.

    Args:
        bucket_ids: Whole numbers (num_batches,), one a batch, in the order in which batches are seen.

    Returns:
        One row a run, the first and the last included: bucket_id, start_batch, run_batches. No batches give no rows.

    Raises:
        ValueError: If the ids are not one dimension of whole numbers.
    """
    ids = np.asarray(bucket_ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"bucket_ids has shape {ids.shape} and dtype {ids.dtype}; legal: one whole number a batch")
    if ids.size == 0:
        return pl.DataFrame(schema=RUN_SCHEMA)
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    lengths = np.diff(np.append(starts, len(ids)))
    columns = {"bucket_id": ids[starts].astype(np.int64), "start_batch": starts, "run_batches": lengths}
    return pl.DataFrame(columns, schema=RUN_SCHEMA)


def run_summary(bucket_ids: object) -> RunSummary:
    """Sum up the runs of one bucket.

    Args:
        bucket_ids: Whole numbers (num_batches,), one a batch, in the order in which batches are seen.

    Returns:
        Number of runs, the longest and the mean.

    Raises:
        ValueError: If the ids are not one dimension of whole numbers.
    """
    runs = bucket_runs(bucket_ids)["run_batches"]
    if runs.is_empty():
        return RunSummary(num_runs=0, longest_batches=0, mean_batches=None)
    return RunSummary(num_runs=len(runs), longest_batches=int(runs.max()), mean_batches=int(runs.sum()) / len(runs))


def run_length_counts(plan_tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Count the same-bucket runs of several plans by their length.

    Args:
        plan_tables: Strategy name -> what `plan_table` gave; plans without buckets are left out of the result.

    Returns:
        One row a strategy and run length, shortest first: strategy, run_batches, num_runs, num_batches (in such runs),
        share_of_batches (of the strategy's), share_of_batches_at_least (in runs this long or longer).

    Raises:
        ValueError: If no plan has buckets.
    """
    counts = []
    for name, table in _with_buckets(plan_tables).items():
        grouped = bucket_runs(table["bucket_id"]).group_by("run_batches").agg(num_runs=pl.len().cast(pl.Int64))
        batches = pl.col("run_batches") * pl.col("num_runs")
        counts.append(
            grouped.sort("run_batches").select(
                pl.lit(name).alias("strategy"),
                "run_batches",
                "num_runs",
                batches.alias("num_batches"),
                (batches / batches.sum()).alias("share_of_batches"),
                (batches.cum_sum(reverse=True) / batches.sum()).alias("share_of_batches_at_least"),
            )
        )
    return pl.concat(counts)


def bucket_strip(plan_tables: dict[str, pl.DataFrame], *, num_windows: int = 120, num_first: int = 96) -> pl.DataFrame:
    """Show which bucket comes when, small enough to draw at any number of batches.

    Args:
        plan_tables: Strategy name -> what `plan_table` gave; plans without buckets are left out of the result.
        num_windows: Equal windows the epoch is cut into, >= 1; a window per batch where there are fewer batches.
        num_first: How many of the first batches are shown one by one as well, >= 1.

    Returns:
        One row a strategy, part, window and bucket with a batch in it: strategy, part ("epoch" or "first"), window_id,
        start_batch, num_batches (of the window), bucket_id, share_of_batches (of the window).

    Raises:
        ValueError: If a setting is out of range or no plan has buckets.
    """
    num_windows = whole_number("num_windows", num_windows, least=1)
    num_first = whole_number("num_first", num_first, least=1)
    parts = []
    for name, table in _with_buckets(plan_tables).items():
        ids = table["bucket_id"].to_numpy()
        parts.append(_windows(name, "epoch", ids, num_windows=num_windows))
        parts.append(_windows(name, "first", ids[:num_first], num_windows=num_first))
    return pl.concat(parts)


def _windows(name: str, part: str, bucket_ids: np.ndarray, *, num_windows: int) -> pl.DataFrame:
    num_windows = min(num_windows, len(bucket_ids))
    starts = np.arange(num_windows + 1) * len(bucket_ids) // num_windows
    sizes = np.diff(starts)
    num_buckets = int(bucket_ids.max()) + 1
    cells = np.repeat(np.arange(num_windows), sizes) * num_buckets + bucket_ids
    counts = np.bincount(cells, minlength=num_windows * num_buckets)
    filled = np.flatnonzero(counts)
    window_ids = filled // num_buckets
    return pl.DataFrame(
        {
            "strategy": [name] * len(filled),
            "part": [part] * len(filled),
            "window_id": window_ids,
            "start_batch": starts[window_ids],
            "num_batches": sizes[window_ids],
            "bucket_id": (filled % num_buckets).astype(np.int16),
            "share_of_batches": counts[filled] / sizes[window_ids],
        }
    )


def _with_buckets(plan_tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    kept = {name: table for name, table in plan_tables.items() if table.height and not table["bucket_id"].null_count()}
    if not kept:
        raise ValueError(f"no plan has buckets among {', '.join(plan_tables) or 'none given'}; legal: at least one")
    return kept
