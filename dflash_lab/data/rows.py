"""Rows as they travel from a source to its index: good ones, bad ones, and blocks of both."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

# Ids are stored as int32; no vocabulary comes near the limit.
MAX_ID = 2**31 - 1
# A block is what is checked, hashed and written at once: few enough tokens to keep memory flat, enough rows to be fast.
BLOCK_ROWS = 1_024
BLOCK_TOKENS = 2_000_000
# JSON can spell half a surrogate pair, which is no text that can be stored or tokenised.
HALF_PAIR = re.compile("[\ud800-\udfff]")

LEGAL_IDS = f"whole numbers in [0, {MAX_ID}]"
LEGAL_MASK = "0 or 1 (also true/false and 0.0/1.0)"


class RowProblem(ValueError):
    """Why one row is refused.

    Args:
        reason: Key under which the row is counted.
        message: Field, value and what is legal.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class BadRow:
    """A row that was refused: its number from 0, the reason it is counted under, and a message that names the place."""

    row_number: int
    reason: str
    message: str


@dataclass(frozen=True)
class CheckedRow:
    """One good row: input_ids int32 (L,), loss_mask uint8 (L,) of 0 and 1."""

    input_ids: np.ndarray
    loss_mask: np.ndarray
    source: str | None = None
    row_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """Some consecutive rows: the good ones' tokens end to end, and the bad ones.

    Args:
        row_numbers: int64 (n,), places in the source of the good rows, from 0.
        line_numbers: int64 (n,), physical lines from 1, or None where the source has no lines.
        input_ids: int32 (num_tokens,).
        loss_mask: uint8 (num_tokens,), 0 or 1.
        offsets: int64 (n + 1,); row i is [offsets[i], offsets[i + 1]).
        sources: Text or None a row.
        row_ids: Text or None a row.
        bad: Refused rows among them.
        num_rows: Good and bad rows.
        found: Which optional columns that were given by name the rows have, by our names.
        share_read: How much of the source has been read, in [0, 1].
        file: Where the rows stand, for messages.
    """

    row_numbers: np.ndarray
    input_ids: np.ndarray
    loss_mask: np.ndarray
    offsets: np.ndarray
    sources: list[str | None]
    row_ids: list[str | None]
    line_numbers: np.ndarray | None = None
    bad: tuple[BadRow, ...] = ()
    num_rows: int
    found: frozenset[str] = field(default_factory=frozenset)
    share_read: float = 1.0
    file: str = ""


def show_value(value: object, limit: int = 60) -> str:
    """Give a value for a message, in one line of at most `limit` characters."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:
        # Python prints no whole number of more than 4,300 digits.
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
