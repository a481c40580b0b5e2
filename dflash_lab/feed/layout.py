"""How tokens lie in a batch: every sample in a row of its own, or all in one row."""

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
        pin_memory: Whether the tensors are pinned.
    """

    def __init__(self, layout: str, *, pin_memory: bool) -> None:
        self.layout = layout
        self._pin_memory = pin_memory

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
        input_ids, loss_mask, attention_mask = (
            self._empty(num_rows, width, dtype) for dtype in (torch.int64, torch.bool, torch.bool)
        )  # (R, T)
        lay_out = _lay_end_to_end if packed else _lay_in_rows
        lay_out(tokens.input_ids, tokens.lengths, input_ids)
        lay_out(tokens.loss_masks, tokens.lengths, loss_mask)
        ends = tokens.lengths.sum(keepdims=True) if packed else tokens.lengths
        # Narrow numbers compare several times as fast as int64.
        narrow = np.int16 if width < 2**15 else np.int32
        np.less(np.arange(width, dtype=narrow), ends.astype(narrow)[:, None], out=attention_mask.numpy())
        starts = np.cumsum(tokens.lengths) - tokens.lengths if packed else np.zeros(num_samples, np.int64)
        return Batch(
            input_ids=input_ids,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
            lengths=self._tensor(tokens.lengths),
            sample_ids=self._tensor(tokens.sample_ids),
            rows=self._tensor(np.zeros(num_samples, np.int64) if packed else np.arange(num_samples)),
            starts=self._tensor(starts),
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

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        tensor = torch.empty(len(values), dtype=torch.int64, pin_memory=self._pin_memory)  # (D,)
        tensor.numpy()[:] = values
        return tensor


def _lay_in_rows(parts: Sequence[np.ndarray], lengths: np.ndarray, out: torch.Tensor) -> None:
    rows = out.numpy()
    # One assignment for all padding costs less than one a row, though it also clears what is written next.
    rows[:, lengths.min() :] = 0
    for row, part, length in zip(rows, parts, lengths.tolist(), strict=True):
        row[:length] = part


def _lay_end_to_end(parts: Sequence[np.ndarray], lengths: np.ndarray, out: torch.Tensor) -> None:
    row = out.numpy()[0]
    num_tokens = lengths.sum()
    row[num_tokens:] = 0
    np.concatenate(parts, out=row[:num_tokens], casting="same_kind")
