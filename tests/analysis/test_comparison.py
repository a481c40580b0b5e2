"""Strategies side by side: sums over epochs, divided once."""

import dataclasses

import numpy as np
import pytest

from dflash_lab import analysis, batching

LENGTHS = np.random.default_rng(1).integers(1, 200, 500)
BUCKETED = batching.BatchingConfig(
    strategy="bucketed", token_budget=800, max_seq_len=150, bucket_bounds=(0, 40, 80, 150), order="stride", seed=3
)
CONFIGS = {
    "one": dataclasses.replace(BUCKETED, strategy="sorted", bucket_bounds=None),
    "two": dataclasses.replace(BUCKETED, strategy="random", bucket_bounds=None),
    "three": BUCKETED,
}


def test_figures_are_sums_over_epochs_divided() -> None:
    table = analysis.compare_strategies(LENGTHS, CONFIGS, epochs=3)
    assert table["strategy"].to_list() == ["one", "two", "three"]
    assert table["config_strategy"].to_list() == ["sorted", "random", "bucketed"]
    plans = [batching.plan_epoch(LENGTHS, BUCKETED, epoch=epoch) for epoch in range(3)]
    row = table.row(2, named=True)
    num_batches, real = sum(map(len, plans)), sum(plan.real_tokens for plan in plans)
    padded = sum(plan.padded_tokens for plan in plans)
    runs = [analysis.run_summary(plan.bucket_ids) for plan in plans]
    pairs = [analysis.pairs_together_again(one, other) for one, other in zip(plans, plans[1:], strict=False)]
    assert row["num_batches"] == pytest.approx(num_batches / 3)
    assert row["padding_efficiency"] == pytest.approx(real / padded)
    assert row["budget_use"] == pytest.approx(real / num_batches / 800)
    assert row["fill"] == pytest.approx(padded / num_batches / 800)
    assert row["real_tokens_per_batch"] == pytest.approx(real / num_batches)
    assert row["samples_per_batch"] == pytest.approx(1_500 / num_batches)
    assert row["longest_run_batches"] == max(run.longest_batches for run in runs)
    assert row["mean_run_batches"] == pytest.approx(num_batches / sum(run.num_runs for run in runs))
    again = sum(pair.num_together_again for pair in pairs) / sum(pair.num_pairs for pair in pairs)
    assert row["share_pairs_together_again"] == pytest.approx(again)


def test_sorted_meets_again() -> None:
    table = analysis.compare_strategies(LENGTHS, CONFIGS)
    assert table["share_pairs_together_again"][0] == 1.0
    assert table["share_pairs_together_again"][1] < 0.05


def test_throughput_is_relative_to_the_best_or_the_baseline() -> None:
    best = analysis.compare_strategies(LENGTHS, CONFIGS)
    assert best["relative_throughput"].max() == 1.0
    named = analysis.compare_strategies(LENGTHS, CONFIGS, baseline="two")
    assert named["relative_throughput"].to_list() == pytest.approx(
        (named["padding_efficiency"] / named["padding_efficiency"][1]).to_list()
    )


def test_the_best_row_is_exactly_one() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        lengths = generator.integers(1, 150, 50)
        assert analysis.compare_strategies(lengths, CONFIGS, epochs=1)["relative_throughput"].max() == 1.0
        for name in CONFIGS:
            table = analysis.compare_strategies(lengths, CONFIGS, epochs=1, baseline=name)
            assert table["relative_throughput"][list(CONFIGS).index(name)] == 1.0


def test_one_epoch_has_no_pairs_together_again() -> None:
    assert analysis.compare_strategies(LENGTHS, CONFIGS, epochs=1)["share_pairs_together_again"].null_count() == 3


def test_left_out_samples_are_counted() -> None:
    config = dataclasses.replace(CONFIGS["one"], token_budget=100, on_oversize="drop")
    row = analysis.compare_strategies([50, 120, 130, 20], {"a": config}).row(0, named=True)
    assert row["num_left_out"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"configs": {}}, "configs is empty; legal: at least one name with its BatchingConfig"),
        ({"configs": CONFIGS, "baseline": "four"}, "baseline is 'four'; legal: one, two, three"),
        ({"configs": CONFIGS, "epochs": 0}, "epochs is 0; legal: a whole number >= 1"),
    ],
)
def test_what_compare_strategies_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.compare_strategies(LENGTHS, **settings)
    assert str(error.value) == message


def test_one_bucket_is_the_random_plan_and_more_buckets_pad_less() -> None:
    curve = analysis.bucket_count_curve(LENGTHS, BUCKETED, num_buckets=[1, 4, 12])
    alone = batching.plan_epoch(
        LENGTHS, dataclasses.replace(BUCKETED, bucket_bounds=(0, 151), order="as_built"), epoch=0
    )
    assert curve["num_batches"][0] == len(alone)
    assert curve["last_bucket_share_of_batches"][0] == 1.0
    assert curve["padding_efficiency"].is_sorted()
    fewest = len(batching.plan_epoch(LENGTHS, CONFIGS["one"], epoch=0))
    assert curve["excess_over_sorted"][2] == pytest.approx(curve["num_batches"][2] / fewest - 1)
    assert curve["bucket_bounds"][1].to_list() == list(
        batching.equal_token_bounds(np.minimum(LENGTHS, BUCKETED.max_seq_len), 4)
    )


