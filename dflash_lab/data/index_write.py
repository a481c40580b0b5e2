"""Streaming a source once into its index, and into a token store unless its rows are read in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.columns import check_all_found
from dflash_lab.data.progress import ReadingProgress
from dflash_lab.data.rows import RowBlock
from dflash_lab.data.store import StoreWriter

# One value a good row.
INDEX_COLUMNS = {
    "row_number": np.int64,
    "line_number": np.int64,
    "length": np.int32,
    "loss_tokens": np.int32,
    "max_id": np.int32,
    "digest": np.uint64,
}


def write_index(
    blocks: Iterable[RowBlock],
    folder: Path,
    columns: Mapping[str, str | None],
    *,
    in_place: bool,
    stop_at_bad_row: bool,
    name: str,
) -> None:
    """Stream blocks once into the files of an index.

    Args:
        blocks: From one of the readers.
        folder: Where the files go; it is there.
        columns: From `canonical_columns`.
        in_place: Whether rows are read in place, so that no store is written.
        stop_at_bad_row: Whether the first bad row is an error.
        name: What is read, for messages.

    Raises:
        ValueError: If there is a bad row that is an error, or a column that was given by name is in no row.
        OSError: If the folder cannot be written.
    """
    arrays: dict[str, list[np.ndarray]] = {column: [] for column in INDEX_COLUMNS}
    sources: list[str | None] = []
    bad: list[tuple[int, str, str]] = []
    num_rows = 0
    files: list[tuple[str, int]] = []
    found: frozenset[str] = frozenset()
    progress = ReadingProgress(Path(name).name)
    writer = None if in_place else StoreWriter(folder / "store.arrow")
    with writer or nullcontext():
        for block in blocks:
            bad += [(row.row_number, row.reason, row.message) for row in block.bad]
            if stop_at_bad_row and bad:
                raise bad_row_error(bad[0][2])
            found |= block.found
            if not files or files[-1][0] != block.file:
                files.append((block.file, num_rows))
            num_rows += block.num_rows
            for column, values in _describe(block).items():
                arrays[column].append(values)
            sources += block.sources
            if writer:
                writer.write(block)
            progress.update(block.share_read, num_rows)
    progress.done(num_rows)
    joined = {column: np.concatenate([np.empty(0, dtype), *arrays[column]]) for column, dtype in INDEX_COLUMNS.items()}
    if len(joined["digest"]):
        check_all_found(columns, found, name)
    repeats = np.ones(len(joined["digest"]), dtype=bool)
    repeats[np.unique(joined["digest"], return_index=True)[1]] = False
    table = pa.table(
        {**joined, "repeat": repeats.view(np.uint8), "source": pa.array(sources, pa.string()).dictionary_encode()}
    )
    for stem, rows in (("rows", table), ("bad", _bad_table(bad))):
        with pa.ipc.new_file(str(folder / f"{stem}.arrow"), rows.schema) as file:
            file.write_table(rows)
    meta = {"in_place": in_place, "num_rows": num_rows, "files": files, "ids_name": columns["input_ids"]}
    (folder / "meta.json").write_text(json.dumps(meta))


def bad_row_error(message: str) -> ValueError:
    """Say that a bad row is an error, and how to leave it out instead."""
    return ValueError(f'{message}; on_bad_row="skip" leaves bad rows out and counts them')


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


def _bad_table(bad: list[tuple[int, str, str]]) -> pa.Table:
    numbers, reasons, messages = zip(*bad, strict=True) if bad else ((), (), ())
    messages = [message.encode("utf-8", "backslashreplace").decode() for message in messages]
    return pa.table(
        {
            "row_number": pa.array(numbers, pa.int64()),
            "reason": pa.array(reasons, pa.string()),
            "message": pa.array(messages, pa.string()),
        }
    )
