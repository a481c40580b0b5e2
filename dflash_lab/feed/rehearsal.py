"""The real feed in front of targets and a drafter that only sleep: does it stay ahead of the step?

The stages stand in for a run of days: `speed_up` makes its seconds short, and everything that is given back is in its
seconds again. What the feed itself computes is not made shorter, so that it looks `speed_up` times as slow as it is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np

from dflash_lab.batching import BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.data.mapped import TokenViews
from dflash_lab.feed.bounded_queue import BoundedQueue
from dflash_lab.feed.pipeline import NUM_SAMPLES, PipelineConfig, Rehearsal
from dflash_lab.feed.prefetch import BatchPrefetcher
from dflash_lab.feed.round_robin import RoundRobinFeed
from dflash_lab.feed.threads import CLOSE_SECONDS, join_threads, start_thread

# A sleep shorter than this takes longer than it should; reading times are saved up until they reach it.
_SHORTEST_SLEEP_SECONDS = 2e-3


def rehearse(
    source: PreloadedDataset | np.ndarray,
    plan: BatchPlan,
    config: PipelineConfig,
    *,
    num_batches: int,
    speed_up: float = 400.0,
) -> Rehearsal:
    """Run the real feed at the rates of a run, with targets and a drafter that only sleep.

    Batches are read, collated and queued as in training; the plan is taken again from the start when it is through, so
    that the feed never ends before the rehearsal does. A reading time is waited for at each sample, beside the time
    that reading takes anyway.

    Args:
        source: The samples, or whole numbers (n,): lengths of samples whose tokens are made up.
        plan: Batches of these samples.
        config: Rates and sizes; "emptiest" takes `BatchPrefetcher`, "round_robin" a `RoundRobinFeed`.
        num_batches: Batches to train, >= 1.
        speed_up: Seconds of the run in one second here, > 0. Above about 1,000 a batch takes less than some
            milliseconds, and what is seen is how threads take turns.

    Returns:
        What was seen, in seconds of the run.

    Raises:
        ValueError: If an argument is out of range.
    """
    if num_batches < 1 or not len(plan):
        raise ValueError(f"num_batches is {num_batches} of {len(plan)} planned; legal: at least one of each")
    if not 0 < speed_up < math.inf:
        raise ValueError(f"speed_up is {speed_up}; legal: a finite number > 0")
    read = config.read_tokens_per_second
    samples = RehearsalSamples(source, seconds_per_token=0.0 if read is None else 1 / (read * speed_up))
    enough = repeated(plan, -(-config.most_numbers(num_batches) // len(plan)))
    sizes = {"num_targets": config.num_targets, "num_workers": config.num_workers, "depth": config.depth}
    make = BatchPrefetcher if config.service == "emptiest" else RoundRobinFeed
    with make(samples, enough, **sizes) as feed:
        return _Stages(feed, config, num_batches, speed_up).run()


def measure_rate(
    source: PreloadedDataset | np.ndarray,
    plan: BatchPlan,
    *,
    num_workers: int = 1,
    depth: int = 50,
    num_batches: int = 1_000,
) -> float:
    """Measure how fast the prefetcher gives batches to one who does nothing with them.

    Args:
        source: The samples, or whole numbers (n,): lengths of samples whose tokens are made up.
        plan: Batches of these samples; taken again from the start when it is through.
        num_workers: Threads that read and collate, >= 1.
        depth: Most batches in the queue, >= 1.
        num_batches: Batches to measure with, >= 1; they are read once before, so that their pages are warm.

    Returns:
        Real tokens per second by the clock.

    Raises:
        ValueError: If an argument is out of range.
    """
    if num_batches < 1 or not len(plan):
        raise ValueError(f"num_batches is {num_batches} of {len(plan)} planned; legal: at least one of each")
    samples, enough = RehearsalSamples(source), repeated(plan, -(-num_batches // len(plan)))
    for _ in range(2):
        begin = time.perf_counter()
        with BatchPrefetcher(samples, enough, num_workers=num_workers, depth=depth) as feed:
            real_tokens = sum(batch.real_tokens for batch in islice(feed, num_batches))
            seconds = time.perf_counter() - begin
    return real_tokens / seconds


def repeated(plan: BatchPlan, times: int) -> BatchPlan:
    """Put a plan's batches behind themselves, so many times."""
    ends = plan.offsets[1:] + len(plan.sample_ids) * np.arange(times)[:, None]
    tiled = {name: np.tile(getattr(plan, name), times) for name in ("sample_ids", "bucket_ids", "widths")}
    return replace(
        plan,
        **tiled,
        offsets=np.concatenate([[0], ends.reshape(-1)]),
        sample_lengths=np.tile(plan.sample_lengths, times),
    )


