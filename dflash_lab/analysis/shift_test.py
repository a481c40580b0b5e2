"""Do resets follow events? Shifting tests, which keep the order in time of both and break only how they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Rows of a stretch that onsets are shifted within: long against a run of one bucket, short against a run's trends.
STRETCH_ROWS = 250
_MOST_STRETCHES = 16


@dataclass(frozen=True, kw_only=True)
class ShiftDraws:
    """Random shifts of the onsets of a run, stretch by stretch.

    Attributes:
        onsets: int64 (num_onsets,), the rows they really stand in.
        stretches: Rows of each stretch with an onset.
        places: Where in those rows its onsets stand.
        shifts: int64 (num_draws,) of each stretch, rows by which its onsets are shifted in a circle.
    """

    onsets: np.ndarray
    stretches: tuple[np.ndarray, ...]
    places: tuple[np.ndarray, ...]
    shifts: tuple[np.ndarray, ...]


@dataclass(frozen=True, kw_only=True)
class ShiftTest:
    """One suspect against the onsets.

    Attributes:
        best: Which series shows most.
        near: Onsets near an event, of each series.
        expected: The same for onsets that fall anywhere in their stretch.
        p_value: Share of shifts whose best series shows as much, the real one counted among them.
        null_scores: float64 (num_draws,), best score after each shift.
    """

    best: int
    near: np.ndarray
    expected: np.ndarray
    p_value: float
    null_scores: np.ndarray


def near_events(events: np.ndarray, *, first_lag: int, last_lag: int) -> np.ndarray:
    """Mark the rows that an event comes shortly before.

    Args:
        events: bool (num_rows,).
        first_lag: Rows from an event to the first row it marks; 0 is its own, >= 0.
        last_lag: Rows to the last one it marks, >= first_lag.

    Returns:
        bool (num_rows,); never a row before the event.
    """
    sums = np.concatenate([[0], np.cumsum(events)])
    rows = np.arange(len(events))
    return sums[np.maximum(rows - first_lag + 1, 0)] > sums[np.maximum(rows - last_lag, 0)]


def stretches_of(num_rows: int, *, num_events: int) -> list[np.ndarray]:
    """Cut a run into stretches that onsets are shifted within.

    Each stretch shifts on its own, so events that come in a fixed beat, whose circular shifts over a whole run would
    repeat themselves, have as many different shifts as the beat to the power of the stretches. Rare events get fewer
    stretches, so that each has some: in a stretch without events nothing can be told.

    Args:
        num_rows: Rows of the run, >= 1.
        num_events: Events of the suspect.

    Returns:
        Consecutive rows of each stretch, nearly equally many.
    """
    most = min(_MOST_STRETCHES, num_rows // STRETCH_ROWS, num_events // 4)
    return np.array_split(np.arange(num_rows), max(1, most))


def strata_of(keys: np.ndarray) -> list[np.ndarray]:
    """Cut a run into stretches of rows with the same key.

    Args:
        keys: int (num_rows,), such as how strongly a suspect acts.

    Returns:
        Rows of each stretch, ascending; shifting within them keeps every onset's key.
    """
    found: list[np.ndarray] = []
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        found += np.array_split(rows, max(1, min(_MOST_STRETCHES, len(rows) // STRETCH_ROWS)))
    return found


def shift_draws(
    stretches: Sequence[np.ndarray], onsets: np.ndarray, *, num_draws: int, rng: np.random.Generator
) -> ShiftDraws:
    """Shift the onsets of each stretch in a circle, all by the same random number of rows.

    Args:
        stretches: Rows of each, disjoint.
        onsets: Rows of the onsets, each in one of the stretches.
        num_draws: Shifts.
        rng: Source of them.

    Returns:
        The shifted rows.
    """
    kept = [(rows, np.flatnonzero(np.isin(rows, onsets))) for rows in stretches]
    kept = [(rows, places) for rows, places in kept if len(places)]
    return ShiftDraws(
        onsets=np.concatenate([rows[places] for rows, places in kept]),
        stretches=tuple(rows for rows, _ in kept),
        places=tuple(places for _, places in kept),
        shifts=tuple(rng.integers(0, len(rows), num_draws) for rows, _ in kept),
    )


def shift_test(near: np.ndarray, draws: ShiftDraws) -> ShiftTest:
    """Test whether onsets are near events more often than shifted ones.

    Several series of one suspect are tested at once: the best score of the real onsets against the best score of each
    shift, so that looking at many series costs no false alarms.

    Args:
        near: bool (num_series, num_rows), see `near_events`.
        draws: The shifts.

    Returns:
        The test; its p value is at least 1 / (num_draws + 1).
    """
    num_onsets, num_draws = len(draws.onsets), len(draws.shifts[0])
    counts = np.zeros((num_draws, len(near)), np.min_scalar_type(num_onsets))
    expected = np.zeros(len(near))
    for rows, places, shifts in zip(draws.stretches, draws.places, draws.shifts, strict=True):
        here = near[:, rows].T.astype(counts.dtype)  # (rows, series)
        doubled = np.concatenate([here, here])
        after = np.zeros_like(here)  # onsets near an event after each possible shift
        for place in places.tolist():
            after += doubled[place : place + len(rows)]
        counts += after[shifts]
        expected += len(places) * here.mean(axis=0, dtype=float)
    observed = near[:, draws.onsets].sum(axis=1)
    # Every score that a series can have, so that a draw only looks one up.
    table = score(np.arange(num_onsets + 1)[None, :], expected[:, None], num_onsets)  # (series, onsets + 1)
    null = np.zeros(num_draws)
    for series, scores in enumerate(table):
        np.maximum(null, scores[counts[:, series]], out=null)
    scores = table[np.arange(len(near)), observed]
    # Where no series shows anything, the commonest events speak for all.
    best = int(np.argmax(scores)) if scores.any() else int(np.argmax(expected))
    p_value = (1 + int((null >= scores[best] - 1e-9).sum())) / (1 + num_draws)
    return ShiftTest(best=best, near=observed, expected=expected, p_value=p_value, null_scores=null)


def score(near: np.ndarray, expected: np.ndarray, num_onsets: int) -> np.ndarray:
    """Say how far a number of onsets near events is above its expectation, alike for rare and frequent events.

    Args:
        near: int, any shape: onsets near an event.
        expected: float64, a shape that fits: expected ones.
        num_onsets: All onsets.

    Returns:
        float64, log likelihood ratio of the share seen against the share expected; 0 where no more is seen.
    """
    near, expected = np.asarray(near, float), np.clip(np.asarray(expected, float), 1e-12, num_onsets)
    rest, rest_expected = num_onsets - near, np.maximum(num_onsets - expected, 1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(near > 0, near * np.log(near / expected), 0.0)
        misses = np.where(rest > 0, rest * np.log(rest / rest_expected), 0.0)
    return np.where(near > expected, hits + misses, 0.0)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Adjust p values so that the chance of any false one among them stays what is stated (Holm 1979).

    Args:
        p_values: float64 (n,).

    Returns:
        float64 (n,), at most 1: the k-th smallest times n - k + 1, and no less than the one before it.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    result = np.empty(len(values))
    result[order] = np.minimum(adjusted, 1.0)
    return result
