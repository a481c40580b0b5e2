"""How tokens lie in a batch: every sample in a row of its own, or all in one row.

Each tensor is filled by one concatenation of views, padding included: it writes every byte once, and costs less a
sample than two assignments into a row would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_lab.feed.batch import Batch


@dataclass(frozen=True, kw_only=True)
class SampleTokens:
    """The tokens of one batch's samples, cut, in arrays that are copied on and not kept.

    Args:
        input_ids: Whole numbers (L_d,) of each sample, of any integer type.
        loss_masks: bool (L_d,) of each sample.
        lengths: int64 (D,).
        sample_ids: int64 (D,).
    """

    input_ids: Sequence[np.ndarray]
    loss_masks: Sequence[np.ndarray]
    lengths: np.ndarray
    sample_ids: np.ndarray


class BatchLayout:
    """Puts samples into new tensors, none of which shares memory with what they are read from.

    Args:
        layout: "padded" or "packed".
        most_width: Most columns of a batch.
        pin_memory: Whether the tensors are pinned.
    """

    def __init__(self, layout: str, *, most_width: int, pin_memory: bool) -> None:
        self.layout = layout
        self._pin_memory = pin_memory
        self._padding = np.zeros(most_width, np.int32)
        self._no_loss = np.zeros(most_width, bool)
        # Narrow numbers compare several times as fast as int64.
        self._columns = np.arange(most_width, dtype=np.int16 if most_width < 2**15 else np.int32)

    def fill(self, tokens: SampleTokens, width: int, *, batch_id: int, bucket_id: int, epoch: int) -> Batch:
        """Lay out one batch.

        Args:
            tokens: The samples.
            width: Columns: at least the longest sample when padded, at least the sum of the lengths when packed.
            batch_id: See `Batch`, as the next two.
            bucket_id: Its bucket.
            epoch: Its epoch.

        Returns:
            The batch.
        """
        packed = self.layout == "packed"
        num_samples = len(tokens.lengths)
        num_rows = 1 if packed else num_samples
        # What follows each sample: the rest of its row, or, packed, nothing until the last one.
        gaps = np.zeros(num_samples, np.int64) if packed else width - tokens.lengths
        if packed:
            gaps[-1] = width - tokens.lengths.sum()
        gaps_list = gaps.tolist()
        input_ids, loss_mask, attention_mask = (
            self._empty(num_rows, width, dtype) for dtype in (torch.int64, torch.bool, torch.bool)
        )  # (R, T)
        _lay_out(tokens.input_ids, self._padding, gaps_list, input_ids)
        _lay_out(tokens.loss_masks, self._no_loss, gaps_list, loss_mask)
        ends = tokens.lengths.sum(keepdims=True) if packed else tokens.lengths
        columns = self._columns[:width]
        np.less(columns, ends.astype(columns.dtype)[:, None], out=attention_mask.numpy())
        starts = np.cumsum(tokens.lengths) - tokens.lengths if packed else np.zeros(num_samples, np.int64)
        # In one tensor, since making one costs as much as filling it.
        numbers = self._empty(4, num_samples, torch.int64)  # (4, D)
        rows = 0 if packed else np.arange(num_samples)
        for row, values in zip(numbers.numpy(), (tokens.lengths, tokens.sample_ids, rows, starts), strict=True):
            row[:] = values
        lengths, sample_ids, rows_of_samples, starts_of_samples = numbers.unbind()
        return Batch(
            input_ids=input_ids,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
            lengths=lengths,
            sample_ids=sample_ids,
            rows=rows_of_samples,
            starts=starts_of_samples,
            layout=self.layout,
            position_ids=self._positions(tokens.lengths, starts, width) if packed else None,
            document_ids=self._documents(tokens.lengths, width) if packed else None,
            batch_id=batch_id,
            bucket_id=bucket_id,
            epoch=epoch,
        )

    def _positions(self, lengths: np.ndarray, starts: np.ndarray, width: int) -> torch.Tensor:
        positions = self._empty(1, width, torch.int64)  # (1, T)
        inside = positions.numpy()[0]
        num_tokens = lengths.sum()
        np.subtract(np.arange(num_tokens), np.repeat(starts, lengths), out=inside[:num_tokens])
        inside[num_tokens:] = 0
        return positions

    def _documents(self, lengths: np.ndarray, width: int) -> torch.Tensor:
        documents = self._empty(1, width, torch.int64)  # (1, T)
        row = documents.numpy()[0]
        num_tokens = lengths.sum()
        row[:num_tokens] = np.repeat(np.arange(len(lengths)), lengths)
        row[num_tokens:] = -1
        return documents

    def _empty(self, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(num_rows, width, dtype=dtype, pin_memory=self._pin_memory)  # (R, T)


def _lay_out(parts: Sequence[np.ndarray], padding: np.ndarray, gaps: list[int], out: torch.Tensor) -> None:
    pieces = [piece for part, gap in zip(parts, gaps, strict=True) for piece in (part, padding[:gap])]
    np.concatenate(pieces, out=out.view(-1).numpy(), casting="same_kind")
