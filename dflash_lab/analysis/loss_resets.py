"""Loss resets: where the loss of a run jumps above its level, how far, and how long it takes to come back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from dflash_lab.analysis.reset_scan import END_OF_LOG, NEW_LEVEL, NEXT_RESET, RECOVERED, Reset, ResetScan, least_spread
from dflash_lab.analysis.reset_threshold import SET_ASIDE_SPREADS, ResetThreshold, excursions, reset_threshold
from dflash_lab.batching.config import whole_number

RESET_SCHEMA = {
    "onset_step": pl.Int64,
    "peak_step": pl.Int64,
    "level": pl.Float64,
    "spread": pl.Float64,
    "peak_loss": pl.Float64,
    "depth": pl.Float64,
    "depth_spreads": pl.Float64,
    "recovery_steps": pl.Int64,
    "ending": pl.String,
}
_FEW = 100
# So many losses far above their level are worth a word.
_MANY_FAR = 3


@dataclass(frozen=True, kw_only=True)
class LossResets:
    """The loss resets of a run.

    Attributes:
        table: One row a reset: onset_step, peak_step, level and spread (of the loss before it), peak_loss, depth
            (peak loss less level), depth_spreads (the same in spreads), recovery_steps (from onset to the step that
            is back within a spread; null where there is none), ending ("recovered" | "next reset": it jumped again
            before it was back | "end of log": it was not back when the log ended | "new level": it stayed up for
            `most_recovery_steps`).
        steps: One row a step: step, loss, level and spread (of the losses before it; frozen in a reset, null where
            there are too few), in_reset.
        threshold: Where noise ends, as calibrated on this run.
        false_alarms_per_1000_steps: The rate it is calibrated to on a run without resets.
        expected_false_alarms: That rate times the steps that had a level.
        num_without_loss: Steps whose loss is null or not finite; they are in no reset and no level.
        answer: What was found, in words.
    """

    table: pl.DataFrame
    steps: pl.DataFrame
    threshold: ResetThreshold
    false_alarms_per_1000_steps: float
    expected_false_alarms: float
    num_without_loss: int
    answer: str


def loss_resets(
    table: pl.DataFrame,
    *,
    false_alarms_per_1000_steps: float = 0.1,
    window_steps: int = 100,
    most_recovery_steps: int = 1_000,
) -> LossResets:
    """Find where the loss jumps above its level and comes back.

    The level of a step is the median of the losses before it. Its spread is that of those losses around their own
    levels: the distance of the quartiles / 1.349 or of the upper tenth from the median / 1.282, whichever is larger
    (both are a normal deviation). Level and spread are frozen during a reset, whose losses never enter them. A falling
    loss lies below its level and raises no alarm. The first 50 losses have no level, of a short log the first two
    fifths, 12 at least: resets there are not found.

    A reset begins where the loss is more spreads above the level than the run's own noise comes to at the stated
    rate, see `reset_threshold`, and ends at the first step that is within one spread of the level, as is the median of
    the five from it on. A jump from the losses of the last 20 steps of a recovery, by the same threshold, begins a
    reset of its own.

    The rate is that of a run without resets whose noise has one shape throughout. With 0.1 in 1,000 steps stated, 200
    runs of 3,000 steps of each noise had 0.00 to 0.01 (normal, log-normal, autocorrelated, growing, multimodal, and
    with falling trends), 0.10 with Student's t(3), and 0.115 with t(3) hidden below autocorrelated normal noise
    (benchmarks/false_alarms.py). A mode far above the rest that less than a twentieth of the steps have, such as a
    rare bucket's, counts as resets.

    Args:
        table: One row an optimizer step: step (whole numbers, increasing, gaps allowed) and loss (null where there is
            none).
        false_alarms_per_1000_steps: Resets that noise alone may bring, in (0, 10].
        window_steps: Losses that make a level, >= 20. Shorter follows the trend more closely, longer is steadier.
        most_recovery_steps: A loss that stays up longer has a new level, >= 20.

    Returns:
        The resets.

    Raises:
        ValueError: If a column is missing or of the wrong kind, steps do not increase, or a setting is out of range.
    """
    _check_settings(false_alarms_per_1000_steps, window_steps, most_recovery_steps)
    steps, losses = checked_steps(table), checked_losses(table)
    finite = np.isfinite(losses)
    settings = {"window": window_steps, "most_recovery": most_recovery_steps, "floor": least_spread(losses[finite])}
    first = ResetScan(losses, steps, threshold=SET_ASIDE_SPREADS, **settings)
    threshold = reset_threshold(first.scores(), false_alarms_per_1000_steps=false_alarms_per_1000_steps)
    scan = ResetScan(losses, steps, threshold=threshold.spreads, **settings)
    if len(scan.resets) > 5 + 2 * len(excursions(first.scores(), threshold.spreads)):
        # What was left out above the threshold narrowed the spread, which left out more. The first scan is safe.
        threshold = replace(threshold, spreads=max(threshold.spreads, SET_ASIDE_SPREADS))
        scan = ResetScan(losses, steps, threshold=threshold.spreads, **settings)
    rows = [_row(reset, steps, losses) for reset in scan.resets]
    num_scored = int(np.isfinite(scan.level[finite]).sum())
    in_reset = np.zeros(len(losses), bool)
    for reset in scan.resets:
        in_reset[reset.onset : reset.end] = True
    found = pl.DataFrame(rows, schema=RESET_SCHEMA, orient="row")
    expected = false_alarms_per_1000_steps * num_scored / 1000
    return LossResets(
        table=found,
        steps=pl.DataFrame(
            {
                "step": steps,
                "loss": pl.Series(losses).fill_nan(None),
                "level": pl.Series(scan.level).fill_nan(None),
                "spread": pl.Series(scan.spread).fill_nan(None),
                "in_reset": in_reset,
            }
        ),
        threshold=threshold,
        false_alarms_per_1000_steps=false_alarms_per_1000_steps,
        expected_false_alarms=expected,
        num_without_loss=int((~finite).sum()),
        answer=_answer(found, threshold, num_scored, expected, int((~finite).sum()))
        + _left_in_the_noise(losses, scan, threshold, in_reset),
    )


def _row(reset: Reset, steps: np.ndarray, losses: np.ndarray) -> tuple[object, ...]:
    peak = reset.onset + int(np.nanargmax(losses[reset.onset : reset.end]))
    depth = float(losses[peak]) - reset.level
    back = int(steps[reset.end] - steps[reset.onset]) if reset.ending == RECOVERED else None
    onset_step, peak_step = int(steps[reset.onset]), int(steps[peak])
    peak_loss = float(losses[peak])
    return onset_step, peak_step, reset.level, reset.spread, peak_loss, depth, depth / reset.spread, back, reset.ending


def _left_in_the_noise(losses: np.ndarray, scan: ResetScan, threshold: ResetThreshold, in_reset: np.ndarray) -> str:
    """Say how many losses stand out to the eye and are too frequent to be told from noise with a heavy tail."""
    if math.isinf(threshold.spreads) or threshold.spreads <= SET_ASIDE_SPREADS:
        return ""
    with np.errstate(invalid="ignore"):
        far = (losses - scan.level > SET_ASIDE_SPREADS * scan.spread) & ~in_reset
    count = int(far.sum())
    if count < _MANY_FAR:
        return ""
    return (
        f" But {count} more losses are over {SET_ASIDE_SPREADS:g} spreads above their level: too frequent here to be "
        f"told from noise with a heavy tail, and not counted as resets; see what the level of the loss goes with."
    )


def _answer(
    found: pl.DataFrame, threshold: ResetThreshold, num_scored: int, expected: float, num_without_loss: int
) -> str:
    without = f" {num_without_loss:,} steps have no loss." if num_without_loss else ""
    if math.isinf(threshold.spreads):
        return f"Too few losses to say what is a reset: {threshold.num_scored} have a level before them.{without}"
    bar = f"{threshold.spreads:.1f} spreads"
    few = (
        f" Calibrated on {num_scored} steps only, so that a shallower reset stays unseen." if num_scored < _FEW else ""
    )
    noise = f"noise alone would pass {bar} {expected:.2g} times in {num_scored:,} steps"
    if found.is_empty():
        return f"No loss reset: no loss is more than {bar} above its level; {noise}.{few}{without}"
    back = found["recovery_steps"].drop_nulls()
    lasted = f"back after a median of {back.median():.0f} steps" if len(back) else "none of them back"
    others = [
        f"{count} {text}"
        for ending, text in (
            (NEXT_RESET, "jumped again before that"),
            (END_OF_LOG, "not back when the log ends"),
            (NEW_LEVEL, "stayed up"),
        )
        if (count := int((found["ending"] == ending).sum()))
    ]
    tail = f" ({'; '.join(others)})" if others else ""
    plural = "reset" if len(found) == 1 else "resets"
    return (
        f"{len(found):,} loss {plural}, the deepest from {found['level'][deepest(found)]:.3g} to "
        f"{found['peak_loss'][deepest(found)]:.3g} at step {found['peak_step'][deepest(found)]:,}, {lasted}{tail}; "
        f"{noise}.{few}{without}"
    )


def deepest(found: pl.DataFrame) -> int:
    """Give the row of the deepest reset.

    Args:
        found: Table of `LossResets`, at least one row.

    Returns:
        Its row, from 0.
    """
    return int(found["depth"].arg_max())


def checked_steps(table: pl.DataFrame) -> np.ndarray:
    """Take the steps out of a run's table.

    Args:
        table: One row an optimizer step.

    Returns:
        int64 (num_rows,).

    Raises:
        ValueError: If there are none, they are no whole numbers, or they do not increase.
    """
    if "step" not in table.columns:
        raise ValueError(f"the table has no column step; it has {', '.join(table.columns) or 'none'}")
    column = table["step"]
    if not column.dtype.is_integer() or column.null_count() or not len(column):
        raise ValueError(
            f"column step has dtype {column.dtype}, {len(column)} rows and {column.null_count()} nulls; legal: at "
            f"least one row, whole numbers without nulls"
        )
    steps = column.cast(pl.Int64).to_numpy()
    wrong = np.flatnonzero(np.diff(steps) <= 0)
    if wrong.size:
        row = int(wrong[0]) + 1
        raise ValueError(f"step {steps[row]} in row {row} follows step {steps[row - 1]}; legal: increasing steps")
    return steps


def checked_losses(table: pl.DataFrame) -> np.ndarray:
    """Take the losses out of a run's table.

    Args:
        table: One row an optimizer step.

    Returns:
        float64 (num_rows,), NaN where a loss is null, NaN or infinite.

    Raises:
        ValueError: If there is no such column, or it holds no numbers.
    """
    if "loss" not in table.columns:
        raise ValueError(f"the table has no column loss; it has {', '.join(table.columns)}")
    column = table["loss"]
    if not column.dtype.is_numeric() and column.dtype != pl.Null:
        raise ValueError(f"column loss has dtype {column.dtype}; legal: numbers, null where there is no loss")
    losses = column.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
    losses[~np.isfinite(losses)] = np.nan
    return losses


def _check_settings(rate: float, window_steps: int, most_recovery_steps: int) -> None:
    if not 0 < rate <= 10:
        raise ValueError(f"false_alarms_per_1000_steps is {rate}; legal: over 0, at most 10")
    whole_number("window_steps", window_steps, least=20)
    whole_number("most_recovery_steps", most_recovery_steps, least=20)
