"""Figures of a log against each other: each pair that determines one another, and the name of what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_lab.analysis.epoch_figures import ONE_MINUTE, STEADY, UNSTEADY, Given, Totals, trained_epochs
from dflash_lab.analysis.rounding import Interval, interval
from dflash_lab.analysis.run_course import RATE_SECONDS, Course, Moment
from dflash_lab.analysis.step_rates import mean_rate, rate_accumulation, seconds_between

STUCK = "epoch counter stuck"
STEPS_AGAINST_BATCHES = "steps against batches"
EPOCH_OFF = "epoch counter off"
ETA_UNIT = "ETA from the wrong unit"
ETA_SESSION = "ETA from all steps in one session's time"
ETA_OFF = "ETA off"
ETA_NEVER_FALLS = "ETA does not fall"
RATES = "rates of targets and drafter"
INDIVISIBLE = "accumulation does not divide"
ACCUMULATION = "accumulation off"
TOTALS = "totals disagree"
BUDGET = "batch over its budget"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A disagreement.

    Args:
        kind: What is wrong, in words that are the same for each of its kind.
        severity: "fault" (what is shown is wrong) | "doubt" (something is, or a cause the log does not show) | "note".
        sentence: What it is, with its numbers.
    """

    kind: str
    severity: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """Two figures for one thing.

    Args:
        pair: Which two.
        left: The first.
        right: The second; of several ways to count it, from the least to the largest.
        agree: Whether they have a number in common.
        note: Under which reading.
    """

    pair: str
    left: Interval
    right: Interval
    agree: bool
    note: str = ""


@dataclass(kw_only=True)
class Checked:
    """What checks came to; they add to it."""

    checks: list[Check]
    findings: list[Finding]

    def add(self, check: Check, finding: Finding | None = None) -> None:
        """Note a check, and what it found where that is new."""
        self.checks.append(check)
        if finding is None or any(one.kind == finding.kind for one in self.findings):
            return
        # One figure has one fault: lines that show which it is name it for those that do not.
        for number, one in enumerate(self.findings):
            if any(finding.kind.startswith(about) and one.kind.startswith(about) for about in ("epoch", "ETA")):
                self.findings[number] = finding if one.kind in (EPOCH_OFF, ETA_OFF) else one
                return
        self.findings.append(finding)


def check_totals(into: Checked, course: Course, given: Given, sizes: Totals) -> None:
    """Check what is given against itself: total steps * micro-batches against epochs * batches."""
    last = course.moments[-1]
    if given.total_steps is not None and last.step > given.total_steps:
        into.add(
            Check(pair="step, total steps", left=interval(last.step), right=interval(given.total_steps), agree=False),
            Finding(
                kind=TOTALS,
                severity="fault",
                sentence=f"step {last.step:,} is past the {given.total_steps:,} steps of the whole run",
            ),
        )
    if course.exact and course.accumulation and given.accumulation and course.accumulation != given.accumulation:
        into.add(
            Check(
                pair="micro-batches a step, batches of the log's steps",
                left=interval(given.accumulation),
                right=interval(course.accumulation),
                agree=False,
            ),
            Finding(
                kind=ACCUMULATION,
                severity="fault",
                sentence=f"the log's steps have up to {course.accumulation} batches each, not {given.accumulation}",
            ),
        )
    batches = given.batches_per_epoch
    if given.total_steps is None or given.epochs is None or batches is None or not sizes.accumulations:
        return
    fits = [number for number in sizes.accumulations if _steps_fit(given.total_steps, given.epochs, batches, number)]
    number = (fits or list(sizes.accumulations))[0]
    expected = given.epochs * batches / number
    whole = given.epochs * math.ceil(batches / number)
    right = Interval(value=expected, low=math.floor(expected), high=whole)
    finding = None if fits else _wrong_total(given.total_steps, given.epochs, batches, number)
    into.add(
        Check(
            pair="total steps, epochs * batches per epoch / micro-batches",
            left=interval(given.total_steps),
            right=right,
            agree=right.meets(given.total_steps),
        ),
        finding,
    )


