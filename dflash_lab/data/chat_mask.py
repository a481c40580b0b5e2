"""Chat template and tokenizer -> token ids and the mask of assistant tokens, exact to the token.

Exact means: the mask holds every token that the model itself writes in its turn, up to and including the token that
ends the turn (a model that never learns it never stops), and no token that somebody else writes: neither the header
before the answer nor the line break after the turn's end. A token that holds text of both sides cannot be masked
exactly, so such a conversation is a problem to report, never a guess.

Where an answer's words end is found with another answer: the conversation is rendered again with a word in its place
that stands nowhere else. What follows that word follows the answer too, and the first control token there, if it also
follows where the turn is the last, is the turn's end. A turn without such a token is open: masked to its end, counted.

Where an answer begins: without `{% generation %}` marks, behind the turns before it rendered with the generation
prompt, which must be how the whole begins. With marks, at the mark, unless the generation prompt reaches further. Marks
are taken at their word, but must hold each answer whole, no header, and nothing behind the turn's end but white space
and control tokens, which is cut off.

Then the borders are looked up among the tokens of the whole text, which is tokenized once. A token across a border
refuses the conversation, but for a control token that took white space with it. Where a normalizer could have joined
letters across the border, or only the generation prompt names it, the text before the border is tokenized alone and
must give the same tokens.

An odd conversation is told from an unfit template by an ordinary one of as many answers: if that passes, only the odd
one is left out; if it fails as well, or if earlier answers lose their thinking, the template is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dflash_lab.data.chat_answers import AnswerFinder, RenderedChat
from dflash_lab.data.chat_control import ControlTokens
from dflash_lab.data.chat_format import ChatFormat
from dflash_lab.data.chat_render import SHOWN_CHARACTERS, ChatProblem, Stop, TemplateRenderer, Turn
from dflash_lab.data.chat_turn import AnswerSpan


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

        self._tokenizer = Tokenizer.from_str(chat_format.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Only offsets pass through here, since special tokens are not added. GPT-2's and Llama 3's own setting leaves a
        # token's leading space out of its offsets, and a token across a turn's border would go unseen.
        self._tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        renderer = TemplateRenderer(chat_format)
        self._control = ControlTokens.of(self._tokenizer, chat_format, renderer)
        self._by_marks = chat_format.mask_method == "generation"
        self._finder = AnswerFinder(renderer, self._control.pattern, turns=turns, by_marks=self._by_marks)

    def encode(self, chats: Sequence[Sequence[Turn]]) -> list[EncodedChat | ChatProblem]:
        """Encode conversations.

        Args:
            chats: Each a list of turns with `role` ("system", "user", "assistant") and `content`; at least one turn of
                each conversation is the assistant's.

        Returns:
            One entry per conversation, in the same order.
        """
        rendered = [self._find(chat) for chat in chats]
        texts = [text for item in rendered if isinstance(item, RenderedChat) for text in self._texts(item)]
        encodings = iter(self._tokenizer.encode_batch(texts, add_special_tokens=False))
        results: list[EncodedChat | ChatProblem] = []
        for item in rendered:
            if isinstance(item, RenderedChat):
                whole, *alone = [next(encodings) for _ in self._texts(item)]
                results.append(self._mask(item, whole, [encoding.ids for encoding in alone]))
            else:
                results.append(item)
        return results

    def _find(self, chat: Sequence[Turn]) -> RenderedChat | ChatProblem:
        try:
            self._check_text(chat)
            return self._finder.find(chat)
        except Stop as stop:
            return stop.problem

    def _check_text(self, chat: Sequence[Turn]) -> None:
        for number, turn in enumerate(chat):
            for field in ("content", "reasoning_content"):
                if found := self._control.pattern.search(turn.get(field, "")):
                    raise Stop(
                        "control_token_in_text",
                        f"turn {number}: {field} holds {found.group()!r}, which the tokenizer would read as a control "
                        "token and not as text; legal: text without the tokenizer's control tokens",
                    )

    def _texts(self, item: RenderedChat) -> list[str]:
        """What must be tokenized for a conversation: the whole, and what stands before doubtful borders."""
        return [item.text, *(item.text[:place] for place in self._doubtful(item))]

    def _doubtful(self, item: RenderedChat) -> list[int]:
        """The borders that offsets alone do not settle."""
        places = []
        for span in item.spans:
            closed = self._control.pattern.search(item.text, span.content_end, span.end)
            for place, named in ((span.start, self._by_marks), (span.end, self._by_marks or closed)):
                # No normalizer joins an ASCII character to the one before it.
                if not named or not item.text[place : place + 1].isascii():
                    places.append(place)
        return places

    def _mask(self, item: RenderedChat, whole: Any, alone: list[list[int]]) -> EncodedChat | ChatProblem:
        try:
            return self._mask_or_stop(item, whole, dict(zip(self._doubtful(item), alone, strict=True)))
        except Stop as stop:
            return stop.problem

    def _mask_or_stop(self, item: RenderedChat, whole: Any, alone: dict[int, list[int]]) -> EncodedChat:
        ids = np.array(whole.ids, np.int32)
        offsets = np.array(whole.offsets, np.int64).reshape(-1, 2)
        mask = np.zeros(len(ids), bool)
        num_open = 0
        for span in item.spans:
            first, last = (
                _token_prefix(whole, alone[place], place, item, span)
                if place in alone
                else self._token_edge(ids, offsets, place, item, span)
                for place in (span.start, span.end)
            )
            mask[first:last] = True
            num_open += last == first or ids[last - 1] not in self._control.ids
        if not mask.any():
            raise Stop("no_loss_tokens", "the chat template leaves no token to the assistant")
        return EncodedChat(
            input_ids=ids, loss_mask=mask, num_altered_turns=item.num_altered, num_open_turns=int(num_open)
        )

    def _token_edge(
        self, ids: np.ndarray, offsets: np.ndarray, place: int, item: RenderedChat, span: AnswerSpan
    ) -> int:
        """The number of tokens that begin before the character `place`, refused where one of them crosses it."""
        index = int(np.searchsorted(offsets[:, 0], place, side="left"))
        if index > 0 and (end := offsets[index - 1, 1]) > place:
            # Control tokens of some tokenizers take the white space behind them with them.
            if ids[index - 1] not in self._control.ids or item.text[place:end].strip():
                raise _border_problem(item, span, place, item.text[slice(*offsets[index - 1])])
        return index


def _token_prefix(whole: Any, part: list[int], place: int, item: RenderedChat, span: AnswerSpan) -> int:
    """The length of `part` where it is a prefix of the whole conversation's tokens, refused where it is not."""
    if whole.ids[: len(part)] != part:
        same = next((i for i, (a, b) in enumerate(zip(part, whole.ids, strict=False)) if a != b), len(part) - 1)
        raise _border_problem(item, span, place, item.text[slice(*whole.offsets[min(same, len(whole.ids) - 1)])])
    return len(part)


def _border_problem(item: RenderedChat, span: AnswerSpan, place: int, token: str) -> Stop:
    around = item.text[max(0, place - SHOWN_CHARACTERS // 2) : place], item.text[place : place + SHOWN_CHARACTERS // 2]
    return Stop(
        "border_inside_token",
        f"turn {span.turn}: the tokens before a border of the answer are no prefix of the conversation's tokens: "
        f"between {around[0]!r} and {around[1]!r} lies the token {token!r}, which cannot be given to one side; legal: "
        "text that the tokenizer splits there",
    )
