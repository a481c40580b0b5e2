"""The source run's story in one figure: what each step gave in speed, and how long one bucket lasted."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import LABEL_POINTS, wrap_name
from dflash_lab.figures.numbers import format_count

_CAPTION_POINTS = 6.5
# What a line across the figure holds at that size, less its margins.
_WIDTH_POINTS = 228.0


def plot_story(table: pl.DataFrame) -> Figure:
    """Draw the steps of the source run from top to bottom, with our rates beside those that it reported.

    Args:
        table: One row a step (`analysis.source_run_story`): step, strategy, ours_ktok_per_second,
            source_run_ktok_from, source_run_ktok_to (both null where it reported none), longest_run_batches,
            what_happened (null for a step that is not the source run's).

    Returns:
        A caption a step over two bars: rate on the left, longest run of one bucket on a logarithmic axis on the right.

    Raises:
        ValueError: If the table has no rows or lacks a column or a number.
    """
    numbers = ["ours_ktok_per_second", "longest_run_batches"]
    others = ["step", "strategy", "source_run_ktok_from", "source_run_ktok_to", "what_happened"]
    style.check_table("plot_story", table, [*others, *numbers], numbers=numbers)
    rows = list(table.iter_rows(named=True))
    captions = [_caption(row) for row in rows]
    num_lines = max(caption.count("\n") + 1 for caption in captions)
    row_inches = 0.24 + 1.2 * _CAPTION_POINTS * num_lines / 72
    with style.house_style():
        fig = style.new_figure(0.4 + row_inches * max(len(rows), 2))
        rates, runs = fig.subplots(1, 2, sharey=True, width_ratios=[1.35, 1])
        for place, (look, row, caption) in enumerate(zip(style.strategy_looks(table), rows, captions, strict=True)):
            _rate(rates, place, row, look)
            longest = row["longest_run_batches"]
            runs.barh(place, longest, 0.28, color=look.color, left=0.8, linewidth=0)
            _beside(runs, longest + 0.8, place, format_count(longest))
            # Across both panels; the layout must not make room for it.
            above = rates.annotate(
                caption, (0, place - 0.2), (0, 1), textcoords="offset points", va="bottom", fontsize=_CAPTION_POINTS,
                annotation_clip=False, linespacing=1.05,
            )  # fmt: skip
            above.set_in_layout(False)
        top = -0.26 - (row_inches - 0.2) / row_inches
        for ax in (rates, runs):
            ax.set_ylim(len(rows) - 0.75, top)
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
        # Captions reach over the right panel.
        rates.set_zorder(runs.get_zorder() + 1)
        rates.patch.set_visible(False)
        reported = table["source_run_ktok_to"].max() or 0.0
        rates.set_xlim(0, 1.2 * max(table["ours_ktok_per_second"].max(), reported))
        rates.set_xlabel("real tokens (Ktok/s)")
        most = int(table["longest_run_batches"].max())
        runs.set_xscale("log")
        # Room for the number beside the longest bar.
        runs.set_xlim(0.8, 0.8 * (max(10, most) / 0.8) ** 1.35)
        powers = 10.0 ** np.arange(0, np.ceil(np.log10(max(10, most))) + 1)
        runs.xaxis.set_major_locator(FixedLocator(powers[powers <= max(10, most)]))
        runs.xaxis.set_minor_locator(NullLocator())
        runs.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
        runs.set_xlabel("longest run of\none bucket (batches)")
        handles = [Patch(facecolor=style.GREY), Line2D([], [], color=style.BLACK, marker="|", linewidth=1.6)]
        style.legend_below(fig, handles, ["modelled here", "reported by the source run"])
    described = "; ".join(_description(row) for row in rows)
    return style.finished(
        fig, f"What the source run tried, step by step, with the rates that our plans are modelled at. {described}."
    )


def _caption(row: dict[str, object]) -> str:
    told = f": {row['what_happened']}" if row["what_happened"] else ""
    width_points = _WIDTH_POINTS * LABEL_POINTS / _CAPTION_POINTS
    return wrap_name(f"{row['step']}  {row['strategy']}{told}", width_points=width_points, max_lines=2)


def _rate(ax: Axes, place: int, row: dict[str, object], look: style.Look) -> None:
    ours, low, high = row["ours_ktok_per_second"], row["source_run_ktok_from"], row["source_run_ktok_to"]
    ax.barh(place, ours, 0.28, color=look.color, linewidth=0)
    if low is not None:
        ax.plot([low, high], [place, place], color=style.BLACK, marker="|", markersize=7.0, linewidth=1.6, zorder=4)
    _beside(ax, max(ours, high or 0.0), place, f"{ours:.1f}")


def _beside(ax: Axes, value: float, place: int, text: str) -> None:
    ax.annotate(text, (value, place), (3, 0), textcoords="offset points", va="center", fontsize=6.5)


def _description(row: dict[str, object]) -> str:
    low, high = row["source_run_ktok_from"], row["source_run_ktok_to"]
    ends = "" if low is None else f" (reported {low:g})" if low == high else f" (reported {low:g} to {high:g})"
    return (
        f"{row['step']} {row['strategy']}: {row['ours_ktok_per_second']:.1f} Ktok/s{ends}, longest run "
        f"{format_count(row['longest_run_batches'])} batches"
    )
