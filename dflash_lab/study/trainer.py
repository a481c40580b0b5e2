"""Trains arms one after the other into their folders, in whatever process it is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dflash_lab.data.folders import build_folder
from dflash_lab.study.arms import train_arm
from dflash_lab.study.features import load_or_compute_features
from dflash_lab.study.material import StudyMaterial
from dflash_lab.study.settings import ArmSpec, StudySettings

Opener = Callable[[StudySettings], StudyMaterial]


class ArmTrainer:
    """Holds what arms share.

    Args:
        settings: The study's.
        material: Target and samples.
        folder: Each arm gets a folder of its own in it, which appears whole or not at all.
    """

    def __init__(self, settings: StudySettings, material: StudyMaterial, folder: Path) -> None:
        self.settings, self.material, self.folder = settings, material, folder
        self.features = load_or_compute_features(settings, material)

    def train(self, spec: ArmSpec, on_step: Callable[[], None] = lambda: None) -> Path:
        """Train one arm on one thread, and write it.

        Args:
            spec: Which.
            on_step: Called after each step.

        Returns:
            Its folder.
        """
        place = self.folder / spec.folder
        with one_thread():
            log = train_arm(spec, self.settings, self.material, self.features, on_step=on_step)
        # One without a log was damaged by hand: it must not stand in the way of the whole one.
        shutil.rmtree(place, ignore_errors=True)
        build_folder(place, log.write, room_variable="outputs")
        return place


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums come out the same to the bit, however many arms run beside one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
