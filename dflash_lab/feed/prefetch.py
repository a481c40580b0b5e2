"""Batches of a plan, read ahead by worker threads for one target or several."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dflash_lab.batching import BatchPlan
from dflash_lab.batching.config import whole_number
from dflash_lab.feed.batch import Batch
from dflash_lab.feed.bounded_queue import QueueEnded, not_an_end
from dflash_lab.feed.pinning import resolve_pin_memory
from dflash_lab.feed.reader import PlanReader, ReadPlace
from dflash_lab.feed.schedule import FeedPass, ReadFailure
from dflash_lab.feed.stopwatch import Stopwatch
from dflash_lab.feed.threads import CLOSE_SECONDS, join_threads, refuse_other_process, start_thread, warn_of


class BatchPrefetcher:
    """Keeps a queue of batches full for each target.

    Batch i of the plan is for target i % num_targets, and each target gets its batches in the plan's order. What a
    batch holds does not depend on workers, targets or depth. Workers always build for the target with the fewest
    batches, so that the queues stay level however unevenly they are drained. Tokens are copied once, from the data set
    into the batch.

    Iterating it gives the batches of the one target there is; with several, each consumer iterates `iter_target`. That
    begins a pass, and starts the workers. With one target, iterating anew ends the pass that was begun before and
    begins again at `start`. With several, it does so when the pass is over for all of them (or has failed); until
    then, taking a target a second time is refused, since it would take batches from the others.

    A sample that cannot be read ends the pass: every consumer gets the original exception behind its good batches,
    with the worker's traceback and a note that names sample, batch and target; `failure` has the same as a value.

    `close()`, or leaving a `with`, takes less than 2 seconds. It drops what is ready, ends the iteration of every
    consumer, and joins the workers. One that is still inside a read is left behind with a RuntimeWarning; no thread
    keeps the interpreter alive, and without `close` they end soon after the last reference is gone.

    Args:
        dataset: Samples by number. Read by the first of these that it has: `token_views_of(sample_ids, lengths)`,
            `token_views(sample_id)`, `dataset[sample_id]` with `input_ids` and `loss_mask`; but what a subclass defines
            goes before what it inherits. If it has `lengths` or a `len`, the plan is checked against them.
        plan: One epoch.
        num_targets: Targets, >= 1.
        num_workers: Threads that read, >= 1.
        depth: Most batches for each target that are ready or being built, >= 1.
        pin_memory: True, False, or "auto": where there is an accelerator; where there is none, it says so once in a
            process, in a log line of `dflash_lab.feed`.
        start: First batch, in [0, len(plan)); to go on after a resume.

    Raises:
        ValueError: If an argument is not legal, or the plan is broken or was not made from this data set.
    """

    def __init__(
        self,
        dataset: Any,
        plan: BatchPlan,
        *,
        num_targets: int = 1,
        num_workers: int = 2,
        depth: int = 50,
        pin_memory: bool | str = "auto",
        start: int = 0,
    ) -> None:
        self.num_targets = whole_number("num_targets", num_targets, least=1)
        self.num_workers = whole_number("num_workers", num_workers, least=1)
        self.depth = whole_number("depth", depth, least=1)
        self._reader = PlanReader(dataset, plan, pin_memory=resolve_pin_memory(pin_memory))
        self.plan = plan
        self.start = whole_number("start", start, least=0, most=len(plan) - 1)
        self._read_watches, self._wait_watches = ([Stopwatch() for _ in range(self.num_workers)] for _ in range(2))
        self._target_watches = [Stopwatch() for _ in range(self.num_targets)]
        self._lock = threading.Lock()
        self._pass: FeedPass | None = None
        self._taken: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._earlier_built = self._earlier_taken = 0
        self._abandon: weakref.finalize | None = None
        self._closed = False

    def __len__(self) -> int:
        """Number of batches of a pass, over all targets."""
        return len(self.plan) - self.start

    def __iter__(self) -> Iterator[Batch]:
        """Begin a pass for the one target there is; see `iter_target`."""
        if self.num_targets != 1:
            raise ValueError(f"there are {self.num_targets} targets; legal: iter_target(0), iter_target(1), ...")
        return self._begin(0, stacklevel=2)

    def iter_target(self, target: int) -> Iterator[Batch]:
        """Give the batches of one target, in the plan's order; begins a pass where none is under way.

        Args:
            target: In [0, num_targets).

        Returns:
            An iterator, for one thread or several.

        Raises:
            ValueError: If there is no such target, the target was taken in this pass and others have batches left, or
                the prefetcher is closed.
        """
        return self._begin(whole_number("target", target, least=0, most=self.num_targets - 1), stacklevel=2)

    def depths(self) -> list[int]:
        """Batches that are ready for each target now: `num_targets` numbers."""
        current = self._pass
        return [0] * self.num_targets if current is None else current.depths()

    @property
    def batches_produced(self) -> int:
        """Batches built, over all passes."""
        current = self._pass
        return self._earlier_built + (0 if current is None else current.num_built)

    @property
    def batches_consumed(self) -> int:
        """Batches that targets have taken, over all passes."""
        current = self._pass
        return self._earlier_taken + (0 if current is None else current.num_taken)

    @property
    def complete(self) -> bool:
        """Whether every batch of the current pass was taken; stays False after an error or a break."""
        return self._pass is not None and self._pass.complete

    @property
    def failure(self) -> ReadFailure | None:
        """What ended the current pass, or None."""
        return None if self._pass is None else self._pass.failure

    @property
    def worker_read_seconds(self) -> list[float]:
        """Seconds that each worker has read and collated, over all passes."""
        return [watch.seconds for watch in self._read_watches]

    @property
    def worker_wait_seconds(self) -> list[float]:
        """Seconds that each worker has waited for room, over all passes."""
        return [watch.seconds for watch in self._wait_watches]

    @property
    def target_wait_seconds(self) -> list[float]:
        """Seconds that each target's consumers have waited for a batch, over all passes."""
        return [watch.seconds for watch in self._target_watches]

    def close(self) -> None:
        """End all threads; may be called again, and from any thread. Iterating is refused afterwards."""
        self._close(stacklevel=2)

    def __enter__(self) -> BatchPrefetcher:
        """Start a `with`."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close, also after an exception."""
        self._close(stacklevel=2)

    def _close(self, *, stacklevel: int) -> None:
        self._closed = True
        if self._pass is not None:
            # Before the lock, which a thread may hold that joins workers of an earlier pass.
            self._pass.close()
        with self._lock:
            self._end_pass(stacklevel=stacklevel + 1)

    def _begin(self, target: int, *, stacklevel: int) -> _TargetBatches:
        with self._lock:
            if self._closed:
                raise ValueError("the prefetcher is closed; make a new one")
            current = self._pass
            if current is None or target in self._taken:
                if current is not None and self.num_targets > 1 and not current.over:
                    raise ValueError(
                        f"target {target} was taken in this pass, and {current.size - current.num_taken} batches are "
                        f"left in it; legal: take every target to its end first, or close this prefetcher and make "
                        f"another one"
                    )
                self._end_pass(stacklevel=stacklevel + 1)
                if self._closed:
                    # Closed by another thread while this one waited for the workers of an earlier pass.
                    raise ValueError("the prefetcher is closed; make a new one")
                current = self._start_pass()
            self._taken.add(target)
            return _TargetBatches(self, current, target)

    def _start_pass(self) -> FeedPass:
        if self._pass is not None:
            self._earlier_built += self._pass.num_built
            self._earlier_taken += self._pass.num_taken
        current = self._pass = FeedPass(
            len(self.plan),
            start=self.start,
            num_targets=self.num_targets,
            depth=self.depth,
            target_watches=self._target_watches,
        )
        self._taken = set()
        # Workers know the pass alone: were they to know this object, an abandoned one would live for ever.
        self._abandon = weakref.finalize(self, current.abandon)
        self._abandon.atexit = False
        try:
            for worker in range(min(self.num_workers, current.size)):
                arguments = current, self._reader, self._read_watches[worker], self._wait_watches[worker]
                self._threads.append(
                    start_thread(_work, *arguments, name=f"dflash-feed-{worker}", stop=current.abandon)
                )
        except BaseException:
            self._end_pass(stacklevel=2)
            # Half a pass must not be taken for one that can be iterated.
            self._earlier_built += current.num_built
            self._pass = None
            raise
        return current

    def _end_pass(self, *, stacklevel: int) -> None:
        if self._pass is not None:
            self._pass.close()
        if self._abandon is not None:
            self._abandon.detach()
        stuck, self._threads = join_threads(self._threads, seconds=CLOSE_SECONDS), []
        if stuck:
            warn_of(stuck, stacklevel=stacklevel + 1)


