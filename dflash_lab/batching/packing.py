"""A sequence of samples cut into batches: how many fit, and where each batch begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.config import BatchingConfig, whole_number


@dataclass(frozen=True)
class Packing:
    """Batches in the order in which they were built.

    Args:
        members: int64 (num_planned,), places of the samples, batch after batch.
        offsets: int64 (num_batches + 1,); batch b holds `members[offsets[b]:offsets[b + 1]]`.
        bucket_ids: int16 (num_batches,), -1 where there are none.
    """

    members: np.ndarray
    offsets: np.ndarray
    bucket_ids: np.ndarray


def least_possible_batches(lengths: object, token_budget: int, max_batch_size: int) -> int:
    """Count the batches of which no padded plan of these lengths can have fewer.

    Taken greedily from the longest: the longest sample left must be in some batch, and no batch that holds it can hold
    more samples than of its length fit; filling it with the next longest ones leaves the others the easiest rest.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, after the cut.
        token_budget: Most padded tokens in a batch, >= the longest sample.
        max_batch_size: Most samples in a batch, >= 1.

    Returns:
        The number of batches.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    checked = check_lengths(lengths)
    longest = int(checked.max())
    token_budget = whole_number("token_budget", token_budget, least=longest)
    max_batch_size = whole_number("max_batch_size", max_batch_size, least=1)
    descending = -np.sort(-checked)
    return len(_walk(np.minimum(token_budget // descending, max_batch_size)))


def pack(
    members: np.ndarray,
    lengths: np.ndarray,
    config: BatchingConfig,
    *,
    segments: np.ndarray | None = None,
    descending: bool = False,
) -> Packing:
    """Cut a sequence of samples into batches, each as long as budget and cap allow.

    The cost of a batch is its size times its longest sample so far, whatever the order of the lengths.

    Args:
        members: int64 (n,), places of the samples in `lengths`, in the order to be cut.
        lengths: int64 (num_samples,), each within the budget.
        config: Budget and cap.
        segments: Rising whole numbers (n,); no batch reaches over a change. They become the bucket ids where they are
            int16.
        descending: Whether lengths fall along `members` inside a segment; then the first sample of a batch is its
            longest.

    Returns:
        The batches.
    """
    of_members = lengths[members]
    ends = np.array([len(members)])
    if segments is not None:
        ends = np.append(np.flatnonzero(segments[1:] != segments[:-1]) + 1, len(members))
    if descending:
        room = np.repeat(ends, np.diff(ends, prepend=0)) - np.arange(len(members))
        counts = np.minimum(np.minimum(config.token_budget // of_members, config.max_batch_size), room)
    else:
        parts = np.split(of_members, ends[:-1])
        counts = np.concatenate([_fitting(part, config.token_budget, config.max_batch_size) for part in parts])
    offsets = np.append(_walk(counts), len(members))
    if segments is not None and segments.dtype == np.int16:
        return Packing(members, offsets, segments[offsets[:-1]])
    return Packing(members, offsets, without_buckets(len(offsets) - 1))


def without_buckets(num_batches: int) -> np.ndarray:
    """Bucket ids of batches that have none: int16 (num_batches,) of -1."""
    return np.full(num_batches, -1, dtype=np.int16)


def _walk(counts: np.ndarray) -> np.ndarray:
    """Begin of each batch, when the one that begins at i has counts[i] samples: int64 (num_batches,)."""
    # Items of a memoryview are plain ints, and none is made for a place that no batch begins at.
    sizes = memoryview(np.ascontiguousarray(counts, dtype=np.int64))
    starts, at = [], 0
    while at < len(sizes):
        starts.append(at)
        at += sizes[at]
    return np.asarray(starts, dtype=np.int64)


def _fitting(lengths: np.ndarray, token_budget: int, max_batch_size: int) -> np.ndarray:
    """How many samples fit into a batch that begins at each place: whole numbers (n,), at least 1.

    For all places at once: so many fit whatever they are (`least`), so many never do (`most`); what lies between is
    found by halving steps over running maxima of 1, 2, 4, ... neighbours.
    """
    num_samples = len(lengths)
    longest = int(lengths.max())
    most = min(max_batch_size, token_budget // int(lengths.min()), num_samples)
    least = min(most, token_budget // longest)
    # Half the bytes take half the time.
    dtype = np.int32 if most * longest < 2**31 and num_samples + most < 2**31 else np.int64
    # Nothing stands behind the last sample: maxima reach over it, and the counts are cut at the end.
    maxima = [np.concatenate([lengths, np.zeros(most, lengths.dtype)]).astype(dtype)]
    while 2 ** len(maxima) <= most:
        half, step = maxima[-1], 2 ** (len(maxima) - 1)
        maxima.append(np.maximum(half[:-step], half[step:]))
    level = least.bit_length() - 1
    # Two overlapping stretches cover the first `least` neighbours.
    widths = np.maximum(maxima[level][:num_samples], maxima[level][least - 2**level :][:num_samples])
    counts = np.full(num_samples, least, dtype=dtype)
    places = np.arange(num_samples, dtype=dtype)
    for level in range((most - least).bit_length() - 1, -1, -1):
        grown = counts + dtype(2**level)
        # `places + counts` reaches at most where the longest stretch of this level still begins.
        at = np.minimum(places + counts, len(maxima[level]) - 1)
        wider = np.maximum(widths, maxima[level][at])
        fits = (grown * wider <= token_budget) & (grown <= most)
        np.copyto(counts, grown, where=fits)
        np.copyto(widths, wider, where=fits)
    return np.minimum(counts, num_samples - places)
