"""One look for every figure: sizes, colours, numbers for people, alt texts and the check of a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.style
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

# Half a printed page, so that the type below is the type on paper.
WIDTH_INCHES = 8.5 / 2.54
DOTS_PER_INCH = 240

_RC = {
    "figure.dpi": DOTS_PER_INCH,
    "savefig.dpi": DOTS_PER_INCH,
    # DejaVu comes with matplotlib: the same letters, and so the same bytes, on every machine.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 3.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "dflash_lab",
    "savefig.bbox": "standard",
    "savefig.facecolor": "white",
    "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}

# Okabe and Ito's palette, told apart by people with any kind of colour vision.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#767676"

BY_SAMPLES, BY_TOKENS, BY_BATCHES = BLUE, ORANGE, GREEN

_FAMILIES = {
    "as_given": (GREY, "P"),
    "sorted": (BLUE, "s"),
    "random": (VERMILION, "o"),
    "bucketed": (ORANGE, "^"),
    "capacity": (GREEN, "D"),
    "pooled": (SKY, "v"),
    "packed": (PURPLE, "h"),
}
_SPARE = ((BLACK, "X"), (YELLOW, "p"))
# Shade (below 0 darker, above 0 lighter), dashes and marker of the 1st, 2nd, ... row of one strategy.
_VARIANTS = ((0.0, "-", None), (-0.4, "--", "<"), (0.4, "-.", ">"), (-0.6, ":", "d"), (0.55, (0, (5, 1, 1, 1)), "*"))


@dataclass(frozen=True)
class Look:
    """How one row of a strategy table is drawn.

    Attributes:
        color: Hex or RGB colour.
        marker: Marker of matplotlib.
        linestyle: Line style of matplotlib.
    """

    color: object
    marker: str
    linestyle: object


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with these settings only, whatever the caller's rcParams are, and leave those as they were."""
    with matplotlib.style.context(["default", _RC]):
        yield


def new_figure(height_inches: float) -> Figure:
    """Give an empty figure as wide as half a page.

    Args:
        height_inches: Height, > 0.

    Returns:
        A figure that lays its parts out without overlap.
    """
    return Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")


