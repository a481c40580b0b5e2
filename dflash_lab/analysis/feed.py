"""Tables of a feed: how full its queues are, who waits for whom, and how many workers keep up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import polars as pl


class PipelineSizes(Protocol):
    """Sizes of a pipeline, as in `feed.PipelineConfig`."""

    @property
    def depth(self) -> int:
        """Most batches in each target's queue."""


class SeenPipeline(Protocol):
    """What was seen of a pipeline, such as a `feed.Rehearsal`; times in seconds of the run that it stands in for."""

    @property
    def config(self) -> PipelineSizes:
        """Its sizes."""

    @property
    def seconds(self) -> np.ndarray:
        """When depths were read: float64 (num_samples,)."""

    @property
    def q_pre(self) -> np.ndarray:
        """Batches in each target's queue: int64 (num_samples, num_targets)."""

    @property
    def worker_busy_seconds(self) -> np.ndarray:
        """Reading and collating: float64 (num_workers,)."""

    @property
    def worker_blocked_seconds(self) -> np.ndarray:
        """Without room for a batch: float64 (num_workers,)."""

    @property
    def target_busy_seconds(self) -> np.ndarray:
        """Computing: float64 (num_targets,)."""

    @property
    def target_starved_seconds(self) -> np.ndarray:
        """Without a batch: float64 (num_targets,)."""

    @property
    def target_blocked_seconds(self) -> np.ndarray:
        """Without room for features: float64 (num_targets,)."""

    @property
    def drafter_busy_seconds(self) -> float:
        """Training."""

    @property
    def drafter_starved_seconds(self) -> float:
        """Without features."""

    @property
    def batches_by_target(self) -> np.ndarray:
        """Batches that each target was through with: int64 (num_targets,)."""

    @property
    def trained_seconds(self) -> np.ndarray:
        """When each batch was trained: float64 (num_trained,)."""

    @property
    def batches_per_second(self) -> float:
        """Rate, once the queues had found their level."""

    @property
    def bounding_stage(self) -> str:
        """The stage that waits least."""


class WorkerGrid(Protocol):
    """Smallest numbers of workers over a grid, such as `feed.WorkersNeeded`."""

    @property
    def read_tokens_per_second(self) -> np.ndarray:
        """Real tokens that one worker reads: float64 (num_speeds,)."""

    @property
    def batches_per_second(self) -> np.ndarray:
        """Rates of the targets: float64 (num_rates,)."""

    @property
    def num_workers(self) -> np.ndarray:
        """The number, -1 for none: int64 (num_rates, num_speeds)."""


def queue_depth_table(rehearsals: Mapping[str, SeenPipeline]) -> pl.DataFrame:
    """List the depths of all targets' queues over time.

    Args:
        rehearsals: Name -> what was seen.

    Returns:
        One row a rehearsal, moment and target: rehearsal, time_seconds, target_id, depth_batches, capacity_batches
        (the most that the queue holds).
    """
    tables = []
    for name, seen in rehearsals.items():
        num_samples, num_targets = seen.q_pre.shape
        columns = {
            "time_seconds": np.repeat(seen.seconds, num_targets),
            "target_id": np.tile(np.arange(num_targets), num_samples),
            "depth_batches": seen.q_pre.astype(np.int64).reshape(-1),
        }
        tables.append(
            pl.DataFrame(columns).select(pl.lit(name).alias("rehearsal"), pl.all(), capacity_batches=seen.config.depth)
        )
    return pl.concat(_some(tables, "rehearsals"))


def queue_summary(rehearsals: Mapping[str, SeenPipeline], *, skip_share: float = 0.25) -> pl.DataFrame:
    """Sum up how level the queues were, and what the targets lost by it.

    Args:
        rehearsals: Name -> what was seen.
        skip_share: Share of the time at the beginning, when queues fill, whose depths are left out; in [0, 1).

    Returns:
        One row a rehearsal: rehearsal, num_targets, capacity_batches, depth_min_batches and depth_max_batches (over
        targets and time), spread_mean_batches (fullest less emptiest queue, mean over time), spread_last_batches (at
        the end), starved_share_max and starved_share (of the target that waited most, and of all together; share of
        the whole time), batches_per_second, num_trained_batches, bounding_stage.

    Raises:
        ValueError: If there is no rehearsal, or the share is out of range.
    """
    if not 0 <= skip_share < 1:
        raise ValueError(f"skip_share is {skip_share}; legal: a number in [0, 1)")
    rows = []
    for name, seen in rehearsals.items():
        elapsed = float(seen.trained_seconds[-1])
        depths = seen.q_pre[seen.seconds >= skip_share * seen.seconds[-1]]
        spread = depths.max(axis=1) - depths.min(axis=1)
        starved = np.minimum(seen.target_starved_seconds, elapsed)
        rows.append(
            {
                "rehearsal": name,
                "num_targets": depths.shape[1],
                "capacity_batches": seen.config.depth,
                "depth_min_batches": int(depths.min()),
                "depth_max_batches": int(depths.max()),
                "spread_mean_batches": float(spread.sum() / len(spread)),
                "spread_last_batches": int(spread[-1]),
                "starved_share_max": float(starved.max() / elapsed),
                "starved_share": float(starved.sum() / (elapsed * len(starved))),
                "batches_per_second": seen.batches_per_second,
                "num_trained_batches": len(seen.trained_seconds),
                "bounding_stage": seen.bounding_stage,
            }
        )
    return pl.DataFrame(_some(rows, "rehearsals"))


