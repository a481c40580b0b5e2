"""The batches of each step, for a log that does not name them: from the plans that the run followed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from dflash_lab.batching import BatchPlan
from dflash_lab.batching.config import whole_number

COLUMNS = ("bucket_ids", "num_samples", "real_tokens", "padded_tokens", "length_min", "length_max")


def add_planned_batches(
    table: pl.DataFrame, plans: Sequence[BatchPlan], *, accumulation: int, across_epochs: bool = False
) -> pl.DataFrame:
    """Say which batches each step of a log was made of.

    Step s trains the s-th window of `accumulation` batches, in the order of the plans.

    Args:
        table: One row an optimizer step: at least step, counted from 1.
        plans: Of the run's epochs, in order; those of epochs that the log does not reach may be missing.
        accumulation: Batches a step, >= 1.
        across_epochs: Whether a window that an epoch's end cuts short goes on with the next epoch's batches, rather
            than being a step of its own.

    Returns:
        The table with a list a step of bucket_ids (-1 for none), num_samples, real_tokens and padded_tokens of its
        batches, and length_min and length_max in tokens; columns of these names are replaced.

    Raises:
        ValueError: If the log has steps that the plans do not reach, or before step 1.
    """
    whole_number("accumulation", accumulation, least=1)
    if not plans:
        raise ValueError("plans is empty; legal: the plans of the run's epochs, at least the first one")
    sizes = [len(plan) for plan in plans]
    ends = _window_ends(sizes, accumulation, across_epochs=across_epochs)
    steps = table["step"].to_numpy()
    if len(steps) and (steps.min() < 1 or steps.max() > len(ends)):
        raise ValueError(
            f"the log has steps {steps.min():,} to {steps.max():,}, and {len(plans)} plans of {sum(sizes):,} batches "
            f"make {len(ends):,} steps of {accumulation}; legal: a plan for each epoch that the log reaches"
        )
    begins = np.concatenate([[0], ends[:-1]])[steps - 1]
    counts = ends[steps - 1] - begins
    # Batch numbers of all steps, one step after the other.
    places = np.repeat(begins - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    by_batch = {
        "bucket_ids": [plan.bucket_ids for plan in plans],
        "num_samples": [plan.batch_sizes for plan in plans],
        "real_tokens": [plan.real_tokens_by_batch for plan in plans],
        "padded_tokens": [plan.padded_tokens_by_batch for plan in plans],
        "length_min": [np.minimum.reduceat(plan.sample_lengths, plan.offsets[:-1]) for plan in plans],
        "length_max": [np.maximum.reduceat(plan.sample_lengths, plan.offsets[:-1]) for plan in plans],
    }
    of_step = np.repeat(np.arange(len(steps)), counts)
    batches = pl.DataFrame({name: np.concatenate(held)[places].astype(np.int64) for name, held in by_batch.items()})
    lists = (
        batches.with_columns(row=pl.Series(of_step, dtype=pl.Int64))
        .group_by("row", maintain_order=True)
        .agg(
            pl.col("bucket_ids", "num_samples", "real_tokens", "padded_tokens"),
            pl.col("length_min").min(),
            pl.col("length_max").max(),
        )
    )
    return table.with_columns(lists[name] for name in COLUMNS)


def crosses_epochs(sizes: Sequence[int], accumulation: int, total_steps: int) -> bool | None:
    """Tell from the number of steps whether windows go on across the ends of epochs.

    Args:
        sizes: Batches of every epoch of the run.
        accumulation: Batches a step.
        total_steps: Optimizer steps of the run.

    Returns:
        True or False; None where neither gives that number of steps.
    """
    for across in (False, True):
        if len(_window_ends(sizes, accumulation, across_epochs=across)) == total_steps:
            return across
    return None


def _window_ends(sizes: Sequence[int], accumulation: int, *, across_epochs: bool) -> np.ndarray:
    """Batches of the whole run that are trained after each step: int64 (num_steps,)."""
    parts = [sum(sizes)] if across_epochs else list(sizes)
    ends, before = [], 0
    for size in parts:
        ends.append(before + np.minimum(np.arange(accumulation, size + accumulation, accumulation), size))
        before += size
    return np.concatenate(ends).astype(np.int64)
