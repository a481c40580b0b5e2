"""Figures of sample lengths."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dflash_lab.figures import style
from dflash_lab.figures.names import shorten_name
from dflash_lab.figures.numbers import format_count, format_percent

# With more buckets the bars are too thin for a number beside each.
MAX_LABELLED_BUCKETS = 12


def plot_length_distribution(
    table: pl.DataFrame, *, bucket_bounds: tuple[int, ...] | None = None, max_seq_len: int | None = None
) -> Figure:
    """Draw how samples, and the tokens in them, spread over lengths.

    Args:
        table: One row a bin (`analysis.length_histogram`): bin_from_tokens, bin_to_tokens, share_of_samples,
            share_of_tokens.
        bucket_bounds: Bounds to mark, in tokens; the last one is left out, since longer samples belong to the last
            bucket too.
        max_seq_len: Cut to mark, in tokens.

    Returns:
        Two histograms over one axis of lengths before the cut.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    columns = ["bin_from_tokens", "bin_to_tokens", "share_of_samples", "share_of_tokens"]
    style.check_table("plot_length_distribution", table, columns)
    starts, ends = table["bin_from_tokens"].to_numpy(), table["bin_to_tokens"].to_numpy()
    edges = np.append(starts, ends[-1])
    low, high = int(edges[0]), int(edges[-1])
    bounds = [bound for bound in (bucket_bounds or ())[1:-1] if low <= bound <= high]
    panels = (("share_of_samples", "samples (%)", style.BY_SAMPLES), ("share_of_tokens", "tokens (%)", style.BY_TOKENS))
    with style.house_style():
        fig = style.new_figure(2.5)
        axes = fig.subplots(2, 1, sharex=True)
        for ax, (column, label, color) in zip(axes, panels, strict=True):
            ax.stairs(table[column].to_numpy(), edges, fill=True, facecolor=color, edgecolor=color, linewidth=0.5)
            for bound in bounds:
                ax.axvline(bound, color=style.BLACK, linewidth=0.7, linestyle=(0, (1, 1.5)))
            if max_seq_len is not None:
                ax.axvline(max_seq_len, color=style.VERMILION, linewidth=1.2, linestyle="--")
            ax.set_ylabel(label)
            style.percent_axis(ax.yaxis)
            ax.grid(axis="y")
        style.length_axis(axes[1], low, max(high, max_seq_len or high), log=_is_logarithmic(starts, ends))
        axes[1].set_xlabel("length (tokens)")
        handles, labels = [], []
        if bounds:
            handles.append(Line2D([], [], color=style.BLACK, linewidth=0.7, linestyle=(0, (1, 1.5))))
            labels.append("bucket bounds")
        if max_seq_len is not None:
            handles.append(Line2D([], [], color=style.VERMILION, linewidth=1.2, linestyle="--"))
            labels.append(f"cut at {format_count(max_seq_len)} tokens")
        if handles:
            style.legend_below(fig, handles, labels)
    peaks = [table.row(table[column].arg_max(), named=True) for column in columns[2:]]
    text = f"""Histograms of sample lengths by samples and by tokens. Lengths run from {format_count(low)} to
        {format_count(high - 1)} tokens, here in {table.height} bins. The fullest bin by samples begins at
        {format_count(peaks[0]["bin_from_tokens"])} tokens and holds {format_percent(peaks[0]["share_of_samples"])} of
        them; the fullest by tokens begins at {format_count(peaks[1]["bin_from_tokens"])} tokens and holds
        {format_percent(peaks[1]["share_of_tokens"])}."""
    if bounds:
        text += f" Bucket bounds are marked at {', '.join(map(format_count, bounds))} tokens."
    if max_seq_len is not None:
        text += f" The cut is marked at {format_count(max_seq_len)} tokens."
    return style.finished(fig, text)


