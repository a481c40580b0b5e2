"""Threads that run targets over prefetched batches, each into a bounded queue, and merged in plan order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import torch

from dflash_lab.feed.batch import Batch
from dflash_lab.feed.bounded_queue import BoundedQueue, QueueEnded
from dflash_lab.feed.stopwatch import Stopwatch
from dflash_lab.feed.threads import CLOSE_SECONDS, LOOK_UP_SECONDS, join_threads, start_thread, warn_of
from dflash_lab.target.protocol import TargetFeatures, TargetModel

# Features are large (a batch of 49,152 tokens, 5 taps and width 4,096 takes 2 GB in bf16): few wait for the drafter.
DEFAULT_DEPTH = 2


class BatchSource(Protocol):
    """What `TargetForwardLoops` takes batches from, such as a `BatchPrefetcher`.

    Each target gets its batches in the plan's order. One that takes no more must not hold up the others for ever.
    """

    def iter_target(self, target: int) -> Iterator[Batch]:
        """Give the batches of one target, in the plan's order."""
        ...

    def close(self) -> None:
        """End whoever waits for a batch."""
        ...


class TargetForwardLoop:
    """One thread that runs a target over batches, and keeps their features in a bounded queue.

    Iterating gives the features in the order of the batches. An error of the source or the target is raised behind the
    features before it, with its own traceback, and again at every further `next`. `close()`, or leaving a `with`, takes
    less than 2 seconds: it drops what waits and wakes the thread; one that is still inside a forward pass is left
    behind with a RuntimeWarning, and ends with it. Without `close`, the thread ends soon after the last reference is
    gone.

    Args:
        target: Runs in the thread.
        batches: Used by the thread alone from now on.
        depth: Most features that wait, >= 1; one more is in the thread's hands.
        with_logits: Give the target's logits too.
        end_source: Called by `close`, to wake the thread out of a wait for a batch.
        on_change: Called by the thread after each item and at its end.

    Attributes:
        queue: Where the features wait: `len(queue)`, and the seconds that either side has waited.
        thread: The thread.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        target: TargetModel,
        batches: Iterable[Batch],
        *,
        depth: int = DEFAULT_DEPTH,
        with_logits: bool = False,
        end_source: Callable[[], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.queue: BoundedQueue[TargetFeatures] = BoundedQueue(depth)
        self._end_source = end_source
        self._has_warned = False
        # The thread does not know this object: were it to, an abandoned one would live for ever.
        self._work = _Work(target, with_logits, self.queue, on_change)
        self.thread = start_thread(self._work.run, iter(batches), name="dflash-target-forward", stop=self.queue.abandon)
        weakref.finalize(self, self.queue.abandon).atexit = False

    @property
    def busy_seconds(self) -> float:
        """Seconds of forward passes."""
        return self._work.busy.seconds

    @property
    def starved_seconds(self) -> float:
        """Seconds without a batch."""
        return self._work.starved.seconds

    @property
    def blocked_seconds(self) -> float:
        """Seconds with features in hand and no room for them."""
        return self.queue.put_wait_seconds

    @property
    def has_ended(self) -> bool:
        """Whether the thread is through: all features that there will be are in the queue or taken."""
        return self._work.has_ended.is_set()

    @property
    def failed_id(self) -> int | None:
        """Id of the batch that the target failed at, or None."""
        return self._work.failed_id

    def __iter__(self) -> Iterator[TargetFeatures]:
        """Give itself: there is one pass."""
        return self

    def __next__(self) -> TargetFeatures:
        """Take the next features; raise what the source or the target raised, behind the features before it."""
        return next(self.queue)

    def close(self) -> None:
        """End the thread. May be called again, and from any thread."""
        self._close(stacklevel=2)

    def __enter__(self) -> TargetForwardLoop:
        """Start a `with`."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close, also after an exception."""
        self._close(stacklevel=2)

    def _close(self, *, stacklevel: int) -> None:
        self.queue.close()
        if self._end_source is not None:
            self._end_source()
        stuck = join_threads([self.thread], seconds=0.0 if self._has_warned else CLOSE_SECONDS)
        if stuck and not self._has_warned:
            self._has_warned = True
            warn_of(stuck, stacklevel=stacklevel + 1)


