"""Anchor budgets of different kinds that open as many blocks in an epoch."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dflash_lab.drafter import AnchorBudget

# Digits behind the point of a share of the supervised tokens: as many as a person would write into a config.
_SHARE_DIGITS = 4


def equal_budget(per: str, *, anchors_per_sample: int, num_valid: np.ndarray, num_batches: int) -> AnchorBudget:
    """Give the budget of a kind that opens about as many blocks in an epoch as so many anchors a sample.

    Args:
        per: "sample", "supervised_token" or "batch".
        anchors_per_sample: The budget that it has to match, >= 1.
        num_valid: int64 (n,), positions of each sample that can open a block.
        num_batches: Micro-batches of an epoch, >= 1.

    Returns:
        The budget. A share is rounded up to four digits, a batch's anchors to a whole number, at least 1; samples and
        batches with fewer positions than their share use all they have, so that an epoch may have fewer.
    """
    if per == "sample":
        return AnchorBudget(per=per, amount=anchors_per_sample)
    wanted = int(np.minimum(num_valid, anchors_per_sample).sum())
    if per == "batch":
        return AnchorBudget(per=per, amount=max(1, round(wanted / num_batches)))
    scale = 10**_SHARE_DIGITS
    low, high = 1, scale
    while low < high:
        middle = (low + high) // 2
        if _blocks(Fraction(middle, scale), num_valid) >= wanted:
            high = middle
        else:
            low = middle + 1
    return AnchorBudget(per=per, amount=low / scale)


def _blocks(share: Fraction, num_valid: np.ndarray) -> int:
    return sum(math.ceil(share * own) for own in num_valid.tolist())
