"""Every figure: draws from tiny and large tables, carries its numbers as an alt text, touches no pyplot."""

import subprocess
import sys
from collections.abc import Callable

import matplotlib
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dflash_lab import figures
from dflash_lab.batching import ORDERS
from dflash_lab.figures import names as names_room
from dflash_lab.figures import numbers, style

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
WINDOWS = pl.DataFrame(
    {
        "strategy": ["capacity", "full shuffle"],
        "config_strategy": ["capacity", None],
        "total_variation": [0.3, 0.08],
        "mean_length_cv": [0.19, 0.09],
        **{
            f"total_variation_{name}": [value, value / 4]
            for name, value in (("p05", 0.2), ("p25", 0.28), ("p75", 0.33), ("p95", 0.4))
        },
        **{
            f"relative_mean_length_{name}": [value, 1.0]
            for name, value in (("p05", 0.7), ("p25", 0.9), ("p75", 1.1), ("p95", 1.4))
        },
    }
)
STORY = pl.DataFrame(
    {
        "step": [1, 2, 3],
        "strategy": ["sorted", "random", "capacity"],
        "source_run_ktok_from": [30.0, 12.0, None],
        "source_run_ktok_to": [32.0, 12.0, None],
        "ours_ktok_per_second": [30.3, 12.5, 29.9],
        "longest_run_batches": [17, 8_510, 3],
        "what_happened": ["fast; who shares a batch is frozen", "cleanest gradients", None],
    }
)
BOUNDS = pl.DataFrame(
    {
        "kind": ["equal tokens", "equal tokens", "fewest batches", "given"],
        "num_buckets": [1, 6, 6, 6],
        "padding_efficiency": [0.414, 0.803, 0.854, 0.865],
        "excess_over_least": [1.531, 0.209, 0.119, 0.128],
    }
)
DEPTHS = pl.DataFrame(
    {
        "rehearsal": ["emptiest queue"] * 2 + ["round-robin"] * 4,
        "time_seconds": [0.0, 0.0, 0.0, 0.0, 900.0, 900.0],
        "target_id": [0, 1] * 3,
        "depth_batches": [50, 49, 50, 40, 50, 3],
        "capacity_batches": [50] * 6,
    }
)
WORKERS = pl.DataFrame(
    {
        "batches_per_second": [0.65, 0.65, 6.5, 6.5],
        "read_tokens_per_second": [1_000.0, 30_000.0] * 2,
        "num_workers": [26, 1, None, 9],
    }
)
STEPS = pl.DataFrame(
    {
        "step": [1, 2, 3],
        "loss": [4.0, None, 3.0],
        "accuracy": [0.1, 0.2, 0.3],
        "streak": [0.5, 0.6, 0.7],
        "grad_norm": [1.0, 2.0, 1.5],
        "learning_rate": [1e-4, 2e-4, 3e-4],
        "noise": [0.0, 0.05, 0.1],
        "held_out_streak": [0.4, None, 0.6],
    }
)
QUEUES = pl.DataFrame({"step": [1, 2], "q_pre_min": [0, 2], "q_pre_max": [8, 8], "q_hs": [1, 2]})
POSITIONS = pl.DataFrame({"position": [1, 2], "accuracy": [0.5, 0.25], "survival": [0.5, 0.125]})
SLICES = pl.DataFrame(
    {
        "slice": ["[0, 770)", "770 +"],
        "tau": [1.8, 1.4],
        "num_blocks": [1_000, 30],
        "tau_low": [1.7, 1.2],
        "tau_high": [1.9, 1.6],
    }
)
TREES = pl.DataFrame(
    {"node_budget": [15, 64], "tree_tau": [2.0, 2.6], "expected_tree_tau": [2.2, 2.8], "chain_tau": [1.9, 1.9]}
)
SPEED_UPS = pl.DataFrame(
    {"kind": ["chain", "tree"], "node_budget": [15, 64], "speed_up": [1.2, 1.5], "measured_speed_up": [None, 1.4]}
)
LOSSES = pl.DataFrame({"step": [1, 2, 4], "loss": [1.5, None, 0.5], "bucket": [0, 1, None]})
SUSPECTS = pl.DataFrame(
    {
        "suspect": ["run of one bucket", "checkpoint saved", "queue stall"],
        "num_onsets_near": [38, 2, None],
        "expected_near": [12.1, 1.8, None],
        "ratio": [3.14, 1.1, None],
        "p_value": [1e-5, 0.5, None],
        "adjusted_p": [5e-5, 1.0, None],
        "verdict": ["guilty", "cleared", "not tested"],
    }
)
EPOCH_MATHS = pl.DataFrame(
    {
        "name": ["epoch", "epoch", "ETA"],
        "value": [0.0, 0.405, 4.6],
        "low": [0.0, 0.4049, 4.55],
        "high": [0.0, 0.4051, 4.65],
        "unit": ["epochs", "epochs", "days"],
        "how": ["shown", "steps and epochs", "shown"],
    }
)
SCHEDULE = pl.DataFrame(
    {
        "step": [1, 2, 3],
        "learning_rate": [1e-4, 2e-4, None],
        "planned_learning_rate": [1e-4, 4e-4, 3e-4],
        "noise": [0.0, 0.1, 0.1],
        "planned_noise": [0.0, 0.1, 0.1],
    }
)
SLOTS = pl.DataFrame({"position": [1, 2, 3], "loss_sum": [6.0, 2.0, 0.0], "loss_weight": [3.0, 2.0, 0.0]})
ARMS = pl.DataFrame(
    {
        "label": ["sorted", "bucketed, anchors per batch"],
        "between_variance": [0.1, 0.0],
        "within_variance": [0.3, 0.2],
        "between_share_by_chance": [0.05, None],
    }
)
DEVIATIONS = pl.DataFrame({"label": ["sorted"] * 3 + ["packed"] * 2, "deviation": [-1.0, 0.0, 1.0, 0.5, -0.5]})
COSINES = pl.DataFrame(
    {
        "bucket": ["[0, 128)", "[0, 128)", "[128, ∞)", "[128, ∞)"],
        "other_bucket": ["[0, 128)", "[128, ∞)"] * 2,
        "cosine": [1.0, -0.25, -0.25, None],
        "half_cosine": [0.4, None, None, 0.02],
    }
)
TAU_CURVES = pl.DataFrame(
    {
        "label": ["sorted", "sorted", "random", "random"],
        "real_tokens": [1_000.0, 2_000.0] * 2,
        "padded_tokens": [1_000.0, 2_000.0, 2_500.0, 5_000.0],
        "tau": [1.1, 1.5, 1.2, 1.8],
        "tau_low": [1.0, 1.4, 1.1, 1.7],
        "tau_high": [1.2, 1.6, 1.3, 1.9],
    }
)
STEP_BLOCKS = pl.DataFrame({"label": ["sorted"] * 3 + ["random"], "num_blocks": [8, 40, 104, 30]})
SEED_SCALES = pl.DataFrame({"label": ["sorted", "sorted", "random"], "noise_scale_blocks": [100.0, 140.0, None]})
PLOTS: dict[str, tuple[Callable[[pl.DataFrame], Figure], pl.DataFrame, str]] = {
    "plot_length_distribution": (figures.plot_length_distribution, BINS, "begins at 512 tokens and holds 70 %"),
    "plot_length_ecdf": (figures.plot_length_ecdf, POINTS, "Half of the samples have up to 1,367 tokens"),
    "plot_lengths_by_source": (figures.plot_lengths_by_source, SOURCES, "(no source): median 80"),
    "plot_bounds": (figures.plot_bounds, BOUNDS, "The given 6 buckets: 13 % over, padding efficiency 0.865"),
    "plot_loss_share": (figures.plot_loss_share, LOSS_SHARES, "at 50 % to 100 % and holds 60 % of the samples"),
    "plot_bucket_shares": (figures.plot_bucket_shares, BUCKETS, "770 and more tokens: 20 % of the samples"),
    "plot_strategies": (figures.plot_strategies, STRATEGIES, "bucketed: padding efficiency 0.865, budget use 0.824"),
    "plot_efficiency_vs_diversity": (figures.plot_efficiency_vs_diversity, STRATEGIES, "0.865, 0.024 % of pairs"),
    "plot_recomposition": (figures.plot_recomposition, STRATEGIES, "sorted: 100 %; random: 0 %; bucketed: 0.024 %"),
    "plot_bucket_count_curve": (figures.plot_bucket_count_curve, CURVE, "6: 49,684 batches, padding efficiency 0.803"),
    "plot_bucket_strip": (figures.plot_bucket_strip, STRIP, "bucketed: 0 % to 75 % of 8 batches"),
    "plot_window_mix": (figures.plot_window_mix, WINDOWS, "capacity: total variation 0.300 on average, mean lengths"),
    "plot_story": (figures.plot_story, STORY, "1 sorted: 30.3 Ktok/s (reported 30 to 32), longest run 17 batches"),
    "plot_queue_depths": (figures.plot_queue_depths, DEPTHS, "round-robin: 3 to 50 of 50 batches at the end"),
    "plot_workers_needed": (figures.plot_workers_needed, WORKERS, "6.5 batches/s: none at 1 Ktok/s, 9 at 30 Ktok/s"),
    "plot_run": (figures.plot_run, STEPS, "held-out streak: 0.6 at the end, best 0.6"),
    "plot_queue_history": (figures.plot_queue_history, QUEUES, "held 1.0 batches on average and was empty at 50 %"),
    "plot_accuracy_by_position": (figures.plot_accuracy_by_position, POSITIONS, "At position 1: 50.0 %"),
    "plot_tau_by_slice": (figures.plot_tau_by_slice, SLICES, "[0, 770): 1.80 from 1,000 blocks"),
    "plot_tree_gain": (figures.plot_tree_gain, TREES, "With 64 nodes 2.60, of which the chain has 1.90"),
    "plot_speed_up": (figures.plot_speed_up, SPEED_UPS, "Best: tree with 64 nodes, 1.50 times as fast"),
    "plot_loss_resets": (figures.plot_loss_resets, LOSSES, "Loss of 2 steps, from step 1 to 4. No reset is marked."),
    "plot_attribution": (
        figures.plot_attribution,
        SUSPECTS,
        "38 onsets near it where chance gives 12.1, adjusted p < ",
    ),
    "plot_epoch_maths": (figures.plot_epoch_maths, EPOCH_MATHS, "Not in agreement: epoch (epochs)."),
    "plot_schedule": (
        figures.plot_schedule,
        SCHEDULE,
        "step 2, 0.0002 applied and 0.0004 planned; noise amplitude: as",
    ),
    "plot_replayed_positions": (
        figures.plot_replayed_positions,
        SLOTS,
        "2 nats at the first scored position, 1 at the",
    ),
    "plot_variance_split": (
        figures.plot_variance_split,
        ARMS,
        "sorted: 25.0 % of 0.4 between buckets (5.0 % by chance)",
    ),
    "plot_loss_histograms": (figures.plot_loss_histograms, DEVIATIONS, "packed: standard deviation 0.5 over 2 steps"),
    "plot_bucket_cosines": (figures.plot_bucket_cosines, COSINES, "[0, 128) and [128, ∞): -0.25"),
    "plot_tau_curves": (figures.plot_tau_curves, TAU_CURVES, "random: 1.80 (1.70 to 1.90)"),
    "plot_blocks_per_step": (figures.plot_blocks_per_step, STEP_BLOCKS, "sorted: 8 to 104, median 40"),
    "plot_arm_measures": (figures.plot_arm_measures, SEED_SCALES, "sorted: 120 (100 to 140). 1 of 3 have none"),
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
    assert "stackexchang…-tables-2023" in drawn_texts(fig)
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
    [
        (46_350, "46,350"),
        (1_234_567, "1.23 M"),
        (1_876_253_718, "1.88 G"),
        (7, "7"),
        (59.8, "59.8"),
        (999_600, "999,600"),
        (999_600_000, "1 G"),
        (999_400_000, "999 M"),
        (1.2e12, "1.2 T"),
        (3e15, "3,000 T"),
    ],
)
def test_counts_are_written_for_people(number: float, shown: str) -> None:
    assert numbers.format_count(number) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.52, "52 %"),
        (0.047, "4.7 %"),
        (0.00024, "0.024 %"),
        (9.4e-6, "0.00094 %"),
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.9999, "> 99.9 %"),
        (0.9951, "99.5 %"),
        (0.999, "99.9 %"),
        (0.994, "99 %"),
        (1 - 2e-16, "100 %"),
    ],
)
def test_shares_are_written_for_people(share: float, shown: str) -> None:
    assert numbers.format_percent(share) == shown