def test_one_length_makes_one_bucket() -> None:
    curve = analysis.bucket_count_curve([7] * 10, BUCKETED, num_buckets=[1, 5])
    assert curve["num_buckets"].to_list() == [1, 5]
    assert curve["num_buckets_made"].to_list() == [1, 1]


def test_bucket_bounds_ignore_samples_that_are_left_out() -> None:
    config = dataclasses.replace(BUCKETED, token_budget=100, on_oversize="drop")
    curve = analysis.bucket_count_curve([10, 20, 140], config, num_buckets=[1])
    assert curve["bucket_bounds"].to_list() == [[0, 21]]


def test_no_number_of_buckets_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        analysis.bucket_count_curve(LENGTHS, BUCKETED, num_buckets=[])
    assert str(error.value) == "num_buckets is empty; legal: at least one whole number >= 1"


def test_the_source_runs_size_is_planned_whole() -> None:
    """Work on pairs of samples, or a matrix of them, would not end (or not fit) at this size."""
    lengths = np.random.default_rng(0).lognormal(7.2, 0.7, 902_087).clip(65, 8_191).astype(np.int64)
    configs = {
        f"{strategy}/{order}": batching.source_run_config(strategy, order=order)
        for strategy, order in (
            ("sorted", "random"),
            ("random", "random"),
            ("bucketed", "random"),
            ("bucketed", "stride"),
        )
    }
    table = analysis.compare_strategies(lengths, configs)
    again = dict(zip(table["strategy"], table["share_pairs_together_again"], strict=True))
    assert again.pop("sorted/random") == 1.0
    assert all(0 < share < 0.001 for share in again.values())


def test_bounds_are_compared_by_name() -> None:
    table = analysis.compare_bounds(LENGTHS, BUCKETED, {"by hand": (0, 40, 80, 150), "one": (0, 150)})
    assert table["bounds"].to_list() == ["by hand", "one"]
    plan = batching.plan_epoch(LENGTHS, dataclasses.replace(BUCKETED, order="as_built"), epoch=0)
    assert table.row(0, named=True)["num_batches"] == len(plan)
    assert table.row(0, named=True)["padding_efficiency"] == plan.padding_efficiency
    random = batching.plan_epoch(LENGTHS, CONFIGS["two"], epoch=0)
    assert table.row(1, named=True)["num_buckets_made"] == 1
    assert abs(table.row(1, named=True)["num_batches"] - len(random)) <= 10
    with pytest.raises(ValueError, match="bounds is empty"):
        analysis.compare_bounds(LENGTHS, BUCKETED, {})


def test_the_source_runs_story_is_told_on_any_lengths() -> None:
    strategies = batching.source_run_strategies(BUCKETED)
    assert [(config.strategy, config.order) for config in strategies.values()] == [
        ("sorted", "random"),
        ("random", "random"),
        ("bucketed", "random"),
        ("bucketed", "no_repeat_naive"),
        ("bucketed", "stride"),
    ]
    comparison = analysis.compare_strategies(LENGTHS, strategies)
    story = analysis.source_run_story(comparison)
    assert story["step"].to_list() == [1, 2, 3, 4, 5]
    assert story["source_run_ktok_per_second"].to_list() == ["30-32", "12", "25-26", None, None]
    efficiency = comparison["padding_efficiency"]
    assert story["ours_ktok_per_second"][0] == pytest.approx(26.2 * efficiency[0] / efficiency[2])
    assert story["ours_ktok_per_second"][2] == pytest.approx(26.2)
    with pytest.raises(ValueError, match="the table has no strategy bucketed, stride"):
        analysis.source_run_story(comparison.head(4))


def test_the_story_goes_on_with_other_strategies() -> None:
    strategies = {"capacity": dataclasses.replace(BUCKETED, strategy="capacity")}
    strategies |= batching.source_run_strategies(BUCKETED)
    story = analysis.source_run_story(analysis.compare_strategies(LENGTHS, strategies))
    assert story["strategy"].to_list() == [
        "sorted", "random", "bucketed", "bucketed, no repeat naive", "bucketed, stride", "capacity",
    ]  # fmt: skip
    assert story["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert story["what_happened"].to_list()[-1] is None
    assert story["source_run_ktok_from"].to_list() == [30.0, 12.0, 25.0, None, None, None]
    assert story["source_run_ktok_to"].to_list() == [32.0, 12.0, 26.0, None, None, None]
