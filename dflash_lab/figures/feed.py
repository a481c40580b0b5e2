"""Figures of the feed: how full the targets' queues are over time, and how many workers keep up."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import shorten_name
from dflash_lab.figures.numbers import format_count

# Colour, dashes and marker of the 1st, 2nd, ... rate.
_RATE_LOOKS = (
    (style.BLUE, "-", "o"),
    (style.VERMILION, "--", "s"),
    (style.GREEN, "-.", "^"),
    (style.PURPLE, ":", "D"),
    (style.ORANGE, "-", "v"),
    (style.BLACK, "--", "P"),
)


def plot_queue_depths(table: pl.DataFrame) -> Figure:
    """Draw how full the targets' queues are over time, a panel for each rehearsal.

    Args:
        table: `analysis.queue_depth_table`: rehearsal, time_seconds, target_id, depth_batches, capacity_batches.

    Returns:
        Panels from top to bottom on one time axis: a thin line for each target, the fullest and the emptiest queue of
        each moment drawn out. A queue at 0 starves its target.

    Raises:
        ValueError: If the table has no rows, or lacks a column or a number.
    """
    numbers = ["time_seconds", "target_id", "depth_batches", "capacity_batches"]
    style.check_table("plot_queue_depths", table, ["rehearsal", *numbers], numbers=numbers, row="rehearsal")
    parts = table.partition_by("rehearsal", as_dict=True, maintain_order=True)
    size, unit = _time_unit(float(table["time_seconds"].max()))
    described = []
    with style.house_style():
        fig = style.new_figure(0.5 + 0.95 * len(parts))
        axes = fig.subplots(len(parts), 1, sharex=True, squeeze=False)[:, 0]
        for ax, ((name,), rows) in zip(axes, parts.items(), strict=True):
            _depths(ax, rows, size)
            ax.set_title(shorten_name(str(name), width_points=200.0))
            last = rows.filter(pl.col("time_seconds") == rows["time_seconds"].max())["depth_batches"]
            described.append(
                f"{name}: {_range(last)} of {rows['capacity_batches'][0]:,} batches at the end, "
                f"{rows['depth_batches'].min():,} at least"
            )
        # The last label may stand at the very end.
        axes[0].set_xlim(0, 1.05 * max(float(table["time_seconds"].max()) / size, 1e-9))
        axes[-1].set_xlabel(f"time of the run ({unit})")
        fig.supylabel("queue depth (batches)", fontsize=7.5)
        handles = [
            Line2D([], [], color=style.BLUE),
            Line2D([], [], color=style.VERMILION, linestyle="--"),
            Line2D([], [], color=style.GREY, linewidth=0.5),
        ]
        style.legend_below(fig, handles, ["fullest", "emptiest", "each target"])
    return style.finished(fig, f"Batches in the targets' queues over time. {'; '.join(described)}.")


def plot_workers_needed(table: pl.DataFrame) -> Figure:
    """Draw how many workers keep up with the targets, by how fast one of them reads.

    Args:
        table: `analysis.workers_needed_table`: batches_per_second, read_tokens_per_second, num_workers (null where no
            number that was tried keeps up; such a point is left out).

    Returns:
        One falling line a rate, on logarithmic axes.

    Raises:
        ValueError: If the table has no rows, or lacks a column or a number.
    """
    numbers = ["batches_per_second", "read_tokens_per_second"]
    style.check_table(
        "plot_workers_needed", table, [*numbers, "num_workers"], numbers=numbers, row="read_tokens_per_second"
    )
    labels, described = [], []
    with style.house_style():
        fig = style.new_figure(2.0)
        ax = fig.subplots()
        handles = []
        groups = table.partition_by("batches_per_second", as_dict=True, maintain_order=True)
        for number, ((rate,), rows) in enumerate(groups.items()):
            color, dashes, marker = _RATE_LOOKS[number % len(_RATE_LOOKS)]
            kept = rows.drop_nulls("num_workers").sort("read_tokens_per_second")
            handles += ax.plot(
                kept["read_tokens_per_second"] / 1_000,
                kept["num_workers"],
                color=color,
                linestyle=dashes,
                marker=marker,
                markersize=3.5,
                markeredgecolor=style.BLACK,
                markeredgewidth=0.4,
                clip_on=False,
                zorder=3,
            )
            labels.append(f"{format_count(rate)} batches/s")
            described.append(f"{format_count(rate)} batches/s: {_workers(rows)}")
        ax.set_xscale("log")
        ax.set_yscale("log", base=2)
        most = int(table["num_workers"].max() or 1)
        ax.set_ylim(0.85, max(2.0, 1.3 * most))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
        ax.yaxis.set_major_locator(LogLocator(base=2, numticks=7))
        ax.set_xlabel("one worker reads (Ktok/s)")
        ax.set_ylabel("fewest workers\nthat keep up (count)")
        ax.grid()
        style.legend_below(fig, handles, labels)
    return style.finished(
        fig, f"Fewest workers that keep up with the targets, by how fast one reads. {'; '.join(described)}."
    )


def _depths(ax: Axes, rows: pl.DataFrame, size: float) -> None:
    for (_,), line in rows.partition_by("target_id", as_dict=True, maintain_order=True).items():
        ax.plot(line["time_seconds"] / size, line["depth_batches"], color=style.GREY, linewidth=0.5, zorder=2)
    ends = rows.group_by("time_seconds", maintain_order=True).agg(
        least=pl.col("depth_batches").min(), most=pl.col("depth_batches").max()
    )
    times = ends["time_seconds"] / size
    ax.plot(times, ends["most"], color=style.BLUE, zorder=3, clip_on=False)
    ax.plot(times, ends["least"], color=style.VERMILION, linestyle="--", zorder=4, clip_on=False)
    ax.set_ylim(0, max(1, int(rows["capacity_batches"].max())) * 1.06)
    ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    ax.grid(axis="y")


def _time_unit(seconds: float) -> tuple[float, str]:
    """Seconds that the unit has, and its name."""
    return (3_600.0, "h") if seconds >= 10_800 else (60.0, "min") if seconds >= 180 else (1.0, "s")


def _range(depths: pl.Series) -> str:
    least, most = depths.min(), depths.max()
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _workers(rows: pl.DataFrame) -> str:
    return ", ".join(
        f"{'none' if count is None else f'{count:,}'} at {format_count(speed / 1_000)} Ktok/s"
        for speed, count in rows.select("read_tokens_per_second", "num_workers").iter_rows()
    )