def test_drawing_never_imports_pyplot_or_torch() -> None:
    code = (
        "import sys, polars as pl; from dflash_lab import figures; "
        "figures.plot_run_lengths(pl.DataFrame({'strategy': ['a'], 'run_batches': [1], "
        "'share_of_batches_at_least': [1.0]})); "
        "print([name for name in ('matplotlib.pyplot', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def axes_inches(fig: Figure) -> list[float]:
    return [ax.get_position().height * fig.get_size_inches()[1] for ax in fig.axes]


def runs_named(names: list[str]) -> pl.DataFrame:
    return pl.concat([RUNS.with_columns(strategy=pl.lit(name)) for name in names])


@pytest.mark.parametrize(
    "names",
    [
        [f"bucketed into buckets of equal tokens, seeded stride, cut at {number}" for number in range(6)],
        ["x" * 78 + f"{number:02}" for number in range(12)],
        ["模型训练数据集合的名字很长" * 4 + str(number) for number in range(12)],
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_long_legend_takes_nothing_from_the_axes(names: list[str]) -> None:
    alone = axes_inches(figures.plot_run_lengths(RUNS))
    fig = figures.plot_run_lengths(runs_named(names))
    assert axes_inches(fig) == pytest.approx(alone, abs=0.1)
    FigureCanvasAgg(fig).draw()
    box = fig.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= fig.bbox.width


def test_twelve_rows_have_twelve_looks() -> None:
    for kinds in ("bucketed", "free"):
        names = [f"{kinds} {number}" for number in range(12)]
        looks = style.strategy_looks(pl.DataFrame({"strategy": names}))
        assert len({(look.color, look.marker, str(look.linestyle)) for look in looks}) == 12
        assert len({(look.marker, str(look.linestyle)) for look in looks}) >= 6


def test_the_begin_of_a_name_tells_its_strategy() -> None:
    names = ["bucketed/random", "unsorted", "sorted", "random", "bucketed"]
    looks = [style.strategy_looks(pl.DataFrame({"strategy": [name]}))[0].color for name in names]
    assert looks[0] == looks[4] and looks[0] != looks[3]
    assert looks[1] != looks[2]
    both = pl.DataFrame({"strategy": ["random plan of mine"], "config_strategy": ["sorted"]})
    assert style.strategy_looks(both)[0].color == looks[2]


def test_dollars_are_letters() -> None:
    fig = figures.plot_strategies(STRATEGIES.with_columns(strategy=pl.Series(["$a_b$", "$x^2$", "5 $"])))
    assert {"$a_b$", "$x^2$", "5 $"} <= set(drawn_texts(fig))
    assert not any(text.get_parse_math() for text in fig.findobj(matplotlib.text.Text))
    assert "0.1" in drawn_texts(figures.plot_efficiency_vs_diversity(STRATEGIES))


@pytest.mark.filterwarnings("error")
def test_letters_that_the_font_lacks_are_boxes_and_keep_the_axes() -> None:
    names = ["模型训练数据集合的名字很长" * 4, "short"]
    table = pl.concat([SOURCES.head(1)] * 2).with_columns(source=pl.Series(names))
    fig = figures.plot_lengths_by_source(table)
    assert fig.axes[0].get_position().width > 0.4
    assert any(text.startswith("□") and "…" in text for text in drawn_texts(fig))
    assert names[0] in figures.figure_alt_text(fig)


def test_control_characters_are_dropped_from_names_and_alt_texts() -> None:
    fig = figures.plot_run_lengths(runs_named(["a\x07b\n c"]))
    assert "ab c" in drawn_texts(fig)
    assert "ab c: longest run" in figures.figure_alt_text(fig)


def test_names_are_wrapped_at_words_and_cut_with_an_ellipsis() -> None:
    assert names_room.wrap_name("bucketed, stride") == "bucketed, stride"
    assert names_room.wrap_name("bucketed, balanced windows") == "bucketed, balanced\nwindows"
    lines = names_room.wrap_name("x" * 80, width_points=60, max_lines=3).split("\n")
    assert len(lines) == 3 and lines[-1].endswith("…")
    assert all(names_room.text_points(line) <= 60 for line in lines)
    assert names_room.wrap_name("") == "" == names_room.shorten_name("")


@given(st.text(max_size=60), st.floats(20, 120))
def test_no_name_is_wider_than_its_room(name: str, width_points: float) -> None:
    shown = [names_room.shorten_name(name, width_points=width_points)]
    shown += names_room.wrap_name(name, width_points=width_points).split("\n")
    assert all(names_room.text_points(line) <= width_points for line in shown)
    assert len(shown) <= 4


def test_the_strips_of_short_and_long_plans_share_an_axis() -> None:
    def plan(name: str, num_batches: int) -> pl.DataFrame:
        part = {"strategy": name, "window_id": range(num_batches), "start_batch": range(num_batches)}
        rows = pl.DataFrame(part).with_columns(num_batches=1, bucket_id=0, share_of_batches=1.0)
        return pl.concat([rows.with_columns(part=pl.lit(part)) for part in ("epoch", "first")])

    for sizes in ((5, 96), (96, 5)):
        fig = figures.plot_bucket_strip(pl.concat([plan("bucketed", sizes[0]), plan("bucketed, stride", sizes[1])]))
        epochs, firsts = fig.axes[::2], fig.axes[1::2]
        assert [ax.get_xlim() for ax in firsts] == [(0, 96), (0, 96)]
        assert [ax.get_xlim() for ax in epochs] == [(0, size) for size in sizes]
        assert [label.get_text() for label in firsts[-1].get_xticklabels()] == ["0", "96"]


def test_the_last_bucket_with_batches_need_not_be_the_longest() -> None:
    assert not any("longest" in text for text in drawn_texts(figures.plot_bucket_strip(STRIP)))


def test_a_run_curve_ends_at_nothing() -> None:
    fig = figures.plot_run_lengths(RUNS.head(1))
    (line,) = [line for line in fig.axes[0].lines if len(line.get_xdata()) > 1]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2], [1.0, 0.0])


def test_the_axis_says_whose_throughput_is_one() -> None:
    assert "relative throughput\n(best = 1)" in drawn_texts(figures.plot_strategies(STRATEGIES))
    table = STRATEGIES.with_columns(relative_throughput=pl.Series([2.4, 1.0, 2.1]))
    assert "relative throughput\n(random = 1)" in drawn_texts(figures.plot_strategies(table))


@pytest.mark.parametrize("plot", [figures.plot_strategies, figures.plot_efficiency_vs_diversity])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_efficiency_is_named(plot: Callable, missing: float | None) -> None:
    table = STRATEGIES.with_columns(padding_efficiency=pl.Series([1.0, missing, 0.8]))
    with pytest.raises(ValueError) as error:
        plot(table)
    assert str(error.value) == (
        f"{plot.__name__}: padding_efficiency is no number for random; legal: a finite number in each row"
    )


FRONT = pl.concat(
    [STRATEGIES, STRATEGIES.tail(1).with_columns(strategy=pl.lit("bucketed, worse"), padding_efficiency=0.8)]
)
FRONT = FRONT.with_columns(
    dominated_by=pl.Series([None, None, None, "bucketed"]), on_front=pl.Series([True] * 3 + [False])
)


def test_the_front_is_drawn_and_named() -> None:
    fig = figures.plot_efficiency_vs_diversity(FRONT)
    ax = fig.axes[0]
    faces = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() not in ("None", "", None)]
    assert [face == "white" for face in faces] == [False, False, False, True]
    steps = [line for line in ax.lines if line.get_marker() in ("None", "")]
    assert len(steps) == 1 and steps[0].get_ydata().tolist() == [0.414, 0.865, 1.0, 1.0]
    assert {"1", "2", "3", "4", "4 bucketed, worse"} <= set(drawn_texts(fig))
    alt_text = figures.figure_alt_text(fig)
    assert "bucketed, worse: padding efficiency 0.800, 0.024 % of pairs, beaten by bucketed" in alt_text
    assert alt_text.endswith("No other one beats sorted, random, bucketed.")
    assert "beaten" not in figures.figure_alt_text(figures.plot_efficiency_vs_diversity(STRATEGIES))


