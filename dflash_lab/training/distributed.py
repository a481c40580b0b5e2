"""Sums over all ranks, where there are several."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import distributed


def num_ranks() -> int:
    """Ranks of the run; 1 where torch.distributed is not initialised."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def this_rank() -> int:
    """This process's rank; 0 where there is one."""
    return distributed.get_rank() if num_ranks() > 1 else 0


def sum_numbers(values: list[float], device: torch.device) -> list[float]:
    """Add up numbers over all ranks, in float64.

    Args:
        values: As many on every rank.
        device: Where the ranks exchange.
    """
    if num_ranks() == 1:
        return values
    # Not every backend knows float64 on every device; nccl and gloo do on theirs.
    held = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(held)
    return held.tolist()


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Add up gradients over all ranks, in place; a parameter without one takes part with zeros."""
    if num_ranks() == 1:
        return
    held = list(parameters)
    for parameter in held:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in held])
    distributed.all_reduce(flat)
    for parameter, part in zip(held, flat.split([parameter.numel() for parameter in held]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether a flag is set on any rank."""
    return sum_numbers([float(flag)], device)[0] > 0
