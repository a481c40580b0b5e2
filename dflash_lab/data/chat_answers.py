"""Where the assistant's answers stand in a rendered conversation; `chat_mask` says how it is done and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_lab.data.chat_compared import Comparer
from dflash_lab.data.chat_marked import MarkReader
from dflash_lab.data.chat_render import RenderError, Stop, TemplateRenderer, Turn
from dflash_lab.data.chat_turn import NEEDS_MARKS, NEEDS_MARKS_OR_LAST, AnswerSpan, is_altered

# An ordinary conversation for each number of answers up to this one: first, middle and last are all that differ.
MOST_ORDINARY_PAIRS = 3


@dataclass(frozen=True, kw_only=True)
class RenderedChat:
    """One conversation as text.

    Attributes:
        text: The whole conversation.
        spans: The answers to mask, in order.
        num_altered: How many of them do not stand word for word in the text, thinking included.
    """

    text: str
    spans: list[AnswerSpan]
    num_altered: int


class AnswerFinder:
    """Renders conversations and finds the assistant's text in them.

    Args:
        renderer: For the chat template.
        control: Finds control tokens in text.
        turns: "all" finds every assistant turn, "last" only the last one.
        by_marks: Whether the template's own marks say where the answers stand, or compared renderings.
    """

    def __init__(
        self, renderer: TemplateRenderer, control: re.Pattern[str], *, turns: Literal["all", "last"], by_marks: bool
    ) -> None:
        self._renderer = renderer
        self._turns = turns
        self._marks = MarkReader(renderer, control) if by_marks else None
        self._comparer = Comparer(renderer, control, advice=NEEDS_MARKS if turns == "last" else NEEDS_MARKS_OR_LAST)
        self._takes_ordinary: dict[int, bool] = {}

    def find(self, chat: Sequence[Turn]) -> RenderedChat:
        """Render one conversation and find the answers.

        Args:
            chat: Turns with `role` and `content`, the assistant's among them.

        Raises:
            Stop: With the problem, if the assistant's text cannot be told exactly.
        """
        try:
            return self._find(chat)
        except Stop as stop:
            if stop.fault != "unclear":
                raise
            num_answers = sum(turn["role"] == "assistant" for turn in chat)
            if self._ordinary_passes(min(num_answers, MOST_ORDINARY_PAIRS)):
                text = f"{stop.text} (an ordinary conversation passes under this template)"
                raise Stop(stop.reason, text) from None
            raise Stop(stop.reason, f"{stop.text}; {stop.advice or NEEDS_MARKS}", fault="template") from None

    def _find(self, chat: Sequence[Turn]) -> RenderedChat:
        answers = [number for number, turn in enumerate(chat) if turn["role"] == "assistant"]
        chosen = answers if self._turns == "all" else answers[-1:]
        try:
            whole = self._renderer.render(chat)
        except RenderError as error:
            raise Stop("template_error", f"the chat template does not render it: {error}") from None
        if self._marks:
            spans = self._marks.find(chat, answers, chosen, whole)
        else:
            spans = [self._comparer.find(chat, number, whole.text) for number in chosen]
        num_altered = sum(is_altered(chat[span.turn], span, whole.text) for span in spans)
        return RenderedChat(text=whole.text, spans=spans, num_altered=num_altered)

    def _ordinary_passes(self, num_pairs: int) -> bool:
        """Whether the template is exact for plain turns of user and assistant."""
        if num_pairs not in self._takes_ordinary:
            chat: list[Turn] = []
            for number in range(num_pairs):
                chat.append({"role": "user", "content": f"Question number {number}?"})
                chat.append({"role": "assistant", "content": f"Reply number {number}."})
            try:
                self._find(chat)
                self._takes_ordinary[num_pairs] = True
            except Stop:
                self._takes_ordinary[num_pairs] = False
        return self._takes_ordinary[num_pairs]
