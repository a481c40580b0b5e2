"""Chat files tokenised once into a store that is kept: found again for the same file, tokenizer and template."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from dflash_lab.data.chat import TokenizeReport, tokenize_conversations
from dflash_lab.data.chat_format import tokenizer_files
from dflash_lab.data.corpus import builtin_tokenizer
from dflash_lab.data.folders import folders_for, key_of, load_or_build
from dflash_lab.data.mapped import MappedTokens
from dflash_lab.data.paths import file_state, short_name

STORE_NAME = "samples.arrow"
REPORT_NAME = "report.txt"
COUNTS_NAME = "report.json"
# Changes whenever what is written for a chat file changes its meaning.
_FORMAT = 2


def tokenized_folder(
    path: Path, tokenizer: str, chat_template: str, turns: Literal["all", "last"], on_bad_row: str
) -> Path:
    """Give the folder with a chat file's store, made where there is none for file, tokenizer and template as they are.

    Args:
        path: The chat file.
        tokenizer: A folder or tokenizer.json; empty takes the built-in tokenizer.
        chat_template: A template file or Jinja text; empty takes the tokenizer's own.
        turns: Which assistant turns are supervised.
        on_bad_row: "error" or "skip".

    Returns:
        A folder that holds STORE_NAME, and REPORT_NAME with what was read and left out, in words.

    Raises:
        ValueError: As `tokenize_conversations`; first of all if there is no such tokenizer.
    """
    if tokenizer:
        files = tokenizer_files(tokenizer)
        made_by = [str(files[0].parent), *map(_state, files)]
    else:
        # The built-in tokenizer is trained anew where one of these is another.
        made_by = [sys.version, version("tokenizers")]
    template = _template_file(chat_template)
    key = key_of([str(path), tokenizer, chat_template, turns, on_bad_row])
    state = key_of([_FORMAT, made_by, _state(path), _state(template) if template else None])

    def build(folder: Path) -> None:
        report = tokenize_conversations(
            path,
            tokenizer or builtin_tokenizer(),
            folder / STORE_NAME,
            chat_template=chat_template or None,
            turns=turns,
            on_bad_row=on_bad_row,  # type: ignore[arg-type]
        )
        (folder / REPORT_NAME).write_text(_in_words(report), encoding="utf-8")
        (folder / COUNTS_NAME).write_text(json.dumps({"left_out": report.left_out, "num_read": report.num_read}))

    places = [base / f"{short_name(path.name)}-{key}" / state for base in folders_for(path)]
    return load_or_build(places, _checked, build, label=str(path))


def num_left_out(folder: Path) -> int:
    """Count the conversations that were left out when a folder of `tokenized_folder` was made."""
    return sum(map(len, json.loads((folder / COUNTS_NAME).read_text())["left_out"].values()))


def _checked(folder: Path) -> Path:
    (folder / REPORT_NAME).read_text(encoding="utf-8")
    num_left_out(folder)
    MappedTokens((folder / STORE_NAME,))
    return folder


def _template_file(chat_template: str) -> Path | None:
    path = Path(chat_template)
    try:
        path = path.expanduser().absolute()
        return path if chat_template and path.is_file() else None
    except (OSError, RuntimeError):
        # A template given as text can be too long for a file name, or begin with "~".
        return None


def _state(file: Path) -> list[object]:
    return [str(file), *file_state(file)]


def _in_words(report: TokenizeReport) -> str:
    share = report.num_loss_tokens / max(report.num_tokens, 1)
    lines = [
        f"{report.source}: {report.num_written:,} of {report.num_read:,} conversations, {report.num_tokens:,} tokens, "
        f"{report.num_loss_tokens:,} supervised ({share:.1%}), mask by {report.mask_method}"
    ]
    if report.num_altered_turns:
        lines.append(f"  {report.num_altered_turns:,} supervised turns are not rendered word for word by the template")
    if report.num_open_turns:
        lines.append(f"  {report.num_open_turns:,} supervised turns do not end in a control token: nothing says stop")
    for reason, rows in report.left_out.items():
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        lines.append(f"  left out, {reason}: {len(rows):,} conversations ({shown})")
    return "\n".join(lines)
