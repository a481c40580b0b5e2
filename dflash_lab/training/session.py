"""One session of a run: its parts put together, and driven step by step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_lab.batching import BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import Drafter
from dflash_lab.feed import BatchPrefetcher
from dflash_lab.target import TargetForwardLoops, TargetModel
from dflash_lab.training.assembly import (
    Devices,
    check_has_blocks,
    check_ids,
    check_positions,
    drafter_config,
    make_optimizer,
    plan_samples,
    split_samples,
)
from dflash_lab.training.checkpoint import (
    RunState,
    WeightsNotFinite,
    load_weights,
    prune_checkpoints,
    save_checkpoint,
    set_newer_aside,
)
from dflash_lab.training.config import RunConfig
from dflash_lab.training.distributed import any_rank, num_ranks, this_rank
from dflash_lab.training.files import in_use, write_json
from dflash_lab.training.loop import DrafterTrainLoop, StepOutcome
from dflash_lab.training.manifest import write_manifest
from dflash_lab.training.position import Course, Position
from dflash_lab.training.reporting import FinishedStep, StepReporter
from dflash_lab.training.resume import Resume
from dflash_lab.training.run_log import CONFIG, RunLog
from dflash_lab.training.schedules import ScheduleConfig
from dflash_lab.training.signals import StopRequest
from dflash_lab.training.step_metrics import StepMetrics
from dflash_lab.training.trackers import open_tracker
from dflash_lab.training.validation import HeldOutScorer
from dflash_lab.training.window import FeatureWindow


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """What `train_drafter` gives back.

    Args:
        run_dir: The run's folder.
        drafter: The drafter as it is after the last step, in eval mode.
        state: Where the run stands.
        total_steps: Optimizer steps of the whole run.
        checkpoint: The newest checkpoint; on ranks other than 0, the one that they began with, or None.
        stopped_by: "" if the run came to its end, else the signal that stopped it.
        session_seconds: Time of this session.
        held_out: The last scores of held-out samples, plain data; None where this session made none.
    """

    run_dir: Path
    drafter: Drafter
    state: RunState
    total_steps: int
    checkpoint: Path | None
    stopped_by: str
    session_seconds: float
    held_out: dict[str, object] | None

    @property
    def complete(self) -> bool:
        """Whether every step is done."""
        return self.state.step >= self.total_steps


class TooManySkippedSteps(RuntimeError):
    """Loss or gradient was not finite so often in a row that going on makes no sense."""


class Session:
    """The parts of one session of a run, put together and driven.

    Args:
        config: All settings.
        dataset: The samples.
        validation: Held-out samples, or None.
        target: The target.
        run_dir: The run's folder.
        devices: Where the session computes.
        on_step: Called with each step's metrics.
        on_status: Called with status lines and notices.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: PreloadedDataset,
        validation: PreloadedDataset | None,
        target: TargetModel,
        run_dir: Path,
        devices: Devices,
        on_step: Callable[[StepMetrics], None] | None,
        on_status: Callable[[str], None],
    ) -> None:
        self.config, self.dataset, self.target, self.run_dir = config, dataset, target, run_dir
        self.devices, self.on_step, self.on_status = devices, on_step, on_status
        self.shape = drafter_config(config.drafter, target)
        check_ids(dataset, target)
        if validation is not None:
            check_ids(validation, target)
        self.split = split_samples(dataset, validation, config)
        self.notices = check_has_blocks(dataset, self.split.train_ids)
        whole = [
            plan_samples(dataset, self.split.train_ids, config.batching, epoch=epoch) for epoch in range(config.epochs)
        ]
        self.plans = [_own_part(plan) for plan in whole]
        check_positions(self.plans, target)
        self.course = Course(tuple(map(len, self.plans)), config.accumulation, config.max_steps)
        self.schedule = ScheduleConfig.of(config.optimizer, config.noise, self.course.total_steps)
        self.identity = {
            "config": config.identity,
            "data": dataset.fingerprint,
            "validation": "" if validation is None else validation.fingerprint,
            # Of the whole plans: all ranks must agree on what may be resumed.
            "plans": [plan.fingerprint for plan in whole],
            "batches_per_epoch": list(self.course.batches_per_epoch),
            "target": target.fingerprint,
            "target_layer_ids": list(target.target_layer_ids),
            "target_settings": dict(target.settings),
            "ranks": num_ranks(),
        }

    def go(self, resume: Resume | None) -> RunResult:
        """Run until the end, a signal or an error.

        Args:
            resume: Where to go on; None to begin.
        """
        with torch.enable_grad():
            return self._go(resume)

    def _go(self, resume: Resume | None) -> RunResult:
        begin = time.perf_counter()
        self._assemble(resume)
        rank = this_rank()
        self.is_writing = rank == 0
        log_dir = self.run_dir if self.is_writing else self.run_dir / f"rank-{rank}"
        tracker = self.config.log.tracker if self.is_writing else None
        with (
            StopRequest() as stop,
            # First: without its package nothing is written.
            open_tracker(tracker, self.run_dir, self.config, after_step=self.state.step) as self.tracker,
            in_use(self.run_dir) if self.is_writing else nullcontext(),
            self._open_log(log_dir, rank) as self.log,
        ):
            self.reporter = StepReporter(
                self.course,
                self.state,
                self.log,
                self.tracker,
                status_every_seconds=self.config.log.status_every_seconds,
                on_step=self.on_step,
                on_status=self.on_status,
            )
            with self._saved_if_it_breaks():
                self._train(stop)
            self._save()
        self.loop.drafter.eval()
        stopped_by = "" if self._is_done else stop.name or "a signal to another rank"
        if stopped_by:
            self.on_status(
                f"stopped by {stopped_by} after step {self.state.step} of {self.course.total_steps}; saved in "
                f"{self.checkpoint}. To go on: train_drafter with the same settings and run_dir={str(self.run_dir)!r}"
            )
        return RunResult(
            run_dir=self.run_dir,
            drafter=self.loop.drafter,
            state=self.state,
            total_steps=self.course.total_steps,
            checkpoint=self.checkpoint,
            stopped_by=stopped_by,
            session_seconds=time.perf_counter() - begin,
            held_out=self.held_out,
        )

    @property
    def _position(self) -> Position:
        return Position(epoch=self.state.epoch, batch=self.state.batch)

    @property
    def _is_done(self) -> bool:
        return self.state.step >= self.course.total_steps

    def _assemble(self, resume: Resume | None) -> None:
        drafter = Drafter(self.shape, seed=self.config.seed).to(self.devices.drafter)
        optimizer = make_optimizer(drafter, self.config)
        self.state = RunState()
        if resume is not None:
            load_weights(resume.checkpoint, drafter, optimizer)
            self.state = dataclasses.replace(resume.state, session=resume.state.session + 1)
            for notice in resume.notices:
                self.on_status(notice)
        for notice in self.notices:
            self.on_status(notice)
        self.targets = [self.target.to(device) for device in self.devices.targets]
        self.loop = DrafterTrainLoop(
            drafter,
            optimizer,
            self.target.to(self.devices.drafter),
            self.config,
            self.schedule,
            step=self.state.step,
        )
        self.scorer = HeldOutScorer(self.split, self.targets[0], drafter, self.loop.target, self.config)
        self.held_out: dict[str, object] | None = None
        self.checkpoint = None if resume is None else resume.checkpoint
        is_own = self.checkpoint is not None and self.checkpoint.resolve().is_relative_to(self.run_dir.resolve())
        self.saved_step = self.state.step if is_own else -1
        # The last step that is in weights, state and log alike.
        self.whole_step = self.state.step
        self.last_save_at = time.perf_counter()

    def _open_log(self, log_dir: Path, rank: int) -> RunLog:
        if self.is_writing:
            self._write_settings()
            set_newer_aside(self.run_dir, step=self.state.step)
        return RunLog(log_dir, after_step=self.state.step, rank=rank)

    def _write_settings(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        write_json(self.run_dir / CONFIG, self.config.to_dict())
        write_manifest(
            self.run_dir,
            identity=self.identity,
            target={
                "name": self.target.name,
                "dtype": str(self.target.dtype),
                "devices": [str(device) for device in self.devices.targets],
            },
            data={
                "name": self.dataset.report.name,
                "num_samples": len(self.dataset),
                "num_train": len(self.split.train_ids),
                "num_held_out": len(self.split.held_out_ids),
            },
            total_steps=self.course.total_steps,
            device=self.devices.drafter,
            from_step=self.state.step,
        )

    @contextmanager
    def _saved_if_it_breaks(self) -> Iterator[None]:
        """Save the last whole step where an error, or a second Ctrl-C, ends the session."""
        try:
            yield
        except (TooManySkippedSteps, WeightsNotFinite):
            raise
        except BaseException as error:
            if self.loop.is_at_rest and self.loop.step == self.whole_step == self.state.step:
                try:
                    self._save()
                    error.add_note(f"the run is saved at step {self.state.step}, in {self.checkpoint}")
                except (OSError, WeightsNotFinite) as second:
                    error.add_note(f"step {self.state.step} could not be saved: {second}")
            raise

    def _train(self, stop: StopRequest) -> None:
        while not self._is_done and not self._must_stop(stop):
            epoch = self.state.epoch
            with self._open_feed() as loops:
                while self.state.epoch == epoch and not self._is_done and not self._must_stop(stop):
                    self._step(loops)

    def _must_stop(self, stop: StopRequest) -> bool:
        return any_rank(bool(stop), self.devices.drafter)

    @contextmanager
    def _open_feed(self) -> Iterator[TargetForwardLoops]:
        """Start reading and the targets at the run's position, for the rest of its epoch."""
        pipeline = self.config.pipeline
        prefetcher = BatchPrefetcher(
            self.dataset,
            self.plans[self.state.epoch],
            num_targets=len(self.targets),
            num_workers=pipeline.num_workers,
            depth=pipeline.prefetch_depth,
            start=self.state.batch,
        )
        with (
            prefetcher,
            TargetForwardLoops(
                self.targets,
                prefetcher,
                depth=pipeline.feature_depth,
                with_logits=self.config.loss.kind == "kl",
            ) as loops,
        ):
            self.reporter.follow(prefetcher, loops)
            yield loops

    def _step(self, loops: TargetForwardLoops) -> None:
        begin = time.perf_counter()
        epoch = self.state.epoch
        every = self.config.log.tree_every_steps
        with_trees = every is not None and ((self.state.step + 1) % every == 0 or self.state.step == 0)
        window = FeatureWindow(loops, self.course.window(self._position), keep_first=with_trees)
        outcome = self.loop.train_window(window)
        train_seconds = time.perf_counter() - begin - window.wait_seconds
        self._advance(outcome, len(window.batches))
        trees = None
        # Trees of weights or features that are not finite say nothing.
        if window.kept and not outcome.skipped:
            trees = self.scorer.score_trees(window.kept, max_blocks=self.config.log.tree_blocks)
        metrics = self.reporter.add(
            FinishedStep(
                outcome=outcome,
                batches=window.batches,
                epoch=epoch,
                state=self.state,
                trees=trees,
                wait_seconds=window.wait_seconds,
                train_seconds=train_seconds,
            )
        )
        self.whole_step = self.state.step
        if self.state.skipped_in_a_row >= self.config.optimizer.max_skipped_in_a_row:
            raise TooManySkippedSteps(
                f"{outcome.skipped} in {self.state.skipped_in_a_row} steps in a row, the last one step "
                f"{self.state.step} (batches {metrics.batch_ids} of epoch {epoch}); the newest checkpoint is "
                f"{self.checkpoint or 'none'}"
            )
        self._score_and_save()
        self.reporter.show(metrics)

    def _advance(self, outcome: StepOutcome, num_batches: int) -> None:
        trained = self.course.batches_before(self._position) + num_batches
        position = self.course.position(trained)
        is_skipped = outcome.skipped.startswith("non-finite")
        self.state = dataclasses.replace(
            self.state,
            step=self.loop.step,
            epoch=position.epoch,
            batch=position.batch,
            skipped_steps=self.state.skipped_steps + is_skipped,
            empty_steps=self.state.empty_steps + (outcome.skipped == "no anchors"),
            skipped_in_a_row=self.state.skipped_in_a_row + 1 if is_skipped else 0,
        )

    def _score_and_save(self) -> None:
        every = self.config.validation.every_steps
        if self.split.held_out is not None and (self._is_done or (every is not None and self.state.step % every == 0)):
            self._score()
        settings = self.config.checkpoints
        by_steps = settings.every_steps is not None and self.state.step % settings.every_steps == 0
        minutes = (time.perf_counter() - self.last_save_at) / 60
        by_minutes = settings.every_minutes is not None and minutes >= settings.every_minutes
        # Ranks' clocks differ; if one thinks that it is time, all save.
        if by_steps or (settings.every_minutes is not None and any_rank(by_minutes, self.devices.drafter)):
            self._save()

    def _score(self) -> None:
        self.held_out = {"step": self.state.step, **self.scorer.score_held_out()}
        self.log.add_validation(self.held_out)
        self.tracker.add_scores(self.held_out)
        tau = self.held_out["tau"]
        best = self.state.best_tau
        if tau is not None and self.held_out["loss"] is not None and (best is None or tau > best):
            self.state = dataclasses.replace(self.state, best_tau=tau, best_step=self.state.step)
            # Otherwise the best weights would be gone with the next step.
            self._save()

    def _save(self) -> None:
        self.last_save_at = time.perf_counter()
        if self.saved_step == self.state.step:
            return
        if self.is_writing:
            self.log.sync()
            self.checkpoint = save_checkpoint(
                self.run_dir, self.loop.drafter, self.loop.optimizer, self.state, self.identity
            )
            self.log.add_save(self.state.step)
            prune_checkpoints(self.run_dir, keep=self.config.checkpoints.keep, best_step=self.state.best_step)
        self.saved_step = self.state.step


def _own_part(plan: BatchPlan) -> BatchPlan:
    return plan if num_ranks() == 1 else plan.shard(this_rank(), num_ranks())
