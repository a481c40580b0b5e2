"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOCK = ".lock"


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the lock ends with the process, however that ends.

    Args:
        folder: Made where it is not there.

    Raises:
        ValueError: If another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        # Windows: two runs in one folder are not noticed there.
        yield
        return
    with open(folder / LOCK, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process that trains there") from None
        except OSError:
            # Some network disks know no locks.
            pass
        yield


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


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, naming it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON that can be read: {error}") from None
