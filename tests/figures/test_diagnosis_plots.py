"""Figures of a diagnosis: every spike is seen at any length, marks stand where they belong, disagreement is marked."""

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dflash_lab import figures
from dflash_lab.figures import style

RESETS = {"onset_step": pl.Int64, "peak_step": pl.Int64, "depth": pl.Float64, "recovery_steps": pl.Int64}


def run(num_steps, num_buckets=3):
    rng = np.random.default_rng(num_steps)
    return pl.DataFrame(
        {
            "step": np.arange(1, num_steps + 1),
            "loss": 1 + 0.05 * rng.random(num_steps),
            "bucket": rng.integers(0, num_buckets, num_steps),
        }
    )


def resets(*rows):
    return pl.DataFrame(rows, schema=RESETS, orient="row")


def texts(fig):
    FigureCanvasAgg(fig).draw()
    return [text.get_text() for text in fig.findobj(matplotlib.text.Text) if text.get_text()]


def drawn_heights(ax):
    """The highest value that any line or column of an axes reaches."""
    heights = [line.get_ydata().max() for line in ax.lines if len(line.get_ydata())]
    heights += [
        path.vertices[:, 1].max()
        for collection in ax.collections
        if collection.get_transform() == ax.transData
        for path in collection.get_paths()
    ]
    return max(heights)


@pytest.mark.parametrize("num_steps", [1, 2, 100, 1_500, 1_501, 70_000])
def test_no_spike_is_lost_at_any_length(num_steps):
    table = run(num_steps)
    at = num_steps * 2 // 3
    losses = table["loss"].to_numpy().copy()
    losses[at] = 5.0
    fig = figures.plot_loss_resets(table.with_columns(loss=losses))
    assert drawn_heights(fig.axes[0]) == 5.0
    # A page never gets a dot for each of 70,000 steps.
    assert sum(len(line.get_xdata()) for line in fig.axes[0].lines) <= 2 * 1_500


