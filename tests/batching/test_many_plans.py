"""Many random plans, each held to every law; `make soak` makes a million of them."""

import os

import numpy as np

from dflash_lab.batching import ORDERS, STRATEGIES, BatchingConfig, least_possible_batches, plan_epoch

NUM_PLANS = int(os.environ.get("DFLASH_LAB_SOAK_PLANS", "20000"))


def random_lengths(rng):
    num_samples = int(rng.integers(1, 60))
    shape = rng.integers(5)
    if shape == 0:
        return np.full(num_samples, rng.integers(1, 90))
    if shape == 1:
        return np.append(rng.integers(1, 5, num_samples), 90)
    if shape == 2:
        return np.minimum(rng.lognormal(3, 1, num_samples).astype(np.int64) + 1, rng.integers(1, 91))
    if shape == 3:
        return rng.choice([2, 71], num_samples)
    return rng.integers(1, 91, num_samples)


def random_config(rng):
    bounds = (0, *np.unique(rng.integers(1, 95, rng.integers(1, 7))).tolist()) if rng.random() < 0.5 else None
    return BatchingConfig(
        strategy=STRATEGIES[rng.integers(len(STRATEGIES))],
        order=ORDERS[rng.integers(len(ORDERS))],
        token_budget=int(rng.integers(90, 400)),
        max_seq_len=int(rng.integers(1, 100)),
        max_batch_size=int(rng.integers(1, 20)),
        bucket_bounds=bounds,
        num_cuts=int(rng.integers(0, 9)),
        pool_size=int(rng.integers(1, 70)),
        window=int(rng.integers(1, 9)),
        longest_first=int(rng.integers(0, 3)),
        seed=int(rng.integers(2**40)),
    )


def test_no_random_plan_breaks_a_law():
    rng = np.random.default_rng(int(os.environ.get("DFLASH_LAB_SOAK_SEED", "0")))
    for number in range(NUM_PLANS):
        lengths, config, epoch = random_lengths(rng), random_config(rng), int(rng.integers(5))
        plan = plan_epoch(lengths, config, epoch=epoch)
        plan.validate(lengths)
        if config.strategy in ("capacity", "sorted"):
            cut = np.minimum(lengths, config.max_seq_len)
            assert len(plan) == least_possible_batches(cut, config.token_budget, config.max_batch_size), number
        if number % 4 == 0 and len(plan) > 1:
            world_size = int(rng.integers(1, len(plan) + 1))
            mode = ("drop", "repeat")[number // 4 % 2]
            shards = [plan.shard(rank, world_size, mode=mode) for rank in range(world_size)]
            assert len({len(shard) for shard in shards}) == 1, number
            shards[int(rng.integers(world_size))].validate(lengths)
