"""The words of a status line: which are fields, what they say, and how far rounding may have moved it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

# Name in the line -> column of the table.
COLUMNS = {
    "step": "step",
    "loss": "loss",
    "acc": "accuracy",
    "accuracy": "accuracy",
    "streak": "streak",
    "lr": "learning_rate",
    "noise": "noise",
    "tgt": "target_batches_per_second",
    "dft": "drafter_batches_per_second",
    "q_pre": "q_pre",
    "q_hs": "q_hs",
    "epoch": "epoch",
    "eta": "eta_seconds",
}
ELAPSED, TOKENS = "elapsed_seconds", "real_tokens_per_second"
QUEUES = ("q_pre", "q_hs")
# Columns in the order of the source run's line.
_NAMES = tuple(dict.fromkeys(COLUMNS.values()))
FIELDS = (_NAMES[0], ELAPSED, *_NAMES[1:-4], TOKENS, *_NAMES[-4:])
ROUNDED = tuple(name for name in FIELDS if name not in ("step", *QUEUES))

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.(\d*))?|\.(\d+))(?:e([+-]?\d+))?", re.IGNORECASE)
_NO_VALUE = re.compile(r"none|null|n/a|\?|-+", re.IGNORECASE)
_NON_FINITE = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_MARK = r"\[\s*\d+(?:\.\d+)?[smhd]\s*\]"
# Exponents that leave room in a float64 for arithmetic.
_LARGEST = 100
_TOKEN = re.compile(
    rf"(?P<mark>{_MARK})"
    r"|(?P<key>[A-Za-z_][\w./-]*)(?:=|~=?)(?P<value>\[[^\[\]=]*\]?|[^\s|()\[\]]*)"
    r"|(?P<rate>\([^()]*tok/s\))"
    r"|(?P<bar>[|,;]+)"
    r"|(?P<junk>[^\s|]+)"
)
HEAD = re.compile(_MARK + r"\s*step=(?=\d)")
_KNOWN = re.compile(r"(?<![\w./-])(?:" + "|".join(COLUMNS) + r")(?:=|~)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A word of a status line.

    Args:
        name: Column that it fills, or "" where it fills none.
        key: As written, of a field that is not known; else "".
        kind: "field" | "unknown" | "bar" | "junk".
        text: Its value as written.
        begin: Where it begins in the line.
        end: Where it ends.
    """

    name: str
    key: str
    kind: str
    text: str
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a field says.

    Args:
        value: A number, whole numbers of a list, or None where it says nothing.
        within: How far the true number may be from it.
        state: "read" | "none" (said to have no value) | "non-finite" | "unreadable".
        closed: Whether the text shows that nothing of it is cut off: a unit or a bracket stands behind it.
    """

    value: float | int | list[int] | None = None
    within: float = 0.0
    state: str = "read"
    closed: bool = False


@dataclass(kw_only=True)
class Fields:
    """All that one status line says.

    Args:
        readings: By column.
        unknown: Fields that are not known, as written.
        last: Column of its last field; "" where that is not known.
        words: Words that are no field.
    """

    readings: dict[str, Reading] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    last: str = ""
    words: int = 0


def tokens(text: str) -> list[Token]:
    """Split a status line into its words.

    Args:
        text: From its first field on.
    """
    found = []
    for match in _TOKEN.finditer(text):
        name, key, kind, value = "", "", "junk", match[0]
        if match["mark"]:
            name, kind, value = ELAPSED, "field", match[0].strip("[] ")
        elif match["rate"]:
            name, kind = TOKENS, "field"
        elif match["key"]:
            name = COLUMNS.get(match["key"].lower(), "")
            kind, key, value = "field" if name else "unknown", "" if name else match["key"], match["value"].rstrip(",;")
        elif match["bar"]:
            kind = "bar"
        found.append(Token(name=name, key=key, kind=kind, text=value, begin=match.start(), end=match.end()))
    return found


def starts(text: str) -> list[int]:
    """Find where status lines begin in a line of text.

    A time with `step=` behind it begins one, and so does a second `step=`. Where there is no such time, the first known
    field begins it, or the fields right before that.

    Args:
        text: One line.

    Returns:
        Ascending; empty where no known field stands in it.
    """
    heads = [match.start() for match in HEAD.finditer(text)]
    first = _KNOWN.search(text)
    if not heads and first is None:
        return []
    found = tokens(text)
    begins: list[int] = []
    seen: set[str] = set()
    run: int | None = None
    for token in found:
        if token.begin in heads:
            begins.append(token.begin)
            seen = {token.name}
            continue
        if token.kind in ("junk", "bar"):
            run = None if token.kind == "junk" else run
            continue
        run = token.begin if run is None else run
        if not token.name:
            continue
        if not begins:
            # A time that stands alone in brackets, such as a progress bar's, begins no status line.
            if token.name != ELAPSED:
                begins.append(run)
            seen.add(token.name)
        elif token.name == "step" and "step" in seen:
            begins.append(token.begin)
            seen = {"step"}
        else:
            seen.add(token.name)
    return begins


def reading(name: str, text: str) -> Reading:
    """Read the value of a known field.

    Args:
        name: Its column.
        text: As written.
    """
    if name in QUEUES:
        return _queue(text)
    if _NO_VALUE.fullmatch(text):
        return Reading(state="none", closed=text != "-")
    unit, scale = _unit(name, text)
    number = text[: len(text) - len(unit)] if name != TOKENS else unit
    if _NON_FINITE.fullmatch(number):
        return Reading(state="non-finite", closed=True)
    match = _NUMBER.fullmatch(number)
    exponent = int(match[3] or 0) if match is not None and len(match[3] or "") < 6 else _LARGEST
    if match is None or scale is None or abs(exponent) >= _LARGEST:
        return Reading(state="unreadable")
    if name == "step":
        return Reading(value=int(number)) if number.isdecimal() and len(number) < 16 else Reading(state="unreadable")
    decimals = len(match[1] or match[2] or "")
    value = float(number) * scale
    if not math.isfinite(value):
        return Reading(state="non-finite")
    # Times and epochs without decimals may have been cut to whole numbers rather than rounded.
    half = 1.0 if not decimals and name in (ELAPSED, "eta_seconds", "epoch") else 0.5
    within = half * 10.0 ** max(exponent - decimals, -_LARGEST) * scale
    return Reading(value=value, within=within, closed=bool(unit))


def fields(text: str, *, cut_at_start: bool = False) -> Fields:
    """Read a status line.

    Args:
        text: From its first field on.
        cut_at_start: Whether its first word may have lost its beginning, and so its name.

    Returns:
        What it says; of a field that stands there twice, what it says first.
    """
    found = Fields()
    for number, token in enumerate(tokens(text)):
        if token.kind in ("junk", "bar"):
            found.words += token.kind == "junk" and not (cut_at_start and number == 0)
            continue
        if cut_at_start and number == 0 and token.kind == "unknown":
            continue
        found.last = token.name
        if not token.name:
            found.unknown.setdefault(token.key, token.text)
        elif token.name not in found.readings:
            found.readings[token.name] = reading(token.name, token.text)
    return found


def could_follow(held: str, joined: str, seam: int) -> bool:
    """Say whether the end of a line can be the rest of what stands before it.

    Args:
        held: What stands before it.
        joined: Both.
        seam: Where the second begins in `joined`.

    Returns:
        True where all words from the one at the seam on are fields that `held` lacks; the last one may be cut.
    """
    before = {token.name or token.key for token in tokens(held) if token.end < seam}
    found = [token for token in tokens(joined) if token.end >= seam]
    for number, token in enumerate(found):
        last = number == len(found) - 1
        if token.kind == "bar":
            continue
        if token.kind == "junk":
            if not (last and _could_grow(token.text)):
                return False
            continue
        name = token.name or token.key
        if name in before:
            return False
        before.add(name)
        if token.name and not last and reading(token.name, token.text).state == "unreadable":
            return False
        if token.name and last and not re.fullmatch(r"[\[\]\d.,eE+\-a-zA-Z/?() ]*", token.text):
            return False
    return True


def _could_grow(text: str) -> bool:
    """Whether a word can be the beginning of a field: of its name, a time in brackets, or tokens a second."""
    return bool(re.fullmatch(r"[A-Za-z_][\w./-]*|\[\s*[\d.]*[smhd]?|\([\d.]*[KMGkmg]?(?:t(?:o(?:k(?:/s?)?)?)?)?", text))


def _queue(text: str) -> Reading:
    inside = re.fullmatch(r"\[\s*((?:\d+\s*(?:,\s*|\s+))*\d*)\s*\]", text)
    if inside is None:
        alone = re.fullmatch(r"\d+", text)
        return Reading(value=[int(text)]) if alone and len(text) < 16 else Reading(state="unreadable")
    numbers = re.findall(r"\d+", inside[1])
    if any(len(number) > 15 for number in numbers):
        return Reading(state="unreadable")
    return Reading(value=[int(number) for number in numbers], closed=True)


def _unit(name: str, text: str) -> tuple[str, float | None]:
    """Unit of a text and what it multiplies by, None for one that is wrong; of tokens a second, the number itself."""
    if name in (ELAPSED, "eta_seconds"):
        unit = text[-1:].lower()
        return (text[-1:], float(_SECONDS[unit])) if unit in _SECONDS else ("", None)
    if name.endswith("batches_per_second"):
        unit = re.search(r"[A-Za-z/]*$", text.lower())
        # Without any unit it is batches a second as well; half of a unit is none.
        return ("b/s", 1.0) if unit and unit[0] == "b/s" else ("", 1.0)
    if name == TOKENS:
        match = re.fullmatch(r"\(\s*(\S+?)\s*([kmg]?)tok/s\s*\)", text.lower())
        return (match[1], _SCALE[match[2]]) if match else ("", None)
    return "", 1.0
