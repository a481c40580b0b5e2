"""RMSNorm and rotary positions with a backward pass written out: on a CPU, passes over memory are what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.function import once_differentiable


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm; on a CPU in float32 or float64 its forward and backward take under half of the time.

    torch differentiates the CPU's norm operation by operation; each is a pass over the states.
    """

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Norm the last axis of (..., W)."""
        is_plain = states.device.type == "cpu" and states.dtype == self.weight.dtype
        if not is_plain or torch.is_autocast_enabled("cpu"):
            return super().forward(states)
        assert self.eps is not None
        return _Normed.apply(states, self.weight, self.eps)


class _Normed(torch.autograd.Function):
    """states / sqrt(mean(states ** 2) + eps) * weight, over the last axis."""

    @staticmethod
    def forward(ctx, states, weight, eps):  # noqa: ANN001, ANN205, D102
        inverse = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        inverse.square_().div_(states.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(states, weight, inverse)
        return (states * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # noqa: ANN001, ANN205, D102
        states, weight, inverse = ctx.saved_tensors
        normed = states * inverse
        products = grad * normed
        grad_weight = products.flatten(0, -2).sum(0)
        along = (products @ weight)[..., None].div_(states.shape[-1])
        grad_states = (grad * weight).sub_(normed.mul_(along)).mul_(inverse)
        return grad_states, grad_weight, None


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotation:
    """Rotary positions as cosines and sines: float32 (..., 1, head_dim), the axis of 1 for heads."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Turn heads (..., heads, head_dim) to their positions; float32 or the heads' dtype if that is wider."""
        return _Turned.apply(heads, self.cos, self.sin)


class _Turned(torch.autograd.Function):
    """Turn pairs (i, i + head_dim / 2); the gradient is turned back."""

    @staticmethod
    def forward(ctx, heads, cos, sin):  # noqa: ANN001, ANN205, D102
        ctx.save_for_backward(cos, sin)
        ctx.dtype = heads.dtype
        return _turn(heads, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # noqa: ANN001, ANN205, D102
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin).to(ctx.dtype), None, None


def _turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = heads.shape[-1] // 2
    turned = heads * cos
    heads = heads.to(turned.dtype)
    turned[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return turned
