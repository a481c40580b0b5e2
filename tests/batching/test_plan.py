"""The laws of a plan, worked examples, sharding, and the file form."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.batching import (
    ORDERS,
    STRATEGIES,
    BatchingConfig,
    BatchPlan,
    EpochBatchSampler,
    bucket_of,
    equal_token_bounds,
    plan_epoch,
)


def config(**changes):
    return BatchingConfig(
        **{"strategy": "as_given", "order": "as_built", "token_budget": 128, "max_seq_len": 8192, **changes}
    )


def plan(lengths, *, epoch=0, **changes):
    return plan_epoch(lengths, config(**changes), epoch=epoch)


# Worked by hand: what a batch costs.


def test_a_batch_costs_its_size_times_its_longest():
    made = plan([96, 12, 12, 12, 96], token_budget=144)
    assert list(made) == [[0], [1, 2, 3], [4]]
    assert made.padded_tokens_by_batch.tolist() == [96, 36, 96]


def test_the_longest_so_far_counts_and_not_the_current_sample():
    made = plan([64, 8, 8, 8, 8, 40])
    assert list(made) == [[0, 1], [2, 3, 4], [5]]
    assert made.padded_tokens_by_batch.tolist() == [128, 24, 40]


def test_the_budget_is_inclusive_and_the_cap_holds():
    assert list(plan([32, 32, 32, 32, 32])) == [[0, 1, 2, 3], [4]]
    assert list(plan([1] * 5, max_batch_size=2)) == [[0, 1], [2, 3], [4]]


def test_a_sample_over_the_budget_is_an_error_or_counted():
    with pytest.raises(
        ValueError, match="sample 1 has 256 tokens after the cut to max_seq_len 256, more than token_budget 128"
    ):
        plan([5, 300, 7], max_seq_len=256)
    made = plan([5, 300, 7], max_seq_len=256, on_oversize="drop")
    assert list(made) == [[0, 2]]
    assert {reason: ids.tolist() for reason, ids in made.left_out.items()} == {"over_budget": [1]}
    with pytest.raises(ValueError, match="no sample is left: all 1 are longer than token_budget 128"):
        plan([300], on_oversize="drop")
    assert list(plan([5, 300, 7], max_seq_len=100)) == [[0], [1], [2]], "cut first, then compared with the budget"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_number_of_batches_is_the_number_that_is_given(strategy):
    for epoch in range(3):
        made = plan([7] * 10, token_budget=21, strategy=strategy, epoch=epoch)
        assert len(made) == len(list(made)) == 4
        assert sorted(map(len, made)) == [1, 3, 3, 3]


def test_sorted_puts_like_lengths_together():
    made = plan([9, 2, 9, 2], token_budget=18, strategy="sorted")
    assert sorted(sorted(batch) for batch in made) == [[0, 2], [1, 3]]
    assert (made.real_tokens, made.padded_tokens, made.padding_efficiency) == (22, 22, 1.0)


def test_efficiency_is_a_ratio_of_sums():
    made = plan([8, 8, 4, 2, 6, 3], token_budget=16, max_batch_size=2)
    assert (made.real_tokens, made.padded_tokens) == (31, 36)
    assert made.padding_efficiency == pytest.approx(0.861111, abs=1e-6)
    assert made.budget_use == pytest.approx(31 / 48)


# Epochs.


def test_every_epoch_has_an_order_of_its_own_that_can_be_made_again():
    lengths = [8] * 64
    first, second = (plan(lengths, token_budget=32, strategy="random", order="random", seed=5, epoch=e) for e in (0, 1))
    for made in (first, second):
        assert [len(batch) for batch in made] == [4] * 16
        assert sorted(made.sample_ids.tolist()) == list(range(64))
    assert first != second
    assert second == plan(lengths, token_budget=32, strategy="random", order="random", seed=5, epoch=1)
    code = (
        "from dflash_lab.batching import *; print(plan_epoch([8] * 64, BatchingConfig(strategy='random', "
        "order='random', token_budget=32, max_seq_len=8192, seed=5), epoch=1).fingerprint)"
    )
    root = Path(__file__).parents[2]
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert other.stdout.strip() == second.fingerprint


@pytest.mark.parametrize("strategy", ["random", "bucketed"])
def test_composition_is_new_in_every_epoch(strategy):
    epochs = [
        {frozenset(batch) for batch in plan([8] * 64, token_budget=32, strategy=strategy, seed=5, epoch=epoch)}
        for epoch in (0, 1)
    ]
    assert len(epochs[0] & epochs[1]) <= 2


def test_sorted_keeps_its_composition_and_changes_its_order():
    lengths = np.random.default_rng(1).permutation(np.arange(1, 65))
    first, second = (plan(lengths, strategy="sorted", order="random", epoch=epoch) for epoch in (0, 1))
    assert {frozenset(batch) for batch in first} == {frozenset(batch) for batch in second}
    assert list(first) != list(second)


def test_planning_leaves_the_global_generator_alone():
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    plan([8] * 64, strategy="random", order="stride")
    assert np.random.random() == expected


# Laws, for all lengths.

lengths_of_any_kind = st.lists(st.integers(1, 90), min_size=1, max_size=80)


@st.composite
def plans(draw):
    lengths = draw(lengths_of_any_kind)
    bounds = draw(st.none() | st.sets(st.integers(1, 80), min_size=1, max_size=6).map(lambda s: (0, *sorted(s))))
    settings = config(
        strategy=draw(st.sampled_from(STRATEGIES)),
        order=draw(st.sampled_from(ORDERS)),
        token_budget=draw(st.integers(40, 400)),
        max_seq_len=draw(st.integers(1, 40)),
        max_batch_size=draw(st.integers(1, 12)),
        bucket_bounds=bounds,
        longest_first=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**40)),
    )
    return lengths, settings, draw(st.integers(0, 5))


@given(plans())
def test_laws_hold_for_all_strategies_and_orders(drawn):
    lengths, settings, epoch = drawn
    made = plan_epoch(lengths, settings, epoch=epoch)
    made.validate(lengths)
    cut = [min(length, settings.max_seq_len) for length in lengths]
    assert sorted(sum(made, [])) == list(range(len(lengths)))
    for number, batch in enumerate(made):
        longest = max(cut[i] for i in batch)
        assert made.widths[number] == longest
        assert len(batch) * longest <= settings.token_budget
        assert len(batch) <= settings.max_batch_size
        if settings.strategy == "bucketed":
            assert {int(bucket_of(np.array([cut[i]]), made.config.bucket_bounds)[0]) for i in batch} == {
                int(made.bucket_ids[number])
            }
        else:
            assert made.bucket_ids[number] == -1
    assert made.real_tokens == sum(cut)
    assert made.padded_tokens == sum(len(batch) * max(cut[i] for i in batch) for batch in made)
    assert made == plan_epoch(np.asarray(lengths), settings, epoch=epoch)
    heaviest = sorted((len(batch) * max(cut[i] for i in batch) for batch in made), reverse=True)
    first = made.padded_tokens_by_batch[: settings.longest_first].tolist()
    assert first == heaviest[: settings.longest_first]


@given(lengths_of_any_kind, st.integers(90, 300), st.integers(1, 9))
def test_packing_is_greedy_with_the_running_maximum(lengths, budget, cap):
    expected, longest = [[]], 0
    for sample, length in enumerate(lengths):
        longest = max(longest, length)
        if expected[-1] and ((len(expected[-1]) + 1) * longest > budget or len(expected[-1]) == cap):
            expected.append([])
            longest = length
        expected[-1].append(sample)
    assert list(plan(lengths, token_budget=budget, max_batch_size=cap)) == expected


@given(plans(), st.integers(1, 5), st.sampled_from(["drop", "repeat"]))
def test_shards_are_equal_in_number_and_cover_the_plan(drawn, world_size, mode):
    lengths, settings, epoch = drawn
    whole = plan_epoch(lengths, settings, epoch=epoch)
    if mode == "drop" and len(whole) < world_size:
        with pytest.raises(ValueError, match=f"{len(whole)} batches give none to each of {world_size} ranks"):
            whole.shard(0, world_size, mode=mode)
        return
    shards = [whole.shard(rank, world_size, mode=mode) for rank in range(world_size)]
    assert len({len(shard) for shard in shards}) == 1
    seen = Counter(tuple(batch) for shard in shards for batch in shard)
    assert set(seen) <= {tuple(batch) for batch in whole}
    if mode == "drop":
        assert set(seen.values()) == {1}
        assert len(seen) == len(whole) - len(whole) % world_size
    else:
        assert len(seen) == len(whole)
    for shard in shards:
        shard.validate(lengths)
        dropped = shard.left_out.get("dropped_tail", np.array([]))
        assert len(dropped) == len(lengths) - sum(map(len, seen)) if mode == "drop" else not len(dropped)


# Sharding, worked by hand.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", ORDERS)
def test_ten_batches_on_four_ranks(strategy, order):
    whole = plan([8] * 10, token_budget=8, strategy=strategy, order=order)
    shards = [whole.shard(rank, 4) for rank in range(4)]
    assert [len(shard) for shard in shards] == [2] * 4
    assert len({batch[0] for shard in shards for batch in shard}) == 8
    assert {len(shard.left_out["dropped_tail"]) for shard in shards} == {2}
    repeated = [whole.shard(rank, 4, mode="repeat") for rank in range(4)]
    assert [len(shard) for shard in repeated] == [3] * 4
    counts = Counter(batch[0] for shard in repeated for batch in shard)
    assert len(counts) == 10 and sorted(counts.values()) == [1] * 8 + [2] * 2


def test_ranks_in_processes_of_their_own_cut_one_plan():
    code = (
        "import sys; from dflash_lab.batching import *; c = BatchingConfig(strategy='random', token_budget=16, "
        "max_seq_len=64); print(plan_epoch([8] * 24, c, epoch=2).shard(int(sys.argv[1]), 3).sample_ids.tolist())"
    )
    root = Path(__file__).parents[2]
    ranks = [
        eval(subprocess.run([sys.executable, "-c", code, str(rank)], capture_output=True, text=True, cwd=root).stdout)
        for rank in range(3)
    ]
    assert [len(ids) for ids in ranks] == [8] * 3
    assert sorted(sum(ranks, [])) == list(range(24))


@pytest.mark.parametrize("order", ORDERS)
def test_the_tail_that_is_dropped_changes_with_the_epoch(order):
    lengths = list(range(1, 11))
    tails = [
        tuple(
            plan(lengths, token_budget=10, max_batch_size=1, order=order, epoch=epoch)
            .shard(0, 4)
            .left_out["dropped_tail"]
        )
        for epoch in range(5)
    ]
    assert len(set(tails)) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 4, "world_size": 4}, r"rank is 4; legal: a whole number in \[0, 3\]"),
        ({"rank": 0, "world_size": 0}, "world_size is 0; legal: a whole number >= 1"),
        ({"rank": 0, "world_size": 2, "mode": "pad"}, "mode is 'pad'; legal: drop, repeat"),
    ],
)
def test_shards_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan([8] * 10).shard(**arguments)


def test_skipping_gives_the_rest_and_names_what_was_trained():
    whole = plan(list(range(1, 21)), token_budget=20, max_batch_size=1, order="random", epoch=1)
    rest = whole.skip(7)
    assert list(rest) == list(whole)[7:]
    assert sorted(rest.left_out["skipped"].tolist()) == sorted(sum(list(whole)[:7], []))
    rest.validate(list(range(1, 21)))
    assert whole.skip(0) == whole
    assert list(whole.skip(3).skip(4)) == list(rest)
    with pytest.raises(ValueError, match=r"num_batches is 20; legal: a whole number in \[0, 19\]"):
        whole.skip(20)


# The value itself.


def test_a_plan_is_read_only_and_small_to_print():
    made = plan([8] * 10_000, token_budget=8)
    with pytest.raises(ValueError, match="read-only"):
        made.sample_ids[0] = 1
    assert len(repr(made)) < 250 and "10,000 batches" in repr(made)
    assert made[0].tolist() == [0] and made[-1].tolist() == [9_999]
    with pytest.raises(IndexError, match="batch 10000 of a plan with 10000 batches"):
        made[10_000]
    assert (made.sample_ids.dtype, made.offsets.dtype, made.bucket_ids.dtype, made.widths.dtype) == (
        np.int64, np.int64, np.int16, np.int32,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_saved_plan_comes_back_equal(tmp_path, strategy):
    made = plan([5, 300, 7, 9], strategy=strategy, on_oversize="drop", epoch=3, order="random").skip(0)
    made.save(tmp_path / "deep" / "plan.parquet")
    again = BatchPlan.load(tmp_path / "deep" / "plan.parquet")
    assert again == made and again.config == made.config
    assert {reason: ids.tolist() for reason, ids in again.left_out.items()} == {"over_budget": [1]}
    (tmp_path / "other.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"other\.parquet is not a plan written by BatchPlan\.save"):
        BatchPlan.load(tmp_path / "other.parquet")


def test_validate_finds_what_is_broken():
    import dataclasses

    lengths = [96, 12, 12, 12, 96]
    made = plan(lengths, token_budget=144)
    for broken, message in (
        ({"sample_ids": [0, 1, 1, 3, 4]}, "more than one batch holds sample 1"),
        ({"sample_ids": [0, 1, 2, 3, 9]}, r"sample ids outside \[0, 5\)"),
        ({"widths": [96, 13, 96]}, "the width is not the longest sample in batch 1"),
        ({"offsets": [0, 2, 4, 5]}, "over token_budget: batch 0"),
        ({"config": config(token_budget=144, max_batch_size=2)}, "more than max_batch_size samples in batch 1"),
    ):
        with pytest.raises(ValueError, match=f"broken plan: {message}"):
            dataclasses.replace(made, **broken).validate(lengths)
    with pytest.raises(ValueError, match="neither planned nor left out: sample 5"):
        made.validate([*lengths, 12])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "lengths is empty"),
        ([[1, 2]], r"lengths has shape \(1, 2\)"),
        ([3, 0, 0], r"the length of sample 1 is 0 \(2 such samples\); legal: a whole number >= 1"),
        ([3, -1], "the length of sample 1 is -1"),
        ([3, 2.5], "the length of sample 1 is 2.5"),
        ([3, float("nan")], "the length of sample 1 is nan"),
        (["3"], "lengths has dtype <U1"),
        ([True], "lengths has dtype bool"),
    ],
)
def test_lengths_that_are_no_lengths_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        plan(lengths)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"strategy": "sort"}, "strategy is 'sort'; legal: as_given, sorted, random, bucketed"),
        ({"order": "shuffle"}, "order is 'shuffle'; legal: as_built, random, no_repeat, stride"),
        ({"token_budget": 0}, "token_budget is 0; legal: a whole number >= 1"),
        ({"token_budget": 1.5}, "token_budget is 1.5; legal: a whole number >= 1"),
        ({"max_batch_size": True}, "max_batch_size is True; legal"),
        ({"max_seq_len": 2**31}, r"max_seq_len is 2147483648; legal: a whole number in \[1, 2147483647\]"),
        ({"seed": -1}, "seed is -1; legal: a whole number >= 0"),
        ({"bucket_bounds": (0,)}, r"bucket_bounds is \(0,\); legal: increasing whole numbers starting at 0"),
        ({"bucket_bounds": (1, 5)}, r"bucket_bounds is \(1, 5\)"),
        ({"bucket_bounds": (0, 5, 5)}, r"bucket_bounds is \(0, 5, 5\)"),
        ({"bucket_bounds": (0, 5.5)}, r"bucket_bounds is \(0, 5\.5\)"),
        ({"on_oversize": "cut"}, "on_oversize is 'cut'; legal: error, drop"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        config(**setting)
    with pytest.raises(ValueError, match="epoch is -1; legal"):
        plan([1], epoch=-1)


def test_the_sampler_makes_a_plan_for_every_epoch():
    sampler = EpochBatchSampler(
        [8] * 24, config(strategy="random", order="random", token_budget=16), rank=1, world_size=3
    )
    first = list(sampler)
    assert len(first) == len(sampler) == 4
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


@given(lengths_of_any_kind, st.integers(1, 12))
def test_equal_token_bounds_hold_equal_tokens(lengths, num_buckets):
    bounds = equal_token_bounds(lengths, num_buckets)
    assert bounds[0] == 0 and bounds[-1] == max(lengths) + 1 and len(bounds) <= num_buckets + 1
    assert list(bounds) == sorted(set(bounds))
    buckets = bucket_of(np.asarray(lengths), bounds)
    tokens = np.bincount(buckets, weights=lengths, minlength=len(bounds) - 1)
    heaviest_length = max(Counter(lengths).items(), key=lambda item: item[0] * item[1])
    assert tokens.max() <= sum(lengths) / num_buckets + heaviest_length[0] * heaviest_length[1]


def test_buckets_are_half_open_and_the_last_takes_what_is_longer():
    bounds = (0, 770, 1216, 8192)
    assert bucket_of(np.array([1, 769, 770, 1215, 1216, 8191, 8192, 99_999]), bounds).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        2,
        2,
    ]
