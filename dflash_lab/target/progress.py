"""Lines on standard error while something long is made."""

from __future__ import annotations

import sys
import time

FIRST_SECONDS = 3.0
EVERY_SECONDS = 10.0


class MakingProgress:
    """Says how far a piece of work has come, in plain lines, some seconds apart.

    Args:
        label: What is made.
        quiet: Say nothing.
    """

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label, self._quiet = label, quiet
        self._start = time.monotonic()
        self._next = self._start + FIRST_SECONDS

    def update(self, share: float, what: str) -> None:
        """Take the share made so far, in (0, 1], and words on its state."""
        now = time.monotonic()
        if self._quiet or (now < self._next and share < 1):
            return
        self._next = now + EVERY_SECONDS
        took = now - self._start
        left = f"about {took / share * (1 - share):.0f} s left" if share < 1 else f"{took:.0f} s"
        print(f"{self._label}: {share:.0%}, {what}, {left}", file=sys.stderr, flush=True)
