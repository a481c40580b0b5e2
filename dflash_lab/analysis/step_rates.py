"""Rates of a log against the steps that it took: how many batches a step has, by the clock."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_lab.analysis.rounding import Interval
from dflash_lab.analysis.run_course import Course, Moment


@dataclass(frozen=True, kw_only=True)
class RateEvidence:
    """Micro-batches a step by the drafter's rate.

    Args:
        number: Rate * seconds / steps.
        over_lines: Whether the steps are those between lines of one session; else they are all, which are too many
            after a resume, and `number` is then too small.
    """

    number: Interval
    over_lines: bool


def rate_accumulation(course: Course, moment: Moment) -> RateEvidence | None:
    """Micro-batches a step that the drafter's rate and the steps over the time give.

    Args:
        course: The log.
        moment: One line of it.

    Returns:
        Over several lines of its session where they are far enough apart; None where nothing can be said.
    """
    rated = [one for one in course.session_of(moment) if one.drafter_rate is not None]
    if len(rated) >= 2 and rated[-1].step > rated[0].step:
        seconds = seconds_between(rated[0], rated[-1])
        # Times in whole minutes say nothing over a few of them.
        if seconds.high <= 1.5 * seconds.low:
            rate = mean_rate([one.drafter_rate for one in rated[1:] if one.drafter_rate is not None])
            return RateEvidence(number=rate * seconds / (rated[-1].step - rated[0].step), over_lines=True)
    if moment.drafter_rate is None or moment.elapsed is None or not moment.step or moment.session:
        return None
    return RateEvidence(number=moment.drafter_rate * moment.elapsed / moment.step, over_lines=False)


def seconds_between(first: Moment, last: Moment) -> Interval:
    """Time between two lines of a session, both rounded the same way: so it is off by one unit, not by two."""
    assert first.elapsed is not None and last.elapsed is not None
    within = max(one.high - one.value for one in (first.elapsed, last.elapsed))
    value = last.elapsed.value - first.elapsed.value
    return Interval(value=value, low=value - within, high=value + within).at_least(0.0)


def mean_rate(rates: list[Interval]) -> Interval:
    """Mean of rates, whose roundings may all have gone one way."""
    total = rates[0]
    for rate in rates[1:]:
        total = total + rate
    return total / len(rates)
