"""The tensors and facts of a checkpoint's files, ours or another trainer's, one tensor at a time."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
INDEX_ENDING = ".safetensors.index.json"
# Names under which trainers keep where a run stands.
_STEPS = ("global_step", "step", "steps", "optimizer_step", "total_steps_done")
_EPOCHS = ("epoch", "epochs", "current_epoch")


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """Where a tensor is.

    Args:
        name: Its name; of a pickled file, keys joined by dots.
        file: The file.
        key: Its name in a safetensors file; "" in a pickled one.
        held: The tensor, where the file had to be read whole.
    """

    name: str
    file: Path
    key: str = ""
    held: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointContent:
    """What a checkpoint's folder or file holds.

    Args:
        weights: Weights by name.
        moments: Tensors of the optimizer by name: a weight's name, or a number where only numbers are known, and
            "exp_avg", "exp_avg_sq" or "step" behind a dot.
        param_groups: Settings of the optimizer's groups, as other trainers save them.
        facts: Numbers that say where the run stands: "step" and "epoch", as far as they were found.
        unread: Files that could not be read, with the reason.
        missing: Tensors or files that an index names and that are not there.
        other_files: Files that are no tensors.
    """

    weights: Mapping[str, TensorPlace] = field(default_factory=dict)
    moments: Mapping[str, TensorPlace] = field(default_factory=dict)
    param_groups: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    unread: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    other_files: tuple[str, ...] = ()


def read_content(path: Path) -> CheckpointContent:
    """Find out what a checkpoint holds; no tensor of a safetensors file is read yet.

    Args:
        path: A folder, or a single file. Pickled files are read without running what is in them.
    """
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    weights: dict[str, TensorPlace] = {}
    moments: dict[str, TensorPlace] = {}
    groups: list[Mapping[str, Any]] = []
    facts: dict[str, float] = {}
    unread: list[tuple[str, str]] = []
    other: list[str] = []
    for file in files:
        try:
            if file.suffix == ".safetensors":
                names = _names(file)
                # Optimizers keep moments of weights, and nothing else has such names.
                into = moments if any(name.endswith((".exp_avg", ".exp_avg_sq")) for name in names) else weights
                for name in names:
                    _put(into, name, TensorPlace(name=name, file=file, key=name))
            elif file.suffix in PICKLED:
                held = torch.load(file, map_location="cpu", weights_only=True)
                if not isinstance(held, Mapping):
                    raise ValueError(f"it holds a {type(held).__name__}; legal: tensors by their names")
                _sort_out(held, file, "", weights, moments, groups, facts)
            elif file.suffix == ".json" and not file.name.endswith(INDEX_ENDING):
                _read_facts(json.loads(file.read_text(encoding="utf-8")), facts)
                other.append(file.name)
            else:
                other.append(file.name)
        except (
            SafetensorError,
            pickle.UnpicklingError,
            zipfile.BadZipFile,
            RuntimeError,
            ValueError,
            EOFError,
        ) as error:
            unread.append((file.name, str(error).splitlines()[0] if str(error) else type(error).__name__))
    return CheckpointContent(
        weights=weights,
        moments=moments,
        param_groups=tuple(groups),
        facts=facts,
        unread=tuple(unread),
        missing=tuple(_missing(files, weights)),
        other_files=tuple(other),
    )


@contextmanager
def opened() -> Iterator[Any]:
    """Give a function that reads a tensor from its place; files stay open until the end."""
    handles: dict[Path, Any] = {}

    def read(place: TensorPlace) -> torch.Tensor:
        if place.held is not None:
            return place.held
        if place.file not in handles:
            handles[place.file] = safe_open(place.file, framework="pt")
        return handles[place.file].get_tensor(place.key)

    try:
        yield read
    finally:
        handles.clear()


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as held:
        return list(held.keys())


def _sort_out(
    held: Any,
    file: Path,
    prefix: str,
    weights: dict[str, TensorPlace],
    moments: dict[str, TensorPlace],
    groups: list[Mapping[str, Any]],
    facts: dict[str, float],
) -> None:
    """Put what a pickled file holds where it belongs, by its form."""
    if isinstance(held, list | tuple):
        held = dict(enumerate(held))
    if "state" in held and "param_groups" in held:
        groups.extend(group for group in held["param_groups"] if isinstance(group, Mapping))
        for number, state in held["state"].items():
            for kind, value in state.items() if isinstance(state, Mapping) else ():
                name = f"{number}.{kind}"
                if isinstance(value, int | float):
                    value = torch.tensor(float(value))
                if isinstance(value, torch.Tensor):
                    _put(moments, name, TensorPlace(name=name, file=file, held=value))
        return
    if not prefix:
        _read_facts(held, facts)
    for key, value in held.items():
        name = f"{prefix}{key}"
        if isinstance(value, torch.Tensor):
            _put(weights, name, TensorPlace(name=name, file=file, held=value))
        elif isinstance(value, Mapping | list | tuple):
            # {"model": {...}}: the outermost key names the part, not the tensors in it.
            is_state = isinstance(value, Mapping) and any(isinstance(each, torch.Tensor) for each in value.values())
            _sort_out(value, file, prefix if is_state and not prefix else f"{name}.", weights, moments, groups, facts)


def _put(places: dict[str, TensorPlace], name: str, place: TensorPlace) -> None:
    """Keep a tensor under its name, or under its file's and its own where another file has that name."""
    places[f"{place.file.name}:{name}" if name in places else name] = place


def _read_facts(held: Any, facts: dict[str, float]) -> None:
    if not isinstance(held, Mapping):
        return
    for name, keys in (("step", _STEPS), ("epoch", _EPOCHS)):
        for key in keys:
            value = held.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                facts.setdefault(name, value)


def _missing(files: list[Path], weights: Mapping[str, TensorPlace]) -> Iterator[tuple[str, str]]:
    for file in files:
        if not file.name.endswith(INDEX_ENDING):
            continue
        try:
            places = dict(json.loads(file.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            yield file.name, f"cannot be read ({error!r})"
            continue
        gone = [name for name in places if name not in weights]
        if gone:
            yield file.name, f"names {len(gone)} tensors that are not there, the first {gone[0]} in {places[gone[0]]}"
