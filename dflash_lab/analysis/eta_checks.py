"""The time left that a log shows, against steps left and rates; and what does not move along a log."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_lab.analysis.epoch_checks import (
    ETA_NEVER_FALLS,
    ETA_OFF,
    ETA_SESSION,
    ETA_UNIT,
    STEPS_AGAINST_BATCHES,
    STUCK,
    Check,
    Checked,
    Finding,
)
from dflash_lab.analysis.epoch_figures import STEADY, UNSTEADY, Totals
from dflash_lab.analysis.rounding import Interval, interval
from dflash_lab.analysis.run_course import Course, Moment
from dflash_lab.analysis.step_rates import rate_accumulation, seconds_between

# An ETA that no mistake explains, and that is off by less than this, may come from a rate that the line does not show.
_OTHER_RATE = 1.25
# Seconds that loading and compiling take before the first step, at most.
_STARTING_UP = 120.0


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """How long the rest takes.

    Args:
        at_rate_shown: Batches left over the drafter's rate.
        at_mean_rate: Steps left at the mean rate of the session, where that is known.
        mean_is_of_all: Whether that mean takes all steps for the session's, which is right if there was no earlier one.
    """

    at_rate_shown: Interval | None
    at_mean_rate: Interval | None
    mean_is_of_all: bool


def time_left(course: Course, moment: Moment, sizes: Totals, accumulation: float) -> TimeLeft | None:
    """Say how long the rest of a run takes after a moment.

    Args:
        course: Its log.
        moment: The line.
        sizes: Of the run.
        accumulation: Micro-batches a step.

    Returns:
        Seconds; None where the total is not known, or passed.
    """
    if sizes.total_steps is None:
        return None
    left = (sizes.total_steps - moment.step).at_least(0.0)
    shown = None
    if moment.drafter_rate is not None and moment.drafter_rate.value > 0:
        shown = left * accumulation / moment.drafter_rate
    mean = _mean_step_seconds(course, moment)
    return TimeLeft(
        at_rate_shown=shown,
        at_mean_rate=None if mean is None else left * mean,
        mean_is_of_all=mean is not None and not _over_lines(course, moment),
    )


def _over_lines(course: Course, moment: Moment) -> bool:
    evidence = rate_accumulation(course, moment)
    return evidence is not None and evidence.over_lines


def _mean_step_seconds(course: Course, moment: Moment) -> Interval | None:
    """Seconds that a step of this session took on the mean; of one line alone, that all steps took."""
    if moment.elapsed is None or not moment.step:
        return None
    if not _over_lines(course, moment):
        return None if moment.session else moment.elapsed / moment.step
    first = next(one for one in course.session_of(moment) if one.drafter_rate is not None)
    steps = moment.step - first.step
    between = seconds_between(first, moment) / steps
    assert first.elapsed is not None
    # Steps before the first line: about as quick as those behind it, less some for starting up.
    most = first.step if between.low <= 0 else min(first.elapsed.high / between.low * UNSTEADY, first.step)
    least = min(max(first.elapsed.low - _STARTING_UP, 0.0) / (between.high * UNSTEADY), most)
    whole = moment.elapsed / Interval(value=steps + (least + most) / 2, low=steps + least, high=steps + most)
    return between.hull(whole)


def check_eta(into: Checked, course: Course, moment: Moment, sizes: Totals) -> None:
    """Check the ETA against what is left, at the rate shown and at the session's mean."""
    eta, steps = moment.eta, sizes.total_steps
    if eta is None or steps is None or not sizes.accumulations or steps.high < moment.step:
        return
    first = None
    for number in sizes.accumulations:
        left = time_left(course, moment, sizes, number)
        assert left is not None
        healthy = _healthy(moment, sizes, number, left)
        if healthy is None:
            return
        if eta.meets(healthy):
            into.add(Check(pair="ETA shown, what is left at the rates", left=eta, right=healthy, agree=True))
            return
        first = first or (number, left, healthy)
    assert first is not None
    number, left, healthy = first
    into.add(
        Check(pair="ETA shown, what is left at the rates", left=eta, right=healthy, agree=False),
        _wrong_eta(moment, sizes, number, left, healthy),
    )


