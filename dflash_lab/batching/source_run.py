"""The batching settings of the source run, the training run that this workbench starts from."""

from __future__ import annotations

from dflash_lab.batching.config import BatchingConfig

# Chosen by hand there; in tokens.
SOURCE_RUN_BUCKET_BOUNDS = (0, 770, 1216, 1728, 2432, 3296, 8192)


def source_run_config(strategy: str, *, order: str = "random", seed: int = 0) -> BatchingConfig:
    """Give the source run's batching settings.

    Args:
        strategy: Who shares a batch: "sorted", "random" or "bucketed" as in the source run, or any other.
        order: When a batch is seen.
        seed: Seed of the plan, >= 0.

    Returns:
        Budget 49,152 tokens, at most 64 samples a batch, cut at 8,192 tokens; the six buckets where "bucketed".
    """
    return BatchingConfig(
        strategy=strategy,
        order=order,
        token_budget=49_152,
        max_batch_size=64,
        max_seq_len=8_192,
        bucket_bounds=SOURCE_RUN_BUCKET_BOUNDS if strategy == "bucketed" else None,
        seed=seed,
    )
