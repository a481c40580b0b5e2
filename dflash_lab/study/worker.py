"""The other end of `processes`: `python -m dflash_lab.study.worker` trains arms that it is told over its input."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any


def main() -> None:
    """Train what comes in until the input ends, and then end at once, in the middle of an arm too."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    source = sys.stdin.buffer
    # What comes next may be of modules that are found on the caller's path alone.
    sys.path[:] = pickle.load(source)
    task = pickle.load(source)
    threading.Thread(target=_listen, args=(source, told), daemon=True).start()
    try:
        # Here torch is imported, which takes seconds: an end of the input must be heard by now.
        settings, opener, folder, fingerprint = pickle.loads(task)
        from dflash_lab.study.trainer import ArmTrainer

        material = opener(settings)
        if material.fingerprint != fingerprint:
            raise ValueError(
                f"target and samples are {material.fingerprint} in another process and {fingerprint} here; legal: "
                f"files that stay as they are while a study trains"
            )
        trainer = ArmTrainer(settings, material, Path(folder))
        _answer(answers, None)
        while True:
            _answer(answers, str(trainer.train(told.get())))
    except Exception as error:
        _answer(answers, _sendable(error))


def _listen(source: IO[bytes], told: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            told.put(pickle.load(source))
        except EOFError:
            # The caller is gone or wants no more: nobody would read what is half trained.
            os._exit(0)


def _answer(answers: IO[bytes], value: object) -> None:
    pickle.dump(value, answers)
    answers.flush()


def _sendable(error: Exception) -> Exception:
    """Give the error with its traceback as a note; one that cannot travel becomes a RuntimeError of its text."""
    error.add_note(f"in a process of the study:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("\n".join([f"{type(error).__name__}: {error}", *error.__notes__]))
    return error


if __name__ == "__main__":
    main()
