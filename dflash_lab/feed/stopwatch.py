"""Seconds that are counted while they pass, by one thread or several."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds; what is still running counts up to now, so that a long wait shows before it is over.

    Several threads may run it at once, and their seconds add up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0.0
        self._num_running = 0
        self._sum_of_starts = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far; never falls."""
        with self._lock:
            return self._total + self._num_running * time.perf_counter() - self._sum_of_starts

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count for as long as the `with` lasts, also when it is left by an exception."""
        begin = time.perf_counter()
        with self._lock:
            self._num_running += 1
            self._sum_of_starts += begin
        try:
            yield
        finally:
            with self._lock:
                self._num_running -= 1
                # With nobody running the sum is exactly 0, whatever rounding has left in it.
                self._sum_of_starts = self._sum_of_starts - begin if self._num_running else 0.0
                self._total += time.perf_counter() - begin
