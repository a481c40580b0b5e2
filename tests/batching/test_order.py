"""Orders of batches: nothing lost, buckets spread, and runs as short as they can be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.batching import ORDERS, SOURCE_RUN_BUCKET_BOUNDS, BatchingConfig, bucket_of, plan_epoch
from dflash_lab.batching.draws import Draws
from dflash_lab.batching.order import order_batches
from dflash_lab.batching.packing import Packing
from dflash_lab.batching.windows import low_discrepancy, window_strata
from dflash_lab.data import source_run_lengths


def runs(sequence):
    sequence = np.asarray(sequence)
    edges = np.flatnonzero(np.diff(sequence)) + 1
    return np.diff(np.concatenate([[0], edges, [len(sequence)]]))


def ordered(order, buckets, seed):
    """Order batches of one sample each, all of one length."""
    packing = Packing(np.arange(len(buckets)), np.arange(len(buckets) + 1), buckets)
    settings = BatchingConfig(strategy="as_given", order=order, token_budget=1, max_seq_len=1)
    return order_batches(packing, np.ones(len(buckets), dtype=np.int64), settings, Draws(seed, 0))


def ordered_buckets(order, counts, seed=0):
    buckets = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
    permutation = ordered(order, buckets, seed)
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
        permutation = ordered(order, buckets, 0)
        assert permutation.tolist() != list(range(50))


def window_figures(made, lengths, window=4):
    """Total variation of the windows' token mix over the source run's buckets, and CV of their mean lengths."""
    bounds = SOURCE_RUN_BUCKET_BOUNDS
    num_windows = len(made) // window
    batch = np.repeat(np.arange(len(made)), made.batch_sizes)
    inside = batch < num_windows * window
    cells = (batch // window)[inside] * 6 + bucket_of(made.sample_lengths[inside], bounds)
    tokens = np.bincount(cells, weights=made.sample_lengths[inside], minlength=num_windows * 6).reshape(-1, 6)
    data_mix = np.bincount(bucket_of(lengths, bounds), weights=lengths, minlength=6) / lengths.sum()
    samples = made.batch_sizes[: num_windows * window].reshape(-1, window).sum(axis=1)
    totals = tokens.sum(axis=1)
    means = totals / samples
    variation = np.abs(tokens / totals[:, None] - data_mix).sum(axis=1).mean() / 2
    return variation, means.std() / means.mean()


@pytest.mark.parametrize("order", ["window_strata", "window_balanced"])
def test_windows_are_fair_samples_of_the_source_runs_lengths(order):
    lengths = source_run_lengths(200_000)
    config = BatchingConfig(
        strategy="capacity", order=order, token_budget=49_152, max_seq_len=8_192, bucket_bounds=SOURCE_RUN_BUCKET_BOUNDS
    )
    figures = []
    for seed in range(5):
        made = plan_epoch(lengths, replace(config, seed=seed), epoch=0)
        figures.append(window_figures(made, lengths))
        mean_buckets = bucket_of(made.real_tokens_by_batch // made.batch_sizes, SOURCE_RUN_BUCKET_BOUNDS)
        assert order == "window_balanced" or runs(mean_buckets).max() <= 3
    variation, spread = np.mean(figures, axis=0)
    limits = {"window_strata": (0.315, 0.21), "window_balanced": (0.303, 0.15)}[order]
    assert variation <= limits[0] and spread <= limits[1]
    plain = window_figures(plan_epoch(lengths, replace(config, order="random"), epoch=0), lengths)
    assert plain[0] > 0.38 and plain[1] > 0.4


@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 99))
def test_window_strata_give_each_window_one_batch_of_each(num_batches, window, seed):
    means = np.random.default_rng(seed).permutation(num_batches).astype(float)
    order = window_strata(means, window, Draws(seed, 0))
    assert sorted(order.tolist()) == list(range(num_batches))
    num_windows, rest = divmod(num_batches, window)
    ranks = np.sort(means[order[: num_windows * window]].reshape(num_windows, window), axis=1)
    for stratum in range(window - 1):
        if num_windows:
            assert ranks[:, stratum].max() < ranks[:, stratum + 1].min()


def test_low_discrepancy_spreads_every_stretch_over_all_lengths():
    order = low_discrepancy(np.arange(1_000), Draws(3, 0))
    for begin in range(0, 1_000, 50):
        stretch = np.sort(order[begin : begin + 50])
        assert np.diff(stretch).max() <= 60 and stretch[0] <= 60 and stretch[-1] >= 940


def test_the_naive_form_ends_on_one_long_run():
    counts = [3_200, 3_900, 4_400, 5_200, 5_640, 24_000]
    found = runs(ordered_buckets("no_repeat_naive", counts))
    assert found[-1] > 2_000 and found[:-1].max() == 1
