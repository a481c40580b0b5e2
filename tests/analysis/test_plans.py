"""One row a batch, one row a bucket, and pairs of samples counted without looking at pairs."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis, batching

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=50)


def plan_of(lengths: list[int], *, epoch: int = 0, **settings: object) -> batching.BatchPlan:
    config = {"strategy": "as_given", "order": "as_built", "token_budget": 64, "max_seq_len": 40} | settings
    return batching.plan_epoch(lengths, batching.BatchingConfig(**config), epoch=epoch)


def pairs_of(plan: batching.BatchPlan) -> set[tuple[int, int]]:
    return {pair for batch in plan for pair in combinations(sorted(batch), 2)}


def test_an_01_padding_efficiency_is_a_ratio_of_sums() -> None:
    plan = plan_of([8, 8, 4, 2, 6, 3], max_batch_size=2)
    table = analysis.plan_table(plan)
    assert table["real_tokens"].to_list() == [16, 6, 9]
    assert table["padded_tokens"].to_list() == [16, 8, 12]
    whole = analysis.ratio_of_sums(table, "real_tokens", "padded_tokens")
    assert whole.row(0) == (3, 31, 36, pytest.approx(0.861111, abs=1e-6))
    assert table["padding_efficiency"].mean() == pytest.approx(0.833333, abs=1e-6)
    without_last = analysis.ratio_of_sums(table.head(2), "real_tokens", "padded_tokens")
    assert without_last["ratio"].item() == pytest.approx(0.916667, abs=1e-6)


def test_plan_table_of_a_plan_worked_by_hand() -> None:
    table = analysis.plan_table(plan_of([10, 30, 40, 5], token_budget=80))
    assert table["num_samples"].to_list() == [2, 2]
    assert table["width_tokens"].to_list() == [30, 40]
    assert table["length_min_tokens"].to_list() == [10, 5]
    assert table["length_mean_tokens"].to_list() == [20.0, 22.5]
    assert table["length_max_tokens"].to_list() == [30, 40]
    assert table["fill"].to_list() == [60 / 80, 1.0]
    assert table["bucket_id"].to_list() == [None, None]
    assert table.schema["bucket_id"] == pl.Int16


@given(LENGTHS, st.sampled_from(["as_given", "sorted", "random", "bucketed"]))
def test_plan_table_sums_to_the_plan(lengths: list[int], strategy: str) -> None:
    plan = plan_of(lengths, strategy=strategy, bucket_bounds=(0, 10, 20) if strategy == "bucketed" else None)
    table = analysis.plan_table(plan)
    assert table["num_samples"].sum() == len(lengths)
    assert table["real_tokens"].sum() == plan.real_tokens == sum(lengths)
    assert table["padded_tokens"].sum() == plan.padded_tokens
    assert (table["fill"] <= 1).all()
    assert (table["length_max_tokens"] == table["width_tokens"]).all()


def test_bucket_shares_list_empty_buckets() -> None:
    plan = plan_of([5, 6, 25, 30], strategy="bucketed", bucket_bounds=(0, 10, 20, 30))
    shares = analysis.bucket_shares(plan)
    assert shares["num_batches"].to_list() == [1, 0, 1]
    assert shares["share_of_tokens"].to_list() == pytest.approx([11 / 66, 0, 55 / 66])
    assert shares["padding_efficiency"].to_list() == [pytest.approx(11 / 12), None, pytest.approx(55 / 60)]
    with pytest.raises(ValueError) as error:
        analysis.bucket_shares(plan_of([5]))
    assert str(error.value) == 'a plan of strategy "as_given" has no buckets; legal: a plan with buckets'


@given(LENGTHS, st.sampled_from(["as_given", "sorted", "random", "bucketed"]), st.integers(0, 5))
def test_pairs_together_again_agree_with_all_pairs(lengths: list[int], strategy: str, seed: int) -> None:
    bounds = (0, 10, 20) if strategy == "bucketed" else None
    settings = {"strategy": strategy, "order": "random", "bucket_bounds": bounds, "seed": seed}
    one, other = plan_of(lengths, epoch=0, **settings), plan_of(lengths, epoch=1, **settings)
    counted = analysis.pairs_together_again(one, other)
    assert counted.num_pairs == len(pairs_of(one))
    assert counted.num_together_again == len(pairs_of(one) & pairs_of(other))


def test_pairs_with_a_sample_left_out_are_not_together_again() -> None:
    lengths = [2, 3, 4, 5, 6, 7]
    whole = plan_of(lengths, token_budget=14)
    part = whole.skip(1)
    assert [list(batch) for batch in whole] == [[0, 1, 2], [3, 4], [5]]
    counted = analysis.pairs_together_again(whole, part)
    assert (counted.num_pairs, counted.num_together_again) == (4, 1)
    assert counted.share == 0.25


def test_single_samples_have_no_pairs() -> None:
    plan = plan_of([40, 40])
    assert analysis.pairs_together_again(plan, plan) == analysis.PairCount(0, 0)
    assert analysis.pairs_together_again(plan, plan).share is None


def test_a_sample_held_twice_is_refused() -> None:
    plan = plan_of([40, 40, 40]).shard(1, 2, mode="repeat")
    twice = batching.BatchPlan(
        sample_ids=np.array([0, 0]), offsets=np.array([0, 2]), bucket_ids=np.array([-1]), widths=np.array([40]),
        sample_lengths=np.array([40, 40]), config=plan.config, epoch=3,
    )  # fmt: skip
    with pytest.raises(ValueError) as error:
        analysis.pairs_together_again(twice, twice)
    assert str(error.value) == "the plan of epoch 3 holds 1 samples twice"
