"""Threads that can always be ended: by a bounded join, and with the interpreter."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence

# close() keeps under 2 seconds, whatever a read does.
CLOSE_SECONDS = 1.5
_EXIT_SECONDS = 1.0
# Whoever is garbage-collected cannot always take a lock, so a thread that waits looks up this often.
LOOK_UP_SECONDS = 1.0

_running: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()


def start_thread(
    work: Callable[..., None], *arguments: object, name: str, stop: Callable[[], None]
) -> threading.Thread:
    """Start a daemon thread.

    Args:
        work: What it does.
        arguments: For `work`.
        name: Its name, for stack dumps.
        stop: Makes `work` end soon; called when the interpreter ends, so that no thread stands inside a library whose
            destructors run.

    Returns:
        The thread.
    """
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    thread.start()
    _running[thread] = stop
    return thread


def join_threads(threads: Sequence[threading.Thread], *, seconds: float) -> list[threading.Thread]:
    """Wait for threads, for so many seconds in all, and give those that still run; never waits for itself."""
    others = [thread for thread in threads if thread is not threading.current_thread()]
    until = time.monotonic() + seconds
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread for thread in others if thread.is_alive()]


def warn_of(stuck: Sequence[threading.Thread], *, stacklevel: int) -> None:
    """Say that threads still read; they end when their read does, or with the interpreter."""
    names = ", ".join(thread.name for thread in stuck)
    warnings.warn(
        f"{names} still inside a read {CLOSE_SECONDS} s after close(); it ends when the read does, or with the process",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def refuse_other_process(process: int) -> None:
    """Refuse to wait for threads that stayed behind in the process that began them.

    Raises:
        RuntimeError: If this is another process, such as a fork.
    """
    if os.getpid() != process:
        raise RuntimeError("this was begun in another process, where its threads are; begin it anew in this one")


@atexit.register
def _end_all() -> None:
    running = list(_running.items())
    for _, stop in running:
        stop()
    join_threads([thread for thread, _ in running], seconds=_EXIT_SECONDS)
