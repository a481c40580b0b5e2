"""Rows of step and loss, under the names that other trainers give them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

# The likeliest first. In a trainer_state.json the last entry's train_loss is a mean over the run.
STEP_NAMES = (
    "step", "global_step", "_step", "iteration", "iter", "steps", "train/global_step", "trainer/global_step",
    "train/step", "trainer_step", "update", "num_steps", "optimizer_step",
)  # fmt: skip
LOSS_NAMES = (
    "loss", "train_loss", "train/loss", "training_loss", "loss/train", "train.loss", "training/loss", "trainer/loss",
    "loss_train", "train_loss_step", "loss_step", "lm_loss", "lm loss",
)  # fmt: skip
_TENSORBOARD = {"wall_time", "step", "value"}


@dataclass(frozen=True, kw_only=True)
class LossRows:
    """Rows that were read.

    Args:
        kind: "jsonl" | "json" | "csv".
        table: One row a step, ascending: step, loss, non_finite, others.
        notes: What was left out, in words.
    """

    kind: str
    table: pl.DataFrame
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Row:
    place: str
    values: dict[str, object]


def jsonl_rows(path: Path, text: str) -> LossRows:
    """Read JSON lines; a last line that is cut off is set apart.

    Args:
        path: For messages.
        text: What the file holds.

    Raises:
        ValueError: If a line is no object, or a value does not fit.
    """
    rows, notes = [], []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            held = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                notes.append("the last line is cut off, and set apart")
                break
            raise ValueError(f"{path} line {number} is no JSON: {error}") from None
        if not isinstance(held, dict):
            raise ValueError(f"{path} line {number} is {line.strip()[:60]}; legal: an object with a step and a loss")
        rows.append(_Row(place=f"line {number}", values=held))
    return _table(path, "jsonl", rows, notes)


def json_rows(path: Path, text: str) -> LossRows:
    """Read a list of objects, or an object that holds one as log_history (Hugging Face's trainer_state.json).

    Args:
        path: For messages.
        text: What the file holds.

    Raises:
        ValueError: If it holds no such list, or a value does not fit.
    """
    try:
        held = json.loads(text)
    except ValueError as error:
        try:
            return jsonl_rows(path, text)
        except ValueError:
            raise ValueError(f"{path} is no JSON: {error}") from None
    entries = held.get("log_history") if isinstance(held, dict) else held
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path} holds no list of entries; legal: a list of objects, or an object with log_history")
    rows = [_Row(place=f"entry {number}", values=entry) for number, entry in enumerate(entries, start=1)]
    return _table(path, "json", rows, [])


def csv_rows(path: Path, text: str) -> LossRows:
    """Read a table with a header; columns stand apart by comma, semicolon or tab.

    Args:
        path: For messages.
        text: What the file holds.

    Raises:
        ValueError: If the header names no step or loss, a row is longer or shorter than it, or a value does not fit.
    """
    header_line = next(line for line in text.splitlines() if line.strip())
    delimiter = max(",;\t", key=header_line.count)
    reader = csv.reader(io.StringIO(text.lstrip()), delimiter=delimiter)
    header = [name.strip() for name in next(reader)]
    if len(set(header)) != len(header):
        raise ValueError(f"{path} names a column twice in {header_line[:80]}; legal: names that differ")
    rows, notes = [], []
    cells = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    for number, row in cells:
        if len(row) != len(header):
            if number == cells[-1][0] and len(row) < len(header) and not text.endswith(("\n", "\r")):
                notes.append("the last row is cut off, and set apart")
                break
            raise ValueError(f"{path} row {number} has {len(row)} values; legal: {len(header)}, as the header has")
        held = {name: _plain(cell) for name, cell in zip(header, row, strict=True)}
        rows.append(_Row(place=f"row {number}", values=held))
    return _table(path, "csv", rows, notes, header)


def _plain(cell: str) -> object:
    """A cell's number, None for an empty one, and its text otherwise."""
    cell = cell.strip()
    if not cell or cell.lower() in ("none", "null"):
        return None
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        return cell


def _table(path: Path, kind: str, rows: list[_Row], notes: list[str], header: Sequence[str] = ()) -> LossRows:
    names = list(dict.fromkeys([*header, *(name for row in rows for name in row.values)]))
    step_name = _found(path, "steps", names, STEP_NAMES)
    loss_name = _found(path, "losses", names, LOSS_NAMES)
    # A null loss under its own name is a step that was skipped; a row of a table has all names, and says nothing.
    losses = [row for row in rows if loss_name in row.values and (kind != "csv" or row.values[loss_name] is not None)]
    if len(losses) < len(rows):
        notes.append(f"{len(rows) - len(losses)} of {len(rows)} rows have no {loss_name}, and are left out")
    if not losses:
        raise ValueError(f"{path} holds no row with a {loss_name}; legal: at least one")
    held: dict[int, dict[str, object]] = {}
    last = None
    for row in losses:
        step = _step(path, row, step_name)
        if last is not None and step <= last:
            held = {kept: values for kept, values in held.items() if kept < step}
        held[step] = _values(path, row, step_name, loss_name) | {"step": step}
        last = step
    if len(held) < len(losses):
        notes.append(
            f"{len(losses) - len(held)} of {len(losses)} rows count no longer: a step stands there again behind them"
        )
    columns = ["step", "loss", "non_finite"]
    others = [name for name in names if name not in (step_name, loss_name, *columns)]
    table = pl.DataFrame(
        [
            pl.Series("step", list(held), dtype=pl.Int64),
            pl.Series("loss", [row["loss"] for row in held.values()], dtype=pl.Float64),
            pl.Series("non_finite", [row["non_finite"] for row in held.values()], dtype=pl.Boolean),
            *(_series(name, [row.get(name) for row in held.values()]) for name in others),
        ]
    )
    if table["non_finite"].any():
        notes.append(f"{table['non_finite'].sum()} losses are NaN or infinite, and null")
    if step_name != "step" or loss_name != "loss":
        notes.append(f"steps are its {step_name}, losses its {loss_name}")
    return LossRows(kind=kind, table=table, notes=tuple(notes))


def _found(path: Path, what: str, names: Sequence[str], legal: Sequence[str]) -> str:
    plain = {_name(name): name for name in reversed(names)}
    if legal is LOSS_NAMES and set(plain) == _TENSORBOARD:
        return plain["value"]
    for name in legal:
        if _name(name) in plain:
            return plain[_name(name)]
    raise ValueError(
        f"{path} has no column of {what}; it has {', '.join(names) or 'none'}; legal: one named {', '.join(legal)}"
    )


def _name(name: str) -> str:
    # Weights & Biases puts the run's name before the metric's.
    return re.sub(r"\s+", "_", name.rsplit(" - ", 1)[-1].strip().lower())


def _step(path: Path, row: _Row, name: str) -> int:
    value = row.values.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{path} {row.place} has {name} {value!r}; legal: a whole number >= 0")
    return value


def _values(path: Path, row: _Row, step_name: str, loss_name: str) -> dict[str, object]:
    loss = row.values[loss_name]
    if isinstance(loss, str):
        try:
            loss = float(loss)
        except ValueError:
            pass
    if isinstance(loss, bool) or not (loss is None or isinstance(loss, int | float)):
        raise ValueError(f"{path} {row.place} has {loss_name} {loss!r}; legal: a number, or none")
    others = {name: value for name, value in row.values.items() if name not in (step_name, loss_name)}
    finite = loss is None or math.isfinite(loss)
    return others | {"loss": float(loss) if loss is not None and finite else None, "non_finite": not finite}


def _series(name: str, values: list[object]) -> pl.Series:
    """Numbers where all are, text where one is not."""
    if all(value is None or isinstance(value, bool) for value in values):
        return pl.Series(name, values, dtype=pl.Boolean)
    if all(value is None or isinstance(value, int | float) for value in values):
        whole = all(value is None or isinstance(value, int) and abs(value) < 2**63 for value in values)
        if whole:
            return pl.Series(name, values, dtype=pl.Int64)
        numbers = [None if value is None or not math.isfinite(value) else float(value) for value in values]  # type: ignore[arg-type]
        return pl.Series(name, numbers, dtype=pl.Float64)
    texts = [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
    return pl.Series(name, texts, dtype=pl.String)
