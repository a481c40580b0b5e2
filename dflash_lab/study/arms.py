"""One arm of a study, from first weights to its log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dflash_lab.batching import BatchPlan
from dflash_lab.data import Sample
from dflash_lab.drafter import AnchorBudget, Drafter
from dflash_lab.feed import BatchPrefetcher, collate
from dflash_lab.study.budgets import equal_budget
from dflash_lab.study.features import StudyFeatures
from dflash_lab.study.gradients import (
    BucketGradients,
    MicroBatchRecord,
    ProbedMicroBatch,
    StepGradients,
    bucket_gradients,
    bucket_of,
)
from dflash_lab.study.material import StudyMaterial
from dflash_lab.study.settings import ArmSpec, StudySettings
from dflash_lab.target import TargetFeatures
from dflash_lab.training import DrafterTrainLoop, RunConfig, ScheduleConfig, StepOutcome, TooManySkippedSteps
from dflash_lab.training.assembly import drafter_config, make_optimizer, plan_samples
from dflash_lab.training.position import Course
from dflash_lab.training.validation import HeldOutScorer
from dflash_lab.training.window import FeatureWindow

ARM, METRICS, SCORES, BUCKETS = "arm.json", "metrics.jsonl", "scores.jsonl", "buckets.jsonl"
# Draws the samples whose gradients are looked at: the same ones in every arm of a seed, and others in another seed.
_HALVES_KEY = 0x6A1F
# Blocks behind half a bucket's gradient, so that long buckets are seen as well as short ones, and padded tokens that
# they may lie in, in token budgets of a micro-batch. With 32 blocks in one budget the last bucket was noise alone.
_LOOK_BLOCKS, _LOOK_BUDGETS = 256, 4


@dataclass(frozen=True, kw_only=True)
class ArmLog:
    """What an arm did, as plain data.

    Args:
        arm: Its settings, in words and numbers, and its totals.
        steps: One row an optimizer step.
        scores: One row a scoring of held-out samples.
        buckets: One row a look at the buckets' gradients, at every second of those, the last among them.
    """

    arm: dict[str, object]
    steps: list[dict[str, object]]
    scores: list[dict[str, object]]
    buckets: list[dict[str, object]]

    def write(self, folder: Path) -> None:
        """Write it into a folder that is there.

        Args:
            folder: Where to; files of these names are replaced.

        Raises:
            ValueError: If a number is not finite.
        """
        for name, rows in ((METRICS, self.steps), (SCORES, self.scores), (BUCKETS, self.buckets)):
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
            (folder / name).write_text(text, encoding="utf-8")
        # Last: where it is, the others are.
        (folder / ARM).write_text(json.dumps(self.arm, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def train_arm(
    spec: ArmSpec,
    settings: StudySettings,
    material: StudyMaterial,
    features: StudyFeatures,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> ArmLog:
    """Train one arm.

    Args:
        spec: Which.
        settings: The study's.
        material: Target and samples.
        features: Their features.
        on_step: Called after each step; what it raises ends the arm.

    Returns:
        Its log: a function of the arguments, but for the seconds.

    Raises:
        TooManySkippedSteps: If loss or gradient was not finite too often in a row.
    """
    return _Arm(spec, settings, material, features).train(on_step)


class _Arm:
    """The parts of an arm, put together."""

    def __init__(
        self, spec: ArmSpec, settings: StudySettings, material: StudyMaterial, features: StudyFeatures
    ) -> None:
        self.spec, self.settings, self.material, self.features = spec, settings, material, features
        config = self._config(1)
        self.plans = [
            plan_samples(material.train, material.train_ids, config.batching, epoch=epoch)
            for epoch in range(config.epochs)
        ]
        self.budget = equal_budget(
            spec.anchors_per,
            anchors_per_sample=settings.anchors_per_sample,
            num_valid=material.num_valid(),
            num_batches=len(self.plans[0]),
        )
        self.config = self._config(self.budget.amount)
        self.course = Course(tuple(map(len, self.plans)), self.config.accumulation)
        drafter = Drafter(drafter_config(self.config.drafter, material.target), seed=spec.seed)
        schedule = ScheduleConfig.of(self.config.optimizer, self.config.noise, self.course.total_steps)
        optimizer = make_optimizer(drafter, self.config)
        self.loop = DrafterTrainLoop(drafter, optimizer, material.target, self.config, schedule)
        self.probe = ProbedMicroBatch(
            drafter, material.target, self.config, bounds=settings.bucket_bounds, normalisation=spec.normalisation
        )
        self.loop.micro_batch = self.probe
        self.gradients = StepGradients(optimizer, list(drafter.parameters()))
        self.scorer = HeldOutScorer(
            material.split,
            features.held_out,  # type: ignore[arg-type]
            drafter,
            material.target,
            self.config,
        )
        total = self.course.total_steps
        points = [round(total * (number + 1) / settings.num_scores) for number in range(settings.num_scores)]
        self.scored_at = set(points)
        # A look at all buckets costs as much as some steps do: every second time, the end among them.
        self.looked_at = set(points[::-1][::2])

    def train(self, on_step: Callable[[], None]) -> ArmLog:
        begin = time.perf_counter()
        steps: list[dict[str, object]] = []
        scores: list[dict[str, object]] = []
        buckets: list[dict[str, object]] = []
        halves = self._halves()
        trained = {"real_tokens_trained": 0, "padded_tokens_trained": 0, "blocks_trained": 0}
        num_skipped_in_a_row = 0
        for epoch, outcome in self._outcomes():
            records = self.probe.take_records()
            trained["real_tokens_trained"] += sum(record.real_tokens for record in records)
            trained["padded_tokens_trained"] += sum(record.padded_tokens for record in records)
            trained["blocks_trained"] += sum(record.num_blocks for record in records)
            steps.append(_step_row(self.loop.step, epoch, outcome, records, self.gradients.cosine))
            num_skipped_in_a_row = 0 if outcome.updated else num_skipped_in_a_row + 1
            if num_skipped_in_a_row > self.config.optimizer.max_skipped_in_a_row:
                raise TooManySkippedSteps(
                    f"arm {self.spec.folder}: {outcome.skipped} at {num_skipped_in_a_row} steps in a row, the last one "
                    f"step {self.loop.step}"
                )
            if self.loop.step in self.scored_at:
                at = {"step": self.loop.step, **trained}
                scores.append({**at, **self.scorer.score_held_out()})
            if self.loop.step in self.looked_at:
                at = {"step": self.loop.step, **trained}
                budget = AnchorBudget(per="batch", amount=_LOOK_BLOCKS)
                buckets.append({**at, **_bucket_row(bucket_gradients(self.probe, halves, budget=budget))})
            on_step()
        self.gradients.close()
        arm = {
            **asdict(self.spec),
            "label": self.spec.label,
            "batching": self.spec.batching,
            "anchors_amount": self.budget.amount,
            "bucket_bounds": list(self.settings.bucket_bounds),
            "num_steps": self.course.total_steps,
            "num_batches": self.course.total_batches,
            **trained,
            "seconds": time.perf_counter() - begin,
        }
        return ArmLog(arm=arm, steps=steps, scores=scores, buckets=buckets)

    def _config(self, anchors: float) -> RunConfig:
        return self.settings.run_config(self.spec, mask_token_id=self.material.mask_token_id, anchors=anchors)

    def _outcomes(self) -> Iterator[tuple[int, StepOutcome]]:
        """Make one step after the other."""
        for epoch, plan in enumerate(self.plans):
            with BatchPrefetcher(self.material.train, plan, num_workers=1, depth=2, pin_memory=False) as batches:
                stored = map(self.features.train.features, batches)
                for num_batches in _windows(plan, self.config.accumulation):
                    yield epoch, self.loop.train_window(FeatureWindow(stored, num_batches, keep_first=False))

    def _halves(self) -> list[tuple[TargetFeatures | None, TargetFeatures | None]]:
        """Give two batches of each bucket's samples, each within four token budgets: the same in all arms of a seed."""
        ids, cut = self.material.train_ids, self.settings.max_seq_len
        lengths = np.minimum(self.material.train.lengths[ids], cut)
        rng = np.random.default_rng((self.settings.data_seed, _HALVES_KEY, self.spec.seed))
        order = np.argsort(rng.bit_generator.random_raw(len(ids)), kind="stable")
        buckets = bucket_of(lengths, self.settings.bucket_bounds)
        pairs = []
        for bucket in range(len(self.settings.bucket_bounds) - 1):
            own = order[buckets[order] == bucket]
            # Dealt in turns; a bucket with a single sample has no second half.
            pairs.append(tuple(self._batch(own[part::2], lengths) for part in range(2)))
        return pairs  # type: ignore[return-value]

    def _batch(self, places: np.ndarray, lengths: np.ndarray) -> TargetFeatures | None:
        if not len(places):
            return None
        cost = np.maximum.accumulate(lengths[places]) * np.arange(1, len(places) + 1)
        room = _LOOK_BUDGETS * self.settings.token_budget
        fitting = places[: max(1, int(np.searchsorted(cost, room, side="right")))]
        samples = []
        for place in fitting.tolist():
            sample = self.material.train[int(self.material.train_ids[place])]
            length = int(lengths[place])
            samples.append(Sample(sample.input_ids[:length], sample.loss_mask[:length], sample.sample_id))
        return self.features.train.features(collate(samples))


