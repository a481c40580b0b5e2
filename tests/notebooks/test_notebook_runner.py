"""The strict runner: each trap that papermill leaves open is shut here."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dflash_lab.notebooks import NotebookError, run_notebook
from dflash_lab.notebooks.cells import code_cells, read_notebook
from dflash_lab.notebooks.kernel import KernelGuard

PATHS = 'data_path: str = ""  # data, path\noutputs: str = "outputs"  # folder\ncount: int = 3  # how many, samples'


def stream_text(path):
    return "".join(
        "".join(output["text"])
        for cell in read_notebook(path)["cells"]
        for output in cell.get("outputs", [])
        if "text" in output
    )


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def start_child(pid_file):
    return (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))"
    )


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_ok_run_in_the_running_interpreter_with_paths_of_the_caller(make_notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JPY_SESSION_NAME", "/from/a/live/session.ipynb")
    path = make_notebook(
        "a {brace}",
        "import json, os, sys\nfrom dflash_lab import notebooks",
        "print(json.dumps([count, data_path, outputs, sys.executable, os.getcwd(), notebooks.is_live()]))",
        "for item in notebooks.progress(50, 'batches'):\n    pass",
        parameters=PATHS,
    )
    result = run_notebook(path, {"count": np.int64(5), "data_path": pathlib.Path("data/x.jsonl")}, "results", name="a")
    result.raise_for_status()
    assert (result.status, result.cells, result.completed, result.error) == ("ok", 5, 5, "")
    # The notebook itself names a kernel that does not exist.
    first, last = stream_text(result.output_path).splitlines()
    absolute = [str(tmp_path / "data/x.jsonl"), str(tmp_path / "results")]
    assert json.loads(first) == [5, *absolute, sys.executable, str(tmp_path), False]
    assert last.startswith("batches: 50/50")
    assert result.output_path == tmp_path / "results/notebooks/a.ipynb"
    assert sorted(item.name for item in result.output_path.parent.iterdir()) == ["a.ipynb", "a.json"]
    saved = json.loads((tmp_path / "results/notebooks/a.json").read_text())
    assert saved["status"] == "ok"
    assert saved["parameters"] == {"data_path": absolute[0], "outputs": absolute[1], "count": 5}
    assert saved["given"] == ["count", "data_path"]
    assert "widgets" not in read_notebook(result.output_path)["metadata"]


def test_wrong_parameters_stop_before_anything_is_written(make_notebook, tmp_path):
    path = make_notebook("n", "print(count)", parameters=PATHS)
    for given, message in [
        ({"cuont": 1}, "no parameter 'cuont'; did you mean 'count'? Legal names: data_path, outputs, count"),
        ({"count": "many"}, "'count' is annotated int, got 'many' (str); legal: a whole number such as 32768"),
        ({"count": float("nan")}, "parameter 'count' got nan; only finite numbers are legal"),
        ({"count": None}, "parameter 'count' got None (NoneType)"),
    ]:
        with pytest.raises(ValueError) as error:
            run_notebook(path, given, tmp_path / "out")
        assert message in str(error.value)
    with pytest.raises(ValueError, match="name of a run is '../n'"):
        run_notebook(path, {}, tmp_path / "out", name="../n")
    with pytest.raises(ValueError, match="timeout_seconds is 0; legal: a number of seconds above 0, or None"):
        run_notebook(path, {}, tmp_path / "out", timeout_seconds=0)
    with pytest.raises(ValueError, match="none.ipynb has no cell tagged 'parameters'"):
        run_notebook(make_notebook("none", "1", parameters=None), {}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_raising_cell_is_an_error_and_the_last_good_run_stays(make_notebook, tmp_path):
    folder = tmp_path / "out/notebooks"
    folder.mkdir(parents=True)
    (folder / "n.ipynb").write_text("from an earlier run")
    path = make_notebook("n", "print(1)", "raise FileNotFoundError(2, 'no data', '/nonexistent')", "print(3)")
    result = run_notebook(path, {}, tmp_path / "out")
    assert (result.status, result.cells, result.completed) == ("error", 4, 2)
    assert result.error == (
        "In [3] `raise FileNotFoundError(2, 'no data', '/nonexistent')`: "
        "FileNotFoundError: [Errno 2] no data: '/nonexistent'"
    )
    assert result.output_path == folder / "n.partial.ipynb"
    assert (folder / "n.ipynb").read_text() == "from an earlier run"
    assert json.loads((folder / "n.json").read_text())["status"] == "error"
    with pytest.raises(NotebookError, match=r"n: error: In \[3\] .*'/nonexistent' \(see .*n.partial.ipynb\)"):
        result.raise_for_status()


def test_sys_exit_0_is_not_ok(make_notebook, tmp_path):
    result = run_notebook(make_notebook("n", "import sys", "sys.exit(0)", "print(3)"), {"count": 1}, tmp_path / "out")
    assert (result.status, result.cells, result.completed) == ("incomplete", 5, 3)
    assert result.error == "In [4] `sys.exit(0)`: stopped by SystemExit: 0; 3 of 5 cells finished"


def test_cell_that_was_passed_over_is_not_ok(make_notebook, tmp_path):
    path = make_notebook("n", "print(1)", "print(2)", tags={0: ["skip-execution"]})
    result = run_notebook(path, {}, tmp_path / "out")
    assert (result.status, result.completed) == ("incomplete", 2)
    assert result.error == "In [2] `print(1)`: never executed; 2 of 3 cells finished"


def test_timeout_is_for_the_whole_notebook_and_ends_the_children(make_notebook, tmp_path):
    path = make_notebook(
        "n",
        start_child(tmp_path / "pid"),
        "time.sleep(1.5)",
        "time.sleep(300)",
        "print('never')",
    )
    result = run_notebook(path, {}, tmp_path / "out", timeout_seconds=5)
    assert result.status == "timeout"
    assert result.error == "In [4] `time.sleep(300)`: the notebook ran past its limit of 5 s"
    assert (result.cells, result.completed) == (5, 3)
    assert result.seconds < 15
    child = int((tmp_path / "pid").read_text())
    # The kill is sent before the runner returns; the system takes a moment to carry it out.
    assert wait_until(lambda: not alive(child), seconds=5)
    # papermill itself writes "completed" for all of them, and no exception.
    notebook = read_notebook(result.output_path)
    statuses = [cell["metadata"]["papermill"]["status"] for cell in code_cells(notebook)]
    assert statuses == ["completed", "completed", "completed", "failed", "pending"]
    assert notebook["metadata"]["papermill"]["exception"] is True
    assert notebook["metadata"]["dflash_lab"]["status"] == "timeout"


def test_dead_kernel_is_told_and_its_children_end(make_notebook, tmp_path):
    path = make_notebook(
        "n",
        start_child(tmp_path / "pid"),
        "os.kill(os.getpid(), 9)",
    )
    result = run_notebook(path, {}, tmp_path / "out")
    assert (result.status, result.cells, result.completed) == ("kernel-died", 3, 2)
    assert result.error == ("In [3] `os.kill(os.getpid(), 9)`: the kernel died: SIGKILL, as when memory runs out")
    child = int((tmp_path / "pid").read_text())
    # The kill is sent before the runner returns; the system takes a moment to carry it out.
    assert wait_until(lambda: not alive(child), seconds=5)


def test_kernel_that_cannot_start_says_why(make_notebook, tmp_path, monkeypatch):
    (tmp_path / "ipykernel_launcher.py").write_text("raise ImportError('no kernel here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run_notebook(make_notebook("n", "print(1)"), {}, tmp_path / "out")
    assert (result.status, result.completed) == ("kernel-died", 0)
    assert result.error.endswith("the kernel did not start: ImportError: no kernel here")


@pytest.mark.parametrize(
    ("code", "cause"), [("import ctypes; ctypes.string_at(0)", "SIGSEGV"), ("import os; os._exit(0)", "exit status 0")]
)
def test_a_crash_is_named(make_notebook, tmp_path, code, cause):
    result = run_notebook(make_notebook("n", code), {}, tmp_path / "out")
    assert result.error == f"In [2] `{code}`: the kernel died: {cause}"


STUBBORN = "try:\n    time.sleep(300)\nexcept KeyboardInterrupt:\n    time.sleep(300)"


@pytest.mark.parametrize(
    ("number", "last_cell", "name"),
    [
        (signal.SIGTERM, "time.sleep(300)", "SIGTERM"),
        (signal.SIGINT, "time.sleep(300)", "Ctrl-C"),
        (signal.SIGTERM, STUBBORN, "SIGTERM"),
    ],
)
def test_signals_interrupt_and_leave_no_process(make_notebook, tmp_path, number, last_cell, name):
    path = make_notebook(
        "n",
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '300'])",
        f"open({str(tmp_path / 'aside')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(tmp_path / 'aside')!r}, {str(tmp_path / 'pids')!r})\n{last_cell}",
    )
    command = [sys.executable, "-m", "dflash_lab.notebooks", "run", str(path), "--outputs", str(tmp_path / "out")]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until((tmp_path / "pids").exists), runner.poll()
        runner.send_signal(number)
        if last_cell == STUBBORN:
            # Asked again, the runner waits no longer.
            time.sleep(0.5)
            runner.send_signal(number)
        out, err = runner.communicate(timeout=20)
    finally:
        runner.kill()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert wait_until(lambda: not any(alive(pid) for pid in pids), seconds=5)
    assert runner.returncode == 130
    assert err.startswith("error: n: interrupted: In [3] `open(")
    assert err.endswith(f"`: stopped by {name}\n")
    saved = json.loads((tmp_path / "out/notebooks/n.json").read_text())
    assert (saved["status"], saved["cells"], saved["completed"]) == ("interrupted", 3, 2)
    assert "n.ipynb" not in os.listdir(tmp_path / "out/notebooks")


def test_signal_between_cells_stops_before_the_next(make_notebook, tmp_path, monkeypatch):
    # Comes while the kernel starts: an idle kernel ignores interrupts, so the next cell would run.
    ready = KernelGuard.check

    def signal_once(guard, **cell):
        if guard.processes and not guard.stopped_by:
            os.kill(os.getpid(), signal.SIGTERM)
        ready(guard, **cell)

    monkeypatch.setattr(KernelGuard, "check", signal_once)
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    result = run_notebook(make_notebook("n", "print(1)", "print(2)"), {}, tmp_path / "out")
    assert (result.status, result.completed) == ("interrupted", 0)
    assert result.error.endswith("stopped by SIGTERM")
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before


def test_parallel_runs_keep_apart_and_change_no_folder(make_notebook, tmp_path):
    path = make_notebook("n", "import time\ntime.sleep(1)", "print('count is', count)", parameters=PATHS)
    before = os.getcwd()
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run_notebook, path, {"count": n}, tmp_path / "out", name=f"n{n}") for n in range(3)]
        results = [run.result() for run in runs]
    assert [result.status for result in results] == ["ok"] * 3, [result.error for result in results]
    assert [stream_text(result.output_path) for result in results] == [f"count is {n}\n" for n in range(3)]
    assert os.getcwd() == before


def test_two_runs_of_one_name_at_a_time_are_refused(make_notebook, tmp_path):
    import fcntl

    folder = tmp_path / "out/notebooks"
    folder.mkdir(parents=True)
    with (folder / "n.partial.ipynb").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="another run is writing .*n.partial.ipynb; give this one another name"):
            run_notebook(make_notebook("n", "1"), {}, tmp_path / "out")
