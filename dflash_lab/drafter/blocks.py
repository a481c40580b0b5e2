"""Where samples lie in a batch, and the draft blocks that are opened in them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Where each sample of a padded or packed batch lies in its (R, T) tensors.

    Sample d is `row rows[d], columns starts[d] : starts[d] + lengths[d]`; what lies outside is padding.

    Args:
        rows: int64 (D,), >= 0.
        starts: int64 (D,), >= 0; all 0 in a padded batch.
        lengths: int64 (D,), tokens, >= 1.

    Raises:
        ValueError: If dtypes or shapes do not fit.
    """

    rows: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor

    def __post_init__(self) -> None:
        for name in ("rows", "starts", "lengths"):
            _check(name, getattr(self, name), torch.int64, (len(self.lengths),))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    @classmethod
    def padded(cls, lengths: torch.Tensor) -> Documents:
        """Describe a padded batch: each sample has a row of its own, from column 0.

        Args:
            lengths: int64 (D,), tokens.
        """
        return cls(
            rows=torch.arange(len(lengths), device=lengths.device),
            starts=torch.zeros_like(lengths),
            lengths=lengths,
        )

    @classmethod
    def packed(cls, lengths: torch.Tensor) -> Documents:
        """Describe a packed row: samples one after the other.

        Args:
            lengths: int64 (D,), tokens.
        """
        return cls(rows=torch.zeros_like(lengths), starts=lengths.cumsum(0) - lengths, lengths=lengths)

    def to(self, device: torch.device | str) -> Documents:
        """Give the same on a device."""
        return Documents(**{entry.name: getattr(self, entry.name).to(device) for entry in fields(self)})


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftBlocks:
    """Draft blocks of a batch, sample after sample; slot k of a block stands at the position anchor + k.

    Args:
        documents: int64 (N,), index of the sample that each block is part of, never decreasing.
        anchors: int64 (N,), position of slot 0 inside the sample, increasing within a sample.
        input_ids: int64 (N, block_size): the anchor's own token, then the mask token.
        labels: int64 (N, block_size): the token at anchor + k, 0 where it is not scored.
        scored: bool (N, block_size), True where slot k > 0 lies in the sample and is supervised.

    Raises:
        ValueError: If dtypes or shapes do not fit.
    """

    documents: torch.Tensor
    anchors: torch.Tensor
    input_ids: torch.Tensor
    labels: torch.Tensor
    scored: torch.Tensor

    def __post_init__(self) -> None:
        num_blocks = len(self.anchors)
        if self.input_ids.ndim != 2:
            raise ValueError(f"input_ids has the shape {tuple(self.input_ids.shape)}; legal: (blocks, block_size)")
        shape = (num_blocks, self.input_ids.shape[1])
        _check("documents", self.documents, torch.int64, (num_blocks,))
        _check("anchors", self.anchors, torch.int64, (num_blocks,))
        _check("input_ids", self.input_ids, torch.int64, shape)
        _check("labels", self.labels, torch.int64, shape)
        _check("scored", self.scored, torch.bool, shape)

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.anchors)

    @property
    def block_size(self) -> int:
        """Slots of a block, the anchor included."""
        return self.input_ids.shape[1]

    @property
    def positions(self) -> torch.Tensor:
        """Position of each slot inside its sample: int64 (N, block_size)."""
        return self.anchors[:, None] + torch.arange(self.block_size, device=self.anchors.device)

    def to(self, device: torch.device | str) -> DraftBlocks:
        """Give the same on a device."""
        return DraftBlocks(**{entry.name: getattr(self, entry.name).to(device) for entry in fields(self)})


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; legal: {dtype} {shape}")
