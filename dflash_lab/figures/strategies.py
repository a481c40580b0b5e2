"""Figures that put strategies, or numbers of buckets, side by side."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.style import format_count, format_percent

_PAIRS = "share_pairs_together_again"


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
    style.check_table("plot_strategies", table, ["strategy", *columns])
    looks, names = style.strategy_looks(table), table["strategy"].to_list()
    places = np.arange(len(names))
    with style.house_style():
        fig = style.new_figure(0.85 + style.name_row_inches(names, 0.36) * max(len(names), 2))
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
        left.set_yticks(places, [style.wrap_name(name) for name in names])
        left.set_ylim(len(names) - 0.4, -0.6)
        left.set_xlabel("share of tokens")
        right.set_xlabel("relative throughput")
        handles = [Patch(facecolor=style.GREY), Patch(facecolor=style.GREY, hatch="/////", edgecolor="white")]
        style.legend_below(fig, handles, ["padding efficiency", "budget use"])
    described = "; ".join(
        f"{row['strategy']}: padding efficiency {row['padding_efficiency']:.3f}, budget use {row['budget_use']:.3f}, "
        f"relative throughput {row['relative_throughput']:.2f}"
        for row in table.iter_rows(named=True)
    )
    return style.finished(fig, f"Padding efficiency, budget use and throughput of {_count(names)}. {described}.")


def plot_efficiency_vs_diversity(table: pl.DataFrame) -> Figure:
    """Draw what a strategy pays in padding for samples that meet others in the next epoch.

    Args:
        table: One row a strategy (`analysis.compare_strategies` over two epochs or more): strategy,
            padding_efficiency, share_pairs_together_again; config_strategy gives the colour where the names are free.

    Returns:
        One point a strategy; the best corner is at the top left.

    Raises:
        ValueError: If the table has no rows, lacks a column, or was made over one epoch only.
    """
    style.check_table("plot_efficiency_vs_diversity", table, ["strategy", "padding_efficiency", _PAIRS])
    _check_epochs("plot_efficiency_vs_diversity", table)
    names = table["strategy"].to_list()
    with style.house_style():
        fig = style.new_figure(2.1 + 0.13 * (len(names) if max(map(len, names)) > 24 else -(-len(names) // 2)))
        ax = fig.subplots()
        drawn_at = _pairs_axis(ax, table[_PAIRS].to_numpy())
        efficiencies = table["padding_efficiency"].to_numpy()
        looks = style.strategy_looks(table)
        for look, share, efficiency, size in zip(
            looks, drawn_at, efficiencies, _nested_sizes(drawn_at, efficiencies), strict=True
        ):
            ax.plot(share, efficiency, **_mark(look, size))
        handles = [Line2D([], [], **_mark(look, 6.0)) for look in looks]
        ax.set_ylim(min(0.4, 0.9 * table["padding_efficiency"].min()), 1.02)
        ax.set_ylabel("padding efficiency")
        ax.grid()
        style.legend_below(fig, handles, names)
    described = "; ".join(
        f"{row['strategy']}: padding efficiency {row['padding_efficiency']:.3f}, {format_percent(row[_PAIRS])} of pairs"
        for row in table.iter_rows(named=True)
    )
    return style.finished(
        fig,
        f"Padding efficiency against the share of sample pairs that share a batch again, for {_count(names)}. "
        f"{described}.",
    )


def plot_recomposition(table: pl.DataFrame) -> Figure:
    """Draw how much of an epoch's company a sample meets again in the next.

    Args:
        table: One row a strategy (`analysis.compare_strategies` over two epochs or more): strategy,
            share_pairs_together_again; config_strategy gives the colour where the names are free.

    Returns:
        One mark a strategy on a logarithmic axis.

    Raises:
        ValueError: If the table has no rows, lacks a column, or was made over one epoch only.
    """
    style.check_table("plot_recomposition", table, ["strategy", _PAIRS])
    _check_epochs("plot_recomposition", table)
    names, shares = table["strategy"].to_list(), table[_PAIRS].to_numpy()
    places = np.arange(len(names))
    with style.house_style():
        fig = style.new_figure(0.65 + style.name_row_inches(names, 0.27) * max(len(names), 2))
        ax = fig.subplots()
        drawn_at = _pairs_axis(ax, shares)
        low, high = ax.get_xlim()
        ax.set_xlim(low, high * (high / low) ** 0.22)
        for look, place, share, at in zip(style.strategy_looks(table), places, shares, drawn_at, strict=True):
            ax.hlines(place, low, at, color=look.color, linestyle=look.linestyle)
            ax.plot(at, place, **_mark(look, 6.0))
            percent = format_percent(share)
            ax.annotate(percent, (at, place), (6, 0), textcoords="offset points", va="center", fontsize=6.5)
        ax.set_yticks(places, [style.wrap_name(name) for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
    described = "; ".join(f"{name}: {format_percent(share)}" for name, share in zip(names, shares, strict=True))
    return style.finished(
        fig, f"Share of sample pairs that share a batch again in the next epoch, for {_count(names)}. {described}."
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
        fig = style.new_figure(2.9)
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


def _mark(look: style.Look, size: float) -> dict[str, object]:
    return {
        "linestyle": "",
        "marker": look.marker,
        "color": look.color,
        "markersize": size,
        "markeredgecolor": style.BLACK,
        "markeredgewidth": 0.5,
        "clip_on": False,
        "zorder": 3,
    }


def _nested_sizes(shares: np.ndarray, efficiencies: np.ndarray) -> list[float]:
    """Marker sizes: orders of one composition lie on one point, and each must leave a rim of the one below it."""
    sizes = []
    for number, (share, efficiency) in enumerate(zip(shares, efficiencies, strict=True)):
        near = (np.abs(np.log(shares / share)) < 0.2) & (np.abs(efficiencies - efficiency) < 0.01)
        num_below = int(near[:number].sum())
        sizes.append(7.0 if near.sum() == 1 else max(2.5, 11.0 - 2.5 * num_below))
    return sizes


def _check_epochs(function: str, table: pl.DataFrame) -> None:
    if table[_PAIRS].null_count():
        names = table.filter(pl.col(_PAIRS).is_null())["strategy"].to_list()
        raise ValueError(
            f"{function}: {_PAIRS} is null for {', '.join(names)}; compare over at least two epochs, with batches of "
            f"more than one sample"
        )


def _pairs_axis(ax: Axes, shares: np.ndarray) -> np.ndarray:
    """Make x logarithmic with a place for 0, which no logarithm has; gives where to draw each share."""
    smallest = min(shares[shares > 0], default=0.1)
    lowest = 10.0 ** (np.floor(np.log10(smallest)) - (1 if (shares == 0).any() else 0))
    lowest = min(lowest, 0.1)
    ax.set_xscale("log")
    ax.set_xlim(lowest * 0.8, 1.6)
    powers = np.arange(round(np.log10(lowest)), 1)
    ax.xaxis.set_major_locator(FixedLocator(10.0 ** powers[:: -(-len(powers) // 6)]))
    ax.xaxis.set_minor_locator(NullLocator())
    has_zero = (shares == 0).any()
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "0" if has_zero and value <= lowest * 1.01 else f"{100 * value:g}")
    )
    ax.set_xlabel("pairs together again next epoch (%)")
    return np.where(shares > 0, shares, lowest)


def _apart(counts: np.ndarray) -> list[int]:
    """Those numbers of buckets whose labels do not touch on a logarithmic axis."""
    kept = [int(counts[0])]
    room = max(1.18, (counts[-1] / counts[0]) ** (1 / 14))
    for count in counts[1:]:
        if count >= kept[-1] * room:
            kept.append(int(count))
    return kept


def _count(names: list[str]) -> str:
    return f"{len(names)} {'strategy' if len(names) == 1 else 'strategies'}"
