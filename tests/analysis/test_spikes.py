"""The guilty is named and the innocent is cleared: on planted causes, on none, and by hand."""

import math

import numpy as np
import polars as pl
import pytest

from dflash_lab import analysis
from dflash_lab.analysis.suspects import extremes, suspects_of

NAMED = ("guilty", "inseparable")
NUM_SEEDS = 20
NUM_DRAWS = 999


def named(found):
    return set(found.table.filter(pl.col("verdict").is_in(NAMED))["suspect"])


def verdicts(found):
    return dict(found.table.select("suspect", "verdict").iter_rows())


def diagnosis(run, **settings):
    return analysis.attribute_spikes(run, analysis.loss_resets(run), num_draws=NUM_DRAWS, **settings)


@pytest.mark.parametrize("kind", [kind for kind in analysis.RUN_KINDS if kind != "none"])
def test_the_planted_cause_is_named_and_the_others_are_cleared(kind: str) -> None:
    cause = {"composition": "num_blocks"}.get(kind, kind)
    guilty = alone = cleared = 0
    others = set()
    for seed in range(NUM_SEEDS):
        found = diagnosis(analysis.synthetic_run(kind, seed=seed), seed=seed)
        verdict = verdicts(found)
        guilty += verdict[cause] == "guilty"
        alone += named(found) == {cause}
        # Three borders of epochs and one resume in a run: too few to clear.
        others = set(verdict) - {cause, "epoch_border", "resume"}
        cleared += sum(verdict[name] == "cleared" for name in others)
    assert guilty >= 0.95 * NUM_SEEDS
    # A large change of the mean bucket starts or ends in a step of low buckets: the two are near the same steps.
    least_alone = 0.85 if kind == "bucket_change" else 0.9
    assert alone >= least_alone * NUM_SEEDS
    assert cleared >= 0.95 * NUM_SEEDS * len(others)


@pytest.mark.slow
def test_of_two_hundred_runs_without_a_cause_few_name_one() -> None:
    num_runs, family_error = 200, 0.05
    runs_with_false, num_resets, num_tested = 0, 0, 0
    for seed in range(num_runs):
        run = analysis.synthetic_run("none", seed=10_000 + seed, num_steps=1_500, num_resets=14)
        found = analysis.attribute_spikes(
            run, analysis.loss_resets(run), num_draws=499, family_error=family_error, seed=seed
        )
        runs_with_false += bool(named(found))
        num_resets += found.num_onsets
        num_tested += found.num_tested
    # Two deviations of a binomial count above the stated level.
    expected = family_error * num_runs
    assert runs_with_false <= expected + 2 * math.sqrt(expected * (1 - family_error))
    # It was a test: resets to explain, and suspects to accuse.
    assert num_resets / num_runs > 8
    assert num_tested / num_runs > 12


def test_an_innocent_save_is_cleared_and_long_runs_are_named() -> None:
    run = analysis.synthetic_run("bucket_runs", seed=3, num_steps=10_000, num_resets=60, checkpoint_every=500)
    checkpoints = run.filter("checkpoint")["step"].to_list()
    found = diagnosis(run.drop("checkpoint"), checkpoints=checkpoints)
    rows = {row["suspect"]: row for row in found.table.to_dicts()}
    assert rows["checkpoint"]["verdict"] == "cleared"
    assert rows["checkpoint"]["num_events"] == 20
    assert rows["bucket_runs"]["verdict"] == "guilty"
    assert rows["bucket_runs"]["ratio"] > 5
    assert found.answer.startswith("The resets follow bucket_runs (")
    assert "Cleared: " in found.answer and "checkpoint" in found.answer.split("Cleared: ")[1]
    assert found.table["suspect"][0] == "bucket_runs"
    assert "80 of 100 such tests would have seen it" in rows["checkpoint"]["sentence"]


def test_causes_come_before_resets_never_after() -> None:
    run = analysis.synthetic_run("none", seed=5)
    resets = analysis.loss_resets(run)
    onsets = resets.table["onset_step"].to_numpy()
    saves = {shift: verdicts(diagnosis(run, checkpoints=(onsets + shift).tolist())) for shift in (-3, -1, 0, 1, 3)}
    assert {shift: verdict["checkpoint"] for shift, verdict in saves.items()} == {
        -3: "guilty",
        -1: "guilty",
        0: "cleared",
        1: "cleared",
        3: "cleared",
    }


def test_suspects_with_the_same_events_cannot_be_told_apart() -> None:
    run = analysis.synthetic_run("non_finite", seed=2)
    same = run.with_columns(checkpoint=pl.col("skipped") != "")
    found = diagnosis(same)
    assert {name for name, verdict in verdicts(found).items() if verdict == "inseparable"} == {
        "checkpoint",
        "non_finite",
    }
    sentence = found.table.filter(suspect="checkpoint")["sentence"][0]
    assert "its events cannot be told from non-finite and skipped steps" in sentence
    assert "not to be told apart" in found.answer


