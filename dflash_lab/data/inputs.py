"""What a notebook looks at, by its parameters: a file of one's own, the built-in corpus, or a length profile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from dflash_lab.data.chat_rows import TURN_LISTS
from dflash_lab.data.chat_store import REPORT_NAME, STORE_NAME, num_left_out, tokenized_folder
from dflash_lab.data.corpus import builtin_corpus
from dflash_lab.data.dataset import PreloadedDataset
from dflash_lab.data.files import SPLITS, file_format, find_files
from dflash_lab.data.folders import key_of
from dflash_lab.data.lines import iter_json_lines
from dflash_lab.data.options import optional_whole_number
from dflash_lab.data.paths import user_path
from dflash_lab.data.profile import SOURCE_RUN_NUM_SAMPLES, source_run_lengths
from dflash_lab.data.selection import MOST_TOKENS

PROFILES = ("", "source_run")
# Enough for a first line that is an ordinary conversation.
_FIRST_LINE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LengthInput:
    """Lengths to plan with, and where they come from.

    Args:
        name: What they are, for titles.
        fingerprint: Names the content.
        lengths: int32 (num_samples,), in tokens.
        loss_tokens: int32 (num_samples,), supervised tokens, or None for a profile.
        sources: Text or null a sample, or None.
        dataset: The samples, or None for a profile.
        num_left_out: Rows and conversations that are no samples, for any reason.
        notes: What was read and left out, in words.
        chats: The chat file that the samples were made of, or None.
    """

    name: str
    fingerprint: str
    lengths: np.ndarray
    loss_tokens: np.ndarray | None = None
    sources: pl.Series | None = None
    dataset: PreloadedDataset | None = None
    num_left_out: int = 0
    notes: str = ""
    chats: Path | None = None

    @property
    def label(self) -> str:
        """The name as part of a file name: letters, digits, "-" and "_"."""
        return re.sub(r"[^A-Za-z0-9_]+", "-", self.name.removesuffix(".jsonl")).strip("-") or "data"


def open_lengths(
    data_path: str = "",
    *,
    lengths: str = "",
    num_samples: int = SOURCE_RUN_NUM_SAMPLES,
    seed: int = 0,
    split: str = "",
    tokenizer: str = "",
    chat_template: str = "",
    turns: Literal["all", "last"] = "all",
    max_seq_len: int | None = None,
    on_bad_row: str = "error",
) -> LengthInput:
    """Open what a notebook's parameters name.

    Args:
        data_path: A file or folder of tokenised samples, FOLDER/train for one split of several; a chat JSONL file,
            which is tokenised once into a store that is kept beside it or in the cache; or empty for the built-in
            corpus.
        lengths: "source_run" takes lengths with the source run's profile, and no data; empty takes the data.
        num_samples: Size of the profile, >= 1.
        seed: Permutation of the profile, >= 0.
        split: Split of a saved DatasetDict or of a folder of shards; empty where there are none.
        tokenizer: For a chat file: a folder or tokenizer.json; empty takes the built-in tokenizer.
        chat_template: For a chat file: a template file or Jinja text; empty takes the tokenizer's own.
        turns: For a chat file: which assistant turns are supervised.
        max_seq_len: Cut in tokens; None cuts nothing.
        on_bad_row: "error" or "skip".

    Returns:
        The lengths.

    Raises:
        FileNotFoundError: If `data_path` does not exist.
        ValueError: As `PreloadedDataset.open` and `tokenize_conversations`; if both a profile and data are named, a
            split of what has none, or a folder of chat files.
    """
    if lengths not in PROFILES:
        raise ValueError(f"lengths is {lengths!r}; legal: 'source_run', or empty to take the data")
    max_seq_len = optional_whole_number("max_seq_len", max_seq_len, least=1)
    if lengths:
        if data_path:
            raise ValueError(f"lengths is {lengths!r} and data_path is {data_path!r}; name only one of them")
        _check_no_split(split, "a length profile")
        profile = source_run_lengths(num_samples, seed=seed)
        cut = profile if max_seq_len is None else np.minimum(profile, np.int32(min(max_seq_len, MOST_TOKENS)))
        note = f"{num_samples:,} lengths with the source run's profile: a fitted mixture, no tokens behind it"
        return LengthInput(
            name="source-run profile", fingerprint=key_of([lengths, num_samples, seed]), lengths=cut, notes=note
        )
    if not data_path:
        _check_no_split(split, "the built-in corpus")
        dataset, notes, chats = builtin_corpus(max_seq_len=max_seq_len), "", Path("builtin_chats.jsonl")
        untokenized = 0
        name = "built-in corpus"
    else:
        path = user_path(data_path, name="data_path")
        if not split and path.name in SPLITS and path.parent.is_dir() and not path.exists():
            # A split of a folder of shards is named as that of a saved data set is: FOLDER/train.
            path, split = path.parent, path.name
        name = path.name or str(path)
        if is_chat_file(path):
            _check_no_split(split, f"the chat file {path}")
            folder = tokenized_folder(path, tokenizer, chat_template, turns, on_bad_row)
            dataset = PreloadedDataset.open(folder / STORE_NAME, max_seq_len=max_seq_len)
            notes, chats = (folder / REPORT_NAME).read_text(encoding="utf-8") + "\n", path
            untokenized = num_left_out(folder)
        else:
            if path.is_dir():
                _refuse_chat_folder(path, split)
            dataset = PreloadedDataset.open(path, split=split or None, max_seq_len=max_seq_len, on_bad_row=on_bad_row)
            notes, chats, untokenized = "", None, 0
    return LengthInput(
        name=name,
        fingerprint=dataset.fingerprint,
        lengths=dataset.lengths,
        loss_tokens=dataset.loss_tokens,
        sources=dataset.sources,
        dataset=dataset,
        num_left_out=untokenized + dataset.report.num_left_out,
        notes=f"{notes}{dataset.report}",
        chats=chats,
    )


def save_prepared(samples: LengthInput, outputs: str | Path) -> Path:
    """Write samples that were made of chats as a token store, for other notebooks and other tools.

    Args:
        samples: From `open_lengths`.
        outputs: Folder; the store goes to data/NAME.arrow in it.

    Returns:
        The store; for samples that were tokens already, the place that they were opened from.
    """
    assert samples.dataset is not None
    if samples.chats is None:
        return Path(samples.dataset.report.name)
    store = user_path(outputs, name="outputs") / "data" / f"{samples.label}.arrow"
    samples.dataset.save(store)
    return store


def is_chat_file(path: str | Path) -> bool:
    """Tell whether a JSONL file holds conversations, by its first line that can be read."""
    path = user_path(path)
    if not path.is_file() or file_format(path) != "json":
        return False
    for line in iter_json_lines(path, allow_empty=True, chunk_bytes=_FIRST_LINE_BYTES):
        if line.value is not None:
            return "input_ids" not in line.value and any(name in line.value for name in TURN_LISTS)
    return False


def _check_no_split(split: str, what: str) -> None:
    if split:
        raise ValueError(f"split is {split!r}, but {what} has no splits; leave split empty")


def _refuse_chat_folder(folder: Path, split: str) -> None:
    """Say what to do with a folder of chat files, which the reader would only find to be without tokens."""
    files = find_files(folder, split=split or None).files
    chats = [file for file in files if is_chat_file(file)]
    if chats:
        raise ValueError(
            f"{folder} holds chat files ({', '.join(file.name for file in chats[:5])}; {len(chats)} of {len(files)} "
            f"files); legal: a folder of tokenised samples, or one chat file: name one of them, or join them into one"
        )
