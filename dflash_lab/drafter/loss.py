"""The losses of a draft block, as sums and weights that are divided only at the very end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from dflash_lab.drafter.blocks import DraftBlocks
from dflash_lab.drafter.config import whole_number

LOSSES = ("dflash", "dpace", "kl")
# Logits that exist at one time: 2**22 float32 values are 16 MB. With 4,096 tokens on a CPU, 2**18 took half as long
# again; 2**20 and 2**24 were no faster.
CHUNK_LOGITS = 2**22


def block_position_weights(block_size: int, loss_decay_gamma: float | None) -> torch.Tensor:
    """Weigh each block position in the loss, first prediction heaviest.

    Args:
        block_size: Positions per block, anchor included; at least 2.
        loss_decay_gamma: Decay constant in positions, > 0; larger decays slower. None asks for no decay.

    Returns:
        float32 (block_size,); entry 0 (the anchor) is 0, entry 1 is 1.

    Raises:
        ValueError: If either argument is out of range.

    Source: DFlash, arXiv 2602.06036, Eq. 4.
    """
    whole_number("block_size", block_size, least=2)
    weights = torch.ones(block_size, dtype=torch.float64)
    if loss_decay_gamma is not None:
        is_number = isinstance(loss_decay_gamma, int | float) and not isinstance(loss_decay_gamma, bool)
        if not is_number or not 0 < loss_decay_gamma < math.inf:
            raise ValueError(
                f"loss_decay_gamma is {loss_decay_gamma!r}; legal: a finite number > 0, or None for no decay"
            )
        weights = torch.exp(-(torch.arange(block_size, dtype=torch.float64) - 1) / loss_decay_gamma)
    weights[0] = 0.0
    return weights.float()


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockLoss:
    """Losses of blocks, slot by slot.

    Args:
        loss_sum: float32 (), sum of weight * loss; gradients flow through it.
        weights: float32 (N, block_size), 0 where a slot is not scored.
        losses: float32 (N, block_size), detached, 0 where a slot is not scored.
        predicted: int64 (N, block_size), the drafter's first choice; 0 where a slot is not scored.
        correct: bool (N, block_size), scored and right.
        scored: bool (N, block_size).
    """

    loss_sum: torch.Tensor
    weights: torch.Tensor
    losses: torch.Tensor
    predicted: torch.Tensor
    correct: torch.Tensor
    scored: torch.Tensor

    @property
    def weight_sum(self) -> torch.Tensor:
        """Sum of the weights: float32 ()."""
        return self.weights.sum()

    @property
    def num_scored(self) -> int:
        """Scored slots."""
        return int(self.scored.sum())


def block_loss(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the sum of weighted cross-entropies, and the sum of the weights.

    Args:
        logits: (N, block_size, V).
        labels: int64 (N, block_size), in [0, V) wherever the weight is not 0.
        weights: float32 (N, block_size), >= 0.

    Returns:
        Two scalars, to be added up over batches and divided once.
    """
    counted = weights != 0
    losses = functional.cross_entropy(logits[counted].float(), labels[counted], reduction="none")
    return (losses * weights[counted]).sum(), weights.sum()


def drafter_loss(
    hidden: torch.Tensor,
    blocks: DraftBlocks,
    lm_head: Callable[[torch.Tensor], torch.Tensor],
    *,
    kind: str = "dflash",
    gamma: float | None = 7.0,
    alpha: float = 0.5,
    target_logits: torch.Tensor | None = None,
) -> BlockLoss:
    """Compute the loss of all blocks without ever holding all their logits.

    The head runs over chunks of scored slots; the gradient of each chunk is taken at once, so that memory does not grow
    with blocks times vocabulary, in the backward pass either, and no chunk is computed twice.

    Args:
        hidden: (N, block_size, H), the drafter's output.
        blocks: The blocks.
        lm_head: The target's frozen head: (n, H) -> (n, V), each row by itself.
        kind: "dflash": cross-entropy on the data's token, weighted by position. "dpace": weighted by the drafter's own
            confidence instead. "kl": from the target's distribution, weighted by position.
        gamma: See `block_position_weights`; not used by "dpace".
        alpha: Smoothing of "dpace", in [0, 1].
        target_logits: For "kl": (N, block_size, V), at slot k the target's logits at anchor + k - 1; entry 0 is not
            read.

    Returns:
        The losses. Without a scored slot, a sum of 0 that still takes part in backward.

    Raises:
        ValueError: If an argument is not legal.

    Source: DFlash, arXiv 2602.06036, Eq. 4; D-PACE, arXiv 2605.18810.
    """
    if kind not in LOSSES:
        raise ValueError(f"kind is {kind!r}; legal: {', '.join(LOSSES)}")
    if (kind == "kl") != (target_logits is not None):
        given = "no target_logits are" if target_logits is None else "target_logits are"
        raise ValueError(f'kind is {kind!r} and {given} given; legal: they are given with "kl" and only then')
    scored = blocks.scored
    rows = hidden[scored]  # (S, H)
    labels = blocks.labels[scored]
    teacher = None if target_logits is None else target_logits[scored]
    position_weights = block_position_weights(blocks.block_size, gamma).to(hidden.device)
    weights = torch.where(scored, position_weights, 0.0)
    if kind == "dpace":
        # The weights need every slot's loss before any gradient can be weighed: one pass more of the head.
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha!r}; legal: a number in [0, 1]")
        losses, _, _ = _slot_losses(rows.detach(), labels, lm_head, None, None)
        weights = _dpace_weights(_in_blocks(losses, scored), scored, alpha)
    loss_sum, losses, predicted = _ChunkedLoss.apply(rows, labels, weights[scored], lm_head, teacher)
    predicted = _in_blocks(predicted, scored)
    return BlockLoss(
        loss_sum=loss_sum,
        weights=weights,
        losses=_in_blocks(losses, scored),
        predicted=predicted,
        correct=scored & (predicted == blocks.labels),
        scored=scored,
    )


