"""What a notebook run gives back, and how it is written beside the notebook."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

STATUSES = ("ok", "error", "timeout", "kernel-died", "interrupted", "incomplete")


class NotebookError(RuntimeError):
    """A notebook run that did not end well."""


@dataclass(frozen=True, kw_only=True)
class NotebookResult:
    """How one run of a notebook ended.

    Attributes:
        notebook: The notebook that was run.
        name: Name of the run; names its files.
        status: `ok`, `error` (a cell raised), `timeout`, `kernel-died`, `interrupted`, or `incomplete` (cells are left
            that never finished although nothing was raised, as after `sys.exit(0)`).
        output_path: The executed notebook; ends in `.partial.ipynb` unless the status is `ok`.
        seconds: Wall time of the run, kernel start included.
        cells: Code cells to execute, the injected parameters included.
        completed: Code cells that finished without an error.
        error: What went wrong, in one text; empty when the status is `ok`.
        parameters: All parameter values in use, defaults included.
        given: Names of the parameters that differ from the notebook's own text because the caller gave them.
        started: Start of the run, ISO 8601 with time zone.
    """

    notebook: Path
    name: str
    status: str
    output_path: Path
    seconds: float
    cells: int
    completed: int
    error: str
    parameters: dict[str, object]
    given: tuple[str, ...]
    started: str

    def __post_init__(self) -> None:
        """Hold the status to the known ones."""
        assert self.status in STATUSES, self.status

    @property
    def ok(self) -> bool:
        """True when every cell ran to its end."""
        return self.status == "ok"

    def raise_for_status(self) -> None:
        """Raise when the run did not end well.

        Raises:
            NotebookError: If the status is not `ok`; names the run, the status, the error and the file to look at.
        """
        if not self.ok:
            raise NotebookError(f"{self.name}: {self.status}: {self.error} (see {self.output_path})")

    def save(self, path: str | os.PathLike) -> None:
        """Write the result as strict JSON, whole or not at all.

        Args:
            path: The file to write.
        """
        record = asdict(self) | {"notebook": str(self.notebook), "output_path": str(self.output_path)}
        write_whole(Path(path), json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file aside and rename it, so that a reader finds the old or the new text, never a part.

    Args:
        path: The file to write.
        text: Its new content.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8", errors="backslashreplace")
    aside.replace(path)
