"""Checks of rows that come as Arrow record batches, all rows of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from dflash_lab.data.columns import declared_length_names, optional_columns_in, source_names
from dflash_lab.data.mapped import list_parts, plain_values
from dflash_lab.data.row_checks import declared_length, length_mismatch, lies
from dflash_lab.data.rows import (
    BLOCK_ROWS,
    BLOCK_TOKENS,
    LEGAL_IDS,
    LEGAL_MASK,
    MAX_ID,
    BadRow,
    RowBlock,
    RowProblem,
    show_value,
)

_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def check_schema(schema: pa.Schema, columns: Mapping[str, str | None], name: str) -> None:
    """Refuse a schema without usable token columns, or with two columns of one name among those that are read.

    Args:
        schema: Of the file or table.
        columns: From `canonical_columns`.
        name: File name for the message.

    Raises:
        ValueError: Naming the file, the column, its type and what is legal.
    """
    for field, kind in (("input_ids", "whole numbers"), ("loss_mask", "0/1, true/false or 0.0/1.0")):
        column = columns[field]
        found = ", ".join(schema.names) or "none"
        if schema.names.count(column) != 1:
            problem = "no column" if column not in schema.names else "more than one column"
            raise ValueError(
                f"{name} has {problem} {column}; columns found: {found}; other names are given by "
                f'columns={{"{field}": ...}}'
            )
        type_ = schema.field(column).type
        inner = type_.value_type if any(is_list(type_) for is_list in _LISTS) else None
        numbers = inner is not None and (
            pa.types.is_integer(inner)
            or pa.types.is_null(inner)
            or (field == "loss_mask" and (pa.types.is_boolean(inner) or pa.types.is_floating(inner)))
        )
        if not numbers:
            nested = inner is not None and any(is_list(inner) for is_list in _LISTS)
            problem = f"is nested ({type_})" if nested else f"has type {type_}"
            raise ValueError(f"{name}: column {column} {problem}; legal: one flat list a row, of {kind}")
    for column in used_columns(columns):
        if schema.names.count(column) > 1:
            raise ValueError(f"{name} has more than one column {column}; columns found: {found}; legal: one of a name")


def used_columns(columns: Mapping[str, str | None]) -> tuple[str, ...]:
    """Names of all columns that are read where they are there."""
    names = (columns["input_ids"], columns["loss_mask"], *declared_length_names(columns), *source_names(columns), "id")
    return tuple(dict.fromkeys(map(str, names)))


def checked_blocks(
    batch: pa.RecordBatch, columns: Mapping[str, str | None], first_row: int, place: Callable[[int], str]
) -> Iterator[RowBlock]:
    """Check a record batch and give its rows as blocks.

    Args:
        batch: With the columns that `check_schema` asks for.
        columns: From `canonical_columns`.
        first_row: Number of the batch's first row.
        place: Row number -> file and row, for messages.

    Raises:
        pa.ArrowInvalid: If the batch is damaged.
    """
    if not batch.num_rows:
        return
    for name in used_columns(columns):
        if name in batch.schema.names:
            # Reads offsets and text, not the tokens; without it a flipped bit would be an error far from here.
            batch.column(name).validate(full=True)
    ids, mask = (_Lists(batch.column(columns[field])) for field in ("input_ids", "loss_mask"))
    tokens_before = np.concatenate([[0], np.cumsum(np.maximum(ids.lengths, mask.lengths))])
    begin = 0
    while begin < batch.num_rows:
        end = int(np.searchsorted(tokens_before, tokens_before[begin] + BLOCK_TOKENS, side="right")) - 1
        end = min(max(end, begin + 1), begin + BLOCK_ROWS, batch.num_rows)
        yield _block(batch, ids.part(begin, end), mask.part(begin, end), columns, begin, first_row, place)
        begin = end


class _Lists:
    """Some rows of a list column: where each begins and ends in the values."""

    def __init__(self, array: pa.Array, parts: tuple[np.ndarray, np.ndarray, pa.Array] | None = None) -> None:
        self.array = array
        self.starts, self.stops, self.values = parts or list_parts(array)

    @property
    def lengths(self) -> np.ndarray:
        return self.stops - self.starts

    def part(self, begin: int, end: int) -> _Lists:
        """Rows begin..end, with only the values that they use."""
        starts, stops = self.starts[begin:end], self.stops[begin:end]
        low, high = int(starts.min()), int(stops.max())
        if high <= low:
            low = high = 0
            starts = stops = np.zeros_like(starts)
        parts = (starts - low, stops - low, self.values.slice(low, high - low))
        return _Lists(self.array.slice(begin, end - begin), parts)

    def nulls(self) -> np.ndarray:
        """Which rows are null: bool (n,)."""
        return np.asarray(self.array.is_null())

    def numbers(self) -> np.ndarray:
        """The values; what stands at nulls is undefined."""
        if pa.types.is_null(self.values.type) or not len(self.values):
            return np.zeros(len(self.values), np.int64)
        if pa.types.is_boolean(self.values.type):
            return np.asarray(self.values.fill_null(False))
        return plain_values(self.values)

    def rows_with(self, flags: np.ndarray) -> np.ndarray:
        """Which rows hold a flagged value: bool (n,)."""
        if not flags.any():
            return np.zeros(len(self.starts), dtype=bool)
        before = np.concatenate([[0], np.cumsum(flags)])
        return before[self.stops] > before[self.starts]

    def first_in(self, row: int, flags: np.ndarray) -> tuple[int, object]:
        """Place and value of the first flagged value of a row."""
        at = int(np.flatnonzero(flags[self.starts[row] : self.stops[row]])[0])
        return at, self.values[int(self.starts[row]) + at].as_py()


def _block(
    batch: pa.RecordBatch,
    ids: _Lists,
    mask: _Lists,
    columns: Mapping[str, str | None],
    begin: int,
    first_row: int,
    place: Callable[[int], str],
) -> RowBlock:
    num_rows = len(ids.starts)
    id_values, mask_values = ids.numbers(), mask.numbers()
    bad_ids = (id_values < 0) | (id_values > MAX_ID) | np.asarray(ids.values.is_null())
    bad_mask = ~((mask_values == 0) | (mask_values == 1)) | np.asarray(mask.values.is_null())
    declared = {
        name: batch.column(name).slice(begin, num_rows).to_pylist()
        for name in declared_length_names(columns)
        if name in batch.schema.names
    }
    wrong = (
        ids.nulls() | mask.nulls() | ids.rows_with(bad_ids) | mask.rows_with(bad_mask) | (ids.lengths != mask.lengths)
    )
    for values in declared.values():
        wrong |= np.asarray(
            [lies(value, length) for value, length in zip(values, ids.lengths, strict=True)], dtype=bool
        )

    def problem(row: int) -> RowProblem:
        for lists, flags, field, reason, legal in (
            (ids, bad_ids, "input_ids", "bad_id", LEGAL_IDS),
            (mask, bad_mask, "loss_mask", "bad_mask", LEGAL_MASK),
        ):
            if lists.nulls()[row]:
                return RowProblem("missing_field", f"{columns[field]} is null; legal: a list")
            if flags[lists.starts[row] : lists.stops[row]].any():
                at, value = lists.first_in(row, flags)
                return RowProblem(reason, f"{columns[field]}[{at}] is {show_value(value)}; legal: {legal}")
        length = int(ids.lengths[row])
        if length != mask.lengths[row]:
            return length_mismatch(columns, length, int(mask.lengths[row]))
        name = next(name for name, values in declared.items() if lies(values[row], length))
        return declared_length(columns, name, declared[name][row], length)

    bad = []
    for row in np.flatnonzero(wrong).tolist():
        found = problem(row)
        number = first_row + begin + row
        bad.append(BadRow(number, found.reason, f"{place(number)}: {found}"))
    good = np.flatnonzero(~wrong)
    return RowBlock(
        row_numbers=first_row + begin + good,
        input_ids=_gather(id_values, ids, good).astype(np.int32),
        loss_mask=_gather(mask_values, mask, good).astype(np.uint8),
        offsets=np.concatenate([[0], np.cumsum(ids.lengths[good], dtype=np.int64)]).astype(np.int64),
        sources=_texts(batch, source_names(columns), begin, num_rows, good, place(first_row + begin)),
        row_ids=_texts(batch, ("id",), begin, num_rows, good, place(first_row + begin)),
        bad=tuple(bad),
        num_rows=num_rows,
        found=optional_columns_in(columns, batch.schema.names),
    )


def _gather(values: np.ndarray, lists: _Lists, rows: np.ndarray) -> np.ndarray:
    """Lay the rows' values end to end."""
    starts, stops = lists.starts[rows], lists.stops[rows]
    if len(rows) and (starts[1:] == stops[:-1]).all():
        return values[starts[0] : stops[-1]]
    return np.concatenate([values[:0], *(values[a:b] for a, b in zip(starts, stops, strict=True))])


def _texts(
    batch: pa.RecordBatch, names: tuple[str, ...], begin: int, num_rows: int, good: np.ndarray, place: str
) -> list[str | None]:
    """Text of an optional side column of one of the names, None where there is none."""
    name = next((name for name in names if name in batch.schema.names), None)
    if name is None:
        return [None] * len(good)
    column = batch.column(name).slice(begin, num_rows)
    type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    if not (is_text or pa.types.is_integer(type_) or pa.types.is_null(type_)):
        if name == "id":
            return [None] * len(good)
        raise ValueError(
            f'{place}: column {name} has type {column.type}; legal: text or whole numbers; columns={{"source": None}} '
            f"leaves it out"
        )
    values = column.to_pylist()
    return [None if values[row] is None else str(values[row]) for row in good.tolist()]
