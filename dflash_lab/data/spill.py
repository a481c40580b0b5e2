"""Rows that are in no file: a temporary store, which goes when the data set that reads it does."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_lab.data.folders import build_folder
from dflash_lab.data.index import SourceIndex, load_index
from dflash_lab.data.index_write import write_index
from dflash_lab.data.rows import RowBlock


class Spill:
    """A temporary folder with the index and store of some blocks, removed by `remove` or with its owner.

    Args:
        blocks: From one of the readers.
        columns: From `canonical_columns`.
        stop_at_bad_row: Whether the first bad row is an error.
        name: What the rows are, for messages.

    Raises:
        ValueError: As `write_index`.
    """

    def __init__(
        self, blocks: Iterator[RowBlock], columns: Mapping[str, str | None], *, stop_at_bad_row: bool, name: str
    ) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="dflash-lab-"))

        def build(folder: Path) -> None:
            write_index(blocks, folder, columns, in_place=False, stop_at_bad_row=stop_at_bad_row, name=name)

        try:
            build_folder(self._base / "store", build, room_variable="TMPDIR")
            self.index: SourceIndex = load_index(self._base / "store")
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder; open maps of it stay valid."""
        shutil.rmtree(self._base, ignore_errors=True)

    def remove_with(self, owner: object) -> None:
        """Remove the folder when `owner` goes, or this process ends; a forked process leaves it to this one."""
        weakref.finalize(owner, _remove, self._base, os.getpid())


def _remove(base: Path, made_by: int) -> None:
    if os.getpid() == made_by:
        shutil.rmtree(base, ignore_errors=True)
