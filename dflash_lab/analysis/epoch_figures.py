"""Steps, batches and epochs of a run, each from the others, and how far what is known determines them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_lab.analysis.rounding import Interval, interval
from dflash_lab.analysis.run_course import Course, Moment
from dflash_lab.analysis.step_rates import rate_accumulation

# Rates of the last minute and of a whole session differ by so much in a run that is in order: warm-up, checkpoints,
# evaluations and lengths that vary.
STEADY = 1.1
# A rate that is so far from the average is not the same rate.
UNSTEADY = 1.3
# Whole numbers of micro-batches are told apart where a rate so far from the mean would not make one the other.
TOLD_APART = 1.2
# The last minute has a few steps only, and a session's mean may be so far from it.
ONE_MINUTE = 1.75
# Most micro-batches a step that are looked at.
MOST = 128


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the reader knows of the run.

    Args:
        total_steps: Optimizer steps of the whole run.
        epochs: Its epochs.
        accumulation: Micro-batches a step.
        batches_per_epoch: Batches of an epoch, as one drafter sees them.
        token_budget: Most padded tokens of a batch.

    Raises:
        ValueError: If one is no whole number >= 1.
    """

    total_steps: int | None = None
    epochs: int | None = None
    accumulation: int | None = None
    batches_per_epoch: int | None = None
    token_budget: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is {value!r}; legal: a whole number >= 1, or None where it is not known")


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sizes of the run, as far as they are known.

    Args:
        accumulations: Micro-batches a step; several where all of them fit.
        accumulation_from: How that was found.
        batches_per_epoch: Mean over the epochs.
        batches_per_epoch_from: How that was found.
        total_steps: Of the run.
        total_steps_from: How that was found.
        epochs: Of the run.
        epochs_from: How that was found.
        steps_per_epoch: Mean over the epochs.
        steps_per_epoch_from: How that was found.
        from_line: Whether batches_per_epoch rests on the epoch shown, which then proves nothing about it.
        batches_by_accumulation: batches_per_epoch for each number of micro-batches that fits, likeliest first; where
            steps per epoch are known and the number is not, for each that is looked at.
    """

    accumulations: tuple[int, ...]
    accumulation_from: str
    batches_per_epoch: Interval | None = None
    batches_per_epoch_from: str = ""
    total_steps: Interval | None = None
    total_steps_from: str = ""
    epochs: Interval | None = None
    epochs_from: str = ""
    steps_per_epoch: Interval | None = None
    steps_per_epoch_from: str = ""
    from_line: bool = False
    batches_by_accumulation: Mapping[int, Interval] = field(default_factory=dict)

    @property
    def accumulation(self) -> Interval | None:
        """Of all that fit, the first one and both ends."""
        if not self.accumulations:
            return None
        return Interval(value=self.accumulations[0], low=min(self.accumulations), high=max(self.accumulations))


def totals(course: Course, given: Given) -> Totals:
    """Find the sizes of a run.

    Args:
        course: Its log.
        given: What is known besides.

    Returns:
        What follows.
    """
    numbers, how = _accumulations(course, given)
    certain = given.accumulation or course.accumulation or given.batches_per_epoch
    looked_at = numbers if certain and numbers else dict.fromkeys([*numbers, *range(1, MOST + 1)])
    by_number = {number: batches_for(course, given, number) for number in looked_at}
    known = {number: held for number, held in by_number.items() if held is not None}
    batches = None
    if known and numbers:
        batches = known[numbers[0]]
        for number in numbers:
            batches = batches.hull(known[number])
    accumulation = Interval(value=numbers[0], low=min(numbers), high=max(numbers)) if numbers else None
    steps, steps_from = _known(given.total_steps)
    epochs, epochs_from = _known(given.epochs)
    per_epoch, per_epoch_from = None, ""
    if steps is not None and epochs is not None:
        per_epoch, per_epoch_from = steps / epochs, "steps in all / epochs"
    elif batches is not None and accumulation is not None:
        # A last window that is smaller is a step, too.
        per_epoch = (batches / accumulation).hull(math.ceil((batches / accumulation).high - 1e-9))
        per_epoch_from = "batches an epoch / micro-batches a step, its last window whole or not"
    if steps is None and epochs is not None and per_epoch is not None:
        steps, steps_from = epochs * per_epoch, "epochs * steps an epoch"
    if epochs is None and steps is not None and per_epoch is not None and per_epoch.value > 0:
        epochs, epochs_from = steps / per_epoch, "steps in all / steps an epoch"
    how_batches, from_line = _origin(course, given)
    return Totals(
        accumulations=tuple(numbers),
        accumulation_from=how,
        batches_per_epoch=batches,
        batches_per_epoch_from=how_batches,
        total_steps=steps,
        total_steps_from=steps_from,
        epochs=epochs,
        epochs_from=epochs_from,
        steps_per_epoch=per_epoch,
        steps_per_epoch_from=per_epoch_from,
        from_line=from_line,
        batches_by_accumulation=known,
    )


def trained_epochs(step: int, accumulation: Interval | int, batches_per_epoch: Interval) -> Interval:
    """Epochs trained after a step, whether windows go on across the end of an epoch or end with it.

    Args:
        step: Steps done.
        accumulation: Micro-batches a step.
        batches_per_epoch: Of an epoch.
    """
    accumulation = interval(accumulation)
    across = accumulation * step / batches_per_epoch
    # Each epoch that ended had a last window that was short by up to accumulation - 1 batches.
    short = math.floor(across.high + 1e-9) * (accumulation.high - 1) / batches_per_epoch.low
    return Interval(value=across.value, low=max(across.low - short, 0.0), high=across.high)


def batches_for(course: Course, given: Given, number: int) -> Interval | None:
    """Batches an epoch, if a step has so many micro-batches.

    Args:
        course: The log.
        given: What is known besides.
        number: Micro-batches a step.

    Returns:
        Mean over the epochs; None where nothing determines it.
    """
    if given.batches_per_epoch is not None:
        return interval(given.batches_per_epoch)
    if course.batches_per_epoch is not None:
        return interval(course.batches_per_epoch)
    # An epoch has at least one.
    if given.total_steps is not None and given.epochs is not None:
        return _batches_of_steps(given.total_steps, given.epochs, number).at_least(1.0)
    moment = course.last
    if moment.epoch is None or moment.epoch.low <= 0 or not moment.step:
        return None
    trained = interval(moment.step * number)
    return (trained / moment.epoch).hull((trained + moment.in_flight) / moment.epoch).at_least(1.0)


def _origin(course: Course, given: Given) -> tuple[str, bool]:
    """How batches an epoch are found, and whether it is by the epoch shown."""
    if given.batches_per_epoch is not None:
        return "given", False
    if course.batches_per_epoch is not None:
        return "position in the epoch / share of it that is trained", False
    if given.total_steps is not None and given.epochs is not None:
        return "steps in all * micro-batches a step / epochs", False
    return "(steps done * micro-batches a step, queued batches counted or not) / epoch shown", True


def _batches_of_steps(steps: int, epochs: int, number: int) -> Interval:
    value = steps * number / epochs
    if steps % epochs == 0:
        # Windows may end with their epoch, and the last one be short.
        per_epoch = steps // epochs
        return Interval(value=value, low=(per_epoch - 1) * number + 1, high=value)
    # They go on across the end of an epoch, and the run's last window may be short, or be left out.
    low, high = (steps - 1) * number / epochs, (steps + 1) * number / epochs
    inside = [whole for whole in Interval(value=value, low=low, high=high).whole_numbers() if low < whole < high]
    if not inside:
        return Interval(value=value, low=low, high=high)
    return Interval(value=value, low=min(value, *inside), high=max(value, *inside))


def _known(value: int | None) -> tuple[Interval | None, str]:
    return (None, "") if value is None else (interval(value), "given")


def _accumulations(course: Course, given: Given) -> tuple[list[int], str]:
    """Find the whole numbers of micro-batches a step that fit, the likeliest first, and say how."""
    if given.accumulation is not None:
        return [given.accumulation], "given"
    if course.accumulation is not None:
        return [course.accumulation], "batches of a step, in the log"
    if given.total_steps and given.epochs and given.batches_per_epoch:
        exact = given.epochs * given.batches_per_epoch / given.total_steps
        if round(exact) >= 1 and abs(exact - round(exact)) <= 0.02 * exact:
            return [round(exact)], "epochs * batches an epoch / steps in all"
    moment = course.last
    by_rate = rate_accumulation(course, moment)
    evidence: list[tuple[str, list[int], int]] = []
    if by_rate is not None:
        numbers = by_rate.number.stretched(TOLD_APART).whole_numbers(most=MOST)
        # Steps between lines are steps of this session for certain.
        evidence.append(("drafter's rate * seconds / steps", numbers, 2 if by_rate.over_lines else 1))
    evidence.append(("epoch shown * batches an epoch / steps", _by_epoch(course, given), 1))
    if given.total_steps is not None and given.total_steps > moment.step and moment.eta and moment.drafter_rate:
        left = (moment.eta * moment.drafter_rate / (given.total_steps - moment.step)).stretched(TOLD_APART)
        evidence.append(("ETA * drafter's rate / steps left", left.whole_numbers(most=MOST), 1))
    # After a resume the rate over all steps gives too few micro-batches, and never too many.
    least = by_rate.number.low / ONE_MINUTE if by_rate is not None else 0.0
    votes: Counter[int] = Counter()
    for _, numbers, weight in evidence:
        votes.update({number: weight for number in numbers if number >= least})
    if not votes:
        return [], ""
    alone = sum(bool(numbers) for _, numbers, _ in evidence) == 1
    if alone and by_rate is not None and not by_rate.over_lines and not by_rate.number.whole_numbers(most=MOST):
        # A run that was resumed shows any number here; one that is not whole says no more than that.
        return [], ""
    most = max(votes.values())
    fitting = [number for number, count in votes.items() if count == most]
    guess = by_rate.number.value if by_rate is not None and by_rate.number.value > 0 else fitting[0]
    fitting.sort(key=lambda number: (abs(math.log(number / guess)), number))
    names = [name for name, numbers, _ in evidence if set(numbers) & set(fitting)]
    how = "whole number that fits " + ", and ".join(names)
    return fitting, how + (
        "" if by_rate is None or by_rate.over_lines or len(names) > 1 else ", if it was never resumed"
    )


def _by_epoch(course: Course, given: Given) -> list[int]:
    """Whole numbers of micro-batches with which the epoch shown is what was trained, or trained and queued."""
    totals_known = given.total_steps is not None and given.epochs is not None
    if given.batches_per_epoch is None and not totals_known:
        return []
    fitting = list(range(1, MOST + 1))
    for moment in course.samples:
        if moment.epoch is not None and moment.epoch.high > 0 and moment.step:
            fitting = [number for number in fitting if _fits_epoch(course, given, moment, number)]
    # What nearly all numbers fit tells none of them.
    return fitting if len(fitting) < MOST // 2 else []


def _fits_epoch(course: Course, given: Given, moment: Moment, number: int) -> bool:
    batches = batches_for(course, given, number)
    assert batches is not None and moment.epoch is not None
    trained = trained_epochs(moment.step, number, batches)
    return moment.epoch.meets(trained) or moment.epoch.meets(trained + moment.in_flight / batches)
