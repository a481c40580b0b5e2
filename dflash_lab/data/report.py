"""What was read, what was left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash_lab.data.index import SourceIndex
from dflash_lab.data.selection import Selection


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """Counts of one opened data set.

    Args:
        name: What was opened.
        num_rows: Rows in the source, bad ones included.
        num_samples: Rows kept as samples.
        left_out: Reason -> row numbers of the source, from 0.
        num_tokens: Tokens of all rows that could be read, uncut.
        num_loss_tokens: Supervised tokens among them.
        num_kept_tokens: Tokens of the samples after the cut to `max_seq_len`.
        num_kept_loss_tokens: Supervised tokens among them.
        num_zero_loss_rows: Rows that could be read and have no supervised token, uncut.
        num_cut: Samples that were cut.
        num_repeats: Samples whose ids and mask an earlier sample has too; none is removed.
        ignored_files: What else lies in the folder and was not read: files without samples, other splits.
        examples: Reason -> message of the first row left out for it.
    """

    name: str
    num_rows: int
    num_samples: int
    left_out: dict[str, list[int]]
    num_tokens: int
    num_loss_tokens: int
    num_kept_tokens: int
    num_kept_loss_tokens: int
    num_zero_loss_rows: int
    num_cut: int
    num_repeats: int
    ignored_files: tuple[str, ...] = ()
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def num_left_out(self) -> int:
        """Rows that are no sample, for any reason."""
        return sum(map(len, self.left_out.values()))

    @property
    def num_distinct(self) -> int:
        """Samples that differ in ids or mask from all earlier ones."""
        return self.num_samples - self.num_repeats

    @property
    def zero_loss_share(self) -> float:
        """Rows without a supervised token / rows, in [0, 1]."""
        return self.num_zero_loss_rows / max(self.num_rows, 1)

    @property
    def loss_token_share(self) -> float:
        """Supervised tokens / tokens of all rows that could be read, in [0, 1]."""
        return self.num_loss_tokens / max(self.num_tokens, 1)

    def __str__(self) -> str:
        """Some lines of text, whatever the size."""
        lines = [
            f"{self.name}: {self.num_samples:,} samples of {self.num_rows:,} rows, {self.num_kept_tokens:,} tokens",
            f"  supervised: {self.num_kept_loss_tokens:,} of them; in all rows {self.num_loss_tokens:,} of "
            f"{self.num_tokens:,} tokens ({self.loss_token_share:.1%}); rows without any: {self.num_zero_loss_rows:,} "
            f"({self.zero_loss_share:.1%})",
            f"  cut: {self.num_cut:,} samples, {self.num_distinct:,} distinct, {self.num_repeats:,} repeats",
        ]
        for reason, rows in self.left_out.items():
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            lines.append(f"  left out, {reason}: {len(rows):,} rows ({shown}); first: {self.examples.get(reason, '')}")
        if self.ignored_files:
            more = ", ..." if len(self.ignored_files) > 5 else ""
            lines.append(
                f"  not read: {', '.join(self.ignored_files[:5])}{more} ({len(self.ignored_files)} in the folder)"
            )
        return "\n".join(lines)


def report_of(index: SourceIndex, chosen: Selection, *, name: str, ignored_files: tuple[str, ...] = ()) -> DataReport:
    """Count what a selection of a source's rows keeps and leaves out.

    Args:
        index: The source's index.
        chosen: From `select_rows`.
        name: What was opened.
        ignored_files: What was not read.
    """
    return DataReport(
        name=name,
        num_rows=index.num_rows,
        num_samples=len(chosen.kept),
        left_out=chosen.left_out,
        num_tokens=int(index.lengths.sum(dtype=np.int64)),
        num_loss_tokens=int(index.loss_tokens.sum(dtype=np.int64)),
        num_kept_tokens=int(chosen.lengths.sum(dtype=np.int64)),
        num_kept_loss_tokens=int(chosen.loss_tokens.sum(dtype=np.int64)),
        num_zero_loss_rows=int(np.count_nonzero(index.loss_tokens == 0)),
        num_cut=int(np.count_nonzero(index.lengths[chosen.kept] > chosen.lengths)),
        num_repeats=int(np.count_nonzero(index.repeats[chosen.kept])),
        ignored_files=ignored_files,
        examples=chosen.examples,
    )
