"""The laws of a plan, checked one after the other."""

from __future__ import annotations

import numpy as np

from dflash_lab.batching.bounds import bucket_of, check_lengths
from dflash_lab.batching.plan import BatchPlan


def check_plan(plan: BatchPlan, lengths: object) -> None:
    """Hold a plan to every law; see `BatchPlan.validate`."""
    cut = np.minimum(check_lengths(lengths), plan.config.max_seq_len)
    num_batches = len(plan)
    _law(num_batches >= 1, "no batches")
    _law(
        len(plan.offsets) == num_batches + 1 and len(plan.bucket_ids) == num_batches,
        f"{num_batches} widths, {len(plan.offsets)} offsets and {len(plan.bucket_ids)} bucket ids do not agree",
    )
    _law(len(plan.sample_lengths) == len(plan.sample_ids), "not one length a sample")
    _law(
        plan.offsets[0] == 0 and plan.offsets[-1] == len(plan.sample_ids) and (plan.batch_sizes >= 1).all(),
        "offsets do not cut the samples into batches of at least one",
    )
    for name, ids in {"batches": plan.sample_ids, **plan.left_out}.items():
        _law(not ids.size or (ids.min() >= 0 and ids.max() < len(cut)), f"{name}: ids outside [0, {len(cut)})")
    _first(plan.sample_lengths != cut[plan.sample_ids], "the length differs from the data at place")
    seen = np.bincount(plan.sample_ids, minlength=len(cut))
    _first(seen > 1, "more than one batch holds sample")
    for ids in plan.left_out.values():
        seen += np.bincount(ids, minlength=len(cut))
    _first(seen == 0, "neither planned nor left out: sample")
    _first(seen > 1, "planned and left out, or left out twice: sample")
    over_budget = plan.left_out.get("over_budget", np.arange(0))
    _first(cut[over_budget] <= plan.config.token_budget, "left out as over_budget but fits: place")
    _first(plan.batch_sizes > plan.config.max_batch_size, "more than max_batch_size samples in batch")
    costs = plan.real_tokens_by_batch if plan.layout == "packed" else plan.padded_tokens_by_batch
    _first(costs > plan.config.token_budget, "over token_budget: batch")
    if plan.layout == "padded":
        longest = np.maximum.reduceat(plan.sample_lengths, plan.offsets[:-1])
        _first(longest != plan.widths, "the width is not the longest sample in batch")
    else:
        _first(plan.widths != plan.config.token_budget, "the width is not the budget in row")
    if plan.config.strategy == "bucketed":
        _law(plan.config.bucket_bounds is not None, "bucketed without bounds")
        buckets = bucket_of(plan.sample_lengths, plan.config.bucket_bounds)
        _first(buckets != np.repeat(plan.bucket_ids, plan.batch_sizes), "a batch of another bucket at place")
    else:
        _first(plan.bucket_ids != -1, f"a bucket id in a plan of strategy {plan.config.strategy}: batch")


def _law(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(f"broken plan: {message}")


def _first(broken: np.ndarray, message: str) -> None:
    places = np.flatnonzero(broken)
    _law(not places.size, f"{message} {places[0] if places.size else ''} ({places.size} in all)")
