"""Where the loss jumps, how far and for how long; and how often noise alone is taken for a jump."""

import math
import time

import numpy as np
import polars as pl
import pytest

from dflash_lab import analysis
from dflash_lab.analysis.reset_threshold import reset_threshold

# Spread of the losses that `quiet` gives, around their median.
WIDTH = 0.05


def quiet(num_steps, *, level=0.6, seed=0):
    return level + WIDTH * np.random.default_rng(seed).standard_normal(num_steps)


def calm(num_steps, *, level=0.6):
    """Losses in turn a little above and below their level, never more than a spread away."""
    return level + WIDTH * np.where(np.arange(num_steps) % 2, 1.0, -1.0)


def run_of(losses, steps=None):
    return pl.DataFrame({"step": np.arange(1, len(losses) + 1) if steps is None else steps, "loss": losses})


def with_jump(losses, row, height, recovery):
    """Add a jump that falls in a straight line to nothing over `recovery` steps."""
    losses = losses.copy()
    for after in range(recovery):
        losses[row + after] += height * (1 - after / recovery)
    return losses


def test_a_jump_to_13_and_back_over_250_steps() -> None:
    losses = with_jump(calm(2_000), 1_001, 12.4, 250)
    found = analysis.loss_resets(run_of(losses))
    (reset,) = found.table.to_dicts()
    assert (reset["onset_step"], reset["peak_step"], reset["ending"]) == (1_002, 1_002, "recovered")
    before = losses[901:1_001]
    assert reset["level"] == pytest.approx(np.median(before))
    assert reset["peak_loss"] == losses[1_001]
    assert reset["depth"] == pytest.approx(losses[1_001] - np.median(before))
    assert reset["spread"] == pytest.approx(2 * WIDTH / 1.349)
    assert reset["depth_spreads"] == pytest.approx(reset["depth"] / reset["spread"])
    # By hand: the first step within a spread of the level that is not alone in being so.
    back = next(
        row
        for row in range(1_002, 2_000)
        if losses[row] <= reset["level"] + reset["spread"]
        and np.median(losses[row : row + 5]) <= reset["level"] + reset["spread"]
    )
    assert reset["recovery_steps"] == back - 1_001
    assert 235 <= reset["recovery_steps"] <= 250
    assert found.steps.filter("in_reset")["step"].to_list() == list(range(1_002, back + 1))
    assert found.answer.startswith("1 loss reset, the deepest from 0.6")


def test_a_single_step() -> None:
    losses = calm(800)
    losses[500] = 4.0
    (reset,) = analysis.loss_resets(run_of(losses)).table.to_dicts()
    assert (reset["onset_step"], reset["recovery_steps"], reset["peak_loss"]) == (501, 1, 4.0)


def test_a_rise_over_several_steps_begins_at_its_start_and_peaks_at_its_top() -> None:
    losses = calm(800)
    losses[500:504] = [1.9, 4.0, 9.0, 5.0]
    (reset,) = analysis.loss_resets(run_of(losses)).table.to_dicts()
    assert (reset["onset_step"], reset["peak_step"], reset["recovery_steps"]) == (501, 503, 4)


def test_level_and_spread_are_of_the_past_outside_resets() -> None:
    losses = with_jump(quiet(700, seed=3), 400, 8.0, 60)
    losses[[50, 51, 300]] = [np.nan, np.inf, np.nan]
    found = analysis.loss_resets(run_of(losses), window_steps=40)
    in_reset, level = found.steps["in_reset"].to_numpy(), found.steps["level"].to_list()
    spread = found.steps["spread"].to_list()
    history, heights = [], []
    for row, loss in enumerate(losses):
        if not math.isfinite(loss):
            assert in_reset[row] or level[row] is None
            continue
        if not in_reset[row]:
            middle_loss = np.median(history[-40:]) if len(history) >= 12 else math.nan
            if len(history) >= 40:
                assert level[row] == pytest.approx(middle_loss)
                ordered = sorted(heights[-40:])
                low, middle, high, tenth = (
                    ordered[math.floor(share * (len(ordered) - 1) + 0.5)] for share in (0.25, 0.5, 0.75, 0.9)
                )
                assert spread[row] == pytest.approx(max((high - low) / 1.349, (tenth - middle) / 1.2816))
            else:
                assert level[row] is None
            if len(history) >= 12:
                heights.append(loss - middle_loss)
            history.append(loss)
    assert found.num_without_loss == 3
    assert found.answer.endswith("3 steps have no loss.")
    assert len(set(found.steps.filter("in_reset")["level"].to_list())) == 1


