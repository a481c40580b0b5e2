"""Peers that pad each batch to its longest sample."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from peers.registry import Batches, Peer
from peers.source_way import pack_in_order


def hugging_face(
    lengths: np.ndarray, token_budget: int, cap: int, seed: int, *, batch_size: int, greedy: bool
) -> Callable[[], Batches]:
    """`LengthGroupedSampler` orders the samples; cut into equal batches, or packed greedily to the budget."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    listed = lengths.tolist()

    def plan() -> Batches:
        generator = torch.Generator().manual_seed(seed)
        order = list(LengthGroupedSampler(batch_size, lengths=listed, generator=generator))
        if greedy:
            return pack_in_order(order, listed, token_budget, cap)
        return [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]

    return plan


@dataclass(slots=True)
class Text:
    """What lhotse's text sampling asks of a sample, and what it writes on it."""

    id: int
    num_tokens: int
    dataloading_info: object = None


def lhotse(lengths: np.ndarray, token_budget: int, cap: int, seed: int, *, num_buckets: int) -> Callable[[], Batches]:
    """`DynamicBucketingSampler` with its own bounds, under a `TokenConstraint`."""
    from lhotse.dataset import DynamicBucketingSampler
    from lhotse.dataset.sampling.base import TokenConstraint

    texts = [Text(sample, length) for sample, length in enumerate(lengths.tolist())]

    def plan() -> Batches:
        sampler = DynamicBucketingSampler(
            texts,
            constraint=TokenConstraint(max_tokens=token_budget, max_examples=cap),
            num_buckets=num_buckets,
            shuffle=True,
            seed=seed,
            world_size=1,
            rank=0,
        )
        return [[text.id for text in batch] for batch in sampler]

    return plan


def fairseq(lengths: np.ndarray, token_budget: int, cap: int, seed: int, *, multiple: int) -> Callable[[], Batches]:
    """`batch_by_size` on samples sorted by length, ties in random order, as fairseq's datasets do."""
    from fairseq.data.data_utils import batch_by_size

    wide = lengths.astype(np.int64)

    def plan() -> Batches:
        shuffled = np.random.default_rng(seed).permutation(len(wide))
        order = shuffled[np.argsort(wide[shuffled], kind="mergesort")]
        return batch_by_size(
            order,
            num_tokens_fn=None,
            num_tokens_vec=wide[order],
            max_tokens=token_budget,
            max_sentences=cap,
            required_batch_size_multiple=multiple,
        )

    return plan


def torchtext(lengths: np.ndarray, token_budget: int, cap: int, seed: int) -> Callable[[], Batches]:
    """`pool`: a shuffle in chunks of a hundred batches, sorted and packed inside a chunk."""
    from torchtext.data import pool

    listed = lengths.tolist()
    # A sample counts as at least this long, so that the cap is kept by the budget.
    least = token_budget // cap

    def plan() -> Batches:
        rng = random.Random(seed)
        longest = 0

        def padded_size(sample: int, count: int, size_so_far: int) -> int:
            nonlocal longest
            longest = max(listed[sample], least) if count == 1 else max(longest, listed[sample])
            return longest * count

        order = list(range(len(listed)))
        rng.shuffle(order)
        return list(
            pool(
                order,
                token_budget,
                key=listed.__getitem__,
                batch_size_fn=padded_size,
                random_shuffler=lambda batches: rng.sample(batches, len(batches)),
                shuffle=True,
                sort_within_batch=True,
            )
        )

    return plan


def torchdata(lengths: np.ndarray, token_budget: int, cap: int, seed: int) -> Callable[[], Batches]:
    """`max_token_bucketize` with its own buffer of 1,000, padding included."""
    from torchdata.datapipes.iter import IterableWrapper, MaxTokenBucketizer

    listed = lengths.tolist()

    def plan() -> Batches:
        order = list(range(len(listed)))
        random.Random(seed).shuffle(order)
        with warnings.catch_warnings():
            # It warns that a local function cannot be pickled; nothing here is.
            warnings.simplefilter("ignore")
            source = IterableWrapper(order, deepcopy=False)
            return list(MaxTokenBucketizer(source, token_budget, len_fn=listed.__getitem__, include_padding=True))

    return plan


PADDED_PEERS = (
    Peer(
        name="HF LengthGroupedSampler, batch 6",
        package="transformers",
        prepare=partial(hugging_face, batch_size=6, greedy=False),
        remark="6 of the longest fit the budget",
    ),
    Peer(
        name="HF LengthGroupedSampler, batch 20, packed greedily",
        package="transformers",
        prepare=partial(hugging_face, batch_size=20, greedy=True),
        remark="neighbours alike: windows all long, then all short",
    ),
    Peer(
        name="lhotse DynamicBucketingSampler, 6 buckets",
        package="lhotse",
        prepare=partial(lhotse, num_buckets=6),
        slow=True,
        remark="streaming: sees a buffer of 20,000",
    ),
    Peer(
        name="lhotse DynamicBucketingSampler, 30 buckets",
        package="lhotse",
        prepare=partial(lhotse, num_buckets=30),
        slow=True,
        remark="streaming: sees a buffer of 20,000",
    ),
    Peer(
        name="fairseq batch_by_size, multiple of 1",
        package="fairseq-fixed",
        prepare=partial(fairseq, multiple=1),
        remark="compiled; composes only ties anew",
    ),
    Peer(
        name="fairseq batch_by_size, multiple of 8",
        package="fairseq-fixed",
        prepare=partial(fairseq, multiple=8),
        remark="compiled; composes only ties anew",
    ),
    Peer(name="torchtext pool", package="torchtext==0.6.0", prepare=torchtext, remark="gone from later releases"),
    Peer(
        name="torchdata MaxTokenBucketizer",
        package="torchdata==0.9.0",
        prepare=torchdata,
        remark="knows no cap; gone from later releases",
    ),
)
