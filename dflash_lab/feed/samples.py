"""One sample's tokens, checked: what is read from anything but our own store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CheckedTokens:
    """One sample's tokens after the checks.

    Args:
        input_ids: Whole numbers (L,).
        loss_mask: bool (L,).
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray


def check_tokens(input_ids: object, loss_mask: object, *, name: str, length: int | None = None) -> CheckedTokens:
    """Check one sample and cut both of its fields at the same place.

    Args:
        input_ids: Whole numbers (L,), as an array or what numpy makes one of.
        loss_mask: bool or 0/1 (L,).
        name: How messages call the sample.
        length: Tokens to keep; None keeps all.

    Returns:
        The tokens; they may still share memory with what was given.

    Raises:
        ValueError: If the sample is empty, too short, of another shape or type, or its fields differ in length.
    """
    ids, mask = np.asarray(input_ids), np.asarray(loss_mask)
    if ids.ndim != 1 or mask.ndim != 1 or len(ids) != len(mask):
        raise ValueError(f"{name} has input_ids {ids.shape} and loss_mask {mask.shape}; legal: both (L,), as long")
    if not len(ids):
        raise ValueError(f"{name} is empty; legal: at least one token")
    if ids.dtype.kind not in "iu" or (ids.dtype == np.uint64 and ids.max() > np.iinfo(np.int64).max):
        raise ValueError(f"{name} has input_ids of type {ids.dtype}; legal: whole numbers within int64")
    if length is not None and len(ids) < length:
        raise ValueError(f"{name} has {len(ids)} tokens where the plan has {length}; it was made from other data")
    if mask.dtype != bool:
        if mask.dtype.kind not in "iuf" or not ((mask == 0) | (mask == 1)).all():
            raise ValueError(f"{name} has a loss_mask of type {mask.dtype} with other values than 0 and 1")
        mask = mask.astype(bool)
    return CheckedTokens(ids[:length], mask[:length])
