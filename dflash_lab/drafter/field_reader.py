"""Reading an object of a config file: every field checked, every complaint kept, and what was not read named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# One finding against a file that holds something else altogether should not fill a screen.
_MOST_CHARACTERS = 80


@dataclass(frozen=True, kw_only=True)
class ExportFinding:
    """Something about an exported drafter that a server would stumble over.

    Args:
        severity: "error": refused or served wrong; "warning": may be meant so; "note": worth knowing.
        what: Names the field or tensor and its value.
        legal: What it has to be.
    """

    severity: str
    what: str
    legal: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.what}; legal: {self.legal}"


class FieldReader:
    """Takes fields out of a JSON object.

    Args:
        fields: The object.
        place: Its own name, for messages; empty at top level.
        findings: Where complaints go; None starts a list.
    """

    def __init__(self, fields: dict[str, Any], place: str = "", findings: list[ExportFinding] | None = None) -> None:
        self._fields = fields
        self._place = place
        self._read: set[str] = set()
        self._inner: list[FieldReader] = []
        self.findings: list[ExportFinding] = [] if findings is None else findings

    def path(self, name: str) -> str:
        """Give a field's name with the place that it stands in."""
        return f"{self._place}.{name}" if self._place else name

    def find(self, what: str, legal: str) -> None:
        """Complain."""
        self.findings.append(ExportFinding(severity="error", what=what, legal=legal))

    def value(self, name: str) -> Any:
        """Give a field as it is; None where it is missing or null."""
        return self._fields.get(name)

    def taken(self, name: str) -> Any:
        """Give a field as it is, and count it as read."""
        self._read.add(name)
        return self._fields.get(name)

    def skip(self, name: str) -> None:
        """Count a field as read."""
        self._read.add(name)

    def unread(self) -> set[str]:
        """Name the fields that nobody read, those of inner objects with their place."""
        own = {self.path(name) for name in self._fields if name not in self._read}
        return own.union(*(inner.unread() for inner in self._inner))

    def inner(self, name: str) -> FieldReader:
        """Give a reader of an object inside this one; of an empty one, with a complaint, where there is none."""
        found = self.taken(name)
        if not isinstance(found, dict):
            self._complain(name, "an object")
            found = {}
        reader = FieldReader(found, self.path(name), self.findings)
        self._inner.append(reader)
        return reader

    def whole_number(self, name: str, least: int, *, required: bool = True) -> int | None:
        """Give an integer of at least `least`; None, with a complaint, where it is none."""
        found = self.taken(name)
        if found is None and not required:
            return None
        if not _is_whole(found) or found < least:
            self._complain(name, f"a whole number >= {least}")
            return None
        return int(found)

    def whole_numbers(self, name: str, least: int) -> tuple[int, ...] | None:
        """Give a list of integers; None, with a complaint, where it is none."""
        found = self.taken(name)
        if not isinstance(found, list) or not found or any(not _is_whole(each) or each < least for each in found):
            self._complain(name, f"a list of whole numbers >= {least}")
            return None
        return tuple(found)

    def number(self, name: str, *, required: bool = True) -> float | None:
        """Give a number above 0; None, with a complaint, where it is none."""
        found = self.taken(name)
        if found is None and not required:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
            self._complain(name, "a number > 0")
            return None
        return float(found)

    def one_of(self, name: str, legal: tuple[object, ...], *, required: bool = True) -> None:
        """Complain where a field has another value than those."""
        if not required and name not in self._fields:
            return
        found = self.taken(name)
        if not any(found is each or (type(found) is type(each) and found == each) for each in legal):
            self._complain(name, " or ".join(repr(each) for each in legal if each is not None))

    def _complain(self, name: str, legal: str) -> None:
        found = repr(self._fields[name]) if name in self._fields else None
        if found is not None and len(found) > _MOST_CHARACTERS:
            found = f"{found[:_MOST_CHARACTERS]}..."
        self.find(f"{self.path(name)} is {'missing' if found is None else found}", legal)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
