"""Answers found by a chat template's own `{% generation %}` marks, and the marks checked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dflash_lab.data.chat_render import RenderError, Rendering, Stop, TemplateRenderer, Turn, cut
from dflash_lab.data.chat_turn import (
    NEEDS_OTHER_MARKS,
    AnswerSpan,
    around,
    closing_length,
    thinking_of,
    with_words,
    without_thinking,
)

Stretch = tuple[int, int]


class MarkReader:
    """Finds answers by marks, which are checked on the same conversation with other answers.

    Args:
        renderer: For the chat template.
        control: Finds control tokens in text.
    """

    def __init__(self, renderer: TemplateRenderer, control: re.Pattern[str]) -> None:
        self._renderer = renderer
        self._control = control

    def find(self, chat: Sequence[Turn], answers: list[int], chosen: list[int], whole: Rendering) -> list[AnswerSpan]:
        """Find the answers in the turns `chosen`.

        Args:
            chat: The conversation.
            answers: Numbers of its assistant turns that may have marks.
            chosen: Some of them.
            whole: What the conversation renders to.

        Raises:
            Stop: If the marks do not hold what the assistant writes there, and only that.
        """
        words, other = with_words(chat, answers)
        try:
            plain = self._renderer.render(other)
        except RenderError as error:
            raise Stop("template_error", f"the chat template does not render it with other answers: {error}") from None
        inside = "\0".join(plain.text[start:end] for start, end in plain.marks)
        marked = [number for number, word in zip(answers, words, strict=True) if word in inside]
        if len(marked) < len(answers) and set(chosen) <= set(marked):
            # Answers without marks are text like any other, where nobody asks for them.
            return self.find(chat, marked, chosen, whole)
        stretches, plain_stretches = _stretches(whole, plain, words)
        turns = _turns_of(whole.text, stretches, plain, plain_stretches, dict(zip(words, answers, strict=True)))
        spans = []
        for number in chosen:
            word = words[answers.index(number)]
            around(word, plain.text, number)
            if number not in turns:
                raise _differ(_describe(whole.text, stretches, len(answers)) + f", none for turn {number}")
            k = turns.index(number)
            (start, end), (plain_start, plain_end) = stretches[k], plain_stretches[k]
            lead, tail = around(word, plain.text[plain_start:plain_end], number)
            written = whole.text[start:end]
            gap = whole.text[stretches[k - 1][1] if k else 0 : start]
            if not written.endswith(tail) or any(
                t and t in gap and t not in written for t in thinking_of(chat[number])
            ):
                raise _differ(f"turn {number}: the chat template's generation marks hold only {cut(written)!r}")
            content_end = end - len(tail)
            end = content_end + closing_length(tail, self._control, number)
            if lead:
                start = self._behind_header(chat, number, whole.text, start, lead)
            spans.append(AnswerSpan(turn=number, start=start, content_end=content_end, end=end))
        return spans

    def _behind_header(self, chat: Sequence[Turn], number: int, text: str, start: int, lead: str) -> int:
        """Where an answer begins whose marks begin at `start` and hold `lead` before its last words."""
        try:
            bare = self._renderer.render(chat[:number]).text
            head = self._renderer.render(chat[:number], generation_prompt=True).text
        except RenderError:
            bare = head = ""
        known = head != bare and text.startswith(head)
        first = max(start, len(head)) if known else start
        # What marks and generation prompt share is the prompt's; a line break or the tag that opens thinking may go.
        header = without_thinking(text[start:first] if known else lead, chat[number]).strip()
        if header:
            raise Stop(
                "template_marks_header",
                f"turn {number}: the chat template's generation marks hold {cut(header)!r}, which stands before the "
                "answer and is not the assistant's",
                fault="unclear",
                advice=NEEDS_OTHER_MARKS,
            )
        return first


def _stretches(whole: Rendering, plain: Rendering, words: list[str]) -> tuple[list[Stretch], list[Stretch]]:
    """The marks' stretches in both texts; those that touch are one where a block of marks holds only part of a turn."""
    if all(any(word in plain.text[start:end] for word in words) for start, end in plain.marks):
        return whole.marks, plain.marks
    return _joined(whole.marks), _joined(plain.marks)


def _joined(marks: list[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for start, end in marks:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _turns_of(
    text: str, stretches: list[Stretch], plain: Rendering, plain_stretches: list[Stretch], turns: dict[str, int]
) -> list[int]:
    """The turn of each stretch; `turns` names them by the words that stand for their answers."""
    found = []
    for start, end in plain_stretches:
        inside = [number for word, number in turns.items() if word in plain.text[start:end]]
        if len(inside) != 1:
            raise _differ(f"{_describe(text, stretches, len(turns))}, and one of them holds {len(inside)} answers")
        found += inside
    if len(found) != len(stretches) or _gaps(text, stretches) != _gaps(plain.text, plain_stretches):
        raise _differ(f"{_describe(text, stretches, len(turns))}, and with other answers more than these change")
    return found


def _gaps(text: str, stretches: list[Stretch]) -> list[str]:
    """The text before, between and after the stretches."""
    edges = [0, *(place for stretch in stretches for place in stretch), len(text)]
    return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _describe(text: str, stretches: list[Stretch], num_answers: int) -> str:
    shown = [cut(text[start:end]) for start, end in stretches[:4]]
    return (
        f"the chat template's generation marks give {len(stretches)} stretches of text for {num_answers} assistant "
        f"turns: {shown}"
    )


def _differ(text: str) -> Stop:
    return Stop("template_marks_differ", text, fault="unclear", advice=NEEDS_OTHER_MARKS)
