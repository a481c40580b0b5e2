"""What is wrong with a checkpoint, from its files alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_lab.training.checkpoint import OPTIMIZER, STATE, WEIGHTS, RunState, find_checkpoint, why_incomplete
from dflash_lab.training.checkpoint_files import CheckpointContent, TensorPlace, opened, read_content
from dflash_lab.training.first_weights import first_weights

Read = Callable[[TensorPlace], torch.Tensor]
NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing about a checkpoint or a run that somebody should know.

    Args:
        severity: "error" (do not use it), "warning" (look at the run) or "not checked" (what is here cannot tell).
        where: File, tensor or setting.
        what: What was found.
    """

    severity: str
    where: str
    what: str


def audit_checkpoint(
    path: str | Path, *, earlier: str | Path | None = None, steps_per_epoch: float | None = None
) -> list[Finding]:
    """Look for the faults that checkpoints of drafters have had.

    A folder or file of another trainer (safetensors, or what torch pickled) is looked into as far as it goes; what
    could not be checked is a finding of its own.

    Args:
        path: A checkpoint's folder, or a single file.
        earlier: An earlier checkpoint of the same run, to find tensors that have not moved since. None takes the one
            before it in the run's folder, and the run's first weights; another trainer's has neither.
        steps_per_epoch: Optimizer steps of an epoch, > 0, to check another trainer's epoch; ours knows its own.

    Returns:
        NaN and infinity, norms that are all exactly 1.0 (in low precision they never move), tensors of zeros alone or
        that have not moved, moments that are not float32 or are of fewer updates than the run made, an epoch that stays
        0, and what is missing or too much; empty where nothing is wrong and everything was checked.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        ValueError: If `steps_per_epoch` is not > 0.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint folder {path}")
    if steps_per_epoch is not None and not steps_per_epoch > 0:
        raise ValueError(f"steps_per_epoch is {steps_per_epoch!r}; legal: a number > 0")
    content = read_content(path)
    is_ours = path.is_dir() and any((path / name).exists() for name in (STATE, WEIGHTS, OPTIMIZER))
    found = []
    if is_ours:
        reason = why_incomplete(path)
        found += [] if reason is None else [_error(path.name, reason)]
    found += [_error(name, f"cannot be read ({reason})") for name, reason in content.unread]
    found += [_error(name, what) for name, what in content.missing]
    if not content.weights and not content.unread:
        others = f"; of other kinds: {_few(list(content.other_files))}" if content.other_files else ""
        found.append(_error(path.name, f"holds no weights{others}"))
    state = _state(path / STATE) if is_ours else None
    with opened() as read:
        frozen = _frozen_norms(content, read)
        found += _weight_findings(content, read)
        if frozen:
            what = f"all {len(frozen)} are exactly 1.0: they have never moved"
            found.append(_warning("norms", what))
        found += _moment_findings(content, read)
        found += _updates_findings(content, read, state)
        if state is not None:
            try:
                found += _state_findings(state)
            except (AttributeError, TypeError, ValueError) as error:
                found.append(_error(STATE, f"its identity cannot be read ({error!r})"))
        elif is_ours and (path / STATE).exists():
            found.append(_error(STATE, f"cannot be read ({_why_unreadable(path / STATE)})"))
        elif not is_ours:
            found += _epoch_findings(content, steps_per_epoch)
        others = list(_comparisons(path, content, read, state, earlier, found))
        for other in others:
            found += _compared(content, other, read, frozen)
    return found


@dataclass(frozen=True, kw_only=True)
class _State:
    """What `state.json` of ours says."""

    run: RunState
    identity: Mapping[str, object]

    @property
    def updates(self) -> int:
        """Steps that moved the weights."""
        return self.run.step - self.run.skipped_steps - self.run.empty_steps


@dataclass(frozen=True, kw_only=True)
class _Other:
    """Weights to compare with, and what they are in words."""

    weights: Mapping[str, TensorPlace]
    words: str
    may_have_moved: bool


def _state(file: Path) -> _State | None:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return _State(run=RunState(**held["state"]), identity=dict(held["identity"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _why_unreadable(file: Path) -> str:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        RunState(**held["state"])
        dict(held["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return repr(error)
    raise AssertionError("the state can be read")


def _frozen_norms(content: CheckpointContent, read: Read) -> list[str]:
    """Names of all norms, if every one of them is exactly 1.0 everywhere."""
    names = [name for name in content.weights if "norm" in name.lower() and not name.endswith("bias")]
    norms = {name: read(content.weights[name]) for name in names}
    vectors = {name: tensor for name, tensor in norms.items() if tensor.ndim == 1}
    return list(vectors) if vectors and all(bool((_plain(tensor) == 1).all()) for tensor in vectors.values()) else []


def _weight_findings(content: CheckpointContent, read: Read) -> Iterator[Finding]:
    for name, place in content.weights.items():
        tensor = read(place)
        bad = _not_finite(tensor)
        if bad:
            yield _error(name, f"{bad} of {tensor.numel()} values are not finite")
        elif not bool((_plain(tensor) != 0).any()):
            yield _warning(name, "every value is 0: it has no effect")
        if tensor.is_floating_point() and tensor.element_size() < 4:
            yield _warning(name, f"is {tensor.dtype}; trained weights are float32")


def _moment_findings(content: CheckpointContent, read: Read) -> Iterator[Finding]:
    for name, place in content.moments.items():
        tensor = read(place)
        kind = name.rpartition(".")[2]
        if kind != "step" and tensor.dtype != torch.float32:
            yield _error(name, f"moment is {tensor.dtype}; legal: float32")
        if _not_finite(tensor):
            yield _error(name, "moment has values that are not finite")
        elif kind == "exp_avg_sq" and not bool((_plain(tensor) != 0).any()):
            yield _warning(name, "never had a gradient other than 0: a dead tensor")
    if not content.moments:
        yield Finding(severity=NOT_CHECKED, where="optimizer", what="no moments are here")
        return
    owners = {name.rpartition(".")[0] for name in content.moments}
    if owners & set(content.weights):
        without = [name for name in content.weights if name not in owners]
        if without:
            yield _warning(OPTIMIZER, f"no moments for {len(without)} weights, the first {without[0]}")
    elif len(owners) < len(content.weights):
        yield _warning("optimizer", f"moments for {len(owners)} of {len(content.weights)} weights")


def _updates_findings(content: CheckpointContent, read: Read, state: _State | None) -> Iterator[Finding]:
    """Look at how often the optimizer has moved each weight."""
    counts = {
        name.rpartition(".")[0]: float(read(place))
        for name, place in content.moments.items()
        if name.endswith(".step") and read(place).numel() == 1
    }
    if not counts:
        return
    most = max(counts.values())
    behind = [name for name, count in counts.items() if count < most]
    if behind:
        what = f"{len(behind)} weights were moved less often than {most:.0f} times, the first {behind[0]}"
        yield _warning("optimizer", what)
    if state is not None and most != state.updates:
        yield _error(
            "optimizer",
            f"its moments are of {most:.0f} updates, and the run made {state.updates}: the optimizer was begun anew, "
            f"or steps were counted wrongly",
        )


def _state_findings(state: _State) -> Iterator[Finding]:
    run = state.run
    sizes = state.identity.get("batches_per_epoch") or []
    config = state.identity.get("config") or {}
    window = config.get("batching", {}).get("window") if isinstance(config, Mapping) else None
    if sizes and not 0 <= run.epoch <= len(sizes):  # type: ignore[arg-type]
        yield _error(STATE, f"epoch is {run.epoch}, and the run has {len(sizes)}")  # type: ignore[arg-type]
    elif sizes and window:
        trained = sum(sizes[: run.epoch]) + run.batch  # type: ignore[index]
        steps = sum(-(-size // window) for size in sizes[: run.epoch]) + -(-run.batch // window)  # type: ignore[index]
        if steps != run.step:
            yield _error(
                STATE,
                f"epoch {run.epoch} and batch {run.batch} ({trained} batches) are step {steps}, but step is {run.step}",
            )
    if run.skipped_in_a_row:
        yield _warning(STATE, f"the last {run.skipped_in_a_row} steps were not finite and moved nothing")


def _epoch_findings(content: CheckpointContent, steps_per_epoch: float | None) -> Iterator[Finding]:
    if not {"step", "epoch"} <= content.facts.keys():
        missing = " and ".join(name for name in ("step", "epoch") if name not in content.facts)
        yield Finding(severity=NOT_CHECKED, where="epoch", what=f"no {missing} is here")
        return
    step, epoch = content.facts["step"], content.facts["epoch"]
    if steps_per_epoch is None:
        what = f"epoch is {epoch:g} at step {step:g}: right or wrong by steps_per_epoch, which was not given"
        yield Finding(severity=NOT_CHECKED, where="epoch", what=what)
        return
    expected = step / steps_per_epoch
    # Trainers count epochs from 0 or from 1, and some in fractions.
    if not expected - 1 <= epoch <= expected + 1:
        stuck = ": it stays 0" if epoch == 0 else ""
        yield _error("epoch", f"epoch is {epoch:g} at step {step:g}, which is {expected:.2f} epochs{stuck}")


def _comparisons(
    path: Path,
    content: CheckpointContent,
    read: Read,
    state: _State | None,
    earlier: str | Path | None,
    found: list[Finding],
) -> Iterator[_Other]:
    """Give what the weights can be compared with; what cannot be had becomes a finding."""
    if earlier is not None:
        if not Path(earlier).exists():
            raise FileNotFoundError(f"there is no checkpoint folder {earlier}")
        before = _state(Path(earlier) / STATE)
        moved = state is None or before is None or state.updates > before.updates
        yield _Other(
            weights=read_content(Path(earlier)).weights, words=f"in {Path(earlier).name}", may_have_moved=moved
        )
    if state is None:
        if earlier is None:
            what = "whether tensors have moved, are missing or too many: there is no earlier checkpoint to compare with"
            found.append(Finding(severity=NOT_CHECKED, where="weights", what=what))
        return
    if earlier is None:
        sibling = find_checkpoint(path.parent.parent, at_most=state.run.step - 1)
        before = None if sibling is None else _state(sibling.path / STATE)
        # Another run may have left its checkpoints in this folder.
        if sibling is not None and before is not None and before.identity == state.identity:
            yield _Other(
                weights=read_content(sibling.path).weights,
                words=f"at step {sibling.step}",
                may_have_moved=state.updates > before.updates,
            )
    shapes = {name: tuple(read(place).shape) for name, place in content.weights.items()}
    for name, place in content.moments.items():
        owner, _, kind = name.rpartition(".")
        if kind == "exp_avg":
            # Two files that agree are better than one: a weight that was cut still has moments of its whole shape.
            shapes[owner] = tuple(read(place).shape)
    try:
        first = first_weights(state.identity["config"], shapes)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        what = f"the run's first weights cannot be made again ({error})"
        found.append(Finding(severity=NOT_CHECKED, where="weights", what=what))
        return
    places = {name: TensorPlace(name=name, file=path, held=tensor) for name, tensor in first.items()}
    yield _Other(weights=places, words="before the first step", may_have_moved=state.updates > 0)


def _compared(content: CheckpointContent, other: _Other, read: Read, frozen: list[str]) -> Iterator[Finding]:
    missing = [name for name in other.weights if name not in content.weights]
    extra = [name for name in content.weights if name not in other.weights]
    for names, words in ((missing, "missing"), (extra, "too many")):
        if names and content.weights:
            yield _error("weights", f"{len(names)} tensors are {words}, beside those {other.words}: {_few(names)}")
    same = []
    for name, place in content.weights.items():
        if name not in other.weights:
            continue
        mine, theirs = read(place), read(other.weights[name])
        if mine.shape != theirs.shape:
            yield _error(name, f"has the shape {tuple(mine.shape)}, and {tuple(theirs.shape)} {other.words}")
        elif name not in frozen and mine.dtype == theirs.dtype and torch.equal(_plain(mine), _plain(theirs)):
            same.append(name)
    if same and other.may_have_moved:
        what = f"{len(same)} of {len(content.weights)} tensors are, to the bit, what they were {other.words}"
        yield _warning("weights", f"{what}: {_few(same)}")


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Give a float of one byte, which torch cannot compare, as float32: the same values."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 2 else tensor


def _not_finite(tensor: torch.Tensor) -> int:
    return int((~torch.isfinite(_plain(tensor))).sum())


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _error(where: str, what: str) -> Finding:
    return Finding(severity="error", where=where, what=what)


def _warning(where: str, what: str) -> Finding:
    return Finding(severity="warning", where=where, what=what)
