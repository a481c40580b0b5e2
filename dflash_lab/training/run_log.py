"""What a run writes while it goes on: strict JSON lines, each step once, whatever happens to the process."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dflash_lab.feed import Batch
from dflash_lab.training.files import sync_folder
from dflash_lab.training.step_metrics import StepMetrics

METRICS, BATCHES, VALIDATION, SAVES = "metrics.jsonl", "batches.jsonl", "validation.jsonl", "saves.jsonl"
_FILES = (METRICS, BATCHES, VALIDATION, SAVES)
CONFIG, MANIFEST = "config.json", "manifest.json"
# What was written after the checkpoint that a run went back to, and lines that a kill has cut off.
SET_ASIDE = ".set_aside"


class RunLog:
    """The files of one run's folder, open for writing.

    `metrics.jsonl` has one `StepMetrics` a line, `batches.jsonl` the samples that made each step, `validation.jsonl`
    the scores of held-out samples, and `saves.jsonl` the steps behind which a checkpoint was saved. A line is written
    whole and flushed at once, so that others read along. Opened for a step, it takes what lies behind that step, and a
    half last line, out of the files and sets it aside beside them.

    Args:
        run_dir: The run's folder; made where it is not there.
        after_step: Steps that stand; 0 for a new run.
        rank: Of the process that writes.
    """

    def __init__(self, run_dir: Path, *, after_step: int = 0, rank: int = 0) -> None:
        self.run_dir, self._rank = run_dir, rank
        run_dir.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            _cut(run_dir / name, after_step)
        self._files = {name: open(run_dir / name, "a", encoding="utf-8") for name in _FILES}

    def add_step(self, metrics: StepMetrics, batches: Sequence[Batch]) -> None:
        """Write a step and its batches.

        Args:
            metrics: The step.
            batches: Its batches, in the order in which they were trained.
        """
        # The ledger first: a step that is in the metrics can always be rebuilt.
        self._write(BATCHES, ledger_line(metrics.step, metrics.epoch, batches, rank=self._rank))
        self._write(METRICS, dataclasses.asdict(metrics))

    def add_validation(self, scores: Mapping[str, object]) -> None:
        """Write scores of held-out samples: plain data with a step."""
        self._write(VALIDATION, dict(scores))

    def add_save(self, step: int) -> None:
        """Write that a checkpoint was saved behind a step."""
        self._write(SAVES, {"step": step})

    def sync(self) -> None:
        """Wait until all is on the disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files; may be called again."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> RunLog:
        """Start a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _write(self, name: str, row: Mapping[str, object]) -> None:
        file = self._files[name]
        file.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")
        file.flush()


def ledger_line(step: int, epoch: int, batches: Sequence[Batch], *, rank: int = 0) -> dict[str, object]:
    """Give what is needed to build a step's batches again, as plain data.

    Args:
        step: The step.
        epoch: Its epoch.
        batches: Its batches.
        rank: Of the process that trained them.
    """
    return {
        "step": step,
        "epoch": epoch,
        "rank": rank,
        "batches": [
            {
                "batch_id": batch.batch_id,
                "bucket_id": batch.bucket_id,
                "layout": batch.layout,
                "width": batch.input_ids.shape[1],
                "real_tokens": batch.real_tokens,
                "padded_tokens": batch.padded_tokens,
                "length_min": int(batch.lengths.min()),
                "length_max": int(batch.lengths.max()),
                "sample_ids": batch.sample_ids.tolist(),
                "lengths": batch.lengths.tolist(),
            }
            for batch in batches
        ],
    }


def read_lines(path: Path) -> list[dict[str, object]]:
    """Read JSON lines, without a half last one; an empty list where there is no file."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.split(b"\n") if line]


def finite(value: float) -> float | None:
    """Give a number that strict JSON can hold: None for NaN and infinity."""
    return value if math.isfinite(value) else None


def _cut(path: Path, after_step: int) -> None:
    """Take lines of later steps, and a half last line, out of a file, and keep them beside it."""
    if not path.exists():
        return
    kept, aside = [], []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            stands = line.endswith(b"\n") and json.loads(line)["step"] <= after_step
        except (ValueError, KeyError, TypeError):
            stands = False
        (kept if stands else aside).append(line)
    if not aside:
        return
    with open(f"{path}{SET_ASIDE}", "ab") as file:
        file.writelines(line if line.endswith(b"\n") else line + b"\n" for line in aside)
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)
