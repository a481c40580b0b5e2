"""What a target gives and what it must be able to do; any model with these members can train and serve a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from dflash_lab.feed.batch import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetFeatures:
    """What the target makes of one batch.

    Args:
        hidden: (R, T, num_taps * hidden_size) in the target's dtype, the outputs of the tapped layers side by side. A
            normal tensor, not one of inference mode, so that the drafter's backward pass may save it. What stands at
            padded positions has no meaning.
        batch: The batch, on the target's device.
        logits: (R, T, vocab_size) in the target's dtype, or None where they were not asked for.
    """

    hidden: torch.Tensor
    batch: Batch
    logits: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetStep:
    """What the target makes of new tokens behind cached ones.

    Args:
        logits: (1, n, vocab_size).
        hidden: (1, n, num_taps * hidden_size), as in `TargetFeatures`.
    """

    logits: torch.Tensor
    hidden: torch.Tensor


class TargetCache(Protocol):
    """Keys and values of the tokens that a target has seen."""

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        ...

    def keep(self, length: int, indices: torch.Tensor) -> None:
        """Drop what was not accepted.

        Args:
            length: The first so many entries stay, in [0, self.length].
            indices: int64 (m,), entries that stay behind those, in this order, counted from `length`.

        Raises:
            ValueError: If there are no such entries.
        """
        ...


class TargetModel(Protocol):
    """A frozen language model that gives features to train on, and verifies drafts.

    Attributes:
        hidden_size: Width of a layer's output.
        num_layers: Number of decoder layers.
        vocab_size: Number of token ids.
        target_layer_ids: Layers whose own outputs are the features, from 0, increasing.
        rope_theta: Base of its rotary positions; 10,000 where it has none.
        control_ids: Ids that mean padding, begin or end to it, as far as it says.
        device: Where its embeddings stand.
        dtype: Of its weights and features.
        max_positions: Most positions that it has; None where it does not say.
        settings: What beside its weights decides its features, as plain data.
        name: For logs and exports.
        fingerprint: Names its weights.
    """

    hidden_size: int
    num_layers: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    rope_theta: float
    control_ids: tuple[int, ...]
    max_positions: int | None
    settings: Mapping[str, object]
    name: str

    @property
    def device(self) -> torch.device:
        """Where its embeddings stand."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights and features."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names its weights: another one as soon as weights differ."""
        ...

    def features(self, batch: Batch, *, with_logits: bool = False) -> TargetFeatures:
        """Run the target over a batch.

        Args:
            batch: Padded or packed, on any device.
            with_logits: Give the logits too.

        Raises:
            ValueError: If the batch has an id past the vocabulary, or a position past the model's last one.
        """
        ...

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed tokens as the target does, scaled if it scales them, without learned positions.

        Args:
            input_ids: int64, any shape.

        Returns:
            (..., hidden_size).
        """
        ...

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn normed states into logits, with the target's scale or soft cap; gradients pass through to `hidden`.

        Args:
            hidden: (..., hidden_size); the caller has normed it.

        Returns:
            (..., vocab_size).
        """
        ...

    def to(self, device: torch.device | str) -> TargetModel:
        """Give a copy on another device, or itself if it is there."""
        ...

    def new_cache(self) -> TargetCache:
        """Give an empty cache, for `extend`."""
        ...

    def extend(
        self,
        input_ids: torch.Tensor,
        cache: TargetCache,
        *,
        position_ids: torch.Tensor | None = None,
        tree_mask: torch.Tensor | None = None,
    ) -> TargetStep:
        """Run new tokens behind the cached ones, and cache them.

        Args:
            input_ids: int64 (1, n), n >= 1.
            cache: From this target's `new_cache`.
            position_ids: int64 (1, n); None counts on from the cache's length.
            tree_mask: bool (n, n), True at [i, j] where new token i sees new token j; every cached token is seen. None
                is causal.
        """
        ...
