"""A pipeline on a virtual clock: against plain recurrences, hand-worked cases and the laws of queues."""

from dataclasses import replace

import numpy as np
import pytest

from dflash_lab.feed.pipeline import SERVICES, PipelineConfig, Rehearsal
from dflash_lab.feed.simulation import simulate, smallest_worker_count, workers_needed

TOKENS = np.full(40, 1_000)
ONE_LANE = PipelineConfig(num_targets=1, num_workers=1, depth=2, feature_depth=1, target_spread=0.0)


def one_lane_by_recurrence(tokens: np.ndarray, config: PipelineConfig, num_batches: int) -> list[float]:
    """One worker, one target: when each batch is trained, by the equations of a line of finite buffers."""
    read, cost = config.read_seconds(tokens), config.target_seconds(num_batches)
    drafter = config.drafter_seconds
    put, taken, handed, begun, trained = ([] for _ in range(5))
    for b in range(num_batches):
        # Room in the queue comes when the batch `depth` before is taken.
        room = taken[b - config.depth] if b >= config.depth else 0.0
        before = put[-1] if b else 0.0
        took = read[b % len(tokens)]
        # The prefetcher begins a batch when there is room for it, whoever goes by turns when the last one is put.
        put.append(max(before, room) + took if config.service == "emptiest" else max(before + took, room))
        taken.append(max(put[b], handed[-1] if b else 0.0))
        computed = taken[b] + cost[b]
        handed.append(max(computed, begun[b - config.feature_depth] if b >= config.feature_depth else 0.0))
        begun.append(max(handed[b], trained[-1] if b else 0.0))
        trained.append(begun[b] + drafter)
    return trained


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("feature_depth", [1, 3])
@pytest.mark.parametrize("read", [None, 400.0, 700.0, 5_000.0])
@pytest.mark.parametrize("service", SERVICES)
def test_one_lane_is_a_line_of_finite_buffers(depth: int, feature_depth: int, read: float | None, service: str) -> None:
    tokens = np.random.default_rng(depth).integers(200, 3_000, 60)
    config = replace(
        ONE_LANE,
        depth=depth,
        feature_depth=feature_depth,
        read_tokens_per_second=read,
        cost_spread=0.7,
        drafter_share=1.1,
        service=service,
    )
    seen = simulate(tokens, config, num_batches=100)
    expected = one_lane_by_recurrence(tokens, config, 100)
    assert seen.trained_seconds == pytest.approx(expected)
    assert seen.batch_ids.tolist() == list(range(100))


@pytest.mark.parametrize(("service", "busy", "blocked"), [("emptiest", 6.5, 3.0), ("round_robin", 7.5, 2.0)])
def test_a_case_by_hand(service: str, busy: float, blocked: float) -> None:
    # Reading takes 1 s, the target 2 s, the drafter 0.5 s; the first batch waits for nothing.
    config = replace(ONE_LANE, batches_per_second=0.5, drafter_share=0.25, read_tokens_per_second=1_000.0)
    seen = simulate(TOKENS, replace(config, service=service), num_batches=4)
    assert seen.trained_seconds.tolist() == [3.5, 5.5, 7.5, 9.5]
    assert seen.target_starved_seconds.tolist() == [1.0]
    assert seen.target_busy_seconds.tolist() == [8.5]
    assert (seen.drafter_busy_seconds, seen.drafter_starved_seconds) == (2.0, 7.5)
    # The target takes one at 1, 3, 5, ... s. The prefetcher reads at 0-4, 5-6, 7-8 and from 9 s, whenever there is room
    # for one more; by turns it also reads at 4-5 s, one to have in hand.
    assert seen.worker_busy_seconds.tolist() == [busy] and seen.worker_blocked_seconds.tolist() == [blocked]
    assert seen.bounding_stage == "targets"
    assert seen.starved_share.tolist() == pytest.approx([1 / 9.5])
    assert seen.batches_per_second == pytest.approx(0.5)


def configs() -> list[PipelineConfig]:
    rng = np.random.default_rng(7)
    return [
        PipelineConfig(
            num_targets=int(rng.integers(1, 8)),
            num_workers=int(rng.integers(1, 5)),
            depth=int(rng.integers(1, 9)),
            feature_depth=int(rng.integers(1, 4)),
            drafter_share=float(rng.choice([0.5, 1.0, 1.5])),
            target_spread=float(rng.choice([0.0, 0.4])),
            cost_spread=float(rng.choice([0.0, 0.3])),
            read_tokens_per_second=rng.choice([None, 300.0, 2_000.0]),
            service=SERVICES[number % 2],
            seed=number,
        )
        for number in range(40)
    ]