class _Stages:
    """Threads that stand in for the targets, and the caller's own for the drafter."""

    def __init__(
        self, feed: BatchPrefetcher | RoundRobinFeed, config: PipelineConfig, num_batches: int, speed_up: float
    ) -> None:
        self.feed, self.config, self.num_batches, self.speed_up = feed, config, num_batches, speed_up
        self.cost = config.target_seconds(config.most_numbers(num_batches)) / speed_up
        self.features: BoundedQueue[int] = BoundedQueue(config.feature_depth)
        self.stop = threading.Event()
        # Busy, starved and blocked seconds of each.
        self.of_targets = np.zeros((3, config.num_targets))
        self.of_drafter = np.zeros(2)
        self.by_target = np.zeros(config.num_targets, np.int64)
        self.trained: list[tuple[int, float]] = []
        self.depths: list[tuple[float, list[int], int]] = []

    def run(self) -> Rehearsal:
        self.begin = time.perf_counter()
        threads = [start_thread(self._guarded, self._sample, name="rehearsal depths", stop=self.stop.set)]
        threads += [
            start_thread(self._guarded, self._compute, target, speed, name=f"target {target}", stop=self.stop.set)
            for target, speed in enumerate(self.config.target_speeds.tolist())
        ]
        try:
            self._train()
        finally:
            self.stop.set()
            self.feed.close()
            self.features.close()
            join_threads(threads, seconds=CLOSE_SECONDS)
        return self._seen()

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """An error of any thread is the drafter's to raise; what a closed feed says to its targets is none."""
        try:
            work(*arguments)
        except BaseException as error:
            if not self.stop.is_set():
                self.features.fail(error)

    def _compute(self, target: int, speed: float) -> None:
        batches = iter(self.feed.iter_target(target))
        while not self.stop.is_set():
            begin = time.perf_counter()
            batch = next(batches, None)
            took = time.perf_counter()
            self.of_targets[1, target] += took - begin
            if batch is None:
                return
            self._sleep(took, self.cost[batch.batch_id] / speed)
            done = time.perf_counter()
            self.by_target[target] += not self.stop.is_set()
            self.features.offer(batch.batch_id)
            self.of_targets[0, target] += done - took
            self.of_targets[2, target] += time.perf_counter() - done

    def _train(self) -> None:
        while len(self.trained) < self.num_batches:
            begin = time.perf_counter()
            batch_id = self.features.get()
            took = time.perf_counter()
            self._sleep(took, self.config.drafter_seconds / self.speed_up)
            done = time.perf_counter()
            self.trained.append((batch_id, done - self.begin))
            self.of_drafter += done - took, took - begin

    def _sample(self) -> None:
        pause = self.num_batches / self.config.batches_per_second / self.speed_up / NUM_SAMPLES
        while not self.stop.is_set():
            now = time.perf_counter()
            self.depths.append((now - self.begin, list(self.feed.depths()), len(self.features)))
            self._sleep(now, pause)

    def _sleep(self, begin: float, seconds: float) -> None:
        """Sleep until so long after the beginning, so that what came between does not add up."""
        self.stop.wait(max(0.0, begin + seconds - time.perf_counter()))

    def _seen(self) -> Rehearsal:
        times, q_pre, q_hs = zip(*self.depths, strict=True)
        batch_ids, trained = zip(*self.trained, strict=True)
        busy, starved, blocked = self.of_targets * self.speed_up
        return Rehearsal(
            config=self.config,
            seconds=np.array(times) * self.speed_up,
            q_pre=np.array(q_pre, np.int64),
            q_hs=np.array(q_hs, np.int64),
            worker_busy_seconds=np.array(self.feed.worker_read_seconds) * self.speed_up,
            worker_blocked_seconds=np.array(self.feed.worker_wait_seconds) * self.speed_up,
            target_busy_seconds=busy,
            target_starved_seconds=starved,
            target_blocked_seconds=blocked,
            drafter_busy_seconds=float(self.of_drafter[0] * self.speed_up),
            drafter_starved_seconds=float(self.of_drafter[1] * self.speed_up),
            batches_by_target=self.by_target,
            batch_ids=np.array(batch_ids, np.int64),
            trained_seconds=np.array(trained) * self.speed_up,
        )


class RehearsalSamples:
    """Samples as slow as a slow disk gives them; where only lengths are known, stand-ins for their tokens.

    Args:
        source: A data set, or whole numbers (n,), the lengths of samples that are made up.
        seconds_per_token: Time that a reader of the tokens waits; >= 0.

    Attributes:
        lengths: int32 (n,), in tokens.
    """

    def __init__(self, source: PreloadedDataset | np.ndarray, *, seconds_per_token: float = 0.0) -> None:
        self._dataset = source if isinstance(source, PreloadedDataset) else None
        self.lengths = source.lengths if isinstance(source, PreloadedDataset) else np.asarray(source, np.int32)
        self.seconds_per_token = seconds_per_token
        rng = np.random.default_rng(0)
        longest = int(self.lengths.max())
        self._stand_in = rng.integers(0, 32_000, longest, dtype=np.int32), np.ones(longest, bool)
        self._debts = threading.local()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    def token_views_of(self, sample_ids: np.ndarray, lengths: np.ndarray) -> TokenViews:
        """Give many samples' tokens as `PreloadedDataset.token_views_of`, after the time that reading them takes."""
        if self._dataset is not None:
            views = self._dataset.token_views_of(sample_ids, lengths)
        else:
            parts = [[part[:length] for length in lengths.tolist()] for part in self._stand_in]
            views = TokenViews(*parts)
        if self.seconds_per_token:
            self._wait(int(lengths.sum()) * self.seconds_per_token)
        return views

    def _wait(self, seconds: float) -> None:
        owed = seconds + vars(self._debts).get("seconds", 0.0)
        if owed >= _SHORTEST_SLEEP_SECONDS:
            begin = time.perf_counter()
            time.sleep(owed)
            owed -= time.perf_counter() - begin
        self._debts.seconds = owed