class _TargetBatches(Iterator[Batch]):
    """One target's batches of one pass; keeps the prefetcher alive for as long as somebody iterates."""

    def __init__(self, prefetcher: BatchPrefetcher, current: FeedPass, target: int) -> None:
        self._prefetcher, self._pass, self._target = prefetcher, current, target
        self._process = os.getpid()

    def __next__(self) -> Batch:
        refuse_other_process(self._process)
        try:
            return self._pass.take(self._target)
        except QueueEnded:
            raise StopIteration from None


def _work(current: FeedPass, reader: PlanReader, read_watch: Stopwatch, wait_watch: Stopwatch) -> None:
    while True:
        with wait_watch.running():
            batch_id = current.claim()
        if batch_id is None:
            return
        place = ReadPlace()
        try:
            with read_watch.running():
                batch = reader.read(batch_id, place)
        except BaseException as error:
            current.fail(batch_id, _placed(error, reader.plan, batch_id, place, current), place.sample_id)
            return
        current.deliver(batch_id, batch)
        # Not kept while the next one is built: it may be large.
        del batch


def _placed(error: BaseException, plan: BatchPlan, batch_id: int, place: ReadPlace, current: FeedPass) -> BaseException:
    """Note where an error arose; what would look like the end of an iteration becomes the cause of another error."""
    error = not_an_end(error, "reading a sample")
    held = plan[batch_id].tolist()
    sample = f"one of samples {held}" if place.sample_id is None else f"sample {place.sample_id}"
    # A consumer must get the error even if it takes no notes.
    with contextlib.suppress(Exception):
        error.add_note(
            f"while reading {sample} for batch {batch_id} of epoch {plan.epoch}, target {current.target_of(batch_id)}"
        )
    return error
