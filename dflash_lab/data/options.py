"""The options that every way to make a data set has."""

from __future__ import annotations

from typing import TypedDict

from dflash_lab.batching.config import whole_number

ON_BAD_ROW = ("error", "skip")


class Options(TypedDict):
    """Checked options: a cut and a vocabulary size, None for none, least loss tokens, and what to do with bad rows."""

    max_seq_len: int | None
    vocab_size: int | None
    min_loss_tokens: int
    on_bad_row: str


def check_options(*, max_seq_len: int | None, vocab_size: int | None, min_loss_tokens: int, on_bad_row: str) -> Options:
    """Check the options of `PreloadedDataset.open`.

    Raises:
        ValueError: If one is out of range.
    """
    if on_bad_row not in ON_BAD_ROW:
        raise ValueError(f"on_bad_row is {on_bad_row!r}; legal: {', '.join(ON_BAD_ROW)}")
    return Options(
        max_seq_len=optional_whole_number("max_seq_len", max_seq_len, least=1),
        vocab_size=optional_whole_number("vocab_size", vocab_size, least=1),
        min_loss_tokens=whole_number("min_loss_tokens", min_loss_tokens, least=0),
        on_bad_row=on_bad_row,
    )


def optional_whole_number(name: str, value: object, *, least: int) -> int | None:
    """Give a whole number as int, and None as it is.

    Raises:
        ValueError: If it is neither, or under `least`.
    """
    if value is None:
        return None
    try:
        return whole_number(name, value, least=least)
    except ValueError as error:
        raise ValueError(f"{error} or None") from None
