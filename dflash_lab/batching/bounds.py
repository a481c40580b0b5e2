"""Where one bucket ends and the next begins."""

from __future__ import annotations

import numpy as np

from dflash_lab.batching.config import check_bounds, whole_number


def check_lengths(lengths: object) -> np.ndarray:
    """Give sample lengths as an int64 array, or name the first sample that has none.

    Args:
        lengths: One-dimensional array or sequence of whole numbers >= 1, in tokens.

    Returns:
        int64 (num_samples,).

    Raises:
        ValueError: If there are no samples, or a length is not a whole number >= 1.
    """
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise ValueError(f"lengths has shape {array.shape}; legal: one dimension, one length a sample")
    if array.size == 0:
        raise ValueError("lengths is empty; legal: at least one sample")
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array)) & (array < 2**62)
    elif array.dtype.kind in "iu":
        whole = array < 2**62
    else:
        raise ValueError(f"lengths has dtype {array.dtype}, first value {array[0]!r}; legal: whole numbers >= 1")
    bad = np.flatnonzero(~whole | ~(array >= 1))
    if bad.size:
        raise ValueError(
            f"the length of sample {bad[0]} is {array[bad[0]]} ({bad.size} such samples); legal: a whole number >= 1"
        )
    return array.astype(np.int64, copy=False)


def bucket_of(lengths: np.ndarray, bounds: tuple[int, ...]) -> np.ndarray:
    """Tell each length's bucket.

    Args:
        lengths: Integers (num_samples,), in tokens.
        bounds: Increasing whole numbers starting at 0; bucket i is [bounds[i], bounds[i + 1]).

    Returns:
        int16 (num_samples,); a length at or past the last bound belongs to the last bucket.

    Raises:
        ValueError: If the bounds are not legal.
    """
    bounds = check_bounds(bounds)
    inner = np.asarray(bounds[1:-1], dtype=np.int64)
    return np.searchsorted(inner, lengths, side="right").astype(np.int16)


def equal_token_bounds(lengths: object, num_buckets: int) -> tuple[int, ...]:
    """Cut the lengths into buckets that hold about the same number of tokens each.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens.
        num_buckets: Buckets wanted, >= 1.

    Returns:
        Bounds starting at 0 and ending one past the longest sample. Fewer buckets than asked for where many samples
        have one and the same length, since a bucket holds at least one distinct length.

    Raises:
        ValueError: If a length or the number of buckets is not legal.
    """
    num_buckets = whole_number("num_buckets", num_buckets, least=1)
    distinct, counts = np.unique(check_lengths(lengths), return_counts=True)
    tokens = np.cumsum(distinct * counts)
    shares = np.arange(1, num_buckets) / num_buckets * tokens[-1]
    # The distinct length in which a share is reached closes its bucket.
    last_inside = np.searchsorted(tokens, shares, side="left")
    inner = distinct[last_inside] + 1
    return (0, *sorted({int(bound) for bound in inner if bound <= distinct[-1]}), int(distinct[-1]) + 1)
