"""One answer in a rendered conversation: its words, its thinking, and what ends it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_lab.data.chat_render import SHOWN_CHARACTERS, Stop, Turn, cut

NEEDS_MARKS = "use a template with {% generation %} marks around what the assistant writes"
NEEDS_MARKS_OR_LAST = "use turns='last', or a template with {% generation %} marks around what the assistant writes"
NEEDS_OTHER_MARKS = (
    "the marks must stand around what the assistant writes, from behind its header up to and with the token that ends "
    "the turn; without any marks the template's renderings are compared instead"
)


@dataclass(frozen=True, kw_only=True)
class AnswerSpan:
    """Where one answer stands in the text.

    Attributes:
        turn: Number of the turn.
        start: First character that the assistant writes.
        content_end: Last character of the answer itself, + 1.
        end: Last character that the assistant writes, the turn's end token included, + 1.
    """

    turn: int
    start: int
    content_end: int
    end: int


def with_words(chat: Sequence[Turn], numbers: list[int]) -> tuple[list[str], list[Turn]]:
    """Give a word for each of the answers, that stands nowhere else, and the conversation with them; thinking stays."""
    stem = "zqxword"
    while any(stem in text for turn in chat for text in turn.values()):
        stem += "x"
    words = [f"{stem}{k:06d}z" for k in range(len(numbers))]
    other = list(chat)
    for number, word in zip(numbers, words, strict=True):
        before, tag, _ = chat[number]["content"].rpartition("</think>")
        other[number] = {**chat[number], "content": before + tag + word}
    return words, other


def around(word: str, text: str, number: int) -> tuple[str, str]:
    """Give what stands before and after the only place of a word, which is the answer in turn `number`."""
    if text.count(word) != 1:
        how = "does not write its answer" if word not in text else "writes its answer more than once"
        raise Stop("template_loses_answer", f"turn {number}: the chat template {how}", fault="unclear")
    before, _, after = text.partition(word)
    return before, after


def thinking_of(turn: Turn) -> tuple[str, str]:
    """Give the thinking of an answer: that of its own field, and that at the beginning of its content."""
    inside = turn["content"].rpartition("</think>")[0].replace("<think>", "", 1)
    return turn.get("reasoning_content", "").strip(), inside.strip()


def without_thinking(lead: str, turn: Turn) -> str:
    """Take the thinking out of what a template writes before the answer's last words."""
    verbatim = turn["content"].rpartition("</think>")[0].strip()
    for part in (verbatim, *thinking_of(turn), "<think>", "</think>"):
        if part:
            lead = lead.replace(part, "", 1)
    return lead


def closing_length(tail: str, control: re.Pattern[str], number: int) -> int:
    """Give the length of what ends a turn in `tail`: up to its first control token, or all where there is none."""
    found = control.search(tail)
    if found is None:
        return len(tail)
    rest = control.sub("", tail[found.end() :])
    if rest.strip():
        raise Stop(
            "text_behind_turn_end",
            f"turn {number}: after the token that ends it, {found.group()!r}, the turn goes on with {cut(rest)!r}",
            fault="unclear",
        )
    return found.end()


def is_altered(turn: Turn, span: AnswerSpan, text: str) -> bool:
    """Tell whether an answer stands otherwise than word for word; a Stop where its words are not there at all."""
    written = text[span.start : span.content_end].strip()
    content, thinking = turn["content"].strip(), thinking_of(turn)
    words = content.rpartition("</think>")[2].strip()
    if not written.endswith(words):
        raise Stop(
            "template_loses_answer",
            f"turn {span.turn}: the text that the chat template gives the assistant, {cut(written)!r}, does not end "
            f"in the answer, {words[-SHOWN_CHARACTERS:]!r}",
            fault="unclear",
        )
    if not words and content not in written and not any(part and part in written for part in thinking):
        raise Stop(
            "template_loses_answer",
            f"turn {span.turn}: the answer, {cut(content)!r}, is only thinking, and the chat template leaves it out",
        )
    return content not in written or thinking[0] not in written
