"""Orders for accumulation windows: every window of batches a fair sample of the lengths."""

from __future__ import annotations

import numpy as np

from dflash_lab.batching.bounds import bucket_of, equal_token_bounds
from dflash_lab.batching.config import BatchingConfig
from dflash_lab.batching.draws import Draws
from dflash_lab.batching.packing import Packing

# Multiples of the golden ratio fill the unit interval more evenly than those of any other number.
_GOLDEN = (5**0.5 - 1) / 2
# On the source run's lengths the windows' token mix stops improving after about 100 passes, which take 0.15 s.
_PASSES = 100
_NUM_BUCKETS = 6


def low_discrepancy(ranked: np.ndarray, draws: Draws) -> np.ndarray:
    """Order ranked items so that every stretch of the order holds all ranks evenly.

    Args:
        ranked: int64 (n,), items from the lowest rank to the highest.
        draws: The epoch's random numbers; one is drawn, the begin of the sequence.

    Returns:
        int64 (n,), the same items.
    """
    points = (draws.uniform(1) + _GOLDEN * np.arange(len(ranked))) % 1.0
    order = np.empty_like(ranked)
    order[np.argsort(points, kind="stable")] = ranked
    return order


def window_strata(mean_lengths: np.ndarray, window: int, draws: Draws) -> np.ndarray:
    """Give every window of `window` batches one batch of each stratum of mean length.

    Args:
        mean_lengths: float64 (num_batches,), mean tokens a sample.
        window: Batches a window, >= 1, and number of strata.
        draws: The epoch's random numbers.

    Returns:
        int64 (num_batches,); the last window is smaller when the batches do not divide.
    """
    num_windows, rest = divmod(len(mean_lengths), window)
    slots = _far_apart(window)
    # The strata that come first inside a window fill the last, smaller one as well.
    sizes = np.full(window, num_windows)
    sizes[slots[:rest]] += 1
    order = np.empty(len(mean_lengths), dtype=np.int64)
    strata = np.split(np.argsort(mean_lengths, kind="stable"), np.cumsum(sizes)[:-1])
    for slot, stratum in enumerate(slots):
        order[slot::window] = low_discrepancy(strata[stratum], draws)
    return order


def _far_apart(window: int) -> np.ndarray:
    """Order strata so that neighbours are far apart: bit reversal, for any number of them."""
    num_bits = max(window - 1, 0).bit_length()
    reversed_bits = [int(f"{number:0{num_bits}b}"[::-1], 2) if num_bits else 0 for number in range(2**num_bits)]
    return np.asarray([number for number in reversed_bits if number < window], dtype=np.int64)


def balance(
    order: np.ndarray, packing: Packing, of_members: np.ndarray, config: BatchingConfig, draws: Draws
) -> np.ndarray:
    """Swap batches between windows as long as both together come closer to the data's lengths.

    Closer means: total variation between the window's token mix over the length buckets and the data's, plus the
    squared relative error of the window's mean length. Windows are paired at random, a hundred times over.

    Args:
        order: int64 (num_batches,), from `window_strata`.
        packing: The batches.
        of_members: int64 (num_planned,), lengths of its members.
        config: The window, and the buckets to mix: its bounds, or six of equal tokens.
        draws: The epoch's random numbers.

    Returns:
        int64 (num_batches,); a smaller last window stays as it is.
    """
    num_windows = len(order) // config.window
    windows = order[: num_windows * config.window].reshape(num_windows, config.window).copy()
    if num_windows < 2:
        return order
    tokens, samples = _mixes(packing, of_members, config)
    mix, mean = tokens.sum(axis=0) / tokens.sum(), tokens.sum() / samples.sum()

    def distance(window_tokens: np.ndarray, window_samples: np.ndarray) -> np.ndarray:
        totals = window_tokens.sum(axis=1)
        variation = np.abs(window_tokens / totals[:, None] - mix).sum(axis=1) / 2
        return variation + (totals / window_samples / mean - 1) ** 2

    of_windows, in_windows = tokens[windows].sum(axis=1), samples[windows].sum(axis=1)
    far = distance(of_windows, in_windows)
    num_pairs = num_windows // 2
    for _ in range(_PASSES):
        paired = draws.permutation(num_windows)
        one, other = paired[:num_pairs], paired[num_pairs : 2 * num_pairs]
        slots = (draws.uniform(2 * num_pairs) * config.window).astype(np.int64).reshape(2, num_pairs)
        given, taken = windows[one, slots[0]], windows[other, slots[1]]
        moved, moved_samples = tokens[taken] - tokens[given], samples[taken] - samples[given]
        far_one = distance(of_windows[one] + moved, in_windows[one] + moved_samples)
        far_other = distance(of_windows[other] - moved, in_windows[other] - moved_samples)
        better = far_one + far_other < far[one] + far[other]
        one, other, slots, moved = one[better], other[better], slots[:, better], moved[better]
        windows[one, slots[0]], windows[other, slots[1]] = taken[better], given[better]
        of_windows[one] += moved
        of_windows[other] -= moved
        in_windows[one] += moved_samples[better]
        in_windows[other] -= moved_samples[better]
        far[one], far[other] = far_one[better], far_other[better]
    return np.concatenate([windows.ravel(), order[windows.size :]])


def _mixes(packing: Packing, of_members: np.ndarray, config: BatchingConfig) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each batch by length bucket, float64 (num_batches, num_buckets), and its samples, float64."""
    bounds = config.bucket_bounds or equal_token_bounds(of_members, _NUM_BUCKETS)
    num_buckets, sizes = len(bounds) - 1, np.diff(packing.offsets)
    cells = np.repeat(np.arange(len(sizes)), sizes) * num_buckets + bucket_of(of_members, bounds)
    tokens = np.bincount(cells, weights=of_members, minlength=len(sizes) * num_buckets)
    return tokens.reshape(len(sizes), num_buckets), sizes.astype(np.float64)
