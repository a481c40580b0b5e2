"""Who sees whom in a drafter, and ways to compute it.

A slot of block j sees the context of its own document strictly before the block's anchor, and its own block both ways;
blocks never see each other. Context is not padded: tokens that some block sees lie document after document.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn import functional

from dflash_lab.drafter.blocks import Documents, DraftBlocks

# Blocks that attend together. Smaller groups waste less on what not all of them see, larger ones start fewer kernels.
GROUP_BLOCKS = 16


@dataclass(frozen=True, kw_only=True)
class Span:
    """The blocks of one document, and the context that they see.

    Args:
        first_block: Its first block.
        anchors: Positions of its anchors, increasing.
        first_token: Where its context starts among the tokens of all documents.
    """

    first_block: int
    anchors: tuple[int, ...]
    first_token: int

    @property
    def num_tokens(self) -> int:
        """Tokens of context: what lies before the last anchor, for no block sees more."""
        return self.anchors[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextLayout:
    """The tokens that the blocks of a batch see.

    Args:
        token_ids: int64 (C,), row * T + column of each token of context.
        positions: int64 (C,), its position inside its document.
        spans: Documents that have blocks, in order.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    spans: tuple[Span, ...]


def context_layout(blocks: DraftBlocks, documents: Documents, num_columns: int) -> ContextLayout:
    """Lay out the context of a batch.

    Args:
        blocks: The blocks.
        documents: Where the samples lie.
        num_columns: T, columns of the batch.

    Returns:
        The layout, with its tensors on the device of `blocks`.

    Raises:
        ValueError: If blocks are not in order, or an anchor lies outside its document.
    """
    of_block, anchors = blocks.documents.tolist(), blocks.anchors.tolist()
    places = list(zip(documents.rows.tolist(), documents.starts.tolist(), documents.lengths.tolist(), strict=True))
    if any(earlier >= later for earlier, later in pairwise(zip(of_block, anchors, strict=True))):
        raise ValueError("blocks are not in order; legal: by document, anchors increasing within one")
    members: dict[int, list[int]] = {}
    for document, anchor in zip(of_block, anchors, strict=True):
        members.setdefault(document, []).append(anchor)
    spans, token_ids, positions = [], [], []
    first_block = first_token = 0
    for document, own in members.items():
        if not 0 <= document < len(places):
            raise ValueError(f"a block is of document {document}; legal: in [0, {len(places)})")
        row, start, length = places[document]
        if own[0] < 0 or own[-1] >= length:
            raise ValueError(f"document {document} has anchors {own[0]} to {own[-1]}; legal: in [0, {length})")
        spans.append(Span(first_block=first_block, anchors=tuple(own), first_token=first_token))
        positions.append(torch.arange(own[-1]))
        token_ids.append(row * num_columns + start + positions[-1])
        first_block += len(own)
        first_token += own[-1]
    device = blocks.anchors.device
    empty = torch.empty(0, dtype=torch.int64)
    return ContextLayout(
        token_ids=torch.cat([empty, *token_ids]).to(device),
        positions=torch.cat([empty, *positions]).to(device),
        spans=tuple(spans),
    )


def attend_grouped(
    query: torch.Tensor,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    context_key: torch.Tensor,
    context_value: torch.Tensor,
    layout: ContextLayout,
) -> torch.Tensor:
    """Attend group by group of neighbouring anchors: each sees only the context before its last anchor.

    Anchors are sorted, so the blocks of a group see almost the same context, and a mask is needed for what lies between
    its first and its last anchor, and among its own blocks. Nothing grows with the square of the number of blocks.

    Args:
        query: (N, B, heads, head_dim).
        block_key: (N, B, key_heads, head_dim).
        block_value: (N, B, key_heads, head_dim).
        context_key: (C, key_heads, head_dim).
        context_value: (C, key_heads, head_dim).
        layout: Which tokens each block sees.

    Returns:
        (N, B, heads, head_dim).
    """
    parts = []
    for span in layout.spans:
        for begin in range(0, len(span.anchors), GROUP_BLOCKS):
            anchors = span.anchors[begin : begin + GROUP_BLOCKS]
            blocks = slice(span.first_block + begin, span.first_block + begin + len(anchors))
            tokens = slice(span.first_token, span.first_token + anchors[-1])
            out = functional.scaled_dot_product_attention(
                query[blocks].flatten(0, 1).transpose(0, 1)[None],  # (1, heads, G * B, D)
                torch.cat([context_key[tokens], block_key[blocks].flatten(0, 1)]).transpose(0, 1)[None],
                torch.cat([context_value[tokens], block_value[blocks].flatten(0, 1)]).transpose(0, 1)[None],
                attn_mask=dense_mask(
                    torch.tensor([anchors], device=query.device), anchors[-1], query.shape[1]
                ),  # (1, G * B, tokens + G * B)
                enable_gqa=query.shape[2] != block_key.shape[2],
            )
            parts.append(out[0].transpose(0, 1).unflatten(0, (len(anchors), -1)))
    if not parts:
        return attend_nothing(query, block_key, block_value, context_key, context_value)
    return torch.cat(parts)