def test_of_two_suspects_that_overlap_the_one_with_events_of_its_own_is_guilty() -> None:
    run = analysis.synthetic_run("queue_stall", seed=4)
    stalls = run["q_hs"].list.first() == 0
    # Saves at all stalls and as often elsewhere, where nothing happens.
    elsewhere = (stalls.shift(40, fill_value=False) & ~stalls).to_numpy()
    found = diagnosis(run.with_columns(checkpoint=pl.Series(stalls.shift(-1, fill_value=False).to_numpy() | elsewhere)))
    verdict = verdicts(found)
    assert (verdict["queue_stall"], verdict["checkpoint"]) == ("guilty", "cleared")
    assert "only where queue stalls do" in found.table.filter(suspect="checkpoint")["sentence"][0]


def test_two_causes_are_both_guilty() -> None:
    first = analysis.synthetic_run("checkpoint", seed=1, num_steps=6_000, num_resets=30)
    noise = np.abs(np.diff(first["noise"].to_numpy(), prepend=first["noise"][0])) > 0.005
    loss = first["loss"].to_numpy().copy()
    for row in np.flatnonzero(noise):
        loss[row : row + 30] *= 1 + 8 * np.exp(-np.arange(len(loss[row : row + 30])) / 6)
    found = diagnosis(first.with_columns(loss=pl.Series(loss)))
    assert named(found) == {"checkpoint", "noise"}


@pytest.mark.parametrize("every", [2, 3, 10, 25])
def test_saves_in_a_short_beat_are_tested_or_said_not_to_be(every: int) -> None:
    run = analysis.synthetic_run("none", seed=8, checkpoint_every=every)
    row = diagnosis(run).table.filter(suspect="checkpoint").to_dicts()[0]
    assert row["verdict"] in ("cleared", "not tested")
    assert row["verdict"] == "cleared" or every <= 10
    if every == 2:
        # Up to three steps behind a save is every step; one step behind is every other.
        assert row["expected_near"] == pytest.approx(diagnosis(run).num_onsets / 2, rel=0.05)


def test_a_run_that_is_too_short_or_bare_says_why() -> None:
    run = analysis.synthetic_run("none", seed=0, num_resets=0)
    found = analysis.attribute_spikes(run, analysis.loss_resets(run, false_alarms_per_1000_steps=0.001))
    assert found.answer.startswith("There are no resets to explain.")
    assert set(found.table["verdict"]) == {"not tested"}
    assert found.num_tested == 0
    losses = 1 + 0.05 * np.random.default_rng(0).standard_normal(500)
    losses[300:302] = 5
    bare = pl.DataFrame({"step": range(500), "loss": losses})
    sentences = dict(diagnosis(bare, checkpoints=[100]).table.select("suspect", "sentence").iter_rows())
    assert sentences["checkpoint"] == ("Checkpoint saves: not tested, there are too few resets (1, at least 3).")
    assert sentences["bucket"] == "The bucket itself: not tested, there is no column bucket_ids."
    assert sentences["queue_stall"] == ("Queue stalls: not tested, there is no column wait_seconds, q_pre or q_hs.")
    assert sentences["non_finite"].endswith("there are no non-finite and skipped steps in the log.")


def test_same_seed_same_verdicts() -> None:
    run = analysis.synthetic_run("composition", seed=6)
    first, again, other = (diagnosis(run, seed=seed) for seed in (1, 1, 2))
    assert first.table.equals(again.table) and first.levels.equals(again.levels)
    assert not first.table["p_value"].equals(other.table["p_value"])


def test_suspects_by_hand() -> None:
    table = pl.DataFrame(
        {
            "step": range(1, 9),
            "loss": [1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0],
            "bucket_ids": [[0, 1], [1, 1], [1, 1], [1, 0], [0, 0], [2, 2], [2, 0], [1, 2]],
            "learning_rate": [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.1, 0.1],
            "skipped": ["", "", "", "", "non-finite gradient", "", "", ""],
            "wait_seconds": [0.0] * 7 + [9.0],
            "q_hs": [[1], [0], [1], [1], [1], [1], [1], [1]],
            "session": [0, 0, 0, 1, 1, 1, 1, 1],
            "epoch": [0, 0, 0, 0, 0, 0, 1, 1],
            "real_tokens": [[50, 50]] * 8,
            "padded_tokens": [[50, 50]] * 7 + [[100, 100]],
            "num_blocks": [5] * 8,
        }
    )
    suspects = {suspect.name: suspect for suspect in suspects_of(table, checkpoints=[4])}

    def steps(name, place=0):
        return (np.flatnonzero(suspects[name].variants[place].events) + 1).tolist()

    assert suspects["bucket_runs"].measure.tolist() == [1, 3, 5, 6, 3, 2, 3, 1]
    assert suspects["bucket_change"].measure[1:].tolist() == [0.5, 0, 0.5, 0.5, 2, 1, 0.5]
    assert steps("bucket_change") == [2, 4, 5, 6, 7, 8]
    assert steps("checkpoint") == [4]
    # The end of the warm-up, and the jump down.
    assert steps("learning_rate") == [4, 7]
    assert steps("non_finite") == [3, 5]
    assert [variant.text for variant in suspects["queue_stall"].variants] == [
        "steps with an empty queue before the drafter"
    ]
    assert steps("queue_stall") == [2]
    assert (steps("resume"), steps("epoch_border")) == ([4], [7])
    assert suspects["padding_share"].measure is None and suspects["num_blocks"].reason == "its draft blocks hardly vary"
    assert suspects["noise"].reason == "there is no column noise"
    assert suspects["length_max"].reason == "there is no column length_max"
    lags = {name: suspect.first_lag for name, suspect in suspects.items() if suspect.first_lag}
    assert lags == {"checkpoint": 1, "learning_rate": 1, "non_finite": 1}


