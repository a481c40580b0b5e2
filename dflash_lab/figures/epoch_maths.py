"""Figure of what a run's log says of steps, epochs and time, checked against itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dflash_lab.figures import style
from dflash_lab.figures.names import wrap_name
from dflash_lab.figures.numbers import format_count

_SECONDS_A_DAY = 86_400.0
_NUMBERS = ("value", "low", "high")


@dataclass(frozen=True)
class _Interval:
    """One figure, had in one way."""

    label: str
    value: float
    low: float
    high: float
    agrees: bool


@dataclass(frozen=True)
class _Group:
    """Intervals that are of one quantity, on one scale."""

    title: str
    intervals: tuple[_Interval, ...]

    @property
    def agrees(self) -> bool:
        return all(each.agrees for each in self.intervals)


def plot_epoch_maths(table: pl.DataFrame) -> Figure:
    """Draw figures of a run's log beside what its other figures say of them, with the intervals that rounding allows.

    Args:
        table: One row a figure and a way to have it, rows of one figure together: name, value, low, high, unit and how
            (where it is from, such as "shown"). Or `analysis.epoch_maths(...).checks`, one row a pair and step: pair
            (two names with ", " between them), step, left, left_low, left_high, right, right_low, right_high, agree;
            of a pair its last step is drawn, and the first that disagrees where that one does not. Figures of pairs
            whose names begin with "ETA" are in seconds, and drawn in days.

    Returns:
        An interval a row, those of one figure or pair on one scale; what meets no other one is marked.

    Raises:
        ValueError: If the table has no rows, lacks a column, a number is missing, or an interval is upside down.
    """
    groups = _of_pairs(table) if "pair" in table.columns else _of_names(table)
    for group in groups:
        for each in group.intervals:
            if each.low > each.high:
                raise ValueError(
                    f"plot_epoch_maths: the interval of {group.title or each.label}, {each.label} is {each.low:g} to "
                    f"{each.high:g}; legal: low <= high"
                )
    num_rows, num_titles = sum(len(group.intervals) for group in groups), sum(bool(group.title) for group in groups)
    place, ticks = 0.0, []
    with style.house_style():
        fig = style.new_figure(0.45 + 0.26 * num_rows + 0.1 * len(groups) + 0.12 * num_titles)
        ax = fig.subplots()
        for group in groups:
            if group.title:
                ax.text(0, place, wrap_name(group.title, width_points=140.0, max_lines=1), va="center", fontsize=7,
                        weight="bold")  # fmt: skip
                place += 0.75
            for each in group.intervals:
                _draw(ax, place, each, group)
                ticks.append((place, wrap_name(each.label, width_points=100.0, max_lines=2)))
                place += 1.0
            place += 0.3
        ax.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(place - 0.7, -0.6)
        ax.set_xlim(0, 1.95)
        ax.set_xticks([])
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        ax.set_xlabel("each figure on its own scale", loc="left")
        shown = [agrees for agrees in (True, False) if any(agrees == row.agrees for g in groups for row in g.intervals)]
        handles = [_handle(_color(agrees)) for agrees in shown]
        style.legend_below(fig, handles, ["agrees" if agrees else "disagrees" for agrees in shown])
    disputed = [_named(group) for group in groups if not group.agrees]
    verdict = f"Not in agreement: {'; '.join(disputed)}" if disputed else "All agree"
    described = "; ".join(
        f"{f'{group.title}, ' if group.title else ''}{each.label}: {_in_words(each)}"
        for group in groups
        for each in group.intervals
    )
    return style.finished(
        fig, f"Figures of a run's log beside what its other figures say of them. {verdict}. {described}."
    )


def _of_names(table: pl.DataFrame) -> list[_Group]:
    style.check_table("plot_epoch_maths", table, ["name", *_NUMBERS, "unit", "how"], numbers=_NUMBERS, row="name")
    groups = []
    for rows in table.partition_by("name", maintain_order=True):
        held = [tuple(float(row[name]) for name in _NUMBERS) for row in rows.iter_rows(named=True)]
        unit = rows["unit"][0]
        intervals = tuple(
            _Interval(str(how), *numbers, agrees)
            for how, numbers, agrees in zip(rows["how"], held, _meeting(held), strict=True)
        )
        groups.append(_Group(f"{rows['name'][0]} ({unit})" if unit else str(rows["name"][0]), intervals))
    return groups


def _meeting(held: Sequence[tuple[float, ...]]) -> list[bool]:
    """Which intervals meet another one; a single one has none to disagree with."""
    meets = [
        [own != at and low <= other[2] and other[1] <= high for at, other in enumerate(held)]
        for own, (_, low, high) in enumerate(held)
    ]
    return [len(held) == 1 or any(row) for row in meets]


def _of_pairs(table: pl.DataFrame) -> list[_Group]:
    sides = {side: [f"{side}{end}" for end in ("", "_low", "_high")] for side in ("left", "right")}
    numbers = ["step", *sides["left"], *sides["right"]]
    style.check_table("plot_epoch_maths", table, ["pair", *numbers, "agree"], numbers=numbers, row="pair")
    last_step = table["step"].max()
    groups = []
    for rows in table.partition_by("pair", maintain_order=True):
        ordered = rows.sort("step", maintain_order=True)
        shown = [ordered.row(-1, named=True)]
        apart = ordered.filter(~pl.col("agree"))
        if shown[0]["agree"] and not apart.is_empty():
            shown.append(apart.row(0, named=True))
        first, _, second = str(rows["pair"][0]).partition(", ")
        is_time = first.startswith("ETA")
        scale = _SECONDS_A_DAY if is_time else 1.0
        for row in shown:
            at = "" if row["step"] == last_step else f", step {format_count(row['step'])}"
            names = (f"{first}{' (days)' if is_time else ''}{at}", second or first)
            intervals = tuple(
                _Interval(name, *(float(row[column]) / scale for column in columns), bool(row["agree"]))
                for name, columns in zip(names, sides.values(), strict=True)
            )
            groups.append(_Group("", intervals))
    return groups


def _draw(ax: Axes, place: float, each: _Interval, group: _Group) -> None:
    """Draw an interval between 0.05 and 0.95 of the group's scale, with its numbers behind it."""
    low, high = min(other.low for other in group.intervals), max(other.high for other in group.intervals)
    value, begin, end = (
        0.05 + 0.9 * (number - low) / (high - low) if high > low else 0.5
        for number in (each.value, each.low, each.high)
    )
    color = _color(each.agrees)
    ax.plot([begin, end], [place, place], color=color, linewidth=3.0, alpha=0.45, solid_capstyle="butt")
    ax.plot([begin, end], [place, place], linestyle="", marker="|", markersize=5, color=color)
    ax.plot(value, place, marker="o", markersize=3.5, color=color, zorder=4)
    ax.annotate(
        _in_words(each).replace(" (", "\n("), (1.0, place), va="center", fontsize=6.5, linespacing=1.0,
        color=style.BLACK if each.agrees else color,
    )  # fmt: skip


def _color(agrees: bool) -> str:
    return style.BLUE if agrees else style.VERMILION


def _handle(color: str) -> Line2D:
    return Line2D([], [], color=color, marker="o", markersize=3.5, linewidth=2.0)


def _named(group: _Group) -> str:
    return group.title or " and ".join(each.label for each in group.intervals)


def _in_words(each: _Interval) -> str:
    digits = _digits(each.value, each.high - each.low)
    if each.low == each.high:
        return _number(each.value, digits)
    return f"{_number(each.value, digits)} ({_number(each.low, digits)} to {_number(each.high, digits)})"


def _digits(value: float, width: float) -> int:
    """Decimals that show an interval's ends apart, at most six."""
    if width <= 0:
        return 0 if value.is_integer() else 4
    return int(min(6, max(0, 1 - np.floor(np.log10(width)))))


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if abs(value) < 1e9 else format_count(value)
