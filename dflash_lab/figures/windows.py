"""Figures of accumulation windows: what one optimizer step sees of the data."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dflash_lab.figures import style
from dflash_lab.figures.names import name_row_inches, wrap_name

_QUANTILES = ("p05", "p25", "p75", "p95")


def plot_window_mix(table: pl.DataFrame) -> Figure:
    """Draw how far accumulation windows are from the data, beside those of a full shuffle.

    Args:
        table: One row a plan, the full shuffle last (`analysis.compare_windows`): strategy, total_variation,
            mean_length_cv, and p05, p25, p75, p95 of total_variation_ and relative_mean_length_; config_strategy gives
            the colour where the names are free and is null for the shuffle.

    Returns:
        Two panels, plans from top to bottom: the total variation of the token mix, nearer to the data on the left, and
        the mean length of a window over that of the data. A dashed line is the full shuffle's mean.

    Raises:
        ValueError: If the table has no rows or lacks a column or a number.
    """
    columns = [
        "total_variation",
        "mean_length_cv",
        *(f"{kind}_{name}" for kind in ("total_variation", "relative_mean_length") for name in _QUANTILES),
    ]
    style.check_table("plot_window_mix", table, ["strategy", *columns], numbers=columns)
    names = table["strategy"].to_list()
    places = np.arange(len(names))
    looks = _looks(table)
    with style.house_style():
        fig = style.new_figure(0.65 + name_row_inches(names, 0.25) * max(len(names), 2))
        left, right = fig.subplots(1, 2, sharey=True)
        for ax, kind in ((left, "total_variation"), (right, "relative_mean_length")):
            _ranges(ax, table, kind, looks)
            ax.grid(axis="x")
            ax.tick_params(axis="y", length=0)
        for look, place, mean in zip(looks, places, table["total_variation"], strict=True):
            left.plot(mean, place, marker="o", color="white", markeredgecolor=style.BLACK, markersize=3.0, zorder=4)
            if look.linestyle == "shuffle":
                left.axvline(mean, color=style.BLACK, linewidth=0.7, linestyle="--", zorder=1)
        right.axvline(1.0, color=style.BLACK, linewidth=0.7, linestyle=":", zorder=1)
        left.set_xlim(left=0)
        left.set_yticks(places, [wrap_name(name) for name in names])
        left.set_ylim(len(names) - 0.5, -0.5)
        left.set_xlabel("total variation of\nthe token mix")
        right.set_xlabel("mean length\n(data = 1)")
        handles = [
            Line2D([], [], color=style.GREY, linewidth=1.0),
            Line2D([], [], color=style.GREY, linewidth=4.0),
            Line2D([], [], color="white", marker="o", markeredgecolor=style.BLACK, markersize=3.0),
        ]
        style.legend_below(fig, handles, ["5 to 95 %", "25 to 75 %", "mean"])
    described = "; ".join(
        f"{row['strategy']}: total variation {row['total_variation']:.3f} on average, mean lengths spread by "
        f"{row['mean_length_cv']:.3f} of their mean"
        for row in table.iter_rows(named=True)
    )
    return style.finished(
        fig, f"How far the accumulation windows of {len(names)} plans are from the data. {described}."
    )


def _looks(table: pl.DataFrame) -> list[style.Look]:
    """The full shuffle is no strategy: it is black, and its line style says which row it is."""
    if "config_strategy" not in table.columns:
        return style.strategy_looks(table)
    is_plan = table["config_strategy"].is_not_null()
    looks = iter(style.strategy_looks(table.filter(is_plan)))
    return [next(looks) if plan else style.Look(style.BLACK, "o", "shuffle") for plan in is_plan]


def _ranges(ax: Axes, table: pl.DataFrame, kind: str, looks: list[style.Look]) -> None:
    p05, p25, p75, p95 = (table[f"{kind}_{name}"].to_numpy() for name in _QUANTILES)
    for place, look in enumerate(looks):
        ax.hlines(place, p05[place], p95[place], color=look.color, linewidth=1.0)
        ax.hlines(place, p25[place], p75[place], color=look.color, linewidth=4.0)
