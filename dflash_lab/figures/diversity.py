"""Figures of what padding buys in company, and of the strategies that no other one beats."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import name_row_inches, wrap_name
from dflash_lab.figures.numbers import format_percent

_PAIRS = "share_pairs_together_again"
# About the size of the axes, to tell points that touch before the layout is known.
_AXES_POINTS = (190.0, 135.0)
# Numbers closer than this are written as one.
_TOUCHING_POINTS = 11.0


def plot_efficiency_vs_diversity(table: pl.DataFrame) -> Figure:
    """Draw what a strategy pays in padding for samples that meet others in the next epoch.

    Args:
        table: One row a strategy (`analysis.compare_strategies` over two epochs or more): strategy,
            padding_efficiency, share_pairs_together_again; config_strategy gives the colour where the names are free.
            With on_front and dominated_by (`analysis.efficiency_diversity_front` of these two columns) the front is
            drawn too.

    Returns:
        One point a strategy; the best corner is at the top left. With a front: its points are filled and joined by
        steps, the others hollow, and each has its number in the legend.

    Raises:
        ValueError: If the table has no rows, lacks a column, or was made over one epoch only.
    """
    columns = ["strategy", "padding_efficiency", _PAIRS]
    style.check_table("plot_efficiency_vs_diversity", table, columns, numbers=["padding_efficiency"])
    _check_epochs("plot_efficiency_vs_diversity", table)
    has_front = {"on_front", "dominated_by"} <= set(table.columns)
    on_front = table["on_front"].to_numpy() if has_front else np.ones(table.height, dtype=bool)
    names = table["strategy"].to_list()
    with style.house_style():
        fig = style.new_figure(2.1)
        ax = fig.subplots()
        drawn_at = _pairs_axis(ax, table[_PAIRS].to_numpy())
        efficiencies = table["padding_efficiency"].to_numpy()
        lowest = min(0.4, 0.9 * efficiencies.min())
        # Numbers stand above their points.
        ax.set_ylim(lowest, 1.09 if has_front else 1.02)
        ax.yaxis.set_major_locator(FixedLocator([tick for tick in np.arange(0, 11) / 10 if tick >= lowest]))
        if has_front:
            _front_steps(ax, drawn_at[on_front], efficiencies[on_front])
            _numbers(ax, drawn_at, efficiencies)
        marks = [
            _mark(look, size)
            if filled
            else _mark(look, size) | {"markerfacecolor": "white", "markeredgecolor": look.color}
            for look, size, filled in zip(
                style.strategy_looks(table), _nested_sizes(drawn_at, efficiencies), on_front, strict=True
            )
        ]
        for mark, share, efficiency in zip(marks, drawn_at, efficiencies, strict=True):
            ax.plot(share, efficiency, **mark)
        handles = [Line2D([], [], **mark | {"markersize": 6.0}) for mark in marks]
        ax.set_ylabel("padding efficiency")
        ax.grid()
        labels = [f"{number}  {name}" for number, name in enumerate(names, 1)] if has_front else names
        style.legend_below(fig, handles, labels)
    described = "; ".join(
        f"{row['strategy']}: padding efficiency {row['padding_efficiency']:.3f}, {format_percent(row[_PAIRS])} of pairs"
        + (f", beaten by {row['dominated_by']}" if has_front and not row["on_front"] else "")
        for row in table.iter_rows(named=True)
    )
    text = f"""Padding efficiency against the share of sample pairs that share a batch again, for
        {style.count_strategies(names)}. {described}."""
    if has_front:
        text += f" No other one beats {', '.join(table.filter(pl.col('on_front'))['strategy'])}."
    return style.finished(fig, text)


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
        fig = style.new_figure(0.65 + name_row_inches(names, 0.27) * max(len(names), 2))
        ax = fig.subplots()
        drawn_at = _pairs_axis(ax, shares)
        low, high = ax.get_xlim()
        ax.set_xlim(low, high * (high / low) ** 0.22)
        for look, place, share, at in zip(style.strategy_looks(table), places, shares, drawn_at, strict=True):
            ax.hlines(place, low, at, color=look.color, linestyle=look.linestyle)
            ax.plot(at, place, **_mark(look, 6.0))
            percent = format_percent(share)
            ax.annotate(percent, (at, place), (6, 0), textcoords="offset points", va="center", fontsize=6.5)
        ax.set_yticks(places, [wrap_name(name) for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
    described = "; ".join(f"{name}: {format_percent(share)}" for name, share in zip(names, shares, strict=True))
    text = f"""Share of sample pairs that share a batch again in the next epoch, for {style.count_strategies(names)}.
        {described}."""
    return style.finished(fig, text)


def _front_steps(ax: Axes, shares: np.ndarray, efficiencies: np.ndarray) -> None:
    """Join the front: for each share of pairs, the most efficiency that is to be had with it."""
    order = np.lexsort((efficiencies, shares))
    at = np.append(shares[order], ax.get_xlim()[1])
    most = np.maximum.accumulate(efficiencies[order])
    ax.step(at, np.append(most, most[-1]), where="post", color=style.GREY, linewidth=0.8, zorder=1)


def _numbers(ax: Axes, shares: np.ndarray, efficiencies: np.ndarray) -> None:
    """Number the points from 1; points that touch share one label, such as 3-5."""
    low, high = np.log(ax.get_xlim())
    bottom, top = ax.get_ylim()
    places = np.column_stack(
        [
            (np.log(shares) - low) / (high - low) * _AXES_POINTS[0],
            (efficiencies - bottom) / (top - bottom) * _AXES_POINTS[1],
        ]
    )
    groups: list[list[int]] = []
    for point in range(len(places)):
        near = (group for group in groups if np.abs(places[group[0]] - places[point]).max() < _TOUCHING_POINTS)
        found = next(near, None)
        if found is None:
            groups.append([point])
        else:
            found.append(point)
    for group in groups:
        highest = max(group, key=lambda point: efficiencies[point])
        ax.annotate(
            _ranges(group), (shares[highest], efficiencies[highest]), (0, 5.5), textcoords="offset points", ha="center",
            fontsize=6.0, zorder=4,
        )  # fmt: skip


def _ranges(rows: list[int]) -> str:
    """Write rows as numbers from 1: 1, 3-5."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return ", ".join(str(run[0] + 1) if len(run) == 1 else f"{run[0] + 1}-{run[-1] + 1}" for run in runs)


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
