"""Bounds that no others beat: brute force, hand-worked cases, simulation, and the source run's figures."""

import itertools
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_lab.batching import SOURCE_RUN_BUCKET_BOUNDS, BatchingConfig, plan_epoch
from dflash_lab.batching.optimal_bounds import (
    BoundsPoint,
    bounds_curve,
    expected_batches,
    least_batches_bounds,
    least_padding_bounds,
    padding_cost,
)
from dflash_lab.data import source_run_lengths

SOURCE_RUN = {"token_budget": 49_152, "max_batch_size": 64}


def bucket_batches(bucket, token_budget, max_batch_size):
    """N / E, term by term as it is written down."""
    terms = ((np.count_nonzero(bucket * m <= token_budget) / len(bucket)) ** m for m in range(1, max_batch_size + 1))
    return len(bucket) / math.fsum(terms)


def partitions(num_distinct, num_buckets):
    """Every way to cut `num_distinct` lengths into at most `num_buckets` buckets, fewest buckets first."""
    for num_inner in range(min(num_buckets, num_distinct)):
        for inner in itertools.combinations(range(1, num_distinct), num_inner):
            yield (0, *inner, num_distinct)


def costs_of_partitions(lengths, num_buckets, bucket_cost):
    """The cost of every partition: edges -> cost."""
    distinct = np.unique(lengths)
    cost = {
        (a, b): bucket_cost(lengths[(lengths >= distinct[a]) & (lengths <= distinct[b - 1])])
        for a, b in itertools.combinations(range(len(distinct) + 1), 2)
    }
    return {
        edges: sum(cost[pair] for pair in itertools.pairwise(edges)) for edges in partitions(len(distinct), num_buckets)
    }


def as_bounds(lengths, edges):
    distinct = np.unique(lengths)
    return (0, *(int(distinct[edge - 1]) + 1 for edge in edges[1:]))


def random_case(rng):
    """Lengths with up to 8 distinct values, atoms among them, and settings."""
    values = rng.choice(int(rng.choice([8, 20, 100, 1000])), int(rng.integers(1, 9)), replace=False) + 1
    lengths = rng.choice(values, int(rng.integers(1, 30)))
    if rng.random() < 0.4:
        lengths = np.append(lengths, np.full(int(rng.integers(1, 300)), rng.choice(values)))
    token_budget = int(lengths.max() * rng.choice([1, 1.3, 2, 5, 30]))
    max_batch_size = int(rng.choice([1, 2, 5, 64]))
    return lengths, int(rng.integers(1, 11)), token_budget, max_batch_size


# Brute force: every cut of the distinct lengths.


def test_no_cut_pads_less_and_of_equal_ones_the_first_from_behind_is_given():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        lengths, num_buckets, _, _ = random_case(rng)
        costs = costs_of_partitions(lengths, num_buckets, lambda bucket: int(bucket.max()) * len(bucket))
        least = min(costs.values())
        bounds = least_padding_bounds(lengths, num_buckets)
        assert padding_cost(lengths, bounds) == least
        winner = min((edges for edges, cost in costs.items() if cost == least), key=lambda edges: edges[::-1])
        assert bounds == as_bounds(lengths, winner)


