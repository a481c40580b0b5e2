"""Every column of a comparison against loops over the batches, on small plans."""

import dataclasses
import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_lab import analysis, batching, data

LENGTHS = np.random.default_rng(5).integers(1, 120, 300)
BOUNDS = (0, 30, 60, 90, 120)
BASE = batching.BatchingConfig(strategy="capacity", token_budget=400, max_seq_len=100, window=3, num_cuts=4, seed=1)
LOSS_TOKENS = np.random.default_rng(6).integers(0, LENGTHS + 1)
ANCHORS = analysis.AnchorBudgets(per_sample=16, per_loss_token=0.2, per_batch=50)
COSTS = analysis.CostModel(per_batch=20.0, per_token=1.0, per_token_squared=0.01)
strategies = pytest.mark.parametrize("strategy", batching.STRATEGIES)


def compared(strategy: str, **settings: object) -> tuple[dict[str, object], list[batching.BatchPlan]]:
    config = dataclasses.replace(BASE, strategy=strategy, **settings)
    table = analysis.compare_strategies(
        LENGTHS, {"a": config}, bucket_bounds=BOUNDS, loss_tokens=LOSS_TOKENS, anchors=ANCHORS, cost_model=COSTS
    )
    return table.row(0, named=True), [batching.plan_epoch(LENGTHS, config, epoch=epoch) for epoch in range(2)]


def cut(sample: int) -> int:
    return min(int(LENGTHS[sample]), BASE.max_seq_len)


def shares_of(samples: list[int]) -> list[float]:
    tokens = [0] * (len(BOUNDS) - 1)
    for sample in samples:
        tokens[sum(cut(sample) >= bound for bound in BOUNDS[1:-1])] += cut(sample)
    return [part / sum(tokens) for part in tokens]


def windows_of(plan: batching.BatchPlan) -> list[list[int]]:
    batches = list(plan)
    full = len(batches) // 3
    return [[sample for batch in batches[3 * w : 3 * w + 3] for sample in batch] for w in range(full)]


@strategies
def test_windows_are_measured_batch_by_batch(strategy: str) -> None:
    row, plans = compared(strategy)
    variations, means = [], []
    for plan in plans:
        data = shares_of([sample for batch in plan for sample in batch])
        for window in windows_of(plan):
            variations.append(sum(abs(a - b) for a, b in zip(shares_of(window), data, strict=True)) / 2)
            means.append(sum(map(cut, window)) / len(window))
    assert row["window_tv"] == pytest.approx(np.mean(variations))
    assert row["window_mean_length_cv"] == pytest.approx(np.std(means) / np.mean(means))
    table = analysis.window_table(plans[1], BOUNDS)
    assert table["total_variation"].to_list() == pytest.approx(variations[-table.height :])
    assert table["length_mean_tokens"].to_list() == pytest.approx(means[-table.height :])
    assert table["real_tokens"].sum() == sum(cut(sample) for window in windows_of(plans[1]) for sample in window)


@strategies
def test_order_and_company_are_measured_batch_by_batch(strategy: str) -> None:
    row, plans = compared(strategy)
    product = square = 0.0
    spreads, longest = [], 0
    for plan in plans:
        means = [np.mean([cut(sample) for sample in batch]) for batch in plan]
        off = np.asarray(means) - np.mean(means)
        product += sum(a * b for a, b in pairwise(off))
        square += sum(off**2)
        spreads += [np.std([cut(sample) for sample in batch]) / mean for batch, mean in zip(plan, means, strict=True)]
        buckets = [sum(mean >= bound for bound in BOUNDS[1:-1]) for mean in means]
        if strategy == "bucketed":
            buckets = plan.bucket_ids.tolist()
        run = 0
        for number, bucket in enumerate(buckets):
            run = run + 1 if number and bucket == buckets[number - 1] else 1
            longest = max(longest, run)
    assert row["lag1_mean_length"] == pytest.approx(product / square)
    assert row["length_cv_in_batch"] == pytest.approx(np.mean(spreads))
    assert row["longest_run_batches"] == longest


