"""A whole study in one call: arms that are there are opened, the others are trained."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dflash_lab.batching.config import whole_number
from dflash_lab.data.folders import key_of
from dflash_lab.data.paths import user_path
from dflash_lab.study.arms import ARM
from dflash_lab.study.material import StudyMaterial, open_material
from dflash_lab.study.processes import train_in_processes
from dflash_lab.study.settings import ArmSpec, StudySettings
from dflash_lab.study.trainer import ArmTrainer, Opener
from dflash_lab.training.files import in_use, write_json

STUDIES, STUDY = "study", "study.json"
# Changes whenever the same settings give other logs.
_FORMAT = 1
# What does not change an arm that is there: which others there are, and names of what the material's fingerprint holds.
_NOT_OF_ARMS = (
    "arms", "probed", "anchor_budgets", "normalisations", "seeds",
    "target", "data_path", "tokenizer", "on_bad_row", "num_answers", "most_turns", "most_feature_bytes",
)  # fmt: skip
_MOST_PROCESSES = 2


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study with all its arms.

    Args:
        folder: Holds study.json and a folder for each arm.
        arm_folders: Those of this study's arms, in their order; the folder may hold others.
        settings: What it is made of.
        data_name: What the samples are, in words.
        data_fingerprint: Of the data set that is trained on.
        target_name: Name of the target.
        notes: What a reader should know of samples and arms.
        num_samples: Samples that every arm passes over.
        hardware: Where its arms were trained, as far as the last session that trained some tells.
        num_trained: Arms that were trained now; the others were there.
        seconds: By the clock.
    """

    folder: Path
    arm_folders: tuple[Path, ...]
    settings: StudySettings
    data_name: str
    data_fingerprint: str
    target_name: str
    notes: str
    num_samples: int
    hardware: str
    num_trained: int
    seconds: float

    @property
    def label(self) -> str:
        """Data and target as part of a file name: letters, digits, "-" and "_"."""
        data = Path(self.settings.data_path).name.removesuffix(".jsonl") or "built-in-corpus"
        parts = [data] if self.settings.target == "tiny" else [Path(self.settings.target).name, data]
        return re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts)).strip("-")


def run_study(
    settings: StudySettings,
    *,
    outputs: str | Path = "outputs",
    processes: int = 0,
    on_status: Callable[[str], None] = print,
    opener: Opener = open_material,
) -> Study:
    """Train the arms of a study, or open those that are there.

    Each arm runs on one thread and is the same to the bit in any number of processes. It is written whole when it is
    done; one that was interrupted is trained again.

    Args:
        settings: What the study is made of.
        outputs: Folder; the study's own is study/KEY in it, where the key names all that decides an arm.
        processes: Arms at a time, >= 0; 0 takes one a core, 2 at most.
        on_status: Called with lines that say how far it is.
        opener: Opens target and samples; another one must be a function that other processes find by its module.

    Returns:
        The study.

    Raises:
        ValueError: As `open_material` and `load_or_compute_features`; or if another process trains in the folder.
    """
    begin = time.perf_counter()
    whole_number("processes", processes, least=0)
    material = opener(settings)
    folder = user_path(outputs, name="outputs") / STUDIES / study_key(settings, material)
    specs = settings.specs()
    missing = [spec for spec in specs if not (folder / spec.folder / ARM).is_file()]
    if missing:
        wanted = min(processes or min(_MOST_PROCESSES, num_cores()), len(missing))
        at_a_time = f"{wanted} {'arm' if wanted == 1 else 'arms'} at a time, one thread each"
        hardware = f"{num_cores()} CPU cores ({platform.machine()}), {at_a_time}"
        with in_use(folder):
            _train(missing, settings, material, folder, wanted, hardware, opener, on_status)
    return Study(
        folder=folder,
        arm_folders=tuple(folder / spec.folder for spec in specs),
        settings=settings,
        data_name=material.name,
        data_fingerprint=material.train.fingerprint,
        target_name=material.target.name,
        notes=_notes(settings, material),
        num_samples=len(material.train_ids),
        hardware=str(json.loads((folder / STUDY).read_text(encoding="utf-8"))["hardware"]),
        num_trained=len(missing),
        seconds=time.perf_counter() - begin,
    )


def study_key(settings: StudySettings, material: StudyMaterial) -> str:
    """Name all that decides what an arm does, but for the arm itself.

    Args:
        settings: The study's.
        material: Its target and samples.
    """
    deciding = {name: value for name, value in asdict(settings).items() if name not in _NOT_OF_ARMS}
    return key_of([_FORMAT, deciding, material.fingerprint])


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _train(
    missing: list[ArmSpec],
    settings: StudySettings,
    material: StudyMaterial,
    folder: Path,
    num_processes: int,
    hardware: str,
    opener: Opener,
    on_status: Callable[[str], None],
) -> None:
    begin = time.perf_counter()
    # Before the processes begin: they find the features there.
    trainer = ArmTrainer(settings, material, folder)
    on_status(f"target features of {material.num_tokens:,} tokens after {time.perf_counter() - begin:.0f} s")
    write_json(
        folder / STUDY,
        {"settings": asdict(settings), "data": material.name, "hardware": hardware, "torch": torch.__version__},
    )
    done: list[ArmSpec] = []

    def on_done(spec: ArmSpec) -> None:
        done.append(spec)
        seconds = time.perf_counter() - begin
        on_status(f"{len(done)} of {len(missing)} arms after {seconds:.0f} s: {spec.label}, seed {spec.seed}")

    if num_processes == 1:
        for spec in missing:
            trainer.train(spec)
            on_done(spec)
        return
    train_in_processes(
        missing,
        settings,
        opener,
        folder,
        fingerprint=material.fingerprint,
        num_processes=num_processes,
        on_done=on_done,
    )


def _notes(settings: StudySettings, material: StudyMaterial) -> str:
    return (
        f"{material.notes}\n{len(material.train_ids):,} samples with {material.num_tokens:,} tokens, "
        f"{settings.epochs} times over in every arm; {len(material.held_out_ids):,} held-out samples"
    )
