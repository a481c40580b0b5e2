"""Where each value of a run's settings is from: given, a preset or a default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import lru_cache

from dflash_lab.batching import BatchingConfig
from dflash_lab.training.presets import PRESETS

DEFAULTS = "defaults"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run's folder says of its settings.

    Args:
        values: Dotted names -> values of config.json.
        recorded_base: The preset that it says it began with; "" where it does not say.
        recorded_given: Dotted names that it says were given.
    """

    values: Mapping[str, object]
    recorded_base: str = ""
    recorded_given: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a run's settings began with.

    Args:
        name: A preset, or "defaults".
        how: "recorded" or "derived".
        values: Dotted names -> its values.
        unknown: Names in the run's config.json that are no settings of this version.
    """

    name: str
    how: str
    values: Mapping[str, object]
    unknown: tuple[str, ...]


def flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Give nested settings by their dotted names.

    Args:
        values: Names and values; parts are mappings themselves.
        prefix: Of the names.
    """
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def find_base(run: RunSettings) -> Base:
    """Find what a run's settings began with: as recorded, or else what leaves fewest of them to be given.

    Args:
        run: The run.
    """
    known = flat(next(iter(PRESETS.values())).to_dict())
    unknown = tuple(name for name in run.values if name not in known)
    if run.recorded_base:
        values = flat(PRESETS[run.recorded_base].to_dict())
        return Base(name=run.recorded_base, how="recorded", values=values, unknown=unknown)
    candidates = {name: flat(preset.to_dict()) for name, preset in PRESETS.items()} | {DEFAULTS: dict(_defaults())}

    def num_given(name: str) -> int:
        held = candidates[name]
        return sum(setting not in held or held[setting] != value for setting, value in run.values.items())

    # Of equals the first: a preset rather than the defaults.
    best = min(candidates, key=num_given)
    return Base(name=best, how="derived", values=candidates[best], unknown=unknown)


def sources_of(run: RunSettings, base: Base) -> dict[str, str]:
    """Say where each value of a run is from.

    Args:
        run: The run.
        base: What its settings began with.

    Returns:
        Dotted names -> "given", "preset NAME", "default" or "unset".
    """
    return {name: _source(name, value, run, base) for name, value in run.values.items()}


def preset_sources(preset: str) -> dict[str, str]:
    """Say where each value of a preset is from: itself, or a default.

    Args:
        preset: Its name.
    """
    values = flat(PRESETS[preset].to_dict())
    run = RunSettings(values=values)
    return sources_of(run, Base(name=preset, how="recorded", values=values, unknown=()))


def _source(name: str, value: object, run: RunSettings, base: Base) -> str:
    if name in run.recorded_given or name not in base.values or base.values[name] != value:
        return "given"
    defaults = _defaults()
    if name in defaults and defaults[name] == value:
        return "unset" if value is None else "default"
    return f"preset {base.name}"


@lru_cache(maxsize=1)
def _defaults() -> Mapping[str, object]:
    """Dotted names -> values that stand where nothing is given; names without a default are not in it."""
    preset = next(iter(PRESETS.values()))
    needed = {entry.name for entry in dataclasses.fields(BatchingConfig) if entry.default is MISSING}
    batching = BatchingConfig(**{name: getattr(preset.batching, name) for name in needed})
    values = flat(type(preset)(batching=batching).to_dict())
    return {name: value for name, value in values.items() if name.removeprefix("batching.") not in needed}
