"""How a schedule that was applied differs from its plan, and which known fault explains it."""

from __future__ import annotations

import bisect
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dflash_lab.training.audit import Finding
from dflash_lab.training.schedules import ScheduleConfig
from dflash_lab.training.settings import SCHEDULES

# Steps that a fault must explain, spread over the log: more would only take longer.
_MOST_STEPS = 1_500
# Micro-batches of a step that are tried where nobody says how many there are.
_USUAL_ACCUMULATION = (2, 3, 4, 6, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One schedule.

    Args:
        name: Its column.
        peak: Its largest value, > 0.
        warmup: Steps until it is reached.
        at: Value at a number of steps done, under a plan.
    """

    name: str
    peak: float
    warmup: int
    at: Callable[[int, ScheduleConfig], float]


def curve_findings(
    curve: Curve,
    steps: Sequence[int],
    applied: Sequence[float | None],
    plan: ScheduleConfig,
    begins: Sequence[int],
    accumulation: int | None,
    tolerance: float,
) -> Iterator[Finding]:
    """Compare a schedule with its plan.

    Args:
        curve: The schedule.
        steps: Steps of the log, from 1, ascending.
        applied: Its value at each; None where it is not known.
        plan: The plan.
        begins: Steps after which another session began.
        accumulation: Micro-batches of a step; None tries the usual ones.
        tolerance: Largest difference that is none, as a share of the peak.

    Yields:
        Nothing where it is as planned; else the largest difference, and the fault that explains all of them, if one
        does.
    """
    points = [(step, value) for step, value in zip(steps, applied, strict=True) if value is not None]
    slack = tolerance * curve.peak
    if not points:
        return
    if curve.name == "learning_rate" and points[0] == (1, 0.0):
        what = "the first step has a learning rate of 0: it moves nothing"
        yield Finding(severity="error", where=curve.name, what=what)
    wrong = [
        (abs(value - curve.at(step - 1, plan)), step, value)
        for step, value in points
        if abs(value - curve.at(step - 1, plan)) > slack
    ]
    if not wrong:
        return
    _, step, value = max(wrong)
    first = wrong[0]
    what = (
        f"{len(wrong)} of {len(points)} steps are not as planned, the first step {first[1]}: {_text(first[2])} and "
        f"{_text(curve.at(first[1] - 1, plan))} planned; most at step {step}: {_text(value)} and "
        f"{_text(curve.at(step - 1, plan))} planned"
    )
    fault = _fault(_Log(curve, _spread(points, wrong[0][1]), plan, slack), begins, wrong[0][1], accumulation)
    yield Finding(severity="error", where=curve.name, what=f"{what}{'' if fault is None else f'; {fault}'}")


@dataclass(frozen=True)
class _Log:
    curve: Curve
    points: Sequence[tuple[int, float]]
    plan: ScheduleConfig
    slack: float

    def is_explained(self, value: Callable[[int], float]) -> bool:
        """Whether a rule gives the value of every step."""
        return all(abs(value(step) - applied) <= self.slack for step, applied in self.points)

    def shifted(self, index: Callable[[int], int], plan: ScheduleConfig | None = None) -> bool:
        """Whether every step has the value that a plan has at another number of steps done."""
        used = self.plan if plan is None else plan
        return self.is_explained(lambda step: self.curve.at(max(0, index(step)), used))


def _fault(log: _Log, begins: Sequence[int], first_wrong: int, accumulation: int | None) -> str | None:
    return next(_faults(log, begins, first_wrong, accumulation), None)


def _faults(log: _Log, begins: Sequence[int], first_wrong: int, accumulation: int | None) -> Iterator[str]:
    curve, plan = log.curve, log.plan
    values = [value for _, value in log.points]
    planned = [curve.at(step - 1, plan) for step, _ in log.points]
    late = [curve.at(step - 1, plan) for step, _ in log.points if step > curve.warmup or curve.name == "noise"]
    if len(late) > 1 and max(values) - min(values) <= log.slack < max(late) - min(late):
        kind = "ramp" if curve.name == "noise" else "schedule"
        yield f"it is {_text(values[0])} at every step: a {kind} that does nothing"
    if log.curve.name != "noise" and plan.warmup_steps:
        if log.shifted(lambda step: step - 1, dataclasses.replace(plan, warmup_steps=0)):
            yield f"it has no warm-up, where {plan.warmup_steps} steps are planned"
    warm = [value for step, value in log.points if step <= curve.warmup]
    ramp = [curve.at(step - 1, plan) for step, _ in log.points if step <= curve.warmup]
    if len(warm) > 1 and max(warm) - min(warm) <= log.slack < max(ramp) - min(ramp):
        yield f"it is {_text(warm[0])} throughout the warm-up of {curve.warmup} steps, which does nothing"
    yield from _restarts(log, begins, first_wrong)
    counts = _USUAL_ACCUMULATION if accumulation is None else (accumulation,)
    for count in counts:
        if count == 1:
            continue
        for ahead in range(count):
            if log.shifted(lambda step, count=count, ahead=ahead: (step - 1) * count + ahead):
                yield f"it moves {count} times a step: with the micro-batches, not with the steps"
        slow = dataclasses.replace(
            plan,
            total_steps=plan.total_steps * count,
            warmup_steps=plan.warmup_steps * count,
            noise_warmup_steps=plan.noise_warmup_steps * count,
        )
        if log.shifted(lambda step: step - 1, slow):
            yield f"it is planned for {slow.total_steps} micro-batches and moves with the {plan.total_steps} steps"
    if log.shifted(lambda step: step):
        yield "it is one step ahead"
    if log.shifted(lambda step: step - 2):
        yield "it is one step behind"
    yield from _other_plans(log)
    ratios = [value / plan_value for (_, value), plan_value in zip(log.points, planned, strict=True) if plan_value]
    if ratios:
        scale = statistics.median(ratios)
        # Digits that a log leaves out are a share of the larger values.
        wide = dataclasses.replace(log, slack=log.slack * max(1.0, abs(scale)))
        if wide.is_explained(lambda step: scale * curve.at(step - 1, plan)):
            yield f"it is {scale:.4g} times the plan at every step"


def _restarts(log: _Log, begins: Sequence[int], first_wrong: int) -> Iterator[str]:
    """Look for a schedule that began anew where a session did, or else where it first went wrong."""
    for places in ([begin for begin in begins if begin >= first_wrong - 1], list(begins), [first_wrong - 1]):
        inside = sorted(place for place in places if place > 0)
        if not inside:
            continue

        def since(step: int, inside: list[int] = inside) -> int:
            at = bisect.bisect_left(inside, step)
            return step - 1 - (inside[at - 1] if at else 0)

        if log.shifted(since):
            named = ", ".join(str(place + 1) for place in inside if place + 1 >= first_wrong)
            yield f"it begins anew at step {named}, as after a resume that forgets it"
            return


def _other_plans(log: _Log) -> Iterator[str]:
    plan = log.plan
    if log.curve.name == "noise":
        return
    for kind in SCHEDULES:
        if kind != plan.schedule and log.shifted(lambda step: step - 1, dataclasses.replace(plan, schedule=kind)):
            yield f'its schedule is "{kind}", where "{plan.schedule}" is planned'
    # Others begin the warm-up at 0.
    late = plan.warmup_steps
    if late and log.is_explained(
        lambda step: log.curve.at(step - 1, plan) if step > late else plan.learning_rate * (step - 1) / late
    ):
        yield "its warm-up begins at 0, one step late"


def _spread(points: Sequence[tuple[int, float]], first_wrong: int) -> list[tuple[int, float]]:
    """Points over the whole log, with all of the first ones and those around the first difference."""
    if len(points) <= _MOST_STEPS:
        return list(points)
    stride = -(-len(points) // (_MOST_STEPS // 2))
    near = [at for at, (step, _) in enumerate(points) if abs(step - first_wrong) <= 100]
    chosen = {*range(0, len(points), stride), *range(200), *near, len(points) - 1}
    return [points[at] for at in sorted(chosen)]


def _text(value: float) -> str:
    return f"{value:.4g}"