def _steps_fit(steps: int, epochs: int, batches: int, accumulation: int) -> bool:
    exact = epochs * batches / accumulation
    if batches % accumulation and steps == epochs * (batches // accumulation) < math.floor(exact):
        return False
    # Plans that are made anew each epoch differ by a few batches.
    return abs(steps - exact) <= epochs + 1e-3 * exact or steps == epochs * math.ceil(batches / accumulation)


def _wrong_total(steps: int, epochs: int, batches: int, accumulation: int) -> Finding:
    exact = epochs * batches / accumulation
    if batches % accumulation and steps == epochs * (batches // accumulation):
        left = batches % accumulation
        return Finding(
            kind=INDIVISIBLE,
            severity="doubt",
            sentence=f"{accumulation} micro-batches a step do not divide {batches:,} batches an epoch: {steps:,} steps "
            f"leave {left} of each epoch's batches out, {left * epochs} in all; "
            f"{epochs * math.ceil(batches / accumulation):,} steps would train them",
        )
    if _close(steps, epochs * batches) or _close(steps, exact / accumulation):
        said = "batches" if steps > exact else "steps of steps"
        return Finding(
            kind=STEPS_AGAINST_BATCHES,
            severity="fault",
            sentence=f"{steps:,} total steps count {said}: {epochs} epochs of {batches:,} batches at {accumulation} a "
            f"step are {exact:,.0f} steps",
        )
    return Finding(
        kind=TOTALS,
        severity="fault",
        sentence=f"{steps:,} total steps against {epochs} epochs of {batches:,} batches at {accumulation} a step, "
        f"which are {exact:,.0f}",
    )


def check_epoch(into: Checked, moment: Moment, sizes: Totals) -> None:
    """Check the epoch shown against the steps done: as trained, or with the batches that are still queued."""
    shown, numbers = moment.epoch, list(sizes.batches_by_accumulation)
    if shown is None or not numbers or not moment.step:
        return
    # Where none fits, the likeliest is the one that is told of.
    for number in (*numbers, numbers[0]):
        held = sizes.batches_by_accumulation[number]
        trained = trained_epochs(moment.step, number, held)
        produced = trained + moment.in_flight / held
        if shown.meets(trained) or shown.meets(produced):
            break
    agree = shown.meets(trained) or shown.meets(produced)
    counts = "trained" if shown.meets(trained) else "trained and queued" if agree else ""
    finding = None
    if not agree and not sizes.from_line:
        finding = _wrong_epoch(moment, shown, trained, sizes)
    into.add(
        Check(
            pair="epoch shown, step * micro-batches / batches per epoch",
            left=shown,
            right=trained.hull(produced),
            agree=agree,
            note=counts,
        ),
        finding,
    )


def _wrong_epoch(moment: Moment, shown: Interval, trained: Interval, sizes: Totals) -> Finding:
    true = f"{trained.value:.3f} epochs are trained at step {moment.step:,}"
    if shown.value == 0:
        return Finding(kind=STUCK, severity="fault", sentence=f"the epoch shown is 0, while {true}")
    for number in sizes.accumulations or sizes.batches_by_accumulation:
        batches = sizes.batches_by_accumulation[number]
        done = trained_epochs(moment.step, number, batches)
        for wrong, said in ((1 / number, "takes steps for batches"), (number, "divides batches by steps an epoch")):
            ways = (
                done * wrong,
                done * wrong + moment.in_flight / batches,
                (done + moment.in_flight / batches) * wrong,
            )
            if number > 1 and any(shown.meets(way) for way in ways):
                return Finding(
                    kind=STEPS_AGAINST_BATCHES,
                    severity="fault",
                    sentence=f"the epoch shown is {shown.value:g}, while {true}: it {said}, a factor of {number}",
                )
    return Finding(kind=EPOCH_OFF, severity="fault", sentence=f"the epoch shown is {shown.value:g}, while {true}")


def check_rates(into: Checked, course: Course, moment: Moment, given: Given, sizes: Totals) -> None:
    """Check the rates against each other, against the steps taken, and against what a batch may hold."""
    if moment.target_rate is not None and moment.drafter_rate is not None:
        into.add(*_targets_against_drafter(course, moment, sizes))
    number = given.accumulation or (course.accumulation if course.exact else None)
    evidence = rate_accumulation(course, moment)
    if number is not None and evidence is not None and not course.exact:
        by_rate = evidence.number
        # Over the steps of earlier sessions too, a lower number is what a resume looks like.
        slow = evidence.over_lines and by_rate.high * UNSTEADY < number
        finding = None
        quick = by_rate.low > (UNSTEADY if evidence.over_lines else ONE_MINUTE) * number
        if slow or quick:
            in_steps = slow and by_rate.stretched(UNSTEADY).meets(1.0)
            why = "the drafter's rate counts steps" if in_steps else "one of the two is wrong"
            finding = Finding(
                kind=STEPS_AGAINST_BATCHES if in_steps else ACCUMULATION,
                severity="fault" if in_steps else "doubt",
                sentence=f"the drafter's rate gives {by_rate.value:.2f} batches for each step that was taken, not "
                f"{number}: {why}",
            )
        into.add(
            Check(
                pair="micro-batches a step, drafter's rate * seconds / steps",
                left=interval(number),
                right=by_rate,
                agree=finding is None,
                note="between lines of the session" if evidence.over_lines else "if it was never resumed",
            ),
            finding,
        )
    if given.token_budget and moment.token_rate is not None and moment.drafter_rate and moment.drafter_rate.low > 0:
        held = moment.token_rate / moment.drafter_rate
        over = held.low > given.token_budget
        into.add(
            Check(
                pair="real tokens a batch, token budget", left=held, right=interval(given.token_budget), agree=not over
            ),
            Finding(
                kind=BUDGET,
                severity="fault",
                sentence=f"{held.value:,.0f} real tokens a batch are over the budget of {given.token_budget:,}: the "
                f"rates count different things",
            )
            if over
            else None,
        )


def _targets_against_drafter(course: Course, moment: Moment, sizes: Totals) -> tuple[Check, Finding | None]:
    lines = [one for one in course.session_of(moment) if one.target_rate is not None and one.drafter_rate is not None]
    target, drafter, seconds = moment.target_rate, moment.drafter_rate, 0.0
    assert target is not None and drafter is not None
    hidden, note = moment.hidden, "the last minute"
    if len(lines) >= 5 and lines[0].elapsed is not None and lines[-1].elapsed is not None:
        # The first line's rates may be of seconds only.
        target = mean_rate([one.target_rate for one in lines[1:] if one.target_rate is not None])
        drafter = mean_rate([one.drafter_rate for one in lines[1:] if one.drafter_rate is not None])
        seconds = seconds_between(lines[0], lines[-1]).low
        hidden, note = max(one.hidden for one in lines), "mean over the session"
    elif moment.elapsed is not None:
        seconds = min(RATE_SECONDS, max(moment.elapsed.low, 0.0))
    check = Check(
        pair="targets' rate, drafter's rate", left=target, right=drafter, agree=target.meets(drafter), note=note
    )
    # What one side did more than the other must have come out of, or have gone into, the queue between them.
    number = max(sizes.accumulations, default=1)
    room = max(hidden, 8 * max(1, moment.num_hidden)) + 2 * number + 4
    ahead = max(target.low - drafter.high, drafter.low - target.high) * seconds
    apart = max(target.low, drafter.low) > UNSTEADY * min(target.high, drafter.high)
    if check.agree or not apart or ahead <= room:
        return check, None
    in_steps = any(one > 1 and (drafter * one).stretched(STEADY).meets(target) for one in sizes.accumulations)
    why = "; the drafter's counts steps" if in_steps else ""
    return check, Finding(
        kind=RATES,
        severity="fault",
        sentence=f"targets do {target.value:.3g} and the drafter {drafter.value:.3g} batches a second ({note}): the "
        f"queue between them cannot hold the difference{why}",
    )


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-3 * other
