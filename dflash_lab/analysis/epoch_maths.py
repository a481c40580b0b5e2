"""Steps, batches, epochs and time left of a run: worked out from its log, and checked against each other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import polars as pl

from dflash_lab.analysis.epoch_checks import Checked, Finding, check_epoch, check_rates, check_totals
from dflash_lab.analysis.epoch_figures import Given, Totals, totals, trained_epochs
from dflash_lab.analysis.eta_checks import check_along, check_eta, time_left
from dflash_lab.analysis.rounding import Interval, interval
from dflash_lab.analysis.run_course import Course, Moment, course_of
from dflash_lab.analysis.status_lines import StatusLog

_DAY = 86_400.0
_SCHEMA = {
    "name": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "unit": pl.String,
    "derived_from": pl.String,
}
_CHECKS = {
    "step": pl.Int64,
    "pair": pl.String,
    "left": pl.Float64,
    "left_low": pl.Float64,
    "left_high": pl.Float64,
    "right": pl.Float64,
    "right_low": pl.Float64,
    "right_high": pl.Float64,
    "agree": pl.Boolean,
    "note": pl.String,
}


@dataclass(frozen=True, kw_only=True)
class EpochMaths:
    """What a log says of steps, batches, epochs and time, and whether it agrees with itself.

    Attributes:
        table: One row a figure: name, value, low, high (what rounding and several fitting readings allow), unit,
            derived_from.
        checks: One row a pair of figures that determine one another: step (of the line), pair, left, left_low,
            left_high, right, right_low, right_high, agree (whether their intervals meet), note.
        findings: What disagrees, by name; empty where nothing does.
        accumulations: Numbers of micro-batches a step that fit, the likeliest first; empty where none is determined.
        answer: Two or three sentences.
    """

    table: pl.DataFrame
    checks: pl.DataFrame
    findings: tuple[Finding, ...]
    accumulations: tuple[int, ...]
    answer: str

    def figure(self, name: str) -> Interval:
        """Look a figure up.

        Args:
            name: As in the table.

        Raises:
            ValueError: If the log does not determine it.
        """
        rows = self.table.filter(pl.col("name") == name)
        if not rows.height:
            raise ValueError(f"there is no figure {name}; there are {', '.join(self.table['name'])}")
        row = rows.row(0, named=True)
        return Interval(value=row["value"], low=row["low"], high=row["high"])


def epoch_maths(
    log: StatusLog | pl.DataFrame | str,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    accumulation: int | None = None,
    batches_per_epoch: int | None = None,
    token_budget: int | None = None,
) -> EpochMaths:
    """Work out where a run stands, and check each figure of its log that others determine.

    Each figure carries the interval that the rounding of the line allows, and two figures disagree only where their
    intervals do. What a line cannot show is not held against it: rates are those of its last minute and may differ from
    the session's mean, the epoch may count what is still queued, windows may go on across the end of an epoch or not.

    Args:
        log: Status lines as `read_status_lines` gives them, their table or text, or a table of `read_run`. Of many
            lines the last one that is complete is worked out, and others are checked along with it.
        total_steps: Optimizer steps of the whole run, where known.
        epochs: Its epochs, where known.
        accumulation: Micro-batches a step; None finds the whole numbers that fit, all of them.
        batches_per_epoch: Batches of an epoch, where known.
        token_budget: Most padded tokens of a batch, where known.

    Returns:
        Figures, checks and findings. More can be found the more is given: one line alone does not say how many
        batches an epoch has.

    Raises:
        ValueError: If the log holds no step, or a number is not legal.
    """
    given = Given(
        total_steps=total_steps,
        epochs=epochs,
        accumulation=accumulation,
        batches_per_epoch=batches_per_epoch,
        token_budget=token_budget,
    )
    course = course_of(log)
    sizes = totals(course, given)
    moment = course.last
    checked = Checked(checks=[], findings=[])
    steps: list[int] = []

    def note(step: int) -> None:
        steps.extend([step] * (len(checked.checks) - len(steps)))

    check_totals(checked, course, given, sizes)
    check_rates(checked, course, moment, given, sizes)
    note(moment.step)
    for one in course.samples:
        check_epoch(checked, one, sizes)
        check_eta(checked, course, one, sizes)
        note(one.step)
    check_along(checked, course, sizes)
    note(moment.step)
    rows = _rows(course, moment, given, sizes)
    table = pl.DataFrame(
        [(name, held.value, held.low, held.high, unit, how) for name, held, unit, how in rows],
        schema=_SCHEMA,
        orient="row",
    )
    return EpochMaths(
        table=table,
        checks=_check_table(checked, steps),
        findings=tuple(checked.findings),
        accumulations=sizes.accumulations,
        answer=_answer(moment, sizes, {name: held for name, held, _, _ in rows}, checked),
    )


def _rows(course: Course, moment: Moment, given: Given, sizes: Totals) -> list[tuple[str, Interval, str, str]]:
    rows: list[tuple[str, Interval, str, str]] = []

    def add(name: str, held: Interval | None, unit: str, how: str) -> None:
        if held is not None:
            rows.append((name, held, unit, how))

    number, batches, steps = sizes.accumulation, sizes.batches_per_epoch, sizes.total_steps
    add("steps done", interval(moment.step), "steps", "the line")
    add("micro-batches a step", number, "batches", sizes.accumulation_from)
    trained = None
    if course.trained is not None and moment is course.moments[-1]:
        trained = interval(course.trained)
        add("batches trained", trained, "batches", "batches of all steps of the log")
    elif number is not None:
        trained = number * moment.step
        add("batches trained", trained, "batches", "steps done * micro-batches a step")
    if moment.queued is not None:
        add("batches queued", interval(moment.queued), "batches", "sum of q_pre and q_hs")
    add("batches an epoch", batches, "batches", sizes.batches_per_epoch_from)
    add("steps an epoch", sizes.steps_per_epoch, "steps", sizes.steps_per_epoch_from)
    add("epochs in all", sizes.epochs, "epochs", sizes.epochs_from)
    add("steps in all", steps, "steps", sizes.total_steps_from)
    if batches is not None and sizes.epochs is not None:
        add("batches in all", sizes.epochs * batches, "batches", "epochs * batches an epoch")
    rows += _epoch_rows(course, moment, sizes)
    if steps is not None:
        left = (steps - moment.step).at_least(0.0)
        add("steps left", left, "steps", "steps in all - steps done")
        if number is not None:
            add("batches left", left * number, "batches", "steps left * micro-batches a step")
    rows += _rate_rows(course, moment, given, sizes)
    return rows


def _epoch_rows(course: Course, moment: Moment, sizes: Totals) -> list[tuple[str, Interval, str, str]]:
    rows = []
    batches, number = sizes.batches_per_epoch, sizes.accumulation
    if course.exact and moment.epoch is not None:
        rows.append(("epochs trained", moment.epoch, "epochs", "progress, in the log"))
    elif sizes.steps_per_epoch is not None and not sizes.from_line:
        held = interval(moment.step) / sizes.steps_per_epoch
        if batches is not None and number is not None and len(sizes.accumulations) == 1:
            held = trained_epochs(moment.step, number, batches)
        rows.append(("epochs trained", held, "epochs", "steps done * micro-batches a step / batches an epoch"))
        if batches is not None and moment.queued is not None:
            produced = held + interval(moment.queued) / batches
            rows.append(
                ("epochs trained or queued", produced, "epochs", "(batches trained + queued) / batches an epoch")
            )
    if moment.epoch is not None and not course.exact:
        rows.append(("epoch shown", moment.epoch, "epochs", "the line"))
    return rows


def _rate_rows(course: Course, moment: Moment, given: Given, sizes: Totals) -> list[tuple[str, Interval, str, str]]:
    rows = []
    rate, tokens = moment.drafter_rate, moment.token_rate
    number = sizes.accumulation
    if rate is not None:
        rows.append(("batches a second", rate, "batches / s", "drafter's rate of the line"))
        if number is not None:
            rows.append(("steps a second", rate / number, "steps / s", "batches a second / micro-batches a step"))
    if tokens is not None:
        rows.append(("real tokens a second", tokens, "tokens / s", "the line"))
    if rate is not None and tokens is not None and rate.value > 0:
        held = tokens / rate
        rows.append(("real tokens a batch", held, "tokens", "real tokens a second / batches a second"))
        if sizes.batches_per_epoch is not None:
            per_epoch = held * sizes.batches_per_epoch
            rows.append(("real tokens an epoch", per_epoch, "tokens", "real tokens a batch * batches an epoch"))
        if given.token_budget is not None:
            use = held / given.token_budget
            rows.append(("budget use", use, "real / budget", "real tokens a batch / token budget"))
    if moment.eta is not None:
        rows.append(("ETA shown", moment.eta * (1 / _DAY), "days", "the line"))
    left = time_left(course, moment, sizes, number.value) if number is not None else None
    if left is not None and left.at_rate_shown is not None and number is not None and sizes.total_steps is not None:
        # With all numbers of micro-batches that fit.
        steps_left = (sizes.total_steps - moment.step).at_least(0.0)
        assert rate is not None
        rows.append(("ETA", steps_left * number / rate * (1 / _DAY), "days", "batches left / batches a second"))
    if left is not None and left.at_mean_rate is not None:
        of = "seconds / steps done" if left.mean_is_of_all else "seconds / steps of this session"
        rows.append(("ETA at the mean rate", left.at_mean_rate * (1 / _DAY), "days", f"steps left * {of}"))
    if sizes.total_steps is None and moment.eta is not None and rate is not None and number is not None:
        total = moment.eta * rate / number + moment.step
        rows.append(("steps in all by the ETA", total, "steps", "steps done + ETA shown * steps a second"))
    return rows


def _check_table(checked: Checked, steps: list[int]) -> pl.DataFrame:
    rows = [
        (step, one.pair, *dataclasses.astuple(one.left), *dataclasses.astuple(one.right), one.agree, one.note)
        for step, one in zip(steps, checked.checks, strict=True)
    ]
    return pl.DataFrame(rows, schema=_CHECKS, orient="row")


def _answer(moment: Moment, sizes: Totals, figures: dict[str, Interval], checked: Checked) -> str:
    first = f"At step {moment.step:,}"
    if "steps in all" in figures:
        first += f" of {figures['steps in all'].value:,.0f}"
    if "epochs trained" in figures:
        first += f", {figures['epochs trained'].value:.3f} epochs are trained"
        if "batches an epoch" in figures:
            first += f" at {figures['batches an epoch'].value:,.0f} batches an epoch"
    if len(sizes.accumulations) == 1:
        first += f", {sizes.accumulations[0]} micro-batches a step"
    elif sizes.accumulations:
        first += f"; {', '.join(map(str, sorted(sizes.accumulations)))} micro-batches a step fit, all of them"
    else:
        first += "; how many micro-batches a step has is not determined"
    sentences = [first + "."]
    if "ETA" in figures or "ETA at the mean rate" in figures:
        held = figures.get("ETA", figures.get("ETA at the mean rate"))
        assert held is not None
        sentences.append(f"What is left takes {_days(held)}.")
    if checked.findings:
        sentences.append("Wrong or in doubt: " + "; ".join(one.sentence for one in checked.findings) + ".")
    else:
        counts = next((one.note for one in checked.checks if one.pair.startswith("epoch shown") and one.note), "")
        queued = "; the epoch shown counts what was still queued" if counts == "trained and queued" else ""
        sentences.append(f"The figures agree as far as they determine one another{queued}.")
    if sizes.batches_per_epoch is None or "ETA" not in figures:
        sentences.append("Epoch and time left are checked against one another once total_steps and epochs are given.")
    return " ".join(sentences)


def _days(held: Interval) -> str:
    for unit, size in (("days", 1.0), ("hours", 24.0), ("minutes", 1_440.0)):
        if held.value * size >= 1 or unit == "minutes":
            return f"{held.value * size:.1f} {unit} ({held.low * size:.1f} to {held.high * size:.1f})"
    raise AssertionError
