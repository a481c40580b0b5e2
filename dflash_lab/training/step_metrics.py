"""What one optimizer step did: sums and counts, divided only by whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One line of a run's metrics. Sums are over the whole window and all ranks.

    Args:
        step: Optimizer steps, this one included; >= 1.
        epoch: Epoch of its batches.
        position: Batches of that epoch that are trained after it.
        progress: Epochs trained, as a fraction.
        loss_sum: Sum of weight * loss over the scored slots; None where it is not finite.
        loss_weight: Sum of the weights; None where it is not finite.
        correct_by_position: Right tokens at slots 1, 2, ... of a block.
        total_by_position: Scored tokens at those slots.
        accepted_sum: Draft tokens that would be accepted, over all blocks.
        num_blocks: Blocks with a scored slot.
        full_accepted_sum: Of `accepted_sum`, that of blocks whose slots are all scored.
        num_full_blocks: Those blocks.
        tree_budgets: Node budgets of draft trees; empty where trees were not scored at this step.
        tree_accepted_sum: Tokens that a tree of each budget would have accepted.
        tree_expected_sum: Tokens that the drafter expects of them.
        chain_accepted_sum: Tokens of the chain, over the same blocks.
        num_tree_blocks: Blocks whose trees were scored.
        grad_norm: Norm of the gradient before the clip; None where it is not finite.
        learning_rate: As applied.
        noise: Amplitude of the noise as applied.
        updated: Whether the weights moved.
        skipped: Why they did not: "" | "non-finite loss" | "non-finite gradient" | "no anchors".
        batch_ids: The step's batches, in the epoch's plan.
        bucket_ids: Their buckets, -1 for none.
        num_samples: Samples of each batch.
        real_tokens: Tokens of each batch without padding.
        padded_tokens: Tokens of each batch with padding.
        length_min: Shortest sample of the step, in tokens.
        length_max: Longest one.
        step_seconds: Time since the step before, waiting included.
        read_seconds: Reading of all workers since the step before.
        target_seconds: Forward passes of all target loops since the step before.
        wait_seconds: Waiting for features in this step.
        train_seconds: Forward, backward and update of the drafter in this step, without the waiting.
        q_pre: Batches ready before each target loop.
        q_hs: Batches of features that wait, behind each target loop.
        elapsed_seconds: Since this session began.
        session: Which session of the run made the step: 0, and one more after each resume.
    """

    step: int
    epoch: int
    position: int
    progress: float
    loss_sum: float | None
    loss_weight: float | None
    correct_by_position: list[int]
    total_by_position: list[int]
    accepted_sum: int
    num_blocks: int
    full_accepted_sum: int
    num_full_blocks: int
    grad_norm: float | None
    learning_rate: float
    noise: float
    updated: bool
    batch_ids: list[int]
    bucket_ids: list[int]
    num_samples: list[int]
    real_tokens: list[int]
    padded_tokens: list[int]
    length_min: int
    length_max: int
    step_seconds: float
    read_seconds: float
    target_seconds: float
    wait_seconds: float
    train_seconds: float
    q_pre: list[int]
    q_hs: list[int]
    elapsed_seconds: float
    session: int
    skipped: str = ""
    tree_budgets: tuple[int, ...] = ()
    tree_accepted_sum: tuple[float, ...] = ()
    tree_expected_sum: tuple[float, ...] = ()
    chain_accepted_sum: float = 0.0
    num_tree_blocks: int = 0

    @property
    def loss(self) -> float | None:
        """Loss of the step; None where there is none."""
        return self.loss_sum / self.loss_weight if self.loss_sum is not None and self.loss_weight else None

    @property
    def accuracy(self) -> float | None:
        """Share of scored tokens that are right."""
        total = sum(self.total_by_position)
        return sum(self.correct_by_position) / total if total else None

    @property
    def streak(self) -> float | None:
        """Accepted draft tokens a block, without the bonus token."""
        return self.accepted_sum / self.num_blocks if self.num_blocks else None
