"""An answer found by comparing renderings, for chat templates without marks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dflash_lab.data.chat_render import SHOWN_CHARACTERS, RenderError, Stop, TemplateRenderer, Turn, cut
from dflash_lab.data.chat_turn import AnswerSpan, around, closing_length, thinking_of, with_words, without_thinking


class Comparer:
    """Finds answers by four renderings each: the turns before it, and the whole and its beginning with another answer.

    Args:
        renderer: For the chat template.
        control: Finds control tokens in text.
        advice: What to do where the template changes earlier turns.
    """

    def __init__(self, renderer: TemplateRenderer, control: re.Pattern[str], *, advice: str) -> None:
        self._renderer = renderer
        self._control = control
        self._advice = advice

    def find(self, chat: Sequence[Turn], number: int, text: str) -> AnswerSpan:
        """Find the answer in turn `number` of a conversation that renders to `text`.

        Raises:
            Stop: If the renderings do not agree on one place.
        """
        is_last = number == len(chat) - 1
        head = self._render(chat[:number], number, generation_prompt=True)
        if not text.startswith(head):
            raise self._differ(
                f"the turns before turn {number} with the generation prompt do not render to the beginning of the "
                f"whole conversation: {_first_difference(head, text)}"
            )
        [word], other = with_words(chat, [number])
        before, after = around(word, self._render(other, number), number)
        own = after if is_last else around(word, self._render(other[: number + 1], number), number)[1]
        if not before.startswith(head):
            raise self._differ(
                f"turn {number}: with another answer it does not begin with the generation prompt: "
                f"{_first_difference(head, before + word)}"
            )
        lead = before[len(head) :]
        if without_thinking(lead, chat[number]).strip() and head == self._render(chat[:number], number):
            raise Stop(
                "template_without_generation_prompt",
                f"turn {number}: the chat template ignores add_generation_prompt but writes {cut(lead)!r} before the "
                "answer, so the header cannot be told from the answer",
                fault="unclear",
            )
        content_end = len(text) - len(after)
        if content_end < len(head) or not text.endswith(after):
            raise self._differ(f"turn {number}: {cut(after)!r} follows another answer, but not this one")
        closing = own[: closing_length(own, self._control, number)]
        if not after.startswith(closing):
            raise self._differ(
                f"turn {number} ends in {cut(closing)!r} where it is the last, but {cut(after)!r} follows its answer "
                "where it is not"
            )
        if not is_last and any(thinking_of(chat[number])):
            as_last = self._render(chat[: number + 1], number)[len(head) :].removesuffix(own)
            self._check_thinking(number, as_last, text[len(head) : content_end])
        return AnswerSpan(turn=number, start=len(head), content_end=content_end, end=content_end + len(closing))

    def _check_thinking(self, number: int, as_last: str, written: str) -> None:
        """Refuse a template that shows an answer's thinking only while it is the last.

        What is left of the answer is no text that the model writes there, and most conversations would go the same way.
        """
        if as_last != written:
            raise Stop(
                "template_without_prefixes",
                f"the turns up to turn {number} do not render to the beginning of the whole conversation, since the "
                f"chat template drops the thinking of earlier answers: {_first_difference(as_last, written)}; "
                f"{self._advice}",
                fault="template",
            )

    def _differ(self, text: str) -> Stop:
        return Stop("template_without_prefixes", text, fault="unclear", advice=self._advice)

    def _render(self, turns: Sequence[Turn], number: int, *, generation_prompt: bool = False) -> str:
        """Render a part of the conversation, on behalf of turn `number`."""
        try:
            return self._renderer.render(turns, generation_prompt=generation_prompt).text
        except RenderError as error:
            what = f"turns 0 to {len(turns) - 1} alone" if turns else "a conversation of no turns"
            raise Stop(
                "template_error",
                f"turn {number}: to find the answer, the chat template must render {what}, and fails: {error}",
                fault="unclear",
            ) from None


def _first_difference(part: str, text: str) -> str:
    pairs = zip(part, text, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(part), len(text)))
    since = max(0, same - SHOWN_CHARACTERS // 2)
    return f"from character {same} on, {cut(part[since:])!r} against {cut(text[since:])!r}"
