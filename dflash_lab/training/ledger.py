"""The ledger of a run: which samples made which step."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.training.run_log import BATCHES

# As `RunLog` writes them; a line in another form is read whole.
_STEP_FIRST = re.compile(rb'\{\s*"step"\s*:\s*(\d+)\s*,')


@dataclass(frozen=True)
class LedgerStep:
    """The ledger's words on a step.

    Args:
        step: The step.
        epoch: Its epoch.
        batches: Its batches, rank after rank, plain data: batch_id, bucket_id, layout, width, real_tokens,
            padded_tokens, length_min, length_max, sample_ids, lengths and rank.
    """

    step: int
    epoch: int
    batches: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ledger:
    """Steps of a run's ledger.

    Args:
        steps: Those that were asked for and are there, by their number.
        numbers: Numbers of all steps that are there, ascending.
    """

    steps: Mapping[int, LedgerStep]
    numbers: Sequence[int]


def read_ledger(run_dir: str | Path, steps: Container[int]) -> Ledger:
    """Read some steps of a run's ledger, of all its ranks.

    Lines of other steps are not taken apart: of 70,000 steps one is found in a second. Where a step stands there twice,
    the run went back to a checkpoint, and its last writing counts.

    Args:
        run_dir: The run's folder; only read.
        steps: Numbers of the steps to read.

    Returns:
        The steps.

    Raises:
        ValueError: If the folder has no ledger, or a line of it other than a cut-off last one cannot be read.
    """
    run_dir = Path(run_dir)
    ranks = sorted(run_dir.glob("rank-*"), key=lambda folder: int(folder.name.removeprefix("rank-")))
    files = [folder / BATCHES for folder in [run_dir, *ranks] if (folder / BATCHES).is_file()]
    if not files:
        raise ValueError(f"{run_dir} has no {BATCHES}, which says what samples made each step; legal: a run's folder")
    found: dict[int, LedgerStep] = {}
    numbers: set[int] = set()
    for file in files:
        own: dict[int, LedgerStep] = {}
        for number, read in _steps(file, steps):
            numbers.add(number)
            if read is not None:
                own[number] = read
        for number, read in own.items():
            before = found.get(number)
            found[number] = (
                read if before is None else LedgerStep(number, before.epoch, [*before.batches, *read.batches])
            )
    return Ledger(found, sorted(numbers))


def step_ranges(numbers: Sequence[int], *, most: int = 6) -> str:
    """Say in words which steps there are.

    Args:
        numbers: Ascending.
        most: Most ranges to name.

    Returns:
        Such as "steps 1 to 40 and 45", or "no step".
    """
    if not numbers:
        return "no step"
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [f"{first} to {last}" if last > first else f"{first}" for first, last in ranges[:most]]
    more = [f"{len(ranges) - most} more ranges"] if len(ranges) > most else []
    *begin, end = [*shown, *more]
    return f"{'step' if len(numbers) == 1 else 'steps'} {', '.join(begin)}{' and ' if begin else ''}{end}"


def _steps(file: Path, steps: Container[int]) -> Iterator[tuple[int, LedgerStep | None]]:
    with open(file, "rb") as lines:
        for at, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                # It is being written, or its writer was killed.
                return
            if not line.strip():
                continue
            begin = _STEP_FIRST.match(line)
            if begin is not None and int(begin[1]) not in steps:
                yield int(begin[1]), None
                continue
            try:
                row = json.loads(line)
                batches = [{**batch, "rank": row["rank"]} for batch in row["batches"]]
                read = LedgerStep(int(row["step"]), int(row["epoch"]), batches)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} line {at} is no line of a ledger: {error!r}") from None
            yield read.step, read if read.step in steps else None
