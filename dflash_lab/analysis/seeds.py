"""What a few seeds allow to say: paired differences with an interval, and which kind of interval it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# 97.5 % points of Student's t, by degrees of freedom from 1. Source: any table of the distribution.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)
# A bootstrap over fewer pairs has too few different resamples: with 3 of them 10, and its interval is far too narrow.
_LEAST_FOR_BOOTSTRAP = len(_STUDENT) + 2


@dataclass(frozen=True, kw_only=True)
class PairedInterval:
    """A mean of paired differences with its 95 % interval.

    Args:
        mean: Of the differences.
        low: Lower end; None for a single pair, of which nothing can be said.
        high: Upper end.
        n: Pairs.
        method: "Student's t", "bootstrap" or "one pair".
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    method: str

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is seen: the interval is there and does not hold 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_interval(differences: Sequence[float], *, num_draws: int = 10_000, seed: int = 0) -> PairedInterval:
    """Give a 95 % interval for the mean of paired differences.

    Args:
        differences: Finite numbers (n,), n >= 1, one a pair.
        num_draws: Resamplings of the bootstrap, >= 1.
        seed: Of them, >= 0.

    Returns:
        From 8 pairs on the middle 95 % of resampled means; below, Student's t, which takes the differences for normal.

    Raises:
        ValueError: If there is no difference, or one is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"differences is {differences!r}; legal: finite numbers in one dimension, at least one")
    n, mean = len(values), float(values.mean())
    if n == 1:
        return PairedInterval(mean=mean, low=None, high=None, n=1, method="one pair")
    if n < _LEAST_FOR_BOOTSTRAP:
        half = _STUDENT[n - 2] * float(values.std(ddof=1)) / math.sqrt(n)
        return PairedInterval(mean=mean, low=mean - half, high=mean + half, n=n, method="Student's t")
    drawn = np.random.default_rng((seed, n)).integers(n, size=(num_draws, n))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return PairedInterval(mean=mean, low=float(low), high=float(high), n=n, method="bootstrap")
