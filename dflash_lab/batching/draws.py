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

        Sorted by 32 random bits and the group, 16 bits a pass, the least significant first: numpy sorts 16-bit numbers
        by radix, five times as fast as wider ones. Two items of a group tie with probability 2^-32 and then keep
        their order, which moves no statistic that could be measured.

        Args:
            groups: Whole numbers (num_items,), uint8, uint16 or uint32.

        Returns:
            int64 (num_items,), a permutation.
        """
        keys = self._bits.random_raw((len(groups) + 1) // 2).astype("<u8").view("<u2").reshape(-1, 2)[: len(groups)]
        order = np.argsort(keys[:, 0], kind="stable")
        order = order[np.argsort(keys[:, 1][order], kind="stable")]
        if groups.dtype.itemsize > 2:
            low, groups = groups.astype(np.uint16), (groups >> np.uint32(16)).astype(np.uint16)
            order = order[np.argsort(low[order], kind="stable")]
        if groups.any():
            order = order[np.argsort(groups[order], kind="stable")]
        return order
