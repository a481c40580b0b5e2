"""Rows and the checks they pass before anything else sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# Ids are stored as int32; no vocabulary comes near the limit.
MAX_ID = 2**31 - 1
# A block is what is checked, hashed and written at once: few enough tokens to keep memory flat, enough rows to be fast.
BLOCK_ROWS = 1_024
BLOCK_TOKENS = 2_000_000
# A row may declare its length under either name.
LENGTH_FIELDS = ("length", "seq_len")

LEGAL_IDS = f"whole numbers in [0, {MAX_ID}]"
LEGAL_MASK = "0 or 1 (also true/false and 0.0/1.0)"


class RowProblem(ValueError):
    """Why one row is refused.

    Args:
        reason: Key under which the row is counted.
        message: Field, value and what is legal.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class BadRow:
    """A row that was refused: its number from 0, the reason it is counted under, and a message that names the place."""

    row_number: int
    reason: str
    message: str


@dataclass(frozen=True)
class CheckedRow:
    """One good row: input_ids int32 (L,), loss_mask uint8 (L,) of 0 and 1."""

    input_ids: np.ndarray
    loss_mask: np.ndarray
    source: str | None = None
    row_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """Some consecutive rows: the good ones' tokens end to end, and the bad ones.

    Args:
        row_numbers: int64 (n,), places in the source of the good rows, from 0.
        line_numbers: int64 (n,), physical lines from 1, or None where the source has no lines.
        input_ids: int32 (num_tokens,).
        loss_mask: uint8 (num_tokens,), 0 or 1.
        offsets: int64 (n + 1,); row i is [offsets[i], offsets[i + 1]).
        sources: Text or None a row.
        row_ids: Text or None a row.
        bad: Refused rows among them.
        num_rows: Good and bad rows.
        share_read: How much of the source has been read, in [0, 1].
        file: Where the rows stand, for messages.
    """

    row_numbers: np.ndarray
    input_ids: np.ndarray
    loss_mask: np.ndarray
    offsets: np.ndarray
    sources: list[str | None]
    row_ids: list[str | None]
    line_numbers: np.ndarray | None = None
    bad: tuple[BadRow, ...] = ()
    num_rows: int
    share_read: float = 1.0
    file: str = ""


def check_row(row: Mapping[str, object], columns: Mapping[str, str | None]) -> CheckedRow:
    """Check one row given as a mapping.

    Args:
        row: Field name -> value; ids and mask as lists or one-dimensional arrays.
        columns: Canonical name -> the row's name for it, from `canonical_columns`.

    Returns:
        The row's tokens.

    Raises:
        RowProblem: Naming the field, the value and what is legal.
    """
    for field in ("input_ids", "loss_mask"):
        name = columns[field]
        if name not in row:
            raise RowProblem("missing_field", f"no field {name}; found: {', '.join(map(str, row)) or 'none'}")
        if row[name] is None:
            raise RowProblem("missing_field", f"{name} is null; legal: a list")
    input_ids = _ids(columns["input_ids"], row[columns["input_ids"]])
    loss_mask = _mask(columns["loss_mask"], row[columns["loss_mask"]])
    if len(input_ids) != len(loss_mask):
        raise length_mismatch(columns, len(input_ids), len(loss_mask))
    for name in declared_length_names(columns):
        declared = row.get(name)
        if declared is not None and (isinstance(declared, bool) or declared != len(input_ids)):
            raise declared_length(columns, name, declared, len(input_ids))
    row_id = row.get("id")
    return CheckedRow(
        input_ids,
        loss_mask,
        source=_text(columns["source"], row.get(columns["source"])),
        row_id=str(row_id) if isinstance(row_id, str | int) else None,
    )


