"""Pinned memory: only where there is an accelerator that copies from it."""

from __future__ import annotations

import logging

import torch

_notices = logging.getLogger("dflash_lab.feed")
_has_told = False


def resolve_pin_memory(pin_memory: bool | str) -> bool:
    """Decide whether batches are pinned.

    Args:
        pin_memory: "auto" pins where it can, and else says so in one log line a process; True insists; False does not.

    Returns:
        Whether to pin.

    Raises:
        ValueError: If it is none of these, or True on a machine that cannot pin.
    """
    global _has_told
    if pin_memory is False:
        return False
    if pin_memory is not True and pin_memory != "auto":
        raise ValueError(f'pin_memory is {pin_memory!r}; legal: True, False, "auto"')
    obstacle = _why_not()
    if obstacle is None:
        return True
    if pin_memory is True:
        raise ValueError(f'pin_memory is True, but {obstacle}; legal here: False, "auto"')
    if not _has_told:
        _has_told = True
        _notices.warning("batches are in ordinary memory, not pinned: %s", obstacle)
    return False


def _why_not() -> str | None:
    if not (torch.cuda.is_available() or torch.accelerator.is_available()):
        return "this machine has no accelerator that torch sees"
    try:
        torch.empty(1, pin_memory=True)
    except RuntimeError as error:
        # Some accelerators copy from ordinary memory only.
        return f"the accelerator pins no memory: {error}"
    return None
