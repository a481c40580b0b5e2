"""Draft blocks of a batch under three budgets of anchors: what the drafter's loss is averaged over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_lab.batching import BatchPlan
from dflash_lab.batching.config import whole_number


@dataclass(frozen=True, kw_only=True)
class AnchorBudgets:
    """How many anchors are drawn, in each of three ways; a sample has at most one a supervised token.

    Args:
        per_sample: Anchors of each sample, >= 1. The DFlash paper draws 512.
        per_loss_token: Anchors for each supervised token, rounded up for a sample, in (0, 1]. The default gives a
            sample of 4,096 supervised tokens the paper's 512.
        per_batch: Anchors of each batch, >= 1; None takes `per_loss_token` of the token budget.

    Raises:
        ValueError: If a budget is out of range.
    """

    per_sample: int = 512
    per_loss_token: float = 1 / 8
    per_batch: int | None = None

    def __post_init__(self) -> None:
        whole_number("per_sample", self.per_sample, least=1)
        if not 0 < self.per_loss_token <= 1:
            raise ValueError(f"per_loss_token is {self.per_loss_token!r}; legal: a number in (0, 1]")
        if self.per_batch is not None:
            whole_number("per_batch", self.per_batch, least=1)


def draft_blocks(
    plan: BatchPlan, budgets: AnchorBudgets, loss_tokens: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Count the draft blocks of each batch under each budget; each anchor opens one.

    Args:
        plan: The plan of an epoch.
        budgets: The three budgets.
        loss_tokens: Whole numbers (num_samples,), supervised tokens of each sample, by sample id; None takes every
            token as supervised. Of a sample that was cut, no more than the tokens that are left count.

    Returns:
        "sample", "loss_token", "batch" -> int64 (num_batches,).
    """
    supervised = plan.sample_lengths.astype(np.int64)
    if loss_tokens is not None:
        supervised = np.minimum(supervised, loss_tokens[plan.sample_ids])
    starts = plan.offsets[:-1]
    per_batch = budgets.per_batch
    if per_batch is None:
        per_batch = max(1, round(budgets.per_loss_token * plan.config.token_budget))
    by_loss_token = np.ceil(budgets.per_loss_token * supervised).astype(np.int64)
    return {
        "sample": np.add.reduceat(np.minimum(supervised, budgets.per_sample), starts),
        "loss_token": np.add.reduceat(by_loss_token, starts),
        "batch": np.minimum(np.add.reduceat(supervised, starts), per_batch),
    }
