"""Status lines out of the lines of a text: wrapped ones joined again, others set apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dflash_lab.analysis.captured_text import PlainLine
from dflash_lab.analysis.status_fields import HEAD, could_follow, fields, starts, tokens

# A screen that counts an emoji for two columns ends a line that many characters earlier.
_WIDE_CHARACTERS = 4
# A line that is wrapped between words may end so many characters before the edge: the longest word is `(26.2Ktok/s)`,
# with a list that is kept together somewhat more.
_LONGEST_WORD = 30


@dataclass(kw_only=True)
class WrittenLine:
    """A status line as written, on one line again.

    Args:
        number: Where it begins in the text; from 1.
        text: From its first field on.
        before: What stands before that on its line.
        widths: Characters on the screen of each line that it stood on.
        indent: Blanks before its first line.
    """

    number: int
    text: str
    before: str
    widths: list[int] = field(default_factory=list)
    indent: int = 0


@dataclass(frozen=True, kw_only=True)
class Rejoined:
    """The status lines of a text.

    Args:
        lines: As written, in order.
        num_other_lines: Lines of the text that belong to none.
    """

    lines: tuple[WrittenLine, ...]
    num_other_lines: int


def rejoin(lines: Sequence[PlainLine]) -> Rejoined:
    """Find the status lines, and join those that a terminal or a window has wrapped.

    A line is joined to the one before where that one is no whole status line yet, all its words are fields which that
    one lacks, and it is no wider: a wrapped line goes on only where the screen ended. Wrapping may fall anywhere, also
    within a number or the time in brackets, and a blank at the edge may be lost.

    Args:
        lines: Of a text, in order.

    Returns:
        The status lines; the rest is counted.
    """
    found: list[WrittenLine] = []
    held: WrittenLine | None = None
    others = 0
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else None
        spanning = _head_at_the_edge(line, following)
        head = HEAD.search(line.text)
        end = head.start() if head else len(line.text)
        if spanning is None and held is not None and end and _goes_on(held, line, line.text[:end]):
            held.text = _joined(held, line.text[:end])[0]
            held.widths.append(line.width)
            begins = starts(line.text[end:]) if head else []
            begins = [end + begin for begin in begins]
        else:
            begins = [spanning] if spanning is not None else starts(line.text)
            others += not begins
            held = None
        for begin, stop in pairwise([*begins, len(line.text)]):
            held = WrittenLine(
                number=line.number,
                text=line.text[begin:stop],
                before=line.text[:begin] if begin == begins[0] else "",
                widths=[line.width],
                indent=len(line.text) - len(line.text.lstrip()) if begin == begins[0] else 0,
            )
            found.append(held)
    return Rejoined(lines=tuple(found), num_other_lines=others)


def _head_at_the_edge(line: PlainLine, following: PlainLine | None) -> int | None:
    """Where the beginning of a status line stands that goes on in the next line, as `[47` and `8m] step=4690`."""
    if following is None or following.width > line.width + _WIDE_CHARACTERS or HEAD.search(line.text):
        return None
    for between in ("", " "):
        match = HEAD.search(line.text + between + following.text[:40])
        if match and match.start() < len(line.text) < match.end() + 1:
            return match.start()
    return None


def _goes_on(held: WrittenLine, line: PlainLine, text: str) -> bool:
    if _whole(held.text):
        return False
    joined, seam = _joined(held, text)
    at_a_word = joined[seam - 1].isspace() or joined[seam].isspace() or joined[seam - 1] in ",|"
    slack = _LONGEST_WORD if at_a_word else _WIDE_CHARACTERS
    return line.width <= min(held.widths) + slack and could_follow(held.text, joined, seam)


def _whole(text: str) -> bool:
    """Whether a line ends as those of the source run do, and has begun."""
    said = fields(text)
    last = said.readings.get("eta_seconds")
    return said.last == "eta_seconds" and last is not None and last.closed and {"step", "epoch"} <= said.readings.keys()


def _joined(held: WrittenLine, text: str) -> tuple[str, int]:
    """Both as one text, and where the second begins."""
    blanks = len(text) - len(text.lstrip())
    text = text[min(blanks, held.indent) :]
    words = tokens(held.text)
    # Mid-word, nothing has been lost. Behind a value, the name of a field shows that the blank at the edge has.
    value_ends = bool(words) and (words[-1].kind != "junk" or held.text[-1] in ")]|")
    lost = value_ends and re.match(r"[A-Za-z_][\w./-]*(?:=|~)", text)
    between = " " if lost else ""
    return held.text + between + text, len(held.text) + len(between)
