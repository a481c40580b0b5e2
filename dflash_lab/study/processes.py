"""Arms in several processes, none of which outlives its caller."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from dflash_lab.study.settings import ArmSpec, StudySettings
from dflash_lab.study.trainer import Opener

# How long a process may take to end once its input has; nothing is lost where it is killed then.
_PATIENCE_SECONDS = 1.0


def train_in_processes(
    specs: Sequence[ArmSpec],
    settings: StudySettings,
    opener: Opener,
    folder: Path,
    *,
    fingerprint: str,
    num_processes: int,
    on_done: Callable[[ArmSpec], None],
) -> None:
    """Train arms in fresh processes, each arm in the next one that is free.

    They are begun as programs of their own, not as copies or by way of the caller's main module, so that a notebook and
    a script without a guard can call this. Each ends as soon as its input does, however the caller ends.

    Args:
        specs: The arms.
        settings: The study's.
        opener: Opens target and samples in each process; found by its module and name.
        folder: Of the study.
        fingerprint: Of the material; each process checks that it has opened the same.
        num_processes: >= 1.
        on_done: Called with each arm when it is there, one call at a time.

    Raises:
        Exception: The first error of a process, as it was, with the process's traceback as a note. The others are ended
            then, as they are where the caller is interrupted.
    """
    left: SimpleQueue[ArmSpec] = SimpleQueue()
    for spec in specs:
        left.put(spec)
    task = pickle.dumps((settings, opener, str(folder), fingerprint))
    # The task as bytes: what it names can be imported only where the path is known.
    first_words = [pickle.dumps(sys.path), pickle.dumps(task)]
    workers = [_Worker(first_words) for _ in range(num_processes)]
    done: SimpleQueue[ArmSpec] = SimpleQueue()
    pool = ThreadPoolExecutor(num_processes, thread_name_prefix="dflash-study")
    try:
        futures: set[Future[None]] = {pool.submit(worker.train_all, left, done) for worker in workers}
        while futures:
            # Not without an end: a wait without one hears no Ctrl-C on some systems.
            finished, futures = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
            _tell(done, on_done)
            for future in finished:
                future.result()
    finally:
        for worker in workers:
            worker.end()
        pool.shutdown()


def _tell(done: SimpleQueue[ArmSpec], on_done: Callable[[ArmSpec], None]) -> None:
    while True:
        try:
            on_done(done.get_nowait())
        except Empty:
            return


class _Worker:
    """One process, begun at once."""

    def __init__(self, first_words: Sequence[bytes]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dflash_lab.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # Ctrl-C is for the caller, who ends its processes.
            start_new_session=True,
        )
        self._first_words = first_words

    def train_all(self, left: SimpleQueue[ArmSpec], done: SimpleQueue[ArmSpec]) -> None:
        for words in self._first_words:
            self._say(words)
        self._answer()
        while True:
            try:
                spec = left.get_nowait()
            except Empty:
                return
            self._say(pickle.dumps(spec))
            self._answer()
            done.put(spec)

    def end(self) -> None:
        """End the process, gently first."""
        try:
            self._process.stdin.close()  # type: ignore[union-attr]
        except OSError:
            pass
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]

    def _say(self, words: bytes) -> None:
        try:
            self._process.stdin.write(words)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except (OSError, ValueError):
            # What there is to say of it, its answer says.
            pass

    def _answer(self) -> Any:
        try:
            answer = pickle.load(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, pickle.UnpicklingError):
            raise RuntimeError(
                f"a process of the study ended with exit status {self._process.wait()} before its arm was done; what "
                f"it said is on standard error"
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer
