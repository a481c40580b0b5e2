"""A step that was made once more: its parts, and what of it the run's log says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_lab.analysis.records import record_table
from dflash_lab.drafter import accepted_prefix
from dflash_lab.target import TargetFeatures
from dflash_lab.training.loop import StepOutcome
from dflash_lab.training.micro_batch import Drafted
from dflash_lab.training.run_log import finite


@dataclass(frozen=True, kw_only=True, eq=False)
class StepReplay:
    """One step, looked into.

    Args:
        step: The step.
        epoch: Its epoch.
        from_step: Step of the checkpoint that it was made from; 0 stands for the first weights.
        outcome: What the step did, made again.
        logged: What the run's log says of it, plain data.
        batches: What the ledger says of its batches, plain data, in the order in which they were trained.
        sample_ids: int64 (S,), samples of the step in the order of its batches.
        sample_loss_sum: float64 (S,), sum of weight * loss of each.
        sample_loss_weight: float64 (S,), sum of the weights.
        sample_blocks: int64 (S,), draft blocks.
        position_loss_sum: float64 (block_size - 1,), at slots 1, 2, ... of a block.
        position_loss_weight: float64 (block_size - 1,).
        block_sample_ids: int64 (N,), sample of each draft block, batch after batch.
        block_anchors: int64 (N,), position of its anchor inside the sample.
        block_loss_sum: float64 (N,), sum of weight * loss of each.
        block_accepted: int64 (N,), its right tokens before the first wrong or unsupervised one.
        slot_losses: float64 (N, block_size - 1), loss at slots 1, 2, ... of each block, 0 where one is not scored.
        slot_weights: float64 (N, block_size - 1), its weight, 0 where it is not scored.
        slot_correct: bool (N, block_size - 1), scored and right.
        plan_difference: The first batch in which the ledger is not the plan that the settings make now, in words;
            None where they agree. What is made again is the ledger's.
        matches_checkpoint: Whether the weights after the step are, to the bit, those of the run's checkpoint of that
            step, which proves clip, betas, eps and weight decay; None where there is no such checkpoint.
        environment_differences: What is not as it was when the run made its steps, in words: device, ranks, versions.
            Empty where nothing but the code itself could make other bits.
    """

    step: int
    epoch: int
    from_step: int
    outcome: StepOutcome
    logged: Mapping[str, Any]
    batches: Sequence[Mapping[str, Any]]
    sample_ids: np.ndarray
    sample_loss_sum: np.ndarray
    sample_loss_weight: np.ndarray
    sample_blocks: np.ndarray
    position_loss_sum: np.ndarray
    position_loss_weight: np.ndarray
    block_sample_ids: np.ndarray
    block_anchors: np.ndarray
    block_loss_sum: np.ndarray
    block_accepted: np.ndarray
    slot_losses: np.ndarray
    slot_weights: np.ndarray
    slot_correct: np.ndarray
    plan_difference: str | None
    matches_checkpoint: bool | None
    environment_differences: tuple[str, ...]

    @property
    def loss(self) -> float | None:
        """Loss of the step, made again; None where nothing was scored."""
        sums = self.outcome.sums
        return sums.loss_sum / sums.loss_weight if sums.loss_weight else None

    @property
    def grad_norm(self) -> float:
        """Norm of the gradient before the clip, made again; NaN or infinite where the gradient was."""
        return self.outcome.grad_norm

    @property
    def matches_log(self) -> bool:
        """Whether sums and gradient norm are, to the bit, those that the run logged."""
        mine = self._fields()
        return all(mine[name] == self.logged[name] for name in ("loss_sum", "loss_weight", "grad_norm"))

    @property
    def log_differences(self) -> tuple[str, ...]:
        """Every field of the log's line that was made again and is another one, in words; empty where all agree.

        Times and queues are not made again, nor are draft trees. Of a run with several ranks, the line names batches of
        the first one alone.
        """
        return tuple(
            _difference(name, value, self.logged[name])
            for name, value in self._fields().items()
            if name in self.logged and value != self.logged[name]
        )

    def position_table(self) -> Any:
        """Give the loss by position in the block as a polars table: position, loss_sum, loss_weight, loss, accuracy.

        Null where nothing is scored or the loss is not finite; `figures.plot_replayed_positions` draws it.
        """
        scores = self.outcome.sums.scores
        counts = zip(scores.correct_by_position, scores.total_by_position, strict=True)
        sums = zip(self.position_loss_sum.tolist(), self.position_loss_weight.tolist(), strict=True)
        return record_table(
            {
                "position": at,
                "loss_sum": finite(total),
                "loss_weight": weight,
                "loss": finite(total / weight) if weight else None,
                "accuracy": correct / scored if scored else None,
            }
            for at, ((total, weight), (correct, scored)) in enumerate(zip(sums, counts, strict=True), start=1)
        )

    def _fields(self) -> dict[str, Any]:
        """Give what can be made again, under the log's names and in its form."""
        outcome, sums = self.outcome, self.outcome.sums
        own = [batch for batch in self.batches if batch["rank"] == 0]
        lengths = [length for batch in own for length in batch["lengths"]]
        return {
            "epoch": self.epoch,
            "loss_sum": finite(sums.loss_sum),
            "loss_weight": finite(sums.loss_weight),
            "correct_by_position": list(sums.scores.correct_by_position),
            "total_by_position": list(sums.scores.total_by_position),
            "accepted_sum": sums.scores.accepted_sum,
            "num_blocks": sums.scores.num_blocks,
            "full_accepted_sum": sums.scores.full_accepted_sum,
            "num_full_blocks": sums.scores.num_full_blocks,
            "grad_norm": finite(outcome.grad_norm),
            "learning_rate": outcome.learning_rate,
            "noise": outcome.noise,
            "updated": outcome.updated,
            "skipped": outcome.skipped,
            "batch_ids": [batch["batch_id"] for batch in own],
            "bucket_ids": [batch["bucket_id"] for batch in own],
            "num_samples": [len(batch["sample_ids"]) for batch in own],
            "real_tokens": [batch["real_tokens"] for batch in own],
            "padded_tokens": [batch["padded_tokens"] for batch in own],
            "length_min": min(lengths, default=None),
            "length_max": max(lengths, default=None),
        }


