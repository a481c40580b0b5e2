"""Which files hold the samples of a path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_lab.data.lines import iter_json_lines
from dflash_lab.data.paths import check_name, check_readable, file_state, printable, user_path
from dflash_lab.data.saved import DATASET_STATE, DICT_STATE, METADATA, refuse_saved_inside, saved_files, saved_split

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_SUFFIXES = {**dict.fromkeys(_JSON_SUFFIXES, "json"), ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
LEGAL_FILES = ".jsonl, .ndjson, .json (also with .gz or .zst), .parquet, .arrow, .feather"
# The names that tell splits apart in folders as people upload them: train-00000-of-00001.parquet, test/0.parquet.
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
_SPLIT_NAME = re.compile(rf"({'|'.join(SPLITS)})([-_.]|$)")
# Enough for a first line that is an ordinary row.
_FIRST_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class SourceFiles:
    """The files of one source, in the order of their rows.

    Args:
        path: What the user named.
        files: The files to read.
        ignored: What else lies in the folder and is not read: files without samples, other splits, and links back to
            a folder above.
        split: The split that was chosen, if there are several.
    """

    path: Path
    files: tuple[Path, ...]
    ignored: tuple[Path, ...] = ()
    split: str | None = None

    def state(self) -> list[list[object]]:
        """Name, size and times of every file: changes when a file does."""
        return [[str(file.relative_to(self.path.parent)), *file_state(file)] for file in self.files]


def find_files(
    path: str | Path, *, split: str | None = None, columns: Mapping[str, str | None] | None = None
) -> SourceFiles:
    """Find the sample files under a path.

    Args:
        path: A file, a folder of shards, or a folder written by `save_to_disk` of Hugging Face datasets. Shards are
            read in the order of their names, those in subfolders and behind links too; names that begin with a dot or
            an underscore are not data, and a .json file in a folder is data only if its first line is an object with
            a token column, since most are about the data.
        split: The split of a saved DatasetDict, or of a folder whose names begin with the names of splits.
        columns: From `canonical_columns`; None stands for the usual names.

    Returns:
        The files, each of which could be opened.

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If there is nothing to read, a file or folder cannot be read, the split is not there, or splits
            would be mixed.
    """
    path = user_path(path)
    check_name(path)
    _check_exists(path)
    if (path / DICT_STATE).is_file():
        return _readable(SourceFiles(path, saved_files(saved_split(path, split)), split=split))
    if not path.is_dir():
        _check_no_split(path, split)
        if file_format(path) is None:
            raise ValueError(f"{path} has no known file name ending; legal: {LEGAL_FILES}")
        return _readable(SourceFiles(path, (path,)))
    if (path / DATASET_STATE).is_file():
        _check_no_split(path, split)
        return _readable(SourceFiles(path, saved_files(path)))
    loops: list[Path] = []
    found = sorted(_walk(path, {_identity(path)}, loops), key=lambda file: file.relative_to(path).as_posix())
    refuse_saved_inside(path, found)
    tokens = [(columns or {}).get(name) or name for name in ("input_ids", "loss_mask")]
    files = [file for file in found if _is_data(file, tokens)]
    if not files:
        several = any(file_format(file) for file in found)
        hint = f"; .json files are read where their first line is an object with {tokens[0]}" if several else ""
        raise ValueError(f"{path} holds no samples: no file in it ends in {LEGAL_FILES}{hint}")
    kept = set(_of_split(path, files, split))
    ignored = [*(file for file in found if file not in kept), *loops]
    return _readable(SourceFiles(path, tuple(file for file in files if file in kept), tuple(ignored), split))


def file_format(path: Path) -> str | None:
    """Tell "json", "parquet" or "arrow" by the name's ending, None for any other."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in (".gz", ".zst"):
        return "json" if suffixes[-2] in _JSON_SUFFIXES else None
    return _SUFFIXES.get(suffixes[-1]) if suffixes else None


def _check_exists(path: Path) -> None:
    try:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; legal: a file ({LEGAL_FILES}) or a folder of such files")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _check_no_split(path: Path, split: str | None) -> None:
    if split is not None:
        raise ValueError(f"split is {split!r}, but {path} is not a saved DatasetDict; leave split out")


def _readable(source: SourceFiles) -> SourceFiles:
    for file in source.files:
        check_readable(file)
    return source


def _walk(folder: Path, above: set[tuple[int, int]], loops: list[Path]) -> Iterator[Path]:
    """All files in a folder and its subfolders, those behind links too; a link to a folder above leads nowhere new."""
    try:
        with os.scandir(folder) as entries:
            paths = [folder / entry.name for entry in entries if entry.name[0] not in "._"]
        for path in paths:
            if not path.is_dir():
                yield path
            elif _identity(path) in above:
                loops.append(path)
            else:
                yield from _walk(path, above | {_identity(path)}, loops)
    except OSError as error:
        raise ValueError(f"{printable(error.filename or folder)} cannot be read: {error.strerror}") from error


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is_data(file: Path, tokens: list[str]) -> bool:
    if file_format(file) is None or file.name in METADATA:
        return False
    if ".json" not in [suffix.lower() for suffix in file.suffixes[-2:]]:
        return True
    check_readable(file)
    try:
        first = next(iter_json_lines(file, allow_empty=True, chunk_bytes=_FIRST_LINE_BYTES), None)
    except ValueError:
        return False
    return first is not None and first.value is not None and any(name in first.value for name in tokens)


def _of_split(path: Path, files: list[Path], split: str | None) -> list[Path]:
    """The files of the split that was named, or all where their names tell of one split or none."""
    by_split: dict[str, list[Path]] = {}
    for file in files:
        matches = (_SPLIT_NAME.match(part.lower()) for part in file.relative_to(path).parts)
        named = next((match[1] for match in matches if match), None)
        if named:
            by_split.setdefault(named, []).append(file)
    if split is None and len(by_split) < 2:
        return files
    if not by_split:
        raise ValueError(
            f"split is {split!r}, but {path} is not a saved DatasetDict and no name in it begins with a split "
            f"({', '.join(SPLITS)}); leave split out"
        )
    if split not in by_split:
        shown = ", ".join(f"{name!r} ({len(of)} files)" for name, of in by_split.items())
        raise ValueError(
            f"{path} has files of the splits {shown} and split is {split!r}; legal: one of their names (in a notebook "
            f"{path}/{next(iter(by_split))} as data_path), or the path of one file"
        )
    return by_split[split]
