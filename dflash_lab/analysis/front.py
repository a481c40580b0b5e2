"""Which strategies no other one beats in efficiency and in diversity at once."""

from __future__ import annotations

import numpy as np
import polars as pl


def efficiency_diversity_front(
    table: pl.DataFrame,
    *,
    efficiency: str = "padding_efficiency",
    sameness: str = "share_pairs_together_again",
) -> pl.DataFrame:
    """Mark the strategies that no other one beats.

    A row beats another if it is at least as good in both columns and better in one. Differences count however small, so
    two orders of the same batches may only be told apart by chance in their last digits.

    Args:
        table: One row a strategy (`compare_strategies`), with a column strategy.
        efficiency: Name of a column in which more is better, such as padding_efficiency or relative_throughput_by_cost.
        sameness: Name of a column in which less is better, such as share_pairs_together_again or window_tv.

    Returns:
        The table with dominated_by (of the rows that beat this one, the name of the most efficient; it is on the front
        itself; null where there is none) and on_front (whether there is none).

    Raises:
        ValueError: If a column is missing, or one of the two has no number in a row.
    """
    missing = [name for name in ("strategy", efficiency, sameness) if name not in table.columns]
    if missing:
        raise ValueError(f"the table has no column {', '.join(missing)}; it has {', '.join(table.columns) or 'none'}")
    for name in (efficiency, sameness):
        numbers = table[name].cast(pl.Float64).is_finite().fill_null(False)
        if not numbers.all():
            without = ", ".join(table.filter(~numbers)["strategy"])
            raise ValueError(f"{name} is no number for {without}; legal: a finite number in each row")
    good, same = table[efficiency].to_numpy(), table[sameness].to_numpy()
    # Best first: the first row of this order that beats another is the most efficient, and nothing beats it.
    order = np.lexsort((same, -good))
    names = table["strategy"].to_list()
    dominated_by = []
    for row in range(table.height):
        beats = (good >= good[row]) & (same <= same[row]) & ((good > good[row]) | (same < same[row]))
        better = order[beats[order]]
        dominated_by.append(names[better[0]] if better.size else None)
    column = pl.Series("dominated_by", dominated_by, dtype=pl.String)
    return table.with_columns(column, column.is_null().alias("on_front"))
