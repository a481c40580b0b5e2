"""What a pipeline of reading, targets and one drafter is made of, and what is seen of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SERVICES = ("emptiest", "round_robin")
STAGES = ("workers", "targets", "drafter")
# Depths are given at so many moments of a rehearsal.
NUM_SAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Rates and sizes of the stages; seconds are those of the run that is stood in for.

    Features are trained in the order in which they arrive, as in the source run.

    Args:
        num_targets: Copies of the target, each with a queue of its own; >= 1.
        num_workers: Threads that read and collate; >= 1.
        depth: Most batches in each target's queue; >= 1.
        feature_depth: Most batches of target features that wait for the drafter; >= 1.
        batches_per_second: Rate of all targets together, if none ever waits; > 0. The source run's was 0.65.
        drafter_share: Share of its time that the drafter computes when batches come at that rate; > 0, and above 1 it
            is the drafter that bounds the rate.
        target_spread: Speeds of the targets are drawn between 1 - spread and 1 + spread; in [0, 1).
        cost_spread: Standard deviation of what single batches cost a target, over their mean; >= 0.
        read_tokens_per_second: Real tokens that one worker reads, such as those of a slow disk; None for no waiting.
        service: For whom a worker reads next. "emptiest": for the target with the fewest batches, batch i of the plan
            being for target i % num_targets, as in `BatchPrefetcher`. "round_robin": each worker goes from queue to
            queue in turn, and waits where the queue is full.
        seed: Seed of speeds and costs, >= 0.
    """

    num_targets: int = 6
    num_workers: int = 2
    depth: int = 50
    feature_depth: int = 2
    batches_per_second: float = 0.65
    drafter_share: float = 0.9
    target_spread: float = 0.3
    cost_spread: float = 0.0
    read_tokens_per_second: float | None = None
    service: str = "emptiest"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_targets", "num_workers", "depth", "feature_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; legal: a whole number >= 1")
        for name in ("batches_per_second", "drafter_share", "read_tokens_per_second"):
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf):
                raise ValueError(f"{name} is {value}; legal: a finite number > 0")
        if not 0 <= self.target_spread < 1:
            raise ValueError(f"target_spread is {self.target_spread}; legal: a number in [0, 1)")
        if not 0 <= self.cost_spread < math.inf:
            raise ValueError(f"cost_spread is {self.cost_spread}; legal: a finite number >= 0")
        if self.service not in SERVICES:
            raise ValueError(f"service is {self.service!r}; legal: {', '.join(SERVICES)}")

    @property
    def target_speeds(self) -> np.ndarray:
        """Speed of each target: float64 (num_targets,), with a mean of 1."""
        rng = np.random.default_rng((self.seed, 0))
        speeds = rng.uniform(1 - self.target_spread, 1 + self.target_spread, self.num_targets)
        return speeds / speeds.mean()

    @property
    def drafter_seconds(self) -> float:
        """Time that the drafter takes for one batch."""
        return self.drafter_share / self.batches_per_second

    def most_numbers(self, num_batches: int) -> int:
        """Give how many batches a plan needs so that no target ends before so many are trained, whoever is fastest."""
        held = self.num_workers + self.num_targets * (self.depth + 1) + self.feature_depth + 1
        return self.num_targets * (num_batches + held)

    def target_seconds(self, num_batches: int) -> np.ndarray:
        """Time that each batch takes on a target of speed 1: float64 (num_batches,).

        The costs are gamma distributed, so that none is negative however wide they spread.
        """
        mean = self.num_targets / self.batches_per_second
        if not self.cost_spread:
            return np.full(num_batches, mean)
        shape = self.cost_spread**-2
        return mean * np.random.default_rng((self.seed, 1)).gamma(shape, 1 / shape, num_batches)

    def read_seconds(self, tokens: np.ndarray) -> np.ndarray:
        """Time that one worker reads at each batch: float64, as many as `tokens`."""
        if self.read_tokens_per_second is None:
            return np.zeros(len(tokens))
        return tokens / self.read_tokens_per_second


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """What was seen of a pipeline, in seconds of the run that it stands in for, from the start on.

    Args:
        config: Its rates and sizes.
        seconds: float64 (num_samples,), when the depths were read.
        q_pre: int64 (num_samples, num_targets), batches in each target's queue.
        q_hs: int64 (num_samples,), batches of features that waited for the drafter.
        worker_busy_seconds: float64 (num_workers,), reading and collating.
        worker_blocked_seconds: float64 (num_workers,), with a batch in hand and no room for it.
        target_busy_seconds: float64 (num_targets,), computing.
        target_starved_seconds: float64 (num_targets,), without a batch.
        target_blocked_seconds: float64 (num_targets,), with features in hand and no room for them.
        drafter_busy_seconds: Training.
        drafter_starved_seconds: Without features.
        batches_by_target: int64 (num_targets,), batches that each target was through with.
        batch_ids: int64 (num_trained,), in the order of training.
        trained_seconds: float64 (num_trained,), when each was trained.
    """

    config: PipelineConfig
    seconds: np.ndarray
    q_pre: np.ndarray
    q_hs: np.ndarray
    worker_busy_seconds: np.ndarray
    worker_blocked_seconds: np.ndarray
    target_busy_seconds: np.ndarray
    target_starved_seconds: np.ndarray
    target_blocked_seconds: np.ndarray
    drafter_busy_seconds: float
    drafter_starved_seconds: float
    batches_by_target: np.ndarray
    batch_ids: np.ndarray
    trained_seconds: np.ndarray

    @property
    def elapsed_seconds(self) -> float:
        """Time until the last batch was trained."""
        return float(self.trained_seconds[-1])

    @property
    def batches_per_second(self) -> float:
        """Rate over the second half of the batches, when the queues have found their level."""
        half = len(self.trained_seconds) // 2
        first, last = self.trained_seconds[[max(half - 1, 0), -1]]
        num_batches = len(self.trained_seconds) - max(half, 1)
        return num_batches / float(last - first) if num_batches else 1 / self.elapsed_seconds

    @property
    def starved_share(self) -> np.ndarray:
        """Share of the time that each target was without a batch: float64 (num_targets,), in [0, 1]."""
        return np.minimum(self.target_starved_seconds / self.elapsed_seconds, 1.0)

    @property
    def bounding_stage(self) -> str:
        """Whose busiest member waits least: "workers", "targets" or "drafter"."""
        busy = (self.worker_busy_seconds.max(), self.target_busy_seconds.max(), self.drafter_busy_seconds)
        return STAGES[int(np.argmax(busy))]
