"""What a run tells of each step: its log, a tracker, the status line and the caller's own function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dflash_lab.drafter import TreeMetrics
from dflash_lab.feed import Batch, BatchPrefetcher
from dflash_lab.target import TargetForwardLoops
from dflash_lab.training.checkpoint import RunState
from dflash_lab.training.loop import StepOutcome
from dflash_lab.training.position import Course, Position
from dflash_lab.training.run_log import RunLog, finite
from dflash_lab.training.status import StatusLine
from dflash_lab.training.step_metrics import StepMetrics
from dflash_lab.training.trackers import Tracker
from dflash_lab.training.validation import tree_fields


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedStep:
    """A step that is done.

    Args:
        outcome: What it did.
        batches: Its batches.
        epoch: Their epoch.
        state: Where the run stands after it.
        trees: Scores of draft trees, or None.
        wait_seconds: Of it, waiting for features.
        train_seconds: Of it, forward, backward and update of the drafter.
    """

    outcome: StepOutcome
    batches: list[Batch]
    epoch: int
    state: RunState
    trees: TreeMetrics | None
    wait_seconds: float
    train_seconds: float


class StepReporter:
    """Tells of steps, to everyone who wants to know.

    Args:
        course: The run's batches and steps.
        state: Where the session begins.
        log: The run's files.
        tracker: Another tracker.
        status_every_seconds: Seconds between two status lines.
        on_step: Called with each step's metrics, or None.
        on_status: Called with status lines.
    """

    def __init__(
        self,
        course: Course,
        state: RunState,
        log: RunLog,
        tracker: Tracker,
        *,
        status_every_seconds: float,
        on_step: Callable[[StepMetrics], None] | None,
        on_status: Callable[[str], None],
    ) -> None:
        self._course, self._log, self._tracker = course, log, tracker
        self._on_step, self._on_status = on_step, on_status
        self._status_every_seconds = status_every_seconds
        self._begin = self._last_step_at = self._last_status_at = time.perf_counter()
        done = course.batches_before(Position(epoch=state.epoch, batch=state.batch))
        self._status = StatusLine(total_batches=course.total_batches, done_at_start=done)
        self._feed: tuple[BatchPrefetcher, TargetForwardLoops] | None = None
        # What earlier feeds of this session have been through with, and the seconds that stand in earlier steps.
        self._earlier_produced = 0
        self._read_seconds = self._target_seconds = 0.0

    def follow(self, prefetcher: BatchPrefetcher, loops: TargetForwardLoops) -> None:
        """Look at another feed from now on.

        Args:
            prefetcher: Reads.
            loops: Run the targets.
        """
        if self._feed is not None:
            self._earlier_produced += self._produced()
        self._feed = prefetcher, loops
        self._read_seconds = self._target_seconds = 0.0

    def add(self, step: FinishedStep) -> StepMetrics:
        """Tell of a step.

        Args:
            step: The step, of the feed that is followed.
        """
        metrics = self._metrics(step)
        self._log.add_step(metrics, step.batches)
        self._tracker.add_step(metrics)
        self._status.add(metrics, produced=self._earlier_produced + self._produced())
        return metrics

    def show(self, metrics: StepMetrics) -> None:
        """Hand a step over to the caller's functions, and the status line where it is time for one.

        Args:
            metrics: The step that was added last.
        """
        if self._on_step is not None:
            self._on_step(metrics)
        now = time.perf_counter()
        if now - self._last_status_at >= self._status_every_seconds or metrics.step >= self._course.total_steps:
            self._last_status_at = now
            self._on_status(self._status.text(metrics))

    def _produced(self) -> int:
        assert self._feed is not None
        return sum(loop.queue.num_put for loop in self._feed[1].loops)

    def _metrics(self, step: FinishedStep) -> StepMetrics:
        assert self._feed is not None
        prefetcher, loops = self._feed
        now = time.perf_counter()
        read_seconds = sum(prefetcher.worker_read_seconds)
        target_seconds = sum(loop.busy_seconds for loop in loops.loops)
        outcome, sums, scores, state = step.outcome, step.outcome.sums, step.outcome.sums.scores, step.state
        lengths = torch.cat([batch.lengths.cpu() for batch in step.batches])
        metrics = StepMetrics(
            step=state.step,
            epoch=step.epoch,
            position=step.batches[-1].batch_id + 1,
            progress=self._course.progress(Position(epoch=state.epoch, batch=state.batch)),
            loss_sum=finite(sums.loss_sum),
            loss_weight=finite(sums.loss_weight),
            correct_by_position=list(scores.correct_by_position),
            total_by_position=list(scores.total_by_position),
            accepted_sum=scores.accepted_sum,
            num_blocks=scores.num_blocks,
            full_accepted_sum=scores.full_accepted_sum,
            num_full_blocks=scores.num_full_blocks,
            grad_norm=finite(outcome.grad_norm),
            learning_rate=outcome.learning_rate,
            noise=outcome.noise,
            updated=outcome.updated,
            skipped=outcome.skipped,
            batch_ids=[batch.batch_id for batch in step.batches],
            bucket_ids=[batch.bucket_id for batch in step.batches],
            num_samples=[batch.num_samples for batch in step.batches],
            real_tokens=[batch.real_tokens for batch in step.batches],
            padded_tokens=[batch.padded_tokens for batch in step.batches],
            length_min=int(lengths.min()),
            length_max=int(lengths.max()),
            step_seconds=now - self._last_step_at,
            read_seconds=read_seconds - self._read_seconds,
            target_seconds=target_seconds - self._target_seconds,
            wait_seconds=step.wait_seconds,
            train_seconds=step.train_seconds,
            q_pre=prefetcher.depths(),
            q_hs=loops.depths(),
            elapsed_seconds=now - self._begin,
            session=state.session,
            **({} if step.trees is None else tree_fields(step.trees)),
        )
        self._last_step_at, self._read_seconds, self._target_seconds = now, read_seconds, target_seconds
        return metrics
