"""What one epoch of batches costs, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The figures of one epoch.

    Args:
        num_batches: Batches, or packed rows.
        padding_efficiency: Real / padded tokens, in (0, 1]; 1 for packed rows.
        budget_use: Real tokens / (batches * budget); above 1 where batches exceed the budget.
        num_over_budget: Batches that take more than the budget.
        worst_over_budget: The dearest batch / budget.
        num_over_cap: Batches of more samples than the cap.
        num_lost: Samples in no batch; None where the planner tells only one rank's share.
    """

    num_batches: int
    padding_efficiency: float
    budget_use: float
    num_over_budget: int
    worst_over_budget: float
    num_over_cap: int
    num_lost: int | None


def measured(
    batches: Iterable[Sequence[int]], lengths: np.ndarray, *, token_budget: int, cap: int, packed: bool, ranks: int = 1
) -> Outcome:
    """Measure batches of sample ids.

    Args:
        batches: Sample ids of each batch; where `ranks` > 1, of the first rank only.
        lengths: Whole numbers (num_samples,), in tokens.
        token_budget: Most tokens in a batch, padding included.
        cap: Most samples in a batch.
        packed: Whether samples stand end to end, without padding.
        ranks: Ranks that have as many batches each.

    Returns:
        The figures; each rank is taken to have as many batches as the first, and none to lose samples.
    """
    batches = [batch for batch in batches if len(batch)]
    sizes = np.fromiter(map(len, batches), dtype=np.int64, count=len(batches))
    members = np.fromiter(chain.from_iterable(batches), dtype=np.int64, count=int(sizes.sum()))
    starts = np.cumsum(sizes) - sizes
    of_members = lengths.astype(np.int64)[members]
    tokens = np.add.reduceat(of_members, starts)
    padded = tokens if packed else np.maximum.reduceat(of_members, starts) * sizes
    # The first rank may well have the fullest rows of all: count everyone's tokens.
    real_tokens = tokens.sum() if ranks == 1 else lengths.sum(dtype=np.int64)
    return Outcome(
        num_batches=len(batches) * ranks,
        padding_efficiency=float(tokens.sum() / padded.sum()),
        budget_use=float(real_tokens / (len(batches) * ranks * token_budget)),
        num_over_budget=int((padded > token_budget).sum()) * ranks,
        worst_over_budget=float(padded.max() / token_budget),
        num_over_cap=int((sizes > cap).sum()) * ranks,
        num_lost=len(lengths) - len(np.unique(members)) if ranks == 1 else None,
    )
