"""Attention masks that a target's own code does not make: packed rows, and trees of drafted tokens."""

from __future__ import annotations

import torch


def packed_mask(document_ids: torch.Tensor, position_ids: torch.Tensor, window: int | None) -> torch.Tensor:
    """Say who sees whom in a packed row: earlier tokens of the same document.

    Args:
        document_ids: int64 (1, T), -1 behind the last document.
        position_ids: int64 (1, T), position inside the document.
        window: Tokens seen, itself included, or None for all.

    Returns:
        bool (T, T), True at [i, j] where i sees j. Tokens behind the last document see only themselves, so that no row
        is empty.
    """
    documents, positions = document_ids[0], position_ids[0]
    distance = positions[:, None] - positions[None, :]  # (T, T)
    seen = (documents[:, None] == documents[None, :]) & (documents[:, None] >= 0) & (distance >= 0)  # (T, T)
    if window is not None:
        seen &= distance < window
    seen.fill_diagonal_(True)
    return seen


def extension_mask(
    cached_positions: torch.Tensor,
    new_positions: torch.Tensor,
    tree_mask: torch.Tensor | None,
    window: int | None,
) -> torch.Tensor:
    """Say what new tokens see: all that is cached, and of each other what the tree allows.

    Args:
        cached_positions: int64 (c,).
        new_positions: int64 (n,).
        tree_mask: bool (n, n), or None for causal.
        window: Tokens seen, itself included, or None for all.

    Returns:
        bool (n, c + n).
    """
    num_new = len(new_positions)
    if tree_mask is None:
        tree_mask = torch.ones(num_new, num_new, dtype=torch.bool, device=new_positions.device).tril()
    cached = tree_mask.new_ones(num_new, len(cached_positions))
    seen = torch.cat([cached, tree_mask], dim=1)  # (n, c + n)
    if window is not None:
        positions = torch.cat([cached_positions, new_positions])
        seen &= new_positions[:, None] - positions[None, :] < window
    return seen


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turn a mask of True and False into numbers that are added to attention scores.

    Args:
        seen: bool (n, m).
        dtype: Of the scores.

    Returns:
        (1, 1, n, m), 0 where seen, and the dtype's lowest number elsewhere.
    """
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]