@pytest.mark.parametrize("config", configs(), ids=range(40))
def test_laws_of_any_pipeline(config: PipelineConfig) -> None:
    seen = simulate(TOKENS, config, num_batches=150)
    elapsed = seen.elapsed_seconds
    # Nobody's time is lost, and no batch is.
    for member in (
        seen.worker_busy_seconds + seen.worker_blocked_seconds,
        seen.target_busy_seconds + seen.target_starved_seconds + seen.target_blocked_seconds,
        np.array([seen.drafter_busy_seconds + seen.drafter_starved_seconds]),
    ):
        assert member == pytest.approx(np.full(len(member), elapsed))
    assert len(set(seen.batch_ids.tolist())) == 150 == len(seen.trained_seconds)
    assert (np.diff(seen.trained_seconds) > 0).all()
    assert seen.q_pre.min() >= 0 and seen.q_pre.max() <= config.depth
    assert seen.q_hs.min() >= 0 and seen.q_hs.max() <= config.feature_depth
    # Trained, waiting for the drafter or in its hands: each was computed by some target.
    assert 150 <= seen.batches_by_target.sum() <= 150 + config.feature_depth + 1 + config.num_targets
    # No stage gives more than it can.
    drafter = 1 / config.drafter_seconds
    targets = config.batches_per_second
    workers = np.inf
    if config.read_tokens_per_second is not None:
        workers = config.num_workers * config.read_tokens_per_second / 1_000
    assert seen.batches_per_second <= min(drafter, targets * (1.1 + config.cost_spread), workers * 1.1)


def test_a_pipeline_is_a_pure_function_of_its_settings() -> None:
    config = PipelineConfig(cost_spread=0.3, read_tokens_per_second=50_000.0, seed=3)
    one, two = (simulate(TOKENS, config, num_batches=100) for _ in range(2))
    for name, value in vars(one).items():
        assert np.array_equal(value, vars(two)[name]) if isinstance(value, np.ndarray) else value == vars(two)[name]
    other = simulate(TOKENS, replace(config, seed=4), num_batches=100)
    assert not np.array_equal(one.trained_seconds, other.trained_seconds)


def test_speeds_and_costs_have_the_given_means() -> None:
    config = PipelineConfig(num_targets=50, target_spread=0.3, cost_spread=0.2)
    assert config.target_speeds.mean() == pytest.approx(1)
    assert 0.65 <= config.target_speeds.min() < 0.8 and 1.2 < config.target_speeds.max() <= 1.35
    cost = config.target_seconds(40_000) * config.batches_per_second / config.num_targets
    assert cost.mean() == pytest.approx(1, abs=0.01) and cost.std() == pytest.approx(0.2, abs=0.01)
    assert cost.min() > 0


