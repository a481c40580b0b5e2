"""When a batch is seen: orders over batches that are already composed.

An order costs no padding; it decides how alike neighbouring batches are. Orders work on groups of batches: their
buckets, or, where a strategy has none, classes of their mean length.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import numpy as np

# Batches without buckets are grouped by mean length into as many classes of equal size as the source run had buckets.
NUM_LENGTH_CLASSES = 6


def order_batches(order: str, bucket_ids: np.ndarray, mean_lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Put batches in the order in which they are seen.

    Args:
        order: One of ORDERS.
        bucket_ids: int16 (num_batches,), -1 where there are no buckets.
        mean_lengths: float64 (num_batches,), mean tokens a sample.
        rng: The epoch's generator.

    Returns:
        int64 (num_batches,), a permutation.
    """
    num_batches = len(bucket_ids)
    if order == "as_built":
        return np.arange(num_batches)
    if order == "random":
        return rng.permutation(num_batches)
    groups = _groups(bucket_ids, mean_lengths)
    sequence = _stride(groups, rng) if order == "stride" else _no_repeat(groups, rng)
    # `sequence` says which group comes when; which of its batches is a matter of chance.
    shuffled = rng.permutation(num_batches)
    by_group = shuffled[np.argsort(groups[shuffled], kind="stable")]
    slots = np.argsort(sequence, kind="stable")
    permutation = np.empty(num_batches, dtype=np.int64)
    permutation[slots] = by_group
    return permutation


def _groups(bucket_ids: np.ndarray, mean_lengths: np.ndarray) -> np.ndarray:
    """Number the groups 0.. without gaps: int64 (num_batches,)."""
    if (bucket_ids >= 0).all():
        return np.unique(bucket_ids, return_inverse=True)[1].astype(np.int64)
    ranks = np.empty(len(mean_lengths), dtype=np.int64)
    ranks[np.argsort(mean_lengths, kind="stable")] = np.arange(len(mean_lengths))
    return ranks * NUM_LENGTH_CLASSES // len(mean_lengths)


def _stride(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Spread each group evenly: batch j of m stands at (j + offset) / m, one seeded offset a group."""
    counts = np.bincount(groups)
    offsets = rng.random(len(counts))
    labels = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = (within + offsets[labels]) / counts[labels]
    return labels[np.argsort(positions, kind="stable")]


def _no_repeat(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw groups at random by what is left of each, with the fewest repeats and the shortest longest run there can be.

    A draw that only avoids the last group uses the small groups up and ends on one long run of the largest. Here every
    draw leaves the rest arrangeable.
    """
    counts = np.bincount(groups)
    largest = int(np.argmax(counts))
    num_others = len(groups) - int(counts[largest])
    if counts[largest] > num_others:
        return _around_the_others(counts, largest, rng)
    return _without_repeats(counts, rng)


def _around_the_others(counts: np.ndarray, largest: int, rng: np.random.Generator) -> np.ndarray:
    """One group is the majority: it fills every gap around the others, in runs that differ by one batch at most."""
    others = np.repeat(np.arange(len(counts)), np.where(np.arange(len(counts)) == largest, 0, counts))
    rng.shuffle(others)
    num_gaps = len(others) + 1
    runs = np.full(num_gaps, counts[largest] // num_gaps)
    runs[rng.permutation(num_gaps)[: counts[largest] % num_gaps]] += 1
    sequence = np.full(counts.sum(), largest)
    sequence[np.cumsum(runs[:-1]) + np.arange(len(others))] = others
    return sequence


def _without_repeats(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """No majority: no two neighbours are equal. A group that has come to half of what is left must be drawn next."""
    left = counts.tolist()
    total = sum(left)
    draws = rng.random(total).tolist()
    sequence = []
    last = -1
    for draw in draws:
        fullest = max(range(len(left)), key=left.__getitem__)
        if fullest != last and 2 * left[fullest] > total:
            chosen = fullest
        else:
            weights = left.copy()
            if last >= 0:
                weights[last] = 0
            sums = list(accumulate(weights))
            chosen = bisect_right(sums, min(int(draw * sums[-1]), sums[-1] - 1))
        left[chosen] -= 1
        total -= 1
        last = chosen
        sequence.append(chosen)
    return np.asarray(sequence, dtype=np.int64)
