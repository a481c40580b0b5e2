"""Suspects on trial: each tested against the resets, then the guilty ones against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from dflash_lab.analysis.shift_power import detectable_share
from dflash_lab.analysis.shift_test import (
    ShiftDraws,
    ShiftTest,
    holm,
    near_events,
    shift_draws,
    shift_test,
    strata_of,
    stretches_of,
)
from dflash_lab.analysis.suspects import Suspect, Variant

GUILTY, CLEARED, NOT_TESTED, INSEPARABLE = "guilty", "cleared", "not tested", "inseparable"
# Fewer resets are an anecdote, whatever they follow.
_LEAST_ONSETS = 3
# Events near more than this share of all steps cannot be told from none.
_MOST_NEAR = 0.5
# Share of the resets that a suspect must still account for beside another. With hundreds of resets less than that is
# seen as well, and is only what a few series leave over of the other suspect's strength.
_LEAST_EXCESS = 0.1


@dataclass(kw_only=True)
class Trial:
    """A suspect while it is tried.

    Attributes:
        suspect: The suspect.
        near: bool (num_series, num_steps), steps near an event; of each variant at one lag and at all lags.
        variants: Which variant each series is of.
        lags: Last lag of each series, in steps.
        test: Its test against all resets; None where there is none.
        adjusted_p: Over all suspects tested.
        detectable: Least share of the resets that would have been seen; None where not even all would.
        verdict: "guilty" | "cleared" | "inseparable" | "not tested".
        reason: What the numbers do not say; "" where they say all.
    """

    suspect: Suspect
    near: np.ndarray
    variants: list[int]
    lags: list[int]
    test: ShiftTest | None = None
    adjusted_p: float = 1.0
    detectable: float | None = None
    verdict: str = NOT_TESTED
    reason: str = ""

    @property
    def strength(self) -> np.ndarray:
        """How many of the series that meet more resets than by chance a step is near to, int (num_steps,).

        One series is not enough to hold a suspect fixed: of the steps beyond the lowest 1 %, the lowest 2 % still act.
        """
        return self.near[self.test.near > self.test.expected].sum(axis=0)

    @property
    def best_variant(self) -> Variant:
        """The events that meet the resets best."""
        return self.suspect.variants[self.variants[self.test.best]]


def hold_trials(
    suspects: Sequence[Suspect],
    onsets: np.ndarray,
    *,
    lag_steps: int,
    family_error: float,
    cleared_share: float,
    num_draws: int,
    rng: np.random.Generator,
) -> list[Trial]:
    """Try every suspect.

    Args:
        suspects: All of them.
        onsets: Rows that resets begin in, ascending.
        lag_steps: Rows behind an event in which a reset may begin.
        family_error: Chance that any innocent suspect is found guilty.
        cleared_share: A suspect is cleared only if this share would have been seen.
        num_draws: Shifts a test.
        rng: Source of them.

    Returns:
        A trial of each suspect, in order, with its verdict.
    """
    trials = [_trial(suspect, lag_steps) for suspect in suspects]
    tested = _try(trials, onsets, num_draws, rng)
    _judge(tested, onsets, family_error, cleared_share)
    guilty = [trial for trial in tested if trial.verdict == GUILTY]
    if len(guilty) > 1:
        # Bonferroni over the ordered pairs: their tests together add no more than the family's error.
        _separate(guilty, onsets, num_draws, family_error / (len(guilty) * (len(guilty) - 1)), rng)
    return trials


def _trial(suspect: Suspect, lag_steps: int) -> Trial:
    """Lay out the series of a suspect: each of its variants at the first lag alone, and at all lags."""
    trial = Trial(suspect=suspect, near=np.zeros((0, 0), bool), variants=[], lags=[], reason=suspect.reason)
    series: list[np.ndarray] = []
    first, last = suspect.first_lag, max(suspect.first_lag, lag_steps)
    least = 1.0
    for place, variant in enumerate(suspect.variants):
        for lag in (first, last) if last > first else (first,):
            near = near_events(variant.events, first_lag=first, last_lag=lag)
            share = float(near.mean())
            least = min(least, share)
            if 0 < share <= _MOST_NEAR:
                series.append(near)
                trial.variants.append(place)
                trial.lags.append(lag)
    if series:
        trial.near = np.array(series)
    elif not trial.reason:
        trial.reason = f"its events are near {least:.0%} of all steps, so that resets anywhere would be near one"
    return trial


def _try(trials: list[Trial], onsets: np.ndarray, num_draws: int, rng: np.random.Generator) -> list[Trial]:
    """Run the test of every suspect that has one."""
    tested: list[Trial] = []
    if len(onsets) < _LEAST_ONSETS:
        for trial in trials:
            trial.reason = trial.reason or f"there are too few resets ({len(onsets)}, at least {_LEAST_ONSETS})"
        return tested
    shared: dict[int, ShiftDraws] = {}
    for trial in trials:
        if not len(trial.near):
            continue
        events = max(int(trial.suspect.variants[place].events.sum()) for place in trial.variants)
        stretches = stretches_of(trial.near.shape[1], num_events=events)
        if len(stretches) not in shared:
            shared[len(stretches)] = shift_draws(stretches, onsets, num_draws=num_draws, rng=rng)
        trial.test = shift_test(trial.near, shared[len(stretches)])
        tested.append(trial)
    return tested


def _judge(tested: list[Trial], onsets: np.ndarray, family_error: float, cleared_share: float) -> None:
    if not tested:
        return
    for trial, adjusted in zip(tested, holm(np.array([trial.test.p_value for trial in tested])), strict=True):
        trial.adjusted_p = float(adjusted)
        trial.detectable = _detectable(trial, len(onsets), family_error / len(tested))
        if trial.adjusted_p <= family_error:
            trial.verdict = GUILTY
        elif trial.detectable is not None and trial.detectable <= cleared_share:
            trial.verdict = CLEARED
        else:
            seen = "not even all" if trial.detectable is None else f"only {trial.detectable:.0%} or more"
            trial.reason = f"the power is too low: {seen} of the resets that it could have brought would have been seen"


def _detectable(trial: Trial, num_onsets: int, error: float) -> float | None:
    """The least share that the test sees at events as common as half of the suspect's series are, or less."""
    series = int(np.argsort(trial.near.mean(axis=1), kind="stable")[len(trial.near) // 2])
    events = trial.suspect.variants[trial.variants[series]].events
    return detectable_share(
        trial.test.null_scores,
        expected=float(trial.test.expected[series]),
        num_onsets=num_onsets,
        most=min(num_onsets, int(events.sum())),
        error=error,
    )


def _separate(guilty: list[Trial], onsets: np.ndarray, num_draws: int, error: float, rng: np.random.Generator) -> None:
    """Test each guilty suspect within steps at which another acts alike."""
    number = len(guilty)
    means_something = np.ones((number, number), bool)
    for place, other in enumerate(guilty):
        # Among many pairs a p value must be able to fall below its share of the error.
        draws = shift_draws(strata_of(other.strength), onsets, num_draws=max(num_draws, ceil(2 / error)), rng=rng)
        for index, trial in enumerate(guilty):
            if index != place:
                test = shift_test(trial.near, draws)
                excess = float(test.near[test.best] - test.expected[test.best])
                means_something[index, place] = test.p_value <= error and excess >= _LEAST_EXCESS * len(onsets)
    explained = ~means_something & means_something.T
    free = ~explained.any(axis=1)
    for index, trial in enumerate(guilty):
        if not free[index]:
            by = np.flatnonzero(explained[index] & free)
            names = _listed(guilty, by if by.size else np.flatnonzero(explained[index]))
            trial.verdict, trial.reason = CLEARED, f"it meets the resets only where {names} do"
            continue
        same = np.flatnonzero(~means_something[index] & ~means_something[:, index] & free)
        if same.size:
            trial.verdict = INSEPARABLE
            trial.reason = f"its events cannot be told from {_listed(guilty, same)}"


def _listed(trials: list[Trial], places: np.ndarray) -> str:
    return " and ".join(trials[place].suspect.text for place in places.tolist())