def test_points_on_one_place_share_a_number() -> None:
    rows = pl.concat([FRONT.head(1)] * 3 + [FRONT.slice(1, 1), FRONT.head(1)])
    assert {"1-3, 5", "4"} <= set(drawn_texts(figures.plot_efficiency_vs_diversity(rows)))


def test_orders_of_the_same_batches_have_a_colour_each() -> None:
    names = list(ORDERS)
    looks = style.strategy_looks(pl.DataFrame({"strategy": names, "config_strategy": ["capacity"] * len(names)}))
    assert len({look.color for look in looks}) == len({look.marker for look in looks}) == len(names)


def test_the_shuffle_is_the_reference_of_windows() -> None:
    fig = figures.plot_window_mix(WINDOWS)
    (reference,) = [line for line in fig.axes[0].lines if line.get_linestyle() == "--"]
    assert list(reference.get_xdata()) == [0.08, 0.08]
    assert "full shuffle" in drawn_texts(fig)


def test_a_story_shows_what_was_reported_only_where_it_was() -> None:
    fig = figures.plot_story(STORY)
    marked = [line for line in fig.axes[0].lines if line.get_marker() == "|"]
    assert [list(line.get_xdata()) for line in marked] == [[30.0, 32.0], [12.0, 12.0]]
    texts = drawn_texts(fig)
    assert {"30.3", "8,510", "3 capacity", "2 random: cleanest gradients"} <= set(texts)
    assert "3 capacity: 29.9 Ktok/s, longest run 3 batches." in figures.figure_alt_text(fig)
    widest = max(text.get_window_extent().x1 for text in fig.findobj(matplotlib.text.Text) if text.get_text())
    assert widest <= fig.bbox.width


