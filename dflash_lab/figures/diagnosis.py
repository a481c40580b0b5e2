"""Figures of what happened to a run: its loss with the resets, and the suspects."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import wrap_name
from dflash_lab.figures.numbers import format_count

# Columns that a long run is drawn in: more are not seen at half a page's width. Each keeps its lowest and its highest
# loss, so that no spike is lost between two points.
MAX_COLUMNS = 500
# Up to here every step has a dot of its own.
MAX_DOTS = 1_500
# Peaks that are circled, the deepest first; all onsets are ticked.
MAX_CIRCLES = 20
# A curve whose largest value is so many times its median is drawn over a logarithmic axis.
LOG_RATIO = 8.0
# More entries than this and a legend is no longer read.
MAX_LEGEND_BUCKETS = 8
_VERDICTS = {
    "guilty": style.VERMILION,
    "cleared": style.BLUE,
    "inseparable": style.ORANGE,
    "not tested": style.GREY,
}


def plot_loss_resets(table: pl.DataFrame, *, resets: pl.DataFrame | None = None) -> Figure:
    """Draw the loss of a run with its resets, and which bucket each step was of.

    Args:
        table: One row an optimizer step: step and loss (null where there is none); bucket (the one that most of the
            step's batches are of, null or -1 for none) where it is known, or bucket_ids (those of the batches).
        resets: One row a reset, as `analysis.loss_resets` gives them: onset_step, peak_step, depth (in the loss's unit)
            and recovery_steps (null where it never came back); None marks nothing.

    Returns:
        The loss over the steps. Up to 1,500 steps have a dot each; more are drawn in columns, from the lowest to the
        highest loss of each, with the median of each bucket as a dot. Onsets are ticked at the top, the deepest peaks
        circled.

    Raises:
        ValueError: If a table lacks a column, there is no row, or no step has a loss.
    """
    style.check_table("plot_loss_resets", table, ["step", "loss"], numbers=["step"], row="step")
    if resets is not None and not resets.is_empty():
        columns = ["onset_step", "peak_step", "depth"]
        style.check_table("plot_loss_resets", resets, [*columns, "recovery_steps"], numbers=columns, row="onset_step")
    drawn = table.select("step", pl.col("loss").cast(pl.Float64), _bucket_of(table).alias("bucket")).sort("step")
    drawn = drawn.filter(pl.col("loss").is_finite())
    if drawn.is_empty():
        raise ValueError("plot_loss_resets: no step has a loss; legal: at least one finite loss")
    steps, losses = drawn["step"].to_numpy(), drawn["loss"].to_numpy()
    buckets = drawn["bucket"].fill_null(-1).to_numpy()
    found = resets if resets is not None else pl.DataFrame()
    with style.house_style():
        fig = style.new_figure(2.2)
        ax = fig.subplots()
        handles, labels = _draw_losses(ax, steps, losses, buckets)
        if not found.is_empty():
            handles += _mark_resets(ax, found, steps, losses)
            labels += ["reset begins", "peak" if len(found) <= MAX_CIRCLES else f"peak ({MAX_CIRCLES} deepest)"]
        _loss_axis(ax, losses)
        _step_axis(ax)
        ax.set_xlabel("optimizer step")
        ax.set_ylabel("loss (nats)")
        ax.grid(axis="y")
        style.legend_below(fig, handles, labels)
    without = len(table) - len(drawn)
    left_out = f" {format_count(without)} steps have no loss." if without else ""
    return style.finished(
        fig,
        f"Loss of {format_count(len(drawn))} steps, from step {format_count(steps[0])} to {format_count(steps[-1])}. "
        f"{_resets_in_words(found)}{left_out}",
    )


def plot_attribution(table: pl.DataFrame) -> Figure:
    """Draw how often each suspect stood near the onset of a loss reset, beside how often it would by chance.

    Args:
        table: One row a suspect, in the order to show: suspect, num_onsets_near, expected_near, ratio, p_value,
            adjusted_p, verdict ("guilty", "cleared", "inseparable" from another or "not tested"); numbers are null
            where it was not tested.

    Returns:
        A bar a suspect for the onsets near it, and a line across for what chance gives.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a verdict is unknown.
    """
    columns = ["suspect", "num_onsets_near", "expected_near", "ratio", "p_value", "adjusted_p", "verdict"]
    style.check_table("plot_attribution", table, columns, row="suspect")
    rows = list(table.iter_rows(named=True))
    for row in rows:
        if row["verdict"] not in _VERDICTS:
            raise ValueError(
                f"plot_attribution: verdict is {row['verdict']!r} for {row['suspect']}; legal: {', '.join(_VERDICTS)}"
            )
    names = [wrap_name(str(row["suspect"]), max_lines=2) for row in rows]
    most = max((value for row in rows for value in (row["num_onsets_near"], row["expected_near"]) if value), default=1)
    with style.house_style():
        fig = style.new_figure(0.5 + 0.3 * max(2, len(rows)))
        ax = fig.subplots()
        for place, row in enumerate(rows):
            color = _VERDICTS[row["verdict"]]
            near, expected = row["num_onsets_near"], row["expected_near"]
            if near is not None:
                ax.barh(place, near, 0.5, color=color, linewidth=0)
            if expected is not None:
                ax.plot([expected] * 2, [place - 0.38, place + 0.38], color=style.BLACK, linewidth=1.4, zorder=4)
            end = max(near or 0, expected or 0)
            ax.annotate(
                _verdict_in_words(row), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=6.5,
                color=style.VERMILION if row["verdict"] == "guilty" else style.BLACK,
            )  # fmt: skip
        ax.set_yticks(range(len(rows)), names)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        # Room for the words beside the longest bar.
        ax.set_xlim(0, 1.9 * most)
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        ax.set_xlabel("onsets near the suspect")
        shown = [verdict for verdict in _VERDICTS if any(row["verdict"] == verdict for row in rows)]
        handles: list[object] = [Patch(facecolor=_VERDICTS[verdict]) for verdict in shown]
        handles.append(Line2D([], [], linestyle="", color=style.BLACK, marker="|", markersize=8, markeredgewidth=1.4))
        style.legend_below(fig, handles, [*shown, "expected by chance"])
    guilty = [str(row["suspect"]) for row in rows if row["verdict"] == "guilty"]
    described = "; ".join(f"{row['suspect']}: {_row_in_words(row)}" for row in rows)
    return style.finished(
        fig,
        f"Which suspects stood near the onsets of the loss resets. "
        f"{'Guilty: ' + ', '.join(guilty) if guilty else 'None is guilty'}. {described}.",
    )


def _bucket_of(table: pl.DataFrame) -> pl.Expr:
    """The bucket of each step: of its batches' the most frequent one, of equals the shortest."""
    if "bucket" in table.columns:
        return pl.col("bucket").cast(pl.Int64)
    if "bucket_ids" in table.columns:
        return pl.col("bucket_ids").list.eval(pl.element().mode().min()).list.first().cast(pl.Int64)
    return pl.lit(-1, pl.Int64)


def _draw_losses(
    ax: Axes, steps: np.ndarray, losses: np.ndarray, buckets: np.ndarray
) -> tuple[list[object], list[str]]:
    """Draw dots, or columns of many steps; returns the entries of the legend."""
    present = sorted(set(buckets.tolist()))
    known = [bucket for bucket in present if bucket >= 0]
    colors = dict(zip(known, _bucket_colors(len(known)), strict=True))
    handles: list[object] = []
    labels: list[str] = []
    is_dense = len(steps) > MAX_DOTS
    if is_dense:
        column = np.minimum((np.arange(len(steps)) * MAX_COLUMNS) // len(steps), MAX_COLUMNS - 1)
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        low, high = np.minimum.reduceat(losses, starts), np.maximum.reduceat(losses, starts)
        ax.vlines(steps[starts], low, high, color="#B8B8B8", linewidth=0.5, zorder=1)
        handles.append(Line2D([], [], color="#B8B8B8", linewidth=3))
        labels.append(f"range of {format_count(-(-len(steps) // MAX_COLUMNS))} steps")
    else:
        ax.plot(steps, losses, color="#B8B8B8", linewidth=0.5, zorder=1)
    size = 2.0 if is_dense or len(steps) > 300 else 3.0
    for bucket in present:
        own = buckets == bucket
        x, y = steps[own], losses[own]
        if is_dense:
            x, y = _column_medians(column[own], x, y)
        ax.plot(x, y, linestyle="", marker="o", markersize=size, markeredgewidth=0,
                color=colors.get(bucket, style.BLUE if not known else style.GREY), zorder=2)  # fmt: skip
    kind = "median" if is_dense else "step"
    has_both = known and len(known) < len(present)
    if len(known) > MAX_LEGEND_BUCKETS:
        ends = [(known[0], "shorter samples"), (known[-1], "longer samples")]
    else:
        ends = [(bucket, f"bucket {bucket}") for bucket in known]
    for bucket, label in ends:
        handles.append(_dot(colors[bucket]))
        labels.append(label)
    if has_both or not known:
        handles.append(_dot(style.GREY if known else style.BLUE))
        labels.append("no bucket" if known else kind)
    return handles, labels


def _column_medians(columns: np.ndarray, steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median loss of each column, at its middle step."""
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    parts = zip(np.split(steps, starts[1:]), np.split(losses, starts[1:]), strict=True)
    medians = [(np.median(of_column), np.median(values)) for of_column, values in parts]
    return np.array([step for step, _ in medians]), np.array([loss for _, loss in medians])


def _mark_resets(ax: Axes, resets: pl.DataFrame, steps: np.ndarray, losses: np.ndarray) -> list[object]:
    """Tick every onset at the top, and circle the deepest peaks."""
    onsets = resets["onset_step"].to_numpy()
    # Many ticks side by side would become a bar.
    width = 1.0 if len(onsets) <= 60 else 0.4
    ax.vlines(onsets, 0.955, 1.0, transform=ax.get_xaxis_transform(), color=style.VERMILION, linewidth=width, zorder=4)
    deepest = resets.sort("depth", descending=True).head(MAX_CIRCLES)["peak_step"].to_numpy()
    places = np.searchsorted(steps, deepest)
    inside = places < len(steps)
    places = places[inside][steps[places[inside]] == deepest[inside]]
    ax.plot(steps[places], losses[places], linestyle="", marker="o", markersize=5.0, markerfacecolor="none",
            markeredgecolor=style.VERMILION, markeredgewidth=0.9, zorder=5)  # fmt: skip
    return [
        Line2D([], [], linestyle="", marker="|", markersize=6, color=style.VERMILION),
        Line2D([], [], linestyle="", marker="o", markersize=5, markerfacecolor="none", color=style.VERMILION),
    ]


def _dot(color: object) -> Line2D:
    return Line2D([], [], linestyle="", marker="o", markersize=4, markeredgewidth=0, color=color)


def _bucket_colors(num_buckets: int) -> list[object]:
    """Longer is darker, as in the strips of buckets."""
    return [colormaps["cividis_r"](0.04 + 0.92 * number / max(1, num_buckets - 1)) for number in range(num_buckets)]


def _loss_axis(ax: Axes, losses: np.ndarray) -> None:
    if losses.min() > 0 and losses.max() > LOG_RATIO * np.median(losses):
        ax.set_yscale("log")
        low, high = losses.min() / 1.1, losses.max() * 1.3
        ax.set_ylim(low, high)
        rounds = [base * 10.0**power for power in range(-6, 7) for base in (1, 2, 5)]
        shown = [value for value in rounds if low <= value <= high]
        ax.yaxis.set_major_locator(FixedLocator(shown[:: -(-len(shown) // 6)]))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        # Ticks of onsets stand above the highest loss.
        margin = 0.05 * (losses.max() - losses.min()) or 0.05 * max(1e-9, abs(losses.max()))
        ax.set_ylim(losses.min() - margin, losses.max() + 2 * margin)
        ax.yaxis.set_major_locator(MaxNLocator(5))


def _step_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def _resets_in_words(resets: pl.DataFrame) -> str:
    if resets.is_empty():
        return "No reset is marked."
    deepest = resets.sort("depth", descending=True).row(0, named=True)
    back = resets["recovery_steps"].drop_nulls()
    lasted = f"back after a median of {format_count(back.median())} steps" if len(back) else "none of them back"
    never = resets["recovery_steps"].null_count()
    # How many were not back is no part of the median.
    others = f", {format_count(never)} not" if never and len(back) else ""
    return (
        f"{format_count(len(resets))} {'reset is' if len(resets) == 1 else 'resets are'} marked, the deepest by "
        f"{deepest['depth']:.3g} at step {format_count(deepest['peak_step'])}, {lasted}{others}."
    )


def _verdict_in_words(row: dict[str, object]) -> str:
    if row["verdict"] == "not tested" or row["adjusted_p"] is None:
        return str(row["verdict"])
    ratio = f"{row['ratio']:.1f}x, " if row["ratio"] is not None else ""
    return f"{row['verdict']}\n{ratio}adj. p {_small(row['adjusted_p'])}"  # type: ignore[arg-type]


def _row_in_words(row: dict[str, object]) -> str:
    if row["num_onsets_near"] is None or row["expected_near"] is None:
        return str(row["verdict"])
    adjusted = "" if row["adjusted_p"] is None else f", adjusted p {_small(row['adjusted_p'])}"  # type: ignore[arg-type]
    return (
        f"{row['verdict']}, {format_count(row['num_onsets_near'])} onsets near it where chance gives "  # type: ignore[arg-type]
        f"{row['expected_near']:.3g}{adjusted}"
    )


def _small(probability: float) -> str:
    return f"{probability:.2g}" if probability >= 1e-4 else "< 0.0001"
