"""Bucket bounds chosen in several ways, each planned: how many buckets, which bounds, and whether it matters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import polars as pl

from dflash_lab.batching import (
    BatchingConfig,
    bounds_curve,
    equal_token_bounds,
    expected_batches,
    least_possible_batches,
    padding_cost,
    plan_epoch,
)
from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.config import check_bounds, whole_number

GIVEN = "given"
NUM_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def bounds_table(
    lengths: object,
    config: BatchingConfig,
    *,
    num_buckets: Sequence[int] = NUM_BUCKETS,
    given: Sequence[int] | None = None,
    epoch: int = 0,
) -> pl.DataFrame:
    """Plan the lengths with bounds of equal tokens, of least padding and of fewest batches, for each number of buckets.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.
        config: Budget, cut, cap and seed; strategy, order and bounds do not matter here.
        num_buckets: Numbers of buckets to try, each >= 1.
        given: Bounds to put beside them, increasing whole numbers starting at 0; None for none.
        epoch: Epoch to plan, >= 0.

    Returns:
        One row a way to choose and number: kind ("equal tokens", "least padding", "fewest batches", "given"),
        num_buckets (as asked), num_buckets_made, bucket_bounds (list), bucket_edge_efficiency (real / padded tokens
        when each sample is padded to its bucket's longest), expected_batches (by the formula), num_batches,
        padding_efficiency and budget_use (of the plan), excess_over_least (batches / the least that any padded plan
        needs - 1), last_bucket_share_of_batches.

    Raises:
        ValueError: If `num_buckets` is empty or out of range, bounds are not legal, or a plan is refused.
    """
    wanted = [whole_number("num_buckets", number, least=1) for number in num_buckets]
    if not wanted:
        raise ValueError("num_buckets is empty; legal: at least one whole number >= 1")
    cut = np.minimum(check_lengths(lengths), config.max_seq_len)
    # The plan leaves longer ones out, or refuses them.
    usable = cut[cut <= config.token_budget]
    if not len(usable):
        raise ValueError(f"no sample is left: all {len(cut)} are longer than token_budget {config.token_budget}")
    limits = {"token_budget": config.token_budget, "max_batch_size": config.max_batch_size}
    ways = [("equal tokens", number, equal_token_bounds(usable, number)) for number in wanted]
    points = bounds_curve(usable, num_buckets=wanted, **limits)
    ways += [("least padding", point.num_buckets, point.least_padding) for point in points]
    ways += [("fewest batches", point.num_buckets, point.least_batches) for point in points]
    if given is not None:
        bounds = check_bounds(given)
        ways.append((GIVEN, len(bounds) - 1, bounds))
    least = least_possible_batches(usable, **limits)
    unordered = dataclasses.replace(config, strategy="bucketed", order="as_built", longest_first=0)
    rows = []
    for kind, number, bounds in ways:
        plan = plan_epoch(cut, dataclasses.replace(unordered, bucket_bounds=bounds), epoch=epoch)
        rows.append(
            {
                "kind": kind,
                "num_buckets": number,
                "num_buckets_made": len(bounds) - 1,
                "bucket_bounds": list(bounds),
                "bucket_edge_efficiency": int(usable.sum()) / padding_cost(usable, bounds),
                "expected_batches": expected_batches(usable, bounds, **limits),
                "num_batches": len(plan),
                "padding_efficiency": plan.padding_efficiency,
                "budget_use": plan.budget_use,
                "excess_over_least": len(plan) / least - 1,
                "last_bucket_share_of_batches": np.count_nonzero(plan.bucket_ids == len(bounds) - 2) / len(plan),
            }
        )
    return pl.DataFrame(rows)
