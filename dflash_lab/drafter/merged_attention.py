"""The attention in use on a CPU: context and own block apart, merged by their softmax sums.

Blocks attend in groups of neighbouring anchors. A group's context ends at its last anchor, and only what lies between
its first anchor and its last needs a mask. Own blocks are products of block_size by block_size. So nothing grows with
the square of the number of blocks. Long contexts go head by head, so that a group's scores stay in a core's cache: the
backward pass takes up to a third less time so. It computes the probabilities again instead of keeping them, and adds
to one gradient of keys and of values in place; differentiating slices would make a full one for each group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dflash_lab.drafter.attention import ContextLayout, attend_nothing

# Smaller groups start more products, larger ones compute more that the mask throws away; 8 to 32 take the
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
    tokens: slice
    anchors: tuple[int, ...]

    def hidden(self, rows: int, device: torch.device) -> torch.Tensor:
        """What lies at and after each block's anchor, from the first anchor on: bool (G * rows, columns)."""
        columns = torch.arange(self.anchors[0], self.anchors[-1], device=device)
        anchors = torch.tensor(self.anchors, device=device).repeat_interleave(rows)
        return columns >= anchors[:, None]

    def head_slices(self, query: torch.Tensor) -> Iterator[slice]:
        """Heads of queries (h, N, R, D) that go together: as many as fit the cache, at least one."""
        num_scores = len(self.anchors) * query.shape[2] * max(1, self.anchors[-1])
        step = max(1, CACHED_SCORES // num_scores)
        return (slice(head, head + step) for head in range(0, len(query), step))


def _groups(layout: ContextLayout) -> Iterator[_Group]:
    for span in layout.spans:
        for begin in range(0, len(span.anchors), GROUP_BLOCKS):
            anchors = span.anchors[begin : begin + GROUP_BLOCKS]
            first_block = span.first_block + begin
            yield _Group(
                blocks=slice(first_block, first_block + len(anchors)),
                tokens=slice(span.first_token, span.first_token + anchors[-1]),
                anchors=anchors,
            )


class _MergedAttention(torch.autograd.Function):
    """Scaled queries (h, N, R, D), block keys and values (h, N, B, D), context (h, C, D) twice -> (h, N, R, D)."""

    @staticmethod
    def forward(ctx, query, block_key, block_value, context_key, context_value, layout):  # noqa: ANN001, ANN205, D102
        own = torch.matmul(query, block_key.transpose(-1, -2))  # (h, N, R, B)
        out = torch.empty_like(query)
        log_sums = query.new_empty(query.shape[:-1])  # (h, N, R)
        for group in _groups(layout):
            blocks, tokens = group.blocks, group.tokens
            hidden = group.hidden(query.shape[2], query.device)
            for heads in group.head_slices(query):
                own_scores = own[heads, blocks].flatten(1, 2)  # (s, G * R, B), a view
                scores = _context_scores(query, context_key, group, hidden, heads)  # (s, G * R, C)
                largest = own_scores.amax(-1, keepdim=True)
                if scores.shape[-1]:
                    largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
                scores.sub_(largest).exp_()
                own_scores.sub_(largest).exp_()
                total = scores.sum(-1, keepdim=True).add_(own_scores.sum(-1, keepdim=True))
                merged = torch.matmul(own[heads, blocks], block_value[heads, blocks]).flatten(1, 2)
                merged.baddbmm_(scores, context_value[heads, tokens]).div_(total)
                out[heads, blocks] = merged.unflatten(1, (-1, query.shape[2]))
                log_sums[heads, blocks] = total.log_().add_(largest).view(len(total), -1, query.shape[2])
        ctx.layout = layout
        ctx.save_for_backward(query, block_key, block_value, context_key, context_value, out, log_sums)
        return out

    @staticmethod
    def backward(ctx, grad_out):  # noqa: ANN001, ANN205, D102
        query, block_key, block_value, context_key, context_value, out, log_sums = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        log_sums = log_sums[..., None]
        offset = (grad_out * out).sum(-1, keepdim=True)  # (h, N, R, 1)
        # Own blocks, all at once.
        probs = torch.matmul(query, block_key.transpose(-1, -2)).sub_(log_sums).exp_()  # (h, N, R, B)
        grad_block_value = torch.matmul(probs.transpose(-1, -2), grad_out)
        probs.mul_(torch.matmul(grad_out, block_value.transpose(-1, -2)).sub_(offset))
        grad_block_key = torch.matmul(probs.transpose(-1, -2), query)
        grad_query = torch.matmul(probs, block_key)
        grad_key, grad_value = torch.zeros_like(context_key), torch.zeros_like(context_value)
        for group in _groups(ctx.layout):
            blocks, tokens = group.blocks, group.tokens
            hidden = group.hidden(query.shape[2], query.device)
            for heads in group.head_slices(query):
                own_query, own_grad = query[heads, blocks].flatten(1, 2), grad_out[heads, blocks].flatten(1, 2)
                probs = _context_scores(query, context_key, group, hidden, heads)  # (s, G * R, C)
                probs.sub_(log_sums[heads, blocks].flatten(1, 2)).exp_()
                grad_value[heads, tokens].baddbmm_(probs.mT, own_grad)
                slopes = torch.bmm(own_grad, context_value[heads, tokens].mT)
                probs.mul_(slopes.sub_(offset[heads, blocks].flatten(1, 2)))
                grad_key[heads, tokens].baddbmm_(probs.mT, own_query)
                grad_query[heads, blocks].flatten(1, 2).baddbmm_(probs, context_key[heads, tokens])
        return grad_query, grad_block_key, grad_block_value, grad_key, grad_value, None


def _context_scores(
    query: torch.Tensor, context_key: torch.Tensor, group: _Group, hidden: torch.Tensor, heads: slice
) -> torch.Tensor:
    """Scores of a group's queries over its context: (s, G * R, C), -inf where a block must not look."""
    scores = torch.bmm(query[heads, group.blocks].flatten(1, 2), context_key[heads, group.tokens].mT)
    scores[..., group.anchors[0] :].masked_fill_(hidden, float("-inf"))
    return scores