def test_a_reset_that_the_log_ends_in() -> None:
    losses = calm(600)
    losses[560:] += np.linspace(9, 4, 40)
    found = analysis.loss_resets(run_of(losses))
    (reset,) = found.table.to_dicts()
    assert (reset["recovery_steps"], reset["ending"]) == (None, "end of log")
    assert "none of them back (1 not back when the log ends)" in found.answer


def test_a_loss_that_stays_up_has_a_new_level() -> None:
    losses = calm(1_500)
    losses[500:] += 5
    found = analysis.loss_resets(run_of(losses), most_recovery_steps=200)
    (reset,) = found.table.to_dicts()
    assert (reset["onset_step"], reset["ending"], reset["recovery_steps"]) == (501, "new level", None)
    assert found.steps["level"][800] == pytest.approx(5.6, abs=0.05)
    assert "1 stayed up" in found.answer


def test_a_jump_before_the_loss_is_back_is_a_reset_of_its_own() -> None:
    losses = with_jump(with_jump(calm(1_200), 500, 6.0, 200), 600, 9.0, 150)
    table = analysis.loss_resets(run_of(losses)).table
    assert table["onset_step"].to_list() == [501, 601]
    assert table["ending"].to_list() == ["next reset", "recovered"]
    # Measured from where the first had come down to: 0.6 + 6 / 2 and a little, as the median is of steps before.
    assert table["level"][1] == pytest.approx(3.6 + 0.3, abs=0.15)


def test_steps_that_are_missing_count_as_steps() -> None:
    steps = np.concatenate([np.arange(1, 401), np.arange(410, 810)])
    losses = calm(800)
    losses[398:403] = 5.0
    (reset,) = analysis.loss_resets(run_of(losses, steps)).table.to_dicts()
    assert (reset["onset_step"], reset["recovery_steps"]) == (399, 413 - 399)


def test_resets_so_frequent_that_half_of_the_run_is_in_one() -> None:
    losses = quiet(4_000, seed=5)
    for row in range(100, 3_900, 80):
        losses = with_jump(losses, row, 5.0, 40)
    table = analysis.loss_resets(run_of(losses)).table
    assert table["onset_step"].to_list() == [row + 1 for row in range(100, 3_900, 80)]


def test_thirty_steps() -> None:
    losses = quiet(30)
    losses[25] = 13.0
    found = analysis.loss_resets(run_of(losses))
    assert found.table["onset_step"].to_list() == [26]
    assert "Calibrated on 18 steps only, so that a shallower reset stays unseen." in found.answer
    few = analysis.loss_resets(run_of(losses[:15]))
    assert few.answer == "Too few losses to say what is a reset: 3 have a level before them."
    assert few.table.is_empty()


def test_losses_that_never_change_or_are_rounded() -> None:
    still = np.full(300, 0.7)
    assert analysis.loss_resets(run_of(still)).table.is_empty()
    still[200] = 0.9
    assert analysis.loss_resets(run_of(still)).table["onset_step"].to_list() == [201]
    rounded = quiet(2_000).round(1)
    assert analysis.loss_resets(run_of(rounded)).table.is_empty()
    rounded[1_500] = 5.0
    assert analysis.loss_resets(run_of(rounded)).table["onset_step"].to_list() == [1_501]
    none = pl.DataFrame({"step": [1, 2], "loss": [None, None]})
    assert analysis.loss_resets(none).num_without_loss == 2


def test_a_spread_that_is_narrow_at_first_does_not_stay_so() -> None:
    # Three modes, as of buckets: by chance few of the first losses are in the upper two.
    for seed in (126, 165):
        rng = np.random.default_rng((seed, 3_000))
        losses = 1 + 0.3 * rng.choice(3, 3_000, p=[0.52, 0.3, 0.18]) + 0.05 * rng.standard_normal(3_000)
        assert analysis.loss_resets(run_of(losses)).table.is_empty()


def correlated(rng, num_steps, correlation):
    shocks = rng.standard_normal(num_steps) * np.sqrt(1 - correlation**2)
    noise = [rng.standard_normal()]
    for shock in shocks[1:]:
        noise.append(correlation * noise[-1] + shock)
    return np.array(noise)


