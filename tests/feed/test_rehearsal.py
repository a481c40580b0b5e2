"""The real feed before targets that only sleep: level queues, the fault of turns, and agreement with the simulation."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dflash_lab.batching import BatchingConfig, BatchPlan, plan_epoch
from dflash_lab.data import PreloadedDataset
from dflash_lab.data.mapped import TokenViews
from dflash_lab.feed.pipeline import PipelineConfig
from dflash_lab.feed.rehearsal import RehearsalSamples, measure_rate, rehearse, repeated
from dflash_lab.feed.round_robin import RoundRobinFeed
from dflash_lab.feed.simulation import simulate

CONFIG = PipelineConfig(num_targets=3, num_workers=2, depth=8, feature_depth=2, target_spread=0.5, seed=1)
SPEED_UP = 300.0


@pytest.fixture(scope="module")
def dataset() -> PreloadedDataset:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 400, 300)
    return PreloadedDataset.from_rows(
        {"input_ids": rng.integers(0, 1_000, n).tolist(), "loss_mask": [1] * n} for n in lengths
    )


@pytest.fixture(scope="module")
def plan(dataset: PreloadedDataset) -> BatchPlan:
    config = BatchingConfig(strategy="capacity", token_budget=4_000, max_seq_len=512, seed=0)
    return plan_epoch(dataset.lengths, config, epoch=0)


def test_the_real_queues_stay_full_and_level(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    seen = rehearse(dataset, plan, CONFIG, num_batches=150, speed_up=SPEED_UP)
    late = seen.seconds >= seen.seconds[-1] / 4
    assert np.median(seen.q_pre[late].min(axis=1)) >= CONFIG.depth - 1
    assert np.median(np.ptp(seen.q_pre[late], axis=1)) <= 1
    assert seen.starved_share.max() < 0.05
    assert seen.bounding_stage == "targets"
    assert seen.batches_per_second == pytest.approx(CONFIG.batches_per_second, rel=0.15)
    assert len(set(seen.batch_ids.tolist())) == 150 == len(seen.trained_seconds)
    assert 150 <= seen.batches_by_target.sum() <= 150 + CONFIG.feature_depth + CONFIG.num_targets + 1
    # Faster targets get more.
    order = np.argsort(CONFIG.target_speeds)
    assert (np.diff(seen.batches_by_target[order]) >= 0).all()


def test_taking_turns_starves_the_fast_targets(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    turns = replace(CONFIG, service="round_robin")
    seen = rehearse(dataset, plan, turns, num_batches=150, speed_up=SPEED_UP)
    simulated = simulate(plan.real_tokens_by_batch, turns, num_batches=150)
    fast, slow = np.argmax(CONFIG.target_speeds), np.argmin(CONFIG.target_speeds)
    late = seen.seconds >= 0.75 * seen.seconds[-1]
    assert np.median(seen.q_pre[late, fast]) == 0 and np.median(seen.q_pre[late, slow]) >= CONFIG.depth - 1
    assert seen.starved_share[fast] > 0.2 and seen.starved_share[slow] < 0.05
    assert seen.starved_share == pytest.approx(simulated.starved_share, abs=0.1)
    assert seen.batches_per_second == pytest.approx(simulated.batches_per_second, rel=0.15)
    assert mean_depths(seen) == pytest.approx(mean_depths(simulated), abs=1.5)


def test_slow_reading_starves_as_the_simulation_says(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    tokens = plan.real_tokens_by_batch
    needed = CONFIG.batches_per_second * tokens.mean()
    half = replace(CONFIG, target_spread=0.0, read_tokens_per_second=needed / 2 / CONFIG.num_workers)
    seen = rehearse(dataset, plan, half, num_batches=80, speed_up=SPEED_UP)
    simulated = simulate(tokens, half, num_batches=80)
    assert seen.bounding_stage == simulated.bounding_stage == "workers"
    assert seen.batches_per_second == pytest.approx(needed / 2 / tokens.mean(), rel=0.15)
    assert seen.starved_share.mean() == pytest.approx(simulated.starved_share.mean(), abs=0.1)
    assert 0.4 < simulated.starved_share.mean() < 0.6
    assert mean_depths(seen).max() <= 1 and mean_depths(simulated).max() <= 1


def test_reading_that_just_keeps_up_agrees_too(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    tokens = plan.real_tokens_by_batch
    needed = CONFIG.batches_per_second * tokens.mean()
    twice = replace(CONFIG, read_tokens_per_second=2 * needed / CONFIG.num_workers)
    seen = rehearse(dataset, plan, twice, num_batches=150, speed_up=SPEED_UP)
    simulated = simulate(tokens, twice, num_batches=150)
    assert seen.starved_share.mean() == pytest.approx(simulated.starved_share.mean(), abs=0.08)
    assert mean_depths(seen) == pytest.approx(mean_depths(simulated), abs=1.5)
    assert seen.batches_per_second == pytest.approx(simulated.batches_per_second, rel=0.15)


def mean_depths(seen: object) -> np.ndarray:
    """Over equal stretches of time, whenever the depths were read."""
    late = seen.seconds >= seen.seconds[-1] / 4
    return seen.q_pre[late].mean(axis=0)


def test_lengths_alone_are_enough(plan: BatchPlan, dataset: PreloadedDataset) -> None:
    seen = rehearse(dataset.lengths, plan, CONFIG, num_batches=20, speed_up=2_000.0)
    assert len(seen.trained_seconds) == 20
    samples = RehearsalSamples(dataset.lengths)
    assert len(samples) == len(dataset)
    for sample_id in (0, 7, 299):
        views = samples.token_views_of(np.array([sample_id, 3]), dataset.lengths[[sample_id, 3]])
        (ids, _), (mask, _) = views.input_ids, views.loss_masks
        assert len(ids) == len(mask) == dataset.lengths[sample_id] and mask.all()


def test_samples_of_a_data_set_stay_what_they_are(dataset: PreloadedDataset) -> None:
    samples = RehearsalSamples(dataset, seconds_per_token=1e-7)
    for sample_id in (0, 7, 299):
        expected, views = (
            dataset[sample_id],
            samples.token_views_of(np.array([sample_id]), samples.lengths[[sample_id]]),
        )
        assert views.input_ids[0].tolist() == expected.input_ids.tolist()
        assert views.loss_masks[0].tolist() == expected.loss_mask.tolist()


def test_a_slow_disk_takes_its_time_in_each_thread(dataset: PreloadedDataset) -> None:
    samples = RehearsalSamples(dataset, seconds_per_token=0.2 / dataset.lengths.sum())
    begin = time.perf_counter()
    every = np.arange(len(samples)).reshape(-1, 10)
    readers = [
        threading.Thread(target=lambda: [samples.token_views_of(ids, samples.lengths[ids]) for ids in every])
        for _ in range(2)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    # Side by side, not one after the other.
    assert 0.19 <= time.perf_counter() - begin < 0.39


def test_the_comparison_reads_the_plan_in_order_and_by_turns(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    with RoundRobinFeed(RehearsalSamples(dataset), plan, num_targets=3, num_workers=1, depth=4) as feed:
        streams = [feed.iter_target(target) for target in range(3)]
        seen = [next(streams[number % 3]) for number in range(len(plan))]
        assert [list(stream) for stream in streams] == [[], [], []]
    for number, batch in enumerate(seen):
        assert batch.batch_id == number and batch.sample_ids.tolist() == plan[number].tolist()
        for row, sample_id in enumerate(plan[number].tolist()):
            ids = dataset[sample_id].input_ids
            assert batch.input_ids[row, : len(ids)].tolist() == ids.tolist()


class Broken(RehearsalSamples):
    """A data set whose disk fails."""

    def token_views_of(self, sample_ids: np.ndarray, lengths: np.ndarray) -> TokenViews:
        """Fail."""
        raise OSError("the disk is gone")


@pytest.mark.parametrize("service", ["emptiest", "round_robin"])
def test_an_error_while_reading_reaches_the_caller_and_no_thread_is_left(
    service: str, dataset: PreloadedDataset, plan: BatchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_lab.feed.rehearsal.RehearsalSamples", Broken)
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="the disk is gone") as error:
        rehearse(dataset, plan, replace(CONFIG, service=service), num_batches=20, speed_up=SPEED_UP)
    assert "token_views_of" in [entry.name for entry in error.traceback]
    assert set(threading.enumerate()) <= before


def test_no_thread_is_left_behind_a_rehearsal(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    before = set(threading.enumerate())
    rehearse(dataset, plan, CONFIG, num_batches=5, speed_up=2_000.0)
    assert set(threading.enumerate()) <= before


def test_a_repeated_plan_has_its_batches_again(plan: BatchPlan) -> None:
    thrice = repeated(plan, 3)
    assert list(thrice) == list(plan) * 3
    assert thrice.real_tokens_by_batch.tolist() == plan.real_tokens_by_batch.tolist() * 3
    assert thrice.padded_tokens_by_batch.tolist() == plan.padded_tokens_by_batch.tolist() * 3


def test_the_measured_rate_counts_real_tokens(dataset: PreloadedDataset, plan: BatchPlan) -> None:
    num_batches = 2 * len(plan)
    begin = time.perf_counter()
    rate = measure_rate(dataset, plan, num_batches=num_batches)
    # Two passes took at least twice as long as the one that counts, within a factor.
    assert rate > 2 * plan.real_tokens / (time.perf_counter() - begin)
    assert rate < 5e9


@pytest.mark.parametrize(("num_batches", "speed_up"), [(0, 1.0), (1, 0.0), (1, float("inf"))])
def test_arguments_out_of_range_are_refused(
    num_batches: int, speed_up: float, dataset: PreloadedDataset, plan: BatchPlan
) -> None:
    with pytest.raises(ValueError) as error:
        rehearse(dataset, plan, CONFIG, num_batches=num_batches, speed_up=speed_up)
    expected = (
        f"speed_up is {speed_up}; legal: a finite number > 0"
        if num_batches
        else f"num_batches is 0 of {len(plan)} planned; legal: at least one of each"
    )
    assert str(error.value) == expected
    with pytest.raises(ValueError, match="num_batches is 0 of"):
        measure_rate(dataset, plan, num_batches=0)
