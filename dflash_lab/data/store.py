"""The token store: an Arrow IPC or Parquet file, written a block at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.columns import canonical_columns
from dflash_lab.data.folders import aside_prefix, remove_left_behind
from dflash_lab.data.paths import check_name, user_path
from dflash_lab.data.row_checks import check_row
from dflash_lab.data.rows import BLOCK_ROWS, BLOCK_TOKENS, CheckedRow, RowBlock, RowProblem

# large_list: offsets of list<int32> overflow at 2^31 tokens. The mask is a byte a token, since bits cannot be mapped.
STORE_SCHEMA = pa.schema(
    [
        ("input_ids", pa.large_list(pa.int32())),
        ("loss_mask", pa.large_list(pa.uint8())),
        ("length", pa.int32()),
        ("source", pa.string()),
        ("id", pa.string()),
    ]
)


class StoreWriter:
    """Writes blocks to one file, aside; `close` puts it in place and leaving by an exception removes it.

    Args:
        path: Where the file will stand; ".arrow" writes Arrow IPC, ".parquet" Parquet.

    Raises:
        ValueError: If the suffix is another one.
        OSError: If it cannot be written, naming it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = user_path(path)
        check_name(self.path)
        if self.path.suffix not in (".arrow", ".parquet"):
            raise ValueError(f"{self.path} ends in {self.path.suffix!r}; legal: .arrow, .parquet")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_left_behind(self.path.parent, self.path.name)
        handle, aside = tempfile.mkstemp(prefix=aside_prefix(self.path.name), suffix=".partial", dir=self.path.parent)
        os.close(handle)
        self._aside = Path(aside)
        if self.path.suffix == ".arrow":
            self._writer = pa.ipc.new_file(aside, STORE_SCHEMA)
        else:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(aside, STORE_SCHEMA)

    def write(self, block: RowBlock) -> None:
        """Append the good rows of a block."""
        if not len(block.row_numbers):
            return
        offsets = pa.array(block.offsets)
        batch = pa.record_batch(
            [
                pa.LargeListArray.from_arrays(offsets, pa.array(block.input_ids)),
                pa.LargeListArray.from_arrays(offsets, pa.array(block.loss_mask)),
                pa.array(np.diff(block.offsets).astype(np.int32)),
                pa.array(block.sources, pa.string()),
                pa.array(block.row_ids, pa.string()),
            ],
            schema=STORE_SCHEMA,
        )
        with self._naming_path():
            self._writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file and rename it into place."""
        with self._naming_path():
            self._writer.close()
            with self._aside.open("rb+") as file:
                os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read.
        self._aside.chmod(0o644)
        os.replace(self._aside, self.path)

    def __enter__(self) -> StoreWriter:
        """Start a `with`."""
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        """Put the file in place, or remove it after an exception."""
        try:
            if exception_type is None:
                self.close()
            else:
                # What went wrong first is what is said: a full disk fails once more here.
                with suppress(OSError, pa.ArrowException):
                    self._writer.close()
        finally:
            self._aside.unlink(missing_ok=True)

    @contextmanager
    def _naming_path(self) -> Iterator[None]:
        """Arrow says that writing failed, but not where."""
        try:
            yield
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, f"cannot be written, {os.strerror(error.errno)}", str(self.path)) from error


def write_samples(path: str | os.PathLike[str], rows: Iterable[Mapping[str, object]]) -> int:
    """Write rows as a token store that `PreloadedDataset.open` reads.

    Args:
        path: ".arrow" (read in place) or ".parquet"; written aside and renamed whole.
        rows: Mappings with `input_ids` (whole numbers (L,)), `loss_mask` (0/1 (L,)), and optionally `source` and `id`
            (text); read once, never held in memory together.

    Returns:
        Number of rows written.

    Raises:
        ValueError: If a row is not legal, naming the row; nothing stands at `path` then.
    """
    columns = canonical_columns(None)

    def checked() -> Iterator[CheckedRow]:
        for number, row in enumerate(rows):
            try:
                yield check_row(row, columns)
            except RowProblem as problem:
                raise ValueError(f"{path}, row {number}: {problem}") from None

    num_rows = 0
    with StoreWriter(path) as writer:
        for block in blocks_of(checked()):
            writer.write(block)
            num_rows += block.num_rows
    return num_rows


def blocks_of(rows: Iterable[CheckedRow]) -> Iterator[RowBlock]:
    """Gather good rows into blocks; rows are numbered from 0."""
    held: list[CheckedRow] = []
    num_tokens = first_row = 0
    for row in rows:
        held.append(row)
        num_tokens += len(row.input_ids)
        if len(held) == BLOCK_ROWS or num_tokens >= BLOCK_TOKENS:
            yield block_of(held, np.arange(first_row, first_row + len(held)))
            first_row += len(held)
            held, num_tokens = [], 0
    if held:
        yield block_of(held, np.arange(first_row, first_row + len(held)))


def block_of(rows: list[CheckedRow], row_numbers: np.ndarray, **more: object) -> RowBlock:
    """Lay checked rows end to end; `more` are the block's other fields."""
    lengths = [len(row.input_ids) for row in rows]
    fields = {"num_rows": len(rows), **more}
    return RowBlock(
        row_numbers=row_numbers,
        input_ids=np.concatenate([np.empty(0, np.int32), *(row.input_ids for row in rows)]),
        loss_mask=np.concatenate([np.empty(0, np.uint8), *(row.loss_mask for row in rows)]),
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        sources=[row.source for row in rows],
        row_ids=[row.row_id for row in rows],
        **fields,  # type: ignore[arg-type]
    )
