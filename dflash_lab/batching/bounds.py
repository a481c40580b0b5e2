"""Where one bucket ends and the next begins."""

from __future__ import annotations

import numpy as np

from dflash_lab.batching.config import MAX_TOKENS, check_bounds, whole_number


def check_lengths(lengths: object) -> np.ndarray:
    """Give sample lengths as an int64 array, or name the first sample that has none.

    Args:
        lengths: One-dimensional array or sequence of whole numbers in [1, 2^31), in tokens.

    Returns:
        int64 (num_samples,); the given array itself where it is one that cannot be written, else a copy.

    Raises:
        ValueError: If there are no samples, or a length is not legal.
    """
    try:
        array = np.asarray(lengths)
    except ValueError:
        array = np.asarray(lengths, dtype=object)
    if array.ndim != 1:
        raise ValueError(f"lengths has shape {array.shape}; legal: one dimension, one length a sample")
    if array.size == 0:
        raise ValueError("lengths is empty; legal: at least one sample")
    bad = np.arange(0)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        bad = np.flatnonzero(~((array >= 1) & (array <= MAX_TOKENS) & (array == np.floor(array))))
    elif array.dtype.kind in "iu":
        bad = np.flatnonzero((array < 1) | (array > MAX_TOKENS))
    if array.dtype.kind not in "fiu" or (isinstance(lengths, list | tuple) and bool in set(map(type, lengths))):
        # Text, bool, null or a mix: look at each, as numpy may have made all of them text.
        array = np.asarray(lengths, dtype=object)
        bad = np.asarray([i for i, length in enumerate(array) if not _is_length(length)], dtype=np.int64)
    if bad.size:
        raise ValueError(
            f"the length of sample {bad[0]} is {array[bad[0]]!s} ({bad.size} such samples); "
            f"legal: a whole number in [1, {MAX_TOKENS}]"
        )
    # What the caller can still write to must not change a plan that is made later.
    return array.astype(np.int64, copy=array.flags.writeable)


def _is_length(value: object) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and 1 <= value <= MAX_TOKENS  # type: ignore[operator]


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
    if len(lengths) > bounds[-1]:
        # Looking each length up in a table of all of them is six times as fast.
        table = np.searchsorted(inner, np.arange(bounds[-1] + 1), side="right").astype(np.int16)
        return table[np.minimum(lengths, bounds[-1])]
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
