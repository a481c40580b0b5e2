"""All notebooks as one offline report: `outputs/report/index.html` and a page for each run."""

import dataclasses
import importlib.metadata
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from dflash_lab.notebooks.cells import code_cells, read_notebook
from dflash_lab.notebooks.display import shown
from dflash_lab.notebooks.export import Summary, markdown_html, notebook_html, read_summary
from dflash_lab.notebooks.offline import outside_loads
from dflash_lab.notebooks.pages import INDEX, PAGE, render
from dflash_lab.notebooks.report_runs import PlannedRun, plan_runs
from dflash_lab.notebooks.results import NotebookError, NotebookResult, write_whole
from dflash_lab.notebooks.runner import run_notebook

TITLE = "dflash_lab report"
PACKAGES = ("dflash_lab", "numpy", "torch", "polars", "pyarrow", "matplotlib")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportResult:
    """What `build_report` made.

    Attributes:
        index: The report's first page.
        runs: One result for each run, in the report's order; one that was not reached is `interrupted`.
        seconds: Wall time of the whole report.
    """

    index: Path
    runs: tuple[NotebookResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True when every run ended well."""
        return all(run.ok for run in self.runs)

    def raise_for_status(self) -> None:
        """Raise when a run did not end well.

        Raises:
            NotebookError: If a run's status is not `ok`; names each such run with its error.
        """
        failed = [f"{run.name}: {run.status}: {run.error}" for run in self.runs if not run.ok]
        if failed:
            raise NotebookError(
                f"{len(failed)} of {len(self.runs)} runs failed (see {self.index})\n" + "\n".join(failed)
            )


def build_report(
    notebooks: str | os.PathLike = "notebooks",
    outputs: str | os.PathLike = "outputs",
    *,
    parameters: Mapping[str, object] | None = None,
    only: str | Sequence[str] | None = None,
    say: Callable[[str], None] | None = None,
) -> ReportResult:
    """Run the notebooks `NN_*.ipynb` of a folder in order and write one offline report.

    `report.toml` in the folder may list further runs, each after its notebook:

        [[run]]
        notebook = "03_batching_strategies.ipynb"
        name = "03_source_run"
        parameters = { lengths = "source_run" }

    A run that fails is shown as failed with its error, and the others still run. The report lists the runs of this
    call.

    Args:
        notebooks: Folder of the notebooks.
        outputs: Folder for what runs produce; the report is its `report/index.html`.
        parameters: Values by name; each run gets those that its notebook has. What `report.toml` sets for a run stays.
        only: Beginning of a run's name, such as `"03"`, or several; all runs when None.
        say: Gets one line as each run starts and ends; nothing is said when None.

    Returns:
        The results; see `ReportResult.raise_for_status`.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If there is nothing to run, no notebook has one of the parameters, a value does not fit, or
            `report.toml` is wrong; nothing has run then.
    """
    planned = plan_runs(notebooks, parameters=parameters or {}, only=only)
    folder = Path(outputs).expanduser().absolute() / "report"
    folder.mkdir(parents=True, exist_ok=True)
    say = say or (lambda line: None)
    start = time.monotonic()
    results: list[NotebookResult] = []
    for number, run in enumerate(planned, 1):
        if results and results[-1].status == "interrupted":
            results.append(_not_reached(run))
            continue
        say(f"[{number}/{len(planned)}] {run.name} ..." + (f" ({run.note})" if run.note else ""))
        result = run_notebook(run.notebook, run.values, outputs, name=run.name)
        result = _write_page(result, folder)
        say(f"[{number}/{len(planned)}] {run.name}: {result.status} in {result.seconds:.1f} s")
        if not result.ok:
            say(f"    {result.error}")
        results.append(result)
    index = folder / "index.html"
    seconds = round(time.monotonic() - start, 1)
    write_whole(index, _index_page(planned, results, seconds, folder))
    return ReportResult(index=index, runs=tuple(results), seconds=seconds)


def _not_reached(run: PlannedRun) -> NotebookResult:
    return NotebookResult(
        notebook=run.notebook,
        name=run.name,
        status="interrupted",
        output_path=run.notebook,
        seconds=0.0,
        cells=len(code_cells(read_notebook(run.notebook))),
        completed=0,
        error="not reached: the report was interrupted before",
        parameters={key: parameter.default for key, parameter in run.declared.items()} | run.values,
        given=tuple(run.values),
        started="",
    )


def _write_page(result: NotebookResult, folder: Path) -> NotebookResult:
    """Write a run's full page; a page that cannot be made is the run's error and does not stop the others."""
    page = folder / f"{result.name}.html"
    page.unlink(missing_ok=True)
    try:
        write_whole(page, _full_page(result))
    except Exception as error:
        text = f"no page could be made from {result.output_path.name}: {type(error).__name__}: {error}"
        return result if not result.ok else dataclasses.replace(result, status="error", error=text)
    return result


def _full_page(result: NotebookResult) -> str:
    from markupsafe import Markup

    page = render(
        PAGE,
        title=f"{read_summary(result.output_path).question or result.name} - {TITLE}",
        name=result.name,
        status=result.status,
        time=_time(result),
        error=result.error,
        body=Markup(notebook_html(result.output_path)),
    )
    loads = outside_loads(page)
    assert not loads, loads
    return page


def _index_page(planned: list[PlannedRun], results: list[NotebookResult], seconds: float, folder: Path) -> str:
    return render(
        INDEX,
        title=TITLE,
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        seconds=seconds,
        num_failed=sum(not result.ok for result in results),
        runs=[_section(run, result, folder) for run, result in zip(planned, results, strict=True)],
        versions=_versions(),
        machine=_machine(),
        command=shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]),
    )


def _section(run: PlannedRun, result: NotebookResult, folder: Path) -> dict[str, object]:
    """Gather what the index shows of one run."""
    from markupsafe import Markup

    try:
        summary = read_summary(result.output_path)
    except (ValueError, FileNotFoundError):
        summary = Summary(question=read_summary(run.notebook).question)
    page = f"{result.name}.html"
    rows = [
        {"name": key, "value": _value(value), "meaning": run.declared[key].meaning, "given": key in result.given}
        for key, value in result.parameters.items()
    ]
    return {
        "name": result.name,
        "title": summary.question or result.name,
        "suffix": "" if result.name == result.notebook.stem else f"({result.name})",
        "ok": result.ok,
        "status": result.status,
        "time": _time(result),
        "error": result.error,
        "page": page if (folder / page).is_file() and result.started else "",
        "answer": Markup(markdown_html(summary.answer)) if summary.answer else "",
        "figure": summary.figure,
        "figure_alt": summary.figure_alt,
        "parameters": rows,
        "facts": [(name, shown(value)) for name, value in summary.facts.items()],
    }


def _value(value: object) -> str:
    return '""' if value == "" else str(value)


def _time(result: NotebookResult) -> str:
    return f"{result.seconds:.1f} s" if result.started else "not run"


def _versions() -> list[tuple[str, str]]:
    """List versions from package metadata, without importing torch and the like."""
    versions = [("python", platform.python_version())]
    for package in PACKAGES:
        try:
            versions.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            versions.append((package, "not installed"))
    return versions


def _machine() -> list[tuple[str, str]]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("cores", str(len(os.sched_getaffinity(0)))),
        ("memory", f"{memory:.1f} GiB"),
    ]
