"""Batches dealt to ranks: the same number to each, level in cost, with the order's mix in every window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Deal:
    """Who gets which batch.

    Args:
        of_ranks: int64 (world_size, batches of a rank), numbers of batches in the order in which a rank sees them.
        tail: int64, batches that no rank gets.
    """

    of_ranks: np.ndarray
    tail: np.ndarray


def deal_batches(costs: np.ndarray, *, world_size: int, window: int, repeat: bool, rotation: int) -> Deal:
    """Deal batches in their order; see `BatchPlan.shard`.

    Args:
        costs: int64 (num_batches,), padded tokens of each batch.
        world_size: Number of ranks, >= 1.
        window: Batches of an accumulation window, >= 1.
        repeat: Whether ranks that would get a batch less than others get one of the others' again; else the last few
            are left out.
        rotation: By how many batches the stretch that is left out is moved from the end.

    Returns:
        The deal; a rank has no batch twice unless there are fewer batches than ranks.
    """
    every = np.arange(len(costs))
    num_over = len(costs) % world_size
    tail = every[:0]
    if num_over and not repeat:
        tail = np.roll(every, rotation)[-num_over:]
        every = np.delete(every, tail)
    num_rounds = len(every) // (window * world_size)
    whole, rest = np.split(every, [num_rounds * window * world_size])
    in_windows = _deal_windows(whole.reshape(num_rounds, world_size, window), costs)
    full, last = np.split(rest, [len(rest) - len(rest) % world_size])
    of_ranks = np.concatenate([in_windows, full.reshape(-1, world_size).T], axis=1)
    if len(last):
        of_ranks = np.column_stack([of_ranks, _filled(last, of_ranks, len(costs))])
    return Deal(of_ranks, tail)


def _deal_windows(rounds: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Give the dearest window of each round to the rank that has had least so far: int64 (world_size, batches)."""
    num_rounds, world_size, window = rounds.shape
    totals = costs[rounds].sum(axis=2)
    had = np.zeros(world_size, dtype=np.int64)
    dealt = np.empty((world_size, num_rounds), dtype=np.int64)
    for number, (window_costs, order) in enumerate(
        zip(totals, np.argsort(-totals, axis=1, kind="stable"), strict=True)
    ):
        least_first = np.argsort(had, kind="stable")
        dealt[least_first, number] = order
        had[least_first] += window_costs[order]
    return rounds[np.arange(num_rounds), dealt].reshape(world_size, num_rounds * window)


def _filled(last: np.ndarray, of_ranks: np.ndarray, num_batches: int) -> np.ndarray:
    """Deal the last, incomplete round, and give each other rank the first batch that it and no repeat has: int64."""
    world_size = len(of_ranks)
    round_ = np.empty(world_size, dtype=np.int64)
    round_[: len(last)] = last
    times = np.zeros(num_batches, dtype=np.int64)
    for rank in range(len(last), world_size):
        weights = times.copy()
        weights[of_ranks[rank]] += world_size
        round_[rank] = np.argmin(weights)
        times[round_[rank]] += 1
    return round_
