"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, values: object) -> None:
    """Write strict JSON aside, wait for the disk, and rename it whole.

    Args:
        path: Where to.
        values: Plain data without numbers that are not finite.

    Raises:
        ValueError: If a number is not finite.
    """
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(values, file, allow_nan=False, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until renames inside a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
