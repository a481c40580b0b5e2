"""Figures of a study: how batchings differ in loss, gradients and held-out tau, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dflash_lab.figures import style
from dflash_lab.figures.names import name_row_inches, wrap_name
from dflash_lab.figures.numbers import format_count

_BINS = 24
# From one end of the palette to the other through white, so that 0 has no colour.
_SIGNED = LinearSegmentedColormap.from_list("signed", [style.VERMILION, "#FFFFFF", style.BLUE])


def plot_variance_split(table: pl.DataFrame, *, conditions: str = "") -> Figure:
    """Draw the variance of the loss around its trend, split into what lies between and within length buckets.

    Args:
        table: One row an arm, as of `study_table`: label, between_variance, within_variance (their sum is the
            variance), between_share_by_chance (what buckets drawn at random would have).
        conditions: Seeds, tokens and hardware, in words.

    Returns:
        Stacked bars, and the share between beside them.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a variance is missing.
    """
    parts = ["between_variance", "within_variance"]
    columns = ["label", *parts, "between_share_by_chance"]
    style.check_table("plot_variance_split", table, columns, numbers=parts, row="label")
    names, between, within = (table[name].to_list() for name in ("label", *parts))
    shares = [one / (one + other) if one + other else 0.0 for one, other in zip(between, within, strict=True)]
    chances = [None if value is None else 100 * value for value in table["between_share_by_chance"].to_list()]
    with style.house_style():
        fig = style.new_figure(0.6 + name_row_inches(names, 0.26) * len(names))
        ax = fig.subplots()
        places = list(range(len(names)))
        bars = [
            ax.barh(places, between, height=0.62, color=style.VERMILION),
            ax.barh(places, within, left=between, height=0.62, color=style.SKY),
        ]
        ends = [one + other for one, other in zip(between, within, strict=True)]
        for place, end, share in zip(places, ends, shares, strict=True):
            ax.annotate(
                f"{100 * share:.1f} %", (end, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
            )
        _name_axis(ax, names)
        ax.set_xlim(0, 1.2 * max(max(ends), 1e-12))
        ax.set_xlabel("variance of the loss (nats²)")
        ax.grid(axis="x")
        style.legend_below(fig, bars, ["between buckets (%)", "within buckets"])
    said = "; ".join(
        f"{name}: {100 * share:.1f} % of {total:.3g} between buckets"
        + ("" if chance is None else f" ({chance:.1f} % by chance)")
        for name, share, total, chance in zip(names, shares, ends, chances, strict=True)
    )
    return style.finished(
        fig, f"Variance of the loss of steps, between and within length buckets{_with(conditions)}. {said}."
    )


def plot_loss_histograms(table: pl.DataFrame, *, conditions: str = "") -> Figure:
    """Draw how the loss of steps lies around its trend, one histogram an arm.

    Args:
        table: One row a step, as of `deviation_table`: label, deviation (nats).
        conditions: Seeds, tokens and hardware, in words.

    Returns:
        One small panel an arm, on one axis.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a deviation is missing.
    """
    columns = ["label", "deviation"]
    style.check_table("plot_loss_histograms", table, columns, numbers=["deviation"], row="label")
    labels = table["label"].unique(maintain_order=True).to_list()
    looks = style.strategy_looks(pl.DataFrame({"strategy": labels}))
    values = table["deviation"].to_numpy()
    reach = max(float(np.abs(values).max()), 1e-6)
    edges = np.linspace(-reach, reach, _BINS + 1)
    said = []
    with style.house_style():
        fig = style.new_figure(0.4 + 0.34 * len(labels))
        axes = fig.subplots(len(labels), 1, sharex=True, squeeze=False)[:, 0]
        for ax, label, look in zip(axes, labels, looks, strict=True):
            own = table.filter(pl.col("label") == label)["deviation"].to_numpy()
            ax.hist(own, bins=edges, weights=np.full(len(own), 1 / len(own)), color=look.color)
            ax.set_ylabel(wrap_name(label, width_points=88.0, max_lines=2), rotation=0, ha="right", va="center")
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
            ax.axvline(0, color=style.GREY, linewidth=0.6)
            said.append(f"{label}: standard deviation {own.std():.3g} over {format_count(len(own))} steps")
        axes[-1].set_xlabel("loss of a step around its trend (nats)")
    return style.finished(fig, f"Loss of steps around its trend{_with(conditions)}. {'; '.join(said)}.")


def plot_bucket_cosines(table: pl.DataFrame, *, conditions: str = "") -> Figure:
    """Draw how far the gradients of length buckets point the same way.

    Args:
        table: One row a pair of buckets, as of `bucket_gradient_table`: bucket, other_bucket, cosine (noise taken out;
            null where it is not to be seen), half_cosine (of a bucket with itself: of its two halves).
        conditions: Seeds, tokens and hardware, in words.

    Returns:
        A square of cells; on the diagonal how well two halves of one bucket agree.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    style.check_table("plot_bucket_cosines", table, ["bucket", "other_bucket", "cosine", "half_cosine"], row="bucket")
    rows = table["bucket"].unique(maintain_order=True).to_list()
    columns = table["other_bucket"].unique(maintain_order=True).to_list()
    cells = np.full((len(rows), len(columns)), np.nan)
    said = []
    for row in table.iter_rows(named=True):
        same = row["bucket"] == row["other_bucket"]
        value = row["half_cosine"] if same else row["cosine"]
        if value is not None:
            cells[rows.index(row["bucket"]), columns.index(row["other_bucket"])] = value
        if not same and rows.index(row["bucket"]) < columns.index(row["other_bucket"]):
            said.append(f"{row['bucket']} and {row['other_bucket']}: {_number(row['cosine'])}")
    with style.house_style():
        fig = style.new_figure(0.55 + 0.42 * len(rows))
        ax = fig.subplots()
        ax.imshow(cells, cmap=_SIGNED, vmin=-1, vmax=1, aspect="auto")
        for (one, other), value in np.ndenumerate(cells):
            text = "–" if np.isnan(value) else f"{value:.2f}"
            weight = "bold" if rows[one] == columns[other] else "normal"
            strong = not np.isnan(value) and abs(value) > 0.6
            ax.text(
                other,
                one,
                text,
                ha="center",
                va="center",
                fontsize=7,
                weight=weight,
                color="white" if strong else "black",
            )
        ax.set_yticks(range(len(rows)), rows)
        ax.set_xticks(range(len(columns)), columns)
        ax.set_xlabel("bucket (tokens); bold: two halves of one bucket")
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.tick_params(length=0)
    text = "; ".join(said) or "a single bucket"
    return style.finished(
        fig, f"Cosine between the mean gradients of length buckets, noise taken out{_with(conditions)}. {text}."
    )