def _windows(plan: BatchPlan, accumulation: int) -> list[int]:
    """Micro-batches of each step of an epoch; the last may have fewer."""
    return [min(accumulation, len(plan) - first) for first in range(0, len(plan), accumulation)]


def _step_row(
    step: int, epoch: int, outcome: StepOutcome, records: list[MicroBatchRecord], cosine: float | None
) -> dict[str, object]:
    """Give a step as plain data, in the names of a run's metrics where there are such."""
    loss_sum = sum(record.loss_sum for record in records)
    columns = {name: [asdict(record)[name] for record in records] for name in asdict(records[0])}
    for name in ("loss_sum", "loss_weight", "num_blocks", "grad_norm"):
        values = columns.pop(name)
        columns[f"micro_{name}"] = [value if math.isfinite(value) else None for value in values]
    return {
        "step": step,
        "epoch": epoch,
        "loss_sum": loss_sum if math.isfinite(loss_sum) else None,
        "loss_weight": sum(record.loss_weight for record in records),
        "num_blocks": sum(record.num_blocks for record in records),
        "accepted_sum": outcome.sums.scores.accepted_sum,
        "grad_norm": outcome.grad_norm if math.isfinite(outcome.grad_norm) else None,
        "cosine_with_last": cosine if outcome.updated else None,
        "learning_rate": outcome.learning_rate,
        "updated": outcome.updated,
        "skipped": outcome.skipped,
        **{name: [_finite(value) for value in values] for name, values in columns.items()},
    }


def _finite(value: object) -> object:
    if isinstance(value, tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _bucket_row(found: BucketGradients) -> dict[str, object]:
    return {
        "half_num_blocks": [list(pair) for pair in found.num_blocks],
        "products": [_finite(row) for row in found.products],
    }
