"""Every setting of a run in one value: strict to read, complete when written."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field

from dflash_lab.batching import BatchingConfig
from dflash_lab.batching.config import whole_number
from dflash_lab.training.settings import (
    AnchorSettings,
    CheckpointSettings,
    DrafterSettings,
    LogSettings,
    LossSettings,
    NoiseSettings,
    OptimizerSettings,
    PipelineSettings,
    ValidationSettings,
)

# Parts that decide how a run runs, not what it trains.
HARMLESS = ("pipeline", "log", "checkpoints")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run. A window of `batching.window` batches, within one epoch, makes one optimizer step.

    Args:
        batching: Who shares a batch, and when it is seen; its seed draws the plans.
        epochs: Passes over the samples, >= 1. The paper has 6.
        max_steps: Optimizer steps after which the run ends early, >= 1, and where the schedules end, too; None runs all
            epochs.
        seed: Of the first weights, the anchors, the noise and the choice of held-out samples; >= 0.
        drafter: Shape of the drafter.
        loss: What is minimised.
        anchors: How many anchors are drawn.
        optimizer: AdamW and its learning rate.
        noise: Noise on the target features.
        validation: Scores on held-out samples.
        checkpoints: When the run is saved.
        pipeline: Threads and queues.
        log: What the run tells.

    Raises:
        ValueError: If a value is out of range.
    """

    batching: BatchingConfig
    epochs: int = 6
    max_steps: int | None = None
    seed: int = 0
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    anchors: AnchorSettings = field(default_factory=AnchorSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        whole_number("epochs", self.epochs, least=1)
        if self.max_steps is not None:
            whole_number("max_steps", self.max_steps, least=1)
        whole_number("seed", self.seed, least=0)

    @classmethod
    def preset(cls, name: str, changes: Mapping[str, object] | None = None) -> RunConfig:
        """Give settings by name.

        Args:
            name: "paper" (A.1 of the DFlash paper), "source_run_buggy" (with the faults that its run had: gamma 4,
                betas 0.9/0.999 by assumption, a noise ramp that is never applied) or "tiny" (minutes on a CPU).
            changes: Dotted names -> values to set instead; see `replace`.

        Raises:
            ValueError: If there is no such preset, or a change is not legal.
        """
        # The presets are made of this class.
        from dflash_lab.training.presets import PRESETS

        if name not in PRESETS:
            raise ValueError(f"preset is {name!r}; legal: {', '.join(PRESETS)}")
        return PRESETS[name].replace(changes or {})

    @property
    def accumulation(self) -> int:
        """Micro-batches of one optimizer step: the batching's window."""
        return self.batching.window

    @property
    def identity(self) -> dict[str, object]:
        """What decides the weights, as plain data: a resume must not change it."""
        return {name: value for name, value in self.to_dict().items() if name not in HARMLESS}

    def to_dict(self) -> dict[str, object]:
        """Give all values as plain JSON data, each part an object of its own."""
        return _plain(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> RunConfig:
        """Read what `to_dict` gave, or a part of it; what is not named keeps its default.

        Args:
            values: Names and values; parts are mappings themselves.

        Raises:
            ValueError: If a name is unknown, naming the nearest one, or a value is not legal.
        """
        return _read(cls, _plain(values), "")

    def replace(self, changes: Mapping[str, object]) -> RunConfig:
        """Give a config with some values changed.

        Args:
            changes: Dotted names -> values, such as {"optimizer.learning_rate": 1e-3, "epochs": 2}. A whole part may be
                given as a mapping; what it does not name stays as it is.

        Raises:
            ValueError: As `from_dict`.
        """
        values = self.to_dict()
        for dotted in changes:
            whole = next((name for name in changes if dotted.startswith(f"{name}.")), None)
            if whole is not None:
                raise ValueError(f"changes has {whole} as a whole and {dotted}; legal: one of the two")
        for dotted, value in changes.items():
            *parts, last = dotted.split(".")
            inside: typing.Any = values
            for at, part in enumerate(parts):
                if not isinstance(inside.get(part), dict):
                    raise _unknown(
                        ".".join(parts[: at + 1]), [name for name in inside if isinstance(inside[name], dict)]
                    )
                inside = inside[part]
            if last not in inside:
                raise _unknown(dotted, list(inside))
            inside[last] = _merged(inside[last], value)
        return type(self).from_dict(values)

    def unset_values(self, given: Mapping[str, object]) -> list[str]:
        """List, dotted, the values that `given` does not name and a default therefore decided.

        Args:
            given: What `from_dict` was given.
        """
        return _not_in(self.to_dict(), given, "")


def first_difference(values: Mapping[str, object], others: Mapping[str, object], prefix: str = "") -> str | None:
    """Name the first setting, dotted, in which two configs differ, with both values; None if they agree.

    Args:
        values: From `to_dict` or `identity`.
        others: Likewise.
        prefix: Of the names.
    """
    for name in dict.fromkeys([*values, *others]):
        mine, other = values.get(name), others.get(name)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            inside = first_difference(mine, other, f"{prefix}{name}.")
            if inside is not None:
                return inside
        elif mine != other:
            return f"{prefix}{name} is {mine!r} and was {other!r}"
    return None


def _merged(value: object, change: object) -> object:
    """Change a value; of a part, given as a mapping, only what the mapping names."""
    if not isinstance(value, dict) or not isinstance(change, Mapping):
        return change
    return {**value, **{name: _merged(value.get(name), held) for name, held in change.items()}}


def _plain(value: object) -> typing.Any:
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    # Numbers may come as numpy's.
    return value.item() if hasattr(value, "item") else value


def _read(kind: type, values: object, prefix: str) -> typing.Any:
    if not isinstance(values, Mapping):
        raise ValueError(f"{prefix.rstrip('.') or 'the config'} is {values!r}; legal: names and values")
    hints = typing.get_type_hints(kind)
    known = {entry.name: entry for entry in dataclasses.fields(kind)}
    arguments = {}
    for name, value in values.items():
        if name not in known:
            raise _unknown(f"{prefix}{name}", list(known))
        if dataclasses.is_dataclass(hints[name]):
            value = _read(hints[name], value, f"{prefix}{name}.")
        elif isinstance(value, list) and tuple in _origins(hints[name]):
            value = tuple(value)
        arguments[name] = value
    for name, entry in known.items():
        if name not in arguments and entry.default is MISSING and entry.default_factory is MISSING:
            raise ValueError(f"{prefix}{name} is not given, and has no default")
    try:
        return kind(**arguments)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None


def _origins(hint: object) -> tuple[object, ...]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(part) or part for part in parts)


def _unknown(name: str, known: list[str]) -> ValueError:
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
    hint = f" (the nearest is {near[0]})" if near else ""
    return ValueError(f"{name} is not a setting{hint}; legal: {', '.join(known)}")


def _not_in(values: Mapping[str, object], given: Mapping[str, object], prefix: str) -> list[str]:
    names = []
    for name, value in values.items():
        if name not in given:
            names.append(f"{prefix}{name}")
        elif isinstance(value, Mapping) and isinstance(given[name], Mapping):
            names += _not_in(value, typing.cast(Mapping, given[name]), f"{prefix}{name}.")
    return names
