"""The source run's way to plan an epoch: lists, a running maximum and a seeded shuffle, in pure Python."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable


def pack_in_order(order: Iterable[int], lengths: list[int], token_budget: int, cap: int) -> list[list[int]]:
    """Close a batch when the next sample would bring it over the budget or the cap."""
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = 0
    for sample in order:
        longest = max(longest, lengths[sample])
        if batch and (len(batch) == cap or longest * (len(batch) + 1) > token_budget):
            batches.append(batch)
            batch, longest = [], lengths[sample]
        batch.append(sample)
    if batch:
        batches.append(batch)
    return batches


def plan_sorted(lengths: list[int], token_budget: int, cap: int, seed: int) -> list[list[int]]:
    """Sort by length, pack, shuffle the batches."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    batches = pack_in_order(order, lengths, token_budget, cap)
    random.Random(seed).shuffle(batches)
    return batches


def plan_random(lengths: list[int], token_budget: int, cap: int, seed: int) -> list[list[int]]:
    """Shuffle the samples and pack."""
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    return pack_in_order(order, lengths, token_budget, cap)


def plan_six_buckets(
    lengths: list[int], token_budget: int, cap: int, seed: int, bounds: tuple[int, ...]
) -> list[list[int]]:
    """Shuffle and pack each bucket, shuffle the batches."""
    rng = random.Random(seed)
    inner = bounds[1:-1]
    buckets: list[list[int]] = [[] for _ in range(len(bounds) - 1)]
    for sample, length in enumerate(lengths):
        buckets[bisect_right(inner, length)].append(sample)
    batches = []
    for bucket in buckets:
        rng.shuffle(bucket)
        batches.extend(pack_in_order(bucket, lengths, token_budget, cap))
    rng.shuffle(batches)
    return batches