@strategies
def test_costs_and_draft_blocks_are_measured_batch_by_batch(strategy: str) -> None:
    row, plans = compared(strategy)
    cost, blocks = 0.0, {"sample": [], "loss_token": [], "batch": []}
    for plan in plans:
        for batch in plan:
            lengths, loss = [cut(i) for i in batch], [min(cut(i), int(LOSS_TOKENS[i])) for i in batch]
            padded, squared = len(batch) * max(lengths), len(batch) * max(lengths) ** 2
            if strategy == "packed":
                padded, squared = 400, sum(length**2 for length in lengths)
            cost += 20 + padded + 0.01 * squared
            blocks["sample"].append(sum(min(16, tokens) for tokens in loss))
            blocks["loss_token"].append(sum(-(-tokens // 5) for tokens in loss))
            blocks["batch"].append(min(50, sum(loss)))
    assert row["real_tokens_per_cost"] == pytest.approx(sum(plan.real_tokens for plan in plans) / cost)
    for budget, counts in blocks.items():
        assert row[f"draft_blocks_per_batch_by_{budget}"] == pytest.approx(np.mean(counts))
        assert row[f"draft_blocks_cv_by_{budget}"] == pytest.approx(np.std(counts) / np.mean(counts))


@strategies
def test_excess_is_over_what_any_padded_plan_needs(strategy: str) -> None:
    row, plans = compared(strategy)
    if strategy == "packed":
        assert row["excess_over_least"] is None
        return
    least = batching.least_possible_batches(np.minimum(LENGTHS, 100), 400, 64)
    assert row["excess_over_least"] == pytest.approx(sum(map(len, plans)) / (2 * least) - 1)
    assert row["excess_over_least"] == 0 or strategy not in ("sorted", "capacity")


def test_one_sample_has_no_windows_and_no_lag() -> None:
    row = analysis.compare_strategies([7], {"a": BASE}).row(0, named=True)
    for name in ("window_tv", "window_tv_of_shuffle", "window_mean_length_cv", "lag1_mean_length"):
        assert row[name] is None
    assert (row["longest_run_batches"], row["mean_run_batches"], row["length_cv_in_batch"]) == (1, 1.0, 0.0)


def test_every_token_is_supervised_where_nothing_is_known() -> None:
    plan = batching.plan_epoch([10, 20], dataclasses.replace(BASE, strategy="as_given"), epoch=0)
    blocks = analysis.draft_blocks(plan, analysis.AnchorBudgets(per_sample=15, per_loss_token=0.3))
    assert {budget: counts.tolist() for budget, counts in blocks.items()} == {
        "sample": [25], "loss_token": [3 + 6], "batch": [30],
    }  # fmt: skip


def test_anchors_per_sample_make_batches_of_short_samples_the_heaviest() -> None:
    lengths = np.r_[np.full(630, 700), np.full(60, 8_000)]
    plan = batching.plan_epoch(lengths, batching.source_run_config("sorted"), epoch=0)
    blocks = analysis.draft_blocks(plan, analysis.AnchorBudgets())
    assert blocks["sample"].max() / blocks["sample"].min() > 10
    assert blocks["batch"].max() == blocks["batch"].min()


def test_the_shuffle_is_nearer_to_the_data_than_batches_of_one_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 120, 4_000)
    plan = batching.plan_epoch(lengths, dataclasses.replace(BASE, window=8), epoch=0)
    shuffled, planned = analysis.shuffle_window_mix(plan, BOUNDS), analysis.plan_window_mix(plan, BOUNDS)
    assert len(shuffled.num_samples) == len(planned.num_samples) == len(plan) // 8
    assert shuffled.num_samples.sum() == len(lengths)
    assert shuffled.tokens.sum(axis=1).std() < 0.05 * shuffled.tokens.sum(axis=1).mean()
    assert shuffled.total_variation.mean() < planned.total_variation.mean()
    again = analysis.shuffle_window_mix(plan, BOUNDS)
    assert (again.tokens == shuffled.tokens).all()


@given(st.lists(st.integers(1, 90), min_size=1, max_size=80), st.sampled_from(batching.STRATEGIES), st.integers(1, 5))
@settings(max_examples=60)
def test_windows_hold_whole_batches_of_any_plan(lengths: list[int], strategy: str, window: int) -> None:
    config = batching.BatchingConfig(strategy=strategy, token_budget=100, max_seq_len=90, window=window)
    plan = batching.plan_epoch(lengths, config, epoch=0)
    mix = analysis.plan_window_mix(plan, (0, 20, 60, 90))
    in_windows = len(plan) // window * window
    assert mix.num_samples.sum() == plan.batch_sizes[:in_windows].sum()
    assert mix.tokens.sum() == plan.real_tokens_by_batch[:in_windows].sum()
    assert ((mix.total_variation >= 0) & (mix.total_variation <= 1 + 1e-12)).all()
    assert mix.data_mix.sum() == pytest.approx(1)
    assert analysis.shuffle_window_mix(plan, (0, 20, 60, 90)).num_samples.sum() in (0, len(lengths))


def test_plans_are_compared_with_a_full_shuffle() -> None:
    plans = {
        order: batching.plan_epoch(LENGTHS, dataclasses.replace(BASE, order=order), epoch=0)
        for order in ("random", "window_strata")
    }
    table = analysis.compare_windows(plans, BOUNDS)
    assert table["strategy"].to_list() == ["random", "window_strata", "full shuffle"]
    assert table["config_strategy"].to_list() == ["capacity", "capacity", None]
    variations = analysis.window_table(plans["random"], BOUNDS)["total_variation"]
    assert table["total_variation"][0] == pytest.approx(variations.mean())
    assert table["total_variation_p05"][0] == pytest.approx(variations.quantile(0.05, "linear"))
    with pytest.raises(ValueError) as error:
        analysis.compare_windows({"short": plans["random"].skip(len(plans["random"]) - 2)})
    assert str(error.value) == "no full accumulation window in short; legal: plans of a window or more"
    with pytest.raises(ValueError, match="plans is empty"):
        analysis.compare_windows({})


def test_batches_without_buckets_count_to_the_bucket_of_their_mean() -> None:
    plan = batching.plan_epoch(
        [10, 30, 40, 5], dataclasses.replace(BASE, strategy="as_given", token_budget=80, order="as_built"), epoch=0
    )
    assert analysis.plan_table(plan, bucket_bounds=(0, 20, 22, 90))["bucket_id"].to_list() == [1, 2]
    assert analysis.plan_table(plan)["bucket_id"].null_count() == 2
    assert analysis.plan_table(plan)["squared_tokens"].to_list() == [2 * 30**2, 2 * 40**2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_sample": 0}, "per_sample is 0; legal: a whole number >= 1"),
        ({"per_loss_token": 1.5}, "per_loss_token is 1.5; legal: a number in (0, 1]"),
        ({"per_batch": 0}, "per_batch is 0; legal: a whole number >= 1"),
    ],
)
def test_what_anchor_budgets_refuse(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.AnchorBudgets(**settings)
    assert str(error.value) == message


def test_loss_tokens_and_bounds_are_checked() -> None:
    with pytest.raises(ValueError, match="loss_tokens of sample 0 is 9"):
        analysis.compare_strategies([7], {"a": BASE}, loss_tokens=[9])
    with pytest.raises(ValueError, match="bucket_bounds is"):
        analysis.compare_strategies([7], {"a": BASE}, bucket_bounds=(5, 9))


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any),
    st.integers(1, 5),
)
def test_the_floor_of_a_pure_window_is_what_trying_all_finds(tokens: list[int], window: int) -> None:
    mix = np.asarray(tokens) / sum(tokens)
    tried = [
        np.abs(np.bincount(buckets, minlength=len(mix)) / window - mix).sum() / 2
        for buckets in itertools.combinations_with_replacement(range(len(mix)), window)
    ]
    assert analysis.pure_window_floor(mix, window) == pytest.approx(min(tried))


def test_the_floor_on_the_source_runs_lengths() -> None:
    plan = batching.plan_epoch(data.source_run_lengths(20_000), batching.source_run_config("sorted"), epoch=0)
    assert analysis.pure_window_floor(analysis.plan_window_mix(plan).data_mix, 4) == pytest.approx(0.25, abs=0.005)
