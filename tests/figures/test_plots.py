"""Every figure: draws from tiny and large tables, carries its numbers as an alt text, touches no pyplot."""

import subprocess
import sys
from collections.abc import Callable

import matplotlib
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dflash_lab import figures
from dflash_lab.figures import style

STRATEGIES = pl.DataFrame(
    {
        "strategy": ["sorted", "random", "bucketed"],
        "padding_efficiency": [1.0, 0.414, 0.865],
        "budget_use": [0.929, 0.367, 0.824],
        "relative_throughput": [1.0, 0.414, 0.865],
        "share_pairs_together_again": [1.0, 0.0, 0.00024],
    }
)
BUCKETS = pl.DataFrame(
    {
        "bucket_from_tokens": [0, 770],
        "bucket_to_tokens": [770, None],
        "share_of_samples": [0.8, 0.2],
        "share_of_tokens": [0.46, 0.54],
        "share_of_batches": [0.48, 0.52],
    }
)
BINS = pl.DataFrame(
    {
        "bin_from_tokens": [64, 512, 4_096],
        "bin_to_tokens": [512, 4_096, 8_192],
        "share_of_samples": [0.2, 0.7, 0.1],
        "share_of_tokens": [0.1, 0.6, 0.3],
    }
)
POINTS = pl.DataFrame(
    {"length_tokens": [65, 1_367, 8_191], "share_of_samples": [0.1, 0.5, 1.0], "share_of_tokens": [0.0, 0.2, 1.0]}
)
SOURCES = pl.DataFrame(
    {
        "source": ["stackexchange/long-answers-with-code-and-tables-2023", None],
        "num_samples": [10, 2],
        "share_of_tokens": [0.9, 0.1],
        "p05_tokens": [70.0, 80.0],
        "p25_tokens": [100.0, 80.0],
        "p50_tokens": [900.0, 80.0],
        "p75_tokens": [2_000.0, 80.0],
        "p99_tokens": [8_000.0, 80.0],
    }
)
LOSS_SHARES = pl.DataFrame(
    {
        "share_from": [0.0, 0.5],
        "share_to": [0.5, 1.0],
        "share_of_samples": [0.4, 0.6],
        "share_of_tokens": [0.3, 0.7],
    }
)
STRIP = pl.DataFrame(
    {
        "strategy": ["bucketed"] * 4,
        "part": ["epoch", "epoch", "epoch", "first"],
        "window_id": [0, 0, 1, 0],
        "start_batch": [0, 0, 4, 0],
        "num_batches": [4, 4, 4, 1],
        "bucket_id": [0, 1, 0, 1],
        "share_of_batches": [0.25, 0.75, 1.0, 1.0],
    }
)
RUNS = pl.DataFrame(
    {"strategy": ["bucketed"] * 2, "run_batches": [1, 16], "share_of_batches_at_least": [1.0, 0.1]},
)
CURVE = pl.DataFrame(
    {
        "num_buckets": [1, 6],
        "num_batches": [103_981, 49_684],
        "padding_efficiency": [0.414, 0.803],
        "budget_use": [0.367, 0.768],
        "excess_over_sorted": [1.531, 0.209],
    }
)
PLOTS: dict[str, tuple[Callable[[pl.DataFrame], Figure], pl.DataFrame, str]] = {
    "plot_length_distribution": (figures.plot_length_distribution, BINS, "begins at 512 tokens and holds 70 %"),
    "plot_length_ecdf": (figures.plot_length_ecdf, POINTS, "Half of the samples have up to 1,367 tokens"),
    "plot_lengths_by_source": (figures.plot_lengths_by_source, SOURCES, "(no source): median 80"),
    "plot_loss_share": (figures.plot_loss_share, LOSS_SHARES, "at 50 % to 100 % and holds 60 % of the samples"),
    "plot_bucket_shares": (figures.plot_bucket_shares, BUCKETS, "770 and more tokens: 20 % of the samples"),
    "plot_strategies": (figures.plot_strategies, STRATEGIES, "bucketed: padding efficiency 0.865, budget use 0.824"),
    "plot_efficiency_vs_diversity": (figures.plot_efficiency_vs_diversity, STRATEGIES, "0.865, 0.024 % of pairs"),
    "plot_recomposition": (figures.plot_recomposition, STRATEGIES, "sorted: 100 %; random: 0 %; bucketed: 0.024 %"),
    "plot_bucket_count_curve": (figures.plot_bucket_count_curve, CURVE, "6: 49,684 batches, padding efficiency 0.803"),
    "plot_bucket_strip": (figures.plot_bucket_strip, STRIP, "bucketed: 0 % to 75 % of 8 batches"),
    "plot_run_lengths": (figures.plot_run_lengths, RUNS, "bucketed: longest run 16 batches"),
}
every_plot = pytest.mark.parametrize(("plot", "table", "said"), PLOTS.values(), ids=PLOTS.keys())


