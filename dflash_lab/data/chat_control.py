"""The tokens that give a conversation its form: what ends a turn, and what no turn may hold as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_lab.data.chat_format import ChatFormat
from dflash_lab.data.chat_render import RenderError, TemplateRenderer, Turn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The model's own words even where the tokenizer calls them special; they neither open nor close a turn.
THINKING_TAGS = ("<think>", "</think>")
# What a tokenizer that calls nothing special still means as control: <|im_end|>, [/INST], <end_of_turn>. Added tokens
# of another form that templates write ("###", "user", runs of line breaks) are words that people type.
IN_BRACKETS = re.compile(r"[<\[{(|].*[>\]})|]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ControlTokens:
    """Control tokens of a tokenizer under a chat template.

    They are the tokenizer's special tokens, those that it names (`eos_token`, ...) and, since many a tokenizer adds
    the tokens of its chat format as plain ones, the added tokens that the template writes around turns.

    Attributes:
        ids: int64 (num_tokens,), sorted.
        pattern: Finds the text of one, the longest where several begin; matches nothing where there are none.
    """

    ids: np.ndarray
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, chat_format: ChatFormat, renderer: TemplateRenderer) -> ControlTokens:
        """Find them.

        Args:
            tokenizer: The format's tokenizer.
            chat_format: Names the special tokens.
            renderer: For the format's template.
        """
        named = set(_texts(chat_format.special_tokens.values()))
        scaffold = "\0".join(_scaffolds(renderer))
        control = {
            number: token.content
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.content not in THINKING_TAGS
            and (
                token.special
                or token.content in named
                or (IN_BRACKETS.fullmatch(token.content) and token.content in scaffold)
            )
        }
        by_length = sorted((text for text in control.values() if text.strip()), key=len, reverse=True)
        return cls(
            ids=np.array(sorted(control), np.int64),
            pattern=re.compile("|".join(map(re.escape, by_length)) or "(?!)"),
        )


def _texts(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        yield from _texts(value) if isinstance(value, list | tuple) else [str(value)]


def _scaffolds(renderer: TemplateRenderer) -> Iterator[str]:
    """What the template writes around words that hold no token of their own; what it refuses is left out."""
    pair: list[Turn] = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    system: list[Turn] = [{"role": "system", "content": "three"}]
    for turns, generation_prompt in (
        (system + pair + pair, False),
        (pair + pair, False),
        (pair[:1], True),
    ):
        try:
            yield renderer.render(turns, generation_prompt=generation_prompt).text
        except RenderError:
            continue
