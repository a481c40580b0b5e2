"""Weights of an exported drafter on disk: which tensors there must be, reading them with shards, writing them whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dflash_lab.drafter.config import DrafterConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in a file that has not been read yet.

    Args:
        name: Its name in the file.
        path: The file.
        shape: Its shape.
        dtype: As safetensors names it, such as "BF16".
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name every tensor of a drafter with its shape; embedding and head are the target's and not among them.

    Args:
        config: The drafter's.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    of_layer = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (config.head_dim,),
        "self_attn.k_norm.weight": (config.head_dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    shapes = {
        f"layers.{layer}.{name}": shape for layer in range(config.num_hidden_layers) for name, shape in of_layer.items()
    }
    num_taps = len(config.target_layer_ids)
    return {
        **shapes,
        "fc.weight": (hidden, num_taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Find the tensors of a folder, in one file or in shards, without reading them.

    Args:
        folder: With `model.safetensors`, or with `model.safetensors.index.json` and the shards that it names.

    Raises:
        ValueError: If a file is missing, damaged, or without a tensor that the index puts there; the message names it.
    """
    names_by_file: dict[str, list[str] | None] = {WEIGHTS_FILE: None}
    if (folder / INDEX_FILE).exists():
        names_by_file = _shards(folder / INDEX_FILE)
    found = {}
    for file, names in names_by_file.items():
        in_file = _tensors_in(folder / file)
        missing = sorted(set(names or ()) - in_file.keys())
        if missing:
            raise ValueError(f"{folder / file} lacks {missing[0]}; legal: every tensor that {INDEX_FILE} puts there")
        found.update({name: in_file[name] for name in (in_file if names is None else names)})
    return found


def read_tensors(stored: dict[str, StoredTensor]) -> dict[str, torch.Tensor]:
    """Read tensors into memory, in the dtypes of their files.

    Args:
        stored: From `stored_tensors`, or a part of it.
    """
    tensors = {}
    for path in sorted({each.path for each in stored.values()}):
        with safe_open(path, framework="pt") as file:
            tensors.update({name: file.get_tensor(name) for name, each in stored.items() if each.path == path})
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: If the file is missing or holds something else; the message names it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; legal: a folder with {CONFIG_FILE} and {WEIGHTS_FILE}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}; legal: a JSON object") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}; legal: a JSON object")
    return found


def write_folder(path: Path, fields: dict[str, Any], tensors: dict[str, torch.Tensor], *, overwrite: bool) -> None:
    """Write a drafter's folder aside, make it durable, and rename it into place whole.

    Args:
        path: The folder; its parents are made.
        fields: For `config.json`.
        tensors: For `model.safetensors`.
        overwrite: Take the place of what stands there. It stays until the new folder is complete, and comes back if
            the new one cannot be put in its place.

    Raises:
        ValueError: If something stands there and is not to be overwritten, or is no drafter's folder.
    """
    path = path.absolute()
    if path.exists() or path.is_symlink():
        if not overwrite:
            raise ValueError(f"{path} exists; legal: a new path, or overwrite=True")
        _check_is_export(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        new = aside / "new"
        new.mkdir()
        text = json.dumps(fields, indent=2, allow_nan=False) + "\n"
        (new / CONFIG_FILE).write_text(text, encoding="utf-8")
        # Loaders of transformers refuse a file that does not say whose tensors it holds.
        save_file(tensors, new / WEIGHTS_FILE, metadata={"format": "pt"})
        for name in (CONFIG_FILE, WEIGHTS_FILE, "."):
            _make_durable(new / name)
        _put_in_place(new, path, old=aside / "old")
        _make_durable(path.parent)
    finally:
        # What stood there is thrown away only once something stands there again.
        if path.exists() or not (aside / "old").exists():
            shutil.rmtree(aside, ignore_errors=True)


def _check_is_export(path: Path) -> None:
    """Refuse to take the place of anything but a drafter's folder: whatever else stands there would be lost."""
    legal = "legal: only a drafter's folder, and nothing beside it, is overwritten"
    try:
        fields = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{path} is no folder with {CONFIG_FILE} to read; {legal}") from None
    is_drafter = isinstance(fields, dict) and ("dflash_config" in fields or "speculators_model_type" in fields)
    if not is_drafter:
        raise ValueError(f"{path / CONFIG_FILE} is of no drafter; {legal}")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in (CONFIG_FILE, WEIGHTS_FILE))
    if others:
        raise ValueError(f"{path} holds {others[0]} as well; {legal}")


def _put_in_place(new: Path, path: Path, *, old: Path) -> None:
    replaces = path.exists()
    if replaces:
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if replaces:
            os.rename(old, path)
        raise


def _make_durable(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _shards(index: Path) -> dict[str, list[str] | None]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map; legal: an object of tensor names and file names")
    names_by_file: dict[str, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ValueError(f"{index} puts {name} in {file!r}; legal: a file name of the same folder")
        of_file = names_by_file.setdefault(file, [])
        assert of_file is not None
        of_file.append(name)
    return names_by_file


def _tensors_in(path: Path) -> dict[str, StoredTensor]:
    if not path.exists():
        raise ValueError(f"{path} is missing; legal: every file of weights that the folder needs")
    found = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                part = file.get_slice(name)
                found[name] = StoredTensor(name=name, path=path, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}; legal: a whole safetensors file") from error
    return found