def _healthy(moment: Moment, sizes: Totals, number: int, left: TimeLeft) -> Interval | None:
    """From the least to the largest that a right formula gives."""
    ways = []
    rates = [rate for rate in (moment.drafter_rate, moment.target_rate) if rate is not None and rate.value > 0]
    assert sizes.total_steps is not None
    batches = (sizes.total_steps - moment.step).at_least(0.0) * number
    for rate in rates:
        # What is queued may count as done, and so may the window that is open.
        ways += [batches / rate, (batches - moment.in_flight - number).at_least(0.0) / rate]
        if moment.epoch is not None and moment.epoch.value and sizes.epochs and sizes.batches_per_epoch:
            by_epoch = (sizes.epochs - moment.epoch).at_least(0.0) * sizes.batches_per_epoch
            if by_epoch.meets(Interval(value=batches.value, low=(ways[-1] * rate).low, high=batches.high)):
                ways.append(by_epoch / rate)
    mean, shown = left.at_mean_rate, left.at_rate_shown
    # Much less time by all steps than by the rate: some of them were made in earlier sessions.
    resumed = left.mean_is_of_all and mean is not None and shown is not None and mean.high * UNSTEADY < shown.low
    if mean is not None and not resumed:
        ways.append(mean)
    if not ways:
        return None
    hull = ways[0]
    for way in ways[1:]:
        hull = hull.hull(way)
    if mean is not None and not left.mean_is_of_all:
        return hull
    # One line cannot tell an earlier session from a slower start, unless its rate is that of all its steps.
    exactly = mean is not None and mean.high <= STEADY * mean.low
    if exactly and shown is not None and mean is not None and mean.meets(shown):
        return hull
    hull = hull.stretched(UNSTEADY)
    working = 0.0 if moment.elapsed is None else moment.elapsed.low - _STARTING_UP
    if moment.elapsed is None or working <= 0:
        return Interval(value=hull.value, low=hull.low, high=math.inf)
    return Interval(value=hull.value, low=hull.low, high=hull.high * moment.elapsed.high / working)


def _wrong_eta(moment: Moment, sizes: Totals, number: int, left: TimeLeft, healthy: Interval) -> Finding:
    eta, rate, steps = moment.eta, moment.drafter_rate, sizes.total_steps
    assert eta is not None and steps is not None
    said = (
        f"the ETA shown is {_time(eta.value)}, while what is left takes {_time(healthy.low)} to {_time(healthy.high)}"
    )
    ways: list[tuple[str, str, Interval]] = []
    to_go = (steps - moment.step).at_least(0.0)
    if moment.elapsed is not None and moment.step:
        ways.append(
            (
                ETA_SESSION,
                "it takes all steps, those of earlier sessions included, for done in this session's time",
                to_go * moment.elapsed / moment.step,
            )
        )
    if rate is not None and rate.value > 0 and number > 1:
        ways += [
            (ETA_UNIT, f"it divides steps left by batches a second, {number} times too little", to_go / rate),
            (ETA_UNIT, f"it divides batches left by steps a second, {number} times too much", to_go * number**2 / rate),
            (ETA_UNIT, "it takes steps done from batches in all", (steps * number - moment.step) / rate),
            (ETA_UNIT, "it takes batches done from steps in all", (steps - moment.step * number).at_least(0.0) / rate),
        ]
    if rate is not None and rate.value > 0:
        ways.append((ETA_NEVER_FALLS, "it is the time of the whole run, not of what is left", steps * number / rate))
        if sizes.batches_per_epoch is not None:
            per_epoch = sizes.batches_per_epoch
            done = moment.step * number % per_epoch.value
            ways.append((ETA_OFF, "it is the time to the end of the epoch", (per_epoch - done).at_least(0.0) / rate))
    units = ((60, "60 times"), (3600, "3,600 times"), (24, "24 times"), (1000, "1,000 times"))
    # What is shown as 0 is no multiple of anything.
    for factor, words in units if eta.value else ():
        ways.append((ETA_UNIT, f"it is {words} too large, as with another unit of time", healthy * factor))
        ways.append((ETA_UNIT, f"it is {words} too small, as with another unit of time", healthy * (1 / factor)))
    explained = [way for way in ways if way[2].value > 0 and eta.meets(way[2]) and not healthy.meets(way[2].value)]
    if explained:
        explained.sort(key=lambda way: abs(math.log(max(eta.value, 1.0) / way[2].value)))
        why = ", or ".join(dict.fromkeys(way[1] for way in explained))
        return Finding(kind=explained[0][0], severity="fault", sentence=f"{said}: {why}")
    near = eta.stretched(_OTHER_RATE).meets(healthy)
    return Finding(
        kind=ETA_OFF,
        severity="doubt" if near else "fault",
        sentence=f"{said}" + (": its rate may be another than the line's" if near else ""),
    )


