"""What is known of a source without reading its tokens: one row a good sample, and every bad one.

The first open of a source writes an index, and a token store where the source cannot be read in place; both stand
beside the source or under the cache folder, under a name made of the source's files with their sizes and times.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.folders import build_folder, first_writable, folders_for, key_of
from dflash_lab.data.progress import ReadingProgress
from dflash_lab.data.readers import SourceFiles, can_map, read_blocks
from dflash_lab.data.rows import RowBlock
from dflash_lab.data.store import MappedTokens, StoreWriter

# Changes whenever what stands in the files of a folder changes its meaning.
_FORMAT = 1


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
        if kept.is_file():
            counts[longer] = np.load(kept)
            return counts
        for row in longer.tolist():
            mask = self.tokens.row(self.token_rows[row])[1][:max_seq_len]
            counts[row] = np.count_nonzero(mask)
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".partial", delete=False) as file:
                np.save(file, counts[longer])
            os.replace(file.name, kept)
        except OSError:
            # A folder that has become read-only costs the time of counting again, nothing else.
            pass
        return counts


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
    name = f"{source.path.name}-{key_of([str(source.path), source.split, dict(columns)])}"
    version = key_of([_FORMAT, state])
    for base in folders_for(source.path):
        folder = base / name / version
        if (folder / "meta.json").is_file():
            index = _load(folder, source, columns)
            _stop(index.bad if stop_at_bad_row else None)
            return index
    folder = first_writable(folders_for(source.path)) / name / version
    in_place = can_map(source, columns)
    build_index(
        read_blocks(source, columns), folder, in_place=in_place, stop_at_bad_row=stop_at_bad_row, label=source.path.name
    )
    if source.state() != state:
        shutil.rmtree(folder, ignore_errors=True)
        raise ValueError(f"{source.path} changed while it was read; open it again when nothing writes to it")
    for other in folder.parent.iterdir():
        # What was made from the source's earlier states serves nobody; open maps of it stay valid.
        if other != folder and not other.name.endswith(".partial"):
            shutil.rmtree(other, ignore_errors=True)
    return _load(folder, source, columns)


def build_index(blocks: Iterable[RowBlock], folder: Path, *, in_place: bool, stop_at_bad_row: bool, label: str) -> None:
    """Stream blocks once into an index, and into a store unless rows are read in place; written aside, renamed whole.

    Raises:
        ValueError: If there are no rows, or a bad row that is an error.
        OSError: If the folder cannot be written.
    """
    build_folder(folder, lambda aside: _write(blocks, aside, in_place, stop_at_bad_row, label))


def _write(blocks: Iterable[RowBlock], aside: Path, in_place: bool, stop_at_bad_row: bool, label: str) -> None:
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    sources: list[str | None] = []
    bad: list[tuple[int, str, str]] = []
    num_rows = 0
    files: list[tuple[str, int]] = []
    progress = ReadingProgress(label)
    writer = None if in_place else StoreWriter(aside / "store.arrow")
    with writer or nullcontext():
        for block in blocks:
            bad += [(row.row_number, row.reason, row.message) for row in block.bad]
            if stop_at_bad_row:
                _stop(_bad_table(bad))
            if not files or files[-1][0] != block.file:
                files.append((block.file, num_rows))
            num_rows += block.num_rows
            for name, column in _describe(block).items():
                columns[name].append(column)
            sources += block.sources
            if writer:
                writer.write(block)
            progress.update(block.share_read, num_rows)
    progress.done(num_rows)
    arrays = {name: np.concatenate([np.empty(0, dtype), *columns[name]]) for name, dtype in _COLUMNS.items()}
    repeats = np.ones(len(arrays["digest"]), dtype=bool)
    repeats[np.unique(arrays["digest"], return_index=True)[1]] = False
    table = pa.table(
        {**arrays, "repeat": repeats.view(np.uint8), "source": pa.array(sources, pa.string()).dictionary_encode()}
    )
    for name, rows in (("rows", table), ("bad", _bad_table(bad))):
        with pa.ipc.new_file(str(aside / f"{name}.arrow"), rows.schema) as file:
            file.write_table(rows)
    meta = {"in_place": in_place, "num_rows": num_rows, "files": files}
    (aside / "meta.json").write_text(json.dumps(meta))


def _describe(block: RowBlock) -> dict[str, np.ndarray]:
    """One value a good row for each index column."""
    num_rows = len(block.row_numbers)
    lengths = np.diff(block.offsets)
    supervised = np.concatenate([[0], np.cumsum(block.loss_mask, dtype=np.int64)])
    max_ids = np.full(num_rows, -1, np.int32)
    filled = np.flatnonzero(lengths)
    if filled.size:
        max_ids[filled] = np.maximum.reduceat(block.input_ids, block.offsets[:-1][filled])
    ids = memoryview(block.input_ids.astype("<i4", copy=False)).cast("B")
    mask = memoryview(block.loss_mask).cast("B")
    digests = []
    for begin, end in zip(block.offsets[:-1].tolist(), block.offsets[1:].tolist(), strict=True):
        digest = blake2b(ids[4 * begin : 4 * end], digest_size=8)
        digest.update(mask[begin:end])
        digests.append(digest.digest())
    return {
        "row_number": block.row_numbers,
        "line_number": np.full(num_rows, -1) if block.line_numbers is None else block.line_numbers,
        "length": lengths.astype(np.int32),
        "loss_tokens": (supervised[block.offsets[1:]] - supervised[block.offsets[:-1]]).astype(np.int32),
        "max_id": max_ids,
        "digest": np.frombuffer(b"".join(digests), "<u8"),
    }


_COLUMNS = {
    "row_number": np.int64,
    "line_number": np.int64,
    "length": np.int32,
    "loss_tokens": np.int32,
    "max_id": np.int32,
    "digest": np.uint64,
}


def load_index(folder: Path, tokens: MappedTokens | None) -> SourceIndex:
    """Open the index in a folder; `tokens` where rows are read in place, else the folder's own store."""
    meta = json.loads((folder / "meta.json").read_text())
    rows, bad = (pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all() for name in ("rows", "bad"))
    arrays = {name: rows[name].to_numpy() for name in _COLUMNS}
    return SourceIndex(
        folder=folder,
        tokens=tokens or MappedTokens((folder / "store.arrow",)),
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
    )


def _load(folder: Path, source: SourceFiles, columns: Mapping[str, str | None]) -> SourceIndex:
    in_place = json.loads((folder / "meta.json").read_text())["in_place"]
    tokens = MappedTokens(source.files, str(columns["input_ids"]), str(columns["loss_mask"])) if in_place else None
    return load_index(folder, tokens)


def _stop(bad: pa.Table | None) -> None:
    if bad is not None and len(bad):
        raise ValueError(f'{bad["message"][0].as_py()}; on_bad_row="skip" leaves bad rows out and counts them')


def _bad_table(bad: list[tuple[int, str, str]]) -> pa.Table:
    numbers, reasons, messages = zip(*bad, strict=True) if bad else ((), (), ())
    return pa.table(
        {
            "row_number": pa.array(numbers, pa.int64()),
            "reason": pa.array(reasons, pa.string()),
            "message": pa.array(messages, pa.string()),
        }
    )
