"""One plan as tables: a row a batch, a row a bucket, and how its composition lasts into the next epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.analysis.buckets import BUCKET_COLUMNS, bucket_intervals
from dflash_lab.batching import BatchPlan, bucket_of


@dataclass(frozen=True)
class PairCount:
    """Pairs of samples that share a batch, and those of them that share one in the next epoch too.

    Attributes:
        num_pairs: Unordered pairs that share a batch in the first plan.
        num_together_again: Those that share one in the second plan as well.
    """

    num_pairs: int
    num_together_again: int

    @property
    def share(self) -> float | None:
        """Pairs together again / pairs, in [0, 1]; None where no two samples share a batch."""
        return self.num_together_again / self.num_pairs if self.num_pairs else None


def plan_table(plan: BatchPlan, *, bucket_bounds: tuple[int, ...] | None = None) -> pl.DataFrame:
    """List the batches of a plan.

    Args:
        plan: The plan of an epoch.
        bucket_bounds: Increasing whole numbers starting at 0, for a plan whose strategy has no buckets: a batch then
            counts to the bucket of its mean length.

    Returns:
        One row a batch, in the order of training: batch_id, bucket_id (null where the strategy has no buckets and no
        bounds are given), num_samples, width_tokens (padded width), real_tokens, padded_tokens, squared_tokens (pairs
        of tokens that attend to each other: num_samples * width^2, or the sum of length^2 in a packed row),
        length_min_tokens, length_mean_tokens, length_max_tokens (after the cut), padding_efficiency (real / padded),
        fill (padded / token budget).
    """
    lengths, starts = plan.sample_lengths, plan.offsets[:-1]
    real, padded = plan.real_tokens_by_batch, plan.padded_tokens_by_batch
    return pl.DataFrame(
        {
            "batch_id": np.arange(len(plan)),
            "bucket_id": plan.bucket_ids if bucket_bounds is None else batch_buckets(plan, bucket_bounds),
            "num_samples": plan.batch_sizes,
            "width_tokens": plan.widths.astype(np.int64),
            "real_tokens": real,
            "padded_tokens": padded,
            "squared_tokens": squared_tokens(plan),
            "length_min_tokens": np.minimum.reduceat(lengths, starts).astype(np.int64),
            "length_mean_tokens": real / plan.batch_sizes,
            "length_max_tokens": np.maximum.reduceat(lengths, starts).astype(np.int64),
            "padding_efficiency": real / padded,
            "fill": padded / plan.config.token_budget,
        }
    ).with_columns(bucket_id=pl.when(pl.col("bucket_id") >= 0).then("bucket_id"))


def batch_buckets(plan: BatchPlan, bucket_bounds: tuple[int, ...]) -> np.ndarray:
    """Tell each batch's bucket, for any strategy.

    Args:
        plan: The plan of an epoch.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens.

    Returns:
        int16 (num_batches,): the plan's own buckets where its strategy has them, else the bucket of each batch's mean
        length.

    Raises:
        ValueError: If the bounds are not legal.
    """
    if (plan.bucket_ids >= 0).all():
        return plan.bucket_ids
    # Bounds are whole numbers, so a mean and its whole part lie in one bucket.
    return bucket_of(plan.real_tokens_by_batch // plan.batch_sizes, bucket_bounds)


def squared_tokens(plan: BatchPlan) -> np.ndarray:
    """Count the pairs of tokens in each batch over which full attention runs.

    Args:
        plan: The plan of an epoch.

    Returns:
        int64 (num_batches,): batch size * width^2, since padding is computed too; in a packed row the sum of length^2,
        since no sample attends to another.
    """
    if plan.layout == "packed":
        return np.add.reduceat(np.square(plan.sample_lengths.astype(np.int64)), plan.offsets[:-1])
    return plan.batch_sizes * np.square(plan.widths.astype(np.int64))


def bucket_shares(plan: BatchPlan) -> pl.DataFrame:
    """Sum a plan up by bucket.

    Args:
        plan: A plan whose strategy has buckets.

    Returns:
        One row a bucket, shortest first, empty ones too: bucket_id, bucket, bucket_from_tokens, bucket_to_tokens (null
        for the last), num_batches, share_of_batches, num_samples, share_of_samples, num_tokens, share_of_tokens (real
        tokens after the cut), padded_tokens, padding_efficiency (null for an empty bucket).

    Raises:
        ValueError: If the plan has no buckets.
    """
    if plan.config.bucket_bounds is None or (plan.bucket_ids < 0).any():
        raise ValueError(f'a plan of strategy "{plan.config.strategy}" has no buckets; legal: a plan with buckets')
    sums = (
        plan_table(plan)
        .group_by("bucket_id")
        .agg(
            num_batches=pl.len().cast(pl.Int64),
            num_samples=pl.col("num_samples").sum(),
            num_tokens=pl.col("real_tokens").sum(),
            padded_tokens=pl.col("padded_tokens").sum(),
        )
    )
    counts = ["num_batches", "num_samples", "num_tokens", "padded_tokens"]
    filled = bucket_intervals(plan.config.bucket_bounds).join(sums, on="bucket_id", how="left", maintain_order="left")
    return filled.with_columns(pl.col(counts).fill_null(0)).select(
        *BUCKET_COLUMNS,
        "num_batches",
        (pl.col("num_batches") / pl.col("num_batches").sum()).alias("share_of_batches"),
        "num_samples",
        (pl.col("num_samples") / pl.col("num_samples").sum()).alias("share_of_samples"),
        "num_tokens",
        (pl.col("num_tokens") / pl.col("num_tokens").sum()).alias("share_of_tokens"),
        "padded_tokens",
        pl.when(pl.col("padded_tokens") > 0)
        .then(pl.col("num_tokens") / pl.col("padded_tokens"))
        .alias("padding_efficiency"),
    )


def pairs_together_again(plan: BatchPlan, next_plan: BatchPlan) -> PairCount:
    """Count exactly how many pairs of samples that share a batch share one again.

    Samples are grouped by (batch in the first plan, batch in the second); all pairs of a group are together in both.
    That needs one sort and no work on pairs.

    Args:
        plan: The plan of one epoch.
        next_plan: The plan of another epoch over the same samples.

    Returns:
        The two counts; a pair with a sample that the second plan leaves out is not together again.

    Raises:
        ValueError: If a plan holds a sample twice.
    """
    num_ids = 1 + int(max(plan.sample_ids.max(), next_plan.sample_ids.max()))
    batches = _batch_of_sample(plan, num_ids)
    next_batches = _batch_of_sample(next_plan, num_ids)
    shared = (batches >= 0) & (next_batches >= 0)
    groups = np.sort(batches[shared] * len(next_plan) + next_batches[shared])
    edges = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1], [True]])) if groups.size else np.zeros(1)
    return PairCount(num_pairs=_pairs(plan.batch_sizes), num_together_again=_pairs(np.diff(edges)))


def _batch_of_sample(plan: BatchPlan, num_ids: int) -> np.ndarray:
    """int64 (num_ids,), -1 for samples that the plan does not hold."""
    batches = np.full(num_ids, -1, dtype=np.int64)
    batches[plan.sample_ids] = np.repeat(np.arange(len(plan)), plan.batch_sizes)
    num_held = np.count_nonzero(batches >= 0)
    if num_held != len(plan.sample_ids):
        raise ValueError(f"the plan of epoch {plan.epoch} holds {len(plan.sample_ids) - num_held} samples twice")
    return batches


def _pairs(sizes: np.ndarray) -> int:
    sizes = sizes.astype(np.int64)
    return int((sizes * (sizes - 1) // 2).sum())