def drawn_texts(fig: Figure) -> list[str]:
    """The texts of a figure after a draw, so that ticks are there too."""
    FigureCanvasAgg(fig).draw()
    return [text.get_text() for text in fig.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]


def test_every_public_plot_function_is_tested() -> None:
    assert {name for name in figures.__all__ if name.startswith("plot_")} == PLOTS.keys()


@every_plot
def test_alt_text_says_the_numbers(plot: Callable, table: pl.DataFrame, said: str) -> None:
    alt_text = figures.figure_alt_text(plot(table))
    assert said in alt_text
    assert "\n" not in alt_text and "  " not in alt_text


@every_plot
def test_one_row_is_enough(plot: Callable, table: pl.DataFrame, said: str) -> None:
    # Only its last point makes a whole distribution.
    fig = plot(table.tail(1) if plot is figures.plot_length_ecdf else table.head(1))
    assert drawn_texts(fig)


@every_plot
def test_an_empty_table_is_refused(plot: Callable, table: pl.DataFrame, said: str) -> None:
    with pytest.raises(ValueError) as error:
        plot(table.clear())
    assert str(error.value) == f"{plot.__name__}: the table is empty; legal: at least one row"


@every_plot
def test_a_missing_column_is_named(plot: Callable, table: pl.DataFrame, said: str) -> None:
    first = table.columns[0]
    with pytest.raises(ValueError) as error:
        plot(table.drop(first))
    assert str(error.value).startswith(f"{plot.__name__}: the table has no column {first}; it has ")


@every_plot
def test_every_axis_has_a_label_and_the_callers_settings_do_not_matter(
    plot: Callable, table: pl.DataFrame, said: str
) -> None:
    before = dict(matplotlib.rcParams)
    fig = plot(table)
    assert dict(matplotlib.rcParams) == before
    assert fig.get_size_inches()[0] == pytest.approx(8.5 / 2.54)
    assert any(ax.get_xlabel() for ax in fig.axes)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        other = plot(table)
    assert other.axes[0].get_facecolor() == fig.axes[0].get_facecolor()
    assert other.axes[0].xaxis.label.get_fontsize() == fig.axes[0].xaxis.label.get_fontsize()


@every_plot
def test_nothing_is_drawn_outside_the_figure(plot: Callable, table: pl.DataFrame, said: str) -> None:
    fig = plot(table)
    FigureCanvasAgg(fig).draw()
    outer, inner = fig.bbox, fig.get_tightbbox()
    inches = fig.get_size_inches()
    assert inner.x0 >= -0.02 and inner.y0 >= -0.02
    assert inner.x1 <= inches[0] + 0.02 and inner.y1 <= inches[1] + 0.02
    assert outer.width == pytest.approx(inches[0] * style.DOTS_PER_INCH)


def test_long_names_do_not_overlap() -> None:
    names = [f"bucketed into {number} buckets of equal tokens, seeded stride, cut" for number in range(8)]
    table = pl.concat([STRATEGIES.head(1)] * 8).with_columns(strategy=pl.Series(names))
    for plot in (figures.plot_strategies, figures.plot_recomposition):
        fig = plot(table)
        FigureCanvasAgg(fig).draw()
        boxes = [label.get_window_extent() for label in fig.axes[0].get_yticklabels()]
        boxes.sort(key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 for below, above in zip(boxes, boxes[1:], strict=False))


