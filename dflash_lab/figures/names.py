"""Names as text that fits a figure: measured in points, wrapped, shortened, in letters that the font has."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from matplotlib.font_manager import findfont, get_font

# Size of tick labels and legends in points, and their distance from line to line.
LABEL_POINTS = 7.0
LINE_POINTS = 1.2 * LABEL_POINTS
_ELLIPSIS = "…"
_MISSING = "□"


def printable(text: str) -> str:
    """Drop what no line of text holds: control characters and halves of surrogate pairs, which XML refuses too.

    Args:
        text: Any text.
    """
    kept = (letter for letter in text if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cs", "Cn"))
    return " ".join("".join(kept).split())


def drawable(text: str) -> str:
    """Give a text in one line of letters that the font has; a box stands for each other one.

    Args:
        text: Any text.
    """
    letters = _font_letters()
    return "".join(letter if ord(letter) in letters else _MISSING for letter in printable(text))


def text_points(text: str) -> float:
    """Measure a line of text at the size of a label, in points.

    Args:
        text: Letters that the font has.
    """
    return sum(map(_advance, text))


def shorten_name(name: str, *, width_points: float = 104.0) -> str:
    """Cut the middle out of a long name: paths differ at both ends.

    Args:
        name: Any text.
        width_points: Most points that it takes as a label.
    """
    text = drawable(name)
    if text_points(text) <= width_points:
        return text
    half = (width_points - text_points(_ELLIPSIS)) / 2
    head, tail = _fitting(text, half), _fitting(text[::-1], half)
    return f"{text[:head].rstrip()}{_ELLIPSIS}{text[len(text) - tail :].lstrip()}"


def wrap_name(name: str, *, width_points: float = 78.0, max_lines: int = 3) -> str:
    """Break a long name into lines, at spaces and after / _ - where there are any, and shorten what does not fit.

    Args:
        name: Any text.
        width_points: Most points of a line as a label.
        max_lines: Most lines.
    """
    rest, lines = drawable(name), []
    while rest and len(lines) < max_lines:
        is_last = len(lines) == max_lines - 1
        if text_points(rest) <= width_points:
            lines.append(rest)
            break
        if is_last:
            lines.append(rest[: _fitting(rest, width_points - text_points(_ELLIPSIS))].rstrip() + _ELLIPSIS)
            break
        most = _fitting(rest, width_points)
        # A break that leaves less than half a line looks like a mistake; then the word itself is broken.
        breaks = [found.end() for found in re.finditer(r"[ /_-]", rest[: most + 1]) if found.end() > most / 2]
        end = min(breaks[-1], most + (rest[most] == " ")) if breaks else most
        lines.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return "\n".join(lines)


def name_row_inches(names: Sequence[str], least: float) -> float:
    """Give the height of a row that holds any of the names, as `wrap_name` breaks them.

    Args:
        names: The rows' names.
        least: Least height in inches.
    """
    num_lines = max(wrap_name(name).count("\n") + 1 for name in names)
    # A line with its leading, and a gap to the next row.
    return max(least, (num_lines * 9.0 + 3.0) / 72)


def _fitting(text: str, width_points: float) -> int:
    """How many of the first letters fit, at least one."""
    points = 0.0
    for number, letter in enumerate(text):
        points += _advance(letter)
        if points > width_points:
            return max(1, number)
    return len(text)


@lru_cache(maxsize=1)
def _font_letters() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


@lru_cache(maxsize=4096)
def _advance(letter: str) -> float:
    font = get_font(findfont("DejaVu Sans"))
    font.set_size(LABEL_POINTS, 72)
    return font.load_char(ord(letter)).linearHoriAdvance / 65_536
