"""The token store: Arrow IPC files, written a block at a time and read by memory map, a row at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.rows import (
    BLOCK_ROWS,
    BLOCK_TOKENS,
    CheckedRow,
    RowBlock,
    RowProblem,
    canonical_columns,
    check_row,
)

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

_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
# Mapping a record batch takes some 30 us at every open, and memory for its description.
_LEAST_ROWS_A_BATCH = 32


class StoreWriter:
    """Writes blocks to one file, aside; `close` puts it in place and leaving by an exception removes it.

    Args:
        path: Where the file will stand; ".arrow" writes Arrow IPC, ".parquet" Parquet.

    Raises:
        ValueError: If the suffix is another one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix not in (".arrow", ".parquet"):
            raise ValueError(f"{self.path} ends in {self.path.suffix!r}; legal: .arrow, .parquet")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".partial", dir=self.path.parent)
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
        self._writer.write_batch(
            pa.record_batch(
                [
                    pa.LargeListArray.from_arrays(offsets, pa.array(block.input_ids)),
                    pa.LargeListArray.from_arrays(offsets, pa.array(block.loss_mask)),
                    pa.array(np.diff(block.offsets).astype(np.int32)),
                    pa.array(block.sources, pa.string()),
                    pa.array(block.row_ids, pa.string()),
                ],
                schema=STORE_SCHEMA,
            )
        )

    def close(self) -> None:
        """Finish the file and rename it into place."""
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
        if exception_type is None:
            self.close()
        else:
            self._writer.close()
            self._aside.unlink(missing_ok=True)


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


@dataclass(frozen=True)
class _Column:
    """One list column of one record batch: where its rows begin and end, and its values without a copy."""

    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray | pa.BooleanArray

    def row(self, index: int) -> np.ndarray:
        """View of one row; a copy of that row where the values are bits."""
        part = self.values[self.starts[index] : self.stops[index]]
        return part if isinstance(part, np.ndarray) else part.to_numpy(zero_copy_only=False)


class MappedTokens:
    """Rows of one or more Arrow IPC files, by number, without reading or copying anything else.

    Args:
        paths: Arrow IPC files, in the file or the stream format, in the order of the rows.
        ids_name: Column of the token ids.
        mask_name: Column of the loss mask.
    """

    def __init__(self, paths: tuple[Path, ...], ids_name: str = "input_ids", mask_name: str = "loss_mask") -> None:
        self._arguments = (paths, ids_name, mask_name)
        self._names = (ids_name, mask_name)
        self._batches = [batch for path in paths for batch in record_batches(path, mapped=True)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)
        self._columns: dict[int, tuple[_Column, _Column]] = {}

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __reduce__(self) -> tuple[type[MappedTokens], tuple[object, ...]]:
        """Pickle as the files, which another process maps anew."""
        return MappedTokens, self._arguments

    def row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Give one row's ids and mask as read-only views of the map, in the file's own types."""
        at = int(np.searchsorted(self._ends, number, side="right"))
        if at not in self._columns:
            batch = self._batches[at]
            self._columns[at] = tuple(_column(batch.column(name)) for name in self._names)  # type: ignore[assignment]
        inside = number - (int(self._ends[at - 1]) if at else 0)
        ids, mask = self._columns[at]
        return ids.row(inside), mask.row(inside)


def record_batches(path: Path, *, mapped: bool) -> Iterator[pa.RecordBatch]:
    """Give the record batches of an Arrow IPC file or stream.

    Args:
        path: The file.
        mapped: Whether the batches lie in a memory map, for random access; else each is read into memory of its own,
            which is free again after it, for one pass.

    Raises:
        ValueError: If the file is cut off or is not Arrow IPC; the message names it.
    """
    if mapped:
        buffer = _map_file(path)
        yield from _batches_in(path, pa.BufferReader(buffer), buffer.size)
        return
    try:
        file = pa.OSFile(str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    with file:
        yield from _batches_in(path, file, file.size())


def is_mappable(path: Path, ids_name: str, mask_name: str) -> bool:
    """Tell whether rows of an Arrow IPC file can be read in place.

    They cannot where the token columns are compressed or of a kind without plain offsets, or where the file is cut
    into so many record batches that mapping them costs more than a copy.

    Raises:
        ValueError: If the file is cut off or is not Arrow IPC.
    """
    mapped = _map_file(path)
    num_batches = num_rows = 0
    for batch in _batches_in(path, pa.BufferReader(mapped), mapped.size):
        num_batches += 1
        num_rows += batch.num_rows
        for name in (ids_name, mask_name):
            if name in batch.schema.names and not _is_plain(batch.column(name), mapped):
                return False
    return num_rows >= num_batches * _LEAST_ROWS_A_BATCH


def _is_plain(array: pa.Array, mapped: pa.Buffer) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(array.type) for is_kind in kinds):
        # What is no list at all is refused when its schema is checked.
        return not (pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type))
    held = [buffer for buffer in array.values.buffers()[1:] if buffer is not None and buffer.size]
    return all(0 <= buffer.address - mapped.address < mapped.size for buffer in held)


def _map_file(path: Path) -> pa.Buffer:
    try:
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _batches_in(path: Path, source: pa.NativeFile, size: int) -> Iterator[pa.RecordBatch]:
    try:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            yield from map(reader.get_batch, range(reader.num_record_batches))
            return
        yield from pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"{path} is cut off or is not an Arrow IPC file: {error}") from error
    # A stream that was cut between two messages reads as a shorter one.
    end = source.tell()
    source.seek(max(end - len(_STREAM_END), 0))
    if source.read(len(_STREAM_END)) != _STREAM_END:
        raise ValueError(f"{path} is cut off: the Arrow stream has no end mark, so rows may be missing")
    if end != size:
        raise ValueError(f"{path} goes on for {size - end} bytes behind the end of its Arrow stream")


def list_parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Begin and end of each row in the values of a list array of any kind: int64 (n,), int64 (n,), values."""
    if pa.types.is_fixed_size_list(array.type):
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * array.type.list_size
        return starts, starts + array.type.list_size, array.values
    offsets = array.offsets.to_numpy()
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        return offsets, offsets + array.sizes.to_numpy(), array.values
    return offsets[:-1], offsets[1:], array.values


def plain_values(values: pa.Array) -> np.ndarray:
    """View of a number array's values without a copy; what stands at nulls is undefined."""
    return np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())[values.offset :][: len(values)]


def _column(array: pa.Array) -> _Column:
    starts, stops, values = list_parts(array)
    plain = (
        values if pa.types.is_boolean(values.type) else plain_values(values) if len(values) else np.empty(0, np.int32)
    )
    return _Column(starts, stops, plain)
