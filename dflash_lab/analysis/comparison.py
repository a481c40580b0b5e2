"""Several plans side by side: one row a strategy, or one row a number of buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from dflash_lab.analysis.anchors import AnchorBudgets
from dflash_lab.analysis.costs import QUADRATIC_ATTENTION, CostModel
from dflash_lab.analysis.lengths import check_loss_tokens
from dflash_lab.analysis.measures import FewestBatches, Measuring, StrategyMeasures
from dflash_lab.batching import SOURCE_RUN_BUCKET_BOUNDS, BatchingConfig, equal_token_bounds, plan_epoch
from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.config import check_bounds, whole_number

DEFAULT_ANCHORS = AnchorBudgets()
# Null in a row or in all of them; a column of nulls alone would have no type.
_NULLABLE = (
    "excess_over_least",
    "share_pairs_together_again",
    "lag1_mean_length",
    "window_tv",
    "window_mean_length_cv",
    "window_tv_of_shuffle",
    "window_mean_length_cv_of_shuffle",
    "draft_blocks_cv_by_sample",
    "draft_blocks_cv_by_loss_token",
    "draft_blocks_cv_by_batch",
)
NUM_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


def compare_strategies(
    lengths: object,
    configs: Mapping[str, BatchingConfig],
    *,
    epochs: int = 2,
    baseline: str | None = None,
    bucket_bounds: tuple[int, ...] = SOURCE_RUN_BUCKET_BOUNDS,
    loss_tokens: object = None,
    anchors: AnchorBudgets = DEFAULT_ANCHORS,
    cost_model: CostModel = QUADRATIC_ATTENTION,
) -> pl.DataFrame:
    """Plan the same lengths in several ways and put them side by side.

    Every figure is a sum over all the epochs divided by a sum over all the epochs, or a mean or spread over the batches
    or windows of all the epochs.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.
        configs: Name -> settings; the names are the rows' names, in this order.
        epochs: Epochs to plan, from epoch 0 on, >= 1; pairs together again need two.
        baseline: Name of the row whose throughput counts as 1; None takes the best row.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens: the buckets of window mixes for all rows, and
            of runs for strategies without buckets of their own.
        loss_tokens: Whole numbers (num_samples,), each in [0, length]: supervised tokens of each sample; None takes
            every token as supervised.
        anchors: The three budgets of anchors under which draft blocks are counted.
        cost_model: The second model of what a batch costs, beside padded tokens.

    Returns:
        One row a strategy.

        - strategy (the name), config_strategy, order, num_epochs, num_batches (an epoch, mean).
        - Padding: padding_efficiency (real / padded), budget_use (real / (batches * budget)), fill (padded / (batches
          * budget)), real_tokens_per_batch, samples_per_batch, excess_over_least (batches / the least that any padded
          plan needs - 1; null for packed rows, which may need fewer).
        - Order: longest_run_batches (of one bucket, over all epochs), mean_run_batches (batches / runs). Where a
          strategy has no buckets a batch counts to the bucket of its mean length; batches of mixed lengths all have
          about the same mean, so that a long run of them is no drift. lag1_mean_length (correlation of a batch's mean
          length with the next one's; null where all are equal).
        - Company: share_pairs_together_again (of the pairs that share a batch in an epoch, those that share one in the
          next; 0 where no two samples share one, null for a single epoch), length_cv_in_batch (standard deviation /
          mean of the lengths in a batch, mean over batches).
        - Accumulation windows, mean over full ones (null where there is none): window_tv (total variation between the
          window's token mix over the buckets and the data's), window_mean_length_cv (standard deviation / mean of the
          windows' tokens / samples); window_tv_floor (the least that one window of length-pure batches can have,
          `pure_window_floor`); window_tv_of_shuffle and window_mean_length_cv_of_shuffle, the same for a full
          random shuffle of the samples cut into as many windows (`shuffle_window_mix`): a reference, not a bound.
        - Draft blocks of a batch, mean and standard deviation / mean over batches, under each budget of anchors:
          draft_blocks_per_batch_by_sample, _by_loss_token, _by_batch, draft_blocks_cv_by_sample, _by_loss_token,
          _by_batch.
        - Throughput: real_tokens_per_cost (by `cost_model`; tokens a second where it is in seconds),
          relative_throughput (real tokens a second, modelled as time ~ padded tokens: padding efficiency over that of
          the baseline), relative_throughput_by_cost (real_tokens_per_cost over that of the baseline).
        - num_left_out (samples an epoch, mean).

    Raises:
        ValueError: If there is no config, the baseline is none of them, loss tokens or bounds are not legal, or a plan
            is refused.
    """
    epochs = whole_number("epochs", epochs, least=1)
    if not configs:
        raise ValueError("configs is empty; legal: at least one name with its BatchingConfig")
    if baseline is not None and baseline not in configs:
        raise ValueError(f"baseline is {baseline!r}; legal: {', '.join(configs)}")
    checked = check_lengths(lengths)
    supervised = None if loss_tokens is None else check_loss_tokens(loss_tokens, checked)
    measuring = Measuring(
        bucket_bounds=check_bounds(bucket_bounds), loss_tokens=supervised, anchors=anchors, cost_model=cost_model
    )
    fewest, rows = FewestBatches(), []
    for name, config in configs.items():
        measures = StrategyMeasures(measuring)
        for epoch in range(epochs):
            plan = plan_epoch(checked, config, epoch=epoch)
            measures.add(plan, fewest_batches=fewest.of(plan))
        names = {"strategy": name, "config_strategy": config.strategy, "order": config.order}
        rows.append(names | measures.row())
    table = pl.DataFrame(rows, infer_schema_length=None, schema_overrides=dict.fromkeys(_NULLABLE, pl.Float64))
    at = None if baseline is None else list(configs).index(baseline)
    relative = [
        _relative("relative_throughput", table["padding_efficiency"], at),
        _relative("relative_throughput_by_cost", table["real_tokens_per_cost"], at),
    ]
    return table.select(pl.exclude("num_left_out"), *relative, "num_left_out")


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


def _relative(name: str, values: pl.Series, at: int | None) -> pl.Series:
    # Polars divides a column by one number as a product with its inverse, which need not give 1 for the number itself.
    numbers = values.to_numpy()
    return pl.Series(name, numbers / (numbers.max() if at is None else numbers[at]))
