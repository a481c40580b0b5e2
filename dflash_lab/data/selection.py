"""Which rows of a source become samples under the options given, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_lab.data.index import SourceIndex

# Lengths are int32, and a cut past them cuts nothing: model_max_length is often 1e30.
MOST_TOKENS = 2**31 - 1
# Reasons beside those of bad rows; each is a key of `DataReport.left_out`.
PAST_VOCABULARY = "id_past_vocab_size"
EMPTY = "empty"
TOO_FEW_LOSS_TOKENS = "too_few_loss_tokens"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rows that are kept, and the rest by reason.

    Args:
        kept: int64 (n,), places in the index.
        lengths: int32 (n,), tokens after the cut.
        loss_tokens: int32 (n,), supervised tokens after the cut.
        left_out: Reason -> row numbers of the source, from 0; bad rows included.
        examples: Reason -> message of the first row.
    """

    kept: np.ndarray
    lengths: np.ndarray
    loss_tokens: np.ndarray
    left_out: dict[str, list[int]]
    examples: dict[str, str]

    def why_nothing_is_left(self, num_rows: int) -> str:
        """Say how the rows of a source without samples were lost."""
        if not self.left_out:
            return "no rows"
        counts = ", ".join(f"{reason}: {len(rows)}" for reason, rows in self.left_out.items())
        return f"all {num_rows} rows are left out ({counts}); {next(iter(self.examples.values()))}"


def select_rows(
    index: SourceIndex, *, max_seq_len: int | None, vocab_size: int | None, min_loss_tokens: int, on_bad_row: str
) -> Selection:
    """Choose the samples among a source's good rows.

    Args:
        index: The source's index.
        max_seq_len: Cut in tokens, None for none.
        vocab_size: Ids at or past it make a row bad; None checks nothing.
        min_loss_tokens: Least supervised tokens after the cut.
        on_bad_row: "error" or "skip".

    Returns:
        The selection, perhaps of nothing.

    Raises:
        ValueError: If an id is past the vocabulary and bad rows are an error.
    """
    lengths = (
        index.lengths if max_seq_len is None else np.minimum(index.lengths, np.int32(min(max_seq_len, MOST_TOKENS)))
    )
    loss_tokens = index.loss_tokens if max_seq_len is None else index.loss_tokens_within(max_seq_len)
    past = np.zeros(len(lengths), dtype=bool) if vocab_size is None else index.max_ids >= vocab_size
    empty = ~past & (lengths == 0)
    poor = ~past & ~empty & (loss_tokens < min_loss_tokens)

    def say(reason: str, row: int) -> str:
        if reason == PAST_VOCABULARY:
            at, found = index.first_past(row, int(vocab_size))  # type: ignore[arg-type]
            return f"{index.ids_name}[{at}] is {found}; legal: below vocab_size {vocab_size}"
        if reason == EMPTY:
            return "the sample has no tokens"
        cut = "" if max_seq_len is None else f" after the cut to max_seq_len {max_seq_len}"
        return f"{loss_tokens[row]} loss tokens{cut}; legal: at least min_loss_tokens {min_loss_tokens}"

    left_out: dict[str, list[int]] = {}
    examples: dict[str, str] = {}
    columns = (index.bad[name].to_pylist() for name in ("row_number", "reason", "message"))
    for number, reason, message in zip(*columns, strict=True):
        left_out.setdefault(reason, []).append(number)
        examples.setdefault(reason, message)
    for reason, flags in ((PAST_VOCABULARY, past), (EMPTY, empty), (TOO_FEW_LOSS_TOKENS, poor)):
        rows = np.flatnonzero(flags)
        if rows.size:
            left_out[reason] = index.row_numbers[rows].tolist()
            examples[reason] = f"{index.place(rows[0])}: {say(reason, rows[0])}"
    if past.any() and on_bad_row == "error":
        raise ValueError(f'{examples[PAST_VOCABULARY]}; on_bad_row="skip" leaves bad rows out and counts them')
    kept = np.flatnonzero(~(past | empty | poor))
    return Selection(
        kept=kept, lengths=lengths[kept], loss_tokens=loss_tokens[kept], left_out=left_out, examples=examples
    )
