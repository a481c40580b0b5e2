"""What is known of a source without reading its tokens: one row a good sample, and every bad one.

The first open of a source writes an index, and a token store where the source cannot be read in place; both stand
beside the source or under the cache folder, under a name made of the source's files with their sizes and times.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.files import SourceFiles
from dflash_lab.data.folders import aside_prefix, folders_for, key_of, load_or_build
from dflash_lab.data.index_write import INDEX_COLUMNS, bad_row_error, write_index
from dflash_lab.data.mapped import MappedTokens
from dflash_lab.data.paths import short_name
from dflash_lab.data.readers import can_map, read_blocks

# Changes whenever what stands in the files of a folder changes its meaning.
_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class SourceIndex:
    """The good rows of a source, in its order, and the bad ones.

    Args:
        folder: Where index and store stand.
        tokens: The rows' tokens.
        token_rows: int64 (n,), row of `tokens` for each good row.
        row_numbers: int64 (n,), place in the source, from 0.
        line_numbers: int64 (n,), physical line from 1, -1 where the source has none.
        lengths: int32 (n,), in tokens, uncut.
        loss_tokens: int32 (n,), supervised tokens, uncut.
        max_ids: int32 (n,), largest id, -1 for an empty row.
        digests: uint64 (n,), hash of each row's ids and mask.
        repeats: bool (n,), whether an earlier row has the same ids and mask.
        sources: Arrow dictionary array (n,) of text or null.
        bad: Table of row_number, reason, message.
        num_rows: Good and bad rows.
        files: Name and number of the first row of each file.
        ids_name: The source's name for input_ids.
    """

    folder: Path
    tokens: MappedTokens
    token_rows: np.ndarray
    row_numbers: np.ndarray
    line_numbers: np.ndarray
    lengths: np.ndarray
    loss_tokens: np.ndarray
    max_ids: np.ndarray
    digests: np.ndarray
    repeats: np.ndarray
    sources: pa.DictionaryArray
    bad: pa.Table
    num_rows: int
    files: list[tuple[str, int]]
    ids_name: str

    def place(self, row: int) -> str:
        """Name where a good row stands: its file, and its physical line or its number in the file."""
        number = int(self.row_numbers[row])
        file, first = next((entry for entry in reversed(self.files) if entry[1] <= number), ("", 0))
        line = self.line_numbers[row]
        return f"{file}, line {line}" if line > 0 else f"{file}, row {number - first}"

    def loss_tokens_within(self, max_seq_len: int) -> np.ndarray:
        """Count the supervised tokens among the first `max_seq_len` of each row: int32 (n,).

        Reads the masks of the longer rows once and keeps the counts beside the index.
        """
        longer = np.flatnonzero(self.lengths > max_seq_len)
        counts = self.loss_tokens.copy()
        if not longer.size:
            return counts
        kept = self.folder / f"cut-{max_seq_len}.npy"
        try:
            kept_counts = np.load(kept)
            if kept_counts.shape == longer.shape:
                counts[longer] = kept_counts
                return counts
        except (OSError, ValueError, EOFError):
            # Not counted before, cut off, or another user's: counted now.
            pass
        for row in longer.tolist():
            mask = self.tokens.row(self.token_rows[row])[1][:max_seq_len]
            counts[row] = np.count_nonzero(mask)
        _keep(kept, counts[longer])
        return counts

    def first_past(self, row: int, vocab_size: int) -> tuple[int, int]:
        """Place and value of a good row's first id at or past `vocab_size`; there is one."""
        ids = self.tokens.row(int(self.token_rows[row]))[0]
        at = int(np.flatnonzero(ids >= vocab_size)[0])
        return at, int(ids[at])


def _keep(path: Path, counts: np.ndarray) -> None:
    """Write counts beside the index; where that fails, they are counted again another time and nothing else."""
    try:
        handle, aside = tempfile.mkstemp(prefix=aside_prefix(path.name), suffix=".partial", dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, counts)
        # mkstemp makes files that only their owner can read.
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except OSError:
        Path(aside).unlink(missing_ok=True)


def open_index(source: SourceFiles, columns: Mapping[str, str | None], *, stop_at_bad_row: bool) -> SourceIndex:
    """Give a source's index, built first where there is none for the source as it is now.

    Args:
        source: From `find_files`.
        columns: From `canonical_columns`.
        stop_at_bad_row: Whether the first bad row is an error.

    Raises:
        ValueError: If a file cannot be read, changes while it is read, or has a bad row that is an error.
    """
    state = source.state()
    name = f"{short_name(source.path.name)}-{key_of([str(source.path), source.split, dict(columns)])}"
    version = key_of([_FORMAT, state])

    def load(folder: Path) -> SourceIndex:
        return load_index(folder, source, columns)

    def build(folder: Path) -> None:
        write_index(
            read_blocks(source, columns),
            folder,
            columns,
            in_place=can_map(source, columns),
            stop_at_bad_row=stop_at_bad_row,
            name=str(source.path),
        )
        _check_unchanged(source, state)

    places = [base / name / version for base in folders_for(source.path)]
    index = load_or_build(places, load, build, label=str(source.path))
    # Files that were replaced after their state was taken would be mapped under the old lengths.
    _check_unchanged(source, state)
    if stop_at_bad_row and len(index.bad):
        raise bad_row_error(index.bad["message"][0].as_py())
    return index


def _check_unchanged(source: SourceFiles, state: list[list[object]]) -> None:
    try:
        now = source.state()
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} was removed while it was read") from error
    if now != state:
        raise ValueError(f"{source.path} changed while it was read; open it again when nothing writes to it")


def load_index(
    folder: Path, source: SourceFiles | None = None, columns: Mapping[str, str | None] | None = None
) -> SourceIndex:
    """Open the index in a folder.

    Args:
        folder: Written by `write_index`.
        source: The source, whose rows may be read in place; None where the folder has a store for certain.
        columns: From `canonical_columns`; goes with `source`.

    Raises:
        ValueError, KeyError, OSError: If the index is damaged.
    """
    meta = json.loads((folder / "meta.json").read_text())
    rows, bad = (pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all() for name in ("rows", "bad"))
    arrays = {name: rows[name].to_numpy() for name in INDEX_COLUMNS}
    if meta["in_place"]:
        assert source is not None and columns is not None
        tokens = MappedTokens(source.files, str(columns["input_ids"]), str(columns["loss_mask"]))
    else:
        tokens = MappedTokens((folder / "store.arrow",))
    if len(tokens) != (meta["num_rows"] if meta["in_place"] else len(rows)) or len(rows) + len(bad) != meta["num_rows"]:
        raise ValueError(f"{folder} does not agree with its tokens: {len(tokens)} rows for an index of {len(rows)}")
    return SourceIndex(
        folder=folder,
        tokens=tokens,
        token_rows=arrays["row_number"] if meta["in_place"] else np.arange(len(rows)),
        row_numbers=arrays["row_number"],
        line_numbers=arrays["line_number"],
        lengths=arrays["length"],
        loss_tokens=arrays["loss_tokens"],
        max_ids=arrays["max_id"],
        digests=arrays["digest"],
        repeats=rows["repeat"].to_numpy().view(bool),
        sources=rows["source"].combine_chunks() if len(rows) else pa.array([], pa.string()).dictionary_encode(),
        bad=bad,
        num_rows=meta["num_rows"],
        files=[(name, first) for name, first in meta["files"]],
        ids_name=meta["ids_name"],
    )
