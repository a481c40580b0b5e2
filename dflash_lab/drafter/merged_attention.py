"""The attention in use on a CPU: context and own block apart, merged by their softmax sums.

Blocks attend in groups of neighbouring anchors. A group's context ends at its last anchor, and only what lies between
its first anchor and its last needs a mask. Own blocks are products of block_size by block_size. So nothing grows with
the square of the number of blocks. A group goes through long contexts head by head and piece by piece, with a running
maximum, so that the scores it works on stay in a core's cache: with 3,072 tokens and 512 anchors a step takes a fifth
less time so. The backward pass computes the probabilities again instead of keeping them, and adds to one gradient of
keys and of values in place; differentiating slices would make a full one for each group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dflash_lab.drafter.attention import ContextLayout, attend_nothing

# Smaller groups start more products, larger ones compute more that the mask throws away; 8 to 24 take the
# same time with 1,024 tokens and 128 anchors.
GROUP_BLOCKS = 16
# Scores that are worked on at one time, 512 KB in float32: what a core's second cache holds.
CACHED_SCORES = 2**17


def attend_merged(
    query: torch.Tensor,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    context_key: torch.Tensor,
    context_value: torch.Tensor,
    layout: ContextLayout,
) -> torch.Tensor:
    """Attend of every block to its context and itself.

    Args:
        query: (N, B, heads, head_dim), float32 or float64.
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
    key_heads = block_key.shape[2]
    # Query heads that share a key head are rows of one product: (N, key_heads, share * B, D).
    rows = query.unflatten(2, (key_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = _MergedAttention.apply(
        (rows.transpose(0, 1) * query.shape[-1] ** -0.5).contiguous(),  # (h, N, R, D)
        block_key.permute(2, 0, 1, 3).contiguous(),  # (h, N, B, D)
        block_value.permute(2, 0, 1, 3).contiguous(),
        context_key.transpose(0, 1).contiguous(),  # (h, C, D)
        context_value.transpose(0, 1).contiguous(),
        layout,
    )
    share, block_size = query.shape[2] // key_heads, query.shape[1]
    return out.unflatten(2, (share, block_size)).permute(1, 3, 0, 2, 4).flatten(2, 3)


@dataclass(frozen=True)
class _Group:
    """Neighbouring blocks of one document."""

    blocks: slice
    first_token: int
    anchors: tuple[int, ...]

    def tiles(self, query: torch.Tensor) -> Iterator[_Tile]:
        """Cut what the queries (h, N, R, D) see into pieces whose scores fit a core's cache."""
        num_rows, num_columns = len(self.anchors) * query.shape[2], self.anchors[-1]
        width = max(1, min(num_columns, CACHED_SCORES // num_rows))
        for begin in range(0, num_columns, width):
            yield _Tile(group=self, begin=begin, end=min(num_columns, begin + width))

    def head_slices(self, query: torch.Tensor) -> Iterator[slice]:
        """Heads of queries (h, N, R, D) that go together: as many as fit the cache, at least one."""
        num_scores = len(self.anchors) * query.shape[2] * max(1, self.anchors[-1])
        step = max(1, CACHED_SCORES // num_scores)
        return (slice(head, head + step) for head in range(0, len(query), step))


@dataclass(frozen=True)
class _Tile:
    """Tokens [begin, end) of a document, before a group of its blocks."""

    group: _Group
    begin: int
    end: int

    @property
    def tokens(self) -> slice:
        return slice(self.group.first_token + self.begin, self.group.first_token + self.end)

    def hidden(self, query: torch.Tensor) -> torch.Tensor | None:
        """What lies at and after each block's anchor: bool (columns from the first anchor on, G * rows), or None."""
        anchors = self.group.anchors
        if self.end <= anchors[0]:
            return None
        columns = torch.arange(max(self.begin, anchors[0]), self.end, device=query.device)
        rows = torch.tensor(anchors, device=query.device).repeat_interleave(query.shape[2])
        return columns[:, None] >= rows


def _groups(layout: ContextLayout) -> Iterator[_Group]:
    for span in layout.spans:
        for begin in range(0, len(span.anchors), GROUP_BLOCKS):
            anchors = span.anchors[begin : begin + GROUP_BLOCKS]
            first_block = span.first_block + begin
            yield _Group(
                blocks=slice(first_block, first_block + len(anchors)), first_token=span.first_token, anchors=anchors
            )


class _MergedAttention(torch.autograd.Function):
    """Scaled queries (h, N, R, D), block keys and values (h, N, B, D), context (h, C, D) twice -> (h, N, R, D)."""

    @staticmethod
    def forward(ctx, query, block_key, block_value, context_key, context_value, layout):  # noqa: ANN001, ANN205, D102
        own = torch.matmul(query, block_key.transpose(-1, -2))  # (h, N, R, B)
        largest = own.amax(-1, keepdim=True)  # (h, N, R, 1)
        own.sub_(largest).exp_()
        total = own.sum(-1, keepdim=True)
        out = torch.matmul(own, block_value)  # (h, N, R, D)
        for group in _groups(layout):
            for tile in group.tiles(query):
                hidden = tile.hidden(query)
                for heads in group.head_slices(query):
                    # Views: what a tile adds goes straight into the results.
                    own_query, most, sums, merged = (
                        tensor[heads, group.blocks].flatten(1, 2) for tensor in (query, largest, total, out)
                    )  # (s, G * R, ...)
                    scores = torch.bmm(own_query, context_key[heads, tile.tokens].mT)  # (s, G * R, columns)
                    _hide(scores.mT, hidden)
                    higher = torch.maximum(most, scores.amax(-1, keepdim=True))
                    scores.sub_(higher).exp_()
                    shrunk = most.sub_(higher).exp_()
                    sums.mul_(shrunk).add_(scores.sum(-1, keepdim=True))
                    merged.mul_(shrunk).baddbmm_(scores, context_value[heads, tile.tokens])
                    most.copy_(higher)
        out.div_(total)
        log_sums = total.log_().add_(largest)  # (h, N, R, 1)
        ctx.layout = layout
        ctx.save_for_backward(query, block_key, block_value, context_key, context_value, out, log_sums)
        return out

    @staticmethod
    def backward(ctx, grad_out):  # noqa: ANN001, ANN205, D102
        query, block_key, block_value, context_key, context_value, out, log_sums = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        offset = (grad_out * out).sum(-1, keepdim=True)  # (h, N, R, 1)
        # Own blocks, all at once.
        probs = torch.matmul(query, block_key.transpose(-1, -2)).sub_(log_sums).exp_()  # (h, N, R, B)
        grad_block_value = torch.matmul(probs.transpose(-1, -2), grad_out)
        probs.mul_(torch.matmul(grad_out, block_value.transpose(-1, -2)).sub_(offset))
        grad_block_key = torch.matmul(probs.transpose(-1, -2), query)
        grad_query = torch.matmul(probs, block_key)
        grad_key, grad_value = torch.zeros_like(context_key), torch.zeros_like(context_value)
        for group in _groups(ctx.layout):
            for tile in group.tiles(query):
                hidden = tile.hidden(query)
                for heads in group.head_slices(query):
                    own_query, own_grad, own_sums, own_offset, own_grad_query = (
                        tensor[heads, group.blocks].flatten(1, 2)
                        for tensor in (query, grad_out, log_sums, offset, grad_query)
                    )  # (s, G * R, ...)
                    key, value = context_key[heads, tile.tokens], context_value[heads, tile.tokens]
                    # Keys by queries: of the three products with it, two need it so, and a transposed one takes
                    # half as long again.
                    probs = torch.bmm(key, own_query.mT).sub_(own_sums.mT)  # (s, columns, G * R)
                    _hide(probs, hidden)
                    probs.exp_()
                    grad_value[heads, tile.tokens].baddbmm_(probs, own_grad)
                    probs.mul_(torch.bmm(value, own_grad.mT).sub_(own_offset.mT))
                    grad_key[heads, tile.tokens].baddbmm_(probs, own_query)
                    own_grad_query.baddbmm_(probs.mT, key)
        return grad_query, grad_block_key, grad_block_value, grad_key, grad_value, None


def _hide(scores: torch.Tensor, hidden: torch.Tensor | None) -> None:
    """Set to -inf what blocks must not see, in the last columns of scores (s, columns, G * rows)."""
    if hidden is not None:
        scores[:, scores.shape[1] - len(hidden) :].masked_fill_(hidden, float("-inf"))
