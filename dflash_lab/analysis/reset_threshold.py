"""How far above its level a loss must jump before it is no longer the noise that the run has anyway."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Spreads above the level from which a loss counts neither as noise nor as a reset while the noise's tail is measured.
SET_ASIDE_SPREADS = 8.0
# A reset is at least this many spreads deep, however light the tail is.
LEAST_SPREADS = 4.0
# Shapes of the tail that are thought possible: 0 is an exponential tail, heavier than a normal one's; 1/3 is that of
# Student's t with 3 degrees of freedom. Before anything is seen a shape's weight falls by e every 0.3.
_SHAPES = np.linspace(0.0, 0.5, 11)
_SHAPE_DECAY = 0.3
# The heights are set for this share of the allowed rate: noise with a tail like Student's t(3), the heaviest measured,
# passes them up to three times as often as the fit says (benchmarks/false_alarms.py); lighter noise passes them less.
_CAUTION = 0.3
# Scales of the tail, in units of its mean excess.
_SCALES = np.geomspace(0.15, 3.0, 25)
# Thresholds that are looked through, in mean excesses above the start of the tail.
_HEIGHTS = np.geomspace(1e-1, 1e4, 160)
# Order statistics that stand for the whole tail where it has more.
_MOST_EXCESSES = 400


@dataclass(frozen=True, kw_only=True)
class ResetThreshold:
    """Where noise ends.

    Attributes:
        spreads: Height above the level in local spreads, >= 4; infinite where nothing could be measured.
        num_scored: Steps whose noise was measured.
        num_tail: Excursions that the tail was fitted to.
        num_set_aside: Steps over 8 spreads, which the fit did not use.
        autocorrelation: Lag-1 correlation of the noise, in [-1, 1].
    """

    spreads: float
    num_scored: int
    num_tail: int
    num_set_aside: int
    autocorrelation: float


def reset_threshold(scores: np.ndarray, *, false_alarms_per_1000_steps: float) -> ResetThreshold:
    """Find the height that noise alone passes as often as is allowed.

    Neighbouring scores above a start, their highest 4 % (of few steps the highest 100, at most a third), are one
    excursion, as they would be one alarm. A generalised Pareto tail is fitted to the tops of the excursions up to 8
    spreads, or up to the highest twentieth of the scores if that is higher. What lies above is set aside: it may be
    resets, and a fit that used it would take them for noise. Every tail is weighed by its likelihood, and the threshold
    is the height whose mean exceedance over all of them is 0.3 times the rate, which leaves room for tails that get
    heavier further out. Few steps leave heavy tails possible and so give a high threshold instead of many false alarms.

    Args:
        scores: float64 (n,), heights above the level in spreads, in order; finite.
        false_alarms_per_1000_steps: Allowed rate, > 0.

    Returns:
        The threshold.
    """
    num_scored = len(scores)
    if num_scored < 8:
        return ResetThreshold(
            spreads=float("inf"), num_scored=num_scored, num_tail=0, num_set_aside=0, autocorrelation=0.0
        )
    end = max(SET_ASIDE_SPREADS, float(np.quantile(scores, 0.95)))
    quiet = scores[scores <= end]
    start = float(np.quantile(quiet, 1 - min(max(100 / len(quiet), 0.04), 1 / 3)))
    tops = excursions(scores, start)
    excesses = np.sort(tops[tops <= end]) - start
    num_set_aside = num_scored - len(quiet)
    autocorrelation = _autocorrelation(np.clip(scores, -4, 4))
    result = {"num_scored": num_scored, "num_tail": len(excesses), "num_set_aside": num_set_aside}
    if not len(excesses) or not excesses.mean() > 0:
        # All scores are alike: nothing is noise but what is equal to the rest.
        return ResetThreshold(spreads=LEAST_SPREADS, autocorrelation=autocorrelation, **result)
    rate = _CAUTION * false_alarms_per_1000_steps / 1000
    height = _height(excesses, end - start, len(excesses) / len(quiet), rate)
    return ResetThreshold(spreads=max(LEAST_SPREADS, start + height), autocorrelation=autocorrelation, **result)


def excursions(scores: np.ndarray, start: float) -> np.ndarray:
    """Give the highest score of each unbroken row of scores above a start.

    Args:
        scores: float64 (n,), in order.
        start: What they must be above.

    Returns:
        float64 (num_excursions,), in order.
    """
    above = scores > start
    begins = np.flatnonzero(above & ~np.concatenate([[False], above[:-1]]))
    if not len(begins):
        return np.zeros(0)
    return np.maximum.reduceat(np.where(above, scores, -np.inf), begins)


def _height(excesses: np.ndarray, end: float, share: float, rate: float) -> float:
    """The height above the tail's start whose mean exceedance a step is `rate`."""
    mean = float(excesses.mean())
    kept = min(len(excesses), _MOST_EXCESSES)
    values = np.quantile(excesses, (np.arange(kept) + 0.5) / kept) / mean
    shapes, scales = (grid.ravel() for grid in np.meshgrid(_SHAPES, _SCALES))
    within = 1 - _survival(np.array([end / mean]), shapes, scales)[:, 0]
    log_density = -np.log(scales) - np.log(within) + _log_survival(values, shapes, scales, density=True).mean(axis=1)
    log_weight = log_density * len(excesses) - shapes / _SHAPE_DECAY
    weights = np.exp(log_weight - log_weight.max())
    weights /= weights.sum()
    # The tail that is cut off at `end` holds `share` excursions a step; the whole one holds more.
    tails = (share / within)[:, None] * _survival(_HEIGHTS, shapes, scales)
    exceedance = weights @ tails
    # interp wants rising abscissae; the exceedance falls with the height.
    return mean * float(np.exp(np.interp(-np.log(rate), -np.log(exceedance), np.log(_HEIGHTS))))


def _log_survival(values: np.ndarray, shapes: np.ndarray, scales: np.ndarray, *, density: bool = False) -> np.ndarray:
    """Log of the survival, or of the density without its 1 / scale, of tails (t,) at values (v,): (t, v)."""
    ratios = values[None, :] / scales[:, None]
    shape = shapes[:, None]
    heavy = np.where(shape > 0, shape, 1.0)
    power = 1 / heavy + (1.0 if density else 0.0)
    return np.where(shape > 0, -power * np.log1p(heavy * ratios), -ratios)


def _survival(values: np.ndarray, shapes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.exp(_log_survival(values, shapes, scales))


def _autocorrelation(values: np.ndarray) -> float:
    centred = values - values.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total > 0 else 0.0
