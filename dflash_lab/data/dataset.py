"""Memory-mapped samples with random access, and all their lengths at hand."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from dflash_lab.batching import BatchingConfig, BatchPlan, plan_epoch
from dflash_lab.data.columns import canonical_columns
from dflash_lab.data.files import find_files
from dflash_lab.data.hf import tables_of
from dflash_lab.data.index import SourceIndex, open_index
from dflash_lab.data.mapped import TokenViews
from dflash_lab.data.options import Options, check_options
from dflash_lab.data.paths import printable
from dflash_lab.data.readers import blocks_of_rows, blocks_of_tables
from dflash_lab.data.report import report_of
from dflash_lab.data.rows import RowBlock
from dflash_lab.data.selection import select_rows
from dflash_lab.data.spill import Spill
from dflash_lab.data.store import write_samples


@dataclass(frozen=True)
class Sample:
    """One sample, a copy of its own.

    Args:
        input_ids: int64 (L,).
        loss_mask: bool (L,), True where a token is supervised.
        sample_id: Its number in the data set.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    sample_id: int


class PreloadedDataset:
    """Samples of one source, numbered from 0 in the order of the source; made by `open` or one of the `from_` forms.

    Lengths and loss tokens are known without reading a token; a sample is read from the memory map when it is asked
    for, at a cost of its own length.

    Attributes:
        lengths: int32 (n,), tokens after the cut to `max_seq_len`.
        loss_tokens: int32 (n,), supervised tokens after the cut.
        row_numbers: int64 (n,), row of the source that each sample was, from 0.
        sources: Series of text or null (n,), or None where the source names none.
        report: What was read and what was left out, a `DataReport`.
        fingerprint: Names the content: equal samples, cut in the same way, have equal fingerprints in any format.
        max_seq_len: The cut, or None.
        max_id: Largest id among the samples, before the cut.
    """

    def __init__(
        self,
        index: SourceIndex,
        *,
        name: str,
        max_seq_len: int | None,
        vocab_size: int | None,
        min_loss_tokens: int,
        on_bad_row: str,
        ignored_files: tuple[str, ...] = (),
    ) -> None:
        self._index = index
        self.max_seq_len = max_seq_len
        chosen = select_rows(
            index,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
            min_loss_tokens=min_loss_tokens,
            on_bad_row=on_bad_row,
        )
        kept = chosen.kept
        if not kept.size:
            raise ValueError(f"{name} holds no samples: {chosen.why_nothing_is_left(index.num_rows)}")
        self._rows = index.token_rows[kept]
        self.lengths = _frozen(chosen.lengths)
        self.loss_tokens = _frozen(chosen.loss_tokens)
        self.row_numbers = _frozen(index.row_numbers[kept])
        self.max_id = int(index.max_ids[kept].max())
        self.sources = _sources(index.sources, kept)
        self.fingerprint = self._fingerprint(index.digests[kept])
        self.report = report_of(index, chosen, name=name, ignored_files=ignored_files)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        split: str | None = None,
        columns: Mapping[str, str | None] | None = None,
        max_seq_len: int | None = None,
        vocab_size: int | None = None,
        min_loss_tokens: int = 1,
        on_bad_row: str = "error",
    ) -> PreloadedDataset:
        """Open a file or folder of tokenised samples.

        Reads JSONL (also .gz and .zst), Parquet, Arrow IPC files and streams, folders written by `save_to_disk`, and
        folders of mixed shards. The first open streams the source once, checks every row and writes an index beside it
        (in the folder .dflash_lab, or under DFLASH_LAB_CACHE, or in the user's cache where the source is read-only);
        later opens read no tokens. A source that is replaced is noticed at the next open, and when a data set is
        unpickled; a file must not be written over in place while a data set reads it, since Arrow files are read where
        they stand, and lengths would no longer be theirs.

        Of a folder every shard is read, in the order of their names, those in subfolders and behind links too. Names
        that begin with a dot or an underscore are not data; a .json file is data if its first line is an object with a
        token column. `report.ignored_files` lists what was not read.

        Args:
            path: File or folder.
            split: Split of a saved DatasetDict, or of a folder with names such as train-0.parquet and test-0.parquet;
                splits are never mixed.
            columns: Our names -> the names in the data, for input_ids, loss_mask, length and source; None for length
                or source: not in the data. A name that is given must be there.
            max_seq_len: Samples are cut to this many tokens, ids and mask alike; None cuts nothing.
            vocab_size: Ids at or past it make a row bad.
            min_loss_tokens: A sample with fewer supervised tokens after the cut is left out and counted; >= 0.
            on_bad_row: "error" stops at the first bad row, "skip" leaves bad rows out and counts them by reason.

        Returns:
            The data set.

        Raises:
            FileNotFoundError: If the path does not exist.
            ValueError: If a file is cut off, foreign or without the columns; if a row is bad, naming file, physical
                line or row, field and value; or if no sample is left.
        """
        options = check_options(
            max_seq_len=max_seq_len, vocab_size=vocab_size, min_loss_tokens=min_loss_tokens, on_bad_row=on_bad_row
        )
        names = canonical_columns(columns)
        source = find_files(path, split=split, columns=names)
        index = open_index(source, names, stop_at_bad_row=on_bad_row == "error")
        ignored = tuple(printable(file.relative_to(source.path)) for file in source.ignored)
        return cls(index, name=str(source.path), ignored_files=ignored, **options)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, object]],
        *,
        columns: Mapping[str, str | None] | None = None,
        max_seq_len: int | None = None,
        vocab_size: int | None = None,
        min_loss_tokens: int = 1,
        on_bad_row: str = "error",
    ) -> PreloadedDataset:
        """Make a data set of mappings, such as dicts with `input_ids` and `loss_mask`.

        The rows are read once and kept in a temporary store that goes with the data set. Arguments and errors as
        `open`.
        """
        options = check_options(
            max_seq_len=max_seq_len, vocab_size=vocab_size, min_loss_tokens=min_loss_tokens, on_bad_row=on_bad_row
        )
        names = canonical_columns(columns)
        return cls._spill(blocks_of_rows(rows, names, name="the given rows"), names, "the given rows", options)

    @classmethod
    def from_arrow(
        cls,
        table: pa.Table | pa.RecordBatch,
        *,
        columns: Mapping[str, str | None] | None = None,
        max_seq_len: int | None = None,
        vocab_size: int | None = None,
        min_loss_tokens: int = 1,
        on_bad_row: str = "error",
    ) -> PreloadedDataset:
        """Make a data set of an Arrow table, chunked however; arguments and errors as `open`.

        The rows are copied once into a temporary store that goes with the data set.
        """
        options = check_options(
            max_seq_len=max_seq_len, vocab_size=vocab_size, min_loss_tokens=min_loss_tokens, on_bad_row=on_bad_row
        )
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise ValueError(f"table is a {type(table).__name__}; legal: a pyarrow Table or RecordBatch")
        names = canonical_columns(columns)
        return cls._spill(blocks_of_tables([table], names, name="the given table"), names, "the given table", options)

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        *,
        split: str | None = None,
        columns: Mapping[str, str | None] | None = None,
        max_seq_len: int | None = None,
        vocab_size: int | None = None,
        min_loss_tokens: int = 1,
        on_bad_row: str = "error",
    ) -> PreloadedDataset:
        """Make a data set of the rows that a Hugging Face `datasets.Dataset` shows: selected, shuffled, or all.

        The rows are copied once into a temporary store that goes with the data set. A DatasetDict needs `split`.
        Other arguments and errors as `open`.
        """
        options = check_options(
            max_seq_len=max_seq_len, vocab_size=vocab_size, min_loss_tokens=min_loss_tokens, on_bad_row=on_bad_row
        )
        names = canonical_columns(columns)
        blocks = blocks_of_tables(tables_of(dataset, split), names, name="the given data set")
        return cls._spill(blocks, names, "the given data set", options)

    @classmethod
    def _spill(
        cls, blocks: Iterator[RowBlock], columns: Mapping[str, str | None], name: str, options: Options
    ) -> PreloadedDataset:
        """Write blocks to a temporary store, which goes when the data set does."""
        spill = Spill(blocks, columns, stop_at_bad_row=options["on_bad_row"] == "error", name=name)
        try:
            dataset = cls(spill.index, name=name, **options)
        except BaseException:
            spill.remove()
            raise
        spill.remove_with(dataset)
        return dataset

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    def __getitem__(self, sample_id: int) -> Sample:
        """Read one sample, as a copy.

        Raises:
            IndexError: If there is no such sample.
            TypeError: If it is not a single whole number.
        """
        try:
            number = range(len(self))[operator.index(sample_id)]
        except TypeError:
            raise TypeError(f"sample_id is {sample_id!r}; legal: a single whole number, no slice or list") from None
        except IndexError:
            raise IndexError(f"sample_id is {sample_id}; legal: a whole number in [0, {len(self)})") from None
        ids, mask = self.token_views(number)
        return Sample(ids.astype(np.int64), mask.astype(bool), number)

    def __iter__(self) -> Iterator[Sample]:
        """Read the samples one after the other."""
        return map(self.__getitem__, range(len(self)))

    def token_views(self, sample_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Give one sample's tokens in the map itself, for whoever copies them on.

        Args:
            sample_id: In [0, len).

        Returns:
            Ids and mask, both (L,), cut, in the store's own number types; not to be written or kept.
        """
        length = self.lengths[sample_id]
        ids, mask = self._index.tokens.row(int(self._rows[sample_id]))
        return ids[:length], mask[:length]

    def token_views_of(self, sample_ids: np.ndarray, lengths: np.ndarray) -> TokenViews:
        """Give many samples' tokens in the map itself, at the cost of two slices each.

        Args:
            sample_ids: int64 (n,), each in [0, len).
            lengths: Whole numbers (n,), tokens to give of each sample, at most those in `self.lengths`.

        Raises:
            ValueError: If there is no such sample, or it has fewer tokens.
        """
        unknown = (sample_ids < 0) | (sample_ids >= len(self))
        short = unknown if unknown.any() else lengths > self.lengths[sample_ids]
        if short.any():
            first = int(np.argmax(short))
            asked = f"{lengths[first]} tokens of sample {sample_ids[first]}"
            raise ValueError(f"{asked}; legal: samples in [0, {len(self)}), up to the tokens that `lengths` gives")
        return self._index.tokens.rows(self._rows[sample_ids], lengths)

    def save(self, path: str | Path) -> None:
        """Write the samples, as they were cut, to a token store of their own.

        Args:
            path: ".arrow" (read in place) or ".parquet"; written aside and renamed whole.
        """
        sources = [None] * len(self) if self.sources is None else self.sources.to_list()
        rows = (
            {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask, "source": source}
            for sample, source in zip(self, sources, strict=True)
        )
        write_samples(path, rows)

    def build_batches(self, config: BatchingConfig, *, epoch: int) -> BatchPlan:
        """Plan one epoch over these samples.

        Args:
            config: The settings; of its `max_seq_len` and the data set's the smaller holds.
            epoch: Number of the epoch, >= 0.

        Returns:
            The plan.

        Raises:
            ValueError: As `plan_epoch`, and if the config's cut would leave a sample without loss tokens.
        """
        bare = self.bare_after_cut(config.max_seq_len)
        if bare.size:
            raise ValueError(
                f"sample {bare[0]} has no loss token left after the cut to the config's max_seq_len "
                f"{config.max_seq_len} ({bare.size} such samples); open the data set with "
                f"max_seq_len={config.max_seq_len}, which leaves them out"
            )
        return plan_epoch(self.lengths, config, epoch=epoch)

    def bare_after_cut(self, max_seq_len: int) -> np.ndarray:
        """Find samples that have loss tokens, but none among their first `max_seq_len`: int64 sample ids."""
        if max_seq_len >= self.lengths.max():
            return np.arange(0)
        within = self._index.loss_tokens_within(max_seq_len)
        rows = np.searchsorted(self._index.row_numbers, self.row_numbers)
        return np.flatnonzero((within[rows] == 0) & (self.loss_tokens > 0))

    def __repr__(self) -> str:
        """One line, whatever the size."""
        return (
            f"PreloadedDataset({self.report.name}, {len(self):,} samples, {self.report.num_kept_tokens:,} tokens, "
            f"{self.report.num_left_out:,} rows left out, {self.fingerprint})"
        )

    def _fingerprint(self, digests: np.ndarray) -> str:
        digest = blake2b(f"samples 1 cut {self.max_seq_len}".encode(), digest_size=16)
        digest.update(self.lengths.astype("<i4").tobytes())
        digest.update(digests.astype("<u8").tobytes())
        return digest.hexdigest()


def _sources(sources: pa.DictionaryArray, kept: np.ndarray) -> pl.Series | None:
    if sources.null_count == len(sources):
        return None
    return pl.Series("source", pa.array(sources.dictionary).take(sources.indices.take(pa.array(kept))))


def _frozen(array: np.ndarray) -> np.ndarray:
    array = array.view()
    array.flags.writeable = False
    return array
