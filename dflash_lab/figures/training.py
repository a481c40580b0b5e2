"""Figures of a training run: what the log of its steps shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from dflash_lab.figures import style
from dflash_lab.figures.numbers import format_count

# Points of a line: more are not seen at half a page's width, and only make files large.
MAX_POINTS = 1_500
# A curve whose largest value is so many times its median is drawn over a logarithmic axis.
LOG_RATIO = 8.0
# Steps that the smooth line averages over, as a share of the run.
SMOOTH_SHARE = 0.04


@dataclass(frozen=True)
class _Panel:
    """One curve over the steps."""

    column: str
    label: str
    held_out: str = ""
    smooth: bool = True
    as_percent: bool = False


_PANELS = (
    _Panel("loss", "loss (nats)", held_out="held_out_loss"),
    _Panel("accuracy", "accuracy (%)", held_out="held_out_accuracy", as_percent=True),
    _Panel("streak", "streak (tokens)", held_out="held_out_streak"),
    _Panel("tree_gain", "tree gain (tokens)"),
    _Panel("grad_norm", "gradient norm"),
    _Panel("learning_rate", "learning rate", smooth=False),
    _Panel("noise", "noise as applied", smooth=False),
)


def plot_run(table: pl.DataFrame) -> Figure:
    """Draw what a run did, step by step: loss, accuracy, streak, tree gain, gradient norm, learning rate and noise.

    Args:
        table: One row an optimizer step: step, and any of loss, accuracy, streak, tree_gain, grad_norm, learning_rate,
            noise; nulls are gaps. held_out_loss, held_out_accuracy and held_out_streak stand at the steps where
            held-out samples were scored.

    Returns:
        One panel a column that has a value; single steps pale, their running mean strong, held-out values as markers.

    Raises:
        ValueError: If the table has no rows, lacks step, or has none of the columns.
    """
    style.check_table("plot_run", table, ["step"], numbers=["step"], row="step")
    panels = [panel for panel in _PANELS if _has_values(table, panel.column)]
    if not panels:
        names = ", ".join(panel.column for panel in _PANELS)
        raise ValueError(f"plot_run: the table has no values of a run; legal: at least one of {names}")
    held_out = [panel for panel in panels if panel.held_out and _has_values(table, panel.held_out)]
    smoothed = any(panel.smooth for panel in panels) and len(table) > 2
    with style.house_style():
        rows = -(-len(panels) // 2)
        fig = style.new_figure(0.25 + 0.95 * rows)
        axes = fig.subplots(rows, 2 if len(panels) > 1 else 1, squeeze=False, sharex=True).ravel()
        for ax, panel in zip(axes, panels, strict=False):
            _draw_panel(ax, table, panel, smoothed=smoothed)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[: len(panels)][-2:]:
            ax.set_xlabel("optimizer step")
            ax.tick_params(labelbottom=True)
        _legend(fig, smoothed=smoothed, held_out=bool(held_out))
    first, last = table["step"].min(), table["step"].max()
    said = [_first_and_last(table, panel) for panel in panels]
    said += [_best_held_out(table, panel) for panel in held_out if panel.column == "streak"]
    return style.finished(
        fig, f"A training run from step {format_count(first)} to step {format_count(last)}. {'; '.join(said)}."
    )


def plot_queue_history(table: pl.DataFrame) -> Figure:
    """Draw how full a run's queues were, step by step.

    Args:
        table: One row an optimizer step: step, q_pre_min, q_pre_max (batches in the emptiest and the fullest queue
            before the targets) and q_hs (batches in all queues before the drafter).

    Returns:
        Two panels over the steps: the band between emptiest and fullest prefetch queue, and the hidden-state queue.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a value is missing.
    """
    columns = ["step", "q_pre_min", "q_pre_max", "q_hs"]
    style.check_table("plot_queue_history", table, columns, numbers=columns, row="step")
    shown = _thinned(table)
    steps = shown["step"].to_numpy()
    with style.house_style():
        fig = style.new_figure(2.1)
        upper, lower = fig.subplots(2, 1, sharex=True)
        upper.fill_between(
            steps, shown["q_pre_min"].to_numpy(), shown["q_pre_max"].to_numpy(), color=style.SKY, alpha=0.5, linewidth=0
        )
        upper.plot(steps, shown["q_pre_min"].to_numpy(), color=style.BLUE, linewidth=0.8)
        upper.set_ylabel("q_pre (batches)")
        lower.plot(steps, shown["q_hs"].to_numpy(), color=style.GREEN, linewidth=0.8)
        lower.set_ylabel("q_hs (batches)")
        lower.set_xlabel("optimizer step")
        for ax in (upper, lower):
            ax.set_ylim(bottom=0)
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            ax.grid(axis="y")
        _step_axis(lower)
    empty = float((table["q_pre_min"] == 0).mean())
    return style.finished(
        fig,
        f"Batches waiting before the targets (band from the emptiest to the fullest queue) and before the drafter. "
        f"The emptiest prefetch queue held {table['q_pre_min'].mean():.1f} batches on average and was empty at "
        f"{100 * empty:.0f} % of the steps; {table['q_hs'].mean():.1f} waited before the drafter.",
    )


def _draw_panel(ax: Axes, table: pl.DataFrame, panel: _Panel, *, smoothed: bool) -> None:
    drawn = table.select("step", panel.column).drop_nulls()
    steps = drawn["step"].to_numpy()
    values = drawn[panel.column].cast(pl.Float64).to_numpy()
    pale = panel.smooth and smoothed
    kept = _places(len(steps))
    ax.plot(
        steps[kept], values[kept], color=style.BLUE, linewidth=0.6 if pale else 1.0, alpha=0.35 if pale else 1.0,
        marker="" if len(steps) > 1 else "o",
    )  # fmt: skip
    if pale:
        mean = _running_mean(values, max(3, round(SMOOTH_SHARE * len(values))))
        ax.plot(steps[kept], mean[kept], color=style.BLUE, linewidth=1.2)
    if panel.held_out and _has_values(table, panel.held_out):
        scored = table.select("step", panel.held_out).drop_nulls()
        ax.plot(
            scored["step"].to_numpy(), scored[panel.held_out].cast(pl.Float64).to_numpy(), color=style.VERMILION,
            marker="o", markersize=2.8, linewidth=0.9,
        )  # fmt: skip
    ax.set_title(panel.label)
    if len(values) and values.min() > 0 and values.max() > LOG_RATIO * np.median(values):
        # The first steps of a run would otherwise flatten all others.
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(4))
    if panel.column == "noise" and not values.any():
        ax.set_ylim(0, 1)
    if panel.column == "learning_rate":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}" if value else "0"))
    elif panel.as_percent:
        style.percent_axis(ax.yaxis)
    ax.grid(axis="y")
    _step_axis(ax)


def _step_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def _legend(fig: Figure, *, smoothed: bool, held_out: bool) -> None:
    from matplotlib.lines import Line2D

    entries = [(Line2D([], [], color=style.BLUE, linewidth=0.8, alpha=0.5 if smoothed else 1.0), "step")]
    if smoothed:
        entries.append((Line2D([], [], color=style.BLUE, linewidth=1.2), "running mean"))
    if held_out:
        entries.append((Line2D([], [], color=style.VERMILION, marker="o", markersize=2.8), "held out"))
    handles, labels = zip(*entries, strict=True)
    style.legend_below(fig, handles, labels)


def _has_values(table: pl.DataFrame, column: str) -> bool:
    return column in table.columns and table[column].null_count() < len(table)


def _running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over the steps around each; over fewer at the ends, so that no value comes from outside."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    begins = np.maximum(places - width // 2, 0)
    ends = np.minimum(places + width // 2 + 1, len(values))
    return (sums[ends] - sums[begins]) / (ends - begins)


def _places(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64)) if count else np.arange(0)


def _thinned(table: pl.DataFrame) -> pl.DataFrame:
    return table[_places(len(table)).tolist()]


def _first_and_last(table: pl.DataFrame, panel: _Panel) -> str:
    values = table[panel.column].drop_nulls().cast(pl.Float64)
    tenth = max(1, len(values) // 10)
    write: Callable[[float], str] = (lambda x: f"{100 * x:.1f}") if panel.as_percent else (lambda x: f"{x:.3g}")
    name = panel.label.replace(" (%)", " in percent")
    return f"{name}: {write(values[:tenth].mean())} in the first tenth, {write(values[-tenth:].mean())} in the last"


def _best_held_out(table: pl.DataFrame, panel: _Panel) -> str:
    scored: Sequence[float] = table[panel.held_out].drop_nulls().to_list()
    return f"held-out {panel.column}: {scored[-1]:.3g} at the end, best {max(scored):.3g}"
