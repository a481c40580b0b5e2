"""Who shares a batch: the fewest batches, rows without padding, pools; the same plans everywhere."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.batching import (
    ORDERS,
    SOURCE_RUN_BUCKET_BOUNDS,
    STRATEGIES,
    BatchingConfig,
    least_possible_batches,
    plan_epoch,
)
from dflash_lab.batching.draws import Draws
from dflash_lab.data import source_run_lengths


def plan(lengths, *, epoch=0, **changes):
    settings = {"strategy": "capacity", "order": "as_built", "token_budget": 128, "max_seq_len": 8192, **changes}
    return plan_epoch(lengths, BatchingConfig(**settings), epoch=epoch)


def fewest_by_trying(lengths, budget, cap):
    """Least number of batches over all set partitions, by filling each batch with the longest sample left."""
    if not lengths:
        return 0
    first, rest = lengths[0], lengths[1:]
    fit = min(cap, budget // first)
    best = len(lengths)
    for size in range(min(fit - 1, len(rest)) + 1):
        for chosen in itertools.combinations(range(len(rest)), size):
            left = [length for i, length in enumerate(rest) if i not in chosen]
            best = min(best, 1 + fewest_by_trying(left, budget, cap))
    return best


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(12, 40), st.integers(1, 5))
def test_the_least_possible_is_what_trying_everything_finds(lengths, budget, cap):
    expected = fewest_by_trying(sorted(lengths, reverse=True), budget, cap)
    assert least_possible_batches(lengths, budget, cap) == expected


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=120),
    st.integers(90, 400),
    st.integers(1, 20),
    st.sampled_from([0, 1, 5, 64]),
    st.integers(0, 9),
)
def test_capacity_and_sorted_have_the_fewest_batches(lengths, budget, cap, num_cuts, epoch):
    least = least_possible_batches(lengths, budget, cap)
    for strategy in ("capacity", "sorted"):
        made = plan(lengths, strategy=strategy, token_budget=budget, max_batch_size=cap, num_cuts=num_cuts, epoch=epoch)
        assert len(made) == least


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([3, 0], 10, 4), "the length of sample 1 is 0"),
        (([3, 11], 10, 4), "token_budget is 10; legal: a whole number >= 11"),
        (([3], 10, 0), "max_batch_size is 0; legal: a whole number >= 1"),
    ],
)
def test_the_least_possible_refuses_what_no_plan_can_have(arguments, message):
    with pytest.raises(ValueError, match=message):
        least_possible_batches(*arguments)


def test_capacity_shuffles_inside_a_class_and_cuts_keep_lengths_alike():
    lengths = np.random.default_rng(0).integers(33, 65, 6_400)
    whole, cut = (plan(lengths, token_budget=6_400, max_batch_size=100, num_cuts=cuts) for cuts in (0, 32))
    assert cut.padding_efficiency > whole.padding_efficiency + 0.005
    for cuts in (0, 32):
        first, second = (plan(lengths, max_batch_size=2, num_cuts=cuts, epoch=epoch) for epoch in (0, 1))
        assert len({frozenset(b) for b in first} & {frozenset(b) for b in second}) < 0.1 * len(first)


def test_a_batch_that_a_class_does_not_fill_is_filled_from_the_next():
    # Four fit of 30, two of 50: the third long one takes a short one with it.
    made = plan([30] * 5 + [50, 50, 50], num_cuts=0)
    assert [sorted(made.sample_lengths[a:b]) for a, b in itertools.pairwise(made.offsets)] == [
        [50, 50],
        [30, 50],
        [30, 30, 30, 30],
    ]
    # Carried the other way, into the class of longer samples, two short ones would need two batches of their own.
    assert sorted(map(len, plan([1, 1, 46], token_budget=90, max_batch_size=3))) == [1, 2]


def test_pools_are_sorted_inside_and_shuffled_among_each_other():
    lengths = np.random.default_rng(0).integers(1, 100, 1_000)
    made = plan(lengths, strategy="pooled", pool_size=50, token_budget=400)
    ends = np.cumsum(made.batch_sizes)
    assert set(range(50, 1_001, 50)) <= set(ends.tolist()), "no batch reaches over the end of a pool"
    for pool in made.sample_lengths.reshape(20, 50):
        assert (np.diff(pool) <= 0).all()
    assert len({frozenset(b) for b in made} & {frozenset(b) for b in plan(lengths, strategy="pooled", epoch=1)}) < 20


def test_rows_are_closed_with_what_is_exactly_left():
    lengths = np.random.default_rng(0).integers(20, 300, 20_000)
    made = plan(lengths, strategy="packed", token_budget=4_096)
    made.validate(lengths)
    assert made.layout == "packed" and made.budget_use >= 0.998
    assert made.padding_efficiency == made.budget_use
    # Only 280 lengths to choose from: nine rows of ten close exactly, the others within a few tokens.
    assert (made.real_tokens_by_batch[:-20] == 4_096).mean() > 0.8
    again = plan(lengths, strategy="packed", token_budget=4_096, epoch=1)
    assert not {frozenset(batch) for batch in made} & {frozenset(batch) for batch in again}


def test_rows_keep_the_cap_and_still_fill_up():
    lengths = np.random.default_rng(0).integers(20, 300, 5_000)
    capped = plan(lengths, strategy="packed", token_budget=4_096, max_batch_size=16)
    assert capped.batch_sizes.max() == 16
    # 16 samples of the mean length fill 0.62 of the budget; no plan of 16 a row can do better.
    assert len(capped) <= np.ceil(len(lengths) / 16) + 3


def test_the_source_runs_lengths_at_full_size():
    lengths = source_run_lengths()
    settings = {"token_budget": 49_152, "bucket_bounds": SOURCE_RUN_BUCKET_BOUNDS, "max_batch_size": 64}
    capacity = plan(lengths, **settings)
    capacity.validate(lengths)
    assert len(capacity) == least_possible_batches(lengths, 49_152, 64) == 41_088
    assert capacity.padding_efficiency >= 0.985
    packed = plan(lengths, strategy="packed", **settings)
    packed.validate(lengths)
    assert packed.budget_use >= 0.999 and packed.batch_sizes.max() <= 64
    pooled = plan(lengths, strategy="pooled", **settings)
    assert len(pooled) <= 41_300 and pooled.padding_efficiency >= 0.995


SHAPES = {
    "smooth": source_run_lengths(2_000),
    "atom at the cut": np.minimum(source_run_lengths(2_000), 1_500),
    "short and narrow": np.random.default_rng(0).lognormal(np.log(190), 0.34, 2_000).astype(int),
    "bimodal": np.concatenate([np.full(500, 70), np.random.default_rng(0).integers(4_000, 4_100, 300)]),
    "all equal": np.full(777, 321),
    "one giant": np.append(np.full(500, 33), 8_000),
    "one sample": np.array([5]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_shapes_of_lengths_pass_every_strategy_order_and_shard(strategy, shape):
    lengths = SHAPES[shape]
    for order in ORDERS:
        made = plan(lengths, strategy=strategy, order=order, token_budget=8_192, max_batch_size=64)
        made.validate(lengths)
        if len(made) >= 3:
            for rank in range(3):
                made.shard(rank, 3).validate(lengths)


# Hashes of plans of 3,000 source-run lengths, written with numpy 2.4 and pyarrow-free code on x86-64. They change when
# a strategy or an order draws in another way, and for no other reason: not with numpy, and not with the machine.
STORED = {
    "as_given/as_built": "d06af7e30b36e94dd43a5de1b79d3311",
    "as_given/random": "6fb7e7503a5afb655d74e64e9a369d40",
    "as_given/no_repeat_naive": "96d008d9f2ac787bcf39e0c8e382f671",
    "as_given/no_repeat": "96d008d9f2ac787bcf39e0c8e382f671",
    "as_given/stride": "1fe1006e4e9b6e317130caca029ee0cf",
    "as_given/low_discrepancy": "8b77274d7f862cea085b8f6bc9d4d3b7",
    "as_given/window_strata": "7e3aef5f5593e6b21f26cd6542c27042",
    "as_given/window_balanced": "4bb93ce9ab4499cf8d0ab8a83c14b2a3",
    "sorted/as_built": "98736151ee48a47ecc7c0de2ca9e9490",
    "sorted/random": "f891f614194455459abdb6248fe451e5",
    "sorted/no_repeat_naive": "bb04c9daccc40e11174c3334d975b3da",
    "sorted/no_repeat": "bb04c9daccc40e11174c3334d975b3da",
    "sorted/stride": "a29ba92d96e9078cc77b4f7208324c14",
    "sorted/low_discrepancy": "a8e396fbee27cac26dd70917e6394c35",
    "sorted/window_strata": "7344c253f5aa0558e0db761f6bece6dd",
    "sorted/window_balanced": "44584690fbdfcd89ddbde76173d8393c",
    "random/as_built": "adc27e981e5846c078c5dd6966663115",
    "random/random": "4afa2275995c0c1475e569c28adb18e2",
    "random/no_repeat_naive": "d7d2c0fd6b3800e52f143007a3e680a4",
    "random/no_repeat": "d7d2c0fd6b3800e52f143007a3e680a4",
    "random/stride": "0551db8f1dfd5774cb5e19a5502e0897",
    "random/low_discrepancy": "6075164d7eda8769fee26a80d6dcc50c",
    "random/window_strata": "be123569d9618049b293622f1aee9439",
    "random/window_balanced": "0485e7455621b2abcf4796baa921f7f8",
    "bucketed/as_built": "5bfc77860176c4fb56fd625e928c94cd",
    "bucketed/random": "a89384efa418556521709a40b9d44fed",
    "bucketed/no_repeat_naive": "b7fae13bbace48c6b31f45eeb71c57b4",
    "bucketed/no_repeat": "5591b920582c81b5af11a21ed1303d4f",
    "bucketed/stride": "17395f805447ffc6bb5c9dc928ea6300",
    "bucketed/low_discrepancy": "acf0dbf69e6e5204ce146f18f48ce614",
    "bucketed/window_strata": "a5d5ef2f09ce9f808fbb35288966d262",
    "bucketed/window_balanced": "dd4bd00e2b5ed5f4631473e3488b05ca",
    "capacity/as_built": "ac6794cb32a1269747f62660c8f16143",
    "capacity/random": "4d4ec703433d2008682e9b4638f2ac61",
    "capacity/no_repeat_naive": "512bf295beb9da68710335ba8aefc572",
    "capacity/no_repeat": "512bf295beb9da68710335ba8aefc572",
    "capacity/stride": "dc9fbd1aa5da4cda91b742b8131a023c",
    "capacity/low_discrepancy": "5db2070d95fd9ba0b906080f1f896f0a",
    "capacity/window_strata": "3e1a97e14263db4392c58a4b9e325d26",
    "capacity/window_balanced": "32b375619f0f60f0b03db6a503cc8470",
    "pooled/as_built": "c283fb537c546cfa1fe2f2c350cb2a37",
    "pooled/random": "1d332deaf8bee272d95d828f58f92ead",
    "pooled/no_repeat_naive": "824bb740c84d7fcbb55b2f77b5570076",
    "pooled/no_repeat": "824bb740c84d7fcbb55b2f77b5570076",
    "pooled/stride": "64e168d80fa8d39d097084553b13bc29",
    "pooled/low_discrepancy": "b915f99aab85881153e0001ebd7b11af",
    "pooled/window_strata": "d1d5a978d0e4392a953a541dc262a4ba",
    "pooled/window_balanced": "129272e98fa3d2213cda068ab152c1e7",
    "packed/as_built": "59e650d8380a93cb49ee941c2c5e046e",
    "packed/random": "55c4c806bc64d936967d7c1de24223ab",
    "packed/no_repeat_naive": "47f07d90bc2eecd9844a99873e0b3e57",
    "packed/no_repeat": "47f07d90bc2eecd9844a99873e0b3e57",
    "packed/stride": "210220ec0ca15ffa332a7abe9b0459f5",
    "packed/low_discrepancy": "52b01be40f2b21c57308edb12288171a",
    "packed/window_strata": "60a089452ea7d9fdfa0aa924fd534d14",
    "packed/window_balanced": "c5888afc3c188050c06c6d8bafa6b4f9",
}


@pytest.mark.parametrize("name", [f"{strategy}/{order}" for strategy in STRATEGIES for order in ORDERS])
def test_plans_are_the_same_under_any_numpy(name):
    strategy, order = name.split("/")
    made = plan(
        source_run_lengths(3_000, seed=1), strategy=strategy, order=order, token_budget=16_384, seed=7, epoch=2,
        bucket_bounds=SOURCE_RUN_BUCKET_BOUNDS,
    )  # fmt: skip
    assert made.fingerprint == STORED[name]


def test_draws_are_the_raw_stream_and_nothing_else():
    words = np.random.PCG64(np.random.SeedSequence((0x706C616E, 7, 2))).random_raw(4)
    assert Draws(7, 2).uniform(4).tolist() == [(int(word) >> 11) / 2**53 for word in words]
    # Two 16-bit numbers a sample out of each word, least significant first: sorted as 32-bit keys.
    keys = [int(word) >> (32 * half) & 0xFFFFFFFF for word in words for half in (0, 1)]
    assert Draws(7, 2).permutation(8).tolist() == sorted(range(8), key=keys.__getitem__)


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=200), st.integers(0, 99))
def test_shuffles_keep_to_their_groups(groups, seed):
    order = Draws(seed, 0).shuffle_within(np.asarray(groups, dtype=np.uint32))
    assert sorted(order.tolist()) == list(range(len(groups)))
    assert np.asarray(groups)[order].tolist() == sorted(groups)


def test_every_order_of_a_shuffle_is_as_likely():
    counts = np.zeros(24)
    orders = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    for seed in range(4_800):
        counts[orders[tuple(Draws(seed, 0).permutation(4).tolist())]] += 1
    # Chi-square of 23 degrees of freedom lies under 49.7 with probability 0.999.
    assert ((counts - 200) ** 2 / 200).sum() < 49.7
