"""Arrow IPC files by memory map, a row at a time, and as record batches for one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.damage import naming_file
from dflash_lab.data.paths import file_state

_KIND = "an Arrow IPC file"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
# Mapping a record batch takes some 30 us at every open, and memory for its description.
_LEAST_ROWS_A_BATCH = 32


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

    def flags(self) -> np.ndarray | _CopiedFlags:
        """Give values that are all 0 or 1 as bool: a view where each is a byte, else what copies when it is cut."""
        if isinstance(self.values, np.ndarray) and self.values.itemsize == 1:
            return self.values.view(bool)
        return _CopiedFlags(self.values)


@dataclass(frozen=True)
class _CopiedFlags:
    """Values 0 and 1 that lie as bits or as wider numbers; a slice of them is a bool copy."""

    values: np.ndarray | pa.BooleanArray

    def __getitem__(self, part: slice) -> np.ndarray:
        values = self.values[part]
        return values.astype(bool) if isinstance(values, np.ndarray) else values.to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class TokenViews:
    """Tokens of several samples, for whoever copies them on; not to be written or kept.

    Args:
        input_ids: Whole numbers (L_i,) of each sample, in the store's own type; views of the map.
        loss_masks: bool (L_i,) of each sample; views of the map where the store has a byte a token, else copies.
    """

    input_ids: list[np.ndarray]
    loss_masks: list[np.ndarray]


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where every row of all record batches begins, for many rows at a time.

    Args:
        ids: Values of each record batch.
        flags: Mask values of each record batch, cut to bool arrays.
        ids_starts: int64 or int32 (n,), where each row begins in the values of its record batch.
        mask_starts: The same for the mask.
    """

    ids: list[np.ndarray]
    flags: list[np.ndarray | _CopiedFlags]
    ids_starts: np.ndarray
    mask_starts: np.ndarray


class MappedTokens:
    """Rows of one or more Arrow IPC files, by number, without reading or copying anything else.

    Args:
        paths: Arrow IPC files, in the file or the stream format, in the order of the rows.
        ids_name: Column of the token ids.
        mask_name: Column of the loss mask.
        states: Sizes and times that the files must have, from `file_state`; None takes them as they are.

    Raises:
        ValueError: If a file cannot be read, or is another one than `states` says.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        ids_name: str = "input_ids",
        mask_name: str = "loss_mask",
        states: tuple[tuple[int, int, int], ...] | None = None,
    ) -> None:
        found = tuple(_state(path) for path in paths)
        for path, then, now in zip(paths, states or found, found, strict=True):
            if then != now:
                raise ValueError(f"{path} has changed since the data set was opened; open the data set again")
        self._arguments = (paths, ids_name, mask_name, found)
        self._names = (ids_name, mask_name)
        self._batches = [batch for path in paths for batch in record_batches(path, mapped=True)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)
        self._columns: dict[int, tuple[_Column, _Column]] = {}
        self._places: _Places | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __reduce__(self) -> tuple[type[MappedTokens], tuple[object, ...]]:
        """Pickle as the files, which another process maps anew if they are still the same."""
        return MappedTokens, self._arguments

    def row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Give one row's ids and mask as read-only views of the map, in the file's own types."""
        at = int(np.searchsorted(self._ends, number, side="right"))
        inside = number - (int(self._ends[at - 1]) if at else 0)
        ids, mask = self._columns_of(at)
        return ids.row(inside), mask.row(inside)

    def rows(self, numbers: np.ndarray, lengths: np.ndarray) -> TokenViews:
        """Give the first tokens of many rows; the work for each is two slices.

        Args:
            numbers: int64 (n,), rows.
            lengths: Whole numbers (n,), tokens to give of each, at most those that it has.
        """
        places = self._places
        if places is None:
            columns = [self._columns_of(at) for at in range(len(self._batches))]
            self._places = places = _Places(
                ids=[ids.values for ids, _ in columns],
                flags=[mask.flags() for _, mask in columns],
                ids_starts=np.concatenate([ids.starts for ids, _ in columns]),
                mask_starts=np.concatenate([mask.starts for _, mask in columns]),
            )
        at = np.searchsorted(self._ends, numbers, side="right").tolist()
        ids_begins, mask_begins = places.ids_starts[numbers], places.mask_starts[numbers]
        return TokenViews(_cut(places.ids, at, ids_begins, lengths), _cut(places.flags, at, mask_begins, lengths))

    def _columns_of(self, at: int) -> tuple[_Column, _Column]:
        """Give ids and mask of one record batch, whose description is read once."""
        if at not in self._columns:
            batch = self._batches[at]
            self._columns[at] = tuple(_column(batch.column(name)) for name in self._names)  # type: ignore[assignment]
        return self._columns[at]


def _cut(
    values: list[np.ndarray] | list[np.ndarray | _CopiedFlags], at: list[int], begins: np.ndarray, lengths: np.ndarray
) -> list[np.ndarray]:
    spans = zip(at, begins.tolist(), (begins + lengths).tolist(), strict=True)
    return [values[batch][begin:end] for batch, begin, end in spans]


def _state(path: Path) -> tuple[int, int, int]:
    try:
        return file_state(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path} is gone: it was removed, or belonged to a data set made by from_rows, from_arrow or from_hf that "
            f"has ended; open or make the data set again"
        ) from None


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
    with naming_file(path, _KIND), pa.OSFile(str(path)) as file:
        yield from _batches_in(path, file, file.size())


def is_mappable(path: Path, ids_name: str, mask_name: str) -> bool:
    """Tell whether rows of an Arrow IPC file can be read in place.

    They cannot where the token columns are compressed or of a kind without plain offsets, where a name is not that of
    one column, or where the file is cut into so many record batches that mapping them costs more than a copy.

    Raises:
        ValueError: If the file is cut off or is not Arrow IPC.
    """
    mapped = _map_file(path)
    num_batches = num_rows = 0
    with naming_file(path, _KIND):
        for batch in _batches_in(path, pa.BufferReader(mapped), mapped.size):
            num_batches += 1
            num_rows += batch.num_rows
            for name in (ids_name, mask_name):
                if batch.schema.names.count(name) != 1 or not _is_plain(batch.column(name), mapped):
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
    with naming_file(path, _KIND), pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _batches_in(path: Path, source: pa.NativeFile, size: int) -> Iterator[pa.RecordBatch]:
    with naming_file(path, _KIND):
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            yield from map(reader.get_batch, range(reader.num_record_batches))
            return
        yield from pa.ipc.open_stream(source)
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
