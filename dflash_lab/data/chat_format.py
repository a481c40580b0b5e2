"""A tokenizer and a chat template as one plain value that travels to worker processes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dflash_lab.data.paths import user_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GENERATION_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
# Where save_pretrained writes the template, beside tokenizer.json.
TEMPLATE_FILE = "chat_template.jinja"
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """A tokenizer and a chat template as plain text, so that it travels to worker processes unchanged.

    Attributes:
        tokenizer_json: The fast tokenizer, as in a tokenizer.json file.
        chat_template: Jinja text.
        special_tokens: Names that the template may use (`bos_token`, ...) and their text.
    """

    tokenizer_json: str
    chat_template: str
    special_tokens: dict[str, Any]

    @property
    def mask_method(self) -> Literal["generation", "prefix"]:
        """ "generation" when the template marks the assistant's text itself, else "prefix"."""
        return "generation" if GENERATION_MARK.search(COMMENT.sub("", self.chat_template)) else "prefix"

    @classmethod
    def load(cls, tokenizer: Any, chat_template: str | Path | None = None) -> ChatFormat:
        """Read a tokenizer and settle which template holds.

        Args:
            tokenizer: A fast Hugging Face tokenizer, a `tokenizers.Tokenizer`, a folder of `save_pretrained`, or a
                tokenizer.json file (with tokenizer_config.json beside it, the whole folder is read; with only
                chat_template.jinja beside it, that is the tokenizer's template).
            chat_template: Jinja text or a file that holds it; None takes the tokenizer's own.

        Raises:
            ValueError: If there is no such tokenizer, it is not a fast one, or no template is to be had.
        """
        loaded = load_tokenizer(tokenizer)
        if chat_template is None:
            if not loaded.chat_template:
                raise ValueError(
                    f"tokenizer {_shown(tokenizer)} brings no chat template; give chat_template= (Jinja text or a file)"
                )
            template = loaded.get_chat_template()
        else:
            template = _read_template(chat_template)
        special_tokens = dict(loaded.special_tokens_map)
        _check_special_tokens(template, special_tokens)
        return cls(
            tokenizer_json=loaded.backend_tokenizer.to_str(), chat_template=template, special_tokens=special_tokens
        )


def load_tokenizer(tokenizer: Any) -> PreTrainedTokenizerFast:
    """Load a fast tokenizer from what `ChatFormat.load` takes; raises ValueError if there is none."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if isinstance(tokenizer, Tokenizer):
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if isinstance(tokenizer, str | os.PathLike):
        path = _tokenizer_path(tokenizer)
        if path.is_file():
            template = path.with_name(TEMPLATE_FILE)
            try:
                loaded = PreTrainedTokenizerFast(tokenizer_file=str(path))
            except Exception as error:  # the Rust reader raises bare Exception for whatever it cannot parse
                raise ValueError(f"tokenizer {path} is not a tokenizer.json file: {error}") from error
            if template.is_file():
                loaded.chat_template = template.read_text(encoding="utf-8")
            return loaded
        try:
            if (path / "tokenizer.json").is_file():
                # AutoTokenizer would import torch, seconds and hundreds of MB in each process.
                return PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except Exception as error:  # whatever a folder's files make transformers raise
            raise ValueError(
                f"tokenizer {path} is a folder from which no tokenizer can be loaded: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            f"tokenizer is a {type(tokenizer).__name__}; legal: a fast Hugging Face tokenizer "
            "(PreTrainedTokenizerFast), a tokenizers.Tokenizer, a folder or a tokenizer.json file"
        )
    return tokenizer


def tokenizer_files(tokenizer: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Files that loading a tokenizer may read: the file itself, or all in its folder, in the order of their names.

    Raises:
        ValueError: If there is none.
    """
    path = _tokenizer_path(tokenizer)
    if path.is_file():
        template = path.with_name(TEMPLATE_FILE)
        return (path, template) if template.is_file() else (path,)
    # save_pretrained puts all but the first of several templates into a folder of their own.
    files = [*path.glob("*"), *path.glob("additional_chat_templates/*")]
    found = tuple(sorted(file for file in files if file.is_file()))
    if not found:
        raise ValueError(f"tokenizer {path} is an empty folder; legal: a folder that holds a tokenizer")
    return found


def _tokenizer_path(tokenizer: str | os.PathLike[str]) -> Path:
    """The file or folder that a tokenizer is read from."""
    path = user_path(tokenizer, name="tokenizer")
    if path.name == "tokenizer.json" and path.with_name("tokenizer_config.json").is_file():
        path = path.parent
    if not path.exists():
        raise ValueError(
            f"tokenizer {os.fspath(tokenizer)} does not exist; legal: a folder or a tokenizer.json file here"
        )
    return path


def _read_template(chat_template: str | Path) -> str:
    if isinstance(chat_template, str) and re.search(r"\{[{%]", chat_template):
        return chat_template
    path = user_path(chat_template, name="chat_template")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"chat_template {str(chat_template)!r:.80} is neither Jinja text nor a file that can be read: "
            f"{error.strerror}"
        ) from error
    except ValueError as error:  # not UTF-8, or a name that no file can have
        raise ValueError(f"chat_template {str(chat_template)!r:.80} is no text file: {error}") from error


def _check_special_tokens(template: str, special_tokens: dict[str, Any]) -> None:
    """Refuse names that Jinja would render as nothing, unless the template asks whether there are such names."""
    code = COMMENT.sub("", template)
    missing = [
        name
        for name in SPECIAL_TOKEN_NAMES
        if name not in special_tokens
        and re.search(rf"(?<![\w.'\"]){name}\b", code)
        and not re.search(rf"\b{name}\s+is\b|\b(?:if|not|and|or)\s+{name}\b", code)
    ]
    if missing:
        raise ValueError(
            f"the chat template uses {', '.join(missing)}, which the tokenizer does not name; give a folder with "
            "tokenizer_config.json, or a tokenizer object that names them"
        )


def _shown(tokenizer: Any) -> str:
    return str(tokenizer) if isinstance(tokenizer, (str, Path)) else type(tokenizer).__name__
