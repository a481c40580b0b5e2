"""One pass over a plan: who builds which batch next, and who gets it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from dflash_lab.feed.batch import Batch
from dflash_lab.feed.bounded_queue import QueueEnded
from dflash_lab.feed.stopwatch import Stopwatch
from dflash_lab.feed.threads import LOOK_UP_SECONDS


@dataclass(frozen=True, kw_only=True)
class ReadFailure:
    """A batch that could not be read.

    Args:
        error: What was raised, as every consumer gets it.
        sample_id: The sample that was being read; None if reading does not tell.
        batch_id: Number of the batch in the plan.
        target: Whom the batch was for.
    """

    error: BaseException
    sample_id: int | None
    batch_id: int
    target: int


class FeedPass:
    """The state of one pass, shared by workers and consumers; every change is made under one lock.

    Batch i is for target i % num_targets. Slots count from the moment at which a worker begins a batch, so that at most
    `depth` batches of a target are ready or being built.

    Args:
        num_batches: Batches of the plan.
        start: First batch of the pass.
        num_targets: Targets.
        depth: Most batches for each target.
        target_watches: Where the seconds that each target's consumers wait are counted.
    """

    def __init__(
        self, num_batches: int, *, start: int, num_targets: int, depth: int, target_watches: Sequence[Stopwatch]
    ) -> None:
        self._num_batches, self._num_targets, self._depth = num_batches, num_targets, depth
        self.size = num_batches - start
        first = [start + (target - start) % num_targets for target in range(num_targets)]
        self._next_built, self._next_taken = list(first), list(first)
        self._ready: list[dict[int, Batch]] = [{} for _ in range(num_targets)]
        self._lost: set[int] = set()
        self._watches = target_watches
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._arrivals = [threading.Condition(self._lock) for _ in range(num_targets)]
        self._closed = False
        self._traceback: TracebackType | None = None
        self.failure: ReadFailure | None = None
        self.num_built = self.num_taken = 0

    def claim(self) -> int | None:
        """Give the next batch to build, and wait until there is room for one; None if no more is to be built.

        It is one for the target with the fewest batches, those being built included; among equals the plan's earliest.
        """
        with self._lock:
            while not (self._closed or self.failure):
                left = [target for target, number in enumerate(self._next_built) if number < self._num_batches]
                if not left:
                    return None
                fewest, number, target = min((self._held(target), self._next_built[target], target) for target in left)
                if fewest < self._depth:
                    self._next_built[target] += self._num_targets
                    return number
                self._room.wait(LOOK_UP_SECONDS)
            return None

    def target_of(self, batch_id: int) -> int:
        """Whom a batch is for."""
        return batch_id % self._num_targets

    def deliver(self, batch_id: int, batch: Batch) -> None:
        """Give a batch that was claimed to its target."""
        with self._lock:
            if self._closed:
                return
            target = self.target_of(batch_id)
            self._ready[target][batch_id] = batch
            self.num_built += 1
            self._arrivals[target].notify_all()

    def fail(self, batch_id: int, error: BaseException, sample_id: int | None) -> None:
        """Say that a batch that was claimed cannot be read: no more are begun, and every consumer gets the error."""
        with self._lock:
            self._lost.add(batch_id)
            if self.failure is None and not self._closed:
                target = self.target_of(batch_id)
                self.failure = ReadFailure(error=error, sample_id=sample_id, batch_id=batch_id, target=target)
                self._traceback = error.__traceback__
            self._wake_all()

    def take(self, target: int) -> Batch:
        """Give a target's next batch, and wait for it.

        Raises:
            QueueEnded: If the target has had its last batch, or the pass is closed.
            BaseException: What reading a batch raised, behind the target's batches that were begun before it.
        """
        with self._lock:
            if self._must_wait(target):
                with self._watches[target].running():
                    while self._must_wait(target):
                        self._arrivals[target].wait()
            number = self._next_taken[target]
            batch = self._ready[target].pop(number, None)
            if batch is not None:
                self._next_taken[target] += self._num_targets
                self.num_taken += 1
                self._room.notify()
                return batch
            if self.failure is None or number >= self._num_batches:
                raise QueueEnded
            error, traceback = self.failure.error, self._traceback
        # Without its own traceback it would grow by the frames of each consumer.
        raise error.with_traceback(traceback)

    def close(self) -> None:
        """End workers and consumers; what is ready is dropped."""
        with self._lock:
            self._closed = True
            dropped, self._ready = self._ready, [{} for _ in range(self._num_targets)]
            self._wake_all()
        # Let go of outside the lock, since what ends with a batch may come back here.
        del dropped

    def abandon(self) -> None:
        """End all like `close`, for a finalizer, which may run in a thread that holds the lock right now."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._wake_all()
            finally:
                self._lock.release()

    def depths(self) -> list[int]:
        """Batches that are ready for each target."""
        return [len(ready) for ready in self._ready]

    @property
    def complete(self) -> bool:
        """Whether every batch was taken."""
        return self.num_taken == self.size

    @property
    def over(self) -> bool:
        """Whether a new pass takes nothing from anyone: every batch was taken, or it has failed or was closed."""
        return self.complete or self.failure is not None or self._closed

    def _held(self, target: int) -> int:
        return (self._next_built[target] - self._next_taken[target]) // self._num_targets

    def _must_wait(self, target: int) -> bool:
        number = self._next_taken[target]
        if self._closed or number >= self._num_batches or number in self._ready[target]:
            return False
        is_coming = number < self._next_built[target] and number not in self._lost
        return is_coming or self.failure is None

    def _wake_all(self) -> None:
        self._room.notify_all()
        for arrivals in self._arrivals:
            arrivals.notify_all()
