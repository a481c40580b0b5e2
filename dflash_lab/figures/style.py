"""One look for every figure: sizes, colours, axes, legends, alt texts and the check of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.style
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dflash_lab.figures.names import LABEL_POINTS, LINE_POINTS, drawable, printable, text_points, wrap_name
from dflash_lab.figures.numbers import format_count

# Half a printed page, so that the type below is the type on paper.
WIDTH_INCHES = 8.5 / 2.54
DOTS_PER_INCH = 240
# Columns of a legend -> points that a label has beside its handle and its neighbours.
_LEGEND_POINTS = {1: 200.0, 2: 88.0, 3: 50.0}

_RC = {
    "figure.dpi": DOTS_PER_INCH,
    "savefig.dpi": DOTS_PER_INCH,
    # DejaVu comes with matplotlib: the same letters, and so the same bytes, on every machine.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7.5,
    # Names come from users: a "$" in one is a letter, not the begin of a formula.
    "text.parse_math": False,
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
_ORDERS = {
    "as_built": (GREY, "P", "-"),
    "random": (VERMILION, "o", "-"),
    "no_repeat_naive": (BLACK, "X", "--"),
    "no_repeat": (ORANGE, "^", "-."),
    "stride": (SKY, "v", "-"),
    "low_discrepancy": (PURPLE, "h", ":"),
    "window_strata": (GREEN, "D", "--"),
    "window_balanced": (BLUE, "s", "-"),
}
_SPARE = ((BLACK, "X"), (YELLOW, "p"))
# A name is of the strategy that it begins with, the longest such one.
_LONGEST_FIRST = sorted(_FAMILIES, key=len, reverse=True)
# Shade (below 0 darker, above 0 lighter), dashes and marker of the 1st, 2nd, ... row of one strategy. The numbers of
# shades, dashes and markers have no common divisor, so that looks come again only after 5 * 4 * 7 rows.
_SHADES = (0.0, -0.4, 0.4, -0.6, 0.65)
_DASHES = ("-", "--", "-.", ":")
_MARKERS = (None, "<", ">", "d", "*", "8", "H")


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


def check_table(
    function: str, table: pl.DataFrame, columns: Sequence[str], *, numbers: Sequence[str] = (), row: str = "strategy"
) -> None:
    """Refuse a table that cannot be drawn.

    Args:
        function: Name of the plot function, for the message.
        table: The table to draw.
        columns: Names that it must have.
        numbers: Those of them in which every row must have a finite number.
        row: The column that names the rows, for the message.

    Raises:
        ValueError: If a column is missing, there is no row, or a number is missing.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing:
        has = ", ".join(table.columns) or "none"
        raise ValueError(f"{function}: the table has no column {', '.join(missing)}; it has {has}")
    if table.is_empty():
        raise ValueError(f"{function}: the table is empty; legal: at least one row")
    for name in numbers:
        if not table.schema[name].is_numeric():
            raise ValueError(f"{function}: column {name} has dtype {table.schema[name]}; legal: numbers")
        finite = table[name].cast(pl.Float64).is_finite().fill_null(False)
        if not finite.all():
            without = ", ".join(map(str, table.filter(~finite)[row]))
            raise ValueError(f"{function}: {name} is no number for {without}; legal: a finite number in each row")


def set_alt_text(fig: Figure, text: str) -> None:
    """Say what a figure shows, with its numbers, for those who do not see it.

    Args:
        fig: The figure.
        text: Sentences; the first one says what the figure is and serves as its caption.
    """
    fig.set_label(printable(text))


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


def strategy_looks(table: pl.DataFrame) -> list[Look]:
    """Give each row its look: the colour belongs to the strategy, the same in all figures.

    Args:
        table: Has a column strategy; config_strategy tells which it is where names are free, else the name's begin
            does. Rows that are all named by their orders are taken for orders of the same batches.

    Returns:
        One look a row; rows of one strategy differ in shade, marker and dashes, orders in colour too.
    """
    names = table["strategy"].to_list()
    if all(name in _ORDERS for name in names):
        return [Look(*_ORDERS[name]) for name in names]
    kinds = table["config_strategy"].to_list() if "config_strategy" in table.columns else names
    seen: dict[str | None, int] = {}
    looks = []
    for kind in kinds:
        family = next((known for known in _LONGEST_FIRST if kind is not None and kind.startswith(known)), None)
        number = seen[family] = seen.get(family, -1) + 1
        color, marker = _FAMILIES.get(family) or _SPARE[number % len(_SPARE)]
        row = number if family else number // len(_SPARE)
        shade, dashes, other = (kinds_of[row % len(kinds_of)] for kinds_of in (_SHADES, _DASHES, _MARKERS))
        looks.append(Look(_shaded(color, shade), other or marker, dashes))
    return looks


def count_strategies(names: Sequence[str]) -> str:
    """Say how many strategies there are.

    Args:
        names: Their names.
    """
    return f"{len(names)} {'strategy' if len(names) == 1 else 'strategies'}"


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

    The figure grows by the legend's height, so that the axes keep theirs.

    Args:
        fig: The figure.
        handles: What the entries look like.
        labels: What they are called; long ones are wrapped.
    """
    longest = max(text_points(drawable(label)) for label in labels)
    num_columns = next((number for number in (3, 2) if longest <= _LEGEND_POINTS[number]), 1)
    num_columns = min(len(labels), num_columns)
    wrapped = [wrap_name(label, width_points=_LEGEND_POINTS[num_columns], max_lines=2) for label in labels]
    fig.legend(handles, wrapped, loc="outside lower center", ncols=num_columns)
    # Entries run down the first column, then the second; half a label lies between two, and around them.
    per_column = -(-len(labels) // num_columns)
    columns = [wrapped[first : first + per_column] for first in range(0, len(wrapped), per_column)]
    lines = max(sum(label.count("\n") + 1 for label in column) for column in columns)
    fig.set_figheight(fig.get_figheight() + (LINE_POINTS * lines + 0.5 * LABEL_POINTS * (per_column + 1)) / 72)


def _shaded(color: str, shade: float) -> object:
    if shade == 0:
        return color
    other = 1.0 if shade > 0 else 0.0
    return tuple(part + (other - part) * abs(shade) for part in to_rgb(color))
