"""Figures of what the loss mask covers."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from dflash_lab.figures import style
from dflash_lab.figures.numbers import format_percent


def plot_loss_share(table: pl.DataFrame) -> Figure:
    """Draw how much of a sample is supervised.

    Args:
        table: One row a bin (`analysis.loss_share_histogram`): share_from, share_to, share_of_samples,
            share_of_tokens.

    Returns:
        Bars for samples and a line for the tokens in them.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    style.check_table("plot_loss_share", table, ["share_from", "share_to", "share_of_samples", "share_of_tokens"])
    edges = np.append(table["share_from"].to_numpy(), table["share_to"][-1])
    by_samples, by_tokens = (table[name].to_numpy() for name in ("share_of_samples", "share_of_tokens"))
    with style.house_style():
        fig = style.new_figure(2.0)
        ax = fig.subplots()
        bars = ax.stairs(by_samples, edges, fill=True, facecolor=style.BY_SAMPLES, edgecolor="white", linewidth=0.5)
        line = ax.stairs(by_tokens, edges, color=style.BY_TOKENS, linewidth=1.6, baseline=None)
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1.08 * max(by_samples.max(), by_tokens.max()))
        style.percent_axis(ax.xaxis)
        style.percent_axis(ax.yaxis)
        ax.set_xlabel("supervised tokens of a sample (%)")
        ax.set_ylabel("share of the whole (%)")
        ax.grid(axis="y")
        style.legend_below(fig, [bars, line], ["samples", "tokens in them"])
    peak = table.row(int(by_samples.argmax()), named=True)
    low = float(by_samples[edges[:-1] < 0.1].sum())
    text = f"""Histogram of the share of supervised tokens in a sample. The fullest bar is at
        {format_percent(peak["share_from"])} to {format_percent(peak["share_to"])} and holds
        {format_percent(by_samples.max())} of the samples; {format_percent(low)} of them lie below a tenth."""
    return style.finished(fig, text)