def attend_dense(
    query: torch.Tensor,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    context_key: torch.Tensor,
    context_value: torch.Tensor,
    layout: ContextLayout,
) -> torch.Tensor:
    """Attend with one dense mask over [context; all blocks] of every document: the reference, slow and large.

    Documents are padded to the longest context and the most blocks, as trainers do that keep a batch in rows.

    Args:
        query: (N, B, heads, head_dim).
        block_key: (N, B, key_heads, head_dim).
        block_value: (N, B, key_heads, head_dim).
        context_key: (C, key_heads, head_dim).
        context_value: (C, key_heads, head_dim).
        layout: Which tokens each block sees.

    Returns:
        (N, B, heads, head_dim).
    """
    if not layout.spans:
        return attend_nothing(query, block_key, block_value, context_key, context_value)
    num_rows, block_size = len(layout.spans), query.shape[1]
    most_blocks = max(len(span.anchors) for span in layout.spans)
    most_tokens = max(span.num_tokens for span in layout.spans)
    anchors = torch.zeros(num_rows, most_blocks, dtype=torch.int64)
    block_places, token_places = [], []
    for row, span in enumerate(layout.spans):
        anchors[row, : len(span.anchors)] = torch.tensor(span.anchors)
        block_places.append(row * most_blocks + torch.arange(len(span.anchors)))
        token_places.append(row * most_tokens + torch.arange(span.num_tokens))
    anchors = anchors.to(query.device)
    block_places = torch.cat(block_places).to(query.device)
    token_places = torch.cat(token_places).to(query.device)

    def in_rows(tensor: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
        rows = tensor.new_zeros(num_rows * width, *tensor.shape[1:]).index_copy(0, places, tensor)
        return rows.reshape(num_rows, -1, *tensor.shape[-2:]).transpose(1, 2)  # (R, heads, W, D)

    key = torch.cat(
        [in_rows(context_key, token_places, most_tokens), in_rows(block_key, block_places, most_blocks)], dim=2
    )
    value = torch.cat(
        [in_rows(context_value, token_places, most_tokens), in_rows(block_value, block_places, most_blocks)], dim=2
    )
    out = functional.scaled_dot_product_attention(
        in_rows(query, block_places, most_blocks),
        key,
        value,
        attn_mask=dense_mask(anchors, most_tokens, block_size)[:, None],
        enable_gqa=True,
    )  # (R, heads, blocks * B, D)
    out = out.transpose(1, 2).reshape(num_rows * most_blocks, block_size, *query.shape[2:])
    return out[block_places]


def attend_nothing(*tensors: torch.Tensor) -> torch.Tensor:
    """Give the result of a batch without blocks, which passes gradients of zero to all that attention reads.

    Every rank must have a gradient of every parameter, whatever it drew.

    Args:
        *tensors: (0, B, heads, head_dim) and what else attention takes, without elements.
    """
    return tensors[0] + sum(tensor.sum() for tensor in tensors[1:])


def dense_mask(anchors: torch.Tensor, num_tokens: int, block_size: int) -> torch.Tensor:
    """Build the mask of rows of one document each.

    Blocks that only fill a row up see themselves, so that no row of the mask is empty, which would give NaN.

    Args:
        anchors: int64 (R, A), positions; 0 for blocks that fill up.
        num_tokens: Context tokens of a row, position 0 first.
        block_size: Slots of a block.

    Returns:
        bool (R, A * block_size, num_tokens + A * block_size), True where a query sees a key.
    """
    num_rows, num_blocks = anchors.shape
    of_slot = torch.arange(num_blocks, device=anchors.device).repeat_interleave(block_size)
    before_anchor = torch.arange(num_tokens, device=anchors.device) < anchors[:, of_slot, None]
    own_block = (of_slot[:, None] == of_slot).expand(num_rows, -1, -1)
    return torch.cat([before_anchor, own_block], dim=-1)
