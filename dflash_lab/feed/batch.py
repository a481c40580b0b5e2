"""The value that the feed gives: one batch of samples as tensors, padded or packed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

LAYOUTS = ("padded", "packed")


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Samples that the target sees in one pass.

    In the padded layout every sample has a row of its own (R = D), filled up on the right. In the packed layout all
    samples lie one after the other in a single row (R = 1), and `document_ids` keeps them apart.

    Args:
        input_ids: int64 (R, T), 0 where there is no token.
        attention_mask: bool (R, T), True where a token is real; by position, never by id.
        loss_mask: bool (R, T), True where a token is supervised; never outside a sample.
        lengths: int64 (D,), tokens of each sample after the cut.
        sample_ids: int64 (D,), each sample's number in the data set.
        rows: int64 (D,), the row that each sample lies in.
        starts: int64 (D,), the column of its first token.
        layout: "padded" or "packed".
        position_ids: int64 (1, T) of a packed row: position inside the sample, 0 behind the last one; None when padded.
        document_ids: int64 (1, T) of a packed row: index of the sample in `lengths`, -1 behind the last one; None when
            padded.
        batch_id: Its number in the epoch's plan; -1 for loose samples.
        bucket_id: Its bucket; -1 where there are none.
        epoch: Number of the epoch that it is part of.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    loss_mask: torch.Tensor
    lengths: torch.Tensor
    sample_ids: torch.Tensor
    rows: torch.Tensor
    starts: torch.Tensor
    layout: str = "padded"
    position_ids: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    batch_id: int = -1
    bucket_id: int = -1
    epoch: int = 0

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    @property
    def real_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths.sum())

    @property
    def padded_tokens(self) -> int:
        """Tokens with padding: rows * width."""
        return self.input_ids.numel()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Give the batch with all its tensors on a device.

        Args:
            device: Where to.
            non_blocking: Do not wait for copies from pinned memory.

        Returns:
            A batch; tensors that are there already are shared.
        """
        moved = {
            entry.name: value.to(device, non_blocking=non_blocking)
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), torch.Tensor)
        }
        return replace(self, **moved)

    def __repr__(self) -> str:
        """One line, whatever the size."""
        shape = "x".join(map(str, self.input_ids.shape))
        return (
            f"Batch({self.batch_id} of epoch {self.epoch}, {self.layout} {shape}, {self.num_samples} samples, "
            f"{self.real_tokens:,} real tokens, {self.input_ids.device})"
        )
