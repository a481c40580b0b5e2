"""Paths as people give them, and what is asked of a file before it is read."""

from __future__ import annotations

import os
from pathlib import Path

# A name of ours carries the source's name, a key and a temporary part, and file systems allow 255 bytes.
_SHOWN_NAME_BYTES = 100


def user_path(path: object, *, name: str = "path") -> Path:
    """Give a path that a user typed as an absolute one, `~` expanded.

    Args:
        path: Text or a Path.
        name: The argument's name, for messages.

    Raises:
        ValueError: If it is empty, not a path, or names the home folder of nobody.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str) or not os.fspath(path):
        raise ValueError(f"{name} is {path!r}; legal: the path of a file or folder, as text or pathlib.Path")
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{name} is {str(path)!r}, and {str(path).split('/')[0]} is no user's home folder") from error
    # Taking ".." out of the text alone would go wrong behind a link.
    return expanded.resolve() if ".." in expanded.parts else expanded.absolute()


def printable(path: object) -> str:
    """Give a path as text that can be printed and stored, whatever bytes its name has."""
    return os.fsencode(str(path)).decode("utf-8", "backslashreplace")


def check_name(path: Path) -> None:
    """Refuse a path whose bytes are not UTF-8, which Arrow cannot open.

    Raises:
        ValueError: Naming it.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{printable(path)} has a name that is not UTF-8; legal: UTF-8; rename it") from error


def check_readable(file: Path) -> None:
    """Refuse what is no file that can be read.

    Raises:
        ValueError: Naming it.
    """
    check_name(file)
    try:
        if not file.is_file():
            if file.is_symlink() and not file.exists():
                raise ValueError(f"{file} is a link to {os.readlink(file)}, which does not exist")
            raise ValueError(f"{file} is not a regular file")
        with file.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error


def file_state(file: Path) -> tuple[int, int, int]:
    """Size and times of a file, in bytes and nanoseconds: changes when the file does."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def short_name(name: str) -> str:
    """Give a file's name, or its beginning where it is too long to be part of a longer name."""
    return name.encode("utf-8", "replace")[:_SHOWN_NAME_BYTES].decode("utf-8", "ignore")
