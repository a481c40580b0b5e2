"""What made the loss jump: every suspect tested against the resets of a run, the innocent ones cleared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.analysis.loss_levels import loss_level_table
from dflash_lab.analysis.loss_resets import LossResets, checked_losses, checked_steps
from dflash_lab.analysis.suspects import suspects_of
from dflash_lab.analysis.trials import CLEARED, GUILTY, INSEPARABLE, NOT_TESTED, Trial, hold_trials
from dflash_lab.batching.config import whole_number

SUSPECT_SCHEMA = {
    "suspect": pl.String,
    "events": pl.String,
    "num_events": pl.Int64,
    "num_onsets_near": pl.Int64,
    "expected_near": pl.Float64,
    "ratio": pl.Float64,
    "p_value": pl.Float64,
    "adjusted_p": pl.Float64,
    "detectable_share": pl.Float64,
    "verdict": pl.String,
    "sentence": pl.String,
}
# Shifts of the losses for what the level swings with.
_LEVEL_DRAWS = 199


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """What the resets of a run follow, and what they do not.

    Attributes:
        table: One row a suspect, the guilty first: suspect; events (which of its events meet the resets best);
            num_events; num_onsets_near (resets that begin within the lags behind one); expected_near (the same for
            resets that begin anywhere in their stretch); ratio of the two; p_value; adjusted_p (Holm over the suspects
            tested); detectable_share (least share of the resets that, had the suspect brought it, would have been seen
            in 80 of 100 such runs; null where none would); verdict ("guilty" | "cleared" | "inseparable" from another
            suspect whose events meet the same resets | "not tested"); sentence (why).
        levels: What the loss swings with between resets, see `loss_level_table`.
        num_onsets: Resets tested.
        num_tested: Suspects tested, over which the p values are adjusted.
        lag_steps: Steps after an event in which a reset may begin.
        family_error: Chance that any innocent suspect is named.
        answer: The guilty, or that no suspect explains the resets; and what the loss level goes with.
    """

    table: pl.DataFrame
    levels: pl.DataFrame
    num_onsets: int
    num_tested: int
    lag_steps: int
    family_error: float
    answer: str


def attribute_spikes(
    table: pl.DataFrame,
    resets: LossResets,
    *,
    checkpoints: Sequence[int] | None = None,
    lag_steps: int = 3,
    family_error: float = 0.05,
    cleared_share: float = 2 / 3,
    num_draws: int = 1_999,
    seed: int = 0,
) -> Attribution:
    """Test what the resets of a run follow.

    For each suspect: how many resets begin within `lag_steps` steps behind one of its events (never before it), against
    the same resets shifted in a circle, all those of a stretch of 250 steps or more together, by random numbers of
    steps. Shifts keep runs, beats and trends of the events and clusters of the resets. A measure such as the longest
    length has several series of events, its highest and lowest 5, 2 and 1 %, at no lag and at all lags; their best
    score is set against the best score of each shift. p values are adjusted over the suspects tested (Holm), so that
    the chance of naming any innocent one is `family_error`.

    Suspects that are guilty by that go together often: long batches have few samples. Each is tested again with the
    shifts kept within steps at which the other acts alike (Bonferroni over these pairs). One that means nothing there,
    or less than a tenth of the resets, is cleared if the other still does the other way round, and called inseparable
    if neither does.

    Args:
        table: One row an optimizer step, as `read_run` gives it; at least step and loss.
        resets: `loss_resets` of the same table.
        checkpoints: Steps at which checkpoints were saved; None to take the column checkpoint (bool).
        lag_steps: Rows of the table behind an event in which a reset may begin, in [1, 50].
        family_error: Chance that any innocent suspect is named, in (0, 0.5).
        cleared_share: A suspect is cleared only if bringing this share of the resets (or, of rare events, this share
            of the events bringing one) would have been seen, in (0, 1].
        num_draws: Shifts a suspect; at least the number of suspects (14) / family_error.
        seed: Of them, >= 0.

    Returns:
        A verdict on every suspect.

    Raises:
        ValueError: If the table is not that of the resets, a column is of another dtype than the run log's, or a
            setting is out of range.
    """
    whole_number("lag_steps", lag_steps, least=1, most=50)
    whole_number("num_draws", num_draws, least=1)
    whole_number("seed", seed, least=0)
    if not 0 < family_error < 0.5 or not 0 < cleared_share <= 1:
        raise ValueError(
            f"family_error is {family_error} and cleared_share {cleared_share}; legal: over 0 and below 0.5, and over "
            f"0 and at most 1"
        )
    steps = checked_steps(table)
    if not np.array_equal(steps, resets.steps["step"].to_numpy()):
        raise ValueError(
            f"the table has {len(steps)} steps and the resets are of {resets.steps.height}, or of others; legal: "
            f"loss_resets of the same table"
        )
    onsets = np.searchsorted(steps, resets.table["onset_step"].to_numpy())
    suspects = suspects_of(table, checkpoints=checkpoints)
    least_draws = math.ceil(len(suspects) / family_error)
    if num_draws < least_draws:
        raise ValueError(
            f"num_draws is {num_draws}; legal: at least {least_draws}, as no p value is below 1 / (num_draws + 1) and "
            f"{len(suspects)} suspects share a chance of {family_error}"
        )
    rng = np.random.default_rng((seed, len(steps), len(onsets)))
    levels = loss_level_table(
        checked_losses(table),
        ~resets.steps["in_reset"].to_numpy(),
        suspects,
        num_draws=max(_LEVEL_DRAWS, least_draws),
        rng=rng,
    )
    trials = hold_trials(
        suspects,
        onsets,
        lag_steps=lag_steps,
        family_error=family_error,
        cleared_share=cleared_share,
        num_draws=num_draws,
        rng=rng,
    )
    num_tested = sum(trial.test is not None for trial in trials)
    rows = [_row(trial, len(onsets)) for trial in trials]
    found = pl.DataFrame(rows, schema=SUSPECT_SCHEMA, orient="row")
    order = {GUILTY: 0, INSEPARABLE: 1, CLEARED: 2, NOT_TESTED: 3}
    found = found.sort(pl.col("verdict").replace_strict(order), "p_value", nulls_last=True, maintain_order=True)
    return Attribution(
        table=found,
        levels=levels,
        num_onsets=len(onsets),
        num_tested=num_tested,
        lag_steps=lag_steps,
        family_error=family_error,
        answer=_answer(found, levels, len(onsets), num_tested, family_error),
    )


def _row(trial: Trial, num_onsets: int) -> tuple[object, ...]:
    name, text = trial.suspect.name, trial.suspect.text
    if trial.test is None:
        sentence = f"{_capital(text)}: not tested, {trial.reason}."
        return (name, None, None, None, None, None, None, None, None, NOT_TESTED, sentence)
    test = trial.test
    variant = trial.best_variant
    near, expected = int(test.near[test.best]), float(test.expected[test.best])
    ratio = near / expected if expected > 0 else None
    first, last = trial.suspect.first_lag, trial.lags[test.best]
    within = f"{first} to {last} steps" if last > first else f"{last} step"
    behind = f"{within} behind" if last else "at"
    facts = (
        f"{near} of {num_onsets} resets begin {behind} {variant.text}, {expected:.1f} expected by chance "
        f"(adjusted p {trial.adjusted_p:.2g})"
    )
    cleared = ""
    if trial.verdict == CLEARED and not trial.reason:
        cleared = f"; had it brought {trial.detectable:.0%} of what it could, 80 of 100 such tests would have seen it"
    because = f"; {trial.reason}" if trial.reason else ""
    sentence = f"{_capital(text)}: {trial.verdict}, {facts}{because}{cleared}."
    events = int(variant.events.sum())
    values = (near, expected, ratio, test.p_value, trial.adjusted_p, trial.detectable)
    return (name, variant.text, events, *values, trial.verdict, sentence)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _answer(found: pl.DataFrame, levels: pl.DataFrame, num_onsets: int, num_tested: int, family_error: float) -> str:
    guilty = found.filter(pl.col("verdict").is_in([GUILTY, INSEPARABLE]))
    cleared = found.filter(pl.col("verdict") == CLEARED)["suspect"].to_list()
    if not num_onsets:
        first = "There are no resets to explain."
    elif not num_tested:
        first = f"{num_onsets} resets, and no suspect could be tested."
    elif guilty.is_empty():
        first = (
            f"No suspect explains the {num_onsets} resets ({num_tested} tested, chance of naming an innocent one "
            f"{family_error:.0%})."
        )
    else:
        parts = [
            f"{row['suspect']} ({row['num_onsets_near']} of {num_onsets} resets, {row['expected_near']:.1f} expected, "
            f"adjusted p {row['adjusted_p']:.2g}{', not to be told apart' if row['verdict'] == INSEPARABLE else ''})"
            for row in guilty.to_dicts()
        ]
        first = f"The resets follow {', '.join(parts)}."
    if cleared:
        first += f" Cleared: {', '.join(cleared)}."
    real = levels.filter(pl.col("adjusted_p") <= family_error)
    if real.is_empty():
        return first
    top = real.to_dicts()[0]
    return (
        f"{first} Between resets the loss swings most with {top['suspect']}: {top['variance_explained']:.0%} of its "
        f"variance around the trend, {top['explained_by_chance']:.1%} by chance (adjusted p {top['adjusted_p']:.2g})."
    )
