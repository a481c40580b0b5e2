"""When a batch is seen: orders over batches that are already composed.

An order costs no padding; it decides how alike neighbouring batches are, and how alike the accumulation windows.
Orders of groups work on buckets, or, where a strategy has none, on classes of mean length.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np

from dflash_lab.batching.config import BatchingConfig
from dflash_lab.batching.draws import Draws
from dflash_lab.batching.packing import Packing
from dflash_lab.batching.windows import balance, low_discrepancy, window_strata

# Batches without buckets are grouped by mean length into as many classes of equal size as the source run had buckets.
NUM_LENGTH_CLASSES = 6


def order_batches(packing: Packing, lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> np.ndarray:
    """Put batches in the order in which they are seen.

    Args:
        packing: The batches.
        lengths: int64 (num_samples,), the lengths of its members.
        config: The order, its window, and how many of the heaviest come first.
        draws: The epoch's random numbers.

    Returns:
        int64 (num_batches,), a permutation.
    """
    starts, sizes = packing.offsets[:-1], np.diff(packing.offsets)
    of_members = lengths[packing.members]
    tokens = np.add.reduceat(of_members, starts)
    order = _ordered(packing, of_members, tokens / sizes, config, draws)
    if config.longest_first:
        # A packed row costs the whole budget whatever it holds; the fullest stands for the heaviest there.
        packed = config.strategy == "packed"
        weights = (tokens if packed else np.maximum.reduceat(of_members, starts) * sizes)[order]
        heaviest = np.argsort(-weights, kind="stable")[: config.longest_first]
        order = np.concatenate([order[heaviest], np.delete(order, heaviest)])
    return order


def _ordered(
    packing: Packing, of_members: np.ndarray, mean_lengths: np.ndarray, config: BatchingConfig, draws: Draws
) -> np.ndarray:
    num_batches = len(mean_lengths)
    if config.order == "as_built":
        return np.arange(num_batches)
    if config.order == "random":
        return draws.permutation(num_batches)
    if config.order == "low_discrepancy":
        return low_discrepancy(np.argsort(mean_lengths, kind="stable"), draws)
    if config.order == "window_strata":
        return window_strata(mean_lengths, config.window, draws)
    if config.order == "window_balanced":
        order = window_strata(mean_lengths, config.window, draws)
        return balance(order, packing, of_members, config, draws)
    groups = _groups(packing.bucket_ids, mean_lengths)
    sequence = _SEQUENCES[config.order](np.bincount(groups), draws)
    # `sequence` says which group comes when; which of its batches is a matter of chance.
    order = np.empty(num_batches, dtype=np.int64)
    order[np.argsort(sequence, kind="stable")] = draws.shuffle_within(groups.astype(np.uint16))
    return order


def _groups(bucket_ids: np.ndarray, mean_lengths: np.ndarray) -> np.ndarray:
    """Number the groups 0.. without gaps: int64 (num_batches,)."""
    if (bucket_ids >= 0).all():
        return np.unique(bucket_ids, return_inverse=True)[1].astype(np.int64)
    ranks = np.empty(len(mean_lengths), dtype=np.int64)
    ranks[np.argsort(mean_lengths, kind="stable")] = np.arange(len(mean_lengths))
    num_classes = min(NUM_LENGTH_CLASSES, len(mean_lengths))
    return ranks * num_classes // len(mean_lengths)


def _stride(counts: np.ndarray, draws: Draws) -> np.ndarray:
    """Spread each group evenly: batch j of m stands at (j + offset) / m, one seeded offset a group."""
    offsets = draws.uniform(len(counts))
    labels = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = (within + offsets[labels]) / counts[labels]
    return labels[np.argsort(positions, kind="stable")]


def _no_repeat_naive(counts: np.ndarray, draws: Draws) -> np.ndarray:
    """Draw groups by what is left of each, never the last one again while another is left.

    The source run's first fix for runs of one bucket. A group that is the majority falls behind the others and is left
    over: on that run's lengths the epoch ends on 8,510 batches of one bucket.
    """
    return _drawn(counts, draws, look_ahead=False)


def _no_repeat(counts: np.ndarray, draws: Draws) -> np.ndarray:
    """Draw groups by what is left of each, with the fewest repeats and the shortest longest run there can be."""
    largest = int(np.argmax(counts))
    if 2 * counts[largest] > counts.sum():
        return _around_the_others(counts, largest, draws)
    return _drawn(counts, draws, look_ahead=True)


_SEQUENCES = {"stride": _stride, "no_repeat": _no_repeat, "no_repeat_naive": _no_repeat_naive}


def _around_the_others(counts: np.ndarray, largest: int, draws: Draws) -> np.ndarray:
    """One group is the majority: it fills every gap around the others, in runs that differ by one batch at most."""
    others = np.repeat(np.arange(len(counts)), np.where(np.arange(len(counts)) == largest, 0, counts))
    others = others[draws.permutation(len(others))]
    num_gaps = len(others) + 1
    runs = np.full(num_gaps, counts[largest] // num_gaps)
    runs[draws.permutation(num_gaps)[: counts[largest] % num_gaps]] += 1
    sequence = np.full(counts.sum(), largest)
    sequence[np.cumsum(runs[:-1]) + np.arange(len(others))] = others
    return sequence


def _drawn(counts: np.ndarray, draws: Draws, *, look_ahead: bool) -> np.ndarray:
    """Draw group after group by what is left, never the last one again while another is left.

    Looking ahead, a group that has come to more than half of what is left is taken at once, so that the rest can still
    be arranged; that takes no majority from the start.
    """
    left = counts.tolist()
    total = sum(left)
    sequence = []
    last = -1
    for draw in draws.uniform(total).tolist():
        fullest = max(range(len(left)), key=left.__getitem__)
        if look_ahead and fullest != last and 2 * left[fullest] > total:
            chosen = fullest
        else:
            weights = left.copy()
            if last >= 0 and left[last] < total:
                weights[last] = 0
            sums = list(accumulate(weights))
            chosen = bisect_right(sums, min(int(draw * sums[-1]), sums[-1] - 1))
        left[chosen] -= 1
        total -= 1
        last = chosen
        sequence.append(chosen)
    return np.asarray(sequence, dtype=np.int64)
