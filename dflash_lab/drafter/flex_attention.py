"""The attention in use on CUDA: torch's FlexAttention, which skips every tile that no query of it looks at.

Keys are the context tokens of all documents, then all slots of all blocks. Which tiles matter is told from the bounds
of each tile, without a mask of queries by keys, which would take gigabytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from dflash_lab.drafter.attention import ContextLayout, attend_nothing

# Queries and keys of a tile; what FlexAttention's kernels are tuned for.
TILE = 128
# A position and a block behind all others.
NEVER = 2**62
MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def is_flex_available() -> bool:
    """Whether this build of torch has FlexAttention."""
    try:
        import torch.nn.attention.flex_attention  # noqa: F401
    except ImportError:
        return False
    return True


def attend_flex(
    query: torch.Tensor,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    context_key: torch.Tensor,
    context_value: torch.Tensor,
    layout: ContextLayout,
) -> torch.Tensor:
    """Attend of every block to its context and itself, in one compiled kernel.

    The first call of a process compiles it, which takes some seconds.

    Args:
        query: (N, B, heads, head_dim), on CUDA.
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
    from torch.nn.attention.flex_attention import BlockMask

    places = key_query_places(layout, query.shape[1], query.device)
    some, whole = tiles(places)
    block_mask = BlockMask.from_kv_blocks(
        *_listed(some & ~whole),
        *_listed(whole),
        BLOCK_SIZE=TILE,
        mask_mod=mask_mod_of(places),
    )
    out = _compiled()(
        _padded(query.flatten(0, 1)),
        _padded(torch.cat([context_key, block_key.flatten(0, 1)])),
        _padded(torch.cat([context_value, block_value.flatten(0, 1)])),
        block_mask=block_mask,
        enable_gqa=query.shape[2] != block_key.shape[2],
    )  # (1, heads, Q, D)
    num_slots = query.shape[0] * query.shape[1]
    return out[0, :, :num_slots].transpose(0, 1).reshape(query.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """What decides whether a query sees a key; lengths are whole tiles, with something to fill up behind.

    Args:
        query_documents: int64 (Q,), the span of each slot; the last one behind.
        query_anchors: int64 (Q,), its block's anchor; 0 behind.
        query_blocks: int64 (Q,), its block, counted over all documents; the last one behind, so that no row of the mask
            is empty.
        key_documents: int64 (K,), the span of each context token; the last one for slots and behind.
        key_positions: int64 (K,), its position in its document; `NEVER` for slots and behind.
        key_blocks: int64 (K,), the block of each slot; -1 for context and behind.
    """

    query_documents: torch.Tensor
    query_anchors: torch.Tensor
    query_blocks: torch.Tensor
    key_documents: torch.Tensor
    key_positions: torch.Tensor
    key_blocks: torch.Tensor


def key_query_places(layout: ContextLayout, block_size: int, device: torch.device | str) -> Places:
    """Give each query's and each key's place.

    Args:
        layout: Documents with at least one block.
        block_size: Slots of a block.
        device: Where the tensors go.
    """
    num_blocks = torch.tensor([len(span.anchors) for span in layout.spans])
    num_tokens = torch.tensor([span.num_tokens for span in layout.spans])
    documents, last_document = torch.arange(len(layout.spans)), len(layout.spans) - 1
    anchors = torch.tensor([anchor for span in layout.spans for anchor in span.anchors])
    blocks = torch.arange(len(anchors)).repeat_interleave(block_size)  # (N * B,)
    filler = torch.full((int(num_tokens.sum()),), -1)
    queries = [
        (documents.repeat_interleave(num_blocks * block_size), last_document),
        (anchors.repeat_interleave(block_size), 0),
        (blocks, len(anchors) - 1),
    ]
    keys = [
        (torch.cat([documents.repeat_interleave(num_tokens), torch.full_like(blocks, last_document)]), last_document),
        (torch.cat([layout.positions.cpu(), torch.full_like(blocks, NEVER)]), NEVER),
        (torch.cat([filler, blocks]), -1),
    ]
    filled = [
        functional.pad(values, (0, -len(values) % TILE), value=fill).to(device) for values, fill in (*queries, *keys)
    ]
    return Places(
        query_documents=filled[0],
        query_anchors=filled[1],
        query_blocks=filled[2],
        key_documents=filled[3],
        key_positions=filled[4],
        key_blocks=filled[5],
    )


def mask_mod_of(places: Places) -> MaskMod:
    """Give the rule as FlexAttention wants it: (batch, head, query, key) -> whether the query sees the key."""
    query_documents, query_anchors = places.query_documents, places.query_anchors
    query_blocks, key_blocks = places.query_blocks, places.key_blocks
    key_documents, key_positions = places.key_documents, places.key_positions

    def mask_mod(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        same_document = query_documents[query] == key_documents[key]
        before_anchor = key_positions[key] < query_anchors[query]
        return (same_document & before_anchor) | (query_blocks[query] == key_blocks[key])

    return mask_mod


def tiles(places: Places) -> tuple[torch.Tensor, torch.Tensor]:
    """Tell from the bounds of each tile whether some, and whether all of its queries see some, and all, of its keys.

    Returns:
        Two bool (Q / TILE, K / TILE): "some" may be True where it need not be, "all" only where it is.
    """

    def bounds(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.aminmax(values.unflatten(0, (-1, TILE)), dim=1)

    (first_document, last_document), (least_anchor, most_anchor) = map(
        bounds, (places.query_documents, places.query_anchors)
    )
    (first_key, last_key), (least_position, most_position) = map(bounds, (places.key_documents, places.key_positions))
    (first_block, last_block), (_, last_key_block) = map(bounds, (places.query_blocks, places.key_blocks))
    # In a tile that context and slots share, the first slot's block bounds from below: -1 stands for context.
    slots = torch.where(places.key_blocks < 0, first_block.new_full((), NEVER), places.key_blocks)
    first_key_block = bounds(slots)[0]

    def at_most(of_query: torch.Tensor, of_key: torch.Tensor) -> torch.Tensor:
        return of_query[:, None] <= of_key

    is_same = (first_document == last_document)[:, None] & (first_key == last_key)
    is_same = is_same & (first_document[:, None] == first_key)
    meets = at_most(first_document, last_key) & ~at_most(last_document, first_key - 1)
    reaches = ~at_most(most_anchor, least_position)
    own = at_most(first_block, last_key_block) & ~at_most(last_block, first_key_block - 1)
    some = (meets & (reaches | ~is_same)) | own
    whole = is_same & ~at_most(least_anchor, most_position)
    return some, whole


def _listed(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn bool (Q / TILE, K / TILE) into counts and indices, the wanted ones first, with axes for batch and head."""
    indices = torch.argsort(wanted.int(), dim=-1, descending=True, stable=True)
    return wanted.sum(-1, dtype=torch.int32)[None, None], indices.int()[None, None].contiguous()


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """Fill (n, heads, D) up to whole tiles: (1, heads, n', D)."""
    return functional.pad(rows, (0, 0, 0, 0, 0, -len(rows) % TILE)).transpose(0, 1)[None]


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # Every batch has another number of blocks and tokens.
    return torch.compile(flex_attention, dynamic=True)
