"""Settings that belong together: those of the source run, and those that are worth putting side by side."""

from __future__ import annotations

from dataclasses import replace

from dflash_lab.batching.config import ORDERS, BatchingConfig

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
        Name -> settings: "sorted", "random", then "bucketed" in random order, without repeats (not looking ahead) and
        in strides.
    """
    return _variants(
        config,
        {
            "sorted": ("sorted", "random"),
            "random": ("random", "random"),
            "bucketed": ("bucketed", "random"),
            "bucketed, no repeat naive": ("bucketed", "no_repeat_naive"),
            "bucketed, stride": ("bucketed", "stride"),
        },
    )


def strategies_to_compare(config: BatchingConfig) -> dict[str, BatchingConfig]:
    """Give the source run's strategies and those that go beyond them, each in the order that suits it.

    Args:
        config: Budget, cut, most samples a batch, bounds, cuts, pool size, window and seed of them all; its strategy
            and order are not used.

    Returns:
        Name -> settings: those of `source_run_strategies`, then "capacity" (in window strata), "capacity, no cuts",
        "pooled" and "packed".
    """
    beyond = {
        "capacity": ("capacity", "window_strata"),
        "capacity, no cuts": ("capacity", "window_strata"),
        "pooled": ("pooled", "window_strata"),
        "packed": ("packed", "random"),
    }
    configs = source_run_strategies(config) | _variants(config, beyond)
    configs["capacity, no cuts"] = replace(configs["capacity, no cuts"], num_cuts=0)
    return configs


def orders_to_compare(config: BatchingConfig) -> dict[str, BatchingConfig]:
    """Give all orders of one and the same batches.

    Args:
        config: The strategy and all other settings; its order is not used.

    Returns:
        Order -> settings, from the plainest to the most even.
    """
    return {order: replace(config, order=order) for order in ORDERS}


def _variants(config: BatchingConfig, names: dict[str, tuple[str, str]]) -> dict[str, BatchingConfig]:
    return {name: replace(config, strategy=strategy, order=order) for name, (strategy, order) in names.items()}