def test_the_emptiest_queue_keeps_all_level_and_taking_turns_does_not() -> None:
    config = PipelineConfig(target_spread=0.3)
    level = simulate(TOKENS, config, num_batches=2_000)
    turns = simulate(TOKENS, replace(config, service="round_robin"), num_batches=2_000)
    late = slice(len(level.seconds) // 2, None)
    assert np.ptp(level.q_pre[late], axis=1).max() <= 1
    assert level.starved_share.max() == 0
    # Equal turns: nobody gets more than the slowest, and the fast ones run dry.
    assert (turns.q_pre[-1] == 50).any() and (turns.q_pre[-1] == 0).sum() >= 2
    assert turns.starved_share.max() > 0.2
    assert turns.batches_per_second == pytest.approx(0.65 * config.target_speeds.min(), rel=0.05)
    assert level.batches_per_second == pytest.approx(0.65, rel=0.01)


def test_taking_turns_gives_each_queue_the_same_number_of_batches() -> None:
    config = PipelineConfig(num_targets=3, num_workers=2, depth=20, service="round_robin", cost_spread=0.3)
    seen = simulate(TOKENS, config, num_batches=400)
    # What was put into a queue: taken by the target (all but one of them computed), or still there.
    put = seen.batches_by_target + seen.q_pre[-1]
    assert np.ptp(put) <= config.num_workers + 1


def test_depths_of_the_source_runs_status_line() -> None:
    # q_pre=[43, 50, 28, 31, 25, 38] after 4,690 steps of 4 batches: one queue full, the least 25, and none starved.
    # Equal targets whose batches cost 20 % more or less come to that by turns alone.
    config = PipelineConfig(service="round_robin", target_spread=0.0, cost_spread=0.2)
    ends = [simulate(TOKENS, replace(config, seed=seed), num_batches=4 * 4_690).q_pre[-1] for seed in range(6)]
    assert all(end.max() == 50 for end in ends)
    assert 15 <= np.median([end.min() for end in ends]) <= 35


def brute_force_workers(tokens: np.ndarray, config: PipelineConfig, num_batches: int) -> int | None:
    free = simulate(tokens, replace(config, read_tokens_per_second=None), num_batches=num_batches)
    rates = {
        number: simulate(tokens, replace(config, num_workers=number), num_batches=num_batches).batches_per_second
        for number in range(1, 13)
    }
    return min((number for number, rate in rates.items() if rate >= 0.99 * free.batches_per_second), default=None)


@pytest.mark.parametrize("speed", [80.0, 130.0, 300.0, 640.0, 660.0, 10_000.0])
def test_the_smallest_worker_count_is_the_smallest(speed: float) -> None:
    config = PipelineConfig(num_targets=2, depth=4, target_spread=0.0, read_tokens_per_second=speed)
    found = smallest_worker_count(TOKENS, config, num_batches=300, most=12)
    assert found == brute_force_workers(TOKENS, config, 300)
    # 0.65 batches of 1,000 tokens a second are to be read, and there is room for 8 batches at once.
    wanted = [int(np.ceil(share * 650 / speed)) for share in (0.99, 1.0)]
    assert found in [number if number <= 8 else None for number in wanted]


def test_a_whole_epoch_ends_with_each_targets_share() -> None:
    # Batch i is for target i % 2, and the speeds are 1.5 to 0.5: the slow target's half of 40 batches decides.
    config = PipelineConfig(num_targets=2, target_spread=0.6, seed=2)
    seen = simulate(TOKENS, config, num_batches=40, whole_epoch=True)
    slowest = config.target_speeds.min()
    assert sorted(seen.batch_ids.tolist()) == list(range(40))
    assert seen.batches_by_target.tolist() == [20, 20]
    assert seen.elapsed_seconds == pytest.approx(20 * 2 / 0.65 / slowest + config.drafter_seconds, rel=0.02)
    # Who is through is not starved.
    assert seen.starved_share.max() == 0
    turns = simulate(TOKENS, replace(config, service="round_robin"), num_batches=40, whole_epoch=True)
    assert turns.batches_by_target.tolist() == [20, 20] and sorted(turns.batch_ids.tolist()) == list(range(40))
    assert turns.elapsed_seconds >= seen.elapsed_seconds - 1e-9


def test_a_worker_count_that_is_out_of_reach_is_none() -> None:
    config = PipelineConfig(read_tokens_per_second=1.0)
    assert smallest_worker_count(TOKENS, config, num_batches=50, most=8) is None
    needed = workers_needed(
        TOKENS,
        config,
        read_tokens_per_second=[1.0, 1e6],
        batches_per_second=[0.65, 6.5],
        num_batches=50,
        most=8,
    )
    assert needed.num_workers.tolist() == [[-1, 1], [-1, 1]]
    assert needed.read_tokens_per_second.tolist() == [1.0, 1e6] and needed.batches_per_second.tolist() == [0.65, 6.5]


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("num_targets", 0, "a whole number >= 1"),
        ("depth", 0, "a whole number >= 1"),
        ("batches_per_second", 0.0, "a finite number > 0"),
        ("batches_per_second", float("nan"), "a finite number > 0"),
        ("read_tokens_per_second", float("inf"), "a finite number > 0"),
        ("target_spread", 1.0, "a number in [0, 1)"),
        ("cost_spread", -0.1, "a finite number >= 0"),
        ("service", "fair", "emptiest, round_robin"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: object, legal: str) -> None:
    with pytest.raises(ValueError) as error:
        PipelineConfig(**{name: value})
    assert str(error.value) == f"{name} is {value!r}; legal: {legal}"


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        simulate(TOKENS, ONE_LANE, num_batches=0)
    assert str(error.value) == "num_batches is 0 of 40 planned; legal: at least one of each"


def test_the_rate_of_a_single_batch_is_that_of_the_whole() -> None:
    seen = simulate(TOKENS, ONE_LANE, num_batches=1)
    assert isinstance(seen, Rehearsal)
    assert seen.batches_per_second == pytest.approx(1 / seen.elapsed_seconds)
