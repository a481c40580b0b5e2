"""What a log says of a run's course, in one form whether it was status lines or a run's own metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.analysis.rounding import Interval, rounded
from dflash_lab.analysis.status_lines import StatusLog, read_status_lines

# As `training.status` has it: the rates of a status line are those of its last minute.
RATE_SECONDS = 60.0

_SHOWN = {
    "elapsed": "elapsed_seconds",
    "target_rate": "target_batches_per_second",
    "drafter_rate": "drafter_batches_per_second",
    "token_rate": "real_tokens_per_second",
    "epoch": "epoch",
    "eta": "eta_seconds",
}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One line of a run's log.

    Args:
        step: Optimizer steps done.
        session: Which session made it; None where a log of one line cannot say.
        elapsed: Seconds since that session began.
        target_rate: Batches a second of the targets.
        drafter_rate: Batches a second of the drafter.
        token_rate: Real tokens a second.
        epoch: Epoch as shown.
        eta: Seconds left as shown.
        queued: Batches in all queues.
        hidden: Of these, behind the targets.
        num_queues: How many queues there are.
        num_hidden: How many of them are behind the targets.
    """

    step: int
    session: int | None
    elapsed: Interval | None = None
    target_rate: Interval | None = None
    drafter_rate: Interval | None = None
    token_rate: Interval | None = None
    epoch: Interval | None = None
    eta: Interval | None = None
    queued: int | None = None
    hidden: int = 0
    num_queues: int = 0
    num_hidden: int = 0

    @property
    def in_flight(self) -> Interval:
        """Batches that are produced and not trained: those queued, and a few that are in nobody's queue."""
        queued = self.queued or 0
        # One is being put and one being worked at, for each queue.
        return Interval(value=queued, low=queued, high=queued + 2 * self.num_queues)


@dataclass(frozen=True, kw_only=True)
class Course:
    """A run's log.

    Args:
        moments: One a line, ascending by step.
        exact: Whether the figures are a run's own metrics, which no rounding has moved.
        accumulation: Batches of a step, where the log has them.
        batches_per_epoch: Batches of the last epoch's plan, where the log has them.
        trained: Batches trained in all, where the log has every step's.
    """

    moments: tuple[Moment, ...]
    exact: bool = False
    accumulation: int | None = None
    batches_per_epoch: int | None = None
    trained: int | None = None

    @property
    def last(self) -> Moment:
        """The last line that says most: a cut one says less than the whole one before it."""
        return max(enumerate(self.moments), key=lambda item: (_said(item[1]), item[0]))[1]

    @property
    def samples(self) -> list[Moment]:
        """The last line that says most, and a few along the log that say as much."""
        last = self.last
        if self.exact:
            return [last]
        whole = [one for one in self.moments if one.eta is not None and one.epoch is not None and one is not last]
        places = sorted({round((len(whole) - 1) * share) for share in (0.25, 0.5, 0.75)}) if whole else []
        return [last, *(whole[place] for place in places)]

    def session_of(self, moment: Moment) -> list[Moment]:
        """Lines of the same session up to this one, that say when they were written."""
        return [
            one
            for one in self.moments
            if one.session == moment.session and one.elapsed is not None and one.step <= moment.step
        ]


def course_of(log: StatusLog | pl.DataFrame | str) -> Course:
    """Take a log in whatever form it comes.

    Args:
        log: Status lines as read, their table or text, or a table of `read_run`.

    Returns:
        Its course.

    Raises:
        ValueError: If there is no step in it.
    """
    if isinstance(log, str):
        log = read_status_lines(log)
    table = log.table if isinstance(log, StatusLog) else log
    if "step" not in table.columns or not table.height or not table["step"].dtype.is_integer():
        raise ValueError(
            f"the log has {table.height} rows with columns {', '.join(table.columns) or 'none'}; legal: at least one "
            f"row with a whole number step"
        )
    if table["step"].null_count():
        raise ValueError(f"the log has {table['step'].null_count()} rows without a step; legal: a step in each row")
    if "batch_ids" in table.columns or "progress" in table.columns:
        return _of_metrics(table.sort("step"))
    return Course(moments=tuple(_shown(row, table.height) for row in table.sort("step").iter_rows(named=True)))


