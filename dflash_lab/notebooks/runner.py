"""One notebook, run strictly: papermill does the work, and what it lets pass is checked here."""

import contextlib
import dataclasses
import json
import os
import re
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from dflash_lab.notebooks.cells import cell_outputs, code_cells, read_notebook, source
from dflash_lab.notebooks.kernel import KernelGuard, kernel_manager_class, signals_stop
from dflash_lab.notebooks.parameters import check_parameters, read_parameters
from dflash_lab.notebooks.results import NotebookResult

# The values of these parameters are paths; they mean what they mean for the caller, wherever a notebook's code goes.
PATH_PARAMETERS = ("outputs", "data_path")
# Loaded machines: a kernel that imports little still needs 10 s and more when cores are shared.
START_TIMEOUT_SECONDS = 180
OUTPUT_TIMEOUT_SECONDS = 60
AUTOSAVE_SECONDS = 30


def run_notebook(
    path: str | os.PathLike,
    parameters: Mapping[str, object] | None = None,
    outputs: str | os.PathLike = "outputs",
    *,
    name: str | None = None,
    timeout_seconds: float | None = None,
) -> NotebookResult:
    """Run a notebook in the running interpreter's environment and say truthfully how it ended.

    The executed notebook is `outputs/notebooks/NAME.ipynb`, or `NAME.partial.ipynb` while it runs and when it fails;
    the result lies beside it as `NAME.json`. The kernel works in the caller's current folder; nothing changes folder,
    so runs of different names may go on at the same time. SIGTERM (in the main thread) and Ctrl-C end the run and all
    its processes and give the status `interrupted`.

    Args:
        path: The notebook.
        parameters: Values by name; text is brought to the annotated type.
        outputs: Folder for what runs produce; also the value of the notebook's own `outputs` parameter unless that is
            given.
        name: Name of the run; the notebook's file name without ending when None.
        timeout_seconds: Limit for the whole run, kernel start included, > 0; no limit when None.

    Returns:
        The result; a notebook that fails is a result too (see `NotebookResult.raise_for_status`).

    Raises:
        FileNotFoundError: If there is no notebook.
        ValueError: If a parameter, the name or the limit is wrong; nothing has run or been written then.
        RuntimeError: If another run of the same name is writing to the same folder.
    """
    path = _absolute(path)
    declared = read_parameters(path)
    folder = _absolute(outputs)
    given = dict(parameters or {})
    values = check_parameters(declared, given, notebook=path.name)
    if "outputs" in declared:
        values |= check_parameters(declared, {"outputs": values.get("outputs", str(folder))}, notebook=path.name)
    for key in PATH_PARAMETERS:
        if isinstance(values.get(key), str) and values[key]:
            values[key] = str(_absolute(values[key]))
    name = check_name(path.stem if name is None else name)
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise ValueError(f"timeout_seconds is {timeout_seconds!r}; legal: a number of seconds above 0, or None")

    folder = folder / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{name}.partial.ipynb"
    cells = code_cells(read_notebook(path))
    result = NotebookResult(
        notebook=path,
        name=name,
        status="incomplete",
        output_path=partial,
        seconds=0.0,
        cells=len(cells) + bool(values),
        completed=0,
        error="the run did not come to its end",
        parameters={key: parameter.default for key, parameter in declared.items()} | values,
        given=tuple(given),
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
    )
    with _claimed(partial):
        # Stands there while the run goes on, so that a runner that is killed outright leaves no old "ok" behind.
        result.save(folder / f"{name}.json")
        start = time.monotonic()
        guard = KernelGuard()
        failure = _execute(path, partial, values, timeout_seconds, guard)
        ending = _ending(partial, failure, timeout_seconds, guard)
        result = dataclasses.replace(result, seconds=round(time.monotonic() - start, 2), **ending)
        if result.ok:
            result = dataclasses.replace(result, output_path=folder / f"{name}.ipynb")
            partial.replace(result.output_path)
        else:
            _mark_failed(partial, result)
        result.save(folder / f"{name}.json")
    return result


def _absolute(path: str | os.PathLike) -> Path:
    return Path(path).expanduser().absolute()


def check_name(name: str) -> str:
    """Check a run's name, which becomes a file name.

    Args:
        name: The name.

    Returns:
        The same name.

    Raises:
        ValueError: If it cannot be a plain file name.
    """
    if not re.fullmatch(r"[\w][\w .+=-]*", name):
        raise ValueError(f"name of a run is {name!r}; legal: letters, digits, and _ . + = - inside a plain file name")
    return name


