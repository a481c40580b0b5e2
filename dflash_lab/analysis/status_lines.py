"""Status lines of a run, read back from whatever they were pasted or captured into."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from dflash_lab.analysis.captured_text import decoded, plain_lines
from dflash_lab.analysis.rejoin import WrittenLine, rejoin
from dflash_lab.analysis.status_fields import ELAPSED, FIELDS, QUEUES, ROUNDED, Fields, Reading, fields

# So many fields make a line one of status: others may name a step or a loss, too.
_LEAST_FIELDS = 3
_PART_OF_A_TIME = re.compile(r"\s*\[?\s*[\d.]*\s*[smhd]?\s*\]?\s*")


@dataclass(frozen=True, kw_only=True)
class StatusLog:
    """Status lines as a table, and what was left out of it or mended.

    Args:
        table: One row a status line whose step can be read, in order of writing, each step once: step, elapsed_seconds,
            loss, accuracy, streak, learning_rate, noise, target_batches_per_second, drafter_batches_per_second,
            real_tokens_per_second (float64), q_pre, q_hs (list of int64), epoch, eta_seconds (float64); for each
            rounded one its `_within`: how far the true number may be from the one shown (0.005 for 0.65); session (0,
            and one more each time the run went back or its time began anew), complete (all fields stood there), line
            (where it begins in the text, from 1), and a column for each field that is not known, named like it, with
            `_field` added where that name is taken: numbers where all of its values are, text otherwise.
        num_complete: Lines with all fields.
        num_rejoined: Lines that had been wrapped.
        num_cut: Lines that lack fields, also those without a step.
        missing: How many lines lack a field, by column.
        num_without_step: Of `num_cut`, those whose step is lost; they stand in no row.
        num_other_lines: Lines of the text that are no status.
        num_repeated: Lines that say again what one before says, as after scrolling back.
        num_taken_back: Lines that count no longer, since the run went back to a step before them.
        num_sessions: 1, and one more for each time that it went back or its time began anew.
        non_finite: How many values were NaN or infinite, by column; they are null in the table.
        unreadable: How many values were neither numbers nor said to be none, by column; they are null as well.
        unknown_fields: How many lines have a field that is not known, by its name.
        num_words: Words within status lines that are no field.
    """

    table: pl.DataFrame
    num_complete: int
    num_rejoined: int
    num_cut: int
    missing: Mapping[str, int]
    num_without_step: int
    num_other_lines: int
    num_repeated: int
    num_taken_back: int
    num_sessions: int
    non_finite: Mapping[str, int]
    unreadable: Mapping[str, int]
    unknown_fields: Mapping[str, int]
    num_words: int

    @property
    def summary(self) -> pl.DataFrame:
        """One row a count: what, count, detail (which fields, where that says more)."""
        rows = [
            ("status lines in the table", self.table.height, _steps(self.table)),
            ("complete", self.num_complete, ""),
            ("wrapped, and joined again", self.num_rejoined, ""),
            ("cut, or with fields missing", self.num_cut, _named(self.missing)),
            ("cut, the step lost: in no row", self.num_without_step, ""),
            ("said again", self.num_repeated, ""),
            ("taken back by a resume", self.num_taken_back, ""),
            ("sessions", self.num_sessions, ""),
            ("values not finite", sum(self.non_finite.values()), _named(self.non_finite)),
            ("values not readable", sum(self.unreadable.values()), _named(self.unreadable)),
            ("fields not known", sum(self.unknown_fields.values()), _named(self.unknown_fields)),
            ("words that are no field", self.num_words, ""),
            ("other lines", self.num_other_lines, ""),
        ]
        return pl.DataFrame(rows, schema={"what": pl.String, "count": pl.Int64, "detail": pl.String}, orient="row")


@dataclass(kw_only=True)
class _Line:
    """A status line that was read."""

    written: WrittenLine
    said: Fields
    session: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def step(self) -> int | None:
        """Its step, where that can be read."""
        said = self.said.readings.get("step")
        return said.value if said else None  # type: ignore[return-value]


def read_status_lines(source: str | Path) -> StatusLog:
    """Read status lines back, as they were captured from a terminal, pasted or written to a file.

    Read are the source run's lines and ours. Escape sequences, carriage returns, byte order marks, UTF-16, frames of
    panes and words before a line do no harm; wrapped lines are joined again; cut ones are kept as far as they go, and a
    last value that may have lost its end is none. All that is left out or mended is counted.

    Args:
        source: A file, or the text itself: a string with a line end or with `step=` in it is the text, any other string
            a file's path.

    Returns:
        The table and the counts. Where a step stands there a second time and says something else, the run went back to
        a checkpoint: its last writing counts, and what stood behind it no longer does.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If no status line is there.
    """
    name, text = _text(source)
    plain = plain_lines(text)
    rejoined = rejoin(plain)
    lines = [_Line(written=line, said=_said(line)) for line in rejoined.lines]
    kept = _status_only(lines)
    kept_ids = set(map(id, kept))
    num_other_lines = rejoined.num_other_lines + sum(
        len(line.written.widths) for line in lines if id(line) not in kept_ids
    )
    _set_cut_ends_apart(kept)
    if not any(line.step is not None for line in kept):
        raise ValueError(
            f"{name} holds no status line: {len(plain)} lines, none with a step; legal: lines such as "
            f"`[478m] step=4690 loss=1.0072 acc=0.154 ... epoch~0.41 ETA=4.6d`"
        )
    course = _last_attempt([line for line in kept if line.step is not None])
    readings = [(column, said) for line in kept for column, said in line.said.readings.items()]
    return StatusLog(
        table=_table(course.lines),
        num_complete=sum(not line.missing for line in kept),
        num_rejoined=sum(len(line.written.widths) > 1 for line in kept),
        num_cut=sum(bool(line.missing) for line in kept),
        missing=_in_order(Counter(column for line in kept for column in line.missing)),
        num_without_step=sum(line.step is None for line in kept),
        num_other_lines=num_other_lines,
        num_repeated=course.num_repeated,
        num_taken_back=course.num_taken_back,
        num_sessions=course.num_sessions,
        non_finite=_in_order(Counter(column for column, said in readings if said.state == "non-finite")),
        unreadable=_in_order(Counter(column for column, said in readings if said.state == "unreadable")),
        unknown_fields=dict(sorted(Counter(key for line in kept for key in line.said.unknown).items())),
        num_words=sum(line.said.words for line in kept),
    )


def _text(source: str | Path) -> tuple[str, str]:
    """What to call the source, and its text."""
    if isinstance(source, str) and ("\n" in source or "\r" in source or "step=" in source):
        return "the text", source
    path = Path(source)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; legal: a text file, or the text itself; a run's folder is for read_run")
    return str(path), decoded(path.read_bytes())


def _said(line: WrittenLine) -> Fields:
    cut_at_start = not line.before.strip() and not line.text.startswith("[") and not line.text.startswith("step=")
    return fields(line.text, cut_at_start=cut_at_start)


def _status_only(lines: Sequence[_Line]) -> list[_Line]:
    """Leave out what merely names a step or a loss, such as the report of an evaluation."""
    marked = sum(ELAPSED in line.said.readings and line.step is not None for line in lines)
    mostly_marked = 2 * marked >= sum(line.step is not None for line in lines) and marked > 0

    def is_status(line: _Line) -> bool:
        known = line.said.readings.keys()
        if {ELAPSED, "step"} <= known:
            return True
        spoken_of = bool(line.written.before.strip()) and not _PART_OF_A_TIME.fullmatch(line.written.before)
        if mostly_marked and spoken_of:
            return False
        return len(known) >= _LEAST_FIELDS or known >= {"epoch", "eta_seconds"}

    return [line for line in lines if is_status(line)]


def _set_cut_ends_apart(lines: Sequence[_Line]) -> None:
    """Note which fields lines lack; a last value that may have lost its end is not believed."""
    endings = Counter(line.said.last for line in lines)
    usual, times = endings.most_common(1)[0] if endings else ("", 0)
    widths = {line.written.widths[-1] for line in lines if line.said.last == usual}
    # Lines that all end in one column were cut there, whatever field that is.
    usual_end = usual if times >= _LEAST_FIELDS and 2 * times >= len(lines) and len(widths) > 1 else None
    for line in lines:
        said = line.said.readings
        last = said.get(line.said.last)
        lacks = any(column not in said for column in FIELDS)
        if (
            last is not None
            and not last.closed
            and last.state != "unreadable"
            and lacks
            and line.said.last != usual_end
        ):
            said.pop(line.said.last)
        elif last is not None and last.state == "unreadable" and line.said.last != usual_end:
            said.pop(line.said.last)
        line.missing = [column for column in FIELDS if column not in said]


@dataclass(frozen=True, kw_only=True)
class _Course:
    lines: list[_Line]
    num_repeated: int
    num_taken_back: int
    num_sessions: int


def _last_attempt(lines: Sequence[_Line]) -> _Course:
    """Keep the lines that count, by step; what is only said again takes nothing back."""
    rows: dict[int, _Line] = {}
    seen: dict[int, list[_Line]] = {}
    repeated = taken_back = session = 0
    last: _Line | None = None
    for line in lines:
        step = line.step
        assert step is not None
        twin = next((one for one in seen.get(step, []) if _agree(one.said, line.said)), None)
        if twin is not None:
            repeated += 1
            if len(line.said.readings) > len(twin.said.readings):
                twin.said, twin.missing, twin.written = line.said, line.missing, line.written
            continue
        seen.setdefault(step, []).append(line)
        if last is not None and last.step is not None:
            back = step <= last.step
            session += back or _time_began_anew(last.said, line.said)
            if back:
                held = len(rows)
                rows = {kept: row for kept, row in rows.items() if kept < step}
                taken_back += held - len(rows)
        rows[step] = last = replace(line, session=session)
        seen[step][-1] = last
    return _Course(
        lines=list(rows.values()), num_repeated=repeated, num_taken_back=taken_back, num_sessions=session + 1
    )


def _agree(one: Fields, other: Fields) -> bool:
    return all(
        one.readings[column].value == other.readings[column].value
        for column in one.readings.keys() & other.readings.keys()
    )


def _time_began_anew(before: Fields, now: Fields) -> bool:
    then, here = before.readings.get(ELAPSED), now.readings.get(ELAPSED)
    if then is None or here is None or then.value is None or here.value is None:
        return False
    return here.value < then.value - max(then.within, here.within)  # type: ignore[operator]


def _table(lines: Sequence[_Line]) -> pl.DataFrame:
    none = Reading(state="none")
    said = {column: [line.said.readings.get(column, none) for line in lines] for column in FIELDS}
    series = []
    for column in FIELDS:
        dtype = pl.Int64() if column == "step" else pl.List(pl.Int64) if column in QUEUES else pl.Float64()
        series.append(pl.Series(column, [one.value for one in said[column]], dtype=dtype))
    for column in ROUNDED:
        within = [None if one.value is None else one.within for one in said[column]]
        series.append(pl.Series(f"{column}_within", within, dtype=pl.Float64))
    series.append(pl.Series("session", [line.session for line in lines], dtype=pl.Int64))
    series.append(pl.Series("complete", [not line.missing for line in lines], dtype=pl.Boolean))
    series.append(pl.Series("line", [line.written.number for line in lines], dtype=pl.Int64))
    taken = {one.name for one in series}
    for key in dict.fromkeys(key for line in lines for key in line.said.unknown):
        name = key
        while name in taken:
            name += "_field"
        taken.add(name)
        written = pl.Series(name, [line.said.unknown.get(key) for line in lines], dtype=pl.String)
        numbers = written.cast(pl.Float64, strict=False)
        series.append(numbers if numbers.null_count() == written.null_count() else written)
    return pl.DataFrame(series)


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {column: counts[column] for column in FIELDS if counts[column]}


def _named(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _steps(table: pl.DataFrame) -> str:
    return f"steps {table['step'][0]:,} to {table['step'][-1]:,}" if table.height else ""
