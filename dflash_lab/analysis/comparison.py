"""Several plans side by side: one row a strategy, or one row a number of buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.analysis.buckets import run_summary
from dflash_lab.analysis.plans import pairs_together_again
from dflash_lab.batching import BatchingConfig, equal_token_bounds, plan_epoch
from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.config import whole_number

NUM_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


def compare_strategies(
    lengths: object, configs: Mapping[str, BatchingConfig], *, epochs: int = 2, baseline: str | None = None
) -> pl.DataFrame:
    """Plan the same lengths in several ways and put them side by side.

    Every figure is a sum over all the epochs divided by a sum over all the epochs.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.
        configs: Name -> settings; the names are the rows' names, in this order.
        epochs: Epochs to plan, from epoch 0 on, >= 1; pairs together again need two.
        baseline: Name of the row whose throughput counts as 1; None takes the best row.

    Returns:
        One row a strategy: strategy (the name), config_strategy, order, num_epochs, num_batches (an epoch, mean),
        padding_efficiency (real / padded), budget_use (real / (batches * budget)), fill (padded / (batches * budget)),
        real_tokens_per_batch, samples_per_batch, longest_run_batches (of one bucket, over all epochs),
        mean_run_batches (batches / runs; both null where a plan has no buckets), share_pairs_together_again (of the
        pairs that share a batch in an epoch, those that share one in the next; null for a single epoch),
        relative_throughput (real tokens a second, modelled as time ~ padded tokens: padding efficiency over that of
        the baseline), num_left_out (samples an epoch, mean).

    Raises:
        ValueError: If there is no config, the baseline is none of them, or a plan is refused.
    """
    epochs = whole_number("epochs", epochs, least=1)
    if not configs:
        raise ValueError("configs is empty; legal: at least one name with its BatchingConfig")
    if baseline is not None and baseline not in configs:
        raise ValueError(f"baseline is {baseline!r}; legal: {', '.join(configs)}")
    checked = check_lengths(lengths)
    rows = [_strategy_row(name, checked, config, epochs) for name, config in configs.items()]
    table = pl.DataFrame(rows, schema_overrides={"longest_run_batches": pl.Int64, "mean_run_batches": pl.Float64})
    efficiency = table["padding_efficiency"]
    best = efficiency.max() if baseline is None else efficiency[list(configs).index(baseline)]
    relative = (pl.col("padding_efficiency") / best).alias("relative_throughput")
    columns = [name for name in table.columns if name != "num_left_out"]
    return table.select(*columns, relative, "num_left_out")


def bucket_count_curve(
    lengths: object, config: BatchingConfig, *, num_buckets: Sequence[int] = NUM_BUCKETS, epoch: int = 0
) -> pl.DataFrame:
    """Plan the lengths with ever more buckets of equal tokens.

    All samples are planned, none are sampled; order and strategy of `config` do not matter here.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.
        config: Budget, cut, most samples a batch and seed.
        num_buckets: Numbers of buckets to try, each >= 1.
        epoch: Epoch to plan, >= 0.

    Returns:
        One row a number of buckets: num_buckets (as asked), num_buckets_made (fewer where many samples have one
        length), bucket_bounds (list), num_batches, padding_efficiency, budget_use, excess_over_sorted (batches / those
        of the sorted plan - 1), last_bucket_share_of_batches.

    Raises:
        ValueError: If `num_buckets` is empty or out of range, or a plan is refused.
    """
    wanted = [whole_number("num_buckets", number, least=1) for number in num_buckets]
    if not wanted:
        raise ValueError("num_buckets is empty; legal: at least one whole number >= 1")
    checked = check_lengths(lengths)
    cut = np.minimum(checked, config.max_seq_len)
    # The plan leaves these out (or refuses them), so they must not move the bounds.
    usable = cut[cut <= config.token_budget]
    bounds = [equal_token_bounds(usable, number) if len(usable) else (0, 1) for number in wanted]
    rows = _bucket_rows(checked, config, bounds, epoch)
    return pl.DataFrame(rows).select(pl.Series("num_buckets", wanted, dtype=pl.Int64), pl.all())


def compare_bounds(
    lengths: object, config: BatchingConfig, bounds: Mapping[str, Sequence[int]], *, epoch: int = 0
) -> pl.DataFrame:
    """Plan the lengths with several sets of bucket bounds.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.
        config: Budget, cut, most samples a batch and seed; order and strategy do not matter here.
        bounds: Name -> increasing whole numbers starting at 0.
        epoch: Epoch to plan, >= 0.

    Returns:
        One row a set: bounds (its name), then the columns of `bucket_count_curve` from num_buckets_made on.

    Raises:
        ValueError: If there is no set, bounds are not legal, or a plan is refused.
    """
    if not bounds:
        raise ValueError("bounds is empty; legal: at least one name with its bucket bounds")
    rows = _bucket_rows(check_lengths(lengths), config, list(bounds.values()), epoch)
    return pl.DataFrame(rows).select(pl.Series("bounds", list(bounds)), pl.all())


def _bucket_rows(
    lengths: np.ndarray, config: BatchingConfig, bounds: Sequence[Sequence[int]], epoch: int
) -> list[dict[str, object]]:
    """Plan with each set of bounds, and say how far that is from the fewest batches."""
    unordered = dataclasses.replace(config, order="as_built", longest_first=0, bucket_bounds=None)
    fewest = len(plan_epoch(lengths, dataclasses.replace(unordered, strategy="sorted"), epoch=epoch))
    rows = []
    for numbers in bounds:
        bucketed = dataclasses.replace(unordered, strategy="bucketed", bucket_bounds=tuple(numbers))
        plan = plan_epoch(lengths, bucketed, epoch=epoch)
        num_made = len(numbers) - 1
        rows.append(
            {
                "num_buckets_made": num_made,
                "bucket_bounds": list(numbers),
                "num_batches": len(plan),
                "padding_efficiency": plan.padding_efficiency,
                "budget_use": plan.budget_use,
                "excess_over_sorted": len(plan) / fewest - 1,
                "last_bucket_share_of_batches": np.count_nonzero(plan.bucket_ids == num_made - 1) / len(plan),
            }
        )
    return rows


@dataclass
class _Sums:
    """What is summed over epochs before anything is divided."""

    batches: int = 0
    samples: int = 0
    real: int = 0
    padded: int = 0
    left_out: int = 0
    runs: int = 0
    longest_run: int = 0
    pairs: int = 0
    pairs_again: int = 0
    has_buckets: bool = True


def _strategy_row(name: str, lengths: np.ndarray, config: BatchingConfig, epochs: int) -> dict[str, object]:
    sums, last = _Sums(), None
    for epoch in range(epochs):
        plan = plan_epoch(lengths, config, epoch=epoch)
        sums.batches += len(plan)
        sums.samples += len(plan.sample_ids)
        sums.real += plan.real_tokens
        sums.padded += plan.padded_tokens
        sums.left_out += plan.num_left_out
        if (plan.bucket_ids < 0).any():
            sums.has_buckets = False
        runs = run_summary(plan.bucket_ids)
        sums.runs += runs.num_runs
        sums.longest_run = max(sums.longest_run, runs.longest_batches)
        if last is not None:
            pairs = pairs_together_again(last, plan)
            sums.pairs += pairs.num_pairs
            sums.pairs_again += pairs.num_together_again
        last = plan
    budget = sums.batches * config.token_budget
    return {
        "strategy": name,
        "config_strategy": config.strategy,
        "order": config.order,
        "num_epochs": epochs,
        "num_batches": sums.batches / epochs,
        "padding_efficiency": sums.real / sums.padded,
        "budget_use": sums.real / budget,
        "fill": sums.padded / budget,
        "real_tokens_per_batch": sums.real / sums.batches,
        "samples_per_batch": sums.samples / sums.batches,
        "longest_run_batches": sums.longest_run if sums.has_buckets else None,
        "mean_run_batches": sums.batches / sums.runs if sums.has_buckets else None,
        "share_pairs_together_again": sums.pairs_again / sums.pairs if sums.pairs else None,
        "num_left_out": sums.left_out / epochs,
    }
