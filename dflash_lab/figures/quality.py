"""Figures of how good a drafter is: by position, by slice, against draft trees, and as predicted speed-up."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import wrap_name
from dflash_lab.figures.numbers import format_count


def plot_accuracy_by_position(table: pl.DataFrame) -> Figure:
    """Draw how often each position of a block is right, alone and with all before it.

    Args:
        table: One row a position: position (1 to block_size - 1), accuracy (share of scored tokens that are right) and
            survival (share of blocks that are right through this position), both in [0, 1].

    Returns:
        Two lines over the position.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a value is missing.
    """
    columns = ["position", "accuracy", "survival"]
    style.check_table("plot_accuracy_by_position", table, columns, numbers=columns, row="position")
    table = table.sort("position")
    positions = table["position"].to_list()
    with style.house_style():
        fig = style.new_figure(1.7)
        ax = fig.subplots()
        lines = [
            ax.plot(positions, table["accuracy"].to_list(), color=style.BLUE, marker="o", markersize=3)[0],
            ax.plot(positions, table["survival"].to_list(), color=style.VERMILION, marker="s", markersize=3)[0],
        ]
        ax.set_xlabel("position in the block")
        ax.set_ylabel("right (%)")
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        style.percent_axis(ax.yaxis)
        ax.grid(axis="y")
        style.legend_below(fig, lines, ["this token", "all tokens so far"])
    first, last = table.row(0, named=True), table.row(-1, named=True)
    return style.finished(
        fig,
        f"Share of right tokens by position in the block. At position {first['position']}: "
        f"{100 * first['accuracy']:.1f} %; at position {last['position']}: {100 * last['accuracy']:.1f} %, and "
        f"{100 * last['survival']:.2g} % of the blocks are right through it.",
    )


def plot_tau_by_slice(table: pl.DataFrame) -> Figure:
    """Draw the acceptance length of parts of the data: buckets, sources, or anything else.

    Args:
        table: One row a slice, in the order to show: slice (its name), tau (acceptance length, >= 1), num_blocks.
            tau_low and tau_high, where they are there, are an interval around tau.

    Returns:
        A bar a slice, from 1, which is what no drafter at all gives.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a tau is missing.
    """
    style.check_table("plot_tau_by_slice", table, ["slice", "tau", "num_blocks"], numbers=["tau"], row="slice")
    names, taus = [str(name) for name in table["slice"]], table["tau"].to_list()
    has_interval = {"tau_low", "tau_high"} <= set(table.columns)
    with style.house_style():
        fig = style.new_figure(0.55 + 0.26 * len(names))
        ax = fig.subplots()
        places = list(range(len(names)))
        ax.barh(places, [tau - 1 for tau in taus], left=1, height=0.62, color=style.SKY)
        if has_interval:
            low, high = table["tau_low"].to_list(), table["tau_high"].to_list()
            spread = [
                [max(0.0, tau - end) for tau, end in zip(taus, low, strict=True)],
                [max(0.0, end - tau) for tau, end in zip(taus, high, strict=True)],
            ]
            ax.errorbar(taus, places, xerr=spread, fmt="none", ecolor=style.BLACK, elinewidth=0.8, capsize=2)
        ends = table["tau_high"].to_list() if has_interval else taus
        for place, tau, end in zip(places, taus, ends, strict=True):
            ax.annotate(f"{tau:.2f}", (end, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
        ax.set_yticks(places, [wrap_name(name, width_points=66.0, max_lines=2) for name in names])
        ax.invert_yaxis()
        ax.set_xlim(1, 1 + 1.18 * (max(max(ends), 1.1) - 1))
        ax.set_xlabel("tau (tokens a verification)")
        ax.grid(axis="x")
    said = "; ".join(
        f"{name}: {tau:.2f} from {format_count(count)} blocks"
        for name, tau, count in zip(names, taus, table["num_blocks"], strict=True)
    )
    return style.finished(fig, f"Acceptance length by slice of the data. {said}.")


def plot_tree_gain(table: pl.DataFrame) -> Figure:
    """Draw the acceptance length of draft trees over their size, beside the chain and beside what the drafter expects.

    Args:
        table: One row a node budget: node_budget, tree_tau (realised), expected_tree_tau (1 + the sum of the tree's
            path probabilities) and chain_tau, all >= 1.

    Returns:
        Three lines over the node budget; the gap between expected and realised is the drafter's miscalibration.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a value is missing.
    """
    columns = ["node_budget", "tree_tau", "expected_tree_tau", "chain_tau"]
    style.check_table("plot_tree_gain", table, columns, numbers=columns, row="node_budget")
    table = table.sort("node_budget")
    budgets = table["node_budget"].to_list()
    looks = (
        ("tree_tau", "tree, realised", style.GREEN, "D", "-"),
        ("expected_tree_tau", "tree, as the drafter expects", style.ORANGE, "^", "--"),
        ("chain_tau", "chain", style.BLUE, "", "-"),
    )
    with style.house_style():
        fig = style.new_figure(1.8)
        ax = fig.subplots()
        lines = [
            ax.plot(budgets, table[name].to_list(), color=color, marker=marker, linestyle=dashes, markersize=3)[0]
            for name, _, color, marker, dashes in looks
        ]
        _budget_axis(ax, budgets)
        ax.set_ylabel("tau (tokens)")
        ax.grid(axis="y")
        style.legend_below(fig, lines, [label for _, label, *_ in looks])
    last = table.row(-1, named=True)
    return style.finished(
        fig,
        f"Acceptance length with draft trees over their node budget. With {format_count(last['node_budget'])} nodes "
        f"{last['tree_tau']:.2f}, of which the chain has {last['chain_tau']:.2f}; the drafter expects "
        f"{last['expected_tree_tau']:.2f}.",
    )


def plot_speed_up(table: pl.DataFrame) -> Figure:
    """Draw the predicted speed-up over plain decoding against the node budget of the draft tree.

    Args:
        table: One row a way of drafting: kind ("chain" or "tree"), node_budget, speed_up (times as fast as plain
            decoding, > 0). measured_speed_up, where it is there, was decoded; null where it was not.

    Returns:
        A line for the trees, a level for the chain, crosses for what was measured, and 1 marked.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a value is missing.
    """
    columns = ["kind", "node_budget", "speed_up"]
    style.check_table("plot_speed_up", table, columns, numbers=columns[1:], row="kind")
    chain, tree = (table.filter(pl.col("kind") == kind).sort("node_budget") for kind in ("chain", "tree"))
    measured = (
        table.drop_nulls("measured_speed_up") if "measured_speed_up" in table.columns else table.clear()
    )  # fmt: skip
    with style.house_style():
        fig = style.new_figure(1.7)
        ax = fig.subplots()
        ax.axhline(1, color=style.GREY, linewidth=0.8, linestyle=":")
        handles, labels = [], []
        for rows, label, color, marker in ((tree, "tree", style.GREEN, "D"), (chain, "chain", style.BLUE, "o")):
            if not rows.is_empty():
                handles += ax.plot(
                    rows["node_budget"].to_list(), rows["speed_up"].to_list(), color=color, marker=marker, markersize=3
                )
                labels.append(f"{label}, predicted")
        if not measured.is_empty():
            ax.plot(
                measured["node_budget"].to_list(), measured["measured_speed_up"].to_list(), linestyle="", marker="x",
                color=style.BLACK, markersize=5,
            )  # fmt: skip
            handles.append(Line2D([], [], linestyle="", marker="x", color=style.BLACK))
            labels.append("measured")
        handles.append(Line2D([], [], color=style.GREY, linewidth=0.8, linestyle=":"))
        labels.append("plain decoding")
        _budget_axis(ax, sorted(set(table["node_budget"].to_list())))
        ax.set_ylabel("times as fast")
        ax.set_ylim(bottom=0)
        ax.grid(axis="y")
        style.legend_below(fig, handles, labels)
    best = table.sort("speed_up").row(-1, named=True)
    return style.finished(
        fig,
        f"Predicted speed-up over plain decoding by node budget. Best: {best['kind']} with "
        f"{format_count(best['node_budget'])} nodes, {best['speed_up']:.2f} times as fast.",
    )


def _budget_axis(ax: Axes, budgets: Sequence[int]) -> None:
    """Node budgets lie about a factor of two apart: each gets its label, evenly spaced."""
    if len(budgets) > 1 and budgets[0] > 0:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(list(budgets)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    ax.set_xlabel("node budget of the tree (tokens verified at once)")