def plot_length_ecdf(table: pl.DataFrame) -> Figure:
    """Draw the share of samples, and of tokens, in samples up to a length.

    Args:
        table: One row a point, shortest first (`analysis.length_ecdf`): length_tokens, share_of_samples,
            share_of_tokens.

    Returns:
        Two rising curves with their medians.

    Raises:
        ValueError: If the table has no rows, lacks a column, or does not end at 1.
    """
    style.check_table("plot_length_ecdf", table, ["length_tokens", "share_of_samples", "share_of_tokens"])
    ends = table.row(-1, named=True)
    if not np.allclose([ends["share_of_samples"], ends["share_of_tokens"]], 1):
        raise ValueError(
            f"plot_length_ecdf: the shares end at {ends['share_of_samples']} and {ends['share_of_tokens']}; legal: a "
            f"whole distribution, which ends at 1"
        )
    lengths = table["length_tokens"].to_numpy()
    curves = (
        ("share_of_samples", "samples", style.BY_SAMPLES, "-"),
        ("share_of_tokens", "tokens", style.BY_TOKENS, "--"),
    )
    medians = {}
    with style.house_style():
        fig = style.new_figure(2.1)
        ax = fig.subplots()
        handles = []
        for column, name, color, dashes in curves:
            shares = table[column].to_numpy()
            drawn = ax.step(
                np.concatenate([[lengths[0] / 2], lengths, [lengths[-1] * 4]]),
                np.concatenate([[0.0], shares, [1.0]]),
                where="post",
                color=color,
                linestyle=dashes,
            )
            handles += drawn
            medians[name] = int(lengths[np.searchsorted(shares, 0.5)])
            ax.plot([medians[name]], [0.5], color=color, marker="o", markersize=4.5, markeredgecolor="white")
        style.length_axis(ax, int(lengths[0]), int(lengths[-1]))
        ax.axhline(0.5, color=style.GREY, linewidth=0.6, zorder=0)
        ax.set_ylim(0, 1.02)
        style.percent_axis(ax.yaxis)
        ax.set_xlabel("length (tokens)")
        ax.set_ylabel("at or under this length (%)")
        ax.grid()
        labels = [f"{name}, half up to {format_count(medians[name])}" for _, name, _, _ in curves]
        style.legend_below(fig, handles, labels)
    text = f"""Share of samples and of tokens in samples up to a length. Half of the samples have up to
        {format_count(medians["samples"])} tokens; half of the tokens are in samples of up to
        {format_count(medians["tokens"])} tokens. The longest sample has {format_count(lengths[-1])} tokens."""
    return style.finished(fig, text)