def test_a_strategy_has_one_colour_everywhere() -> None:
    alone = style.strategy_looks(STRATEGIES.tail(1))[0]
    among = style.strategy_looks(STRATEGIES)[2]
    renamed = pl.DataFrame({"strategy": ["mine"], "config_strategy": ["bucketed"]})
    assert alone == among == style.strategy_looks(renamed)[0]
    later = style.strategy_looks(pl.DataFrame({"strategy": ["capacity", "pooled", "packed", "as_given"]}))
    assert len({look.color for look in later}) == 4
    assert all(look.color not in {"#000000", "#F0E442"} for look in later)


def test_rows_of_one_strategy_differ_without_colour() -> None:
    names = ["bucketed", "bucketed, stride", "bucketed, no repeat"]
    looks = style.strategy_looks(pl.DataFrame({"strategy": names}))
    assert len({(look.marker) for look in looks}) == 3
    assert len({str(look.linestyle) for look in looks}) == 3


def test_one_epoch_has_no_diversity_to_draw() -> None:
    table = STRATEGIES.with_columns(share_pairs_together_again=pl.lit(None, dtype=pl.Float64))
    for plot in (figures.plot_efficiency_vs_diversity, figures.plot_recomposition):
        with pytest.raises(ValueError) as error:
            plot(table)
        assert "share_pairs_together_again is null for sorted, random, bucketed; compare over" in str(error.value)


def test_sources_that_are_not_shown_are_counted() -> None:
    fig = figures.plot_lengths_by_source(SOURCES, top=1)
    assert figures.figure_alt_text(fig).endswith("1 more source is not shown.")
    assert "stackexchang…d-tables-2023" in drawn_texts(fig)
    with pytest.raises(ValueError) as error:
        figures.plot_lengths_by_source(SOURCES, top=0)
    assert str(error.value) == "top is 0; legal: a whole number >= 1"


def test_half_a_distribution_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        figures.plot_length_ecdf(POINTS.head(2))
    assert str(error.value) == (
        "plot_length_ecdf: the shares end at 0.5 and 0.2; legal: a whole distribution, which ends at 1"
    )


def test_a_strip_needs_the_epoch() -> None:
    with pytest.raises(ValueError) as error:
        figures.plot_bucket_strip(STRIP.tail(1))
    assert str(error.value) == 'plot_bucket_strip: no rows of part "epoch" for bucketed; legal: both parts'


def test_bounds_and_the_cut_are_marked() -> None:
    fig = figures.plot_length_distribution(BINS, bucket_bounds=(0, 770, 8_192), max_seq_len=4_096)
    assert "Bucket bounds are marked at 770 tokens. The cut is marked at 4,096 tokens." in figures.figure_alt_text(fig)
    assert {"bucket bounds", "cut at 4,096 tokens"} <= set(drawn_texts(fig))


@pytest.mark.parametrize(
    ("number", "shown"),
    [(46_350, "46,350"), (1_234_567, "1.23 M"), (1_876_253_718, "1.88 G"), (7, "7"), (59.8, "59.8")],
)
def test_counts_are_written_for_people(number: float, shown: str) -> None:
    assert style.format_count(number) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.52, "52 %"), (0.047, "4.7 %"), (0.00024, "0.024 %"), (9.4e-6, "0.00094 %"), (0.0, "0 %"), (1.0, "100 %")],
)
def test_shares_are_written_for_people(share: float, shown: str) -> None:
    assert style.format_percent(share) == shown


def test_drawing_never_imports_pyplot_or_torch() -> None:
    code = (
        "import sys, polars as pl; from dflash_lab import figures; "
        "figures.plot_run_lengths(pl.DataFrame({'strategy': ['a'], 'run_batches': [1], "
        "'share_of_batches_at_least': [1.0]})); "
        "print([name for name in ('matplotlib.pyplot', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
