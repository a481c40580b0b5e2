"""Figures that put strategies, or numbers of buckets, side by side."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import name_row_inches, shorten_name, wrap_name
from dflash_lab.figures.numbers import format_count, format_percent


def plot_strategies(table: pl.DataFrame) -> Figure:
    """Draw padding efficiency, budget use and relative throughput of each strategy.

    Args:
        table: One row a strategy (`analysis.compare_strategies`): strategy, padding_efficiency, budget_use,
            relative_throughput; config_strategy gives the colour where the names are free.

    Returns:
        Bars in two panels, strategies from top to bottom in the order of the table.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    columns = ["padding_efficiency", "budget_use", "relative_throughput"]
    style.check_table("plot_strategies", table, ["strategy", *columns], numbers=columns)
    looks, names = style.strategy_looks(table), table["strategy"].to_list()
    places = np.arange(len(names))
    with style.house_style():
        fig = style.new_figure(0.65 + name_row_inches(names, 0.36) * max(len(names), 2))
        left, right = fig.subplots(1, 2, sharey=True, width_ratios=[1.1, 1])
        for look, place, row in zip(looks, places, table.iter_rows(named=True), strict=True):
            _bar(left, place - 0.2, row["padding_efficiency"], look.color, height=0.36, digits=3)
            _bar(left, place + 0.2, row["budget_use"], look.color, height=0.36, digits=3, hatch="/////")
            _bar(right, place, row["relative_throughput"], look.color, height=0.6, digits=2)
        for ax, largest in ((left, 1.0), (right, max(1.0, table["relative_throughput"].max()))):
            ax.set_xlim(0, 1.3 * largest)
            ax.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]) if largest <= 1 else MaxNLocator(3))
            ax.grid(axis="x")
            ax.tick_params(axis="y", length=0)
        left.set_yticks(places, [wrap_name(name) for name in names])
        left.set_ylim(len(names) - 0.4, -0.6)
        left.set_xlabel("share of tokens")
        right.set_xlabel(f"relative throughput\n{_reference(table)}")
        handles = [Patch(facecolor=style.GREY), Patch(facecolor=style.GREY, hatch="/////", edgecolor="white")]
        style.legend_below(fig, handles, ["padding efficiency", "budget use"])
    described = "; ".join(
        f"{row['strategy']}: padding efficiency {row['padding_efficiency']:.3f}, budget use {row['budget_use']:.3f}, "
        f"relative throughput {row['relative_throughput']:.2f}"
        for row in table.iter_rows(named=True)
    )
    return style.finished(
        fig, f"Padding efficiency, budget use and throughput of {style.count_strategies(names)}. {described}."
    )


def plot_bucket_count_curve(curve: pl.DataFrame) -> Figure:
    """Draw what each number of buckets costs.

    Args:
        curve: One row a number of buckets (`analysis.bucket_count_curve`): num_buckets, num_batches,
            padding_efficiency, budget_use, excess_over_sorted.

    Returns:
        Efficiency above, batches more than a sorted plan needs below.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    needed = ["num_buckets", "num_batches", "padding_efficiency", "budget_use", "excess_over_sorted"]
    style.check_table("plot_bucket_count_curve", curve, needed)
    curve = curve.sort("num_buckets")
    counts = curve["num_buckets"].to_numpy()
    with style.house_style():
        fig = style.new_figure(2.7)
        above, below = fig.subplots(2, 1, sharex=True)
        handles = [
            *above.plot(counts, curve["padding_efficiency"].to_numpy(), "-o", color=style.BLUE),
            *above.plot(counts, curve["budget_use"].to_numpy(), "--s", color=style.ORANGE, markerfacecolor="white"),
        ]
        below.plot(counts, curve["excess_over_sorted"].to_numpy(), "-.^", color=style.GREEN, clip_on=False)
        above.set_ylim(top=1.02)
        above.set_ylabel("share of tokens")
        below.set_ylim(bottom=min(0.0, curve["excess_over_sorted"].min()))
        below.set_ylabel("batches over\nsorted (%)")
        style.percent_axis(below.yaxis)
        below.set_xscale("log", base=2)
        if counts[0] == counts[-1]:
            below.set_xlim(counts[0] / 2, counts[0] * 2)
        below.xaxis.set_major_locator(FixedLocator(_apart(counts)))
        below.xaxis.set_minor_locator(NullLocator())
        below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
        below.set_xlabel("buckets of equal tokens")
        for ax in (above, below):
            ax.grid()
        style.legend_below(fig, handles, ["padding efficiency", "budget use"])
    described = "; ".join(
        f"{row['num_buckets']}: {format_count(row['num_batches'])} batches, padding efficiency "
        f"{row['padding_efficiency']:.3f}, {format_percent(row['excess_over_sorted'])} over sorted"
        for row in curve.iter_rows(named=True)
    )
    return style.finished(fig, f"Padding efficiency, budget use and batches by the number of buckets. {described}.")


def _bar(ax: Axes, place: float, value: float, color: object, *, height: float, digits: int, hatch: str = "") -> None:
    ax.barh(place, value, height, color=color, hatch=hatch, edgecolor="white", linewidth=0)
    number = f"{value:.{digits}f}"
    ax.annotate(number, (value, place), (2, 0), textcoords="offset points", va="center", fontsize=6.0)


def _reference(table: pl.DataFrame) -> str:
    """Say which row's throughput counts as 1."""
    throughput = table["relative_throughput"]
    if throughput.max() == 1:
        return "(best = 1)"
    ones = table.filter(throughput == 1)["strategy"]
    return f"({shorten_name(ones[0], width_points=60.0)} = 1)" if len(ones) else ""


def _apart(counts: np.ndarray) -> list[int]:
    """Those numbers of buckets whose labels do not touch on a logarithmic axis."""
    kept = [int(counts[0])]
    room = max(1.18, (counts[-1] / counts[0]) ** (1 / 14))
    for count in counts[1:]:
        if count >= kept[-1] * room:
            kept.append(int(count))
    return kept
