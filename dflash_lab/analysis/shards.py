"""A plan dealt to ranks: what each does, and how long it waits for the others."""

from __future__ import annotations

import numpy as np
import polars as pl

from dflash_lab.analysis.costs import PADDED_TOKENS, CostModel
from dflash_lab.batching import BatchPlan
from dflash_lab.batching.config import whole_number


def shard_table(
    plan: BatchPlan, world_size: int, *, mode: str = "drop", cost_model: CostModel = PADDED_TOKENS
) -> pl.DataFrame:
    """Deal a plan to ranks and list them.

    Ranks meet at every optimizer step, after `plan.config.window` batches each, so the slowest decides how long a step
    takes and the others wait for it.

    Args:
        plan: The plan of an epoch.
        world_size: Number of ranks, >= 1.
        mode: What happens to batches that do not divide by the ranks, see `BatchPlan.shard`.
        cost_model: What a batch costs.

    Returns:
        One row a rank: rank, num_batches, num_samples, real_tokens, padded_tokens, cost (by the model),
        relative_cost (cost / mean of the ranks), share_waiting (of the time of all steps, how much this rank waits for
        the slowest one); and the same in each row: cost_spread (largest less smallest relative cost) and
        share_fastest_waits (of the time of all steps, how much the fastest rank of each step waits).

    Raises:
        ValueError: If an argument is out of range, or a rank would get no batch.
    """
    world_size = whole_number("world_size", world_size, least=1)
    rows, step_costs = [], []
    for rank in range(world_size):
        mine = plan.shard(rank, world_size, mode=mode)
        costs = cost_model.batch_costs(mine)
        step_costs.append(np.add.reduceat(costs, np.arange(0, len(costs), plan.config.window)))
        rows.append(
            {
                "rank": rank,
                "num_batches": len(mine),
                "num_samples": len(mine.sample_ids),
                "real_tokens": mine.real_tokens,
                "padded_tokens": mine.padded_tokens,
                "cost": float(costs.sum()),
            }
        )
    by_step = np.stack(step_costs)  # (world_size, num_steps)
    slowest = by_step.max(axis=0)
    cost = np.asarray([row["cost"] for row in rows])
    relative = cost / cost.mean()
    return pl.DataFrame(rows).with_columns(
        pl.Series("relative_cost", relative),
        pl.Series("share_waiting", (slowest - by_step).sum(axis=1) / slowest.sum()),
        pl.lit(float(relative.max() - relative.min())).alias("cost_spread"),
        pl.lit(float((slowest - by_step.min(axis=0)).sum() / slowest.sum())).alias("share_fastest_waits"),
    )
