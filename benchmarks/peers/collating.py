"""Other ways to bring samples into padded tensors: the source run's, and what PyTorch and Hugging Face offer.

All of them read the same Arrow stream, and each gives, batch after batch, a dict of tensors (R, T): input_ids int64,
attention_mask bool, loss_mask bool (the padding collator gives no loss mask, and its attention mask as whole numbers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from dflash_lab.data import PreloadedDataset, Sample, builtin_tokenizer

Tensors = dict[str, torch.Tensor]
Plan = Sequence[list[int]]
# A `with` of a large DataLoader would wait this long for a worker that has died, in seconds.
_WORKER_TIMEOUT_SECONDS = 300


def write_stream(path: Path, lengths: np.ndarray, *, seed: int = 0) -> None:
    """Write random tokens with these lengths as an Arrow stream, which all ways read in place; 1,000 samples a batch.

    Args:
        path: The file.
        lengths: Whole numbers (num_samples,), in tokens.
        seed: Seed of ids and masks.
    """
    rng = np.random.default_rng(seed)
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.uint8())})
    with pa.ipc.new_stream(str(path), schema) as writer:
        for begin in range(0, len(lengths), 1_000):
            offsets = np.concatenate([[0], np.cumsum(lengths[begin : begin + 1_000])]).astype(np.int32)
            ids = rng.integers(0, 150_000, offsets[-1], dtype=np.int32)
            mask = (rng.random(offsets[-1]) < 0.6).astype(np.uint8)
            # A sample without a loss token is no sample.
            mask[offsets[1:] - 1] = 1
            lists = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)) for values in (ids, mask)]
            writer.write_batch(pa.record_batch(lists, schema=schema))


def open_hf(path: Path) -> object:
    """Map the stream as a Hugging Face data set."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets

    return datasets.Dataset.from_file(str(path))


def source_way(path: Path, plan: Plan) -> Callable[[], Iterator[Tensors]]:
    """The source run's way: a Python list of each sample, a tensor of each list, then padding."""
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_stream(file).read_all()
    chunks = table.to_batches()
    ends = np.cumsum([chunk.num_rows for chunk in chunks])

    def batches() -> Iterator[Tensors]:
        for batch in plan:
            rows = []
            for sample_id in batch:
                at = int(np.searchsorted(ends, sample_id, side="right"))
                row = sample_id - int(ends[at - 1] if at else 0)
                rows.append({name: chunks[at].column(name)[row].as_py() for name in ("input_ids", "loss_mask")})
            ids = [torch.tensor(row["input_ids"]) for row in rows]
            masks = [torch.tensor(row["loss_mask"]) for row in rows]
            yield padded(ids, masks)

    return batches


def hf_collator_way(path: Path, plan: Plan) -> Callable[[], Iterator[Tensors]]:
    """Rows of a Hugging Face data set through `DataCollatorWithPadding`; the ids only, it pads no loss mask."""
    from transformers import DataCollatorWithPadding

    dataset = open_hf(path).select_columns(["input_ids"])  # type: ignore[attr-defined]
    collator = DataCollatorWithPadding(builtin_tokenizer())

    def batches() -> Iterator[Tensors]:
        for batch in plan:
            columns = dataset[batch]
            yield collator([{"input_ids": ids} for ids in columns["input_ids"]])

    return batches


def torch_format_loader(path: Path, plan: Plan, *, num_workers: int) -> Callable[[], Iterable[Tensors]]:
    """A `DataLoader` over the torch format of a Hugging Face data set, padded by `pad_sequence`."""
    dataset = open_hf(path).with_format("torch")  # type: ignore[attr-defined]
    return _loader(dataset, plan, _pad_rows, num_workers)


def numpy_loader(dataset: PreloadedDataset, plan: Plan, *, num_workers: int) -> Callable[[], Iterable[Tensors]]:
    """A `DataLoader` over our samples (a copy each), put row by row into tensors that are there already."""
    return _loader(dataset, plan, copy_rows, num_workers)


def hf_numpy_loader(path: Path, plan: Plan, *, num_workers: int) -> Callable[[], Iterable[Tensors]]:
    """The same over the numpy format of a Hugging Face data set."""
    dataset = open_hf(path).with_format("numpy")  # type: ignore[attr-defined]
    return _loader(dataset, plan, _copy_hf_rows, num_workers)


def copy_rows(samples: Sequence[Sample]) -> Tensors:
    """Put samples into tensors that are made once a batch."""
    return _copied([sample.input_ids for sample in samples], [sample.loss_mask for sample in samples])


def padded(ids: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> Tensors:
    """Pad with `pad_sequence`; the attention mask is made of the lengths."""
    lengths = torch.tensor([len(row) for row in ids])
    input_ids = pad_sequence(list(ids), batch_first=True)  # (R, T)
    return {
        "input_ids": input_ids,
        "attention_mask": torch.arange(input_ids.shape[1]) < lengths[:, None],
        "loss_mask": pad_sequence(list(masks), batch_first=True).bool(),
    }


def _copied(ids: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> Tensors:
    shape = len(ids), max(map(len, ids))
    input_ids = np.zeros(shape, np.int64)
    attention_mask, loss_mask = np.zeros(shape, bool), np.zeros(shape, bool)
    for row, (tokens, mask) in enumerate(zip(ids, masks, strict=True)):
        input_ids[row, : len(tokens)] = tokens
        attention_mask[row, : len(tokens)] = True
        loss_mask[row, : len(tokens)] = mask
    arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "loss_mask": loss_mask}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _copy_hf_rows(rows: Sequence[dict[str, np.ndarray]]) -> Tensors:
    return _copied([row["input_ids"] for row in rows], [row["loss_mask"] for row in rows])


def _pad_rows(rows: Sequence[Tensors]) -> Tensors:
    return padded([row["input_ids"] for row in rows], [row["loss_mask"] for row in rows])


def _loader(dataset: object, plan: Plan, collate: Callable, num_workers: int) -> Callable[[], Iterable[Tensors]]:
    """A loader whose workers stay from epoch to epoch, so that only the first one pays for their start."""
    if not num_workers:
        return partial(iter, DataLoader(dataset, batch_sampler=plan, collate_fn=collate))  # type: ignore[arg-type]
    loader = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=plan,
        collate_fn=collate,
        num_workers=num_workers,
        persistent_workers=True,
        # Forked workers would inherit the locks of polars' threads.
        multiprocessing_context="spawn",
        timeout=_WORKER_TIMEOUT_SECONDS,
    )
    return partial(iter, loader)