def check_table(function: str, table: pl.DataFrame, columns: Sequence[str]) -> None:
    """Refuse a table that cannot be drawn.

    Args:
        function: Name of the plot function, for the message.
        table: The table to draw.
        columns: Names that it must have.

    Raises:
        ValueError: If a column is missing or there is no row.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing:
        has = ", ".join(table.columns) or "none"
        raise ValueError(f"{function}: the table has no column {', '.join(missing)}; it has {has}")
    if table.is_empty():
        raise ValueError(f"{function}: the table is empty; legal: at least one row")


def set_alt_text(fig: Figure, text: str) -> None:
    """Say what a figure shows, with its numbers, for those who do not see it.

    Args:
        fig: The figure.
        text: Sentences; the first one says what the figure is and serves as its caption.
    """
    fig.set_label(" ".join(text.split()))


def finished(fig: Figure, alt_text: str) -> Figure:
    """Settle the layout and say what the figure shows.

    Every further draw would move the axes by a hair, since the layout starts from where the last one ended; then a
    figure that has been looked at would be saved as other bytes than one that has not.

    Args:
        fig: A figure with everything on it.
        alt_text: As in `set_alt_text`.

    Returns:
        The figure.
    """
    with house_style():
        fig.draw_without_rendering()
    fig.set_layout_engine("none")
    set_alt_text(fig, alt_text)
    return fig


def figure_alt_text(fig: Figure) -> str:
    """Give the alt text of a figure, "" if it has none.

    Args:
        fig: A figure, from a plot function or one that `set_alt_text` has seen.
    """
    label = fig.get_label()
    return label if isinstance(label, str) else ""


def format_count(count: float) -> str:
    """Write a count for people: 46,350 or 1.23 M.

    Args:
        count: Any number.
    """
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:,.0f}" if float(count).is_integer() or abs(count) >= 100 else f"{count:.3g}"


def format_percent(share: float) -> str:
    """Write a share as a percentage with about two digits: 52 %, 0.024 %.

    Args:
        share: A share, 0.52 for 52 %.
    """
    percent = 100 * share
    if percent == 0 or abs(percent) >= 10:
        return f"{percent:.0f} %"
    return f"{np.format_float_positional(percent, precision=2, fractional=False, trim='-')} %"


def wrap_name(name: str, *, width: int = 18, max_lines: int = 3) -> str:
    """Break a long name into lines, and shorten what does not fit.

    Args:
        name: Any text.
        width: Most characters in a line.
        max_lines: Most lines.
    """
    return textwrap.fill(name, width, max_lines=max_lines, placeholder=" …") or name[:width]


def name_row_inches(names: Sequence[str], least: float) -> float:
    """Give the height of a row that holds any of the names, as `wrap_name` breaks them.

    Args:
        names: The rows' names.
        least: Least height in inches.
    """
    num_lines = max(wrap_name(name).count("\n") + 1 for name in names)
    # 7 points with their leading, and a gap to the next row.
    return max(least, (num_lines * 9.0 + 3.0) / 72)


def shorten_name(name: str, *, width: int = 26) -> str:
    """Cut the middle out of a long name: paths differ at both ends.

    Args:
        name: Any text.
        width: Most characters.
    """
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def strategy_looks(table: pl.DataFrame) -> list[Look]:
    """Give each row its look: the colour belongs to the strategy, the same in all figures.

    Args:
        table: Has a column strategy; config_strategy tells which it is where names are free, else the name does.

    Returns:
        One look a row; rows of one strategy differ in shade, marker and dashes.
    """
    names = table["strategy"].to_list()
    kinds = table["config_strategy"].to_list() if "config_strategy" in table.columns else names
    seen: dict[str, int] = {}
    spare: dict[str, tuple[str, str]] = {}
    looks = []
    for kind in kinds:
        family = next((known for known in _FAMILIES if known in kind), kind)
        color, marker = _FAMILIES.get(family) or spare.setdefault(family, _SPARE[len(spare) % len(_SPARE)])
        shade, linestyle, other_marker = _VARIANTS[seen.get(family, 0) % len(_VARIANTS)]
        seen[family] = seen.get(family, 0) + 1
        looks.append(Look(_shaded(color, shade), other_marker or marker, linestyle))
    return looks


def length_axis(ax: Axes, low: float, high: float, *, log: bool = True, max_labels: int = 8) -> None:
    """Make x an axis of lengths.

    Args:
        ax: The axes.
        low: Shortest length to show, in tokens, >= 1.
        high: Longest length to show.
        log: Logarithmic with powers of two, where the lengths span a factor of four at least; linear otherwise.
        max_labels: Most labels; eight such as "1,024" are what the whole width holds.
    """
    if log and high >= 4 * low:
        ax.set_xscale("log", base=2)
        margin = (high / low) ** 0.02
        low, high = low / margin, high * margin
        powers = [2**power for power in range(40) if low <= 2**power <= high]
        ax.xaxis.set_major_locator(FixedLocator(powers[:: -(-len(powers) // max_labels)]))
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        margin = 0.03 * (high - low) or max(1.0, 0.1 * low)
        low, high = low - margin, high + margin
        ax.xaxis.set_major_locator(MaxNLocator(min(6, max_labels), integer=True))
    ax.set_xlim(low, high)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def percent_axis(axis: object) -> None:
    """Write shares on an axis as percentages; the label says so.

    Args:
        axis: `ax.xaxis` or `ax.yaxis`.
    """
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))


def legend_below(fig: Figure, handles: Sequence[object], labels: Sequence[str]) -> None:
    """Put a legend under the axes, in as many columns as its longest label leaves room for.

    Args:
        fig: The figure.
        handles: What the entries look like.
        labels: What they are called; long ones are wrapped.
    """
    longest = max(map(len, labels))
    num_columns = min(len(labels), 3 if longest <= 14 else 2 if longest <= 24 else 1)
    wrapped = [wrap_name(label, width=60 // num_columns, max_lines=2) for label in labels]
    fig.legend(handles, wrapped, loc="outside lower center", ncols=num_columns)


def _shaded(color: str, shade: float) -> object:
    if shade == 0:
        return color
    other = 1.0 if shade > 0 else 0.0
    return tuple(part + (other - part) * abs(shade) for part in to_rgb(color))
