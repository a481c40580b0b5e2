"""Trained drafters in the formats that servers read, and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dflash_lab.drafter.config import DrafterConfig
from dflash_lab.drafter.export_fields import FORMATS, read_fields, speculators_fields, z_lab_fields
from dflash_lab.drafter.export_tensors import (
    CONFIG_FILE,
    StoredTensor,
    expected_shapes,
    read_json,
    read_tensors,
    stored_tensors,
    write_folder,
)
from dflash_lab.drafter.model import Drafter
from dflash_lab.drafter.verifying import VerifyingTarget

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
# What speculators' files may hold besides, all of it the target's.
TARGET_TENSORS = (EMBEDDING, HEAD, "verifier_lm_head.weight", "verifier_norm.weight")


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeculatorsVerifier:
    """What the speculators format holds of the target, which it calls the verifier.

    Args:
        name_or_path: Where servers find the target.
        architectures: Its model classes, such as ("Qwen3ForCausalLM",).
        embed_tokens: (vocab_size, hidden_size), what the drafter was given for each token.
        lm_head: (vocab_size, hidden_size), the head without bias.
    """

    name_or_path: str
    architectures: tuple[str, ...]
    embed_tokens: torch.Tensor
    lm_head: torch.Tensor

    @classmethod
    def from_target(
        cls, target: VerifyingTarget, *, architectures: Sequence[str], name_or_path: str | None = None
    ) -> SpeculatorsVerifier:
        """Take both matrices from what a target does, so that Gemma's scale and Granite's are in them.

        Args:
            target: Any target.
            architectures: Its model classes.
            name_or_path: None takes `target.name`.

        Raises:
            ValueError: If its head is no matrix: it has a bias or a soft cap, which the format has no place for.
        """
        with torch.no_grad():
            tokens = torch.arange(target.vocab_size, device=target.device)
            embed_tokens = target.embed(tokens)  # (V, H)
            units = torch.eye(target.hidden_size, dtype=target.dtype, device=target.device)
            columns = target.lm_head(units)  # (H, V)
            # A power of two changes no digits.
            linear = torch.equal(target.lm_head(units * 4), columns * 4)
        if not linear:
            raise ValueError(
                f"the head of {target.name} is not linear (a bias or a soft cap); legal: a matrix alone, or the format "
                f"'z-lab', which leaves the head to the server"
            )
        return cls(
            name_or_path=target.name if name_or_path is None else name_or_path,
            architectures=tuple(architectures),
            embed_tokens=embed_tokens.detach(),
            lm_head=columns.detach().T.contiguous(),
        )


@dataclass(frozen=True, kw_only=True)
class DrafterExport:
    """An exported drafter on disk, its config read and its weights not.

    Args:
        path: Its folder.
        format: "z-lab" or "speculators".
        config: The drafter's.
        dtype: Of the weights as config.json names it, or None where it does not.
        unknown_fields: Fields of config.json that are not known here and were left alone.
        tensors: Every tensor in its files, by name.
        unused_tensors: Names of tensors that are the target's.
    """

    path: Path
    format: str
    config: DrafterConfig
    dtype: str | None
    unknown_fields: tuple[str, ...]
    tensors: dict[str, StoredTensor]
    unused_tensors: tuple[str, ...]


def export_drafter(
    drafter: Drafter,
    path: str | os.PathLike[str],
    *,
    format: str = "z-lab",
    dtype: str = "bfloat16",
    verifier: SpeculatorsVerifier | None = None,
    max_position_embeddings: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a drafter for servers: `config.json` and `model.safetensors` in a folder.

    The folder is written aside, made durable and renamed, so that a reader finds a whole one or none.

    Args:
        drafter: Its weights are read and not changed.
        path: The folder to make.
        format: "z-lab" (z-lab, SpecForge, SGLang, vLLM; no embedding and no head) or "speculators" (vLLM).
        dtype: "bfloat16", as targets are served, or "float32", which loses nothing.
        verifier: What "speculators" holds of the target; None for "z-lab".
        max_position_embeddings: The target's, for servers that cap the drafter's length by it; None leaves it out.
        overwrite: Replace a drafter's folder that stands there.

    Returns:
        The folder.

    Raises:
        ValueError: If an argument is not legal, the folder exists, or a weight is NaN or infinite; nothing is written.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; legal: {', '.join(map(repr, FORMATS))}")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}; legal: {', '.join(map(repr, _DTYPES))}")
    if (format == "speculators") != (verifier is not None):
        needed = "needs" if format == "speculators" else "takes no"
        raise ValueError(
            f"the format {format!r} {needed} verifier; legal: a SpeculatorsVerifier for 'speculators' only"
        )
    config = drafter.config
    tensors = {name: tensor.detach() for name, tensor in drafter.state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected_shapes(config)
    fields: dict[str, Any]
    if verifier is None:
        fields = z_lab_fields(config, dtype=dtype, max_position_embeddings=max_position_embeddings)
    else:
        fields = speculators_fields(
            config,
            dtype=dtype,
            max_position_embeddings=max_position_embeddings,
            verifier_name=verifier.name_or_path,
            verifier_architectures=verifier.architectures,
        )
        tensors |= {EMBEDDING: verifier.embed_tokens, HEAD: verifier.lm_head}
        _check_verifier(verifier, config)
    # A copy each: tensors that share memory, as tied embeddings do, cannot be saved.
    stored = {
        name: tensor.detach().to(device="cpu", dtype=_DTYPES[dtype], copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    _refuse_non_finite(stored)
    write_folder(Path(path), fields, stored, overwrite=overwrite)
    return Path(path)


def read_export(path: str | os.PathLike[str], *, num_target_layers: int | None = None) -> DrafterExport:
    """Read what an exported drafter is, of either format and also by other trainers, without its weights.

    Args:
        path: Its folder, with `model.safetensors` or with shards and their index.
        num_target_layers: Depth of the target, for files that do not say it; others keep their own.

    Raises:
        ValueError: If a file is missing or damaged, a field is missing or not legal, or a tensor is missing, has
            another shape, or is not known; the message names each.
    """
    folder = Path(path)
    fields = read_fields(read_json(folder / CONFIG_FILE), num_target_layers=num_target_layers)
    if fields.config is None:
        raise ValueError(f"{folder / CONFIG_FILE}: " + "; ".join(map(str, fields.findings)))
    tensors = stored_tensors(folder)
    shapes = expected_shapes(fields.config)
    missing = sorted(shapes.keys() - tensors.keys())
    if missing:
        raise ValueError(f"{folder} lacks {len(missing)} tensors: {', '.join(missing)}; legal: all {len(shapes)}")
    unknown = sorted(tensors.keys() - shapes.keys() - set(TARGET_TENSORS))
    if unknown:
        raise ValueError(
            f"{folder} has tensors that a drafter does not have: {', '.join(unknown)}; legal: the drafter's, and "
            f"{', '.join(TARGET_TENSORS)}"
        )
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{folder}: {name} has the shape {tensors[name].shape}; legal: {shape}")
    return DrafterExport(
        path=folder,
        format=fields.format,
        config=fields.config,
        dtype=fields.dtype,
        unknown_fields=fields.unknown_fields,
        tensors=tensors,
        unused_tensors=tuple(sorted(tensors.keys() - shapes.keys())),
    )


def load_drafter(
    path: str | os.PathLike[str],
    *,
    num_target_layers: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Drafter:
    """Load an exported drafter of either format.

    `read_export` says what was left unread of its config; `lint_export` says what servers would stumble over.

    Args:
        path: Its folder.
        num_target_layers: Depth of the target, for files that do not say it.
        dtype: Of the weights in memory; float32 for training on.
        device: Where they go.

    Returns:
        The drafter, in eval mode.

    Raises:
        ValueError: As `read_export`, or if a weight is NaN or infinite.
    """
    found = read_export(path, num_target_layers=num_target_layers)
    shapes = expected_shapes(found.config)
    tensors = read_tensors({name: found.tensors[name] for name in shapes})
    _refuse_non_finite(tensors)
    # What it draws for its first weights is overwritten and must not move the caller's generator.
    with torch.random.fork_rng(devices=[]):
        drafter = Drafter(found.config)
    drafter.load_state_dict(tensors)
    return drafter.to(device=device, dtype=dtype).eval()


def _refuse_non_finite(tensors: dict[str, torch.Tensor]) -> None:
    bad = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise ValueError(f"NaN or infinite weights in {', '.join(bad)}; legal: finite numbers")


def _check_verifier(verifier: SpeculatorsVerifier, config: DrafterConfig) -> None:
    legal = (config.vocab_size, config.hidden_size)
    for name, tensor in (("embed_tokens", verifier.embed_tokens), ("lm_head", verifier.lm_head)):
        if tuple(tensor.shape) != legal:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; legal: {legal}, as in the drafter's config")
    if not verifier.name_or_path or not verifier.architectures:
        raise ValueError(
            f"verifier has the name_or_path {verifier.name_or_path!r} and the architectures {verifier.architectures}; "
            f"legal: a name, and one or more model classes"
        )
