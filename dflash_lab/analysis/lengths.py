"""Sample lengths as tables: one row a sample, a group, a histogram bin or a point of the distribution."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from dflash_lab.analysis.buckets import bucket_intervals, intervals_of_labels
from dflash_lab.batching import bucket_of
from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.config import whole_number

QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p90": 0.90, "p99": 0.99}


def length_table(
    lengths: object,
    *,
    loss_tokens: object = None,
    sources: object = None,
    bucket_bounds: tuple[int, ...] | None = None,
    max_seq_len: int | None = None,
) -> pl.DataFrame:
    """List the samples with what a cut keeps of them and the bucket they fall into.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens.
        loss_tokens: Whole numbers (num_samples,), each in [0, length]: supervised tokens of the sample as given.
        sources: Texts (num_samples,), where each sample comes from; None among them for an unknown one. Any sequence, a
            numpy, Arrow or Polars array of texts.
        bucket_bounds: Increasing whole numbers starting at 0; bucket i is [bounds[i], bounds[i + 1]) of the *cut*
            length, and the last bucket takes everything at or past its lower bound.
        max_seq_len: Longer samples are cut to this many tokens, >= 1; None cuts nothing.

    Returns:
        One row a sample, in the order given: sample_id, length_tokens (as given), kept_tokens (after the cut),
        loss_tokens, source, bucket_id, bucket (the interval as text; its categories list all buckets, empty ones too),
        truncated. What was not given is null.

    Raises:
        ValueError: If a length is not a whole number >= 1, arrays differ in length, or a setting is out of range.
    """
    length_tokens = check_lengths(lengths)
    num_samples = len(length_tokens)
    kept_tokens = length_tokens
    if max_seq_len is not None:
        kept_tokens = np.minimum(length_tokens, whole_number("max_seq_len", max_seq_len, least=1))
    nothing = pl.lit(None)
    columns = {
        "loss_tokens": nothing.cast(pl.Int64),
        "source": nothing.cast(pl.String),
        "bucket_id": nothing.cast(pl.Int16),
        "bucket": nothing.cast(pl.String),
    }
    if loss_tokens is not None:
        columns["loss_tokens"] = pl.Series(check_loss_tokens(loss_tokens, length_tokens))
    if sources is not None:
        columns["source"] = _check_sources(sources, num_samples)
    if bucket_bounds is not None:
        labels = bucket_intervals(bucket_bounds)["bucket"]
        bucket_ids = bucket_of(kept_tokens, bucket_bounds)
        columns["bucket_id"] = pl.Series(bucket_ids)
        # The Enum carries the buckets that no sample falls into as well.
        columns["bucket"] = labels.gather(pl.Series(bucket_ids.astype(np.uint32)))
    table = pl.DataFrame({"length_tokens": length_tokens, "kept_tokens": kept_tokens}).with_row_index("sample_id")
    return table.with_columns(
        pl.col("sample_id").cast(pl.Int64), **columns, truncated=pl.col("kept_tokens") < pl.col("length_tokens")
    )


def length_summary(table: pl.DataFrame, *, by: str = "all") -> pl.DataFrame:
    """Sum up lengths over all samples, or for each source or bucket.

    Args:
        table: What `length_table` gave.
        by: "all" for one row, "source" for one row a source (most tokens first), "bucket" for one row a bucket
            (shortest first, empty ones too).

    Returns:
        The group's columns (source; or bucket_id, bucket, bucket_from_tokens, bucket_to_tokens, the last null for the
        last bucket, which has no upper end), then num_samples, share_of_samples, num_tokens, share_of_tokens,
        mean_tokens, min_tokens, p05_tokens, p25_tokens, p50_tokens, p75_tokens, p90_tokens, p99_tokens, max_tokens,
        share_truncated (of samples), share_of_tokens_cut, loss_token_share (supervised tokens of the tokens as given;
        null when unknown). Tokens are those kept after the cut, but for the last two. Quantiles interpolate linearly.

    Raises:
        ValueError: If `by` is unknown, the table is empty, or it was built without what `by` asks for.
    """
    if by not in ("all", "source", "bucket"):
        raise ValueError(f"by is {by!r}; legal: all, source, bucket")
    _check_not_empty(table)
    if by == "all":
        return table.select(_length_statistics(table))
    if table[by].null_count() == table.height:
        setting = "sources" if by == "source" else "bucket_bounds"
        raise ValueError(f"by is {by!r}, but the table knows no {by}; give length_table its {setting}")
    grouped = table.group_by(by).agg(_length_statistics(table))
    if by == "source":
        return grouped.sort(["num_tokens", "source"], descending=[True, False])
    intervals = intervals_of_labels(table["bucket"].dtype.categories.to_list())
    filled = intervals.join(grouped, on="bucket", how="left", maintain_order="left")
    return filled.with_columns(pl.col("num_samples", "share_of_samples", "num_tokens", "share_of_tokens").fill_null(0))


def length_histogram(table: pl.DataFrame, *, num_bins: int = 40, log: bool = True) -> pl.DataFrame:
    """Count samples and tokens by length, before the cut.

    Args:
        table: What `length_table` gave.
        num_bins: Most bins; fewer where bins of a whole token or more leave no room for them.
        log: Bins of equal ratio when True, of equal width when False.

    Returns:
        One row a bin, shortest first, empty bins too: bin_from_tokens, bin_to_tokens (half-open, whole numbers),
        num_samples, num_tokens, share_of_samples, share_of_tokens.

    Raises:
        ValueError: If `num_bins` is out of range or the table is empty.
    """
    num_bins = whole_number("num_bins", num_bins, least=1)
    lengths = _lengths_of(table)
    low, high = int(lengths.min()), int(lengths.max()) + 1
    spaced = np.geomspace(low, high, num_bins + 1) if log else np.linspace(low, high, num_bins + 1)
    edges = np.unique(np.rint(spaced).astype(np.int64))
    bins = np.searchsorted(edges, lengths, side="right") - 1
    num_samples = np.bincount(bins, minlength=len(edges) - 1)
    num_tokens = _sums_by(bins, lengths, len(edges) - 1)
    return pl.DataFrame(
        {
            "bin_from_tokens": edges[:-1],
            "bin_to_tokens": edges[1:],
            "num_samples": num_samples,
            "num_tokens": num_tokens,
            "share_of_samples": num_samples / num_samples.sum(),
            "share_of_tokens": num_tokens / num_tokens.sum(),
        }
    )


def loss_share_histogram(table: pl.DataFrame, *, num_bins: int = 20) -> pl.DataFrame:
    """Count samples by the share of their tokens that is supervised.

    Args:
        table: What `length_table` gave, with loss tokens.
        num_bins: Bins of equal width over [0, 1], >= 1; the last one holds 1 too.

    Returns:
        One row a bin, empty bins too: share_from, share_to, num_samples, num_tokens, share_of_samples,
        share_of_tokens.

    Raises:
        ValueError: If `num_bins` is out of range, the table is empty or it knows no loss tokens.
    """
    num_bins = whole_number("num_bins", num_bins, least=1)
    lengths = _lengths_of(table)
    if table["loss_tokens"].null_count():
        raise ValueError("the table knows no loss tokens; give length_table its loss_tokens")
    # In whole numbers, since 29 / 50 * 100 is less than 58 in floats; a share of 1 would open a bin of its own.
    bins = np.minimum(table["loss_tokens"].to_numpy() * num_bins // lengths, num_bins - 1)
    num_samples = np.bincount(bins, minlength=num_bins)
    num_tokens = _sums_by(bins, lengths, num_bins)
    edges = np.arange(num_bins + 1) / num_bins
    return pl.DataFrame(
        {
            "share_from": edges[:-1],
            "share_to": edges[1:],
            "num_samples": num_samples,
            "num_tokens": num_tokens,
            "share_of_samples": num_samples / num_samples.sum(),
            "share_of_tokens": num_tokens / num_tokens.sum(),
        }
    )


def length_ecdf(table: pl.DataFrame, *, num_points: int = 256) -> pl.DataFrame:
    """Give the share of samples, and of tokens, in samples up to a length, before the cut.

    Args:
        table: What `length_table` gave.
        num_points: About how many of the distinct lengths are kept, >= 2; the shortest and the longest always are, and
            the others stand at equal steps of one of the two shares, both medians among them. Each point is exact.

    Returns:
        One row a point, shortest first: length_tokens, share_of_samples, share_of_tokens (both <=, ending at 1).

    Raises:
        ValueError: If `num_points` is out of range or the table is empty.
    """
    num_points = whole_number("num_points", num_points, least=2)
    distinct, counts = np.unique(_lengths_of(table), return_counts=True)
    samples, tokens = np.cumsum(counts), np.cumsum(counts * distinct)
    kept = np.arange(len(distinct))
    if len(distinct) > num_points:
        # An odd number of steps, three or more, has the median among them.
        steps = np.linspace(0.0, 1.0, max(3, num_points // 2 | 1))
        by_share = [np.searchsorted(sums, steps * sums[-1]) for sums in (samples, tokens)]
        kept = np.unique(np.concatenate([*by_share, [0, len(distinct) - 1]]))
    return pl.DataFrame(
        {
            "length_tokens": distinct[kept],
            "share_of_samples": samples[kept] / samples[-1],
            "share_of_tokens": tokens[kept] / tokens[-1],
        }
    )


def _length_statistics(table: pl.DataFrame) -> list[pl.Expr]:
    kept, given = pl.col("kept_tokens"), pl.col("length_tokens")
    all_tokens = table["kept_tokens"].sum()
    quantiles = [kept.quantile(share, "linear").alias(f"{name}_tokens") for name, share in QUANTILES.items()]
    return [
        pl.len().cast(pl.Int64).alias("num_samples"),
        (pl.len() / table.height).alias("share_of_samples"),
        kept.sum().alias("num_tokens"),
        (kept.sum() / all_tokens).alias("share_of_tokens"),
        (kept.sum() / pl.len()).alias("mean_tokens"),
        kept.min().alias("min_tokens"),
        *quantiles,
        kept.max().alias("max_tokens"),
        (pl.col("truncated").sum() / pl.len()).alias("share_truncated"),
        ((given.sum() - kept.sum()) / given.sum()).alias("share_of_tokens_cut"),
        # A sum over nulls is 0, which would read as "no supervised tokens" where nothing is known.
        pl.when(pl.col("loss_tokens").null_count() == 0)
        .then(pl.col("loss_tokens").sum() / given.sum())
        .alias("loss_token_share"),
    ]


def _lengths_of(table: pl.DataFrame) -> np.ndarray:
    _check_not_empty(table)
    return table["length_tokens"].to_numpy()


def _check_not_empty(table: pl.DataFrame) -> None:
    if table.is_empty():
        raise ValueError("the length table is empty; legal: at least one sample")


def _sums_by(groups: np.ndarray, values: np.ndarray, num_groups: int) -> np.ndarray:
    # bincount's weights are float64 and stay exact here: sums of tokens lie far below 2**53.
    return np.rint(np.bincount(groups, weights=values, minlength=num_groups)).astype(np.int64)


def check_loss_tokens(loss_tokens: object, lengths: np.ndarray) -> np.ndarray:
    """Give supervised tokens as an int64 array, or name the first sample whose number is not legal.

    Args:
        loss_tokens: Whole numbers (num_samples,), each in [0, length].
        lengths: int64 (num_samples,), in tokens.

    Returns:
        int64 (num_samples,), a copy.

    Raises:
        ValueError: If there is not one a sample, or one is not legal.
    """
    array = np.asarray(loss_tokens)
    _check_same_length("loss_tokens", array.shape, len(lengths))
    if array.dtype.kind not in "iu":
        raise ValueError(f"loss_tokens has dtype {array.dtype}; legal: whole numbers in [0, length]")
    bad = np.flatnonzero((array < 0) | (array > lengths))
    if bad.size:
        raise ValueError(
            f"loss_tokens of sample {bad[0]} is {array[bad[0]]} ({bad.size} such samples); "
            f"legal: a whole number in [0, {lengths[bad[0]]}], its length"
        )
    return array.astype(np.int64)


def _check_sources(sources: object, num_samples: int) -> pl.Series:
    # Arrow arrays are read as they are: a list of their scalars is no list of texts.
    is_array = isinstance(sources, (pl.Series, pa.Array, pa.ChunkedArray))
    try:
        series = pl.Series(sources if is_array else list(sources))
    except TypeError as error:
        raise ValueError(f"sources is not one text a sample ({error}); legal: texts, None for an unknown one") from None
    _check_same_length("sources", series.shape, num_samples)
    if series.dtype not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        raise ValueError(f"sources has dtype {series.dtype}; legal: texts, None for an unknown one")
    return series.cast(pl.String).alias("source")


def _check_same_length(name: str, shape: tuple[int, ...], num_samples: int) -> None:
    if shape != (num_samples,):
        raise ValueError(f"{name} has shape {shape}, lengths has shape ({num_samples},); legal: one value a sample")
