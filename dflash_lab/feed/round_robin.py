"""The source run's way to serve several targets, to put beside `BatchPrefetcher`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dflash_lab.batching import BatchPlan
from dflash_lab.feed.batch import Batch
from dflash_lab.feed.bounded_queue import BoundedQueue
from dflash_lab.feed.reader import PlanReader, ReadPlace
from dflash_lab.feed.stopwatch import Stopwatch
from dflash_lab.feed.threads import CLOSE_SECONDS, join_threads, start_thread


class RoundRobinFeed:
    """The source run's way to serve several targets, beside `BatchPrefetcher`, for comparison.

    What is known of it is that workers served the queues round-robin, without regard to how fast each was drained.
    Assumed here: each worker goes from queue to queue in turn, beginning at its own number, puts one batch into each,
    and waits in front of a full one. Then all queues get the same number of batches, and their depths are what their
    targets have taken less than others: one queue is full, and those of fast targets run dry.

    Args:
        samples: Samples by number, as `BatchPrefetcher` takes them.
        plan: Batches of the epoch, in order.
        num_targets: Queues.
        num_workers: Threads that read.
        depth: Most batches in each queue.
    """

    def __init__(self, samples: Any, plan: BatchPlan, *, num_targets: int, num_workers: int, depth: int) -> None:
        self._reader = PlanReader(samples, plan, pin_memory=False)
        self._queues: list[BoundedQueue[Batch]] = [
            BoundedQueue(depth, num_producers=num_workers) for _ in range(num_targets)
        ]
        self._numbers, self._lock = iter(range(len(plan))), threading.Lock()
        self._watches = [(Stopwatch(), Stopwatch()) for _ in range(num_workers)]
        self._threads = [
            start_thread(self._work, worker, name=f"round-robin worker {worker}", stop=self._end)
            for worker in range(num_workers)
        ]

    def iter_target(self, target: int) -> Iterator[Batch]:
        """Give one target's batches."""
        return iter(self._queues[target])

    def depths(self) -> list[int]:
        """Batches in each queue."""
        return list(map(len, self._queues))

    @property
    def worker_read_seconds(self) -> list[float]:
        """Seconds that each worker has read and collated."""
        return [read.seconds for read, _ in self._watches]

    @property
    def worker_wait_seconds(self) -> list[float]:
        """Seconds that each worker has waited for room."""
        return [wait.seconds for _, wait in self._watches]

    def close(self) -> None:
        """End the workers."""
        self._end()
        join_threads(self._threads, seconds=CLOSE_SECONDS)

    def __enter__(self) -> RoundRobinFeed:
        """Start a `with`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the workers."""
        self.close()

    def _end(self) -> None:
        for queue in self._queues:
            queue.close()

    def _work(self, worker: int) -> None:
        turn, (read_watch, wait_watch) = worker % len(self._queues), self._watches[worker]
        try:
            while True:
                with self._lock:
                    number = next(self._numbers, None)
                if number is None:
                    break
                with read_watch.running():
                    batch = self._reader.read(number, ReadPlace())
                with wait_watch.running():
                    is_wanted = self._queues[turn].offer(batch)
                if not is_wanted:
                    return
                turn = (turn + 1) % len(self._queues)
        except BaseException as error:
            for queue in self._queues:
                queue.fail(error)
            return
        for queue in self._queues:
            queue.finish()