def test_no_cut_makes_fewer_batches_and_of_equal_ones_the_fewest_buckets_are_given():
    rng = np.random.default_rng(1)
    for _ in range(2500):
        lengths, num_buckets, token_budget, max_batch_size = random_case(rng)
        settings = {"token_budget": token_budget, "max_batch_size": max_batch_size}
        costs = costs_of_partitions(
            lengths,
            num_buckets,
            lambda bucket, token_budget=token_budget, max_batch_size=max_batch_size: bucket_batches(
                bucket, token_budget, max_batch_size
            ),
        )
        least = min(costs.values())
        bounds = least_batches_bounds(lengths, num_buckets, **settings)
        assert expected_batches(lengths, bounds, **settings) == pytest.approx(least, rel=1e-12, abs=0)
        equal = [as_bounds(lengths, edges) for edges, cost in costs.items() if cost <= least * (1 + 1e-12)]
        assert bounds in equal
        assert len(bounds) == min(map(len, equal))


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=6),
    num_buckets=st.integers(1, 8),
    room=st.integers(0, 2**40),
    max_batch_size=st.integers(1, 300),
)
def test_any_numbers_will_do(lengths, num_buckets, room, max_batch_size):
    lengths = np.asarray(lengths)
    settings = {"token_budget": int(lengths.max()) + room, "max_batch_size": max_batch_size}
    padded = costs_of_partitions(lengths, num_buckets, lambda bucket: int(bucket.max()) * len(bucket))
    assert padding_cost(lengths, least_padding_bounds(lengths, num_buckets)) == min(padded.values())
    batches = costs_of_partitions(lengths, num_buckets, lambda bucket: bucket_batches(bucket, **settings))
    bounds = least_batches_bounds(lengths, num_buckets, **settings)
    assert expected_batches(lengths, bounds, **settings) == pytest.approx(min(batches.values()), rel=1e-12, abs=0)


def test_the_curve_gives_what_the_functions_give():
    rng = np.random.default_rng(2)
    for _ in range(100):
        lengths, _, token_budget, max_batch_size = random_case(rng)
        settings = {"token_budget": token_budget, "max_batch_size": max_batch_size}
        curve = bounds_curve(lengths, **settings, num_buckets=[3, 1, 12, 2])
        for point, number in zip(curve, [3, 1, 12, 2], strict=True):
            least_padding = least_padding_bounds(lengths, number)
            least_batches = least_batches_bounds(lengths, number, **settings)
            assert point == BoundsPoint(
                num_buckets=number,
                least_padding=least_padding,
                padding_cost=padding_cost(lengths, least_padding),
                least_batches=least_batches,
                expected_batches=expected_batches(lengths, least_batches, **settings),
                exact=True,
            )
    with pytest.raises(FrozenInstanceError):
        curve[0].padding_cost = 0


# Worked by hand.


def test_two_lengths():
    lengths = [10, 10, 10, 30]
    assert least_padding_bounds(lengths, 1) == (0, 31)
    assert padding_cost(lengths, (0, 31)) == 120
    assert least_padding_bounds(lengths, 2) == (0, 11, 31)
    assert padding_cost(lengths, (0, 11, 31)) == 60
    # Alone, 6 of 10 tokens fit and 2 of 30: 3/6 + 1/2 batches. Together F is 1 for m <= 2 and 3/4 for m = 3 to 6.
    settings = {"token_budget": 60, "max_batch_size": 64}
    assert expected_batches(lengths, (0, 11, 31), **settings) == 1.0
    together = 4 / (2 + sum(0.75**m for m in (3, 4, 5, 6)))
    assert expected_batches(lengths, (0, 31), **settings) == pytest.approx(together, rel=1e-15)
    assert least_batches_bounds(lengths, 2, **settings) == (0, 11, 31)


def test_the_longest_sample_counts_and_not_the_upper_bound():
    assert padding_cost([5, 7, 7], (0, 6, 1000)) == 5 + 14
    assert padding_cost([5, 7, 7], (0, 2, 3, 6, 7)) == 5 + 14, (
        "longer ones belong to the last bucket, empty ones are free"
    )
    assert expected_batches([5, 7, 7], (0, 2, 3, 6, 1000), token_budget=14, max_batch_size=9) == 1 / 2 + 2 / 2
    assert expected_batches([5, 7, 7], (0, 2**31), token_budget=14, max_batch_size=9) == 3 / 2


def test_a_cut_between_samples_of_which_equally_many_fit_is_left_out():
    lengths = [5, 6, 7, 8, 20, 21]
    assert least_batches_bounds(lengths, 6, token_budget=63, max_batch_size=4) == (0, 9, 22)
    assert least_batches_bounds(lengths, 6, token_budget=63, max_batch_size=3) == (0, 22)


