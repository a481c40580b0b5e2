"""Names of the columns: ours, and the data's names for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# A row may declare its length under either name.
LENGTH_FIELDS = ("length", "seq_len")
# "" stands for: whatever the usual names find, perhaps nothing.
_OURS: dict[str, str | None] = {"input_ids": "input_ids", "loss_mask": "loss_mask", "length": "", "source": ""}


def canonical_columns(columns: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Complete a mapping of column names.

    Args:
        columns: Our name -> the data's name, or the other way round; our names are input_ids, loss_mask, length and
            source. None for length or source means: not in this data, whatever is there.

    Returns:
        Our name -> the data's name for all four; length and source stay "" unless they were given.

    Raises:
        ValueError: If it is no mapping, or a name is not one of ours or is given twice.
    """
    legal = f'legal: a mapping of {", ".join(_OURS)} to the names in the data, such as {{"input_ids": "tokens"}}'
    if columns is not None and not isinstance(columns, Mapping):
        raise ValueError(f"columns is {columns!r}; {legal}")
    ours = dict(_OURS)
    given = dict(columns or {})
    if not set(given) <= set(ours) and set(given.values()) <= set(ours):
        turned = {theirs: mine for mine, theirs in given.items()}
        if len(turned) < len(given):
            raise ValueError(f"columns is {given!r}, which names one of ours twice; {legal}")
        given = turned  # type: ignore[assignment]
    for mine, theirs in given.items():
        optional = mine in ("length", "source")
        if mine not in ours or not ((isinstance(theirs, str) and theirs) or (theirs is None and optional)):
            raise ValueError(f"columns has {mine!r}: {theirs!r}; {legal}")
        ours[mine] = theirs
    return ours


def declared_length_names(columns: Mapping[str, str | None]) -> tuple[str, ...]:
    """Names under which a row may declare its length."""
    if columns["length"] is None:
        return ()
    return (columns["length"],) if columns["length"] else LENGTH_FIELDS


def source_names(columns: Mapping[str, str | None]) -> tuple[str, ...]:
    """The name under which a row may tell its source; none where the data has no such column."""
    return () if columns["source"] is None else (columns["source"] or "source",)


def optional_columns_in(columns: Mapping[str, str | None], names: Iterable[str]) -> frozenset[str]:
    """Tell which of the optional columns that were given by name are among some names: our names for them."""
    return frozenset(mine for mine in ("length", "source") if columns[mine] and columns[mine] in names)


def check_all_found(columns: Mapping[str, str | None], found: frozenset[str], where: str) -> None:
    """Refuse a given name that the data does not have.

    Args:
        columns: From `canonical_columns`.
        found: Ours that were found, from `optional_columns_in`.
        where: What was read, for the message.

    Raises:
        ValueError: Naming the column.
    """
    for mine in ("length", "source"):
        if columns[mine] and mine not in found:
            raise ValueError(
                f"no row of {where} has the field {columns[mine]}, which columns gives for {mine}; legal: a name in "
                f"the data, or None to say that there is none"
            )
