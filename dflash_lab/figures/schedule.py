"""Figures of a run against its plan: schedules as applied, and the parts of a step that was made once more."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dflash_lab.figures import style
from dflash_lab.figures.numbers import format_count, format_percent

# Points of a line: more are not seen at half a page's width.
MAX_POINTS = 1_500


def plot_schedule(table: pl.DataFrame) -> Figure:
    """Draw learning rate and noise as they were applied, over what was planned.

    Args:
        table: One row a step: step, learning_rate, planned_learning_rate; noise and planned_noise where they are known.
            Nulls are gaps.

    Returns:
        A panel each: the plan as a broad pale line, what was applied as a thin dark one.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    style.check_table(
        "plot_schedule", table, ["step", "learning_rate", "planned_learning_rate"], numbers=["step"], row="step"
    )
    panels = [("learning_rate", "learning rate")]
    if "noise" in table.columns and _has_values(table, "noise"):
        panels.append(("noise", "noise amplitude"))
    table = table.sort("step")
    with style.house_style():
        fig = style.new_figure(0.45 + 1.05 * len(panels))
        axes = fig.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for ax, (name, label) in zip(axes, panels, strict=True):
            _schedule_lines(ax, table, name)
            ax.set_ylabel(label)
            ax.set_ylim(bottom=0)
            ax.yaxis.set_major_locator(MaxNLocator(4))
            ax.grid(axis="y")
            if name == "learning_rate":
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1e}" if value else "0"))
        _step_axis(axes[-1])
        axes[-1].set_xlabel("optimizer step")
        handles = [Line2D([], [], color=style.ORANGE, linewidth=3.5, alpha=0.6), Line2D([], [], color=style.BLUE)]
        style.legend_below(fig, handles, ["planned", "applied"])
    described = "; ".join(_largest_difference(table, name, label) for name, label in panels)
    return style.finished(fig, f"Schedules as applied and as planned. {described}.")


def plot_replayed_positions(table: pl.DataFrame) -> Figure:
    """Draw the loss of a replayed step by position in the block.

    Args:
        table: One row a position: position (1 to block_size - 1), loss_sum and loss_weight (sums over the step's
            blocks). A weight of 0, or a sum that is null or not finite, has no loss.

    Returns:
        Two panels over the position: its loss, and its share of the step's whole weighted loss.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a number is missing.
    """
    columns = ["position", "loss_sum", "loss_weight"]
    style.check_table("plot_replayed_positions", table, columns, numbers=["position", "loss_weight"], row="position")
    table = table.sort("position").with_columns(pl.col("loss_sum").cast(pl.Float64).fill_null(float("nan")))
    positions, sums, weights = (table[name].cast(pl.Float64).to_numpy() for name in columns)
    lost = int((~np.isfinite(sums)).sum())
    scored = (weights > 0) & np.isfinite(sums)
    sums = np.where(np.isfinite(sums), sums, 0.0)
    whole = sums.sum()
    shares = sums / whole if whole else np.zeros(len(sums))
    with style.house_style():
        fig = style.new_figure(1.6)
        left, right = fig.subplots(1, 2, sharex=True)
        left.plot(
            positions[scored], sums[scored] / weights[scored], color=style.BLUE, marker="o", markersize=3, linewidth=1.0
        )
        left.set_ylabel("loss (nats)")
        left.set_ylim(bottom=0)
        right.bar(positions, shares, 0.7, color=style.SKY)
        right.set_ylabel("share of the loss (%)")
        style.percent_axis(right.yaxis)
        for ax in (left, right):
            ax.grid(axis="y")
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            ax.yaxis.set_major_locator(MaxNLocator(4))
            ax.set_xlabel("position in the block")
    losses = [f"{total / weight:.3g}" for total, weight in zip(sums[scored], weights[scored], strict=True)]
    ends = f"{losses[0]} nats at the first scored position, {losses[-1]} at the last" if losses else "nothing is scored"
    not_finite = f" {lost} positions have no finite loss." if lost else ""
    return style.finished(
        fig,
        f"Loss of one step by position in the block: {ends}. Position {int(positions[0])} makes up "
        f"{format_percent(float(shares[0]))} of the weighted loss.{not_finite}",
    )


def _schedule_lines(ax: Axes, table: pl.DataFrame, name: str) -> None:
    planned = f"planned_{name}"
    names = [(planned, style.ORANGE, 3.5, 0.6), (name, style.BLUE, 1.0, 1.0)]
    for column, color, width, alpha in names:
        if column not in table.columns:
            continue
        drawn = table.select("step", pl.col(column).cast(pl.Float64)).drop_nulls()
        if drawn.is_empty():
            continue
        kept = drawn[_places(len(drawn)).tolist()]
        marker = "o" if len(kept) == 1 else ""
        ax.plot(
            kept["step"].to_numpy(), kept[column].to_numpy(), color=color, linewidth=width, alpha=alpha, marker=marker,
            solid_capstyle="butt",
        )  # fmt: skip


def _largest_difference(table: pl.DataFrame, name: str, label: str) -> str:
    planned = f"planned_{name}"
    if planned not in table.columns:
        return f"{label}: no plan is known"
    both = table.select("step", pl.col(name, planned).cast(pl.Float64)).drop_nulls()
    if both.is_empty():
        return f"{label}: no step has both"
    worst = both.sort((pl.col(name) - pl.col(planned)).abs(), descending=True).row(0, named=True)
    if worst[name] == worst[planned]:
        return f"{label}: as planned at all {format_count(len(both))} steps, {both[name].max():.3g} at most"
    return (
        f"{label}: furthest from the plan at step {format_count(worst['step'])}, {worst[name]:.3g} applied and "
        f"{worst[planned]:.3g} planned"
    )


def _has_values(table: pl.DataFrame, column: str) -> bool:
    return table[column].null_count() < len(table)


def _step_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def _places(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64))
