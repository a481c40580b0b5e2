"""The batching settings of the source run, the training run that this workbench starts from."""

from __future__ import annotations

from dataclasses import replace

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


def source_run_strategies(config: BatchingConfig) -> dict[str, BatchingConfig]:
    """Give the strategies that the source run went through, in its order, under other settings.

    Args:
        config: Budget, cut, most samples a batch, bounds and seed of them all; its strategy and order are not used.

    Returns:
        Name -> settings: "sorted", "random", then "bucketed" in random order, with no repeat and in strides.
    """
    steps = {
        "sorted": ("sorted", "random"),
        "random": ("random", "random"),
        "bucketed": ("bucketed", "random"),
        "bucketed, no repeat": ("bucketed", "no_repeat"),
        "bucketed, stride": ("bucketed", "stride"),
    }
    return {name: replace(config, strategy=strategy, order=order) for name, (strategy, order) in steps.items()}
