"""What happened to a run: all that its log can tell, put together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_lab.analysis import (
    Attribution,
    EpochMaths,
    LoadedRun,
    LossResets,
    add_planned_batches,
    attribute_spikes,
    epoch_maths,
    loss_and_bucket,
    loss_resets,
    read_any_run,
    record_table,
    synthetic_run,
)
from dflash_lab.analysis.planned_steps import crosses_epochs
from dflash_lab.batching import BatchPlan
from dflash_lab.training.audit import NOT_CHECKED, audit_checkpoint
from dflash_lab.training.checkpoint import checkpoint_folders
from dflash_lab.training.config import RunConfig
from dflash_lab.training.explore_step import explore_step
from dflash_lab.training.files import read_json
from dflash_lab.training.replay import replay_step
from dflash_lab.training.replayed import StepReplay
from dflash_lab.training.run_log import CONFIG, MANIFEST, SAVES, read_lines
from dflash_lab.training.schedule_audit import ScheduleAudit, audit_schedules
from dflash_lab.training.short_run import ARGUMENTS, open_short_run
from dflash_lab.training.step_view import StepView

# A log whose resets have a known cause.
EXAMPLE = "example"
_EXAMPLE_CAUSE = "bucket_runs"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunDiagnosis:
    """What happened to a run.

    Args:
        name: Of the run, for titles and file names.
        data_name: What it trained on, or what kind of log it is where that is not known.
        log: Its log.
        maths: Where it stands, and whether its figures agree.
        resets: Where the loss jumped and came back.
        attribution: What the resets follow.
        run_dir: The run's folder; None where there is only a log.
        schedule: Schedules and optimizer settings as applied; None where there is only a log.
        checkpoints: polars table, one row a finding: checkpoint, severity, where, what; None where there is only a log.
        num_checkpoints: Checkpoints that were looked into.
        notes: What a reader should know of the log, in words.
    """

    name: str
    data_name: str
    log: LoadedRun
    maths: EpochMaths
    resets: LossResets
    attribution: Attribution
    run_dir: Path | None
    schedule: ScheduleAudit | None
    checkpoints: Any
    num_checkpoints: int
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name as part of a file name: letters, digits, "-" and "_"."""
        return re.sub(r"[^A-Za-z0-9_]+", "-", self.name).strip("-") or "run"

    def answer(self) -> str:
        """Say what happened, in a paragraph each for clock, loss, causes and settings."""
        parts = [
            f"**{self.name}** ({self.data_name}). {self.maths.answer}",
            self.resets.answer,
            self.attribution.answer,
        ]
        if self.notes:
            parts.append("Of the log: " + "; ".join(self.notes) + ".")
        if self.schedule is not None:
            wrong = [found for found in self.schedule.findings if found.severity != NOT_CHECKED]
            said = "; ".join(f"{found.where}: {found.what}" for found in wrong)
            parts.append(f"Of schedules and settings as applied, {said or 'nothing differs from what was planned'}.")
        if self.checkpoints is not None:
            bad = len(self.checkpoints)
            parts.append(f"{self.num_checkpoints} checkpoints were looked into, with {bad or 'no'} findings.")
        return "\n\n".join(parts)

    @property
    def spike_step(self) -> int:
        """The step to look into first: the peak of the deepest reset, else the one farthest above its level."""
        found = self.resets.table
        if len(found):
            return int(found.sort("depth")["peak_step"][-1])
        steps = self.resets.steps.drop_nulls("loss")
        height = steps["loss"] - steps["level"]
        place = height.arg_max() if height.count() else steps["loss"].arg_max()
        return int(steps["step"][place or 0])

    def loss_table(self) -> Any:
        """Give step, loss and, where it is known, the bucket of most of the step's batches, as a polars table."""
        return loss_and_bucket(self.log.table)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpikeView:
    """One step of a run, with what made it.

    Args:
        view: Its batches, samples and texts; None where the run's samples are not at hand.
        replay: The step made again; None where that cannot be done.
        notes: Why something is missing, in words.
    """

    view: StepView | None
    replay: StepReplay | None
    notes: tuple[str, ...]