def _in_blocks(values: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    placed = values.new_zeros(scored.shape)
    placed[scored] = values
    return placed


def _dpace_weights(losses: torch.Tensor, scored: torch.Tensor, alpha: float) -> torch.Tensor:
    """Weigh slot k by the sum of prefix products from k on; slots not scored are 1 in products, and no term."""
    confidence = torch.where(scored, (1 - alpha) * torch.exp(-losses) + alpha, 1.0)
    confidence[:, 0] = 1.0
    prefixes = torch.where(scored, confidence.cumprod(dim=1), 0.0)
    return torch.where(scored, prefixes.flip(1).cumsum(dim=1).flip(1), 0.0)


def _slot_losses(
    rows: torch.Tensor,
    labels: torch.Tensor,
    lm_head: Callable[[torch.Tensor], torch.Tensor],
    weights: torch.Tensor | None,
    teacher: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Loss and first choice of each slot, and, with weights, the gradient of their weighted sum."""
    losses, predicted, gradients = [], [], []
    begin, size = 0, 64
    while begin < len(rows):
        chunk = slice(begin, begin + size)
        with torch.enable_grad():
            part = rows[chunk].detach().requires_grad_(weights is not None)
            logits = lm_head(part)  # (n, V)
        values = logits.detach()
        own_teacher = None if teacher is None else teacher[chunk]
        own_losses, slopes, best = _losses_of(values, labels[chunk], own_teacher)
        losses.append(own_losses)
        predicted.append(best)
        if weights is not None:
            (gradient,) = torch.autograd.grad(logits, part, slopes.to(logits.dtype))
            # Weighed here, where a row is hidden_size wide and not vocab_size.
            gradients.append(gradient * weights[chunk, None].to(gradient.dtype))
        begin += size
        size = max(1, CHUNK_LOGITS // logits.shape[-1])
    empty = rows.new_zeros(0, dtype=_at_least_float32(rows.dtype))
    return (
        torch.cat([empty, *losses]),
        torch.cat([labels[:0], *predicted]),
        torch.cat(gradients) if gradients else None if weights is None else torch.zeros_like(rows),
    )


def _losses_of(
    logits: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, slope of the loss (n, V) and first choice of each row of logits (n, V), without autograd's copies."""
    dtype = _at_least_float32(logits.dtype)
    largest, best = logits.max(-1)
    slopes = logits.softmax(-1, dtype=dtype)
    # softmax keeps no sum; the largest probability is 1 / sum(exp(logit - largest)).
    log_sums = largest.to(dtype) - slopes.gather(-1, best[:, None])[:, 0].log()
    if teacher is None:
        losses = log_sums - logits.gather(-1, labels[:, None])[:, 0]
        slopes.scatter_add_(-1, labels[:, None], slopes.new_full((len(labels), 1), -1.0))
    else:
        wanted = teacher.log_softmax(-1, dtype=dtype)
        probs = wanted.exp()
        losses = log_sums + (probs * wanted.sub_(logits)).sum(-1)
        slopes.sub_(probs)
    return losses, slopes, best


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _ChunkedLoss(torch.autograd.Function):
    """Sum of weighted losses, whose gradient is taken while each chunk's logits are there."""

    @staticmethod
    def forward(ctx, rows, labels, weights, lm_head, teacher):  # noqa: ANN001, ANN205, D102
        losses, predicted, gradient = _slot_losses(rows, labels, lm_head, weights, teacher)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(losses, predicted)
        return (losses * weights).sum(), losses, predicted

    @staticmethod
    def backward(ctx, grad_sum, *_):  # noqa: ANN001, ANN205, D102
        (gradient,) = ctx.saved_tensors
        return gradient * grad_sum.to(gradient.dtype), None, None, None, None
