"""The figure of bucket bounds chosen in several ways."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.numbers import format_percent

_LOOKS = {
    "equal tokens": (style.ORANGE, "^", "--"),
    "least padding": (style.BLUE, "s", "-."),
    "fewest batches": (style.GREEN, "o", "-"),
    "given": (style.VERMILION, "*", ""),
}


def plot_bounds(table: pl.DataFrame) -> Figure:
    """Draw what a number of buckets costs, for each way to choose their bounds.

    Args:
        table: One row a way and number (`analysis.bounds_table`): kind, num_buckets, padding_efficiency,
            excess_over_least.

    Returns:
        Padding efficiency above, batches over the fewest possible below; the given bounds as a star.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    style.check_table("plot_bounds", table, ["kind", "num_buckets", "padding_efficiency", "excess_over_least"])
    kinds = table["kind"].unique(maintain_order=True).to_list()
    numbers = sorted(set(table["num_buckets"].to_list()))
    with style.house_style():
        fig = style.new_figure(3.0)
        above, below = fig.subplots(2, 1, sharex=True)
        handles = []
        for kind in kinds:
            color, marker, dashes = _LOOKS.get(kind, (style.BLACK, "X", ":"))
            rows = table.filter(pl.col("kind") == kind).sort("num_buckets")
            look = {"color": color, "marker": marker, "linestyle": dashes, "markersize": 9 if not dashes else 4}
            handles += above.plot(rows["num_buckets"], rows["padding_efficiency"], **look, markeredgecolor="white")
            below.plot(rows["num_buckets"], rows["excess_over_least"], **look, markeredgecolor="white")
        below.set_xscale("log", base=2)
        below.xaxis.set_major_locator(FixedLocator(numbers if len(numbers) <= 12 else numbers[:: len(numbers) // 8]))
        below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        below.xaxis.set_minor_locator(NullLocator())
        below.set_ylim(bottom=0)
        style.percent_axis(below.yaxis)
        above.set_ylabel("padding\nefficiency")
        below.set_ylabel("batches over the\nfewest possible (%)")
        below.set_xlabel("buckets")
        for ax in (above, below):
            ax.grid()
        style.legend_below(fig, handles, kinds)
    best = table.sort("excess_over_least").row(0, named=True)
    text = f"""Padding efficiency and batches over the fewest possible, by the number of buckets and the way to choose
        their bounds. The fewest batches come with {best["num_buckets"]} buckets of {best["kind"]}:
        {format_percent(best["excess_over_least"])} over the fewest possible, padding efficiency
        {best["padding_efficiency"]:.3f}."""
    for row in table.filter(pl.col("kind") == "given").iter_rows(named=True):
        text += f""" The given {row["num_buckets"]} buckets: {format_percent(row["excess_over_least"])} over, padding
            efficiency {row["padding_efficiency"]:.3f}."""
    return style.finished(fig, text)