def test_one_length_and_one_sample():
    for lengths in ([7], [7] * 100):
        for number in (1, 2, 50):
            assert least_padding_bounds(lengths, number) == (0, 8)
            assert least_batches_bounds(lengths, number, token_budget=7, max_batch_size=3) == (0, 8)
        assert expected_batches(lengths, (0, 8), token_budget=21, max_batch_size=64) == len(lengths) / 3


def test_more_buckets_than_lengths_give_one_a_length():
    assert least_padding_bounds([3, 1, 9, 3], 3) == (0, 2, 4, 10)
    assert least_padding_bounds([3, 1, 9, 3], 10**9) == (0, 2, 4, 10)
    assert least_batches_bounds([3, 1, 9, 3], 10**9, token_budget=9, max_batch_size=9) == (0, 2, 4, 10)


def test_many_buckets_are_no_slower_than_useful_ones():
    bounds = least_batches_bounds(np.arange(1, 2001), 1500, token_budget=8000, max_batch_size=8)
    assert bounds == (0, 1001, 1143, 1334, 1601, 2001), "one a capacity: 8, 7, 6, 5 and 4 fit"


def test_the_best_bound_may_lie_where_equally_many_samples_fit():
    lengths = np.repeat([1, 100, 128], [1000, 50, 450])
    settings = {"token_budget": 128, "max_batch_size": 64}
    assert least_batches_bounds(lengths, 2, **settings) == (0, 101, 129)
    assert expected_batches(lengths, (0, 101, 129), **settings) == pytest.approx(504.8, abs=0.05)
    changes = {128 // m + 1 for m in range(1, 65)}
    assert 101 not in changes
    at_changes = [expected_batches(lengths, (0, bound, 129), **settings) for bound in changes - {129}]
    assert min(at_changes) == pytest.approx(515.6, abs=0.05)


def test_huge_settings_cost_nothing_and_lose_no_digits():
    # A million samples fit of the short length and one of the long: E = 1 + F**2 + ... + F**1,000,000.
    lengths = [1] * 999 + [10**6]
    share = 0.999
    expected = 1000 / (1 + (share**2 - share**1_000_001) / (1 - share))
    settings = {"token_budget": 10**6, "max_batch_size": 10**9}
    assert expected_batches(lengths, (0, 10**6 + 1), **settings) == pytest.approx(expected, rel=1e-12, abs=0)
    assert least_batches_bounds(lengths, 2, **settings) == (0, 2, 10**6 + 1)
    assert expected_batches(lengths, (0, 2, 10**6 + 1), **settings) == 999 / 10**6 + 1
    assert expected_batches([5], (0, 6), token_budget=2**62, max_batch_size=2**62) == pytest.approx(5 / 2**62)


def test_candidates_are_fewer_bounds_and_the_point_says_so():
    lengths = np.random.default_rng(0).lognormal(6, 1, 20_000).clip(1, 4096).astype(np.int64)
    settings = {"token_budget": 16_384, "max_batch_size": 64}
    best = expected_batches(lengths, least_batches_bounds(lengths, 6, **settings), **settings)
    for num_candidates in (1, 2, 30, 200, 1000):
        bounds = least_batches_bounds(lengths, 6, **settings, num_candidates=num_candidates)
        assert len(bounds) - 1 <= min(6, num_candidates + 1)
        assert expected_batches(lengths, bounds, **settings) >= best * (1 - 1e-12)
        (point,) = bounds_curve(lengths, **settings, num_buckets=[6], num_candidates=num_candidates)
        assert (point.least_batches, point.exact) == (bounds, False)
    assert expected_batches(lengths, bounds, **settings) <= best * (1 + 1e-3)
    num_distinct = len(np.unique(lengths))
    assert bounds_curve(lengths, **settings, num_buckets=[2], num_candidates=num_distinct)[0].exact


def test_the_order_and_kind_of_the_lengths_do_not_matter():
    lengths = source_run_lengths(3000)
    for other in (np.sort(lengths), lengths.astype(np.int64), lengths.astype(np.float64), lengths.tolist()):
        assert least_padding_bounds(other, 5) == least_padding_bounds(lengths, 5)
        assert least_batches_bounds(other, 5, **SOURCE_RUN) == least_batches_bounds(lengths, 5, **SOURCE_RUN)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_buckets": 0}, "num_buckets is 0; legal: a whole number >= 1"),
        ({"num_buckets": 2.0}, "num_buckets is 2.0; legal: a whole number >= 1"),
        ({"num_buckets": True}, "num_buckets is True; legal: a whole number >= 1"),
        ({"lengths": []}, "lengths is empty; legal: at least one sample"),
        ({"lengths": [3, 0]}, "the length of sample 1 is 0"),
        ({"lengths": [3, 2.5]}, "the length of sample 1 is 2.5"),
        ({"lengths": [3, 99, 98]}, r"sample 1 has 99 tokens, more than token_budget 64 \(2 such samples\)"),
        ({"token_budget": 0}, "token_budget is 0; legal: a whole number in"),
        ({"token_budget": 2**63}, "token_budget is 9223372036854775808; legal: a whole number in"),
        ({"max_batch_size": 0}, "max_batch_size is 0; legal: a whole number in"),
        ({"num_candidates": 0}, "num_candidates is 0; legal: a whole number >= 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    asked = {"lengths": [3, 4], "num_buckets": 2, "token_budget": 64, "max_batch_size": 8, **changes}
    with pytest.raises(ValueError, match=message):
        least_batches_bounds(asked.pop("lengths"), asked.pop("num_buckets"), **asked)
    asked = {"lengths": [3, 4], "num_buckets": 2, "token_budget": 64, "max_batch_size": 8, **changes}
    with pytest.raises(ValueError, match=message):
        bounds_curve(**asked | {"num_buckets": [asked["num_buckets"]]})
    if set(changes) <= {"num_buckets", "lengths"} and 99 not in asked["lengths"]:
        with pytest.raises(ValueError, match=message):
            least_padding_bounds(asked["lengths"], asked["num_buckets"])


def test_costs_refuse_illegal_bounds_and_an_empty_curve():
    for bounds in ((0,), (1, 5), (0, 5, 5), (0, 2.5), None):
        with pytest.raises(ValueError, match="bucket_bounds is .*; legal: increasing whole numbers"):
            padding_cost([3, 4], bounds)
        with pytest.raises(ValueError, match="bucket_bounds is .*; legal: increasing whole numbers"):
            expected_batches([3, 4], bounds, token_budget=64, max_batch_size=8)
    with pytest.raises(ValueError, match="sample 0 has 3 tokens, more than token_budget 2"):
        expected_batches([3, 1], (0, 5), token_budget=2, max_batch_size=8)
    with pytest.raises(ValueError, match="num_buckets is empty; legal: at least one number of buckets"):
        bounds_curve([3, 4], token_budget=64, max_batch_size=8, num_buckets=[])


# Simulation.


def test_the_expected_number_that_fits_is_what_random_draws_give():
    rng = np.random.default_rng(3)
    lengths = source_run_lengths(5000)
    for token_budget, max_batch_size in ((8_192, 64), (20_000, 8), (49_152, 64)):
        cost = expected_batches(lengths, (0, 8192), token_budget=token_budget, max_batch_size=max_batch_size)
        draws = rng.choice(lengths, (20_000, max_batch_size))
        fits = np.maximum.accumulate(draws, axis=1) * np.arange(1, max_batch_size + 1) <= token_budget
        counts = fits.sum(axis=1)  # cost rises along a row, so once over it stays over
        error = counts.std() / math.sqrt(len(counts))
        assert abs(counts.mean() - len(lengths) / cost) < 4 * error


def mean_batches(lengths, bounds, *, epochs):
    config = BatchingConfig(strategy="bucketed", bucket_bounds=bounds, max_seq_len=8192, **SOURCE_RUN)
    counts = [len(plan_epoch(lengths, config, epoch=epoch)) for epoch in range(epochs)]
    return float(np.mean(counts)), float(np.std(counts, ddof=1) / math.sqrt(epochs))


def test_plans_have_the_expected_batches_and_the_stated_few_more():
    lengths = source_run_lengths(100_000)
    best = least_batches_bounds(lengths, 6, **SOURCE_RUN)
    excess = {}
    for bounds in (SOURCE_RUN_BUCKET_BOUNDS, best, (0, 8192)):
        expected = expected_batches(lengths, bounds, **SOURCE_RUN)
        mean, error = mean_batches(lengths, bounds, epochs=10)
        # Half a batch a bucket for its last one; the rest is the sample that did not fit and opens the next batch.
        excess[bounds] = (mean - (len(bounds) - 1) / 2) / expected - 1
        assert error / expected < 0.001
    # Measured at 902,087: 0.24 %, 0.21 % and 1.3 %.
    assert 0.001 < excess[SOURCE_RUN_BUCKET_BOUNDS] < 0.004
    assert 0.001 < excess[best] < 0.004
    assert 0.010 < excess[0, 8192] < 0.016


def test_plans_have_exactly_the_expected_batches_where_equally_many_samples_fit():
    lengths = source_run_lengths(20_000)
    bounds = tuple(sorted({0, 8192, *(bound for m in range(1, 65) if (bound := 49_152 // m + 1) < 8192)}))
    expected = expected_batches(lengths, bounds, **SOURCE_RUN)
    mean, error = mean_batches(lengths, bounds, epochs=3)
    assert error == 0
    assert expected <= mean < expected + len(bounds) - 1, "every bucket's last batch rounds up"


# The source run, at its size. Figures of the bounds chosen by hand, and of the best.


@pytest.fixture(scope="module")
def source_run():
    return source_run_lengths()


def test_source_run_bounds_chosen_by_hand(source_run):
    assert expected_batches(source_run, SOURCE_RUN_BUCKET_BOUNDS, **SOURCE_RUN) == pytest.approx(46_229, abs=0.5)
    padded = padding_cost(source_run, SOURCE_RUN_BUCKET_BOUNDS)
    assert source_run.sum(dtype=np.int64) / padded == pytest.approx(0.715, abs=0.0005)


def test_source_run_best_bounds(source_run):
    curve = {point.num_buckets: point for point in bounds_curve(source_run, **SOURCE_RUN)}
    assert list(curve) == list(range(1, 33))
    tokens = source_run.sum(dtype=np.int64)
    for number, efficiency, batches in ((6, 0.834, 45_878), (8, 0.871, 44_157), (16, 0.935, 42_080)):
        assert tokens / curve[number].padding_cost == pytest.approx(efficiency, abs=0.0005)
        assert curve[number].expected_batches == pytest.approx(batches, abs=0.5)
    assert curve[6].least_padding == (0, 875, 1427, 2094, 3166, 5786, 8192)
    assert curve[6].least_batches == (0, 863, 1405, 2049, 3277, 5462, 8192)
    assert curve[8].least_batches == (0, 769, 1118, 1490, 1891, 2458, 3511, 5462, 8192)
    changes = {49_152 // m + 1 for m in range(1, 65)} | {0, 8192}
    assert all(set(point.least_batches) <= changes for point in curve.values())
    for fewer, more in itertools.pairwise(curve.values()):
        assert more.padding_cost < fewer.padding_cost
        assert more.expected_batches < fewer.expected_batches
    assert all(point.exact for point in curve.values())
    assert least_batches_bounds(source_run, 6, **SOURCE_RUN) == curve[6].least_batches
    assert least_padding_bounds(source_run, 32) == curve[32].least_padding
