"""Text as it comes out of a terminal, made plain: encodings, escapes, carriage returns, frames of panes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

# Operating system commands (titles, links), control sequences, and the two-byte escapes.
_COMMAND = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b]*(?:\x1b\\)?")
# Programs that write a log for a terminal into a file often write the escape byte out.
_SEQUENCE = re.compile(r"(?:\x1b|\x9b(?=\d)|\^\[|\\x1b|\\033|\\u001b|\\e|\u241b)\[?([0-9;:<=>?]*)[ -/]*([@-~])")
_SHORT = re.compile(r"\x1b(?!\[)[ -/]*[0-~]")
# Colours whose escape byte was lost. A time such as [478m] has its bracket behind it.
_BARE_COLOUR = re.compile(r"\[\d{0,3}(?:;\d{1,3})*m(?!\s*\])(?=[^\n])")
# Sequences that send the cursor to another place: what follows is another line.
_MOVES = frozenset("ABEFGHdfJ")
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u200b-\u200f\u2060\ufeff]")
_FRAME = re.compile(r"[\u2502\u2503\u2506\u2507\u250a\u250b\u2551\u254e\u254f\u257d\u257f]")
_QUOTE = re.compile(r"^\s*(?:> ?)+")


@dataclass(frozen=True, kw_only=True)
class PlainLine:
    """A line of a text, without what a terminal adds.

    Args:
        number: Where it begins in the text; from 1.
        text: What it says, without blanks at its end.
        width: Characters that it took on the screen; a line that goes on in the next one is as wide as the screen.
    """

    number: int
    text: str
    width: int


def decoded(data: bytes) -> str:
    """Decode text of unknown encoding: UTF-8 or UTF-16, with or without a byte order mark.

    Args:
        data: Bytes of a file.

    Returns:
        The text; bytes that are no UTF-8 become U+FFFD.
    """
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, errors="replace")
    # Plain letters have a zero byte each in UTF-16, before or behind them.
    head = data[:4096]
    for odd, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(head) >= 2 and head[odd::2].count(0) > 0.4 * len(head[odd::2]):
            return data.decode(encoding, errors="replace")
    return data.decode("utf-8", errors="replace")


def plain_lines(text: str) -> list[PlainLine]:
    """Split captured text into lines, and take off what a terminal adds.

    Escape sequences go; carriage returns and moves of the cursor end a line; panes that stand side by side, told by the
    frame between them, come one after the other; a frame around a line and marks of a quotation go.

    Args:
        text: As captured, LF, CRLF or CR at line ends.

    Returns:
        The lines that are not blank, in order.
    """
    text = re.sub(r"\r*\n", "\n", text)
    rows = [
        (number, part)
        for number, row in enumerate(text.split("\n"), start=1)
        for part in re.split(r"[\r\n\x0b\x0c\x85\u2028\u2029]", _without_escapes(row))
    ]
    lines = []
    for number, part, width in _without_frames(rows):
        quote = _QUOTE.match(part)
        part = part[quote.end() :] if quote else part
        if part.strip():
            lines.append(PlainLine(number=number, text=part.rstrip(), width=width))
    return lines


def _without_escapes(row: str) -> str:
    row = _COMMAND.sub("", row)
    row = _SEQUENCE.sub(_cursor, row)
    row = _SHORT.sub("", row)
    row = _BARE_COLOUR.sub("", row)
    while "\x08" in row:
        shorter = re.sub(r"[^\x08\n]\x08", "", row)
        row = shorter if shorter != row else row.replace("\x08", "")
    return _INVISIBLE.sub("", row.replace("\t", " ").replace("\xa0", " "))


def _cursor(match: re.Match[str]) -> str:
    argument, last = match.groups()
    if last == "C":
        # Forward by so many columns, which terminals use in place of blanks.
        return " " * min(int(argument or 1) if (argument or "1").isdigit() else 1, 500)
    return "\n" if last in _MOVES else ""


def _without_frames(rows: list[tuple[int, str]]) -> Iterator[tuple[int, str, int]]:
    """Take frames off; rows with frames at the same columns are panes side by side, read one pane after the other."""
    for columns, block in groupby(rows, key=lambda row: tuple(match.start() for match in _FRAME.finditer(row[1]))):
        held = list(block)
        if not columns:
            yield from ((number, part, len(part.rstrip())) for number, part in held)
            continue
        cells = [_FRAME.split(part) for _, part in held]
        for pane in range(len(columns) + 1):
            inside = [cell[pane].rstrip() for cell in cells]
            # A pane may have blanks between its frame and its text, the same on each row.
            pad = min((len(cell) - len(cell.lstrip()) for cell in inside if cell), default=0)
            for (number, _), cell in zip(held, inside, strict=True):
                if cell:
                    yield number, cell[pad:], len(cell)
