"""Folders that `save_to_disk` of Hugging Face datasets writes."""

from __future__ import annotations

import json
from pathlib import Path

DATASET_STATE = "state.json"
DICT_STATE = "dataset_dict.json"
# Beside the rows, and never rows themselves.
METADATA = (DATASET_STATE, DICT_STATE, "dataset_info.json", "dataset_infos.json")


def saved_files(folder: Path) -> tuple[Path, ...]:
    """Files of a saved data set: those that its state lists, in its order, and no others.

    Raises:
        ValueError: If the folder is none, its state is not readable, or rows are selected beside the files.
    """
    place = folder / DATASET_STATE
    if not place.is_file():
        raise ValueError(f"{folder} is not a saved data set: {DATASET_STATE} is missing")
    state = _read_json(place)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ValueError(
            f"{folder} was saved with a selection beside its rows, by an old version of datasets; load it there, call "
            f"flatten_indices() and save it again"
        )
    entries = state.get("_data_files") or []
    if not entries:
        raise ValueError(f"{folder} holds no samples: {DATASET_STATE} lists no files")
    files = []
    for entry in entries if isinstance(entries, list) else [entries]:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".arrow"):
            raise ValueError(
                f'{place} lists {entry!r:.80} in _data_files; legal: {{"filename": "NAME.arrow"}}, a file beside it'
            )
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing, though {DATASET_STATE} beside it lists it")
        files.append(folder / name)
    return tuple(files)


def saved_split(folder: Path, split: str | None) -> Path:
    """Folder of one split of a saved DatasetDict.

    Raises:
        ValueError: If there is no such split; the message names those there are.
    """
    splits = _read_json(folder / DICT_STATE).get("splits")
    names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
    if split not in names:
        also = f"; {folder / names[0]} can be opened as a path too" if names else ""
        raise ValueError(
            f"{folder} is a saved DatasetDict and split is {split!r}; legal: one of "
            f"{', '.join(map(repr, names)) or f'none, since {DICT_STATE} lists none'}{also}"
        )
    return folder / str(split)


def refuse_saved_inside(folder: Path, files: list[Path]) -> None:
    """Refuse a folder of saved data sets, whose splits would become one.

    Args:
        folder: What was named.
        files: All files in it.

    Raises:
        ValueError: Naming the folders to open instead.
    """
    dicts = {file.parent for file in files if file.name == DICT_STATE}
    single = {file.parent for file in files if file.name == DATASET_STATE and file.parent.parent not in dicts}
    if dicts or single:
        shown = [f"{place} (a DatasetDict, with split=...)" for place in sorted(dicts)]
        shown += [str(place) for place in sorted(single)]
        more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
        raise ValueError(f"{folder} holds saved data sets; open one of them: {', '.join(shown[:10])}{more}")


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is a JSON {type(value).__name__}; legal: an object")
    return value
