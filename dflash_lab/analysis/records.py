"""Plain records as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl


def record_table(rows: Iterable[Mapping[str, object]], columns: Sequence[str] = ()) -> pl.DataFrame:
    """Make a table of records, whose types are found over all rows.

    Args:
        rows: One mapping a row, of plain values; a name that a row lacks is null there.
        columns: Names that the table has in any case, first and in this order.

    Returns:
        One row a record; the columns named, then others in the order in which they come up.

    Raises:
        ValueError: If the values of a column are of kinds that no column holds together.
    """
    held = list(rows)
    names = list(dict.fromkeys([*columns, *(name for row in held for name in row)]))
    series = []
    for name in names:
        values = [row.get(name) for row in held]
        try:
            series.append(pl.Series(name, values, strict=True) if values else pl.Series(name, [], dtype=pl.Null))
        except (TypeError, pl.exceptions.PolarsError):
            series.append(_mixed(name, values))
    return pl.DataFrame(series)


def _mixed(name: str, values: list[object]) -> pl.Series:
    # Whole numbers among fractions are numbers, too.
    if all(value is None or isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return pl.Series(name, [None if value is None else float(value) for value in values], dtype=pl.Float64)  # type: ignore[arg-type]
    kinds = ", ".join(sorted({type(value).__name__ for value in values if value is not None}))
    raise ValueError(f"column {name} holds values of {kinds}; legal: values of one kind")
