"""What decoding asks of a target: the part of its protocol that verification needs, so that any such object serves."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from dflash_lab.drafter.config import DrafterConfig


class VerifyingStep(Protocol):
    """What a target makes of new tokens: logits (1, n, vocab_size) and features (1, n, num_taps * hidden_size)."""

    @property
    def logits(self) -> torch.Tensor:
        """(1, n, vocab_size)."""
        ...

    @property
    def hidden(self) -> torch.Tensor:
        """(1, n, num_taps * hidden_size)."""
        ...


class VerifyingTarget(Protocol):
    """A frozen language model that verifies drafts.

    Attributes:
        hidden_size: Width of a layer's output.
        num_layers: Number of decoder layers.
        vocab_size: Number of token ids.
        target_layer_ids: Tapped layers, from 0.
        rope_theta: Base of its rotary positions.
        max_positions: Most positions that it has; None where it does not say.
        name: For messages.
    """

    hidden_size: int
    num_layers: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    rope_theta: float
    max_positions: int | None
    name: str

    @property
    def device(self) -> torch.device:
        """Where its embeddings stand."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        ...

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed int64 (...) tokens: (..., hidden_size)."""
        ...

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn normed states (..., hidden_size) into logits (..., vocab_size)."""
        ...

    def new_cache(self) -> Any:
        """Give an empty cache, with `.length` and `.keep(length, indices)`."""
        ...

    def extend(
        self,
        input_ids: torch.Tensor,
        cache: Any,
        *,
        position_ids: torch.Tensor | None = None,
        tree_mask: torch.Tensor | None = None,
    ) -> VerifyingStep:
        """Run new tokens (1, n) behind the cached ones, and cache them."""
        ...


def disagreements(config: DrafterConfig, target: VerifyingTarget) -> dict[str, tuple[object, object]]:
    """Tell what a drafter and a target do not agree on; each of it only lowers what is accepted, without an error.

    Args:
        config: The drafter's.
        target: The target that is to verify its drafts.

    Returns:
        For each name of a field the drafter's value and the target's.
    """
    pairs: dict[str, tuple[object, object]] = {
        "rope_theta": (config.rope_theta, target.rope_theta),
        "hidden_size": (config.hidden_size, target.hidden_size),
        "vocab_size": (config.vocab_size, target.vocab_size),
        "num_target_layers": (config.num_target_layers, target.num_layers),
        "target_layer_ids": (tuple(config.target_layer_ids), tuple(target.target_layer_ids)),
    }
    return {name: (own, legal) for name, (own, legal) in pairs.items() if own != legal}
