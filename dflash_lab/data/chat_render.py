"""A conversation through a chat template: the text, and which stretches of it the assistant wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_lab.data.chat_format import ChatFormat

Turn = dict[str, str]

KEPT_TURN_FIELDS = ("role", "content", "reasoning_content")
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True)
class ChatProblem:
    """Why a conversation cannot be encoded.

    Attributes:
        reason: Short key that problems are counted by.
        text: The whole story: field, value and what is legal.
        refuses_template: True when the template is at fault, so that leaving out one row would hide the mistake.
    """

    reason: str
    text: str
    refuses_template: bool = False


class Stop(Exception):
    """Carries a ChatProblem out of the middle of an encoding."""

    def __init__(self, reason: str, text: str, *, refuses_template: bool = False) -> None:
        self.problem = ChatProblem(reason=reason, text=text, refuses_template=refuses_template)


@dataclass(frozen=True, kw_only=True)
class RenderedChat:
    """One conversation as text.

    Attributes:
        text: The whole conversation.
        turns: Numbers of the masked turns.
        spans: First and last + 1 character in `text` of each masked turn.
        prefixes: Without marks in the template: for each masked turn, the text before it with the generation prompt,
            and the text up to its end. Else empty.
        num_altered: Masked turns whose content does not stand word for word in the text.
    """

    text: str
    turns: list[int]
    spans: list[tuple[int, int]]
    prefixes: list[str]
    num_altered: int


class ChatRenderer:
    """Renders conversations and finds the assistant's text in them.

    Args:
        chat_format: The chat template and the special tokens that it may name.
        turns: "all" finds every assistant turn, "last" only the last one.
    """

    def __init__(self, chat_format: ChatFormat, *, turns: Literal["all", "last"]) -> None:
        self._format = chat_format
        self._turns = turns

    def render(self, chat: Sequence[Turn]) -> RenderedChat:
        """Render one conversation.

        Args:
            chat: Turns with `role` and `content`, the assistant's among them.

        Raises:
            Stop: With the problem, if the assistant's text cannot be told exactly.
        """
        answers = [number for number, turn in enumerate(chat) if turn["role"] == "assistant"]
        try:
            text, spans = self._render(chat)
        except _RenderError as error:
            raise Stop("template_error", f"the chat template does not render it: {error}") from None
        chosen = answers if self._turns == "all" else answers[-1:]
        prefixes: list[str] = []
        if self._format.mask_method == "generation":
            spans = _one_span_per_turn(spans, len(answers), text)[-len(chosen) :]
        else:
            spans = []
            for number in chosen:
                head, end = self._render_prefixes(chat, number, text)
                prefixes += (head, end)
                spans.append((len(head), len(end)))
        altered = 0
        for number, (start, end) in zip(chosen, spans, strict=True):
            content, written = chat[number]["content"].strip(), text[start:end]
            altered += content not in written
            if content and content.splitlines()[-1].strip() not in written:
                raise Stop(
                    "template_loses_answer",
                    f"turn {number}: the text that the chat template gives the assistant, {cut(written)!r}, does not "
                    f"hold the answer's end, {content.splitlines()[-1].strip()[-SHOWN_CHARACTERS:]!r}",
                    refuses_template=True,
                )
        return RenderedChat(text=text, turns=chosen, spans=spans, prefixes=prefixes, num_altered=altered)

    def _render_prefixes(self, chat: Sequence[Turn], number: int, text: str) -> tuple[str, str]:
        """The text before the answer in turn `number` and the text up to its end, both checked against the whole."""
        try:
            head, _ = self._render(chat[:number], generation_prompt=True)
            bare_head, _ = self._render(chat[:number])
            end = text if number == len(chat) - 1 else self._render(chat[: number + 1])[0]
        except _RenderError as error:
            where = "nothing" if number == 0 else f"turns 0 to {number - 1} alone"
            raise Stop(
                "template_error", f"the chat template does not render {where}: {error}", refuses_template=number > 0
            ) from None
        for name, part in (
            (f"the turns before turn {number} with the generation prompt", head),
            (f"the turns up to turn {number}", end),
        ):
            if not text.startswith(part):
                same = next((i for i, (a, b) in enumerate(zip(part, text, strict=False)) if a != b), len(text))
                raise Stop(
                    "template_without_prefixes",
                    f"{name} do not render to the beginning of the whole conversation: from character {same} on, "
                    f"{cut(part[same:])!r} against {cut(text[same:])!r}. A template that rewrites earlier turns "
                    "needs {% generation %} marks" + ("" if self._turns == "last" else " or turns='last'"),
                    refuses_template=True,
                )
        if len(head) > len(end):
            raise Stop(
                "template_without_prefixes",
                f"turn {number}: the generation prompt {cut(head[len(bare_head) :])!r} is longer than the turn",
                refuses_template=True,
            )
        if head == bare_head:
            answer = chat[number]["content"].strip()
            # Without an answer to look for, the whole turn counts as header.
            header = end[len(head) :].partition(answer)[0] if answer else end[len(head) :]
            if header.strip():
                raise Stop(
                    "template_without_generation_prompt",
                    f"turn {number}: the chat template ignores add_generation_prompt but writes {cut(header)!r} "
                    "before the answer, so the header cannot be told from the answer",
                    refuses_template=bool(answer),
                )
        return head, end

    def _render(self, chat: Sequence[Turn], *, generation_prompt: bool = False) -> tuple[str, list[tuple[int, int]]]:
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        turns = [{name: turn[name] for name in KEPT_TURN_FIELDS if name in turn} for turn in chat]
        try:
            texts, spans = render_jinja_template(
                conversations=[turns],
                chat_template=self._format.chat_template,
                return_assistant_tokens_mask=self._format.mask_method == "generation",
                add_generation_prompt=generation_prompt,
                **self._format.special_tokens,
            )
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not valid Jinja: line {error.lineno}: {error}") from error
        except (jinja2.TemplateError, TypeError) as error:
            raise _RenderError(str(error)) from error
        return texts[0], [tuple(span) for span in spans[0]] if spans else []


class _RenderError(Exception):
    """The template refused a conversation, or cannot cope with it."""


def _one_span_per_turn(spans: list[tuple[int, int]], num_answers: int, text: str) -> list[tuple[int, int]]:
    if len(spans) != num_answers:
        merged: list[tuple[int, int]] = []
        for start, end in spans:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        spans = merged
    if len(spans) != num_answers:
        raise Stop(
            "template_marks_differ",
            f"the chat template's generation marks give {len(spans)} stretches of text for {num_answers} assistant "
            f"turns: {[cut(text[start:end]) for start, end in spans[:4]]}",
            refuses_template=True,
        )
    return spans


def cut(text: str) -> str:
    """Shorten text for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
