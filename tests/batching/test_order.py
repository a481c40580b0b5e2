"""Orders of batches: nothing lost, buckets spread, and runs as short as they can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.batching import ORDERS, BatchingConfig, plan_epoch
from dflash_lab.batching.order import order_batches


def runs(sequence):
    sequence = np.asarray(sequence)
    edges = np.flatnonzero(np.diff(sequence)) + 1
    return np.diff(np.concatenate([[0], edges, [len(sequence)]]))


def ordered_buckets(order, counts, seed=0):
    buckets = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
    permutation = order_batches(order, buckets, np.ones(len(buckets)), np.random.default_rng(seed))
    assert sorted(permutation.tolist()) == list(range(len(buckets)))
    return buckets[permutation]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("order", ["stride", "no_repeat"])
def test_sixteen_eight_and_eight_batches_interleave(order, seed):
    buckets = ordered_buckets(order, [16, 8, 8], seed)
    assert runs(buckets).max() <= (2 if order == "stride" else 1)
    if order == "stride":
        assert all(3 <= np.count_nonzero(quarter == 0) <= 5 for quarter in np.split(buckets, 4))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), st.integers(0, 1000))
def test_no_repeat_has_the_least_possible_longest_run(counts, seed):
    largest, num_batches = max(counts), sum(counts)
    least = -(-largest // (num_batches - largest + 1))
    found = runs(ordered_buckets("no_repeat", counts, seed))
    assert found.max() == least
    # Not one repeat more than the majority forces.
    assert num_batches - len(found) == max(0, largest - (num_batches - largest) - 1)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 1000))
def test_stride_spreads_every_bucket_evenly(counts, seed):
    buckets = ordered_buckets("stride", counts, seed)
    for bucket, count in enumerate(counts):
        places = np.flatnonzero(buckets == bucket)
        # Batch j of m belongs to the j-th of m equal stretches; the others' rounding may move it by one place each.
        assert np.abs((places + 0.5) / len(buckets) - (np.arange(count) + 0.5) / count).max() <= (
            0.5 / count + (len(counts) + 0.5) / len(buckets)
        )


def test_the_majority_of_the_source_run_runs_no_longer_than_two():
    counts = [3_200, 3_900, 4_400, 5_200, 5_640, 24_000]
    assert runs(ordered_buckets("no_repeat", counts)).max() == 2
    assert runs(ordered_buckets("random", counts)).max() > 8


def test_no_repeat_draws_at_random_by_what_is_left():
    first = [ordered_buckets("no_repeat", [30, 20, 10], seed)[0] for seed in range(600)]
    shares = np.bincount(first, minlength=3) / 600
    assert np.abs(shares - [1 / 2, 1 / 3, 1 / 6]).max() < 0.08


@pytest.mark.parametrize("order", ORDERS)
def test_orders_without_buckets_go_by_mean_length(order):
    lengths = np.random.default_rng(0).integers(1, 100, 2_000)
    settings = BatchingConfig(strategy="sorted", order=order, token_budget=200, max_seq_len=100)
    made = plan_epoch(lengths, settings, epoch=0)
    made.validate(lengths)
    classes = np.argsort(np.argsort(made.widths, kind="stable")) * 6 // len(made)
    if order in ("stride", "no_repeat"):
        assert runs(classes).max() <= 5
    if order == "as_built":
        assert (np.diff(made.widths) <= 0).all()


def test_which_batch_of_a_bucket_comes_when_is_a_matter_of_chance():
    buckets = np.zeros(50, dtype=np.int16)
    for order in ("stride", "no_repeat", "random"):
        permutation = order_batches(order, buckets, np.ones(50), np.random.default_rng(0))
        assert permutation.tolist() != list(range(50))
