"""The drafter: Qwen3-style decoder layers whose blocks look at the target's features.

Features are fused once (`fc`, `hidden_norm`); each layer projects them to keys and values once a token, whatever the
number of blocks that see them. They get no attention and no MLP of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from dflash_lab.drafter.attention import ContextLayout, attend_grouped, context_layout
from dflash_lab.drafter.blocks import Documents, DraftBlocks
from dflash_lab.drafter.config import DrafterConfig
from dflash_lab.drafter.flex_attention import attend_flex, is_flex_available
from dflash_lab.drafter.layers import RMSNorm, Rotation
from dflash_lab.drafter.merged_attention import attend_merged

INIT_STD = 0.02
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, ContextLayout], torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftContext:
    """Keys and values of context tokens in every layer, for decoding.

    Args:
        keys: One tensor a layer, (n, key_heads, head_dim), with rotary positions applied.
        values: One tensor a layer, (n, key_heads, head_dim).
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.keys[0])

    def extended(self, more: DraftContext) -> DraftContext:
        """Give the context with more tokens behind it."""
        return DraftContext(
            keys=tuple(torch.cat(pair) for pair in zip(self.keys, more.keys, strict=True)),
            values=tuple(torch.cat(pair) for pair in zip(self.values, more.values, strict=True)),
        )


class Drafter(nn.Module):
    """A drafter whose parameters carry the names under which servers load it.

    Parameters are float32 whatever the target's dtype: in bfloat16 the norms' weights never leave 1.0. Under
    `torch.autocast` the products run in its dtype.

    Args:
        config: Shape.
        seed: Seed of the initial weights, >= 0: normal with standard deviation 0.02, norms 1.
    """

    def __init__(self, config: DrafterConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        # torch fills new layers from its global generator, which is left where it was.
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_hidden_layers))
            self.fc = nn.Linear(config.num_taps * width, width, bias=False, dtype=torch.float32)
            self.hidden_norm = _norm(width, config)
            self.norm = _norm(width, config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    module.weight.normal_(0.0, INIT_STD, generator=generator)

    def forward(
        self,
        features: torch.Tensor,
        block_embeddings: torch.Tensor,
        blocks: DraftBlocks,
        documents: Documents,
        *,
        attend: Attend | None = None,
    ) -> torch.Tensor:
        """Run all blocks of a batch.

        Args:
            features: (R, T, num_taps * hidden_size), the target's; only those before a document's last anchor are
                read.
            block_embeddings: (N, block_size, hidden_size): `blocks.input_ids` as the target embeds them.
            blocks: The blocks.
            documents: Where the samples lie in `features`.
            attend: How attention is computed; None takes what is fastest on the device. `attend_dense` is the slow
                reference.

        Returns:
            (N, block_size, hidden_size) after the final norm, ready for the target's head.

        Raises:
            ValueError: If shapes do not fit, or blocks are out of order or outside their documents.
        """
        attend = attend or fastest_attend(features.device)
        layout = context_layout(blocks, documents, features.shape[1])
        context = self._fused(features.flatten(0, 1)[layout.token_ids])  # (C, H)
        context_rotation = self._rotation(layout.positions)
        rotation = self._rotation(blocks.positions)
        hidden = block_embeddings.to(self.fc.weight.dtype)  # (N, B, H)
        alike = _slots_are_alike(hidden)
        for layer in self.layers:
            key, value = layer.self_attn.keys_values(context, context_rotation)
            hidden = layer(hidden, rotation, key, value, attend, layout, slots_are_alike=alike)
            alike = False
        return self.norm(hidden)

    def context(self, features: torch.Tensor, positions: torch.Tensor) -> DraftContext:
        """Turn features of one sequence into the keys and values that drafts of it see.

        Args:
            features: (n, num_taps * hidden_size).
            positions: int64 (n,), positions inside the sequence.
        """
        context = self._fused(features)
        rotation = self._rotation(positions)
        pairs = [layer.self_attn.keys_values(context, rotation) for layer in self.layers]
        return DraftContext(keys=tuple(key for key, _ in pairs), values=tuple(value for _, value in pairs))

    def draft(self, block_embeddings: torch.Tensor, positions: torch.Tensor, context: DraftContext) -> torch.Tensor:
        """Run one block behind its context; every token of the context is seen.

        Args:
            block_embeddings: (1, block_size, hidden_size): anchor token, then mask tokens, as the target embeds them.
            positions: int64 (block_size,), positions of the slots inside the sequence.
            context: What lies strictly before the anchor.

        Returns:
            (1, block_size, hidden_size) after the final norm.
        """
        hidden = block_embeddings.to(self.fc.weight.dtype)
        rotation = self._rotation(positions[None])
        for layer, key, value in zip(self.layers, context.keys, context.values, strict=True):
            hidden = layer(hidden, rotation, key, value, _attend_one, None)
        return self.norm(hidden)

    def _fused(self, features: torch.Tensor) -> torch.Tensor:
        if not torch.is_autocast_enabled(features.device.type):
            features = features.to(self.fc.weight.dtype)
        return self.hidden_norm(self.fc(features))

    def _rotation(self, positions: torch.Tensor) -> Rotation:
        dim = self.config.head_dim
        # In float64: theta ** x in float32 is off by enough to move far positions.
        exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
        angles = positions[..., None] * (1.0 / self.config.rope_theta**exponents)  # (..., D / 2)
        angles = torch.cat([angles, angles], dim=-1)[..., None, :]
        return Rotation(cos=angles.cos().float(), sin=angles.sin().float())


class DrafterLayer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config)
        self.mlp = DrafterMLP(config)
        self.input_layernorm = _norm(config.hidden_size, config)
        self.post_attention_layernorm = _norm(config.hidden_size, config)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: Rotation,
        context_key: torch.Tensor,
        context_value: torch.Tensor,
        attend: Attend,
        layout: ContextLayout | None,
        *,
        slots_are_alike: bool = False,
    ) -> torch.Tensor:
        """Run the layer over blocks (N, B, H), whose slots but the first may all be alike."""
        states, slots = hidden, None
        if slots_are_alike:
            states, slots = torch.cat([hidden[:, 0], hidden[:1, 1]]), hidden.shape[1]  # (N + 1, H)
        hidden = hidden + self.self_attn(
            self.input_layernorm(states), rotation, context_key, context_value, attend, layout, slots=slots
        )
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class DrafterAttention(nn.Module):
    """Attention from blocks to context and to themselves, with one set of weights for both."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, queries, bias=False, dtype=torch.float32)
        self.k_proj = nn.Linear(width, keys, bias=False, dtype=torch.float32)
        self.v_proj = nn.Linear(width, keys, bias=False, dtype=torch.float32)
        self.o_proj = nn.Linear(queries, width, bias=False, dtype=torch.float32)
        self.q_norm = _norm(config.head_dim, config)
        self.k_norm = _norm(config.head_dim, config)

    def keys_values(
        self, states: torch.Tensor, rotation: Rotation, *, slots: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Project states (..., H), or (N + 1, H) to spread over `slots`, to keys and values (..., heads, head_dim)."""
        value = _spread(self._heads(self.v_proj(states)), slots)
        key = _spread(self.k_norm(self._heads(self.k_proj(states))), slots)
        return rotation(key).to(value.dtype), value

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: Rotation,
        context_key: torch.Tensor,
        context_value: torch.Tensor,
        attend: Attend,
        layout: ContextLayout | None,
        *,
        slots: int | None = None,
    ) -> torch.Tensor:
        """Run blocks (N, B, H), or (N + 1, H) to spread over `slots`, against their context (C, heads, head_dim)."""
        key, value = self.keys_values(hidden, rotation, slots=slots)
        query = _spread(self.q_norm(self._heads(self.q_proj(hidden))), slots)  # (N, B, heads, D)
        query = rotation(query).to(value.dtype)
        return self.o_proj(attend(query, key, value, context_key, context_value, layout).flatten(-2))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_dim))


class DrafterMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, inside = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inside, bias=False, dtype=torch.float32)
        self.up_proj = nn.Linear(width, inside, bias=False, dtype=torch.float32)
        self.down_proj = nn.Linear(inside, width, bias=False, dtype=torch.float32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Run the MLP over (..., H)."""
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


def fastest_attend(device: torch.device) -> Attend:
    """Choose how attention is computed.

    Args:
        device: Of the tensors.

    Returns:
        `attend_merged` on a CPU; `attend_flex` on CUDA, where torch has it; `attend_grouped`, which needs plain scaled
        dot-product attention only, elsewhere.
    """
    if device.type == "cpu":
        return attend_merged
    return attend_flex if device.type == "cuda" and is_flex_available() else attend_grouped


def _slots_are_alike(hidden: torch.Tensor) -> bool:
    """Whether all slots of all blocks (N, B, H) but the first ones are the same, as mask tokens are at first.

    Their projections are then those of one row: a step takes 6 to 10 % less time on a CPU. An accelerator would wait
    longer for the answer.
    """
    if hidden.device.type != "cpu" or not len(hidden):
        return False
    return torch.equal(hidden[:, 1:], hidden[:1, 1:2].expand_as(hidden[:, 1:]))


def _spread(rows: torch.Tensor, slots: int | None) -> torch.Tensor:
    """Lay rows (N + 1, ...), one for each first slot and one for all others, out as (N, slots, ...).

    Where `slots` is None, every slot has its row already.
    """
    if slots is None:
        return rows
    others = rows[-1:, None].expand(len(rows) - 1, slots - 1, *rows.shape[1:])
    return torch.cat([rows[:-1, None], others], dim=1)


def _norm(width: int, config: DrafterConfig) -> RMSNorm:
    return RMSNorm(width, eps=config.rms_norm_eps, dtype=torch.float32)


def _attend_one(
    query: torch.Tensor,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    context_key: torch.Tensor,
    context_value: torch.Tensor,
    layout: None,
) -> torch.Tensor:
    """Attend of one block that sees all of the context."""
    key = torch.cat([context_key, block_key[0]])[None].transpose(1, 2)
    value = torch.cat([context_value, block_value[0]])[None].transpose(1, 2)
    out = functional.scaled_dot_product_attention(query.transpose(1, 2), key, value, enable_gqa=True)
    return out.transpose(1, 2)