def test_a_story_without_runs_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        figures.plot_story(STORY.with_columns(longest_run_batches=pl.Series([17, None, 3])))
    assert (
        str(error.value)
        == "plot_story: longest_run_batches is no number for random; legal: a finite number in each row"
    )


def test_queues_share_a_time_axis_in_the_unit_that_suits_it() -> None:
    for scale, label, end in ((0.01, "s", 9.0), (1.0, "min", 15.0), (100.0, "h", 25.0)):
        fig = figures.plot_queue_depths(DEPTHS.with_columns(pl.col("time_seconds") * scale))
        assert len(fig.axes) == 2
        assert fig.axes[-1].get_xlabel() == f"time of the run ({label})"
        assert [ax.get_xlim() for ax in fig.axes] == [(0, pytest.approx(1.05 * end))] * 2
        least = next(line for line in fig.axes[1].lines if line.get_linestyle() == "--")
        assert list(least.get_ydata()) == [40, 3]


def test_a_rate_that_no_number_of_workers_keeps_up_with_is_named_and_not_drawn() -> None:
    fig = figures.plot_workers_needed(WORKERS)
    assert [list(line.get_ydata()) for line in fig.axes[0].lines] == [[26, 1], [9]]
    figures.plot_workers_needed(WORKERS.with_columns(num_workers=pl.lit(None, dtype=pl.Int64)))
