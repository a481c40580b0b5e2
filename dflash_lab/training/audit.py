"""What is wrong with a checkpoint, from its files alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from dflash_lab.training.checkpoint import OPTIMIZER, STATE, WEIGHTS, why_incomplete


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing about a checkpoint that somebody should know.

    Args:
        severity: "error" (do not use it) or "warning" (look at the run).
        where: File or tensor.
        what: What was found.
    """

    severity: str
    where: str
    what: str


def audit_checkpoint(path: str | Path) -> list[Finding]:
    """Look for the faults that checkpoints of drafters have had.

    Args:
        path: A checkpoint's folder.

    Returns:
        NaN and infinity, norms that are all exactly 1.0 (in low precision they never move), tensors of zeros alone,
        moments that are not float32, an epoch that stays 0, and what is missing; empty where nothing is wrong.

    Raises:
        FileNotFoundError: If there is no such folder.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no checkpoint folder {path}")
    reason = why_incomplete(path)
    findings = [] if reason is None else [Finding(severity="error", where=path.name, what=reason)]
    weights = _tensors(path / WEIGHTS, findings)
    moments = _tensors(path / OPTIMIZER, findings)
    findings += _weight_findings(weights) + _moment_findings(weights, moments)
    if (path / STATE).exists():
        findings += _state_findings(path / STATE)
    return findings


def _tensors(file: Path, findings: list[Finding]) -> dict[str, torch.Tensor]:
    if not file.exists():
        return {}
    try:
        return load_file(file)
    except SafetensorError as error:
        findings.append(Finding(severity="error", where=file.name, what=f"cannot be read ({error})"))
        return {}


def _weight_findings(weights: dict[str, torch.Tensor]) -> list[Finding]:
    found = []
    for name, tensor in weights.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            found.append(Finding(severity="error", where=name, what=f"{bad} of {tensor.numel()} values are not finite"))
        elif not tensor.any():
            found.append(Finding(severity="warning", where=name, what="every value is 0: it has no effect"))
        if not tensor.is_floating_point() or tensor.element_size() < 4:
            found.append(
                Finding(severity="warning", where=name, what=f"is {tensor.dtype}; trained weights are float32")
            )
    norms = {name: tensor for name, tensor in weights.items() if tensor.ndim == 1}
    if norms and all((tensor == 1).all() for tensor in norms.values()):
        found.append(
            Finding(severity="warning", where="norms", what=f"all {len(norms)} are exactly 1.0: they have never moved")
        )
    return found


def _moment_findings(weights: dict[str, torch.Tensor], moments: dict[str, torch.Tensor]) -> list[Finding]:
    found = []
    for name, tensor in moments.items():
        if tensor.dtype != torch.float32:
            found.append(Finding(severity="error", where=name, what=f"moment is {tensor.dtype}; legal: float32"))
        if not torch.isfinite(tensor).all():
            found.append(Finding(severity="error", where=name, what="moment has values that are not finite"))
        elif name.endswith(".exp_avg_sq") and not tensor.any():
            found.append(
                Finding(severity="warning", where=name, what="never had a gradient other than 0: a dead tensor")
            )
    without = [name for name in weights if f"{name}.exp_avg" not in moments]
    if moments and without:
        what = f"no moments for {len(without)} weights, the first {without[0]}"
        found.append(Finding(severity="warning", where=OPTIMIZER, what=what))
    return found


def _state_findings(file: Path) -> list[Finding]:
    try:
        held = json.loads(file.read_text())
        state, identity = held["state"], dict(held["identity"])
        step, epoch = state["step"], state["epoch"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [Finding(severity="error", where=file.name, what=f"cannot be read ({error!r})")]
    found = []
    sizes = identity.get("batches_per_epoch") or []
    window = identity.get("config", {}).get("batching", {}).get("window")
    if sizes and not 0 <= epoch <= len(sizes):
        what = f"epoch is {epoch}, and the run has {len(sizes)}"
        found.append(Finding(severity="error", where=file.name, what=what))
    elif sizes and window:
        trained = sum(sizes[:epoch]) + state["batch"]
        steps = sum(-(-size // window) for size in sizes[:epoch]) + -(-state["batch"] // window)
        if steps != step:
            what = f"epoch {epoch} and batch {state['batch']} ({trained} batches) are step {steps}, but step is {step}"
            found.append(Finding(severity="error", where=file.name, what=what))
    if state["skipped_in_a_row"]:
        what = f"the last {state['skipped_in_a_row']} steps were not finite and moved nothing"
        found.append(Finding(severity="warning", where=file.name, what=what))
    return found
