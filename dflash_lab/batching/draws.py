"""Random draws that are the same under any numpy version.

numpy promises the raw stream of a bit generator and of its seeding for ever, but not what `Generator` methods make of
it: their algorithms have changed between versions and may again. So everything here is made of raw 64-bit words, and
a shuffle is a sort by random keys.
"""

from __future__ import annotations

import numpy as np

_TO_UNIT = 2.0**-53
# Sets a plan's numbers apart from those of `np.random.default_rng(seed)`, with which lengths may have been made.
_OF_PLANS = 0x706C616E


class Draws:
    """The random numbers of one epoch's plan.

    Args:
        seed: Seed of the plan, >= 0.
        epoch: Number of the epoch, >= 0.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence((_OF_PLANS, seed, epoch)))

    def uniform(self, num_draws: int) -> np.ndarray:
        """Draw from [0, 1): float64 (num_draws,), multiples of 2^-53."""
        return (self._bits.random_raw(num_draws) >> np.uint64(11)) * _TO_UNIT

    def permutation(self, num_items: int) -> np.ndarray:
        """Draw an order of the numbers below `num_items`: int64 (num_items,)."""
        return self.shuffle_within(np.zeros(num_items, dtype=np.uint8))

    def shuffle_within(self, groups: np.ndarray) -> np.ndarray:
        """Order items by group, and at random inside each.

        Sorted by the group and random bits, the least significant first: numpy sorts numbers of 8 and 16 bits by radix,
        a byte a pass, many times as fast as wider ones, so every byte of the keys is paid for. Groups of up to 2^15
        items get 16 random bits or more, larger ones 24 or more. Two items of a group that draw the same bits keep
        their order; they stand side by side either way, which moves no statistic that could be measured.

        Args:
            groups: Whole numbers (num_items,), uint8, uint16 or uint32.

        Returns:
            int64 (num_items,), a permutation.
        """
        keys = self._bits.random_raw((len(groups) + 1) // 2).astype("<u8").view("<u2").reshape(-1, 2)[: len(groups)]
        order = np.argsort(keys[:, 0], kind="stable")
        num_bits = int(groups.max()).bit_length() if len(groups) else 0
        if num_bits > 8:
            order = order[np.argsort(keys[:, 1][order], kind="stable")]
            return order[stable_order(groups[order])]
        # The group and, in the bits that it leaves, more random ones.
        width = np.uint8 if len(groups) and np.bincount(groups).max() <= 2**15 else np.uint16
        free = 8 * width().itemsize - num_bits
        high = (keys[:, 1] >> (16 - free)).astype(width)
        if num_bits:
            high |= groups.astype(width) << width(free)
        return order[np.argsort(high[order], kind="stable")]


def stable_order(values: np.ndarray) -> np.ndarray:
    """Sort whole numbers >= 0 as `np.argsort(values, kind="stable")` does, by radix where 16 or 32 bits hold them.

    Args:
        values: Whole numbers >= 0 (num_items,).

    Returns:
        int64 (num_items,), a permutation.
    """
    most = int(values.max()) if len(values) else 0
    if most >= 2**32:
        return np.argsort(values, kind="stable")
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    if most >= 2**16:
        order = order[np.argsort((values[order] >> 16).astype(np.uint16), kind="stable")]
    return order
