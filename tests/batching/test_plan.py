"""The laws of a plan, worked examples, sharding, and the file form."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
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
        num_cuts=draw(st.sampled_from([0, 1, 3, 64])),
        pool_size=draw(st.integers(1, 40)),
        window=draw(st.integers(1, 6)),
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
    packed = settings.strategy == "packed"
    for number, batch in enumerate(made):
        longest, total = max(cut[i] for i in batch), sum(cut[i] for i in batch)
        assert made.widths[number] == (settings.token_budget if packed else longest)
        assert (total if packed else len(batch) * longest) <= settings.token_budget
        assert len(batch) <= settings.max_batch_size
        if settings.strategy == "bucketed":
            assert {int(bucket_of(np.array([cut[i]]), made.config.bucket_bounds)[0]) for i in batch} == {
                int(made.bucket_ids[number])
            }
        else:
            assert made.bucket_ids[number] == -1
    assert made.real_tokens == sum(cut)
    costs = [settings.token_budget if packed else len(batch) * max(cut[i] for i in batch) for batch in made]
    assert made.padded_tokens == sum(costs) and made.padded_tokens_by_batch.tolist() == costs
    assert made == plan_epoch(np.asarray(lengths), settings, epoch=epoch)
    weights = made.real_tokens_by_batch.tolist() if packed else costs
    assert weights[: settings.longest_first] == sorted(weights, reverse=True)[: settings.longest_first]


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


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_every_ranks_windows_keep_the_strata(world_size, window):
    """Strata of 1, 2, 3, ... tokens, one sample a batch: each window of each rank holds one batch of each."""
    num_rounds = 5
    lengths = np.repeat(np.arange(1, window + 1), world_size * num_rounds)
    whole = plan(lengths, max_batch_size=1, order="window_strata", window=window)
    shards = [whole.shard(rank, world_size) for rank in range(world_size)]
    for shard in shards:
        windows = shard.sample_lengths.reshape(-1, window)
        assert (np.sort(windows, axis=1) == np.arange(1, window + 1)).all()
    steps = np.array([shard.sample_lengths for shard in shards])
    assert (steps == steps[0]).all(), "in every step all ranks have batches of one stratum"


def test_ranks_end_up_with_level_costs():
    lengths = np.random.default_rng(0).integers(1, 1_000, 4_000)
    whole = plan(lengths, token_budget=1_000, max_batch_size=1, order="random", window=4)
    costs = [whole.shard(rank, 8).padded_tokens for rank in range(8)]
    # Greedy dealing leaves ranks apart by less than one window, here of up to 4,000 tokens of 250,000 a rank.
    assert max(costs) - min(costs) < 4_000


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
@pytest.mark.parametrize("longest_first", [0, 10])
def test_the_tail_that_is_dropped_changes_with_the_epoch(order, longest_first):
    lengths = list(range(1, 11))
    tails = [
        tuple(
            plan(lengths, token_budget=10, max_batch_size=1, order=order, epoch=epoch, longest_first=longest_first)
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
    with pytest.raises(TypeError, match="'slice' object cannot be interpreted as an integer"):
        made[0:2]
    assert (made.sample_ids.dtype, made.offsets.dtype, made.bucket_ids.dtype, made.widths.dtype) == (
        np.int64, np.int64, np.int16, np.int32,
    )  # fmt: skip


def test_nothing_changes_a_plan_afterwards():
    lengths, ids = np.full(6, 8), np.arange(2)
    sampler = EpochBatchSampler(lengths, config(strategy="as_given"))
    made = replace(plan([8, 8, 300], on_oversize="drop"), sample_ids=ids)
    ids[0] = lengths[0] = 99
    assert made[0].tolist() == [0, 1]
    sampler.set_epoch(1)
    assert sampler.plan.widths.tolist() == [8]
    copied = pickle.loads(pickle.dumps(made))
    assert copied == made and copied.left_out["over_budget"].tolist() == [2]
    for whole in (made, copied, made.skip(0)):
        for array in (whole.sample_ids, whole.left_out["over_budget"]):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        with pytest.raises(TypeError, match="does not support item assignment"):
            whole.left_out["over_budget"] = ids


def test_what_is_repeated_is_named():
    whole = plan([8] * 10, token_budget=8)
    shards = [whole.shard(rank, 4, mode="repeat") for rank in range(4)]
    shared = [set(shard.repeated.tolist()) for shard in shards]
    seen = Counter(sample for shard in shards for sample in shard.sample_ids.tolist())
    twice = {sample for sample, times in seen.items() if times == 2}
    assert len(twice) == 2 and set().union(*shared) == twice
    assert sum(map(len, shared)) == 4, "both ranks that have a batch name it"
    assert not len(whole.shard(0, 4).repeated)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_saved_plan_comes_back_equal(tmp_path, strategy):
    made = plan([5, 300, 7, 9], strategy=strategy, on_oversize="drop", epoch=3, order="random").skip(0)
    made.save(tmp_path / "deep" / "plan.parquet")
    again = BatchPlan.load(tmp_path / "deep" / "plan.parquet")
    assert again == made and again.config == made.config
    assert {reason: ids.tolist() for reason, ids in again.left_out.items()} == {"over_budget": [1]}
    table = pq.read_table(tmp_path / "deep" / "plan.parquet")
    facts = json.loads(table.schema.metadata[b"dflash_lab.plan"])
    for changed, message in (({"epoch": 4}, "are not those that were written"), ({"checksum": None}, "are not those")):
        metadata = {"dflash_lab.plan": json.dumps({**facts, **changed})}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "changed.parquet")
        with pytest.raises(ValueError, match=rf"changed\.parquet.*{message}"):
            BatchPlan.load(tmp_path / "changed.parquet")
    (tmp_path / "other.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"other\.parquet is not a plan written by BatchPlan\.save"):
        BatchPlan.load(tmp_path / "other.parquet")


def test_validate_finds_what_is_broken():
    lengths = [96, 12, 12, 12, 96]
    made = plan(lengths, token_budget=144)
    one = plan([5, 5, 5], max_batch_size=1)
    bucketed = plan(lengths, token_budget=144, strategy="bucketed", bucket_bounds=(0, 50, 100))
    for whole, broken, message in (
        (made, {"sample_ids": [0, 1, 1, 3, 4]}, "more than one batch holds sample 1"),
        (made, {"sample_ids": [0, 1, 2, 3, 9]}, r"batches: ids outside \[0, 5\)"),
        (made, {"widths": [96, 13, 96]}, "the width is not the longest sample in batch 1"),
        (made, {"widths": [96, 12]}, "2 widths, 4 offsets and 3 bucket ids do not agree"),
        (one, {"widths": [5]}, "1 widths, 4 offsets and 3 bucket ids do not agree"),
        (made, {"offsets": [0, 2, 4, 5]}, "over token_budget: batch 0"),
        (made, {"offsets": []}, "3 widths, 0 offsets"),
        (made, {"offsets": [0], "widths": [], "bucket_ids": []}, "no batches"),
        (made, {"sample_lengths": [96]}, "not one length a sample"),
        (made, {"config": config(token_budget=144, max_batch_size=2)}, "more than max_batch_size samples in batch 1"),
        (made, {"bucket_ids": [0, 0, 0]}, "a bucket id in a plan of strategy as_given: batch 0"),
        (made, {"left_out": {"over_budget": [0]}}, "planned and left out, or left out twice: sample 0"),
        (made, {"left_out": {"dropped": [99]}}, r"dropped: ids outside \[0, 5\)"),
        (made, {"left_out": {"dropped": [-1]}}, r"dropped: ids outside \[0, 5\)"),
        (bucketed, {"bucket_ids": [-1] * len(bucketed)}, "a batch of another bucket at place 0"),
        (bucketed, {"config": replace(bucketed.config, bucket_bounds=None)}, "bucketed without bounds"),
    ):
        with pytest.raises(ValueError, match=f"broken plan: {message}"):
            replace(whole, **broken).validate(lengths[: len(whole.sample_ids)] if whole is not one else [5, 5, 5])
    with pytest.raises(ValueError, match="broken plan: left out as over_budget but fits: place 0"):
        replace(made.skip(1), left_out={"over_budget": [0]}).validate(lengths)
    with pytest.raises(ValueError, match="layout is 'loose'; legal: padded, packed"):
        replace(made, layout="loose")
    with pytest.raises(ValueError, match=r"sample_ids\[0\] is 0.7; legal: what int64 can hold"):
        replace(made, sample_ids=[0.7, 1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"bucket_ids\[1\] is 70000; legal: what int16 can hold"):
        replace(made, bucket_ids=[0, 70_000, 1])
    with pytest.raises(ValueError, match="neither planned nor left out: sample 5"):
        made.validate([*lengths, 12])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "lengths is empty"),
        ([[1, 2]], r"lengths has shape \(1, 2\)"),
        ([3, 0, 0], r"the length of sample 1 is 0 \(2 such samples\); legal: a whole number in \[1, 2147483647\]"),
        ([3, 2**31], "the length of sample 1 is 2147483648"),
        ([5, None, 7], "the length of sample 1 is None"),
        ([5, True], "the length of sample 1 is True"),
        ([5, [6, 7]], r"the length of sample 1 is \[6, 7\]"),
        ([3, -1], "the length of sample 1 is -1"),
        ([3, 2.5], "the length of sample 1 is 2.5"),
        ([3, float("nan")], "the length of sample 1 is nan"),
        ([5, "3"], "the length of sample 1 is 3"),
        ([True], "the length of sample 0 is True"),
    ],
)
def test_lengths_that_are_no_lengths_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        plan(lengths)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"strategy": "sort"},
            "strategy is 'sort'; legal: as_given, sorted, random, bucketed, capacity, pooled, packed",
        ),
        ({"order": "shuffle"}, "order is 'shuffle'; legal: as_built, random, no_repeat_naive, no_repeat, stride"),
        ({"window": 0}, "window is 0; legal: a whole number >= 1"),
        ({"pool_size": 0}, "pool_size is 0; legal: a whole number >= 1"),
        ({"num_cuts": -1}, "num_cuts is -1; legal: a whole number >= 0"),
        ({"strategy": "packed", "token_budget": 2**31}, "token_budget is 2147483648; legal for packed rows: at most"),
        ({"token_budget": 0}, "token_budget is 0; legal: a whole number >= 1"),
        ({"token_budget": 1.5}, "token_budget is 1.5; legal: a whole number >= 1"),
        ({"max_batch_size": True}, "max_batch_size is True; legal"),
        ({"max_seq_len": 2**31}, r"max_seq_len is 2147483648; legal: a whole number in \[1, 2147483647\]"),
        ({"seed": -1}, "seed is -1; legal: a whole number >= 0"),
        ({"bucket_bounds": (0,)}, r"bucket_bounds is \(0,\); legal: increasing whole numbers from 0"),
        ({"bucket_bounds": (1, 5)}, r"bucket_bounds is \(1, 5\)"),
        ({"bucket_bounds": (0, 5, 5)}, r"bucket_bounds is \(0, 5, 5\)"),
        ({"bucket_bounds": (0, 5.5)}, r"bucket_bounds is \(0, 5\.5\)"),
        ({"bucket_bounds": (0, 2**63)}, r"bucket_bounds is \(0, 9223372036854775808\); legal: .* at most 2147483648"),
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


def test_the_next_epoch_can_be_planned_ahead():
    lengths, settings = [8] * 24, config(strategy="random", order="random", token_budget=16)
    sampler, plain = EpochBatchSampler(lengths, settings), EpochBatchSampler(lengths, settings)
    for epoch, ahead in ((1, 1), (2, 5), (3, 3)):
        sampler.plan_ahead(ahead)
        sampler.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert sampler.plan == plain.plan and sampler.plan.epoch == epoch
    for begin in (sampler.plan_ahead, sampler.set_epoch):
        with pytest.raises(ValueError, match="epoch is -1; legal: a whole number >= 0"):
            begin(-1)
    sampler.plan_ahead(4)
    copied = pickle.loads(pickle.dumps(sampler))
    copied.set_epoch(4)
    sampler.set_epoch(4)
    assert copied.plan == sampler.plan


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