def diagnose_run(
    run: str | Path,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    accumulation: int | None = None,
    batches_per_epoch: int | None = None,
    token_budget: int | None = None,
    false_alarms_per_1000_steps: float = 0.1,
    plans: Sequence[str | Path] = (),
    seed: int = 0,
) -> RunDiagnosis:
    """Find out what a log, or a run's folder, can tell.

    Args:
        run: A run's folder; a file of status lines, JSON lines, JSON or CSV; the text of status lines; or "example", a
            log made up with runs of one bucket that bring the resets, and saves that do not.
        total_steps: Optimizer steps of the whole run; None takes those of the folder, or what the log allows.
        epochs: Likewise.
        accumulation: Batches of a step, likewise.
        batches_per_epoch: Likewise.
        token_budget: Most padded tokens of a batch, likewise.
        false_alarms_per_1000_steps: Resets that noise alone may bring, see `loss_resets`.
        plans: Files of the plans that the run followed (`BatchPlan.save`), one an epoch in order, for a log that does
            not say which batches a step had; needs `accumulation`, given or determined by the log.
        seed: Of the permutation tests, >= 0.

    Returns:
        The diagnosis.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If it cannot be read, or a number is not legal.
    """
    given = {
        "total_steps": total_steps,
        "epochs": epochs,
        "accumulation": accumulation,
        "batches_per_epoch": batches_per_epoch,
        "token_budget": token_budget,
    }
    if run == EXAMPLE:
        log = LoadedRun(kind="made-up log", table=synthetic_run(_EXAMPLE_CAUSE, seed=seed), notes=())
        return _diagnosed(EXAMPLE, log, given, (), None, None, false_alarms_per_1000_steps, seed)
    log = read_any_run(run)
    folder = Path(run) if log.kind == "run folder" else None
    saves = None
    if folder is not None:
        known, saves, notes = _of_folder(folder)
        given = {name: known.get(name) if value is None else value for name, value in given.items()}
        log = replace(log, notes=(*log.notes, *notes, *_gaps(log.table)))
    is_text = isinstance(run, str) and ("\n" in run or "\r" in run or "step=" in run)
    name = "pasted lines" if is_text else Path(run).resolve().stem
    return _diagnosed(name, log, given, plans, folder, saves, false_alarms_per_1000_steps, seed)


def look_into_step(diagnosis: RunDiagnosis, step: int, *, device: str = "auto", max_texts: int = 3) -> SpikeView:
    """Show what made a step, and make it again.

    Args:
        diagnosis: Of a run.
        step: One of its steps.
        device: "auto" or a device of torch.
        max_texts: Samples whose text is decoded.

    Returns:
        The step; a log alone has no samples to show, and a run that `short_run` did not make does not say where its
        samples and target are: `explore_step` and `replay_step` take them.

    Raises:
        ValueError: If the run has no such step.
    """
    if diagnosis.run_dir is None:
        return SpikeView(view=None, replay=None, notes=("a log alone does not say which samples made a step",))
    if not (diagnosis.run_dir / ARGUMENTS).is_file():
        note = (
            f"{diagnosis.run_dir.name} has no {ARGUMENTS}: give its samples to explore_step, its target to replay_step"
        )
        return SpikeView(view=None, replay=None, notes=(note,))
    opened = open_short_run(diagnosis.run_dir, device=device)
    replayed, notes = None, []
    try:
        replayed = replay_step(diagnosis.run_dir, step, opened.train, opened.target, device=str(opened.target.device))
    except ValueError as error:
        notes.append(f"the step could not be made again: {error}")
    view = explore_step(diagnosis.run_dir, step, opened.train, opened.tokenizer, replayed=replayed, max_texts=max_texts)
    return SpikeView(view=view, replay=replayed, notes=tuple(notes))


def _diagnosed(
    name: str,
    log: LoadedRun,
    given: dict[str, int | None],
    plans: Sequence[str | Path],
    folder: Path | None,
    saves: Sequence[int] | None,
    false_alarms: float,
    seed: int,
) -> RunDiagnosis:
    maths = epoch_maths(log.table if log.status is None else log.status, **given)
    if plans:
        log = _with_batches(log, [BatchPlan.load(path) for path in plans], maths, given)
    resets = loss_resets(log.table, false_alarms_per_1000_steps=false_alarms)
    checkpoints = [] if folder is None else checkpoint_folders(folder)
    findings = [
        {"checkpoint": path.name, "severity": found.severity, "where": found.where, "what": found.what}
        for _, path in checkpoints
        for found in audit_checkpoint(path)
    ]
    return RunDiagnosis(
        name=name,
        data_name=log.kind if folder is None else _data_name(folder, log.kind),
        log=log,
        maths=maths,
        resets=resets,
        attribution=attribute_spikes(log.table, resets, checkpoints=saves, seed=seed),
        run_dir=folder,
        schedule=None if folder is None else audit_schedules(folder),
        checkpoints=None if folder is None else record_table(findings, ("checkpoint", "severity", "where", "what")),
        num_checkpoints=len(checkpoints),
        notes=log.notes,
    )


