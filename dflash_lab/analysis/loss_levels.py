"""What the loss swings with, outside its resets: shares of its variance, trend taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from dflash_lab.analysis.shift_test import holm, stretches_of
from dflash_lab.analysis.suspects import Suspect

LEVEL_SCHEMA = {
    "suspect": pl.String,
    "num_steps": pl.Int64,
    "variance_explained": pl.Float64,
    "explained_by_chance": pl.Float64,
    "difference": pl.Float64,
    "p_value": pl.Float64,
    "adjusted_p": pl.Float64,
}
# Steps around each whose median is the trend.
_TREND_STEPS = 101
_LEAST_STEPS = 50
_GROUPS = 8
# Losses further from the trend than this many spreads count as this far: one spike must not be the whole variance.
_MOST_SPREADS = 5.0
_CHUNK = 4_000_000


def loss_level_table(
    losses: np.ndarray, outside: np.ndarray, suspects: Sequence[Suspect], *, num_draws: int, rng: np.random.Generator
) -> pl.DataFrame:
    """Tabulate how much of the loss's variance goes with each measure of a step.

    Taken out first: steps in resets, and the median of the 101 steps around each. The steps are put into up to eight
    groups of the measure, and the variance between the groups is set against all of it; then again with the losses
    shifted in a circle within stretches, which keeps what neighbours have in common.

    Args:
        losses: float64 (num_steps,), NaN where there is none.
        outside: bool (num_steps,), steps that are in no reset.
        suspects: Those with a measure are tabulated.
        num_draws: Shifts, >= 1.
        rng: Source of them.

    Returns:
        Most explained first: suspect, num_steps (those used), variance_explained (share of the variance around the
        trend), explained_by_chance (mean of the shifts), difference (mean loss of the group with the highest values
        less that of the lowest), p_value, adjusted_p (Holm over the rows). No rows for fewer than 50 steps.
    """
    kept = np.flatnonzero(outside & np.isfinite(losses))
    named = [suspect for suspect in suspects if suspect.measure is not None]
    if len(kept) < _LEAST_STEPS or not named:
        return pl.DataFrame(schema=LEVEL_SCHEMA)
    around = _around_trend(losses[kept])
    total = float(around @ around)
    groups = [(suspect, _groups(suspect.measure[kept])) for suspect in named if suspect.measure is not None]
    groups = [(suspect, group) for suspect, group in groups if group.max() > group.min()]
    if total <= 0 or not groups:
        return pl.DataFrame(schema=LEVEL_SCHEMA)
    null = _shifted(around, [group for _, group in groups], num_draws, rng) / total
    rows = []
    for place, (suspect, group) in enumerate(groups):
        counts = np.bincount(group)
        sums = np.bincount(group, weights=around)
        share = float((sums**2 / np.maximum(counts, 1)).sum()) / total
        p_value = (1 + int((null[:, place] >= share - 1e-12).sum())) / (1 + num_draws)
        means = sums[1:] / np.maximum(counts[1:], 1)
        filled = np.flatnonzero(counts[1:])
        difference = float(means[filled[-1]] - means[filled[0]])
        rows.append((suspect.name, len(kept), share, float(null[:, place].mean()), difference, p_value))
    table = pl.DataFrame(rows, schema=list(LEVEL_SCHEMA)[:-1], orient="row")
    adjusted = pl.Series("adjusted_p", holm(table["p_value"].to_numpy()))
    return table.with_columns(adjusted).cast(LEVEL_SCHEMA).sort("variance_explained", descending=True)


def _around_trend(losses: np.ndarray) -> np.ndarray:
    trend = pl.Series(losses).rolling_median(_TREND_STEPS, center=True, min_samples=_TREND_STEPS // 4).to_numpy()
    around = losses - trend
    spread = float(np.median(np.abs(around - np.median(around)))) * 1.4826
    if spread > 0:
        around = np.clip(around, -_MOST_SPREADS * spread, _MOST_SPREADS * spread)
    return around - around.mean()


def _groups(measure: np.ndarray) -> np.ndarray:
    """Number the group of each value from 1, lowest first; 0 where there is no value."""
    known = np.isfinite(measure)
    groups = np.zeros(len(measure), np.int64)
    if known.any():
        borders = np.unique(np.quantile(measure[known], np.arange(1, _GROUPS) / _GROUPS))
        groups[known] = 1 + np.searchsorted(borders, measure[known], side="left")
    return groups


def _shifted(around: np.ndarray, groups: list[np.ndarray], num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Sums of squares between the groups of each measure after shifts: (num_draws, num_measures)."""
    width = _GROUPS + 1
    member = np.zeros((len(around), width * len(groups)), np.float32)
    for place, group in enumerate(groups):
        member[np.arange(len(around)), width * place + group] = 1
    counts = np.maximum(member.sum(axis=0), 1)
    stretches = stretches_of(len(around), num_events=len(around))
    values = around.astype(np.float32)
    size = max(1, _CHUNK // len(around))
    parts = []
    for start in range(0, num_draws, size):
        drawn = np.empty((min(size, num_draws - start), len(around)), np.float32)
        for rows in stretches:
            shifts = rng.integers(0, len(rows), len(drawn))
            drawn[:, rows] = values[rows[(np.arange(len(rows))[None, :] + shifts[:, None]) % len(rows)]]
        squares = (drawn @ member) ** 2 / counts
        parts.append(squares.reshape(len(drawn), len(groups), width).sum(axis=2))
    return np.concatenate(parts)