def plot_tau_curves(table: pl.DataFrame, *, conditions: str = "") -> Figure:
    """Draw held-out tau over real tokens and over padded tokens, which stand for time.

    Args:
        table: One row an arm and scoring, as of `tau_curve`: label, real_tokens, padded_tokens, tau (means over the
            seeds), tau_low, tau_high (least and most over the seeds).
        conditions: Seeds, tokens and hardware, in words.

    Returns:
        Two panels side by side with the same lines and bands.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a value is missing.
    """
    numbers = ["real_tokens", "padded_tokens", "tau", "tau_low", "tau_high"]
    style.check_table("plot_tau_curves", table, ["label", *numbers], numbers=numbers, row="label")
    labels = table["label"].unique(maintain_order=True).to_list()
    looks = style.strategy_looks(pl.DataFrame({"strategy": labels}))
    said, lines = [], []
    with style.house_style():
        fig = style.new_figure(1.8)
        axes = fig.subplots(1, 2, sharey=True)
        for ax, column, name in zip(axes, numbers[:2], ("real tokens (thousands)", "padded (thousands)"), strict=True):
            for label, look in zip(labels, looks, strict=True):
                own = table.filter(pl.col("label") == label)
                x, tau, low, high = (own[each].to_numpy() for each in (column, *numbers[2:]))
                ax.fill_between(x, low, high, color=look.color, alpha=0.12, linewidth=0)
                line = ax.plot(
                    x, tau, color=look.color, marker=look.marker, linestyle=look.linestyle, linewidth=1.0, markersize=3
                )
                if ax is axes[0]:
                    lines += line
                    said.append(f"{label}: {tau[-1]:.2f} ({low[-1]:.2f} to {high[-1]:.2f})")
            ax.set_xlabel(name)
            ax.xaxis.set_major_locator(MaxNLocator(3))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1_000:g}"))
            ax.grid(axis="y")
        axes[0].set_ylabel("held-out tau (tokens)")
        # Ticks of one width: the layout must not find others after it has settled.
        axes[0].yaxis.set_major_locator(MaxNLocator(4))
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
        style.legend_below(fig, lines, labels)
    return style.finished(
        fig,
        f"Held-out tau over tokens trained, mean and least to most over the seeds{_with(conditions)}. At the end: "
        f"{'; '.join(said)}.",
    )