def _execute(
    path: Path, partial: Path, values: dict[str, object], timeout_seconds: float | None, guard: KernelGuard
) -> Exception | None:
    """Run the notebook by papermill; give back what stopped it."""
    import papermill

    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    # A limit that has passed must stay a limit: nbclient takes 0 for "none".
    limit = {} if deadline is None else {"timeout_func": lambda cell: max(0.01, deadline - time.monotonic())}
    with signals_stop(guard), tempfile.TemporaryDirectory(prefix="nb-", ignore_cleanup_errors=True) as private:
        try:
            papermill.execute_notebook(
                _papermill_path(path),
                _papermill_path(partial),
                parameters=values,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=START_TIMEOUT_SECONDS,
                kernel_manager_class=kernel_manager_class(Path(private), guard),
                on_cell_start=guard.check,
                autosave_cell_every=AUTOSAVE_SECONDS,
                iopub_timeout=OUTPUT_TIMEOUT_SECONDS,
                store_widget_state=False,
                coalesce_streams=True,
                **limit,
            )
        except Exception as failure:
            return failure
        finally:
            guard.close()
    return None


def _papermill_path(path: Path) -> str:
    """Write a path so that papermill, which formats paths with the parameters, leaves braces alone."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextlib.contextmanager
def _claimed(partial: Path) -> Iterator[None]:
    """Hold the partial file for one run; the lock ends with the process, whatever ends it."""
    import fcntl

    taken = RuntimeError(f"another run is writing {partial}; give this one another name")
    with partial.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        if not partial.exists() or not os.path.samestat(os.fstat(held.fileno()), partial.stat()):
            # The other run renamed the file between our opening and our lock.
            raise taken
        yield


def _ending(
    partial: Path, failure: Exception | None, timeout_seconds: float | None, guard: KernelGuard
) -> dict[str, object]:
    """Tell how a run ended from what stopped it and from what the executed notebook shows."""
    from papermill.exceptions import PapermillExecutionError

    try:
        notebook = read_notebook(partial)
    except ValueError:
        # Stopped before papermill wrote the file.
        notebook = {"cells": []}
    status, message = _reason(failure, timeout_seconds, guard)
    cells = code_cells(notebook)
    started = [cell for cell in notebook["cells"] if cell["metadata"].get("papermill", {}).get("start_time")]
    done = [cell.get("execution_count") is not None and not _errors(cell) for cell in cells]
    if started and failure is not None and not isinstance(failure, PapermillExecutionError):
        # Counts are handed out when a cell starts: the one that was running has its number but is not done.
        done = [finished and cell is not started[-1] for finished, cell in zip(done, cells, strict=True)]
    place = next((number for number, finished in enumerate(done) if not finished), None)
    if status == "ok" and not all(done):
        status = "incomplete"
        message = next(("stopped by " + error for error in _errors(cells[place])), "never executed")
    if message and place is not None:
        message = f"In [{place + 1}] `{textwrap.shorten(source(cells[place]).strip().splitlines()[0], 90)}`: {message}"
    if status == "incomplete":
        message += f"; {sum(done)} of {len(cells)} cells finished"
    counts = {"cells": len(cells), "completed": sum(done)} if cells else {}
    return {"status": status, "error": message, **counts}


def _reason(failure: Exception | None, timeout_seconds: float | None, guard: KernelGuard) -> tuple[str, str]:
    """Give the status and the message for what stopped a run."""
    if guard.stopped_by:
        return "interrupted", f"stopped by {guard.stopped_by}"
    if failure is None:
        return "ok", ""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    if isinstance(failure, PapermillExecutionError):
        return "error", _worded(failure.ename, failure.evalue)
    if isinstance(failure, CellTimeoutError):
        if timeout_seconds is None:
            return "timeout", f"an output did not arrive within {OUTPUT_TIMEOUT_SECONDS} s"
        return "timeout", f"the notebook ran past its limit of {timeout_seconds:g} s"
    if isinstance(failure, DeadKernelError):
        return "kernel-died", f"the kernel died: {guard.cause_of_death()}"
    if isinstance(failure, RuntimeError) and "kernel" in str(failure).lower():
        return "kernel-died", f"the kernel did not start: {guard.last_words or failure}"
    return "error", _worded(type(failure).__name__, str(failure))


def _errors(cell: dict) -> list[str]:
    return [_worded(out["ename"], out["evalue"]) for out in cell_outputs(cell) if out["output_type"] == "error"]


def _worded(kind: str, message: str) -> str:
    """Join an exception's kind and message, without terminal colours."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", message).strip()
    return f"{kind}: {message}" if message else kind


def _mark_failed(partial: Path, result: NotebookResult) -> None:
    """Correct the executed notebook, where papermill calls every cell completed after a timeout or a dead kernel."""
    try:
        notebook = read_notebook(partial)
    except ValueError:
        return
    failed = False
    for cell in code_cells(notebook):
        finished = cell.get("execution_count") is not None and not _errors(cell)
        if not failed and finished and not result.error.startswith(f"In [{cell['execution_count']}] "):
            continue
        cell["metadata"].setdefault("papermill", {})["status"] = "pending" if failed else "failed"
        failed = True
    notebook["metadata"].setdefault("papermill", {})["exception"] = True
    notebook["metadata"]["dflash_lab"] = {"status": result.status, "error": result.error}
    partial.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
