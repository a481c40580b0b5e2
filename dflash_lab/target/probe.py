"""Whether what is known about a model's embedding and head is what the model does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from dflash_lab.target.hf import TransformersTarget

# Of the largest number compared: rounding in another order, far below any scale that could be missing.
_FLOAT_TOLERANCE = 1e-3
_HALF_TOLERANCE = 3e-2


def check_embed_and_head(target: TransformersTarget, decoder: nn.Module, first_layer: nn.Module) -> None:
    """Run two tokens through the model, and compare what its first layer takes and what its head gives.

    Args:
        target: Whose `embed` and `lm_head` are to be right.
        decoder: Its decoder.
        first_layer: Its first layer.

    Raises:
        ValueError: If they are not, as with a model that norms its embeddings or scales its logits in a way of its own.
    """
    input_ids = torch.tensor([[0], [target.vocab_size - 1]], device=target.device)  # (2, 1)
    taken: list[torch.Tensor] = []

    def take(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        taken.append(arguments[0] if arguments else named["hidden_states"])

    handle = first_layer.register_forward_pre_hook(take, with_kwargs=True)
    try:
        with torch.inference_mode():
            last = decoder(input_ids=input_ids, use_cache=False).last_hidden_state  # (2, 1, H)
            model_logits = target.model(input_ids=input_ids, use_cache=False).logits  # (2, 1, V)
            embedded, logits = target.embed(input_ids), target.lm_head(last)
    finally:
        handle.remove()
    tolerance = _FLOAT_TOLERANCE if target.dtype in (torch.float32, torch.float64) else _HALF_TOLERANCE
    # Both tokens are at position 0: learned positions cancel out of the difference.
    ours, theirs, size = embedded[0] - embedded[1], taken[0][0] - taken[0][1], taken[0]
    if _differ(ours, theirs, size, tolerance):
        raise ValueError(
            f"{target.name} ({target.model.config.model_type}) does something to its embeddings that is not known "
            f"here; legal: models whose layers take the embedding module's output, scaled by a number or not"
        )
    if logits.shape != model_logits.shape or _differ(logits, model_logits, model_logits, tolerance):
        raise ValueError(
            f"{target.name} ({target.model.config.model_type}) does something to its logits that is not known here; "
            f"legal: a linear head, with a scale or a final soft cap or neither"
        )


def _differ(ours: torch.Tensor, theirs: torch.Tensor, size: torch.Tensor, tolerance: float) -> bool:
    allowed = tolerance * size.float().abs().max()
    return not bool(((ours.float() - theirs.float().to(ours.device)).abs() <= allowed.to(ours.device)).all())
