"""Folders for generated data: where they stand, and how one appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

BESIDE = ".dflash_lab"


def cache_folder() -> Path:
    """Give the folder for generated data: DFLASH_LAB_CACHE, or dflash_lab in the user's cache folder; made on use."""
    folder = _cache_path()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def folders_for(path: Path) -> list[Path]:
    """Folders where data made of a file or folder may stand, the preferred one first; none is made."""
    if os.environ.get("DFLASH_LAB_CACHE"):
        return [_cache_path()]
    return [path.parent / BESIDE, _cache_path()]


def first_writable(folders: list[Path]) -> Path:
    """Give the first folder that can be written; it is made.

    Raises:
        OSError: If none can be.
    """
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            last = error
    raise OSError(f"no folder for generated data can be written: {last}; name one in DFLASH_LAB_CACHE") from last


def build_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Make a folder of what `build` writes, aside first, so that it appears whole; at once in two processes is fine.

    Args:
        folder: Where it will stand; must not depend on anything but what `build` writes.
        build: Writes into the folder that it is given.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        build(aside)
        # mkdtemp makes folders that only their owner can read.
        aside.chmod(0o755)
        try:
            aside.rename(folder)
        except OSError:
            # Another process was first, with the same content.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def key_of(value: object) -> str:
    """Name a JSON value in 16 hexadecimal digits."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _cache_path() -> Path:
    given = os.environ.get("DFLASH_LAB_CACHE")
    if given:
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "dflash_lab"
