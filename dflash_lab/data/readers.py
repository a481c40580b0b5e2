"""The one place where sample files are read: every format becomes blocks of checked rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.arrow_rows import check_schema, checked_blocks, used_columns
from dflash_lab.data.columns import optional_columns_in
from dflash_lab.data.damage import naming_file
from dflash_lab.data.files import SourceFiles, file_format
from dflash_lab.data.lines import iter_json_lines
from dflash_lab.data.mapped import is_mappable, record_batches
from dflash_lab.data.row_checks import check_row
from dflash_lab.data.rows import BLOCK_ROWS, BLOCK_TOKENS, BadRow, CheckedRow, RowBlock, RowProblem
from dflash_lab.data.store import block_of

_PARQUET_BATCH_BYTES = 16_000_000
_KINDS = {"json": "JSON lines", "arrow": "an Arrow IPC file", "parquet": "a Parquet file"}


def can_map(source: SourceFiles, columns: Mapping[str, str | None]) -> bool:
    """Tell whether rows can be read in place: Arrow IPC, plain lists of numbers, not compressed."""
    if any(file_format(file) != "arrow" for file in source.files):
        return False
    return all(is_mappable(file, str(columns["input_ids"]), str(columns["loss_mask"])) for file in source.files)


def read_blocks(source: SourceFiles, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    """Read a source once, in bounded memory, as blocks of checked rows with bad rows among them.

    Args:
        source: From `find_files`.
        columns: From `canonical_columns`.

    Raises:
        ValueError: If a file is cut off, foreign, or lacks a column; the message names it.
    """
    sizes = [max(file.stat().st_size, 1) for file in source.files]
    first_row = 0
    for number, file in enumerate(source.files):
        before, share = sum(sizes[:number]) / sum(sizes), sizes[number] / sum(sizes)
        form = str(file_format(file))
        with naming_file(file, _KINDS[form]):
            for block in _READ[form](file, first_row, columns):
                first_row += block.num_rows
                yield replace(block, share_read=before + share * block.share_read, file=str(file))


def blocks_of_rows(rows: Iterable[object], columns: Mapping[str, str | None], *, name: str) -> Iterator[RowBlock]:
    """Check rows given as mappings; `name` stands for a file name in messages."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ValueError(f"rows is a {type(rows).__name__}; legal: mappings, such as a list of dicts")
    gathered = _Gathered(0)
    for number, row in enumerate(rows):
        problem = None
        if not isinstance(row, Mapping):
            problem = RowProblem("not_an_object", f"the row is a {type(row).__name__}; legal: a mapping")
        gathered.add(row, problem, f"{name}, row {number}", columns)
        if gathered.full:
            yield replace(gathered.block(), file=name)
    yield replace(gathered.block(), file=name)


def blocks_of_tables(
    tables: Iterable[pa.Table | pa.RecordBatch], columns: Mapping[str, str | None], *, name: str
) -> Iterator[RowBlock]:
    """Check rows given as Arrow tables of one schema; `name` stands for a file name in messages."""
    first_row = 0
    for table in tables:
        check_schema(table.schema, columns, name)
        for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
            with naming_file(name, "a table"):
                for block in checked_blocks(batch, columns, first_row, lambda row: f"{name}, row {row}"):
                    yield replace(block, file=name)
                    first_row += block.num_rows


class _Gathered:
    """Rows on their way into a block, the first of them with the number `first_row`."""

    def __init__(self, first_row: int) -> None:
        self._start(first_row)

    def _start(self, first_row: int) -> None:
        self._first_row = first_row
        self._rows: list[CheckedRow] = []
        self._row_numbers: list[int] = []
        self._line_numbers: list[int] = []
        self._bad: list[BadRow] = []
        self._found: frozenset[str] = frozenset()
        self._num_tokens = self._num_rows = 0

    @property
    def full(self) -> bool:
        return self._num_rows >= BLOCK_ROWS or self._num_tokens >= BLOCK_TOKENS

    def add(
        self, value: object, problem: RowProblem | None, place: str, columns: Mapping[str, str | None], line: int = -1
    ) -> None:
        """Take a row with the problem it already has, or check it."""
        number = self._first_row + self._num_rows
        self._num_rows += 1
        try:
            if problem is not None:
                raise problem
            self._found |= optional_columns_in(columns, value)  # type: ignore[arg-type]
            row = check_row(value, columns)  # type: ignore[arg-type]
        except RowProblem as found:
            self._bad.append(BadRow(number, found.reason, f"{place}: {found}"))
            return
        self._rows.append(row)
        self._row_numbers.append(number)
        self._line_numbers.append(line)
        self._num_tokens += len(row.input_ids)

    def block(self, share_read: float = 1.0) -> RowBlock:
        """Give what has been gathered and start anew."""
        block = block_of(
            self._rows,
            np.asarray(self._row_numbers, dtype=np.int64),
            line_numbers=np.asarray(self._line_numbers, dtype=np.int64),
            bad=tuple(self._bad),
            num_rows=self._num_rows,
            found=self._found,
            share_read=share_read,
        )
        self._start(self._first_row + self._num_rows)
        return block


def _read_json_lines(path: Path, first_row: int, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    gathered = _Gathered(first_row)
    share = 1.0
    for line in iter_json_lines(path, allow_empty=True):
        problem = RowProblem(str(line.reason), str(line.problem)) if line.reason else None
        gathered.add(line.value, problem, f"{path}, line {line.line_number}", columns, line.line_number)
        share = line.share_read
        if gathered.full:
            yield gathered.block(share)
    yield gathered.block()


def _read_arrow(path: Path, first_row: int, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    size, seen, row = max(path.stat().st_size, 1), 0, 0
    for batch in record_batches(path, mapped=False):
        check_schema(batch.schema, columns, str(path))
        seen += batch.nbytes
        for block in checked_blocks(batch, columns, first_row + row, _place(path, first_row)):
            row += block.num_rows
            yield replace(block, share_read=min(seen / size, 1.0))


def _read_parquet(path: Path, first_row: int, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
        check_schema(file.schema_arrow, columns, str(path))
        wanted = [name for name in used_columns(columns) if name in file.schema_arrow.names]
        total = file.metadata.num_rows
        stored = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        rows_at_once = int(min(max(_PARQUET_BATCH_BYTES * total // max(stored, 1), 1), BLOCK_ROWS))
        row = 0
        for batch in file.iter_batches(batch_size=rows_at_once, columns=wanted):
            for block in checked_blocks(batch, columns, first_row + row, _place(path, first_row)):
                row += block.num_rows
                yield replace(block, share_read=row / max(total, 1))
        if row != total:
            raise ValueError(f"{path} is cut off: {row} of {total} rows could be read")


_READ: dict[str, Callable[[Path, int, Mapping[str, str | None]], Iterator[RowBlock]]] = {
    "json": _read_json_lines,
    "arrow": _read_arrow,
    "parquet": _read_parquet,
}


def _place(path: Path, first_row: int) -> Callable[[int], str]:
    """Name a row by its place in its own file, counted from 0."""
    return lambda row: f"{path}, row {row - first_row}"
