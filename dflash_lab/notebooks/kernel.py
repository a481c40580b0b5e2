"""The kernel of a batch run: always the running interpreter, private files, stopped by signals, nothing left behind."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

# A Unix socket's path holds 107 characters on Linux; what jupyter_client appends to the folder needs about 20 of them.
MAX_SOCKET_FOLDER_LENGTH = 80
# How long an interrupted cell may take to clean up, for instance to write a checkpoint, before it is killed.
GRACE_SECONDS = 8.0
# Without a handler of its own papermill's log goes to stderr, where it says again what the result says.
_NO_LOG = logging.NullHandler()


class Stopped(Exception):
    """A signal stopped the run between two cells."""


class KernelGuard:
    """Knows a run's kernels: interrupts them when a signal comes, and ends all they have started.

    Attributes:
        processes: The kernels; each leads a process group of its own.
        stopped_by: The signal that came; empty when none has.
        last_words: What the kernel wrote to its own stderr last, for instance why it could not start.
    """

    def __init__(self) -> None:
        """Start without kernels."""
        self.processes: list[subprocess.Popen] = []
        self.stopped_by = ""
        self.last_words = ""
        self._log: Path | None = None
        self._timer = threading.Timer(GRACE_SECONDS, self.kill)
        self._timer.daemon = True

    def stop(self, signal_name: str) -> None:
        """Interrupt the running cell; kill it after the grace time, or at once when asked again.

        Args:
            signal_name: What the caller received, for the message.
        """
        if self.stopped_by:
            self.kill()
            return
        self.stopped_by = signal_name
        self._timer.start()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)

    def check(self, **cell: object) -> None:
        """Refuse to go on to the next cell once a signal has come; an idle kernel ignores the interrupt.

        Args:
            **cell: What nbclient tells its hooks; not used.

        Raises:
            Stopped: If a signal has come.
        """
        if self.stopped_by:
            raise Stopped

    def kill(self) -> None:
        """Kill the kernels and their process groups: worker processes outlive a kernel that died or was killed."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def keep_log(self, path: Path) -> None:
        """Say where the kernel's stderr goes: at its shutdown ipykernel complains there about its own tasks.

        Args:
            path: A file that `close` reads.
        """
        self._log = path

    def close(self) -> None:
        """End everything that is left; may be called again."""
        self._timer.cancel()
        self.kill()
        if self._log is not None and self._log.exists():
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            self.last_words = lines[-1] if lines else ""

    def cause_of_death(self) -> str:
        """Tell how the last kernel ended, from its exit status.

        Returns:
            A signal's name or an exit status.
        """
        status = self.processes[-1].poll() if self.processes else None
        if status is None:
            return "it is not known how"
        if status >= 0:
            return f"exit status {status}"
        name = signal.Signals(-status).name
        return f"{name}, as when memory runs out" if name == "SIGKILL" else name


@contextlib.contextmanager
def signals_stop(guard: KernelGuard) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C stop the kernel and let the run end by itself, in the main thread.

    An exception raised from the handler would hit the event loop anywhere, and SIGTERM's default would leave the kernel
    and its children behind.

    Args:
        guard: The run's kernels.

    Yields:
        Nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
    previous = {number: signal.signal(number, lambda number, frame: guard.stop(names[number])) for number in names}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def kernel_manager_class(folder: Path, guard: KernelGuard) -> type:
    """Make a kernel manager class for one run.

    A class, because papermill makes the instance itself.

    Args:
        folder: Private folder for the connection file and sockets.
        guard: Gets each kernel that is started.

    Returns:
        A subclass of jupyter_client's AsyncKernelManager.
    """
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    logging.getLogger("papermill").addHandler(_NO_LOG)

    class RunningInterpreterKernelManager(AsyncKernelManager):
        def __init__(self, **options):
            super().__init__(**options)
            self.connection_file = str(folder / "kernel.json")
            if len(str(folder)) <= MAX_SOCKET_FOLDER_LENGTH:
                # TCP ports are chosen before they are bound: kernels started at the same moment can take the same one.
                self.transport = "ipc"

        @property
        def kernel_spec(self):
            # Whatever kernelspec the notebook names, an environment may hold a "python3" that belongs to another one.
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

        async def start_kernel(self, **options):
            environment = dict(options.pop("env", None) or os.environ)
            # Inherited when the runner itself is called from JupyterLab; the kernel would take itself to be live.
            environment.pop("JPY_SESSION_NAME", None)
            guard.check()
            log = folder / "kernel.stderr"
            guard.keep_log(log)
            with log.open("wb") as stderr:
                await super().start_kernel(env=environment, stderr=stderr, **options)
            guard.processes.append(self.provisioner.process)

    return RunningInterpreterKernelManager