def plot_blocks_per_step(table: pl.DataFrame, *, conditions: str = "") -> Figure:
    """Draw how many draft blocks steps have.

    Args:
        table: One row a step, as of `StudyLog.steps`: label, num_blocks.
        conditions: Seeds, tokens and hardware, in words.

    Returns:
        For each arm the least and the most, the middle half and the median.

    Raises:
        ValueError: If the table has no rows, lacks a column, or a number is missing.
    """
    style.check_table("plot_blocks_per_step", table, ["label", "num_blocks"], numbers=["num_blocks"], row="label")
    labels = table["label"].unique(maintain_order=True).to_list()
    looks = style.strategy_looks(pl.DataFrame({"strategy": labels}))
    said = []
    with style.house_style():
        fig = style.new_figure(0.5 + name_row_inches(labels, 0.26) * len(labels))
        ax = fig.subplots()
        for place, (label, look) in enumerate(zip(labels, looks, strict=True)):
            blocks = table.filter(pl.col("label") == label)["num_blocks"].to_numpy()
            least, low, median, high, most = np.quantile(blocks, [0, 0.25, 0.5, 0.75, 1])
            ax.plot([least, most], [place, place], color=look.color, linewidth=1.0)
            ax.barh(place, high - low, left=low, height=0.5, color=look.color)
            ax.plot([median, median], [place - 0.25, place + 0.25], color="white", linewidth=1.4)
            said.append(f"{label}: {least:.0f} to {most:.0f}, median {median:.0f}")
        _name_axis(ax, labels)
        ax.set_xlim(left=0)
        ax.set_xlabel("draft blocks of a step")
        ax.grid(axis="x")
    return style.finished(fig, f"Draft blocks of a step{_with(conditions)}. {'; '.join(said)}.")


def plot_arm_measures(
    table: pl.DataFrame,
    *,
    measure: str = "noise_scale_blocks",
    axis: str = "noise scale (draft blocks)",
    conditions: str = "",
) -> Figure:
    """Draw one measure of every arm and seed, and its mean over the seeds.

    Args:
        table: One row an arm and seed, as of `seed_table`: label and the measure; nulls are left out and counted.
        measure: Its column.
        axis: What to write on the axis, with the unit.
        conditions: Seeds, tokens and hardware, in words.

    Returns:
        A point a seed and a bar at the mean; an empty axis where no row has a value.

    Raises:
        ValueError: If the table has no rows or lacks a column.
    """
    style.check_table("plot_arm_measures", table, ["label", measure], row="label")
    shown = table.drop_nulls(measure)
    labels = (table if shown.is_empty() else shown)["label"].unique(maintain_order=True).to_list()
    looks = style.strategy_looks(pl.DataFrame({"strategy": labels}))
    said = []
    with style.house_style():
        fig = style.new_figure(0.55 + name_row_inches(labels, 0.24) * len(labels))
        ax = fig.subplots()
        for place, (label, look) in enumerate(zip(labels, looks, strict=True)):
            values = shown.filter(pl.col("label") == label)[measure].cast(pl.Float64).to_numpy()
            if not len(values):
                said.append(f"{label}: none")
                continue
            ax.plot(values, np.full(len(values), place), linestyle="", marker=look.marker, color=look.color, alpha=0.8)
            ax.plot([values.mean()] * 2, [place - 0.32, place + 0.32], color=style.BLACK, linewidth=1.2)
            said.append(f"{label}: {values.mean():.3g} ({values.min():.3g} to {values.max():.3g})")
        _name_axis(ax, labels)
        if shown.is_empty() or shown[measure].min() >= 0:  # type: ignore[operator]
            ax.set_xlim(left=0)
        ax.set_xlabel(axis)
        ax.grid(axis="x")
        style.legend_below(
            fig,
            [Line2D([], [], linestyle="", marker="o", color=style.GREY), Line2D([], [], color=style.BLACK)],
            ["one seed", "mean"],
        )
    rest = len(table) - len(shown)
    left_out = f" {rest} of {len(table)} have none." if rest else ""
    return style.finished(fig, f"{axis[0].upper()}{axis[1:]} by arm{_with(conditions)}. {'; '.join(said)}.{left_out}")


def _name_axis(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), [wrap_name(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)


def _number(value: float | None) -> str:
    return "not to be seen" if value is None else f"{value:.2f}"


def _with(conditions: str) -> str:
    return f" ({conditions})" if conditions else ""
