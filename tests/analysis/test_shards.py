"""Ranks: what each does, and who waits for whom at each optimizer step."""

import numpy as np
import pytest

from dflash_lab import analysis, batching

LENGTHS = np.random.default_rng(2).integers(1, 100, 700)
CONFIG = batching.BatchingConfig(
    strategy="capacity", order="window_strata", token_budget=300, max_seq_len=100, window=3
)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_ranks_are_listed_and_wait_for_the_slowest(world_size: int, mode: str) -> None:
    plan = batching.plan_epoch(LENGTHS, CONFIG, epoch=0)
    table = analysis.shard_table(plan, world_size, mode=mode)
    shards = [plan.shard(rank, world_size, mode=mode) for rank in range(world_size)]
    assert table["rank"].to_list() == list(range(world_size))
    assert table["padded_tokens"].to_list() == [shard.padded_tokens for shard in shards]
    assert table["real_tokens"].to_list() == [shard.real_tokens for shard in shards]
    assert table["num_batches"].n_unique() == 1
    assert table["relative_cost"].mean() == pytest.approx(1)
    assert table["cost_spread"][0] == pytest.approx(table["relative_cost"].max() - table["relative_cost"].min())
    waits, fastest, total = [0] * world_size, 0, 0
    for begin in range(0, len(shards[0]), 3):
        costs = [int(shard.padded_tokens_by_batch[begin : begin + 3].sum()) for shard in shards]
        waits = [wait + max(costs) - cost for wait, cost in zip(waits, costs, strict=True)]
        fastest, total = fastest + max(costs) - min(costs), total + max(costs)
    assert table["share_waiting"].to_list() == pytest.approx([wait / total for wait in waits])
    assert table["share_fastest_waits"].to_list() == pytest.approx([fastest / total] * world_size)


def test_one_rank_waits_for_nobody() -> None:
    row = analysis.shard_table(batching.plan_epoch(LENGTHS, CONFIG, epoch=0), 1).row(0, named=True)
    assert (row["relative_cost"], row["cost_spread"], row["share_waiting"], row["share_fastest_waits"]) == (1, 0, 0, 0)


def test_costs_follow_the_model() -> None:
    plan = batching.plan_epoch(LENGTHS, CONFIG, epoch=0)
    model = analysis.CostModel(per_batch=1.0, per_token=0.0, per_token_squared=0.0)
    assert analysis.shard_table(plan, 2, cost_model=model)["cost"].to_list() == [len(plan) // 2] * 2


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError) as error:
        analysis.shard_table(batching.plan_epoch(LENGTHS, CONFIG, epoch=0), 0)
    assert str(error.value) == "world_size is 0; legal: a whole number >= 1"