def check_along(into: Checked, course: Course, sizes: Totals) -> None:
    """Check what has to move along a log: the epoch with the steps, the ETA with the time."""
    _check_epoch_moves(into, course, sizes)
    rated = [one for one in course.session_of(course.last) if one.eta is not None]
    if len(rated) < 5 or any(one.kind.startswith("ETA") for one in into.findings):
        return
    first, last = rated[0], rated[-1]
    assert first.eta and last.eta and first.elapsed and last.elapsed
    seconds = seconds_between(first, last).low
    if not (first.eta.value > 0 and seconds > 0.2 * first.eta.value) or not (first.drafter_rate and last.drafter_rate):
        return
    steady = first.drafter_rate.value > 0 and last.drafter_rate.low * UNSTEADY > first.drafter_rate.high
    stands = last.eta.low > first.eta.high - 0.25 * seconds
    finding = Finding(
        kind=ETA_NEVER_FALLS,
        severity="fault",
        sentence=f"the ETA went from {_time(first.eta.value)} to {_time(last.eta.value)} over {_time(seconds)}, at "
        f"rates that did not fall",
    )
    into.add(
        Check(
            pair="ETA of the first line less ETA of the last, time between them",
            left=first.eta - last.eta,
            right=last.elapsed - first.elapsed,
            agree=not (steady and stands),
        ),
        finding if steady and stands else None,
    )


def _check_epoch_moves(into: Checked, course: Course, sizes: Totals) -> None:
    shown = [one for one in course.moments if one.epoch is not None]
    known = any(one.kind in (STUCK, STEPS_AGAINST_BATCHES) for one in into.findings)
    if len(shown) < 2 or not sizes.accumulations or known:
        return
    first, last = shown[0], shown[-1]
    assert first.epoch is not None and last.epoch is not None
    values = {one.epoch.value for one in shown if one.epoch is not None}
    moved = last.epoch - first.epoch
    number = interval(sizes.accumulations[0])
    steps = last.step - first.step
    if sizes.batches_per_epoch is not None and not sizes.from_line:
        flight = max(first.in_flight.high, last.in_flight.high)
        ran = number * steps / sizes.batches_per_epoch
        over = (flight + number.high * (1 + ran.high)) / sizes.batches_per_epoch.low
        expected = Interval(value=ran.value, low=max(ran.low - over, 0.0), high=ran.high + over)
    elif first.epoch.high > 0 and last.epoch.value > 0:
        # Unknown batches an epoch: the epoch per step must be the same at both ends, but for what is queued.
        least = last.epoch.low * first.step / last.step
        expected = Interval(value=max(moved.high, 0.0), low=0.0, high=max(moved.high, 0.0))
        if len(values) == 1 and least > 0 and last.epoch.value and last.step > 2 * first.step:
            grown = last.epoch * (steps / last.step)
            slack = last.epoch.value * last.in_flight.high / max(last.step * number.low, 1.0)
            expected = Interval(value=grown.value, low=max(grown.low - slack, 0.0), high=grown.high + slack)
            expected = expected if expected.value >= expected.low else interval(expected.low)
    else:
        return
    stuck = len(values) == 1 and expected.low > moved.high
    into.add(
        Check(
            pair="epochs between the first and the last line, steps between them",
            left=moved,
            right=expected,
            agree=moved.meets(expected),
        ),
        Finding(
            kind=STUCK,
            severity="fault",
            sentence=f"the epoch shown stays at {last.epoch.value:g} from step {first.step:,} to {last.step:,}, which "
            f"are {expected.value:.3g} epochs",
        )
        if stuck
        else None,
    )


def _time(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
