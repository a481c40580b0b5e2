"""A model's weights: named, and copied to another device."""

from __future__ import annotations

import copy
from hashlib import blake2b

import torch
from torch import nn

# Numbers of each tensor that go into its fingerprint, spread evenly. Training moves nearly all numbers of a tensor.
_SAMPLED = 4_096


def weights_fingerprint(model: nn.Module) -> str:
    """Name weights in 32 hexadecimal digits, by names, shapes, dtypes and up to 4,096 numbers of each tensor."""
    digest = blake2b(b"weights 1", digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().flatten()
        if len(flat) > _SAMPLED:
            flat = flat[torch.linspace(0, len(flat) - 1, _SAMPLED, dtype=torch.float64).long().to(flat.device)]
        digest.update(flat.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def copy_to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """Copy a model straight to another device; what is tied stays tied.

    Args:
        model: With frozen parameters.
        device: Where to.
    """
    # What copy finds here it does not copy: no second copy stands on the first device.
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.detach().to(device, copy=True), requires_grad=parameter.requires_grad)
        for parameter in model.parameters()
    }
    memo |= {id(buffer): buffer.detach().to(device, copy=True) for buffer in model.buffers()}
    return copy.deepcopy(model, memo)
