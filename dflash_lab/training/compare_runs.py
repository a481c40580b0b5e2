"""Runs beside one another and beside the presets: settings with their sources, circumstances, outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.analysis import read_run
from dflash_lab.analysis.records import record_table
from dflash_lab.training.presets import PRESETS
from dflash_lab.training.run_log import CONFIG, MANIFEST, METRICS, VALIDATION, read_lines
from dflash_lab.training.setting_sources import Base, RunSettings, find_base, flat, preset_sources, sources_of

# Where a run's settings were put together from a preset and changes, as `short_run` writes them down.
_ARGUMENTS = "short_run.json"
_COLUMNS = ("setting", "runs_differ", "fact", "differs")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunComparison:
    """Runs beside one another; polars tables.

    Args:
        settings: One row a setting that is not the same everywhere, those first that differ between the runs: setting,
            runs_differ (bool), and for each run and each preset a column of values and one, named "source of ...", that
            says where each is from: "given", "preset NAME", "default", "unset" (no value, as by default) or "not in
            config.json". A preset's column is named "preset NAME".
        bases: One row a run: run, base (the preset that its settings began with, or "defaults"), how ("recorded" where
            the run wrote it down, "derived" where it is the one that leaves fewest settings to be given), num_given,
            config (what config.json says that no setting of this version is; "" for nothing).
        circumstances: One row a fact of manifest.json, such as versions, device and fingerprints: fact, differs (bool),
            and a column a run; null where a run does not say.
        outcomes: One row a run: run, steps_done, total_steps, best_held_out_tau, best_step, last_held_out_tau,
            last_loss, last_tenth_loss (losses of the last tenth of the steps, as a ratio of sums), skipped_steps,
            session_seconds (of all sessions whose steps stand); null where the run does not say.
    """

    settings: Any
    bases: Any
    circumstances: Any
    outcomes: Any


def compare_runs(run_dirs: Sequence[str | Path], *, presets: Sequence[str] = tuple(PRESETS)) -> RunComparison:
    """Compare runs with one another and with the presets.

    Args:
        run_dirs: Folders of runs, at least one, with different names.
        presets: Presets to compare with.

    Returns:
        The comparison.

    Raises:
        ValueError: If there is no run, two have one name, a folder has no readable config.json, or a preset is unknown.
    """
    folders = [Path(run_dir) for run_dir in run_dirs]
    if not folders:
        raise ValueError("run_dirs is empty; legal: at least one run's folder")
    unknown = [name for name in presets if name not in PRESETS]
    if unknown:
        raise ValueError(f"preset is {unknown[0]!r}; legal: {', '.join(PRESETS)}")
    names = [folder.resolve().name for folder in folders]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two runs are named {min(twice)}; legal: folders with different names")
    taken = [name for name in names if name in _COLUMNS or name.startswith(("preset ", "source of "))]
    if taken:
        raise ValueError(f"a run is named {taken[0]!r}, which is a column of the tables; legal: another name")
    runs = {name: _settings(folder) for name, folder in zip(names, folders, strict=True)}
    bases = {name: find_base(run) for name, run in runs.items()}
    return RunComparison(
        settings=_setting_table(runs, bases, presets),
        bases=record_table(
            {
                "run": name,
                "base": base.name,
                "how": base.how,
                "num_given": sum(source == "given" for source in sources_of(runs[name], base).values()),
                "config": ", ".join(base.unknown),
            }
            for name, base in bases.items()
        ),
        circumstances=_circumstances(dict(zip(names, folders, strict=True))),
        outcomes=record_table((_outcome(name, folder) for name, folder in zip(names, folders, strict=True)), _OUTCOMES),
    )


def _settings(folder: Path) -> RunSettings:
    values = _object(folder / CONFIG)
    if values is None:
        raise ValueError(f"{folder} holds no run: there is no {CONFIG}")
    arguments = _object(folder / _ARGUMENTS)
    if arguments is None:
        return RunSettings(values=flat(values))
    # What `short_run` sets itself: seeds by its seed, and the id that its target leaves free.
    given = {"seed", "batching.seed", "drafter.mask_token_id", *(arguments.get("changes") or {})}
    return RunSettings(values=flat(values), recorded_base="tiny", recorded_given=frozenset(given))


def _setting_table(runs: Mapping[str, RunSettings], bases: Mapping[str, Base], presets: Sequence[str]) -> Any:
    columns = {name: run.values for name, run in runs.items()}
    sources = {name: sources_of(run, bases[name]) for name, run in runs.items()}
    for preset in presets:
        columns[f"preset {preset}"] = flat(PRESETS[preset].to_dict())
        sources[f"preset {preset}"] = preset_sources(preset)
    rows = []
    for setting in dict.fromkeys(name for values in columns.values() for name in values):
        texts = {name: _text(values[setting]) if setting in values else None for name, values in columns.items()}
        if len(set(texts.values())) == 1:
            continue
        row: dict[str, object] = {"setting": setting, "runs_differ": len({texts[name] for name in runs}) > 1}
        for name, text in texts.items():
            row[name] = text
            row[f"source of {name}"] = sources[name].get(setting, f"not in {CONFIG}")
        rows.append(row)
    rows.sort(key=lambda row: not row["runs_differ"])
    names = [part for name in columns for part in (name, f"source of {name}")]
    return record_table(rows, ["setting", "runs_differ", *names])


def _circumstances(folders: Mapping[str, Path]) -> Any:
    facts = {name: dict(_facts(folder)) for name, folder in folders.items()}
    rows = []
    for fact in dict.fromkeys(fact for held in facts.values() for fact in held):
        values = {name: held.get(fact) for name, held in facts.items()}
        rows.append({"fact": fact, "differs": len(set(values.values())) > 1, **values})
    return record_table(rows, ["fact", "differs", *folders])


def _facts(folder: Path) -> Iterator[tuple[str, str]]:
    manifest = _object(folder / MANIFEST)
    if manifest is None:
        return
    identity = manifest.get("identity", {})
    for name in ("data", "validation", "target"):
        yield f"{name} fingerprint", str(identity.get(name)) or "none"
    yield "plans", ", ".join(map(str, identity.get("plans", [])))
    yield "batches_per_epoch", ", ".join(map(str, identity.get("batches_per_epoch", [])))
    yield "ranks", str(identity.get("ranks"))
    for part in ("data", "target"):
        for name, value in manifest.get(part, {}).items():
            yield f"{part}.{name}", _text(value)
    sessions = manifest.get("sessions", [])
    yield "sessions", str(len(sessions))
    # What a session brought with it, one after the other where they differ.
    for name in ("python", "system", "device", "device_name", "threads"):
        yield name, " -> ".join(dict.fromkeys(str(session.get(name)) for session in sessions))
    for package in dict.fromkeys(package for session in sessions for package in session.get("versions", {})):
        held = dict.fromkeys(str(session.get("versions", {}).get(package)) for session in sessions)
        yield f"version of {package}", " -> ".join(held)


_OUTCOMES = (
    "run", "steps_done", "total_steps", "best_held_out_tau", "best_step", "last_held_out_tau", "last_loss",
    "last_tenth_loss", "skipped_steps", "session_seconds",
)  # fmt: skip


def _outcome(name: str, folder: Path) -> dict[str, object]:
    manifest = _object(folder / MANIFEST) or {}
    scores = [line for line in read_lines(folder / VALIDATION) if line.get("tau") is not None]
    best = max(scores, key=lambda line: line["tau"], default=None)  # type: ignore[arg-type, return-value]
    row: dict[str, object] = {
        "run": name,
        "total_steps": manifest.get("total_steps"),
        "best_held_out_tau": None if best is None else best["tau"],
        "best_step": None if best is None else best["step"],
        "last_held_out_tau": scores[-1]["tau"] if scores else None,
    }
    if not (folder / METRICS).is_file() or not read_lines(folder / METRICS):
        return {**row, "steps_done": 0}
    table = read_run(folder)
    scored = table.drop_nulls(["loss_sum", "loss_weight"])
    scored = scored.filter(scored["loss_weight"] != 0)
    tenth = scored.tail(max(1, len(scored) // 10))
    has_losses = len(scored) > 0
    seconds: dict[object, float] = {}
    for session, elapsed in zip(table["session"].to_list(), table["elapsed_seconds"].to_list(), strict=True):
        seconds[session] = max(seconds.get(session, 0.0), elapsed)
    return {
        **row,
        "steps_done": int(table["step"][-1]),
        "last_loss": float(scored["loss_sum"][-1] / scored["loss_weight"][-1]) if has_losses else None,
        "last_tenth_loss": float(tenth["loss_sum"].sum() / tenth["loss_weight"].sum()) if has_losses else None,
        "skipped_steps": sum(str(reason).startswith("non-finite") for reason in table["skipped"].to_list()),
        "session_seconds": sum(seconds.values()),
    }


def _object(file: Path) -> dict[str, Any] | None:
    """Read a file of one JSON object; None where there is none."""
    if not file.is_file():
        return None
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(held, dict):
        raise ValueError(f"{file} holds {type(held).__name__}; legal: a JSON object")
    return held


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
