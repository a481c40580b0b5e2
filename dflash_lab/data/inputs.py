"""What a notebook looks at, by its parameters: a file of one's own, the built-in corpus, or a length profile."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from dflash_lab.data.chat import TokenizeReport, tokenize_conversations
from dflash_lab.data.chat_rows import TURN_LISTS
from dflash_lab.data.corpus import builtin_corpus, builtin_tokenizer
from dflash_lab.data.dataset import PreloadedDataset
from dflash_lab.data.folders import build_folder, first_writable, folders_for, key_of
from dflash_lab.data.lines import iter_json_lines
from dflash_lab.data.profile import SOURCE_RUN_NUM_SAMPLES, source_run_lengths
from dflash_lab.data.readers import file_format

PROFILES = ("", "source_run")
# Changes whenever what is written for a chat file changes its meaning.
_FORMAT = 1


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
        notes: What was read and left out, in words.
        chats: The chat file that the samples were made of, or None.
    """

    name: str
    fingerprint: str
    lengths: np.ndarray
    loss_tokens: np.ndarray | None = None
    sources: pl.Series | None = None
    dataset: PreloadedDataset | None = None
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
        data_path: A file or folder of tokenised samples; a chat JSONL file, which is tokenised once into a store that
            is kept beside it or in the cache; or empty for the built-in corpus.
        lengths: "source_run" takes lengths with the source run's profile, and no data; empty takes the data.
        num_samples: Size of the profile, >= 1.
        seed: Permutation of the profile, >= 0.
        split: Split of a saved DatasetDict; empty where there are none.
        tokenizer: For a chat file: a folder or tokenizer.json; empty takes the built-in tokenizer.
        chat_template: For a chat file: a template file or Jinja text; empty takes the tokenizer's own.
        turns: For a chat file: which assistant turns are supervised.
        max_seq_len: Cut in tokens; None cuts nothing.
        on_bad_row: "error" or "skip".

    Returns:
        The lengths.

    Raises:
        FileNotFoundError: If `data_path` does not exist.
        ValueError: As `PreloadedDataset.open` and `tokenize_conversations`, and if both a profile and data are named.
    """
    if lengths not in PROFILES:
        raise ValueError(f"lengths is {lengths!r}; legal: 'source_run', or empty to take the data")
    if lengths:
        if data_path:
            raise ValueError(f"lengths is {lengths!r} and data_path is {data_path!r}; name only one of them")
        profile = source_run_lengths(num_samples, seed=seed)
        cut = profile if max_seq_len is None else np.minimum(profile, np.int32(max_seq_len))
        note = f"{num_samples:,} lengths with the source run's profile: a fitted mixture, no tokens behind it"
        return LengthInput(
            name="source-run profile", fingerprint=key_of([lengths, num_samples, seed]), lengths=cut, notes=note
        )
    if not data_path:
        dataset, notes, chats = builtin_corpus(max_seq_len=max_seq_len), "", Path("builtin_chats.jsonl")
    elif is_chat_file(chats := Path(data_path).expanduser().absolute()):
        folder = _tokenized(chats, tokenizer, chat_template, turns, on_bad_row)
        dataset = PreloadedDataset.open(folder / "samples.arrow", max_seq_len=max_seq_len)
        notes = (folder / "report.txt").read_text() + "\n"
    else:
        dataset = PreloadedDataset.open(chats, split=split or None, max_seq_len=max_seq_len, on_bad_row=on_bad_row)
        notes, chats = "", None
    return LengthInput(
        name=Path(data_path).name or "built-in corpus",
        fingerprint=dataset.fingerprint,
        lengths=dataset.lengths,
        loss_tokens=dataset.loss_tokens,
        sources=dataset.sources,
        dataset=dataset,
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
    store = Path(outputs).absolute() / "data" / f"{samples.label}.arrow"
    samples.dataset.save(store)
    return store


def is_chat_file(path: str | Path) -> bool:
    """Tell whether a JSONL file holds conversations, by its first line that can be read."""
    path = Path(path)
    if not path.is_file() or file_format(path) != "json":
        return False
    for line in iter_json_lines(path, allow_empty=True):
        if line.value is not None:
            return "input_ids" not in line.value and any(name in line.value for name in TURN_LISTS)
    return False


def _tokenized(path: Path, tokenizer: str, chat_template: str, turns: Literal["all", "last"], on_bad_row: str) -> Path:
    """Folder with a chat file's store, made where there is none for file, tokenizer and template as they are now."""
    parts = [_FORMAT, turns, on_bad_row, chat_template]
    parts += [_state(place) for place in (str(path), tokenizer, chat_template)]
    name = f"{path.name}-{key_of(parts)}"
    places = folders_for(path)
    folder = next((place / name for place in places if (place / name).is_dir()), None)
    if folder is None:
        folder = first_writable(places) / name

        def build(aside: Path) -> None:
            report = tokenize_conversations(
                path,
                tokenizer or builtin_tokenizer(),
                aside / "samples.arrow",
                chat_template=chat_template or None,
                turns=turns,
                on_bad_row=on_bad_row,  # type: ignore[arg-type]
            )
            (aside / "report.txt").write_text(_in_words(report))
            (aside / "report.json").write_text(json.dumps({"left_out": report.left_out, "num_read": report.num_read}))

        build_folder(folder, build)
    return folder


def _state(place: str) -> list[object]:
    """Name, size and times of a file, or of all files in a folder; changes when one does."""
    path = Path(place).expanduser()
    try:
        files = sorted(path.iterdir()) if place and path.is_dir() else [path] if place and path.is_file() else []
    except OSError:
        # A template given as text can be too long for a file name.
        return []
    return [[str(file), (s := file.stat()).st_size, s.st_mtime_ns, s.st_ctime_ns] for file in files if file.is_file()]


def _in_words(report: TokenizeReport) -> str:
    lines = [
        f"{report.source}: {report.num_written:,} of {report.num_read:,} conversations, {report.num_tokens:,} tokens, "
        f"{report.num_loss_tokens:,} supervised ({report.num_loss_tokens / report.num_tokens:.1%}), mask by "
        f"{report.mask_method}"
    ]
    if report.num_altered_turns:
        lines.append(f"  {report.num_altered_turns:,} supervised turns are not rendered word for word by the template")
    if report.num_open_turns:
        lines.append(f"  {report.num_open_turns:,} supervised turns do not end in a control token: nothing says stop")
    for reason, rows in report.left_out.items():
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        lines.append(f"  left out, {reason}: {len(rows):,} conversations ({shown})")
    return "\n".join(lines)