def test_every_step_has_a_dot_in_its_buckets_colour_while_they_are_few():
    table = run(90)
    fig = figures.plot_loss_resets(table)
    dots = [line for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == table["bucket"].value_counts().sort("bucket")["count"].to_list()
    assert len({line.get_color() for line in dots}) == 3
    assert {"bucket 0", "bucket 1", "bucket 2"} <= set(texts(fig))


def test_columns_of_many_steps_show_the_median_of_each_bucket():
    # Bucket 0 has a loss of 1, bucket 1 of 2: dots stand nowhere else.
    steps = np.arange(5_000)
    table = pl.DataFrame({"step": steps, "loss": 1.0 + steps % 2, "bucket": steps % 2})
    dots = [line for line in figures.plot_loss_resets(table).axes[0].lines if line.get_marker() == "o"]
    assert [set(line.get_ydata()) for line in dots] == [{1.0}, {2.0}]
    assert [len(line.get_xdata()) for line in dots] == [500, 500]


def test_steps_without_a_bucket_are_grey_and_many_buckets_are_named_by_their_ends():
    table = run(40).with_columns(bucket=pl.when(pl.col("step") < 20).then(-1).otherwise(pl.col("bucket")))
    assert "no bucket" in texts(figures.plot_loss_resets(table))
    many = texts(figures.plot_loss_resets(run(400, num_buckets=20)))
    assert {"shorter samples", "longer samples"} <= set(many) and "bucket 3" not in many
    assert "step" in texts(figures.plot_loss_resets(run(5).drop("bucket")))


def test_the_bucket_of_a_step_is_the_one_of_most_of_its_batches():
    table = pl.DataFrame({"step": [1, 2, 3], "loss": [1.0, 2.0, 3.0], "bucket_ids": [[0, 2, 2], [1, 0], [-1, -1]]})
    dots = [line for line in figures.plot_loss_resets(table).axes[0].lines if line.get_marker() == "o"]
    # In the order of buckets: none, 0 and 2; of two equals the shorter.
    assert [list(line.get_xdata()) for line in dots] == [[3], [2], [1]]


def test_onsets_are_ticked_and_the_deepest_peaks_circled():
    table = run(1_000)
    found = resets(
        *((10 * number, 10 * number + 1, float(number), None if number == 3 else 7) for number in range(1, 31))
    )
    fig = figures.plot_loss_resets(table, resets=found)
    ax = fig.axes[0]
    (circles,) = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
    assert sorted(circles.get_xdata()) == [10 * number + 1 for number in range(11, 31)]
    ticks = [
        path.vertices[0, 0]
        for collection in ax.collections
        if tuple(collection.get_colors()[0]) == matplotlib.colors.to_rgba(style.VERMILION)
        for path in collection.get_paths()
    ]
    assert ticks == found["onset_step"].to_list()
    assert figures.figure_alt_text(fig).endswith(
        "30 resets are marked, the deepest by 30 at step 301, back after a median of 7 steps, 1 not."
    )
    assert "peak (20 deepest)" in texts(fig)


def test_a_peak_that_the_table_lacks_is_not_circled_and_no_resets_are_none():
    fig = figures.plot_loss_resets(run(10), resets=resets((5, 99, 1.0, 3), (6, 6, 2.0, 3)))
    (circles,) = [line for line in fig.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert list(circles.get_xdata()) == [6]
    assert "No reset is marked." in figures.figure_alt_text(figures.plot_loss_resets(run(10), resets=resets()))


def test_deep_resets_are_drawn_over_a_logarithmic_axis():
    losses = np.ones(50)
    losses[30] = 13.0
    table = run(50).with_columns(loss=losses)
    assert figures.plot_loss_resets(table).axes[0].get_yscale() == "log"
    assert figures.plot_loss_resets(run(50)).axes[0].get_yscale() == "linear"
    assert figures.plot_loss_resets(table.with_columns(loss=losses - 2.0)).axes[0].get_yscale() == "linear"


def test_tables_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="plot_loss_resets: no step has a loss; legal: at least one finite loss"):
        figures.plot_loss_resets(run(3).with_columns(loss=pl.lit(None, pl.Float64)))
    with pytest.raises(
        ValueError, match="plot_loss_resets: the table has no column depth; it has onset_step, peak_step"
    ):
        figures.plot_loss_resets(run(3), resets=resets((1, 1, 1.0, 1)).drop("depth"))
    suspects = {"num_onsets_near": 1, "expected_near": 1.0, "ratio": 1.0, "p_value": 1.0, "adjusted_p": 1.0}
    with pytest.raises(ValueError, match="verdict is 'maybe' for moon; legal: guilty, cleared, inseparable, not"):
        figures.plot_attribution(pl.DataFrame([{"suspect": "moon", **suspects, "verdict": "maybe"}]))
    upside_down = pl.DataFrame([check("ETA shown, ETA", (1, 1, 1), (86_400, 172_800, 86_400))])
    with pytest.raises(ValueError, match="the interval of ETA, ETA is 2 to 1; legal: low <= high"):
        figures.plot_epoch_maths(upside_down)


def attribution(verdict="cleared", near=2, **changes):
    row = {"suspect": "checkpoint", "num_onsets_near": near, "expected_near": 4.0, "ratio": 0.5, "p_value": 0.9}
    return {**row, "adjusted_p": 1.0, "verdict": verdict, **changes}


def test_bars_have_the_colour_of_the_verdict_and_chance_is_marked():
    table = pl.DataFrame([attribution(), attribution("guilty", 9, suspect="bucket"), attribution(near=0, suspect="x")])
    fig = figures.plot_attribution(table)
    bars = fig.axes[0].patches
    assert [bar.get_width() for bar in bars] == [2, 9, 0]
    assert [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in bars[:2]] == [style.BLUE, style.VERMILION]
    assert [list(line.get_xdata()) for line in fig.axes[0].lines] == [[4.0, 4.0]] * 3
    assert figures.figure_alt_text(fig).startswith(
        "Which suspects stood near the onsets of the loss resets. Guilty: bucket. "
    )
    alone = figures.plot_attribution(pl.DataFrame([attribution()]))
    assert "None is guilty." in figures.figure_alt_text(alone)


def test_nothing_of_many_suspects_overlaps_or_leaves_the_figure():
    table = pl.DataFrame([attribution(suspect=f"a suspect with a long name, number {at}", near=at) for at in range(12)])
    fig = figures.plot_attribution(table)
    FigureCanvasAgg(fig).draw()
    boxes = [label.get_window_extent() for label in fig.axes[0].get_yticklabels()]
    boxes.sort(key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in zip(boxes, boxes[1:], strict=False))
    assert fig.get_tightbbox().x1 <= fig.get_size_inches()[0] + 0.02


def check(pair, left, right, agree=True, step=10):
    row = {"step": step, "pair": pair, "agree": agree}
    for side, values in (("left", left), ("right", right)):
        row |= {f"{side}{end}": float(value) for end, value in zip(("", "_low", "_high"), values, strict=True)}
    return row


def test_pairs_that_disagree_are_marked_and_seconds_become_days():
    table = pl.DataFrame(
        [
            check("ETA shown, what is left", (86_400, 82_080, 90_720), (172_800, 172_800, 172_800), agree=False),
            check("epoch shown, steps / steps an epoch", (0.41, 0.405, 0.415), (0.409, 0.408, 0.41)),
        ]
    )
    fig = figures.plot_epoch_maths(table)
    colors = [line.get_color() for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert colors == [style.VERMILION] * 2 + [style.BLUE] * 2
    assert {"ETA shown (days)", "1.00\n(0.95 to 1.05)", "2", "disagrees", "agrees"} <= set(texts(fig))
    assert "Not in agreement: ETA shown (days) and what is left." in figures.figure_alt_text(fig)
    agreed = figures.plot_epoch_maths(table.tail(1))
    assert "All agree." in figures.figure_alt_text(agreed) and "disagrees" not in texts(agreed)


def test_figures_that_meet_no_other_one_of_their_name_are_marked():
    rows = [
        ("ETA", 4.6, 4.55, 4.65, "days", "shown"),
        ("ETA", 4.64, 4.6, 4.7, "days", "steps"),
        ("ETA", 9.0, 8.9, 9.1, "days", "wrong unit"),
        ("epoch", 0.4, 0.4, 0.4, "", "shown"),
    ]
    table = pl.DataFrame(rows, schema=["name", "value", "low", "high", "unit", "how"], orient="row")
    fig = figures.plot_epoch_maths(table)
    colors = [line.get_color() for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert colors == [style.BLUE, style.BLUE, style.VERMILION, style.BLUE]
    assert {"ETA (days)", "epoch", "4.60\n(4.55 to 4.65)", "disagrees"} <= set(texts(fig))
    assert "Not in agreement: ETA (days)." in figures.figure_alt_text(fig)
    assert "All agree." in figures.figure_alt_text(figures.plot_epoch_maths(table.head(2)))


def test_of_many_steps_the_last_is_shown_and_the_first_that_disagrees():
    steps = [check("a, b", (step, step, step), (1, 1, 1), agree=step == 1, step=20 - step) for step in range(1, 9)]
    fig = figures.plot_epoch_maths(pl.DataFrame(steps))
    places = [line.get_xdata()[0] for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert len(places) == 4 and {"a", "b", "a, step 12"} <= set(texts(fig))
    assert "Not in agreement: a, step 12 and b." in figures.figure_alt_text(fig)


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        ((46_350.0, 46_350.0, 46_350.0), "46,350"),
        ((0.40475, 0.40475, 0.40475), "0.4047"),
        ((1.5, 1.25, 1.75), "1.50\n(1.25 to 1.75)"),
        ((11_587.5, 11_000.0, 12_000.0), "11,588\n(11,000 to 12,000)"),
        ((2e12, 1e12, 3e12), "2 T\n(1 T to 3 T)"),
    ],
)
def test_figures_have_as_many_digits_as_their_interval_allows(held, shown):
    assert shown in texts(figures.plot_epoch_maths(pl.DataFrame([check("x, y", held, held)])))


def test_a_schedule_lies_over_its_plan_and_what_is_as_planned_says_so():
    steps = list(range(1, 4_001))
    table = pl.DataFrame({"step": steps, "learning_rate": [1e-4 * step for step in steps]})
    table = table.with_columns(planned_learning_rate="learning_rate", noise=pl.lit(None, pl.Float64))
    fig = figures.plot_schedule(table)
    assert len(fig.axes) == 1 and [len(line.get_xdata()) for line in fig.axes[0].lines] == [1_500, 1_500]
    assert "learning rate: as planned at all 4,000 steps, 0.4 at most" in figures.figure_alt_text(fig)
    unplanned = table.with_columns(noise=0.1)
    assert "noise amplitude: no plan is known" in figures.figure_alt_text(figures.plot_schedule(unplanned))


def test_a_position_without_weight_has_no_loss():
    table = pl.DataFrame({"position": [1, 2], "loss_sum": [0.0, 0.0], "loss_weight": [0.0, 0.0]})
    assert "nothing is scored" in figures.figure_alt_text(figures.plot_replayed_positions(table))
    table = pl.DataFrame({"position": [1, 2, 3], "loss_sum": [6.0, 0.0, 2.0], "loss_weight": [3.0, 0.0, 2.0]})
    left, right = figures.plot_replayed_positions(table).axes
    assert list(left.lines[0].get_xdata()) == [1, 3] and list(left.lines[0].get_ydata()) == [2.0, 1.0]
    assert [bar.get_height() for bar in right.patches] == [0.75, 0.0, 0.25]


def test_a_loss_that_is_not_finite_is_not_drawn_and_counted():
    table = pl.DataFrame({"position": [1, 2, 3], "loss_sum": [6.0, None, float("nan")], "loss_weight": [3.0, 1.0, 1.0]})
    fig = figures.plot_replayed_positions(table)
    assert list(fig.axes[0].lines[0].get_xdata()) == [1] and fig.axes[1].patches[0].get_height() == 1.0
    assert "2 positions have no finite loss." in figures.figure_alt_text(fig)
    nothing = figures.plot_replayed_positions(table.with_columns(loss_sum=pl.lit(None, pl.Float64)))
    assert "nothing is scored" in figures.figure_alt_text(nothing)