def _said(moment: Moment) -> int:
    return sum(
        one is not None
        for one in (moment.elapsed, moment.drafter_rate, moment.token_rate, moment.queued, moment.epoch, moment.eta)
    )


def _shown(row: dict[str, object], num_rows: int) -> Moment:
    figures: dict[str, Interval] = {}
    for name, column in _SHOWN.items():
        value = row.get(column)
        if isinstance(value, int | float) and np.isfinite(value):
            within = row.get(f"{column}_within") or 0.0
            assert isinstance(within, int | float)
            figures[name] = rounded(float(value), float(within)).at_least(0.0)
    # In a foreign log the column may be anything.
    session = row.get("session")
    session = session if isinstance(session, int) and not isinstance(session, bool) else 0
    return Moment(
        step=_whole(row["step"]), session=None if num_rows == 1 and not session else session, **figures, **_depths(row)
    )


def _depths(row: dict[str, object]) -> dict[str, int]:
    lists = [row.get(name) for name in ("q_pre", "q_hs")]
    depths = [[int(depth) for depth in one if isinstance(depth, int)] for one in lists if isinstance(one, list)]
    if not depths:
        return {}
    behind = depths[-1] if isinstance(lists[1], list) else []
    return {
        "queued": sum(map(sum, depths)),
        "hidden": sum(behind),
        "num_queues": sum(map(len, depths)),
        "num_hidden": len(behind),
    }


def _of_metrics(table: pl.DataFrame) -> Course:
    rows = list(table.iter_rows(named=True))
    counts = [len(row["batch_ids"]) if row.get("batch_ids") is not None else None for row in rows]
    moments = []
    begin = 0
    for index, row in enumerate(rows):
        seconds = row.get("elapsed_seconds")
        if index and rows[index - 1].get("session", 0) != row.get("session", 0):
            begin = index
        rates: dict[str, Interval] = {}
        if seconds is not None:
            while begin < index - 1 and _seconds(rows[begin + 1], seconds) >= RATE_SECONDS:
                begin += 1
            over = _seconds(rows[begin], seconds)
            if begin < index and over > 0 and None not in counts[begin + 1 : index + 1]:
                batches = sum(count or 0 for count in counts[begin + 1 : index + 1])
                rates["drafter_rate"] = rounded(batches / over, 0.0)
                tokens = [row.get("real_tokens") for row in rows[begin + 1 : index + 1]]
                if all(isinstance(one, list) for one in tokens):
                    rates["token_rate"] = rounded(sum(map(sum, tokens)) / over, 0.0)  # type: ignore[arg-type]
            rates["elapsed"] = rounded(float(seconds), 0.0)
        progress = row.get("progress")
        if progress is not None:
            rates["epoch"] = rounded(float(progress), 1e-9 * max(1.0, float(progress)))
        moments.append(Moment(step=_whole(row["step"]), session=row.get("session", 0), **rates, **_depths(row)))
    known = [count for count in counts if count]
    whole_log = rows[0]["step"] == 1 and rows[-1]["step"] == len(rows) and len(known) == len(rows)
    return Course(
        moments=tuple(moments),
        exact=True,
        # The last window of an epoch may be smaller.
        accumulation=max(known) if known else None,
        batches_per_epoch=_epoch_plan(rows[-1]),
        trained=sum(known) if whole_log else None,
    )


def _seconds(row: dict[str, object], now: float) -> float:
    then = row.get("elapsed_seconds")
    return now - float(then) if isinstance(then, int | float) else 0.0


def _epoch_plan(row: dict[str, object]) -> int | None:
    """Batches of the row's epoch: what is trained of it, over the share that this is."""
    epoch, position, progress = (row.get(name) for name in ("epoch", "position", "progress"))
    if not all(isinstance(one, int | float) for one in (epoch, position, progress)):
        return None
    share = progress - epoch  # type: ignore[operator]
    return round(position / share) if share > 0 and position else None  # type: ignore[operator]


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
