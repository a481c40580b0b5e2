"""Whether a folder holds this run, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_lab.training.checkpoint import CHECKPOINTS, RunState, find_checkpoint, read_state
from dflash_lab.training.config import first_difference
from dflash_lab.training.run_log import METRICS

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


def find_resume(run_dir: Path, identity: Mapping[str, object], *, mode: str) -> Resume | None:
    """Find where a run goes on; None for a run that begins.

    Args:
        run_dir: The run's folder.
        identity: What must not have changed.
        mode: See `train_drafter`.

    Raises:
        ValueError: If the folder holds another run, naming what differs; or a run where none may be, or none where one
            must be.
    """
    if mode not in MODES:
        raise ValueError(f"resume is {mode!r}; legal: {', '.join(MODES)}")
    if run_dir.exists() and not run_dir.is_dir():
        raise ValueError(f"run_dir {run_dir} is a file; legal: a folder")
    found = find_checkpoint(run_dir)
    if mode == "never" and ((run_dir / METRICS).exists() or (run_dir / CHECKPOINTS).exists()):
        raise ValueError(f'{run_dir} holds a run already; legal: an empty folder, or resume="auto"')
    if found is None:
        if mode == "must":
            raise ValueError(f"{run_dir} holds no complete checkpoint to go on from")
        return None
    state, before = read_state(found.path)
    difference = first_difference(identity, before)
    if difference is not None:
        raise ValueError(
            f"{run_dir} holds another run: now {difference}; take another run_dir, or the same settings, data and "
            f"target"
        )
    notices = [f"passed over {reason}" for reason in found.passed_over]
    notices.append(f"going on from {found.path.name}: epoch {state.epoch}, {state.batch} batches of it trained")
    return Resume(checkpoint=found.path, state=state, notices=tuple(notices))
