"""Folders for generated data: where they stand, and how one appears whole or not at all."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from dflash_lab.data.paths import short_name, user_path

BESIDE = ".dflash_lab"
CACHE_VARIABLE = "DFLASH_LAB_CACHE"
# What reading a damaged file of ours can raise.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, pa.ArrowException)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DAY_SECONDS = 86_400
_ASIDE = re.compile(r"\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)\.[^.]*\.partial$")

Loaded = TypeVar("Loaded")


def cache_folder() -> Path:
    """Give the folder for generated data: DFLASH_LAB_CACHE, or dflash_lab in the user's cache folder; made on use."""
    folder = _cache_path()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def folders_for(path: Path) -> list[Path]:
    """Folders where data made of a file or folder may stand, the preferred one first; none is made."""
    if os.environ.get(CACHE_VARIABLE):
        return [_cache_path()]
    return [path.parent / BESIDE, _cache_path()]


def first_writable(folders: list[Path]) -> Path:
    """Give the first folder that can be written; it is made.

    Raises:
        OSError: If none can be.
    """
    problem: OSError | str = "none is left"
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            problem = error
    raise OSError(f"no folder for generated data can be written: {problem}; name one in {CACHE_VARIABLE}")


def load_or_build(
    places: list[Path], load: Callable[[Path], Loaded], build: Callable[[Path], None], *, label: str
) -> Loaded:
    """Give what stands in the first of some places, built where it stands in none or is damaged.

    Args:
        places: Folders where it may stand, the preferred one first. Each stands in a folder of its own that is named
            after the source; what else is in there was made of the source's earlier states, and goes.
        load: Reads such a folder; what it raises means that the folder is damaged.
        build: Writes such a folder.
        label: Names the source, for messages.

    Raises:
        OSError: If nothing can be written anywhere.
    """
    spoiled = set()
    for place in places:
        try:
            if place.is_dir():
                return load(place)
        except PermissionError:
            # Another user's, who shares it with nobody.
            spoiled.add(place)
        except _DAMAGE as error:
            print(f"{label}: {place} is damaged and is made anew: {error}", file=sys.stderr, flush=True)
            shutil.rmtree(place, ignore_errors=True)
            if place.exists():
                spoiled.add(place)
    folder = first_writable([place.parent for place in places if place not in spoiled]) / places[0].name
    build_folder(folder, build)
    for other in folder.parent.iterdir():
        # Open maps of what is removed stay valid.
        if other != folder and not other.name.endswith(".partial"):
            shutil.rmtree(other, ignore_errors=True)
    return load(folder)


def build_folder(folder: Path, build: Callable[[Path], None], *, room_variable: str = CACHE_VARIABLE) -> None:
    """Make a folder of what `build` writes, aside first, so that it appears whole; at once in two processes is fine.

    Args:
        folder: Where it will stand; must not depend on anything but what `build` writes.
        build: Writes into the folder that it is given.
        room_variable: Environment variable that names another place, for the message where there is no room.

    Raises:
        OSError: If there is no room, or the folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_left_behind(folder.parent)
    aside = Path(tempfile.mkdtemp(prefix=aside_prefix(folder.name), suffix=".partial", dir=folder.parent))
    try:
        try:
            build(aside)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise OSError(
                error.errno,
                f"no room left for generated data: {error.strerror}; make room, or name another folder in "
                f"{room_variable}",
                str(folder.parent),
            ) from error
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


def aside_prefix(name: str) -> str:
    """Begin the name of a file or folder that is written aside; it tells who writes, and ends in ".partial"."""
    return f".{short_name(name)}.{_host()}-{os.getpid()}."


def remove_left_behind(folder: Path, name: str | None = None) -> None:
    """Remove what processes that were killed have left half written.

    Args:
        folder: Where it stands.
        name: What it was to become; None removes whatever is left in the folder.
    """
    pattern = ".*.partial" if name is None else f".{glob.escape(short_name(name))}.*.partial"
    for left in folder.glob(pattern):
        try:
            if _is_left_behind(left):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        except OSError:
            # Another process removes it, or it is another user's.
            continue


def key_of(value: object) -> str:
    """Name a JSON value in 16 hexadecimal digits."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _is_left_behind(left: Path) -> bool:
    written = max(path.stat().st_mtime for path in [left, *(left.iterdir() if left.is_dir() else ())])
    if time.time() - written > _DAY_SECONDS:
        return True
    writer = _ASIDE.search(left.name)
    # A process of another machine that shares the folder cannot be asked for.
    if writer is None or writer["host"] != _host():
        return False
    try:
        os.kill(int(writer["pid"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _host() -> str:
    return key_of(socket.gethostname())[:8]


def _cache_path() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return user_path(given, name=CACHE_VARIABLE)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "dflash_lab"
