"""Whether a folder holds this run, and where it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_lab.training.checkpoint import CHECKPOINTS, RunState, find_checkpoint, read_state, why_incomplete
from dflash_lab.training.config import first_difference
from dflash_lab.training.manifest import code_fingerprint
from dflash_lab.training.run_log import MANIFEST, METRICS

MODES = ("auto", "never", "must")


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Where a run goes on.

    Args:
        checkpoint: Folder of the checkpoint.
        state: Where it stands.
        notices: What a person should know: which newer checkpoints are not complete.
    """

    checkpoint: Path
    state: RunState
    notices: tuple[str, ...]


def find_resume(run_dir: Path, identity: Mapping[str, object], *, resume: str | Path) -> Resume | None:
    """Find where a run goes on; None for a run that begins.

    Args:
        run_dir: The run's folder.
        identity: What must not have changed.
        resume: See `train_drafter`.

    Raises:
        ValueError: If the folder holds another run, naming what differs; or a run where none may be, or none where one
            must be.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"run_dir {run_dir} is a file; legal: a folder")
    if resume not in MODES:
        return _from_checkpoint(run_dir, identity, Path(resume))
    is_taken = _holds_a_run(run_dir)
    if resume == "never" and is_taken:
        raise ValueError(f'{run_dir} holds a run already; legal: another folder, or resume="auto"')
    found = find_checkpoint(run_dir)
    if found is None:
        if resume == "must":
            raise ValueError(f"{run_dir} holds no complete checkpoint to go on from")
        if is_taken:
            _refuse_another_run(run_dir, identity, _identity_of(run_dir))
        return None
    notices = [f"passed over {reason}" for reason in found.passed_over]
    return _resume(run_dir, identity, found.path, notices)


def _from_checkpoint(run_dir: Path, identity: Mapping[str, object], checkpoint: Path) -> Resume:
    if not checkpoint.is_dir():
        raise ValueError(f"resume is {str(checkpoint)!r}; legal: {', '.join(MODES)}, or the folder of a checkpoint")
    reason = why_incomplete(checkpoint)
    if reason is not None:
        raise ValueError(f"the checkpoint {checkpoint} is not complete: {reason}")
    is_own = checkpoint.resolve().parent == (run_dir / CHECKPOINTS).resolve()
    if not is_own and _holds_a_run(run_dir):
        raise ValueError(
            f"{run_dir} holds a run already, and the checkpoint {checkpoint} is not one of its own; legal: another "
            f"folder"
        )
    return _resume(run_dir, identity, checkpoint, [])


def _resume(run_dir: Path, identity: Mapping[str, object], checkpoint: Path, notices: list[str]) -> Resume:
    state, before = read_state(checkpoint)
    _refuse_another_run(run_dir, identity, before)
    notices.append(f"going on from {checkpoint.name}: epoch {state.epoch}, {state.batch} batches of it trained")
    if _last_code(run_dir) not in (None, code_fingerprint()):
        notices.append("earlier steps ran other code of dflash_lab: the weights need not be those of one session")
    return Resume(checkpoint=checkpoint, state=state, notices=tuple(notices))


def _holds_a_run(run_dir: Path) -> bool:
    return any((run_dir / name).exists() for name in (METRICS, MANIFEST, CHECKPOINTS))


def _identity_of(run_dir: Path) -> Mapping[str, object] | None:
    """Read what a run that was stopped before its first checkpoint was made of."""
    try:
        return json.loads((run_dir / MANIFEST).read_text(encoding="utf-8"))["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _last_code(run_dir: Path) -> str | None:
    try:
        return json.loads((run_dir / MANIFEST).read_text(encoding="utf-8"))["sessions"][-1]["code"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _refuse_another_run(run_dir: Path, identity: Mapping[str, object], before: Mapping[str, object] | None) -> None:
    if before is None:
        raise ValueError(f"{run_dir} holds a run's files without its {MANIFEST}; legal: another folder")
    difference = first_difference(identity, before)
    if difference is not None:
        raise ValueError(
            f"{run_dir} holds another run: now {difference}; take another run_dir, or the same settings, data and "
            f"target"
        )
