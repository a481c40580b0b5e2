"""One batch of target features through the drafter: gradients of sums, and sums and counts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from dflash_lab.drafter import (
    AnchorBudget,
    BlockLoss,
    BlockScores,
    Documents,
    DraftBlocks,
    Drafter,
    drafter_loss,
    draw_blocks,
    noisy_features,
)
from dflash_lab.target import TargetFeatures, TargetModel
from dflash_lab.training.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class MicroBatchSums:
    """Loss and scores of batches, as numbers that add up.

    Args:
        loss_sum: Sum of weight * loss.
        loss_weight: Sum of the weights.
        scores: Counts of the blocks.
    """

    loss_sum: float
    loss_weight: float
    scores: BlockScores

    @classmethod
    def none(cls, block_size: int) -> MicroBatchSums:
        """Give the sums of no batch."""
        return cls(loss_sum=0.0, loss_weight=0.0, scores=BlockScores.none(block_size))

    def __add__(self, other: MicroBatchSums) -> MicroBatchSums:
        """Add another batch."""
        return MicroBatchSums(
            loss_sum=self.loss_sum + other.loss_sum,
            loss_weight=self.loss_weight + other.loss_weight,
            scores=self.scores + other.scores,
        )

    def numbers(self) -> list[float]:
        """Give all numbers in one list, to be added up over ranks."""
        scores = self.scores
        return [
            self.loss_sum,
            self.loss_weight,
            *scores.correct_by_position,
            *scores.total_by_position,
            *scores.survived_by_position,
            *scores.reachable_by_position,
            scores.accepted_sum,
            scores.num_blocks,
            scores.full_accepted_sum,
            scores.num_full_blocks,
        ]

    @classmethod
    def of_numbers(cls, numbers: list[float]) -> MicroBatchSums:
        """Read what `numbers` gave."""
        loss_sum, loss_weight, *counts = numbers
        *by_position, accepted, num_blocks, full_accepted, num_full = map(round, counts)
        width = len(by_position) // 4
        parts = [tuple(by_position[at : at + width]) for at in range(0, 4 * width, width)]
        scores = BlockScores(
            correct_by_position=parts[0],
            total_by_position=parts[1],
            survived_by_position=parts[2],
            reachable_by_position=parts[3],
            accepted_sum=accepted,
            num_blocks=num_blocks,
            full_accepted_sum=full_accepted,
            num_full_blocks=num_full,
        )
        return cls(loss_sum=loss_sum, loss_weight=loss_weight, scores=scores)


@dataclass(frozen=True, kw_only=True, eq=False)
class Drafted:
    """What the drafter makes of one batch.

    Args:
        blocks: The blocks.
        hidden: (N, block_size, H), normed.
        loss: Their losses.
    """

    blocks: DraftBlocks
    hidden: torch.Tensor
    loss: BlockLoss


class MicroBatch:
    """Runs batches through a drafter on the drafter's device.

    Args:
        drafter: The drafter.
        target: Gives embedding and head; on the drafter's device.
        config: The run's settings.
    """

    def __init__(self, drafter: Drafter, target: TargetModel, config: RunConfig) -> None:
        self.drafter, self.target, self.config = drafter, target, config
        self._budget = AnchorBudget(per=config.anchors.per, amount=config.anchors.amount)

    def add_gradients(self, features: TargetFeatures, *, noise: float) -> MicroBatchSums:
        """Add the gradient of the batch's summed loss to the drafter's.

        Args:
            features: Of one batch, on any device.
            noise: Amplitude of the noise on them.

        Returns:
            The batch's sums.
        """
        drafted = self.draft(features, noise=noise)
        drafted.loss.loss_sum.backward()
        return sums_of(drafted.loss)

    def draft(
        self,
        features: TargetFeatures,
        *,
        noise: float = 0.0,
        budget: AnchorBudget | None = None,
        epoch: int | None = None,
    ) -> Drafted:
        """Draw a batch's blocks and run the drafter over them.

        Args:
            features: Of one batch.
            noise: Amplitude of the noise.
            budget: Anchors; None takes the run's.
            epoch: Whose anchors are drawn; None takes the batch's.

        Returns:
            Blocks, states and losses; gradients flow through the losses if they are enabled.
        """
        device = next(self.drafter.parameters()).device
        batch = features.batch.to(device, non_blocking=True)
        documents = Documents(rows=batch.rows, starts=batch.starts, lengths=batch.lengths)
        epoch = batch.epoch if epoch is None else epoch
        blocks = draw_blocks(
            batch.input_ids,
            batch.loss_mask,
            documents,
            batch.sample_ids,
            budget=budget or self._budget,
            block_size=self.config.drafter.block_size,
            mask_token_id=self.drafter.config.mask_token_id,
            seed=self.config.seed,
            epoch=epoch,
        )
        hidden = features.hidden.to(device, non_blocking=True)
        if noise:
            hidden = noisy_features(
                hidden, documents, batch.sample_ids, amplitude=noise, seed=self.config.seed, epoch=epoch
            )
        loss = self.config.loss
        teacher = None
        if loss.kind == "kl":
            assert features.logits is not None
            teacher = _logits_before(features.logits.to(device), blocks, documents)
        with _autocast(device):
            states = self.drafter(hidden, self.target.embed(blocks.input_ids).detach(), blocks, documents)
            scored = drafter_loss(
                states,
                blocks,
                self.target.lm_head,
                kind=loss.kind,
                gamma=loss.gamma,
                alpha=loss.alpha,
                target_logits=teacher,
            )
        return Drafted(blocks=blocks, hidden=states, loss=scored)


def sums_of(loss: BlockLoss) -> MicroBatchSums:
    """Give a batch's losses as numbers, added up in float64."""
    # On the CPU: not every accelerator has float64.
    weights = loss.weights.detach().cpu().double()
    losses = loss.losses.cpu().double()
    return MicroBatchSums(
        loss_sum=float((losses * weights).sum()),
        loss_weight=float(weights.sum()),
        scores=BlockScores.of(loss.correct, loss.scored),
    )


def _autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Products in bfloat16 on CUDA, over float32 weights; float32 throughout elsewhere."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


def _logits_before(logits: torch.Tensor, blocks: DraftBlocks, documents: Documents) -> torch.Tensor:
    """Give each slot the target's logits at the token before it: (N, block_size, V)."""
    slots = blocks.positions - 1  # (N, B)
    last = documents.lengths[blocks.documents][:, None] - 1
    columns = documents.starts[blocks.documents][:, None] + slots.clamp(min=0).minimum(last)
    return logits[documents.rows[blocks.documents][:, None], columns]
