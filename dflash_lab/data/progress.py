"""Lines on standard error while a big source is read."""

from __future__ import annotations

import sys
import time

# Nothing is said about work that ends at once, and little about work that does not.
FIRST_SECONDS = 3.0
EVERY_SECONDS = 5.0


class ReadingProgress:
    """Says how far the reading of one source has come, in plain lines, a few seconds apart.

    Args:
        label: What is read.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._start = time.monotonic()
        self._next = self._start + FIRST_SECONDS
        self._said = False

    def update(self, share: float, num_rows: int) -> None:
        """Take the share read so far, in [0, 1], and the rows read so far."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        self._said = True
        left = f", about {(now - self._start) / share * (1 - share):.0f} s left" if share > 0 else ""
        self._say(f"{share:.0%}, {num_rows:,} rows{left}")

    def done(self, num_rows: int) -> None:
        """Say the end, if anything was said before."""
        if self._said:
            self._say(f"100%, {num_rows:,} rows, {time.monotonic() - self._start:.0f} s")

    def _say(self, text: str) -> None:
        print(f"reading {self._label}: {text}", file=sys.stderr, flush=True)