def plot_lengths_by_source(summary: pl.DataFrame, *, top: int = 12) -> Figure:
    """Draw the lengths of each source: where the bulk lies, and what it weighs.

    Args:
        summary: One row a source, most tokens first (`analysis.length_summary` by "source"): source, num_samples,
            share_of_tokens, p05_tokens, p25_tokens, p50_tokens, p75_tokens, p99_tokens.
        top: How many sources are drawn, from the first row on, >= 1.

    Returns:
        One line a source: 5th to 99th percentile thin, 25th to 75th thick, the median a dot; the share of all tokens
        beside it.

    Raises:
        ValueError: If the table has no rows or lacks a column, or `top` is below 1.
    """
    percentiles = ["p05_tokens", "p25_tokens", "p50_tokens", "p75_tokens", "p99_tokens"]
    style.check_table("plot_lengths_by_source", summary, ["source", "num_samples", "share_of_tokens", *percentiles])
    if top < 1:
        raise ValueError(f"top is {top}; legal: a whole number >= 1")
    shown = summary.head(top)
    names = [name if name is not None else "(no source)" for name in shown["source"]]
    places = np.arange(len(names))
    p05, p25, p50, p75, p99 = (shown[column].to_numpy() for column in percentiles)
    with style.house_style():
        fig = style.new_figure(0.65 + 0.2 * max(len(names), 3))
        ax = fig.subplots()
        thin = ax.hlines(places, p05, p99, color=style.GREY, linewidth=1.0)
        thick = ax.hlines(places, p25, p75, color=style.BLUE, linewidth=4.0)
        (dots,) = ax.plot(p50, places, "o", color="white", markeredgecolor=style.BLACK, markersize=4.0)
        style.length_axis(ax, max(1.0, p05.min()), p99.max(), max_labels=4)
        ax.set_yticks(places, [shorten_name(name) for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("length after the cut (tokens)")
        ax.grid(axis="x")
        beside = ax.secondary_yaxis("right")
        beside.set_yticks(places, [format_percent(share) for share in shown["share_of_tokens"]])
        beside.tick_params(axis="y", length=0)
        beside.spines["right"].set_visible(False)
        ax.annotate("of tokens", (1, 1), (1, 3), xycoords="axes fraction", textcoords="offset points", ha="left")
        style.legend_below(fig, [thin, thick, dots], ["5 to 99 %", "25 to 75 %", "median"])
    hidden = summary.height - len(names)
    described = "; ".join(
        f"{name}: median {format_count(median)}, 5 to 99 % {format_count(low)} to {format_count(high)}, "
        f"{format_percent(share)} of the tokens"
        for name, median, low, high, share in zip(names, p50, p05, p99, shown["share_of_tokens"], strict=True)
    )
    text = f"Lengths in tokens of {len(names)} sources. {described}."
    if hidden:
        text += f" {hidden} more {'source is' if hidden == 1 else 'sources are'} not shown."
    return style.finished(fig, text)


def plot_bucket_shares(summary: pl.DataFrame) -> Figure:
    """Draw what each bucket holds of the samples and the tokens, and of the batches when that is known.

    Args:
        summary: One row a bucket, shortest first (`analysis.bucket_shares`, or `analysis.length_summary` by
            "bucket"): bucket_from_tokens, bucket_to_tokens (null for no upper end), share_of_samples, share_of_tokens
            and, where there is a plan, share_of_batches.

    Returns:
        A group of bars for each bucket.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    needed = ["bucket_from_tokens", "bucket_to_tokens", "share_of_samples", "share_of_tokens"]
    style.check_table("plot_bucket_shares", summary, needed)
    kinds = [
        ("samples", "share_of_samples", style.BY_SAMPLES, ""),
        ("tokens", "share_of_tokens", style.BY_TOKENS, "////"),
        ("batches", "share_of_batches", style.BY_BATCHES, "...."),
    ]
    kinds = [kind for kind in kinds if kind[1] in summary.columns]
    names = [
        f"{format_count(low)} and more" if high is None else f"{format_count(low)} to {format_count(high - 1)}"
        for low, high in summary["bucket_from_tokens", "bucket_to_tokens"].iter_rows()
    ]
    height = 0.8 / len(kinds)
    has_room = len(names) <= MAX_LABELLED_BUCKETS
    with style.house_style():
        fig = style.new_figure(0.6 + (0.15 if has_room else 0.06) * (len(kinds) + 0.6) * max(len(names), 2))
        ax = fig.subplots()
        for number, (_, column, color, hatch) in enumerate(kinds):
            places = np.arange(len(names)) + (number - (len(kinds) - 1) / 2) * height
            shares = summary[column].to_numpy()
            ax.barh(places, shares, height * 0.92, color=color, hatch=hatch, edgecolor="white", linewidth=0)
            for place, share in zip(places, shares, strict=True) if has_room else ():
                ax.annotate(
                    format_percent(share), (share, place), (2, 0), textcoords="offset points", va="center", fontsize=6.0
                )
        ax.set_yticks(np.arange(len(names)), names)
        ax.set_ylim(len(names) - 0.45, -0.55)
        ax.tick_params(axis="y", length=0)
        ax.set_xlim(0, 1.12 * max(summary[column].max() for _, column, _, _ in kinds))
        style.percent_axis(ax.xaxis)
        ax.set_xlabel("share of the whole (%)")
        ax.set_ylabel("bucket (tokens)")
        ax.grid(axis="x")
        handles = [Patch(facecolor=color, hatch=hatch, edgecolor="white") for _, _, color, hatch in kinds]
        style.legend_below(fig, handles, [name for name, _, _, _ in kinds])
    described = [
        f"{name} tokens: " + ", ".join(f"{format_percent(row[column])} of the {kind}" for kind, column, _, _ in kinds)
        for name, row in zip(names, summary.iter_rows(named=True), strict=True)
    ]
    if not has_room:
        described = [described[0], f"{len(names) - 2} more buckets", described[-1]]
    return style.finished(fig, f"Shares of {len(names)} length buckets. {'; '.join(described)}.")


def _is_logarithmic(starts: np.ndarray, ends: np.ndarray) -> bool:
    """Bins of equal ratio grow with the length; rounding to whole tokens makes equal widths differ by one."""
    return ends[-1] - starts[-1] > 2 * (ends[0] - starts[0]) or len(starts) == 1
