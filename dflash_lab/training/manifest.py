"""What a run was made of and where it ran, beside its settings."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from dflash_lab.training.files import read_json, write_json
from dflash_lab.training.run_log import MANIFEST

_PACKAGES = ("dflash-lab", "torch", "numpy", "transformers", "safetensors")


@cache
def code_fingerprint() -> str:
    """Name the package's own code: another name as soon as a line of it differs. Read once, as modules are."""
    folder, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def write_manifest(
    run_dir: Path,
    *,
    identity: Mapping[str, object],
    target: Mapping[str, object],
    data: Mapping[str, object],
    total_steps: int,
    device: torch.device,
    from_step: int,
) -> None:
    """Write what a run was made of; a further session is added to those that stand there.

    Args:
        run_dir: Its folder.
        identity: What a resume must not change.
        target: Name and dtype of the target, and its devices.
        data: Name and sizes of the data set.
        total_steps: Optimizer steps of the whole run.
        device: Of the drafter.
        from_step: Step at which this session begins.
    """
    session = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "from_step": from_step,
        "command": sys.argv,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "code": code_fingerprint(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }
    write_json(
        run_dir / MANIFEST,
        {
            "total_steps": total_steps,
            "target": dict(target),
            "data": dict(data),
            "identity": dict(identity),
            "sessions": [*_earlier_sessions(run_dir / MANIFEST), session],
        },
    )


def _earlier_sessions(file: Path) -> list[object]:
    return read_json(file)["sessions"] if file.exists() else []
