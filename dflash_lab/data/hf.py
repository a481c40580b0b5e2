"""Rows of Hugging Face data sets that are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from dflash_lab.data.rows import BLOCK_ROWS


def tables_of(dataset: Any, split: str | None) -> Iterator[pa.Table]:
    """Give the rows that a `datasets.Dataset` shows, as Arrow tables.

    Args:
        dataset: A Dataset, or a DatasetDict.
        split: The split of a DatasetDict.

    Raises:
        ValueError: If it is something else, the split is not there, or a transform would not be applied.
    """
    if isinstance(dataset, Mapping):
        if split not in dataset:
            raise ValueError(f"the given DatasetDict has the splits {', '.join(map(repr, dataset))}; name one as split")
        dataset = dataset[split]
    elif split is not None:
        raise ValueError(f"split is {split!r}, but the given data set is one split already; leave split out")
    if not (hasattr(dataset, "with_format") and hasattr(dataset, "iter")):
        raise ValueError(f"dataset is a {type(dataset).__name__}; legal: a datasets.Dataset or DatasetDict")
    if hasattr(dataset, "format") and dataset.format["type"] == "custom":
        raise ValueError(
            "dataset has a transform (set_transform or with_transform), which is not applied here; legal: rows as they "
            "are stored: call map to keep what the transform makes, or with_format(None) to leave it out"
        )
    return dataset.with_format("arrow").iter(batch_size=BLOCK_ROWS)
