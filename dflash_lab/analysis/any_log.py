"""A run's steps and losses out of whatever log there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from dflash_lab.analysis.captured_text import decoded
from dflash_lab.analysis.loss_rows import LossRows, csv_rows, json_rows, jsonl_rows
from dflash_lab.analysis.run_log import METRICS_NAME, read_run
from dflash_lab.analysis.status_fields import HEAD
from dflash_lab.analysis.status_lines import StatusLog, read_status_lines

# Where Hugging Face's Trainer keeps its log, in each checkpoint.
TRAINER_STATE_NAME = "trainer_state.json"
_JSONL, _CSV = (".jsonl", ".ndjson"), (".csv", ".tsv")


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A run's log as a table.

    Args:
        kind: "run folder" | "status lines" | "jsonl" | "json" | "csv".
        table: One row a step, ascending: at least step (int64) and loss (float64, null where there is none).
        notes: In words, what was left out, mended or set apart; empty where nothing was.
        status: The status lines, where it was such a log; None for others.
    """

    kind: str
    table: pl.DataFrame
    notes: tuple[str, ...]
    status: StatusLog | None = None


def read_loss_log(path: str | Path) -> pl.DataFrame:
    """Read steps and losses from a file of JSON lines, JSON or CSV.

    Read are files with a step and a loss a row under their usual names (step, global_step, iteration, _step, ...; loss,
    train_loss, train/loss, ...), Hugging Face's `trainer_state.json` and what TensorBoard and Weights & Biases export.

    Args:
        path: The file.

    Returns:
        One row a step, ascending: step (int64), loss (float64), non_finite (bool: the loss was NaN or infinite, and is
        null), and the other columns as they are. Rows of other things, which have no loss, are left out; `read_any_run`
        says how many. Where a step stands there a second time, the run went back: its last writing counts, and what
        stood behind it no longer does.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has no column for steps or losses, or a value does not fit, naming file, row and value.
    """
    return _loss_rows(Path(path)).table


def read_any_run(path: str | Path) -> LoadedRun:
    """Read a run's log, whatever it is.

    Args:
        path: A run's folder, a file of its metrics, status lines, JSON lines, JSON or CSV; or the text of status lines,
            told by a line end or `step=` in it.

    Returns:
        Its table, and what was left out.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If it is nothing that can be read, or as the reader of its kind.
    """
    if isinstance(path, str) and ("\n" in path or "\r" in path or "step=" in path):
        return _status(path)
    path = Path(path)
    if path.is_dir():
        if (path / METRICS_NAME).exists():
            return _ours(path, "run folder")
        if (path / TRAINER_STATE_NAME).exists():
            return _foreign(path / TRAINER_STATE_NAME)
        raise ValueError(f"{path} is a folder without {METRICS_NAME} or {TRAINER_STATE_NAME}; legal: a run's folder")
    text = decoded(path.read_bytes())
    if path.suffix.lower() in (*_CSV, ".json"):
        return _foreign(path)
    if path.suffix.lower() in _JSONL or text.lstrip()[:1] == "{":
        first = next((line for line in text.splitlines() if line.strip()), "")
        return _ours(path, "jsonl") if '"loss_sum"' in first and '"loss_weight"' in first else _foreign(path)
    if HEAD.search(text) or "step=" in text or not _has_header(text):
        return _status(path)
    return _foreign(path)


def _ours(path: Path, kind: str) -> LoadedRun:
    table = read_run(path)
    if "loss" not in table.columns:
        raise ValueError(f"{path} has no loss; it has {', '.join(table.columns)}")
    file = path / METRICS_NAME if path.is_dir() else path
    written = sum(bool(line.strip()) for line in file.read_bytes().split(b"\n"))
    notes = []
    if written > table.height:
        notes.append(f"{written - table.height} of {written} lines count no longer: taken back by a resume, or cut off")
    without = table["loss"].null_count()
    if without:
        notes.append(f"{without} steps have no finite loss")
    return LoadedRun(kind=kind, table=table, notes=tuple(notes))


def _status(source: str | Path) -> LoadedRun:
    log = read_status_lines(source)
    said = (0, 1)  # Lines in the table and whole ones are no loss.
    notes = [
        f"{what}: {count:,}" + (f" ({detail})" if detail else "")
        for number, (what, count, detail) in enumerate(log.summary.iter_rows())
        if number not in said and count > (what == "sessions")
    ]
    return LoadedRun(kind="status lines", table=log.table, notes=tuple(notes), status=log)


def _foreign(path: Path) -> LoadedRun:
    rows = _loss_rows(path)
    return LoadedRun(kind=rows.kind, table=rows.table, notes=rows.notes)


def _loss_rows(path: Path) -> LossRows:
    text = decoded(path.read_bytes())
    suffix = path.suffix.lower()
    if not text.strip():
        raise ValueError(f"{path} is empty; legal: rows of step and loss")
    if suffix == ".json":
        return json_rows(path, text)
    if suffix in _JSONL or (suffix not in _CSV and text.lstrip()[0] == "{"):
        return jsonl_rows(path, text)
    return csv_rows(path, text)


def _has_header(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip()), "").lower()
    return any(mark in first for mark in ",;\t") and ("step" in first or "iter" in first)
