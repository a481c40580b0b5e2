"""Any source, read ahead by one thread through a bounded queue."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

from dflash_lab.feed.bounded_queue import BoundedQueue, QueueEnded
from dflash_lab.feed.threads import CLOSE_SECONDS, join_threads, refuse_other_process, start_thread, warn_of

Item = TypeVar("Item")


class RunAhead(Generic[Item]):
    """Items of a source, produced ahead by a thread; made by `run_ahead`.

    Attributes:
        queue: Where the items wait: `len(queue)`, and the seconds that either side has waited.
    """

    def __init__(self, source: Iterable[Item], *, depth: int) -> None:
        self.queue: BoundedQueue[Item] = BoundedQueue(depth)
        try:
            items = iter(source)
        except TypeError:
            raise ValueError(f"source is a {type(source).__name__}; legal: anything that can be iterated") from None
        self._close_errors: list[BaseException] = []
        self._has_warned = False
        self._process = os.getpid()
        # The thread knows the queue alone: were it to know this object, an abandoned one would live for ever.
        self._thread = start_thread(
            _produce, self.queue, items, self._close_errors, name="dflash-run-ahead", stop=self.queue.abandon
        )
        weakref.finalize(self, self.queue.abandon).atexit = False

    def __iter__(self) -> Iterator[Item]:
        """Give itself: there is one pass."""
        return self

    def __next__(self) -> Item:
        """Take the next item; raise what the source raised, behind the items before it."""
        refuse_other_process(self._process)
        try:
            return self.queue.get()
        except QueueEnded:
            raise StopIteration from None

    def close(self) -> None:
        """End the thread; see `run_ahead`. May be called again, and from any thread."""
        self._close(stacklevel=2)

    def __enter__(self) -> RunAhead[Item]:
        """Start a `with`."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close, also after an exception."""
        self._close(stacklevel=2)

    def _close(self, *, stacklevel: int) -> None:
        self.queue.close()
        stuck = join_threads([self._thread], seconds=0.0 if self._has_warned else CLOSE_SECONDS)
        if self._close_errors:
            raise self._close_errors.pop()
        if stuck and not self._has_warned:
            self._has_warned = True
            warn_of(stuck, stacklevel=stacklevel + 1)


def run_ahead(source: Iterable[Item], *, depth: int) -> RunAhead[Item]:
    """Read a source ahead in a thread of its own, at most `depth` items before they are asked for.

    Reading begins at once. The items come in the source's order. An exception of the source is raised behind the items
    before it, with the traceback of the place where it arose, and again at every further `next`, so that a source that
    failed never looks like one that is through. What is exhausted stays exhausted; a new pass is a new `run_ahead`.

    `close()`, or leaving a `with`, takes less than 2 seconds: it drops what waits, wakes the thread and everyone who
    waits for an item (their iteration ends), and joins the thread. A generator is closed by the thread, so that its
    `finally` runs there. A thread that is still inside a read is left behind with a RuntimeWarning; it ends with its
    read, and never keeps the interpreter alive. Without `close`, the thread ends soon after the last reference is gone.

    Args:
        source: Anything that can be iterated; used by the thread alone from now on.
        depth: Most items that wait, >= 1; one more is in the thread's hands.

    Returns:
        An iterator that is also a context manager and has `close()`.

    Raises:
        ValueError: If an argument is not legal.
    """
    return RunAhead(source, depth=depth)


def _produce(queue: BoundedQueue[Item], items: Iterator[Item], close_errors: list[BaseException]) -> None:
    while True:
        try:
            item = next(items)
        except StopIteration:
            queue.finish()
            return
        except BaseException as error:
            queue.fail(error)
            return
        if not queue.offer(item):
            break
        # Not kept until the next one is there: it may be large.
        del item
    del item
    if isinstance(items, Generator):
        try:
            items.close()
        except BaseException as error:
            close_errors.append(error)
