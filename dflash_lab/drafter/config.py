"""The shape of a drafter, and which layers of the target it listens to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Shape of a drafter and what it has to agree on with its target.

    Args:
        block_size: Positions of a block, the anchor included; >= 2. The DFlash paper's default is 16.
        num_hidden_layers: Decoder layers of the drafter, >= 1.
        hidden_size: Width of its layers: that of the target, whose embedding and head it uses.
        intermediate_size: Width inside the MLP, >= 1.
        num_attention_heads: Query heads, >= 1.
        num_key_value_heads: Key and value heads; divides `num_attention_heads`.
        head_dim: Width of a head; even, since rotary positions turn pairs.
        rms_norm_eps: Added to the mean square in every norm, > 0.
        rope_theta: Base of the rotary positions, > 0: that of the target.
        vocab_size: Token ids of the target.
        mask_token_id: The id that stands at the positions to predict, in [0, vocab_size). `check_mask_token_id` refuses
            those that mean something else.
        target_layer_ids: Layers of the target whose outputs are the features, from 0, all different.
        num_target_layers: Decoder layers of the target.

    Raises:
        ValueError: If a value is out of range.

    Source: DFlash, arXiv 2602.06036, appendix A.1.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    vocab_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    block_size: int = 16
    num_hidden_layers: int = 5
    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        whole_number("block_size", self.block_size, least=2)
        for name in _COUNTS:
            whole_number(name, getattr(self, name), least=1)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}; legal: a divisor of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; legal: an even number, rotary positions turn pairs")
        for name in ("rms_norm_eps", "rope_theta"):
            positive_number(name, getattr(self, name))
        check_mask_token_id(self.mask_token_id, vocab_size=self.vocab_size)
        object.__setattr__(self, "target_layer_ids", tuple(self.target_layer_ids))
        _check_layer_ids(self.target_layer_ids, self.num_target_layers)

    @property
    def num_taps(self) -> int:
        """Number of tapped target layers."""
        return len(self.target_layer_ids)


_COUNTS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
)


def default_target_layer_ids(num_layers: int, num_taps: int) -> tuple[int, ...]:
    """Choose the target layers to tap, spread evenly from the second to the third last.

    Args:
        num_layers: Decoder layers of the target, >= 1.
        num_taps: Layers to tap, >= 1. One tap takes the middle layer.

    Returns:
        Ids of layer outputs, from 0, increasing: of 36 layers and 5 taps 1, 9, 17, 25, 33.

    Raises:
        ValueError: If the formula repeats a layer or leaves the model, as it does for more than one tap of up to 4
            layers.

    Source: DFlash, arXiv 2602.06036, and the trainers that follow it.
    """
    whole_number("num_layers", num_layers, least=1)
    whole_number("num_taps", num_taps, least=1)
    if num_taps == 1:
        return (num_layers // 2,)
    layer_ids = tuple(round(1 + tap * (num_layers - 4) / (num_taps - 1)) for tap in range(num_taps))
    if len(set(layer_ids)) < num_taps or min(layer_ids) < 0 or max(layer_ids) >= num_layers:
        raise ValueError(
            f"no default for {num_taps} taps of {num_layers} layers: the formula gives {list(layer_ids)}; give "
            f"target_layer_ids, different ones in [0, {num_layers})"
        )
    return layer_ids


def check_mask_token_id(mask_token_id: int, *, vocab_size: int, taken_ids: Iterable[int | None] = ()) -> None:
    """Refuse a mask token that is no token or that means something else.

    Args:
        mask_token_id: The id.
        vocab_size: Token ids of the target.
        taken_ids: Ids that it must not be: padding, end of text, unknown; None is passed over.

    Raises:
        ValueError: If it is out of range or taken.
    """
    whole_number("mask_token_id", mask_token_id, least=0)
    if mask_token_id >= vocab_size:
        raise ValueError(f"mask_token_id is {mask_token_id}; legal: in [0, {vocab_size}), the target's vocabulary")
    if mask_token_id in (taken := {token_id for token_id in taken_ids if token_id is not None}):
        raise ValueError(f"mask_token_id is {mask_token_id}; legal: an unused id, none of {sorted(taken)}")


def whole_number(name: str, value: int, *, least: int) -> None:
    """Refuse what is no whole number or too small.

    Raises:
        ValueError: Naming it.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; legal: a whole number >= {least}")


def positive_number(name: str, value: float) -> None:
    """Refuse what is no finite number above 0.

    Raises:
        ValueError: Naming it.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; legal: a finite number > 0")


def _check_layer_ids(layer_ids: tuple[int, ...], num_target_layers: int) -> None:
    legal = f"different whole numbers in [0, {num_target_layers}), at least one"
    in_range = [
        isinstance(layer_id, int) and not isinstance(layer_id, bool) and 0 <= layer_id < num_target_layers
        for layer_id in layer_ids
    ]
    if not layer_ids or not all(in_range) or len(set(layer_ids)) < len(layer_ids):
        raise ValueError(f"target_layer_ids is {list(layer_ids)}; legal: {legal}")
