"""Errors of the reading libraries, said with the file's name and in words for whoever has to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


@contextmanager
def naming_file(file: Path | str, kind: str) -> Iterator[None]:
    """Turn what reading a broken file raises into a ValueError that names it.

    Args:
        file: The file.
        kind: What it should be, with its article.

    Raises:
        ValueError: If the file cannot be read, is cut off, foreign or damaged.
    """
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno:
            raise ValueError(f"{file} cannot be read: {error}") from error
        raise ValueError(f"{file} is cut off or is not {kind}: {error}") from error
    except (UnicodeError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
