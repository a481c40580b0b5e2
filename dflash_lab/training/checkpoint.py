"""Checkpoints: one complete one exists at every moment, and the newest complete one is found by its step."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dflash_lab.training.files import sync_file, sync_folder, write_json

CHECKPOINTS = "checkpoints"
WEIGHTS, OPTIMIZER, STATE = "drafter.safetensors", "optimizer.safetensors", "state.json"
SET_ASIDE = "set_aside"
_NAME = re.compile(r"step-(\d{8,})")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands at an optimizer step, beside weights and optimizer.

    Args:
        step: Optimizer steps that are done, skipped ones included.
        epoch: Epoch of the next batch.
        batch: Batches of that epoch that are trained.
        skipped_steps: Steps that moved nothing, since loss or gradient was not finite.
        empty_steps: Steps that moved nothing, since no batch of theirs had an anchor.
        skipped_in_a_row: Of the skipped ones, those since the last good one.
        session: Sessions of the run before this one's resume.
        best_tau: Best held-out acceptance length so far, None before the first.
        best_step: Its step.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    skipped_steps: int = 0
    empty_steps: int = 0
    skipped_in_a_row: int = 0
    session: int = 0
    best_tau: float | None = None
    best_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint on the disk.

    Args:
        path: Its folder.
        step: Its step.
        passed_over: Newer folders that are not complete, with the reason.
    """

    path: Path
    step: int
    passed_over: tuple[str, ...] = ()


class WeightsNotFinite(ValueError):
    """Weights hold NaN or infinity, and are not saved over good ones."""


def save_checkpoint(
    run_dir: Path, drafter: nn.Module, optimizer: torch.optim.Optimizer, state: RunState, identity: Mapping[str, object]
) -> Path:
    """Save a run at an optimizer step.

    All files are written into a folder aside, with `state.json`, which lists their sizes and digests, as the last, and
    the folder is renamed whole.

    Args:
        run_dir: The run's folder.
        drafter: Its weights.
        optimizer: Its moments, kept in float32.
        state: Where the run stands.
        identity: What a resume must not change.

    Returns:
        The checkpoint's folder.

    Raises:
        WeightsNotFinite: If a weight or a moment is NaN or infinite; nothing is written.
    """
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    moments = _moments(drafter, optimizer)
    for name, tensor in (weights | moments).items():
        if not torch.isfinite(tensor).all():
            raise WeightsNotFinite(
                f"{name} has a NaN or an infinity at step {state.step}; the checkpoint is not written"
            )
    parent = run_dir / CHECKPOINTS
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"step-{state.step:08d}"
    partial = parent / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_file(weights, partial / WEIGHTS)
    save_file(moments, partial / OPTIMIZER)
    files = {}
    for name in (WEIGHTS, OPTIMIZER):
        sync_file(partial / name)
        files[name] = {"bytes": (partial / name).stat().st_size, "sha256": _digest(partial / name)}
    write_json(partial / STATE, {"state": asdict(state), "identity": dict(identity), "files": files})
    if folder.exists():
        # Written again by a run that went back: the old one goes aside first, and only then goes for good.
        old = parent / f".{folder.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
        os.replace(partial, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(partial, folder)
    sync_folder(parent)
    return folder


def find_checkpoint(run_dir: Path, *, at_most: int | None = None) -> FoundCheckpoint | None:
    """Find the newest complete checkpoint of a run, by its step.

    Args:
        run_dir: The run's folder.
        at_most: Largest step that will do; None for any.

    Returns:
        The checkpoint, or None where there is none.
    """
    passed_over = []
    for step, folder in reversed(checkpoint_folders(run_dir)):
        if at_most is not None and step > at_most:
            continue
        reason = why_incomplete(folder)
        if reason is None:
            return FoundCheckpoint(path=folder, step=step, passed_over=tuple(passed_over))
        passed_over.append(f"{folder.name}: {reason}")
    return None


def why_incomplete(folder: Path, *, read_all: bool = True) -> str | None:
    """Say what a checkpoint's folder lacks; None if it is complete and holds what was written.

    Args:
        folder: The checkpoint.
        read_all: Compare the content of files as well, not only their sizes.
    """
    try:
        held = json.loads((folder / STATE).read_text())
        files = {name: (int(file["bytes"]), str(file["sha256"])) for name, file in held["files"].items()}
        state = RunState(**held["state"])
    except FileNotFoundError:
        return f"{STATE} is missing"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{STATE} cannot be read ({error})"
    for name in (WEIGHTS, OPTIMIZER):
        if not (folder / name).exists():
            return f"{name} is missing"
        if name not in files:
            return f"{STATE} does not list {name}"
        size, digest = files[name]
        found = (folder / name).stat().st_size
        if found != size:
            return f"{name} has {found} bytes of {size}"
        if read_all and _digest(folder / name) != digest:
            return f"{name} is not what was written"
    match = _NAME.fullmatch(folder.name)
    if match and int(match[1]) != state.step:
        return f"{STATE} is of step {state.step}"
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_state(folder: Path) -> tuple[RunState, dict[str, object]]:
    """Read where a checkpoint stands, and what a resume must not change."""
    held = json.loads((folder / STATE).read_text())
    return RunState(**held["state"]), held["identity"]


def load_weights(folder: Path, drafter: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Put a checkpoint's weights and moments into a drafter and its optimizer.

    Raises:
        ValueError: If the tensors are not those of the drafter.
    """
    weights = load_file(folder / WEIGHTS)
    try:
        drafter.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{folder / WEIGHTS} is of another drafter: {error}") from None
    if optimizer is None:
        return
    moments = load_file(folder / OPTIMIZER)
    for name, parameter in drafter.named_parameters():
        if f"{name}.step" in moments:
            optimizer.state[parameter] = {
                kind: moments[f"{name}.{kind}"].to("cpu" if kind == "step" else parameter.device) for kind in _MOMENTS
            }


def prune_checkpoints(run_dir: Path, *, keep: int, best_step: int | None) -> None:
    """Remove complete checkpoints but the newest `keep` and the best; incomplete ones stay for whoever looks."""
    complete = [
        (step, folder) for step, folder in checkpoint_folders(run_dir) if why_incomplete(folder, read_all=False) is None
    ]
    for step, folder in complete[:-keep]:
        if step != best_step:
            # Taken out of sight first: half a folder must not look like a checkpoint.
            gone = folder.with_name(f".{folder.name}.old")
            shutil.rmtree(gone, ignore_errors=True)
            os.replace(folder, gone)
            shutil.rmtree(gone, ignore_errors=True)


def set_newer_aside(run_dir: Path, *, step: int) -> None:
    """Take checkpoints behind a step out of the way of a run that goes on from it; they stay in `set_aside/`.

    Args:
        run_dir: The run's folder.
        step: The step to go on from.
    """
    for newer, folder in checkpoint_folders(run_dir):
        if newer > step:
            aside = run_dir / CHECKPOINTS / SET_ASIDE / folder.name
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(exist_ok=True)
            os.replace(folder, aside)


def checkpoint_folders(run_dir: Path) -> list[tuple[int, Path]]:
    """Give step and folder of each checkpoint of a run, complete or not, by step."""
    parent = run_dir / CHECKPOINTS
    if not parent.is_dir():
        return []
    named = [(_NAME.fullmatch(folder.name), folder) for folder in parent.iterdir()]
    return sorted((int(match[1]), folder) for match, folder in named if match)


def _moments(drafter: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    held = {}
    for name, parameter in drafter.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            held[f"{name}.{kind}"] = torch.as_tensor(value, dtype=torch.float32).detach().cpu().contiguous()
    return held
