"""Which runs a report has: the notebooks of a folder, and the further runs that its `report.toml` lists."""

import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dflash_lab.notebooks.parameters import Parameter, check_parameters, read_parameters, unknown_name
from dflash_lab.notebooks.runner import check_name

NOTEBOOK_PATTERN = "[0-9][0-9]_*.ipynb"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a report: a notebook, a name and checked values; `note` says what of the given ones it leaves out."""

    notebook: Path
    name: str
    values: dict[str, object]
    declared: dict[str, Parameter]
    note: str = ""


def plan_runs(
    notebooks: str | os.PathLike, *, parameters: Mapping[str, object], only: str | Sequence[str] | None
) -> list[PlannedRun]:
    """Decide what a report runs, and check all of it before anything runs.

    Args:
        notebooks: Folder of the notebooks.
        parameters: Values by name for every run whose notebook has them. A notebook that trains for a target takes
            `data_path` only together with `target`.
        only: Beginning of a run's name, or several; all when None.

    Returns:
        The runs in order.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: As for `build_report`.
    """
    folder = Path(notebooks).expanduser().absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of notebooks at {folder}")
    listed = [(path, path.stem, {}) for path in folder.glob(NOTEBOOK_PATTERN)] + _further_runs(folder)
    names = [name for _, name, _ in listed]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two runs of the report are named {doubled[0]!r}; names must differ")
    # A notebook's own run stands before the further ones, which keep the order of the file.
    listed.sort(key=lambda run: (run[0].name, run[1] != run[0].stem))
    if only is not None:
        beginnings = (only,) if isinstance(only, str) else tuple(only)
        for beginning in beginnings:
            if not any(name.startswith(beginning) for name in names):
                raise ValueError(f"only={beginning!r} matches no run; runs: {', '.join(sorted(names)) or '(none)'}")
        listed = [run for run in listed if run[1].startswith(beginnings)]
    if not listed:
        raise ValueError(f"no notebooks named {NOTEBOOK_PATTERN} in {folder}")
    declared = {path: read_parameters(path) for path, _, _ in listed}
    legal = list(dict.fromkeys(name for names in declared.values() for name in names))
    for key in parameters:
        if key not in legal:
            raise ValueError(unknown_name("no notebook of this report has a parameter", key, legal))
    planned = []
    for path, name, own in listed:
        values = {key: value for key, value in parameters.items() if key in declared[path]} | own
        note = ""
        if "target" in declared[path] and "target" not in values and values.get("data_path"):
            # Ids mean nothing to a model that was made with another tokenizer.
            values["data_path"] = ""
            note = "on the built-in corpus: for your samples it needs the model that knows their ids, -p target FOLDER"
        values = check_parameters(declared[path], values, notebook=path.name)
        planned.append(PlannedRun(notebook=path, name=name, values=values, declared=declared[path], note=note))
    return planned


def _further_runs(folder: Path) -> list[tuple[Path, str, dict[str, object]]]:
    """Read report.toml, where there is one."""
    path = folder / "report.toml"
    if not path.is_file():
        return []
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    runs = []
    for entry in content.get("run", []):
        if set(content) != {"run"} or set(entry) - {"parameters"} != {"notebook", "name"}:
            raise ValueError(
                f"{path}: {entry} must have `notebook` and `name`, may have `parameters`, and nothing else"
            )
        notebook = folder / entry["notebook"]
        notebook = notebook if notebook.suffix == ".ipynb" else notebook.with_name(f"{notebook.name}.ipynb")
        if not notebook.is_file():
            raise ValueError(f"{path}: run {entry['name']!r} names {entry['notebook']!r}, which is not in {folder}")
        runs.append((notebook, check_name(entry["name"]), entry.get("parameters", {})))
    if not runs:
        raise ValueError(f"{path} lists no [[run]]; legal is only a list of those")
    return runs
