"""The attention in use on a CPU: context and own block apart, merged by their softmax sums.

Blocks attend in groups of neighbouring anchors. A group's context ends at its last anchor, and only what lies between
its first anchor and its last needs a mask. Own blocks are products of block_size by block_size. So nothing grows with
the square of the number of blocks. The backward pass computes the probabilities again instead of keeping them, and adds
to one gradient of keys and of values in place; differentiating slices would make a full one for each group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dflash_lab.drafter.attention import ContextLayout, attend_nothing

# Measured over 8, 16 and 32: smaller groups start more products, larger ones compute more that the mask throws away.
GROUP_BLOCKS = 16


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
        rows.transpose(0, 1).contiguous(),  # (h, N, R, D)
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

    def hide(self, scores: torch.Tensor, fill: float) -> None:
        """Fill what lies at and after each block's anchor; scores are (h, G, R, tokens)."""
        first = self.anchors[0]
        columns = torch.arange(first, self.anchors[-1], device=scores.device)
        anchors = torch.tensor(self.anchors, device=scores.device)
        scores[..., first:].masked_fill_((columns >= anchors[:, None])[:, None], fill)


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
    """Queries (h, N, R, D), block keys and values (h, N, B, D), context keys and values (h, C, D) -> (h, N, R, D)."""

    @staticmethod
    def forward(ctx, query, block_key, block_value, context_key, context_value, layout):  # noqa: ANN001, ANN205, D102
        scale = query.shape[-1] ** -0.5
        out = torch.empty_like(query)
        log_sums = query.new_empty(query.shape[:-1])  # (h, N, R)
        for group in _groups(layout):
            own_query = query[:, group.blocks] * scale  # (h, G, R, D)
            scores = _context_scores(own_query, context_key, group)  # (h, G, R, C)
            own = own_query @ block_key[:, group.blocks].transpose(-1, -2)  # (h, G, R, B)
            largest = own.amax(-1)
            if scores.shape[-1]:
                largest = torch.maximum(largest, scores.amax(-1))
            scores.sub_(largest[..., None]).exp_()
            own.sub_(largest[..., None]).exp_()
            total = scores.sum(-1) + own.sum(-1)
            merged = own @ block_value[:, group.blocks]
            merged += _rows(scores).matmul(context_value[:, group.tokens]).view_as(merged)
            out[:, group.blocks] = merged.div_(total[..., None])
            log_sums[:, group.blocks] = largest + total.log()
        ctx.layout = layout
        ctx.save_for_backward(query, block_key, block_value, context_key, context_value, out, log_sums)
        return out

    @staticmethod
    def backward(ctx, grad_out):  # noqa: ANN001, ANN205, D102
        query, block_key, block_value, context_key, context_value, out, log_sums = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        grads = [torch.empty_like(query), torch.empty_like(block_key), torch.empty_like(block_value)]
        grad_key, grad_value = torch.zeros_like(context_key), torch.zeros_like(context_value)
        for group in _groups(ctx.layout):
            blocks, tokens = group.blocks, group.tokens
            own_query, own_grad = query[:, blocks] * scale, grad_out[:, blocks].contiguous()
            offset = (own_grad * out[:, blocks]).sum(-1, keepdim=True)  # (h, G, R, 1)
            log_sum = log_sums[:, blocks, :, None]
            # Own blocks.
            probs = (own_query @ block_key[:, blocks].transpose(-1, -2)).sub_(log_sum).exp_()
            grads[2][:, blocks] = probs.transpose(-1, -2) @ own_grad
            probs.mul_((own_grad @ block_value[:, blocks].transpose(-1, -2)).sub_(offset))
            grads[1][:, blocks] = probs.transpose(-1, -2) @ own_query
            grad_query = probs @ block_key[:, blocks]
            # Context.
            probs = _context_scores(own_query, context_key, group).sub_(log_sum).exp_()
            flat_grad = _rows(own_grad)
            grad_value[:, tokens].baddbmm_(_rows(probs).transpose(-1, -2), flat_grad)
            slopes = flat_grad.matmul(context_value[:, tokens].transpose(-1, -2)).view_as(probs)
            probs.mul_(slopes.sub_(offset))
            grad_key[:, tokens].baddbmm_(_rows(probs).transpose(-1, -2), _rows(own_query))
            grad_query += _rows(probs).matmul(context_key[:, tokens]).view_as(grad_query)
            grads[0][:, blocks] = grad_query.mul_(scale)
        return *grads, grad_key, grad_value, None


def _context_scores(own_query: torch.Tensor, context_key: torch.Tensor, group: _Group) -> torch.Tensor:
    """Scores of a group's queries (h, G, R, D) over its context: (h, G, R, C), -inf where a block must not look."""
    keys = context_key[:, group.tokens].transpose(-1, -2)
    scores = _rows(own_query).matmul(keys).view(*own_query.shape[:3], -1)
    group.hide(scores, float("-inf"))
    return scores


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Put all rows of a group's blocks under one another: (h, G, R, X) -> (h, G * R, X)."""
    return tensor.flatten(1, 2)