def _with_batches(
    log: LoadedRun, plans: Sequence[BatchPlan], maths: EpochMaths, given: dict[str, int | None]
) -> LoadedRun:
    fitting = maths.accumulations if given["accumulation"] is None else (given["accumulation"],)
    if len(fitting) != 1:
        raise ValueError(
            f"accumulation is not given, and the log leaves {', '.join(map(str, fitting)) or 'any'}; legal: the "
            f"batches of an optimizer step, where plans are to say which batches a step had"
        )
    sizes, notes = [len(plan) for plan in plans], log.notes
    across = _crosses_epochs(sizes, fitting[0], given["total_steps"], given["epochs"])
    if across is None and any(size % fitting[0] for size in sizes):
        notes = (*notes, "a window that an epoch's end cuts short is taken for a step of its own")
    table = add_planned_batches(log.table, plans, accumulation=fitting[0], across_epochs=bool(across))
    return replace(log, table=table, notes=notes)


def _crosses_epochs(sizes: list[int], accumulation: int, total_steps: int | None, epochs: int | None) -> bool | None:
    if total_steps is None:
        return None
    # Epochs whose plan is not given are taken to have as many batches as the last one.
    missing = 0 if epochs is None else max(0, epochs - len(sizes))
    return crosses_epochs(sizes + sizes[-1:] * missing, accumulation, total_steps)


def _gaps(table: Any) -> list[str]:
    """Say what a log of ours lacks, or contradicts itself in."""
    found = []
    steps = table["step"]
    missing = int(steps.max() - steps.min() + 1 - len(steps))
    if missing:
        found.append(f"the log lacks {missing:,} of the steps {steps.min():,} to {steps.max():,}")
    if {"epoch", "progress"} <= set(table.columns):
        # A step that ends an epoch has its number and the next one's progress.
        wrong = table.filter((table["progress"] < table["epoch"]) | (table["progress"] > table["epoch"] + 1))
        if len(wrong):
            row = wrong.row(0, named=True)
            found.append(
                f"the epoch counter is wrong at {len(wrong):,} steps: at step {row['step']:,} it says {row['epoch']}, "
                f"and {row['progress']:.3f} epochs are trained"
            )
    return found


def _data_name(folder: Path, otherwise: str) -> str:
    if (folder / ARGUMENTS).is_file():
        # Chats were tokenised into a store of another name; what a target wrote itself has none.
        given = read_json(folder / ARGUMENTS)
        return Path(given["data_path"]).name or f"the built-in corpus, target {Path(given['target']).name}"
    if not (folder / MANIFEST).is_file():
        return otherwise
    name = read_json(folder / MANIFEST)["data"]["name"]
    return Path(name).name or otherwise


def _of_folder(folder: Path) -> tuple[dict[str, int], list[int] | None, list[str]]:
    """Give what the folder knows of its run, the steps of its saves or None, and notes."""
    if not (folder / CONFIG).is_file() or not (folder / MANIFEST).is_file():
        return {}, None, [f"{folder.name} has no {CONFIG} or no {MANIFEST}: only its log is read"]
    config = RunConfig.from_dict(read_json(folder / CONFIG))
    manifest = read_json(folder / MANIFEST)
    sizes = manifest["identity"]["batches_per_epoch"]
    known = {
        "total_steps": int(manifest["total_steps"]),
        "epochs": config.epochs,
        "accumulation": config.accumulation,
        "token_budget": config.batching.token_budget,
    }
    if len(set(sizes)) == 1:
        known["batches_per_epoch"] = int(sizes[0])
    if (folder / SAVES).is_file():
        return known, [int(line["step"]) for line in read_lines(folder / SAVES)], []  # type: ignore[call-overload]
    return known, None, [f"{folder.name} has no {SAVES}: whether resets follow saves is not tested"]
