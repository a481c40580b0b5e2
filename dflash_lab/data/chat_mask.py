"""Chat template and tokenizer -> token ids and the mask of assistant tokens, exact to the token.

Exact means: the mask holds every token that the model itself writes in its turn, up to and including the token that
ends the turn (a model that never learns it never stops), and no token that somebody else writes: neither the header
before the answer nor the line break after the turn's end. A token that holds text of both sides cannot be masked
exactly, so such a conversation is a problem to report, never a guess.

Two ways lead there. A template with `{% generation %}` marks says itself which text is the model's, and the marks are
taken at their word. Without marks, the turns before an answer are rendered with the generation prompt, the turns up to
and with it without, and both must be a prefix of the whole, as text and then as tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dflash_lab.data.chat_format import ChatFormat
from dflash_lab.data.chat_render import SHOWN_CHARACTERS, ChatProblem, ChatRenderer, RenderedChat, Stop, Turn


@dataclass(frozen=True, kw_only=True)
class EncodedChat:
    """One conversation as tokens.

    Attributes:
        input_ids: int32 (length,), as the tokenizer gives them for the rendered conversation.
        loss_mask: bool (length,), True on the tokens that the assistant wrote.
        num_altered_turns: Masked turns whose content does not stand word for word in the rendering.
        num_open_turns: Masked turns whose last token is not a control token, so nothing teaches the model to stop.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    num_altered_turns: int
    num_open_turns: int


class ChatEncoder:
    """Turns conversations into tokens and masks; one per process.

    Args:
        chat_format: Tokenizer and template.
        turns: "all" masks every assistant turn, "last" only the last one.
    """

    def __init__(self, chat_format: ChatFormat, *, turns: Literal["all", "last"] = "all") -> None:
        from tokenizers import Tokenizer, processors

        self._format = chat_format
        self._renderer = ChatRenderer(chat_format, turns=turns)
        self._tokenizer = Tokenizer.from_str(chat_format.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Only offsets pass through here, since special tokens are not added. GPT-2's and Llama 3's own setting leaves a
        # token's leading space out of its offsets, and a token across a turn's border would go unseen.
        self._tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        control = {i: t.content for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special}
        self._control_ids = np.array(sorted(control), np.int64)
        by_length = sorted((text for text in control.values() if text.strip()), key=len, reverse=True)
        self._control_text = re.compile("|".join(map(re.escape, by_length)) or "(?!)")

    def encode(self, chats: Sequence[Sequence[Turn]]) -> list[EncodedChat | ChatProblem]:
        """Encode conversations.

        Args:
            chats: Each a list of turns with `role` ("system", "user", "assistant") and `content`; at least one turn of
                each conversation is the assistant's.

        Returns:
            One entry per conversation, in the same order.
        """
        rendered = [self._render(chat) for chat in chats]
        texts = [t for item in rendered if isinstance(item, RenderedChat) for t in (item.text, *item.prefixes)]
        encodings = iter(self._tokenizer.encode_batch(texts, add_special_tokens=False))
        results: list[EncodedChat | ChatProblem] = []
        for item in rendered:
            if isinstance(item, RenderedChat):
                whole = next(encodings)
                results.append(self._mask(item, whole, [next(encodings).ids for _ in item.prefixes]))
            else:
                results.append(item)
        return results

    def _render(self, chat: Sequence[Turn]) -> RenderedChat | ChatProblem:
        try:
            self._check_text(chat)
            return self._renderer.render(chat)
        except Stop as stop:
            return stop.problem

    def _check_text(self, chat: Sequence[Turn]) -> None:
        for number, turn in enumerate(chat):
            for field in ("content", "reasoning_content"):
                if found := self._control_text.search(turn.get(field, "")):
                    raise Stop(
                        "control_token_in_text",
                        f"turn {number}: {field} holds {found.group()!r}, which the tokenizer would read as a control "
                        "token and not as text; legal: text without the tokenizer's control tokens",
                    )

    def _mask(self, item: RenderedChat, whole: Any, prefix_ids: list[list[int]]) -> EncodedChat | ChatProblem:
        try:
            return self._mask_or_stop(item, whole, prefix_ids)
        except Stop as stop:
            return stop.problem

    def _mask_or_stop(self, item: RenderedChat, whole: Any, prefix_ids: list[list[int]]) -> EncodedChat:
        ids = np.array(whole.ids, np.int32)
        offsets = np.array(whole.offsets, np.int64).reshape(-1, 2)
        mask = np.zeros(len(ids), bool)
        num_open = 0
        for k, (turn, span) in enumerate(zip(item.turns, item.spans, strict=True)):
            if self._format.mask_method == "generation":
                first, last = (_token_edge(offsets, place, item, turn) for place in span)
            else:
                first, last = (
                    _token_prefix(whole, part, place, item, turn)
                    for part, place in zip(prefix_ids[2 * k : 2 * k + 2], span, strict=True)
                )
                last = self._turn_end(ids, offsets, first, last, item.text)
            mask[first:last] = True
            num_open += last == first or ids[last - 1] not in self._control_ids
        if not mask.any():
            raise Stop("no_loss_tokens", "the chat template leaves no token to the assistant")
        return EncodedChat(
            input_ids=ids, loss_mask=mask, num_altered_turns=item.num_altered, num_open_turns=int(num_open)
        )

    def _turn_end(self, ids: np.ndarray, offsets: np.ndarray, first: int, last: int, text: str) -> int:
        """Where a turn's tokens end: after its last control token if only white space follows, else at `last`."""
        control = np.flatnonzero(np.isin(ids[first:last], self._control_ids))
        if control.size == 0:
            return last
        end = first + int(control[-1]) + 1
        return last if text[offsets[end - 1, 1] : offsets[last - 1, 1]].strip() else end


def _token_edge(offsets: np.ndarray, place: int, item: RenderedChat, turn: int) -> int:
    """The number of tokens that end at or before the character `place`, refused where a token crosses it."""
    index = int(np.searchsorted(offsets[:, 0], place, side="left"))
    if index > 0 and offsets[index - 1, 1] > place:
        raise _border_problem(item, turn, place, item.text[slice(*offsets[index - 1])])
    return index


def _token_prefix(whole: Any, part: list[int], place: int, item: RenderedChat, turn: int) -> int:
    """The length of `part` where it is a prefix of the whole conversation's tokens, refused where it is not."""
    if whole.ids[: len(part)] != part:
        same = next((i for i, (a, b) in enumerate(zip(part, whole.ids, strict=False)) if a != b), len(part) - 1)
        raise _border_problem(item, turn, place, item.text[slice(*whole.offsets[min(same, len(whole.ids) - 1)])])
    return len(part)


def _border_problem(item: RenderedChat, turn: int, place: int, token: str) -> Stop:
    around = item.text[max(0, place - SHOWN_CHARACTERS // 2) : place], item.text[place : place + SHOWN_CHARACTERS // 2]
    return Stop(
        "border_inside_token",
        f"turn {turn}: the tokens before a border of the answer are no prefix of the conversation's tokens: between "
        f"{around[0]!r} and {around[1]!r} lies the token {token!r}, which cannot be given to one side; legal: text "
        "that the tokenizer splits there",
    )