TIME = np.arange(1_000)
FALLING = 1 + 3 * np.exp(-TIME / 60) + 0.5 * (1 - TIME / 1_000)
NOISES = {
    "normal": lambda rng: 1 + 0.1 * rng.standard_normal(1_000),
    "log-normal 0.5": lambda rng: np.exp(0.5 * rng.standard_normal(1_000)),
    "log-normal 1": lambda rng: np.exp(rng.standard_normal(1_000)),
    "student 3": lambda rng: 2 + 0.1 * rng.standard_t(3, 1_000),
    "correlated 0.8": lambda rng: 1 + 0.1 * correlated(rng, 1_000, 0.8),
    "falling": lambda rng: FALLING + 0.1 * rng.standard_normal(1_000),
    "falling, heavy, correlated": lambda rng: (
        FALLING + 0.05 * rng.standard_t(3, 1_000) + 0.1 * correlated(rng, 1_000, 0.8)
    ),
    "falling in steps": lambda rng: np.repeat([4.0, 2.0, 1.0, 0.5], 250) + 0.1 * rng.standard_normal(1_000),
    "growing": lambda rng: 1 + np.linspace(0.02, 0.2, 1_000) * rng.standard_normal(1_000),
    "three modes": lambda rng: 1 + 0.3 * rng.choice(3, 1_000, p=[0.52, 0.3, 0.18]) + 0.05 * rng.standard_normal(1_000),
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_alone_passes_as_seldom_as_stated(name: str) -> None:
    stated, num_runs = 1.0, 25
    resets, scored = 0, 0
    for seed in range(num_runs):
        losses = NOISES[name](np.random.default_rng((seed, 11)))
        found = analysis.loss_resets(run_of(losses), false_alarms_per_1000_steps=stated)
        resets += found.table.height
        scored += found.threshold.num_scored
        assert found.expected_false_alarms == pytest.approx(0.95)
    # Two deviations of a Poisson count above the stated rate.
    expected = stated * scored / 1_000
    assert resets <= expected + 2 * math.sqrt(expected)


def test_heavier_tails_and_lower_rates_give_higher_thresholds() -> None:
    rng = np.random.default_rng(4)
    light, heavy = rng.standard_normal(20_000), rng.standard_t(3, 20_000)
    heights = {
        (name, rate): reset_threshold(scores, false_alarms_per_1000_steps=rate).spreads
        for name, scores in (("light", light), ("heavy", heavy))
        for rate in (0.05, 1.0)
    }
    assert heights["light", 0.05] > heights["light", 1.0]
    assert heights["heavy", 0.05] > heights["heavy", 1.0] > heights["light", 1.0]
    # Student's t(3) exceeds 12.9 once in 2,000 on one side; the threshold is set for 0.3 in 1,000, near 15.
    assert 9 < heights["heavy", 1.0] < 20
    # Resets in the scores do not raise it: they are set aside.
    spoiled = np.concatenate([light, np.full(200, 90.0)])
    assert reset_threshold(spoiled, false_alarms_per_1000_steps=1.0).spreads == pytest.approx(
        heights["light", 1.0], rel=0.1
    )


def test_a_hundred_thousand_steps_take_seconds() -> None:
    losses = quiet(100_000)
    losses[5_000::5_000] += 3
    started = time.process_time()
    found = analysis.loss_resets(run_of(losses))
    assert time.process_time() - started < 2.5
    onsets = set(found.table["onset_step"])
    assert set(range(5_001, 100_001, 5_000)) <= onsets
    # Ten false ones are stated, at most.
    assert len(onsets) <= 19 + 10


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        (pl.DataFrame({"loss": [1.0]}), {}, "the table has no column step; it has loss"),
        (pl.DataFrame({"step": [1]}), {}, "the table has no column loss; it has step"),
        (
            pl.DataFrame({"step": [1, 3, 3], "loss": [1.0, 1.0, 1.0]}),
            {},
            "step 3 in row 2 follows step 3; legal: increasing steps",
        ),
        (
            pl.DataFrame({"step": [1.5], "loss": [1.0]}),
            {},
            "column step has dtype Float64, 1 rows and 0 nulls; legal: at least one row, whole numbers without nulls",
        ),
        (
            pl.DataFrame({"step": [1], "loss": ["a"]}),
            {},
            "column loss has dtype String; legal: numbers, null where there is no loss",
        ),
        (
            run_of(quiet(50)),
            {"false_alarms_per_1000_steps": 0.0},
            "false_alarms_per_1000_steps is 0.0; legal: over 0, at most 10",
        ),
        (run_of(quiet(50)), {"window_steps": 5}, "window_steps is 5; legal: a whole number >= 20"),
    ],
)
def test_what_is_refused(table: pl.DataFrame, settings: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.loss_resets(table, **settings)
    assert str(error.value) == message


def test_jumps_that_are_too_frequent_to_be_resets_are_not_passed_over_in_silence():
    rng = np.random.default_rng(0)
    losses = 1 + 2 * np.exp(-np.arange(1_200) / 800) + 0.03 * rng.standard_normal(1_200)
    losses[rng.choice(np.arange(60, 1_200), 40, replace=False)] += 0.4
    found = analysis.loss_resets(pl.DataFrame({"step": np.arange(1, 1_201), "loss": losses}))
    assert (
        "more losses are over 8 spreads above their level: too frequent here" in found.answer or len(found.table) > 30
    )
