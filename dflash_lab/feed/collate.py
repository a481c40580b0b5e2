"""Loose samples to one batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_lab.batching.config import whole_number
from dflash_lab.data import Sample
from dflash_lab.feed.batch import LAYOUTS, Batch
from dflash_lab.feed.layout import BatchLayout, SampleTokens
from dflash_lab.feed.pinning import resolve_pin_memory
from dflash_lab.feed.samples import check_tokens


def collate(
    samples: Sequence[Sample],
    *,
    pin_memory: bool | str = False,
    pad_to_multiple_of: int = 1,
    layout: str = "padded",
    batch_id: int = -1,
    bucket_id: int = -1,
    epoch: int = 0,
) -> Batch:
    """Pad samples to the longest of them, or pack them into one row.

    Padding stands on the right, and masks are made of the lengths, never of an id. No tensor shares memory with a
    sample. Serves as the `collate_fn` of a `DataLoader` over a data set.

    Args:
        samples: At least one.
        pin_memory: Whether the tensors are pinned; "auto": where there is an accelerator.
        pad_to_multiple_of: The width is rounded up to a multiple of this; >= 1.
        layout: "padded": a row a sample. "packed": one row, as wide as all samples together, with `position_ids` and
            `document_ids`.
        batch_id: Number of the batch, -1 for none.
        bucket_id: Number of the bucket, -1 for none.
        epoch: Number of the epoch, >= 0.

    Returns:
        The batch.

    Raises:
        ValueError: If there are no samples, a sample is empty or its ids and mask differ in length, or another argument
            is not legal.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; legal: {', '.join(LAYOUTS)}")
    multiple = whole_number("pad_to_multiple_of", pad_to_multiple_of, least=1)
    numbers = {
        "batch_id": whole_number("batch_id", batch_id, least=-1),
        "bucket_id": whole_number("bucket_id", bucket_id, least=-1),
        "epoch": whole_number("epoch", epoch, least=0),
    }
    if not len(samples):
        raise ValueError("samples is empty; legal: at least one sample")
    checked = [
        check_tokens(sample.input_ids, sample.loss_mask, name=f"sample {sample.sample_id} (number {place} given)")
        for place, sample in enumerate(samples)
    ]
    lengths = np.array([len(tokens.input_ids) for tokens in checked], np.int64)
    tokens = SampleTokens(
        input_ids=[tokens.input_ids for tokens in checked],
        loss_masks=[tokens.loss_mask for tokens in checked],
        lengths=lengths,
        sample_ids=np.array([sample.sample_id for sample in samples], np.int64),
    )
    least = int(lengths.sum() if layout == "packed" else lengths.max())
    width = -(-least // multiple) * multiple
    pages = BatchLayout(layout, pin_memory=resolve_pin_memory(pin_memory))
    return pages.fill(tokens, width, **numbers)
