"""How a loss swings from step to step: trend, variance between and within groups, modes, memory and spikes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The trend is a polynomial of this degree in the logarithm of the step: four numbers cannot follow swings of steps.
TREND_DEGREE = 3
# The first steps, where the loss falls from what knows nothing, are left out.
WARM_UP_SHARE = 0.2
# A spike is so many robust standard deviations above the median. Of normal deviations 0.03 in a thousand are.
SPIKE_DEVIATIONS = 4.0
# Median absolute deviation of a normal distribution with standard deviation 1.
_NORMAL_MAD = 0.67449
_GRID = 512


@dataclass(frozen=True, kw_only=True)
class VarianceSplit:
    """Population variance by the law of total variance: total = between + within, exactly.

    Args:
        total: Mean squared deviation from the mean of all.
        between: Of the groups' means, each as often as its group has values.
        within: Mean over all of the squared deviation from the own group's mean.
        num_values: Values.
        num_groups: Groups with a value.
    """

    total: float
    between: float
    within: float
    num_values: int
    num_groups: int

    @property
    def between_share(self) -> float | None:
        """between / total; None where nothing varies."""
        return self.between / self.total if self.total > 0 else None

    @property
    def share_by_chance(self) -> float | None:
        """What groups drawn at random would have as `between_share` on average: (groups - 1) / (values - 1)."""
        return (self.num_groups - 1) / (self.num_values - 1) if self.num_values > 1 else None


def variance_split(values: np.ndarray, groups: np.ndarray) -> VarianceSplit:
    """Split a variance into what lies between groups and what lies within them.

    Args:
        values: Finite numbers (n,), n >= 1.
        groups: Of each value, (n,), whole numbers.

    Raises:
        ValueError: If the lengths differ or there is no value.
    """
    values = np.asarray(values, dtype=np.float64)
    if not values.size or values.shape != np.shape(groups):
        raise ValueError(f"there are {values.size} values and {np.size(groups)} groups; legal: as many, at least one")
    _, places = np.unique(groups, return_inverse=True)
    counts = np.bincount(places)
    deviations = values - values.mean()
    means = np.bincount(places, weights=deviations) / counts
    return VarianceSplit(
        total=float(np.square(deviations).mean()),
        between=float((counts * np.square(means)).sum() / len(values)),
        within=float(np.square(deviations - means[places]).mean()),
        num_values=len(values),
        num_groups=len(counts),
    )


def deviations_from_trend(steps: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Take the falling trend out of losses: a cubic in the logarithm of the step, by least squares.

    Args:
        steps: Whole numbers >= 1 (n,), increasing.
        losses: Finite numbers (n,).

    Returns:
        float64 (n,): loss minus trend. Its mean is 0. Of up to 8 values, twice what a cubic has numbers, the mean alone
        is taken: a curve would follow the values themselves.
    """
    losses = np.asarray(losses, dtype=np.float64)
    if len(losses) <= 2 * (TREND_DEGREE + 1):
        return losses - losses.mean() if len(losses) else losses
    place = np.log(np.asarray(steps, dtype=np.float64))
    place = 2 * (place - place[0]) / (place[-1] - place[0]) - 1
    fitted = np.polynomial.legendre.Legendre.fit(place, losses, TREND_DEGREE, domain=[-1, 1])
    return losses - fitted(place)


def lag_correlation(deviations: np.ndarray) -> float | None:
    """Give the correlation of each value with the next: near 0 without memory, above 0 where swings last.

    Args:
        deviations: float64 (n,), with mean 0, in the order of the steps.

    Returns:
        In [-1, 1]; None for fewer than 3 values or where nothing varies.
    """
    square = float(np.square(deviations).sum())
    return float((deviations[:-1] * deviations[1:]).sum()) / square if len(deviations) >= 3 and square > 0 else None


def count_spikes(deviations: np.ndarray) -> int:
    """Count values more than 4 robust standard deviations above the median; the robust one is MAD / 0.674.

    Args:
        deviations: float64 (n,).
    """
    if not len(deviations):
        return 0
    median = np.median(deviations)
    scale = float(np.median(np.abs(deviations - median))) / _NORMAL_MAD
    return int((deviations > median + SPIKE_DEVIATIONS * scale).sum()) if scale > 0 else 0


def count_modes(values: np.ndarray, *, most: int = 4, num_draws: int = 200, seed: int = 0) -> int | None:
    """Count the modes of a distribution: the fewest that the values do not speak against, at a level of 5 %.

    Silverman's test: the least smoothing with which a Gaussian kernel estimate has k modes; then resamples from that
    estimate, scaled to the variance of the values, and how often they have more than k modes with the same smoothing.
    The null is that there are k; it is kept if at least 5 % of the resamples have more. The test is known to keep the
    null too often rather than too seldom.

    Args:
        values: float64 (n,).
        most: Most modes that are tried, >= 1; that many are also given where even they do not do.
        num_draws: Resamples, >= 1.
        seed: Of them, >= 0.

    Returns:
        Modes; None for fewer than 20 values or where nothing varies.

    Source: Silverman, Using kernel density estimates to investigate multimodality, JRSS B 43 (1981).
    """
    values = np.asarray(values, dtype=np.float64)
    spread = float(values.std()) if values.size else 0.0
    if len(values) < 20 or spread == 0:
        return None
    scaled = (values - values.mean()) / spread
    rng = np.random.default_rng((seed, len(values)))
    for count in range(1, most):
        width = _least_width(scaled, count)
        more = 0
        for _ in range(num_draws):
            drawn = scaled[rng.integers(len(scaled), size=len(scaled))]
            noisy = drawn.mean() + (drawn - drawn.mean() + width * rng.standard_normal(len(drawn))) / np.sqrt(
                1 + width**2
            )
            more += _modes(noisy, width) > count
        if more >= 0.05 * num_draws:
            return count
    return most


def _least_width(values: np.ndarray, count: int) -> float:
    """Least kernel width with at most so many modes; modes never become more as it grows."""
    low, high = 0.01, 3.0
    for _ in range(20):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if _modes(values, middle) <= count else (middle, high)
    return high


def _modes(values: np.ndarray, width: float) -> int:
    """Count the maxima of a Gaussian kernel estimate, on a grid that reaches past all values."""
    margin = 4 * width
    low, high = values.min() - margin, values.max() + margin
    counts, edges = np.histogram(values, bins=_GRID, range=(low, high))
    # The transform of the kernel is another Gaussian; the margin keeps one end out of the other.
    frequencies = np.fft.rfftfreq(_GRID, d=edges[1] - edges[0])
    kernel = np.exp(-2 * np.square(np.pi * frequencies * width))
    density = np.fft.irfft(np.fft.rfft(counts) * kernel, n=_GRID)
    # Rounding of the transform makes ripples where there is nothing.
    density[density < 1e-9 * density.max()] = 0.0
    slopes = np.sign(np.diff(density))
    slopes = slopes[slopes != 0]
    return int((np.diff(slopes) < 0).sum())