def canonical_columns(columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Complete a mapping of column names.

    Args:
        columns: Our name -> the data's name, or the other way round; our names are input_ids, loss_mask, length and
            source. None for length or source means: not in this data, whatever is there.

    Returns:
        Our name -> the data's name for all four; length stays None unless it was given.

    Raises:
        ValueError: If a name is not one of ours.
    """
    ours: dict[str, str | None] = {"input_ids": "input_ids", "loss_mask": "loss_mask", "length": "", "source": "source"}
    given = dict(columns or {})
    if not set(given) <= set(ours) and set(given.values()) <= set(ours):
        given = {theirs: mine for mine, theirs in given.items()}  # type: ignore[misc]
    for mine, theirs in given.items():
        optional = mine in ("length", "source")
        if mine not in ours or not (isinstance(theirs, str) or (theirs is None and optional)):
            raise ValueError(
                f"columns has {mine!r}: {theirs!r}; legal: a mapping of {', '.join(ours)} to the names in the data, "
                f'such as {{"input_ids": "tokens"}}'
            )
        ours[mine] = theirs
    return ours


def declared_length_names(columns: Mapping[str, str | None]) -> tuple[str, ...]:
    """Names under which a row may declare its length."""
    if columns["length"] is None:
        return ()
    return (columns["length"],) if columns["length"] else LENGTH_FIELDS


def length_mismatch(columns: Mapping[str, str | None], num_ids: int, num_mask: int) -> RowProblem:
    """Say that ids and mask differ in length."""
    return RowProblem(
        "length_mismatch",
        f"{columns['input_ids']} has {num_ids} entries, {columns['loss_mask']} has {num_mask}; legal: equal lengths",
    )


def declared_length(columns: Mapping[str, str | None], name: str, declared: object, num_ids: int) -> RowProblem:
    """Say that a declared length is not the length."""
    return RowProblem("declared_length", f"{name} is {declared!r} but {columns['input_ids']} has {num_ids} entries")


def _ids(name: str | None, value: object) -> np.ndarray:
    array = _array(name, value)
    _check_items(name, value, (int, np.integer), "bad_id", LEGAL_IDS)
    if array.size and array.dtype.kind not in "iuO" and not isinstance(value, list | tuple):
        raise RowProblem("bad_id", f"{name} has dtype {array.dtype}; legal: {LEGAL_IDS}")
    outside = np.flatnonzero((array < 0) | (array > MAX_ID))
    if outside.size:
        raise RowProblem("bad_id", f"{name}[{outside[0]}] is {array[outside[0]]}; legal: {LEGAL_IDS}")
    return array.astype(np.int32)


def _mask(name: str | None, value: object) -> np.ndarray:
    array = _array(name, value)
    _check_items(name, value, (int, float, np.number, np.bool_), "bad_mask", LEGAL_MASK)
    outside = np.flatnonzero(~((array == 0) | (array == 1)))
    if outside.size:
        raise RowProblem("bad_mask", f"{name}[{outside[0]}] is {array[outside[0]]}; legal: {LEGAL_MASK}")
    return array.astype(np.uint8)


def _check_items(name: str | None, value: object, legal: tuple[type, ...], reason: str, said: str) -> None:
    """Refuse what numpy would take for a number in silence: bool among ids, text, null."""
    if not isinstance(value, list | tuple) or set(map(type, value)) <= {int}:
        return
    for place, item in enumerate(value):
        if not isinstance(item, legal) or (isinstance(item, bool) and float not in legal):
            raise RowProblem(reason, f"{name}[{place}] is {_short(item)}; legal: {said}")


def _array(name: str | None, value: object) -> np.ndarray:
    """Give a list or array as a one-dimensional array."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        raise RowProblem("not_a_list", f"{name} is {_short(value)}; legal: a list")
    if len(value) and isinstance(value, list | tuple) and isinstance(value[0], list | tuple):
        raise RowProblem("nested", f"{name} is nested, a list of {len(value)} lists; legal: one flat list a row")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.asarray(value, dtype=object)
    if array.ndim != 1:
        raise RowProblem("nested", f"{name} has shape {array.shape}; legal: one flat list a row")
    return array


def _text(name: str | None, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise RowProblem("bad_text", f"{name} is {_short(value)}; legal: text, a whole number or null")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
