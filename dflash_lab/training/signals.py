"""Stopping a run politely: a signal finishes the step and saves, a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Within its `with`, the first Ctrl-C or SIGTERM only sets `name`; a second Ctrl-C raises KeyboardInterrupt.

    The handlers that were there before come back at the end. Outside the main thread, where Python takes no signals,
    nothing is installed.

    Attributes:
        name: "" until a signal has come, then its name.
    """

    def __init__(self) -> None:
        self.name = ""
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """Whether to stop."""
        return bool(self.name)

    def __enter__(self) -> StopRequest:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Put the former handlers back."""
        for number, handler in self._before.items():
            # None stands for one that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.name and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
