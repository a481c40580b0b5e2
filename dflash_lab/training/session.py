"""One session of a run: its parts put together, and driven step by step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_lab.batching import BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import Drafter, TreeMetrics
from dflash_lab.feed import Batch, BatchPrefetcher
from dflash_lab.target import TargetFeatures, TargetForwardLoops, TargetModel
from dflash_lab.training.assembly import (
    Devices,
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
)
from dflash_lab.training.config import RunConfig
from dflash_lab.training.distributed import any_rank, num_ranks, this_rank
from dflash_lab.training.files import write_json
from dflash_lab.training.loop import DrafterTrainLoop, StepOutcome
from dflash_lab.training.position import Course, Position
from dflash_lab.training.resume import Resume
from dflash_lab.training.run_log import CONFIG, RunLog, finite, write_manifest
from dflash_lab.training.schedules import ScheduleConfig
from dflash_lab.training.signals import StopRequest
from dflash_lab.training.status import StatusLine
from dflash_lab.training.step_metrics import StepMetrics
from dflash_lab.training.trackers import open_tracker
from dflash_lab.training.validation import HeldOutScorer, tree_fields


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """What `train_drafter` gives back.

    Args:
        run_dir: The run's folder.
        drafter: The drafter as it is after the last step, in eval mode.
        state: Where the run stands.
        total_steps: Optimizer steps of the whole run.
        checkpoint: The newest checkpoint.
        stopped_by: "" if the run came to its end, else the signal that stopped it.
        session_seconds: Time of this session.
        held_out: The last scores of held-out samples, plain data; None where nothing is held out.
    """

    run_dir: Path
    drafter: Drafter
    state: RunState
    total_steps: int
    checkpoint: Path
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
        if dataset.max_id >= target.vocab_size:
            raise ValueError(
                f"the samples have the id {dataset.max_id}, and the target {target.name} knows ids in "
                f"[0, {target.vocab_size}): they were made with another tokenizer"
            )
        self.split = split_samples(dataset, validation, config)
        self.plans = [self._plan(epoch) for epoch in range(config.epochs)]
        self.course = Course(tuple(map(len, self.plans)), config.accumulation, config.max_steps)
        self.schedule = ScheduleConfig.of(config.optimizer, config.noise, self.course.total_steps)
        self.identity = {
            "config": config.identity,
            "data": dataset.fingerprint,
            "validation": "" if validation is None else validation.fingerprint,
            "plans": [plan.fingerprint for plan in self.plans],
            "batches_per_epoch": list(self.course.batches_per_epoch),
            "target": target.fingerprint,
            "ranks": num_ranks(),
        }

    def _plan(self, epoch: int) -> BatchPlan:
        plan = plan_samples(self.dataset, self.split.train_ids, self.config.batching, epoch=epoch)
        return plan if num_ranks() == 1 else plan.shard(this_rank(), num_ranks())

    def go(self, resume: Resume | None) -> RunResult:
        """Train from where the run stands to its end, or until a signal comes."""
        drafter = Drafter(self.shape, seed=self.config.seed).to(self.devices.drafter)
        optimizer = make_optimizer(drafter, self.config)
        self.state = RunState()
        if resume is not None:
            load_weights(resume.checkpoint, drafter, optimizer)
            self.state = dataclasses.replace(resume.state, session=resume.state.session + 1)
            for notice in resume.notices:
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
        self.begin = self.last_step_at = self.last_save_at = self.last_status_at = time.perf_counter()
        self.done_at_start = self.course.batches_before(self._position)
        self.status = StatusLine(total_batches=self.course.total_batches, done_at_start=self.done_at_start)
        self.is_writing = this_rank() == 0
        self.checkpoint = None if resume is None else resume.checkpoint
        if self.is_writing:
            self._write_settings(resume)
        log_dir = self.run_dir if self.is_writing else self.run_dir / f"rank-{this_rank()}"
        with (
            StopRequest() as stop,
            RunLog(log_dir, after_step=self.state.step) as self.log,
            open_tracker(
                self.config.log.tracker if self.is_writing else None, self.run_dir, self.config
            ) as self.tracker,
        ):
            self._train(stop)
            if self.checkpoint is None or self.saved_step != self.state.step:
                self._save()
        drafter.eval()
        if stop and not self._is_done:
            self.on_status(
                f"stopped by {stop.name} after step {self.state.step} of {self.course.total_steps}; saved in "
                f"{self.checkpoint}. To go on: train_drafter with the same settings and run_dir={str(self.run_dir)!r}"
            )
        return RunResult(
            run_dir=self.run_dir,
            drafter=drafter,
            state=self.state,
            total_steps=self.course.total_steps,
            checkpoint=self.checkpoint,
            stopped_by="" if self._is_done else stop.name,
            session_seconds=time.perf_counter() - self.begin,
            held_out=self.held_out,
        )

    @property
    def _position(self) -> Position:
        return Position(epoch=self.state.epoch, batch=self.state.batch)

    @property
    def _is_done(self) -> bool:
        return self.state.step >= self.course.total_steps

    def _write_settings(self, resume: Resume | None) -> None:
        write_json(self.run_dir / CONFIG, self.config.to_dict())
        if resume is None:
            write_manifest(
                self.run_dir,
                device=str(self.devices.drafter),
                target={
                    "name": self.target.name,
                    "fingerprint": self.target.fingerprint,
                    "dtype": str(self.target.dtype),
                    "devices": [str(device) for device in self.devices.targets],
                },
                data={
                    "name": self.dataset.report.name,
                    "fingerprint": self.dataset.fingerprint,
                    "num_samples": len(self.dataset),
                    "num_train": len(self.split.train_ids),
                    "num_held_out": len(self.split.held_out_ids),
                },
                plans=[plan.fingerprint for plan in self.plans],
                total_steps=self.course.total_steps,
                batches_per_epoch=list(self.course.batches_per_epoch),
            )

    def _train(self, stop: StopRequest) -> None:
        self.saved_step = self.state.step if self.checkpoint is not None else -1
        while not self._is_done and not self._must_stop(stop):
            with self._open_feed() as (prefetcher, loops):
                for window in self._windows(loops):
                    self._step(window, prefetcher, loops)
                    if self._is_done or self._must_stop(stop):
                        break

    def _must_stop(self, stop: StopRequest) -> bool:
        return any_rank(bool(stop), self.devices.drafter)

    @contextmanager
    def _open_feed(self) -> Iterator[tuple[BatchPrefetcher, TargetForwardLoops]]:
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
            self.target_seconds_before = 0.0
            yield prefetcher, loops

    def _windows(self, loops: TargetForwardLoops) -> Iterator[list[TargetFeatures]]:
        epoch = self.state.epoch
        while self.state.epoch == epoch:
            begin = time.perf_counter()
            window = [next(loops) for _ in range(self.course.window(self._position))]
            self.wait_seconds = time.perf_counter() - begin
            yield window

    def _step(self, window: list[TargetFeatures], prefetcher: BatchPrefetcher, loops: TargetForwardLoops) -> None:
        outcome = self.loop.train_window(window)
        epoch = self.state.epoch
        self._advance(outcome, len(window))
        trees = self._trees(window)
        metrics = self._metrics(outcome, [features.batch for features in window], epoch, trees, prefetcher, loops)
        self.log.add_step(metrics, [features.batch for features in window])
        self.tracker.add_step(metrics)
        if self.on_step is not None:
            self.on_step(metrics)
        produced = sum(loop.queue.num_put for loop in loops.loops)
        self.status.add(metrics, produced=produced)
        now = time.perf_counter()
        if now - self.last_status_at >= self.config.log.status_every_seconds or self._is_done:
            self.last_status_at = now
            self.on_status(self.status.text(metrics))
        if self.state.skipped_in_a_row >= self.config.optimizer.max_skipped_in_a_row:
            raise TooManySkippedSteps(
                f"{outcome.skipped} in {self.state.skipped_in_a_row} steps in a row, the last one step "
                f"{self.state.step} (batches {metrics.batch_ids} of epoch {epoch}); the newest checkpoint is "
                f"{self.checkpoint or 'none'}"
            )
        self._score_and_save()

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

    def _trees(self, window: list[TargetFeatures]) -> TreeMetrics | None:
        every = self.config.log.tree_every_steps
        if every is None or (self.state.step % every and self.state.step != 1):
            return None
        return self.scorer.score_trees(window, max_blocks=self.config.log.tree_blocks)

    def _metrics(
        self,
        outcome: StepOutcome,
        batches: list[Batch],
        epoch: int,
        trees: TreeMetrics | None,
        prefetcher: BatchPrefetcher,
        loops: TargetForwardLoops,
    ) -> StepMetrics:
        now = time.perf_counter()
        target_seconds = sum(loop.busy_seconds for loop in loops.loops)
        sums = outcome.sums
        lengths = torch.cat([batch.lengths for batch in batches])
        metrics = StepMetrics(
            step=self.state.step,
            epoch=epoch,
            position=batches[-1].batch_id + 1,
            progress=self.course.progress(self._position),
            loss_sum=finite(sums.loss_sum),
            loss_weight=sums.loss_weight,
            correct_by_position=list(sums.scores.correct_by_position),
            total_by_position=list(sums.scores.total_by_position),
            accepted_sum=sums.scores.accepted_sum,
            num_blocks=sums.scores.num_blocks,
            full_accepted_sum=sums.scores.full_accepted_sum,
            num_full_blocks=sums.scores.num_full_blocks,
            grad_norm=finite(outcome.grad_norm),
            learning_rate=outcome.learning_rate,
            noise=outcome.noise,
            updated=outcome.updated,
            skipped=outcome.skipped,
            batch_ids=[batch.batch_id for batch in batches],
            bucket_ids=[batch.bucket_id for batch in batches],
            num_samples=[batch.num_samples for batch in batches],
            real_tokens=[batch.real_tokens for batch in batches],
            padded_tokens=[batch.padded_tokens for batch in batches],
            length_min=int(lengths.min()),
            length_max=int(lengths.max()),
            step_seconds=now - self.last_step_at,
            wait_seconds=self.wait_seconds,
            target_seconds=target_seconds - self.target_seconds_before,
            q_pre=prefetcher.depths(),
            q_hs=loops.depths(),
            elapsed_seconds=now - self.begin,
            session=self.state.session,
            **({} if trees is None else tree_fields(trees)),
        )
        self.last_step_at, self.target_seconds_before = now, target_seconds
        return metrics

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
        if tau is not None and (best is None or tau > best):
            self.state = dataclasses.replace(self.state, best_tau=tau, best_step=self.state.step)
            # Otherwise the best weights would be gone with the next step.
            self._save()

    def _save(self) -> None:
        self.last_save_at = time.perf_counter()
        if self.saved_step == self.state.step:
            return
        if self.is_writing:
            self.log.sync()
            try:
                self.checkpoint = save_checkpoint(
                    self.run_dir, self.loop.drafter, self.loop.optimizer, self.state, self.identity
                )
            except WeightsNotFinite as error:
                self.on_status(f"not saved: {error}")
                raise
            prune_checkpoints(self.run_dir, keep=self.config.checkpoints.keep, best_step=self.state.best_step)
        self.saved_step = self.state.step
