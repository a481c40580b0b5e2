"""Figures of the order in which the buckets' batches are seen."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import shorten_name
from dflash_lab.figures.numbers import format_count, format_percent

# More entries than this and a legend is no longer read.
MAX_LEGEND_BUCKETS = 9


def plot_bucket_strip(table: pl.DataFrame) -> Figure:
    """Draw which bucket comes when: the whole epoch in windows, and its first batches one by one.

    Args:
        table: `analysis.bucket_strip`: strategy, part ("epoch" or "first"), window_id, start_batch, num_batches,
            bucket_id, share_of_batches.

    Returns:
        One row of two strips a strategy; longer samples are darker. Windows show whether the mix drifts over the
        epoch, the single batches show runs.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a strategy lacks the part "epoch".
    """
    columns = ["strategy", "part", "window_id", "start_batch", "num_batches", "bucket_id", "share_of_batches"]
    style.check_table("plot_bucket_strip", table, columns)
    parts = {
        name: [rows.filter(pl.col("part") == part) for part in ("epoch", "first")]
        for (name,), rows in table.partition_by("strategy", as_dict=True, maintain_order=True).items()
    }
    without = [name for name, (epoch, _) in parts.items() if epoch.is_empty()]
    if without:
        raise ValueError(f'plot_bucket_strip: no rows of part "epoch" for {", ".join(without)}; legal: both parts')
    described, palettes = [], {}
    with style.house_style():
        fig = style.new_figure(0.75 + 0.42 * len(parts))
        axes = fig.subplots(len(parts), 2, squeeze=False, width_ratios=[1.4, 1])
        # Plans differ in length: an epoch is as long as another, a batch as wide as another.
        num_first = max((_num_batches(first) for _, first in parts.values()), default=0)
        for row, (name, (epoch, first)) in zip(axes, parts.items(), strict=True):
            num_buckets = int(epoch["bucket_id"].max()) + 1
            colors = palettes.setdefault(num_buckets, _bucket_colors(num_buckets))
            num_batches = _num_batches(epoch)
            for ax, rows, end in zip(row, (epoch, first), (num_batches, num_first), strict=True):
                _strip(ax, rows, colors, end)
            row[0].set_title(f"{shorten_name(name, width_points=140.0)}: {format_count(num_batches)} batches")
            described.append(f"{name}: {_spread_of_longest(epoch, num_buckets)} of {format_count(num_batches)} batches")
        for ax, last, label in zip(
            axes[-1], ("100", format_count(num_first)), ("epoch (%)", "first batches"), strict=True
        ):
            _label_ends(ax, "0", last)
            ax.set_xlabel(label)
        _bucket_legend(fig, palettes)
    return style.finished(
        fig,
        f"Which length bucket comes when, over the epoch and in its first batches. The last bucket with batches takes, "
        f"from the window with least of it to the window with most: {'; '.join(described)}.",
    )


def plot_run_lengths(table: pl.DataFrame) -> Figure:
    """Draw how many batches stand in long runs of one bucket.

    Args:
        table: `analysis.run_length_counts`: strategy, run_batches, share_of_batches_at_least; config_strategy gives
            the colour where the names are free.

    Returns:
        One falling curve a strategy, on a logarithmic axis of run lengths.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    columns = ["run_batches", "share_of_batches_at_least"]
    style.check_table("plot_run_lengths", table, ["strategy", *columns], numbers=columns)
    firsts = table.unique("strategy", keep="first", maintain_order=True)
    names = firsts["strategy"].to_list()
    longest = int(table["run_batches"].max()) + 1
    handles, described = [], []
    with style.house_style():
        fig = style.new_figure(2.0)
        ax = fig.subplots()
        for look, name in zip(style.strategy_looks(firsts), names, strict=True):
            rows = table.filter(pl.col("strategy") == name)
            lengths, shares = rows["run_batches"].to_numpy(), rows["share_of_batches_at_least"].to_numpy()
            # A curve of single batches would be a point without the end: no batch stands in longer runs.
            handles += ax.plot(
                np.append(lengths, lengths.max() + 1),
                np.append(shares, 0.0),
                color=look.color,
                linestyle=look.linestyle,
                marker=look.marker,
                markersize=4.0,
                markeredgecolor=style.BLACK,
                markeredgewidth=0.4,
                clip_on=False,
                zorder=3,
            )
            described.append(f"{name}: longest run {format_count(lengths.max())} batches")
        ax.set_xscale("log", base=2)
        ax.set_xlim(0.9, longest * 1.15)
        powers = [2**power for power in range(40) if 2**power <= longest]
        ax.xaxis.set_major_locator(FixedLocator(powers[:: -(-len(powers) // 8)]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
        ax.set_ylim(0, 1.03)
        style.percent_axis(ax.yaxis)
        ax.set_xlabel("run of one bucket (batches)")
        ax.set_ylabel("batches in runs\nthis long or longer (%)")
        ax.grid()
        style.legend_below(fig, handles, names)
    return style.finished(
        fig, f"Share of batches in runs of one bucket by the length of the run. {'; '.join(described)}."
    )


def _num_batches(rows: pl.DataFrame) -> int:
    return int((rows["start_batch"] + rows["num_batches"]).max() or 0)


def _strip(ax: Axes, rows: pl.DataFrame, colors: list[object], num_batches: int) -> None:
    """Stack the buckets' shares in every window, shortest bucket at the bottom, on an axis of so many batches."""
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.set_xlim(0, max(1, num_batches))
    ax.set_ylim(0, 1)
    ax.set_xticks([])
    ax.set_yticks([])
    if rows.is_empty():
        return
    windows = rows.unique("window_id").sort("window_id")
    starts, sizes = windows["start_batch"].to_numpy(), windows["num_batches"].to_numpy()
    edges = np.append(starts, starts[-1] + sizes[-1])
    shares = np.zeros((len(starts), len(colors)))
    shares[rows["window_id"].to_numpy(), rows["bucket_id"].to_numpy()] = rows["share_of_batches"].to_numpy()
    tops = np.cumsum(shares, axis=1)
    for number, color in enumerate(colors):
        bottoms = tops[:, number] - shares[:, number]
        ax.stairs(tops[:, number], edges, baseline=bottoms, fill=True, facecolor=color, linewidth=0, antialiased=False)


def _bucket_colors(num_buckets: int) -> list[object]:
    """Longer is darker; the ends of the map are left out, since white paper and black ink carry no bucket."""
    return [colormaps["cividis_r"](0.04 + 0.92 * number / max(1, num_buckets - 1)) for number in range(num_buckets)]


def _spread_of_longest(epoch: pl.DataFrame, num_buckets: int) -> str:
    shares = epoch.filter(pl.col("bucket_id") == num_buckets - 1)["share_of_batches"]
    least = shares.min() if len(shares) == epoch["window_id"].n_unique() else 0.0
    return f"{format_percent(least)} to {format_percent(shares.max())}"


def _label_ends(ax: Axes, first: str, last: str) -> None:
    ax.set_xticks(ax.get_xlim(), [first, last])
    for label, side in zip(ax.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)


def _bucket_legend(fig: Figure, palettes: dict[int, list[object]]) -> None:
    """Name every bucket where all plans have the same few, and only the two ends otherwise."""
    colors = max(palettes.values(), key=len)
    if len(palettes) == 1 and 1 < len(colors) <= MAX_LEGEND_BUCKETS:
        # Buckets behind the last one with a batch may exist; the table does not know them.
        labels, shown, title = list(map(str, range(len(colors)))), colors, "bucket, longer samples to the right"
    else:
        labels, shown, title = ["shorter samples", "longer samples"], [colors[0], colors[-1]], None
    handles = [Patch(facecolor=color) for color in shown]
    fig.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        title=title,
        handlelength=1.2,
        columnspacing=0.9,
        handletextpad=0.4,
        title_fontsize=7.0,
    )
