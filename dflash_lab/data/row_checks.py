"""Checks of single rows that come as mappings, from JSON lines or from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number

import numpy as np

from dflash_lab.data.columns import declared_length_names, source_names
from dflash_lab.data.rows import HALF_PAIR, LEGAL_IDS, LEGAL_MASK, MAX_ID, CheckedRow, RowProblem, show_value


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """What one token field may hold.

    Args:
        reason: Key under which other values are counted.
        legal: The legal values, for messages.
        items: Types of a list's items; bool counts as int only with `booleans`.
        booleans: Whether true and false are values.
        kinds: Kinds of numpy dtypes that an array may have.
        outside: Flags the values of an array that are not legal.
    """

    reason: str
    legal: str
    items: tuple[type, ...]
    booleans: bool
    kinds: str
    outside: Callable[[np.ndarray], np.ndarray]


_IDS = _Numbers(
    reason="bad_id",
    legal=LEGAL_IDS,
    items=(int, np.integer),
    booleans=False,
    kinds="iu",
    outside=lambda array: (array < 0) | (array > MAX_ID),
)
_MASK = _Numbers(
    reason="bad_mask",
    legal=LEGAL_MASK,
    items=(int, float, np.integer, np.floating, np.bool_),
    booleans=True,
    kinds="biuf",
    outside=lambda array: ~((array == 0) | (array == 1)),
)


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
            raise RowProblem("missing_field", f"no field {name}; found: {_names(row)}")
        if row[name] is None:
            raise RowProblem("missing_field", f"{name} is null; legal: a list")
    input_ids = _numbers(columns["input_ids"], row[columns["input_ids"]], _IDS).astype(np.int32)
    loss_mask = _numbers(columns["loss_mask"], row[columns["loss_mask"]], _MASK).astype(np.uint8)
    if len(input_ids) != len(loss_mask):
        raise length_mismatch(columns, len(input_ids), len(loss_mask))
    for name in declared_length_names(columns):
        if lies(row.get(name), len(input_ids)):
            raise declared_length(columns, name, row[name], len(input_ids))
    source = None
    for name in source_names(columns):
        source = _text(name, row.get(name))
    row_id = row.get("id")
    return CheckedRow(
        input_ids,
        loss_mask,
        source=source,
        row_id=_text("id", row_id) if isinstance(row_id, str | int) and not isinstance(row_id, bool) else None,
    )


def lies(declared: object, length: int) -> bool:
    """Tell whether a declared length is another than the length; None declares nothing."""
    return declared is not None and (
        isinstance(declared, bool) or not isinstance(declared, Number) or declared != length
    )


def length_mismatch(columns: Mapping[str, str | None], num_ids: int, num_mask: int) -> RowProblem:
    """Say that ids and mask differ in length."""
    return RowProblem(
        "length_mismatch",
        f"{columns['input_ids']} has {num_ids} entries, {columns['loss_mask']} has {num_mask}; legal: equal lengths",
    )


def declared_length(columns: Mapping[str, str | None], name: str, declared: object, num_ids: int) -> RowProblem:
    """Say that a declared length is not the length."""
    return RowProblem(
        "declared_length",
        f"{name} is {show_value(declared)} but {columns['input_ids']} has {num_ids} entries; legal: that number",
    )


def _numbers(name: str | None, value: object, legal: _Numbers) -> np.ndarray:
    """Give a list or array of legal numbers as a one-dimensional array."""
    items = value if isinstance(value, list | tuple) else None
    if items is None:
        array = _array(name, value)
        if array.dtype.kind == "O":
            items = array.tolist()
        elif array.size and array.dtype.kind not in legal.kinds:
            raise RowProblem(legal.reason, f"{name} has dtype {array.dtype}; legal: {legal.legal}")
    if items is not None:
        _check_items(name, items, legal)
        array = _packed(items)
    outside = np.flatnonzero(legal.outside(array))
    if outside.size:
        at = int(outside[0])
        found = array[at] if items is None else items[at]
        raise RowProblem(legal.reason, f"{name}[{at}] is {show_value(found)}; legal: {legal.legal}")
    return array


def _check_items(name: str | None, items: Sequence[object], legal: _Numbers) -> None:
    """Refuse what numpy would take for a number in silence: bool among ids, text, null."""
    if set(map(type, items)) <= {int}:
        return
    if items and (isinstance(items[0], list | tuple) or (isinstance(items[0], np.ndarray) and items[0].ndim)):
        raise RowProblem("nested", f"{name} is nested, a list of {len(items)} lists; legal: one flat list a row")
    for place, item in enumerate(items):
        if not isinstance(item, legal.items) or (isinstance(item, bool) and not legal.booleans):
            raise RowProblem(legal.reason, f"{name}[{place}] is {show_value(item)}; legal: {legal.legal}")


def _packed(items: Sequence[object]) -> np.ndarray:
    try:
        return np.asarray(items)
    except (ValueError, OverflowError):
        return np.asarray(items, dtype=object)


def _array(name: str | None, value: object) -> np.ndarray:
    """Give anything but a list as a one-dimensional array; one of objects has yet to be looked at item by item."""
    if not hasattr(value, "__array__"):
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise RowProblem("not_a_list", f"{name} is {show_value(value)}; legal: a list")
        return np.fromiter(value, dtype=object, count=len(value))
    if np.ma.is_masked(value):
        raise RowProblem("not_a_list", f"{name} is an array with masked values; legal: a list or array without")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RowProblem(
            "not_a_list", f"{name} is a {type(value).__name__} that numpy cannot read ({error}); legal: a list"
        ) from None
    if array.ndim == 0:
        raise RowProblem("not_a_list", f"{name} is {show_value(value)}; legal: a list")
    if array.ndim != 1:
        raise RowProblem("nested", f"{name} has shape {array.shape}; legal: one flat list a row")
    return array


def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not value.isascii() and HALF_PAIR.search(value):
            raise RowProblem("bad_text", f"{name} is {show_value(value)}, with half a surrogate pair; legal: Unicode")
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(name, value)
    raise RowProblem("bad_text", f"{name} is {show_value(value)}; legal: text, a whole number or null")


def _digits(name: str, value: int) -> str:
    try:
        return str(value)
    except ValueError:
        raise RowProblem("bad_text", f"{name} is {show_value(value)}; legal: text, a whole number or null") from None


def _names(row: Mapping[str, object]) -> str:
    text = ", ".join(map(str, row)) or "none"
    text = text if len(text) <= 200 else f"{text[:197]}..."
    return text.encode("utf-8", "backslashreplace").decode()
