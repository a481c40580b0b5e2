"""What a batch costs: a model with three terms, by default or fitted to measured batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import polars as pl

from dflash_lab.analysis.plans import squared_tokens
from dflash_lab.batching import BatchPlan

_TERMS = ("per_batch", "per_token", "per_token_squared")


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Time of a batch = per_batch + per_token * padded tokens + per_token_squared * pairs of tokens.

    The pairs are those over which full attention runs: batch size * width^2, or the sum of length^2 in a packed row.

    Args:
        per_batch: Cost of a batch whatever it holds, >= 0.
        per_token: Cost of a padded token, >= 0.
        per_token_squared: Cost of a pair of tokens, >= 0.

    Raises:
        ValueError: If a term is negative or not finite, or all are 0.
    """

    per_batch: float
    per_token: float
    per_token_squared: float

    def __post_init__(self) -> None:
        terms = {name: getattr(self, name) for name in _TERMS}
        for name, value in terms.items():
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}; legal: a finite number >= 0")
        if not any(terms.values()):
            raise ValueError(f"{', '.join(_TERMS)} are all 0; legal: at least one above 0")

    def batch_costs(self, plan: BatchPlan) -> np.ndarray:
        """Give the cost of each batch of a plan: float64 (num_batches,), in the model's unit."""
        costs = self.per_batch + self.per_token * plan.padded_tokens_by_batch
        return costs + self.per_token_squared * squared_tokens(plan) if self.per_token_squared else costs

    @classmethod
    def calibrated(cls, batches: pl.DataFrame) -> CostModel:
        """Fit the three terms to measured batches by non-negative least squares.

        Args:
            batches: One row a batch: seconds (measured), padded_tokens, squared_tokens (both as in `plan_table`).

        Returns:
            The model in seconds; terms that would have to be negative, or that the batches cannot tell from the
            others, are 0.

        Raises:
            ValueError: If a column is missing or not of finite numbers, a time is not above 0, or there are fewer than
                three batches.
        """
        columns = ["padded_tokens", "squared_tokens", "seconds"]
        missing = [name for name in columns if name not in batches.columns]
        if missing:
            raise ValueError(f"the table has no column {', '.join(missing)}; it has {', '.join(batches.columns)}")
        values = batches.select(pl.col(columns).cast(pl.Float64)).to_numpy()
        if not np.isfinite(values).all() or len(values) < 3 or (values[:, 2] <= 0).any():
            raise ValueError("a batch was not measured; legal: three batches or more, all numbers finite, seconds > 0")
        terms = np.column_stack([np.ones(len(values)), values[:, :2]])
        fitted = _non_negative_fit(terms, values[:, 2])
        return cls(**dict(zip(_TERMS, fitted.tolist(), strict=True)))


def _non_negative_fit(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Solve over every subset of the terms and keep the best one without a negative: exact, and three terms have 7."""
    scale = np.abs(terms).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = terms / scale
    best, least = np.zeros(terms.shape[1]), np.inf
    every = range(terms.shape[1])
    # The fewest terms first: a further one must lower the error to be taken.
    for subset in chain.from_iterable(combinations(every, size) for size in range(1, len(every) + 1)):
        chosen = list(subset)
        solution, _, rank, _ = np.linalg.lstsq(scaled[:, chosen], seconds, rcond=None)
        error = float(np.square(scaled[:, chosen] @ solution - seconds).sum())
        if rank == len(chosen) and (solution >= 0).all() and error < least * (1 - 1e-9):
            best, least = np.zeros(terms.shape[1]), error
            best[chosen] = solution
    return best / scale


# Time ~ padded tokens: what held for the source run's three rates.
PADDED_TOKENS = CostModel(per_batch=0.0, per_token=1.0, per_token_squared=0.0)
# In units of one padded token. A pair of tokens costs 4 * hidden operations a layer, a token 24 * hidden^2 (a
# transformer with an MLP four times as wide): with hidden 4,096 and half the pairs masked, 1 / (12 * 4,096). The cost
# of a batch is an assumption, 1 % of the source run's budget; calibrate both when a run's rates are at hand.
QUADRATIC_ATTENTION = CostModel(per_batch=500.0, per_token=1.0, per_token_squared=1 / (12 * 4_096))