def _difference(name: str, mine: object, logged: object) -> str:
    words = f"{name} is {mine!r} and was {logged!r}"
    if isinstance(mine, float) and isinstance(logged, float) and logged:
        words += f" ({abs(mine - logged) / abs(logged):.1e} of it)"
    return words


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchParts:
    """The losses of one batch, taken apart; names and shapes as in `StepReplay`."""

    sample_ids: np.ndarray
    sample_loss_sum: np.ndarray
    sample_loss_weight: np.ndarray
    sample_blocks: np.ndarray
    position_loss_sum: np.ndarray
    position_loss_weight: np.ndarray
    block_sample_ids: np.ndarray
    block_anchors: np.ndarray
    block_loss_sum: np.ndarray
    block_accepted: np.ndarray
    slot_losses: np.ndarray
    slot_weights: np.ndarray
    slot_correct: np.ndarray

    @classmethod
    def of(cls, drafted: Drafted, features: TargetFeatures) -> BatchParts:
        """Take apart what the drafter made of a batch.

        Args:
            drafted: Its blocks and losses.
            features: The batch's.
        """
        blocks, loss = drafted.blocks, drafted.loss
        losses = loss.losses.detach().cpu().double().numpy()[:, 1:]  # (N, B - 1)
        weights = loss.weights.detach().cpu().double().numpy()[:, 1:]
        weighted = weights * losses
        sample_ids = features.batch.sample_ids.cpu().numpy()
        owners = blocks.documents.cpu().numpy()  # (N,)
        counts = np.bincount(owners, minlength=len(sample_ids))
        return cls(
            sample_ids=sample_ids,
            sample_loss_sum=np.bincount(owners, weights=weighted.sum(1), minlength=len(sample_ids)),
            sample_loss_weight=np.bincount(owners, weights=weights.sum(1), minlength=len(sample_ids)),
            sample_blocks=counts.astype(np.int64),
            position_loss_sum=weighted.sum(0),
            position_loss_weight=weights.sum(0),
            block_sample_ids=sample_ids[owners],
            block_anchors=blocks.anchors.cpu().numpy(),
            block_loss_sum=weighted.sum(1),
            block_accepted=accepted_prefix(loss.correct[:, 1:]).cpu().numpy(),
            slot_losses=losses,
            slot_weights=weights,
            slot_correct=loss.correct[:, 1:].cpu().numpy(),
        )


def joined(parts: Sequence[BatchParts]) -> BatchParts:
    """Put the parts of a step's batches together: positions are added up, all else stands one behind the other.

    Args:
        parts: At least one batch's.
    """

    def end_to_end(name: str) -> np.ndarray:
        return np.concatenate([vars(each)[name] for each in parts])

    return BatchParts(
        position_loss_sum=np.sum([each.position_loss_sum for each in parts], axis=0),
        position_loss_weight=np.sum([each.position_loss_weight for each in parts], axis=0),
        **{name: end_to_end(name) for name in vars(parts[0]) if not name.startswith("position_")},
    )
