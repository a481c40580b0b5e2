"""Plans: which samples share a batch, and in which order the batches are seen.

A plan is a pure function of (lengths, config, epoch). The room takes an array of lengths and never a data set, imports
numpy alone, and gives a `BatchPlan` that any DataLoader accepts as its `batch_sampler`.
"""

from dflash_lab.batching.bounds import bucket_of, equal_token_bounds
from dflash_lab.batching.config import ORDERS, STRATEGIES, BatchingConfig
from dflash_lab.batching.epoch import EpochBatchSampler, plan_epoch
from dflash_lab.batching.optimal_bounds import (
    BoundsPoint,
    bounds_curve,
    expected_batches,
    least_batches_bounds,
    least_padding_bounds,
    padding_cost,
)
from dflash_lab.batching.packing import least_possible_batches
from dflash_lab.batching.plan import BatchPlan
from dflash_lab.batching.presets import (
    SOURCE_RUN_BUCKET_BOUNDS,
    orders_to_compare,
    source_run_config,
    source_run_strategies,
    strategies_to_compare,
)

__all__ = [
    "padding_cost",
    "least_padding_bounds",
    "least_batches_bounds",
    "expected_batches",
    "bounds_curve",
    "BoundsPoint",
    "ORDERS",
    "SOURCE_RUN_BUCKET_BOUNDS",
    "STRATEGIES",
    "BatchPlan",
    "BatchingConfig",
    "EpochBatchSampler",
    "bucket_of",
    "equal_token_bounds",
    "least_possible_batches",
    "orders_to_compare",
    "plan_epoch",
    "source_run_config",
    "source_run_strategies",
    "strategies_to_compare",
]