class TargetForwardLoops:
    """One loop a target over one source, and their features in the order of the plan.

    The features and their order are the same for any number of targets and any depth. The next ones are those of the
    lowest batch id: with consecutive ids they are given as soon as they are there; where ids are missing, as in a shard
    of a plan, as soon as every loop has shown its next one. Errors and closing are those of `TargetForwardLoop`;
    an error comes behind everything that stands before it in the plan and is there.

    Args:
        targets: One a queue of the source; the same target may stand there twice.
        source: Gives each target its batches, such as a `BatchPrefetcher` with as many targets; closed by `close`.
        depth: Most features that wait behind each target, >= 1.
        with_logits: Give the target's logits too.

    Attributes:
        loops: The loops, in the order of the targets.

    Raises:
        ValueError: If there is no target, or an argument is out of range.
    """

    def __init__(
        self,
        targets: Sequence[TargetModel],
        source: BatchSource,
        *,
        depth: int = DEFAULT_DEPTH,
        with_logits: bool = False,
    ) -> None:
        if not targets:
            raise ValueError("targets is empty; legal: at least one")
        self._changed = threading.Event()
        self._source = source
        self._heads: list[TargetFeatures | None] = [None] * len(targets)
        self._ended = [False] * len(targets)
        self._failures: list[_Failure] = []
        # Unknown before the first one.
        self._next_id: int | None = None
        self._is_closed = self._has_warned = False
        self.loops = [
            TargetForwardLoop(
                target, source.iter_target(number), depth=depth, with_logits=with_logits, on_change=self._changed.set
            )
            for number, target in enumerate(targets)
        ]

    def depths(self) -> list[int]:
        """Features that wait behind each target."""
        return [len(loop.queue) + (head is not None) for loop, head in zip(self.loops, self._heads, strict=True)]

    def __iter__(self) -> Iterator[TargetFeatures]:
        """Give itself: there is one pass."""
        return self

    def __next__(self) -> TargetFeatures:
        """Take the features that are next in the plan."""
        while not self._is_closed:
            self._changed.clear()
            for number in range(len(self.loops)):
                self._look(number)
            chosen = self._choose()
            if chosen is not None:
                features, self._heads[chosen] = self._heads[chosen], None
                assert features is not None
                self._next_id = features.batch.batch_id + 1
                return features
            failure = self._failure()
            if failure is not None:
                # Without its own traceback it would grow by the frames of each `next`.
                raise failure.error.with_traceback(failure.traceback)
            if self._all_seen:
                break
            self._changed.wait(LOOK_UP_SECONDS)
        raise StopIteration

    def close(self) -> None:
        """End all threads and the source. May be called again, and from any thread."""
        self._close(stacklevel=2)

    def __enter__(self) -> TargetForwardLoops:
        """Start a `with`."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close, also after an exception."""
        self._close(stacklevel=2)

    @property
    def _all_seen(self) -> bool:
        return all(head is not None or ended for head, ended in zip(self._heads, self._ended, strict=True))

    def _look(self, number: int) -> None:
        """Take the next features of a loop if none are held, without a wait."""
        loop = self.loops[number]
        if self._heads[number] is not None or self._ended[number] or not (loop.has_ended or len(loop.queue)):
            return
        try:
            self._heads[number] = loop.queue.get()
        except QueueEnded:
            self._ended[number] = True
        except BaseException as error:
            self._ended[number] = True
            self._failures.append(_Failure(loop.failed_id, error, error.__traceback__))

    def _choose(self) -> int | None:
        """Give the loop whose features are next, or None where that is not known yet or they will never come."""
        waiting = [(head.batch.batch_id, number) for number, head in enumerate(self._heads) if head is not None]
        if not waiting:
            return None
        lowest, number = min(waiting)
        if lowest == self._next_id or (self._all_seen and not self._failures):
            return number
        return None

    def _failure(self) -> _Failure | None:
        """Give what went wrong, once nothing that stands before it can come any more."""
        for failure in self._failures:
            if self._all_seen or (failure.batch_id is not None and failure.batch_id == self._next_id):
                return failure
        return None

    def _close(self, *, stacklevel: int) -> None:
        self._is_closed = True
        for loop in self.loops:
            loop.queue.close()
        self._changed.set()
        self._source.close()
        stuck = join_threads([loop.thread for loop in self.loops], seconds=0.0 if self._has_warned else CLOSE_SECONDS)
        self._heads = [None] * len(self.loops)
        if stuck and not self._has_warned:
            self._has_warned = True
            warn_of(stuck, stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class _Failure:
    """An error of a loop, and the batch that it arose at, if it was a forward pass."""

    batch_id: int | None
    error: BaseException
    traceback: TracebackType | None


class _Work:
    """What the thread of a loop does; it knows the queue, and not the loop."""

    def __init__(
        self,
        target: TargetModel,
        with_logits: bool,
        queue: BoundedQueue[TargetFeatures],
        on_change: Callable[[], None] | None,
    ) -> None:
        self.target, self.with_logits, self.queue, self.on_change = target, with_logits, queue, on_change
        self.busy, self.starved = Stopwatch(), Stopwatch()
        self.has_ended = threading.Event()
        self.failed_id: int | None = None

    def run(self, batches: Iterator[Batch]) -> None:
        try:
            while True:
                with self.starved.running():
                    batch = next(batches, None)
                if batch is None:
                    self.queue.finish()
                    break
                features = self._forward(batch)
                if not self.queue.offer(features):
                    break
                # Not kept until the next ones are there: they are large.
                del batch, features
                self._say()
        except BaseException as error:
            self.queue.fail(error)
        finally:
            self.has_ended.set()
            self._say()

    def _forward(self, batch: Batch) -> TargetFeatures:
        with self.busy.running():
            try:
                features = self.target.features(batch, with_logits=self.with_logits)
            except BaseException:
                self.failed_id = batch.batch_id
                raise
            if features.hidden.is_cuda:
                # Otherwise a thread runs ahead of its device, and its seconds are those of starting kernels.
                torch.cuda.current_stream(features.hidden.device).synchronize()
            return features

    def _say(self) -> None:
        if self.on_change is not None:
            self.on_change()
