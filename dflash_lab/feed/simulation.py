"""A pipeline of reading, targets and one drafter on a virtual clock: how it runs, and how many workers it needs.

`simulate` needs no threads, no tokens and no waiting: a thousand batches take some milliseconds, so that a question
such as how many workers are enough is answered by trying. `rehearse` runs the real feed at the same rates.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_lab.feed.pipeline import NUM_SAMPLES, PipelineConfig, Rehearsal
from dflash_lab.feed.service import EmptiestService, RoundRobinService


def simulate(tokens: np.ndarray, config: PipelineConfig, *, num_batches: int, whole_epoch: bool = False) -> Rehearsal:
    """Run a pipeline on a virtual clock, event by event.

    Workers read side by side. A target that is through waits for room in front of the drafter before it takes the next
    batch; who waited longest goes first.

    Args:
        tokens: Real tokens of each batch (num_planned,), all > 0; taken again from the start when they are through.
        config: Rates and sizes.
        num_batches: Batches to train, >= 1.
        whole_epoch: Whether there are no more batches than those, so that a target ends when it has had its share;
            otherwise they never run out.

    Returns:
        What was seen; a pure function of the arguments.

    Raises:
        ValueError: If there is no batch to read or to train.
    """
    if num_batches < 1 or not len(tokens):
        raise ValueError(f"num_batches is {num_batches} of {len(tokens)} planned; legal: at least one of each")
    return _Clockwork(np.asarray(tokens), config, num_batches, whole_epoch).run()


def smallest_worker_count(
    tokens: np.ndarray, config: PipelineConfig, *, num_batches: int = 600, share: float = 0.99, most: int = 4_096
) -> int | None:
    """Find the fewest workers with which training goes as fast as if reading took no time.

    Args:
        tokens: Real tokens of each batch (num_planned,), all > 0.
        config: Rates and sizes; its `num_workers` is not used.
        num_batches: Batches to try it with.
        share: Rate to reach, over that without any reading time; in (0, 1].
        most: Most workers to try.

    Returns:
        The number, or None if that many do not do.
    """
    free = simulate(tokens, replace(config, read_tokens_per_second=None), num_batches=num_batches).batches_per_second
    # Fewer cannot do it, however well the queues are kept.
    least = math.ceil(share * free * config.read_seconds(np.asarray(tokens)).mean() - 1e-9)
    # Many workers need many batches, until they no longer read in step.
    num_batches = max(num_batches, 4 * least)
    if config.service == "emptiest":
        # Room counts from the moment at which a batch is begun: more find none.
        most = min(most, config.num_targets * config.depth)
    for num_workers in range(max(1, least), most + 1):
        tried = simulate(tokens, replace(config, num_workers=num_workers), num_batches=num_batches)
        if tried.batches_per_second >= share * free:
            return num_workers
    return None


@dataclass(frozen=True, kw_only=True)
class WorkersNeeded:
    """The smallest numbers of workers over a grid.

    Args:
        read_tokens_per_second: float64 (num_speeds,), real tokens that one worker reads.
        batches_per_second: float64 (num_rates,), rates of the targets.
        num_workers: int64 (num_rates, num_speeds); -1 where not even the most that were tried keep up.
    """

    read_tokens_per_second: np.ndarray
    batches_per_second: np.ndarray
    num_workers: np.ndarray


def workers_needed(
    tokens: np.ndarray,
    config: PipelineConfig,
    *,
    read_tokens_per_second: Sequence[float],
    batches_per_second: Sequence[float],
    num_batches: int = 600,
    most: int = 4_096,
) -> WorkersNeeded:
    """Find the smallest number of workers that keeps up, over reading speeds and rates.

    Args:
        tokens: Real tokens of each batch (num_planned,), all > 0.
        config: All else.
        read_tokens_per_second: Real tokens that one worker reads.
        batches_per_second: Rates of the targets.
        num_batches: Batches to try each with.
        most: Most workers to try.

    Returns:
        The grid.
    """
    found = [
        [
            smallest_worker_count(
                tokens,
                replace(config, batches_per_second=rate, read_tokens_per_second=speed),
                num_batches=num_batches,
                most=most,
            )
            for speed in read_tokens_per_second
        ]
        for rate in batches_per_second
    ]
    return WorkersNeeded(
        read_tokens_per_second=np.asarray(read_tokens_per_second, np.float64),
        batches_per_second=np.asarray(batches_per_second, np.float64),
        num_workers=np.array([[-1 if number is None else number for number in row] for row in found], np.int64),
    )


class _Clockwork:
    """The state of one simulation."""

    def __init__(self, tokens: np.ndarray, config: PipelineConfig, num_batches: int, whole_epoch: bool) -> None:
        self.config, self.num_batches = config, num_batches
        self.planned = num_batches if whole_epoch else config.most_numbers(num_batches)
        self.read = config.read_seconds(tokens).tolist()
        self.cost = config.target_seconds(self.planned).tolist()
        self.slowness = (1 / config.target_speeds).tolist()
        self.now = 0.0
        self.events: list[tuple[float, int, str, int, int]] = []
        self.num_events = 0
        service = EmptiestService if config.service == "emptiest" else RoundRobinService
        self.service = service(config.num_targets, config.num_workers, config.depth, self.planned)
        self.features: deque[int] = deque()
        self.idle_targets, self.is_drafter_idle = set(range(config.num_targets)), True
        self.blocked_targets: deque[tuple[int, int]] = deque()
        shape = {"worker": config.num_workers, "target": config.num_targets, "drafter": 1}
        self.busy = {stage: np.zeros(size) for stage, size in shape.items()}
        self.waited = {
            name: np.zeros(shape[name.split("_")[0]])
            for name in ("worker_blocked", "target_starved", "target_blocked", "drafter_starved")
        }
        self.since: dict[tuple[str, int], float] = {}
        self.by_target = np.zeros(config.num_targets, np.int64)
        self.trained: list[int] = []
        self.trained_at: list[float] = []
        self.depths: list[tuple[float, list[int], int]] = []

    def run(self) -> Rehearsal:
        for target in self.idle_targets:
            self._wait("target_starved", target)
        self._wait("drafter_starved", 0)
        for worker in range(self.config.num_workers):
            self._wait("worker_blocked", worker)
            self._claim(worker)
        finish = {"worker": self._read_done, "target": self._target_done, "drafter": self._drafter_done}
        while len(self.trained) < self.num_batches:
            self.now, _, stage, member, batch = heapq.heappop(self.events)
            finish[stage](member, batch)
            self.depths.append((self.now, self.service.depths(), len(self.features)))
        self._stop()
        return self._seen()

    def _begin(self, stage: str, member: int, batch: int, seconds: float) -> None:
        self.busy[stage][member] += seconds
        self.num_events += 1
        heapq.heappush(self.events, (self.now + seconds, self.num_events, stage, member, batch))

    def _wait(self, what: str, member: int) -> None:
        self.since[what, member] = self.now

    def _go_on(self, what: str, member: int) -> None:
        self.waited[what][member] += self.now - self.since.pop((what, member))

    def _claim(self, worker: int) -> None:
        """Let a worker begin a batch, or leave it waiting."""
        batch = self.service.claim(worker)
        if batch is not None:
            self._go_on("worker_blocked", worker)
            self._begin("worker", worker, batch, self.read[batch % len(self.read)])

    def _read_done(self, worker: int, batch: int) -> None:
        self._wait("worker_blocked", worker)
        target = self.service.deliver(worker, batch)
        if target in self.idle_targets:
            self._take(target)
        if target is not None:
            self._claim(worker)

    def _take(self, target: int) -> None:
        """Begin the next batch of a target, and let whoever waits for its room have it."""
        taken = self.service.take(target)
        if taken is None:
            if target not in self.idle_targets and not self.service.is_over(target):
                self._wait("target_starved", target)
            self.idle_targets.add(target)
            return
        if target in self.idle_targets:
            self._go_on("target_starved", target)
            self.idle_targets.remove(target)
        self._begin("target", target, taken, self.cost[taken] * self.slowness[target])
        worker = self.service.next_waiting(target)
        if worker is not None:
            self._claim(worker)

    def _target_done(self, target: int, batch: int) -> None:
        self.by_target[target] += 1
        if len(self.features) < self.config.feature_depth or self.is_drafter_idle:
            self._hand_over(batch)
            self._take(target)
        else:
            self.blocked_targets.append((target, batch))
            self._wait("target_blocked", target)

    def _hand_over(self, batch: int) -> None:
        self.features.append(batch)
        if self.is_drafter_idle:
            self._go_on("drafter_starved", 0)
            self.is_drafter_idle = False
            self._train()

    def _train(self) -> None:
        self._begin("drafter", 0, self.features.popleft(), self.config.drafter_seconds)
        if self.blocked_targets:
            target, batch = self.blocked_targets.popleft()
            self._go_on("target_blocked", target)
            self.features.append(batch)
            self._take(target)

    def _drafter_done(self, _: int, batch: int) -> None:
        self.trained.append(batch)
        self.trained_at.append(self.now)
        if self.features:
            self._train()
        else:
            self.is_drafter_idle = True
            self._wait("drafter_starved", 0)

    def _stop(self) -> None:
        """Count waits up to the end, and take back what would have been computed after it."""
        for what, member in list(self.since):
            self._go_on(what, member)
        for end, _, stage, member, _ in self.events:
            self.busy[stage][member] -= end - self.now

    def _seen(self) -> Rehearsal:
        seconds = np.linspace(0, self.now, NUM_SAMPLES)
        at = np.searchsorted([when for when, _, _ in self.depths], seconds, side="right") - 1
        q_pre = [self.depths[index][1] if index >= 0 else [0] * self.config.num_targets for index in at]
        return Rehearsal(
            config=self.config,
            seconds=seconds,
            q_pre=np.array(q_pre, np.int64),
            q_hs=np.array([self.depths[index][2] if index >= 0 else 0 for index in at], np.int64),
            worker_busy_seconds=self.busy["worker"],
            worker_blocked_seconds=self.waited["worker_blocked"],
            target_busy_seconds=self.busy["target"],
            target_starved_seconds=self.waited["target_starved"],
            target_blocked_seconds=self.waited["target_blocked"],
            drafter_busy_seconds=float(self.busy["drafter"][0]),
            drafter_starved_seconds=float(self.waited["drafter_starved"][0]),
            batches_by_target=self.by_target,
            batch_ids=np.array(self.trained, np.int64),
            trained_seconds=np.array(self.trained_at),
        )