def test_saves_at_steps_that_the_log_lacks() -> None:
    table = pl.DataFrame({"step": [5, 6, 9, 10], "loss": [1.0] * 4, "session": [0, None, 0, 1]})
    suspects = {suspect.name: suspect for suspect in suspects_of(table, checkpoints=[2, 7, 10, 11])}
    (saves,) = suspects["checkpoint"].variants
    # The save behind step 7 comes before the loss of step 9, as one behind step 6 does.
    assert saves.events.tolist() == [False, True, False, True]
    assert saves.text == "checkpoint saves (2 more outside the log)"
    assert suspects["resume"].variants[0].events.tolist() == [False, False, False, True]


def test_no_bucket_and_one_bucket() -> None:
    table = pl.DataFrame({"step": [1, 2], "loss": [1.0, 1.0], "bucket_ids": [[-1], [-1]]})
    reasons = {suspect.name: suspect.reason for suspect in suspects_of(table)}
    assert reasons["bucket"] == reasons["bucket_runs"] == "its batches are of no bucket"
    one = table.with_columns(bucket_ids=pl.Series([3, 3]))
    assert {suspect.name: suspect.reason for suspect in suspects_of(one)}["bucket"] == "all batches are of one bucket"


def test_extremes_never_split_what_is_alike() -> None:
    values = np.concatenate([np.arange(90.0), np.full(10, 200.0)])
    found = {variant.text: np.flatnonzero(variant.events).tolist() for variant in extremes(values, "size")}
    assert found["the 10.0% of steps with the highest size"] == list(range(90, 100))
    assert found["the 5.0% of steps with the lowest size"] == [0, 1, 2, 3, 4]
    assert extremes(np.ones(100), "size") == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lag_steps": 0}, "lag_steps is 0; legal: a whole number in [1, 50]"),
        (
            {"num_draws": 200},
            "num_draws is 200; legal: at least 280, as no p value is below 1 / (num_draws + 1) and 14 suspects share a "
            "chance of 0.05",
        ),
        (
            {"family_error": 0.7},
            "family_error is 0.7 and cleared_share 0.6666666666666666; legal: over 0 and below 0.5, and over 0 and at "
            "most 1",
        ),
    ],
)
def test_settings_that_are_refused(settings: dict, message: str) -> None:
    run = analysis.synthetic_run("none", num_steps=300, num_resets=0)
    with pytest.raises(ValueError) as error:
        analysis.attribute_spikes(run, analysis.loss_resets(run), **settings)
    assert str(error.value) == message


def test_resets_of_another_table_are_refused() -> None:
    run = analysis.synthetic_run("none", num_steps=300, num_resets=0)
    with pytest.raises(ValueError) as error:
        analysis.attribute_spikes(run.head(200), analysis.loss_resets(run))
    assert str(error.value) == (
        "the table has 200 steps and the resets are of 300, or of others; legal: loss_resets of the same table"
    )
    with pytest.raises(ValueError) as error:
        analysis.attribute_spikes(run.with_columns(num_blocks=pl.lit("a")), analysis.loss_resets(run))
    assert str(error.value) == "column num_blocks has dtype String; legal: numbers"


def test_synthetic_runs_have_the_logs_columns_and_their_cause() -> None:
    run = analysis.synthetic_run("checkpoint", seed=1, accumulation=3)
    assert run.height == 4_000 and run["bucket_ids"].list.len().unique().to_list() == [3]
    assert run["bucket_ids"].explode().eq(5).mean() == pytest.approx(0.52, abs=0.02)
    saves = set(run.filter("checkpoint")["step"])
    onsets = run.filter("planted_reset")["step"].to_list()
    assert len(onsets) > 15 and all({step - 1, step - 2} & saves for step in onsets)
    assert run.equals(analysis.synthetic_run("checkpoint", seed=1, accumulation=3))
    with pytest.raises(ValueError) as error:
        analysis.synthetic_run("bucket")
    assert str(error.value).startswith("kind is 'bucket'; legal: none, bucket_change, ")
    with pytest.raises(ValueError) as error:
        analysis.synthetic_run("noise", num_resets=0)
    assert str(error.value) == "num_resets is 0; legal: a whole number in [1, 80]"