def starvation_table(rehearsals: Mapping[str, SeenPipeline]) -> pl.DataFrame:
    """List what each target did with its time.

    Args:
        rehearsals: Name -> what was seen.

    Returns:
        One row a rehearsal and target: rehearsal, target_id, num_batches, busy_seconds, starved_seconds (without a
        batch), blocked_seconds (without room for features), starved_share (starved / the whole time).
    """
    tables = []
    for name, seen in rehearsals.items():
        elapsed = float(seen.trained_seconds[-1])
        columns = {
            "target_id": np.arange(len(seen.batches_by_target)),
            "num_batches": seen.batches_by_target,
            "busy_seconds": seen.target_busy_seconds,
            "starved_seconds": seen.target_starved_seconds,
            "blocked_seconds": seen.target_blocked_seconds,
            "starved_share": np.minimum(seen.target_starved_seconds / elapsed, 1.0),
        }
        tables.append(pl.DataFrame(columns).select(pl.lit(name).alias("rehearsal"), pl.all()))
    return pl.concat(_some(tables, "rehearsals"))


def stage_table(rehearsals: Mapping[str, SeenPipeline]) -> pl.DataFrame:
    """List what each stage did with its time, and which one bounds the rate.

    Args:
        rehearsals: Name -> what was seen.

    Returns:
        Three rows a rehearsal, in the order of the data: rehearsal, stage ("workers", "targets", "drafter"),
        num_members, busy_seconds, starved_seconds (waiting for input) and blocked_seconds (waiting for room), each
        summed over the members, busy_share (of their time together), bounds_the_rate.
    """
    rows = []
    for name, seen in rehearsals.items():
        stages = {
            "workers": (seen.worker_busy_seconds, 0.0, seen.worker_blocked_seconds),
            "targets": (seen.target_busy_seconds, seen.target_starved_seconds, seen.target_blocked_seconds),
            "drafter": (seen.drafter_busy_seconds, seen.drafter_starved_seconds, 0.0),
        }
        elapsed = float(seen.trained_seconds[-1])
        for stage, (busy, starved, blocked) in stages.items():
            rows.append(
                {
                    "rehearsal": name,
                    "stage": stage,
                    "num_members": np.size(busy),
                    "busy_seconds": float(np.sum(busy)),
                    "starved_seconds": float(np.sum(starved)),
                    "blocked_seconds": float(np.sum(blocked)),
                    "busy_share": min(float(np.sum(busy)) / (elapsed * np.size(busy)), 1.0),
                    "bounds_the_rate": stage == seen.bounding_stage,
                }
            )
    return pl.DataFrame(_some(rows, "rehearsals"))


def workers_needed_table(needed: WorkerGrid) -> pl.DataFrame:
    """List the smallest numbers of workers that keep up.

    Args:
        needed: The numbers over reading speeds and rates.

    Returns:
        One row a rate and speed: batches_per_second, read_tokens_per_second (one worker's), num_workers (null where
        none of the numbers that were tried keeps up).
    """
    num_rates, num_speeds = needed.num_workers.shape
    table = pl.DataFrame(
        {
            "batches_per_second": np.repeat(needed.batches_per_second, num_speeds),
            "read_tokens_per_second": np.tile(needed.read_tokens_per_second, num_rates),
            "num_workers": needed.num_workers.reshape(-1),
        }
    )
    return table.with_columns(num_workers=pl.when(pl.col("num_workers") >= 0).then("num_workers"))


def _some(parts: list, name: str) -> list:
    if not parts:
        raise ValueError(f"{name} is empty; legal: at least one")
    return parts
