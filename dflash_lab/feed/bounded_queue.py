"""The one bounded queue between two stages: order kept, errors passed on, and always possible to end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

from dflash_lab.batching.config import whole_number
from dflash_lab.feed.stopwatch import Stopwatch
from dflash_lab.feed.threads import LOOK_UP_SECONDS

Item = TypeVar("Item")


class QueueEnded(Exception):
    """No item will come any more, or none is wanted any more."""


def not_an_end(error: BaseException, who: str) -> BaseException:
    """Give an error that no iteration takes for its end: one that would be is the cause of a RuntimeError."""
    if not isinstance(error, StopIteration | QueueEnded):
        return error
    told = RuntimeError(f"{who} raised {type(error).__name__}")
    told.__cause__ = error
    return told.with_traceback(error.__traceback__)


class BoundedQueue(Generic[Item]):
    """Hands items from producers to consumers, at most `depth` of them waiting.

    Iterating gives the items in the order in which they were put, and ends when every producer has called `finish`. An
    error given to `fail` is raised behind the items that were put before it, with its own traceback, and again at every
    further `get`, also after `close`: a failed queue never looks like one that has come to its end. `close` ends both
    sides at once.

    Args:
        depth: Most items that wait, >= 1.
        num_producers: Producers that each call `finish` once, >= 1.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, depth: int, *, num_producers: int = 1) -> None:
        self.depth = whole_number("depth", depth, least=1)
        self._num_producers = whole_number("num_producers", num_producers, least=1)
        self._items: deque[Item] = deque()
        self._lock = threading.Lock()
        self._room, self._ready = threading.Condition(self._lock), threading.Condition(self._lock)
        self._put_watch, self._get_watch = Stopwatch(), Stopwatch()
        self._num_put = self._num_taken = 0
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._closed = False

    def put(self, item: Item) -> None:
        """Add an item, and wait for room first.

        Raises:
            QueueEnded: If the queue is closed or has failed: nobody will take the item.
        """
        if not self.offer(item):
            raise QueueEnded("the queue is closed or has failed")

    def offer(self, item: Item) -> bool:
        """Add an item as `put` does; False if the queue is closed or has failed."""
        with self._lock:
            if len(self._items) >= self.depth and not self._is_refusing:
                with self._put_watch.running():
                    while len(self._items) >= self.depth and not self._is_refusing:
                        self._room.wait(LOOK_UP_SECONDS)
            if self._is_refusing:
                return False
            if not self._num_producers:
                raise ValueError("put after every producer has finished; num_producers is too small")
            self._items.append(item)
            self._num_put += 1
            self._ready.notify()
            return True

    def get(self) -> Item:
        """Take the next item, and wait for it first.

        Raises:
            QueueEnded: If every producer has finished and all items are taken, or the queue is closed.
            BaseException: What `fail` was given, behind the items before it; also after `close`.
        """
        with self._lock:
            if not self._items and not self._is_over:
                with self._get_watch.running():
                    while not self._items and not self._is_over:
                        self._ready.wait()
            if self._items:
                item = self._items.popleft()
                self._num_taken += 1
                self._room.notify()
                return item
            if self._error is None:
                raise QueueEnded("the queue is closed" if self._closed else "all items are taken")
            error, traceback = self._error, self._traceback
        # Without its own traceback it would grow by the frames of each `get`.
        raise error.with_traceback(traceback)

    def finish(self) -> None:
        """Say that one producer is through; after the last one, consumers end behind the last item."""
        with self._lock:
            if not self._num_producers:
                raise ValueError("finish was called more often than there are producers")
            self._num_producers -= 1
            self._ready.notify_all()

    def fail(self, error: BaseException) -> None:
        """Pass an error on to the consumers, behind the items that are there; producers end at their next `put`.

        Args:
            error: Raised by `get` as it is; a StopIteration or QueueEnded, which would look like an end, as the cause
                of a RuntimeError. The first one counts, and none after `close`.
        """
        error = not_an_end(error, "a producer")
        with self._lock:
            if self._error is None and not self._closed:
                self._error, self._traceback = error, error.__traceback__
            self._room.notify_all()
            self._ready.notify_all()

    def close(self) -> None:
        """End both sides now: items that wait are dropped, and whoever waits wakes up. May be called again."""
        with self._lock:
            self._closed = True
            # Items are let go of outside the lock, since what ends with them may come back here.
            dropped, self._items = self._items, deque()
            self._room.notify_all()
            self._ready.notify_all()
        del dropped

    def abandon(self) -> None:
        """End both sides like `close`, for a finalizer, which may run in a thread that holds the lock right now."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._room.notify_all()
                self._ready.notify_all()
            finally:
                self._lock.release()

    @property
    def _is_refusing(self) -> bool:
        return self._closed or self._error is not None

    @property
    def _is_over(self) -> bool:
        return self._closed or self._error is not None or not self._num_producers

    @property
    def num_put(self) -> int:
        """Items put so far."""
        return self._num_put

    @property
    def num_taken(self) -> int:
        """Items taken so far."""
        return self._num_taken

    @property
    def put_wait_seconds(self) -> float:
        """Seconds that producers have waited for room, those of a wait that still lasts included."""
        return self._put_watch.seconds

    @property
    def get_wait_seconds(self) -> float:
        """Seconds that consumers have waited for an item, those of a wait that still lasts included."""
        return self._get_watch.seconds

    @property
    def complete(self) -> bool:
        """Whether every producer has finished, without an error or a close, and every item was taken."""
        with self._lock:
            return not (self._closed or self._error or self._num_producers or self._items)

    def __len__(self) -> int:
        """Items that wait now."""
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """Give the items as they come."""
        return self

    def __next__(self) -> Item:
        """Take the next item; see `get`."""
        try:
            return self.get()
        except QueueEnded:
            raise StopIteration from None
