"""Who shares a batch: the strategies, and the epoch's plan made with one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dflash_lab.batching.bounds import bucket_of, check_lengths, equal_token_bounds
from dflash_lab.batching.config import BatchingConfig, whole_number
from dflash_lab.batching.order import order_batches
from dflash_lab.batching.plan import BatchPlan

# The source run had six buckets; a plan without given bounds takes as many.
DEFAULT_NUM_BUCKETS = 6


@dataclass(frozen=True)
class _Packing:
    """Batches in the order in which they were built: batch b holds `members[offsets[b]:offsets[b + 1]]`."""

    members: np.ndarray
    offsets: np.ndarray
    bucket_ids: np.ndarray


def plan_epoch(lengths: object, config: BatchingConfig, *, epoch: int) -> BatchPlan:
    """Plan the batches of one epoch.

    The plan is a pure function of the arguments; no global generator is read or moved.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut to `config.max_seq_len`.
        config: The settings.
        epoch: Number of the epoch, >= 0; another epoch has another composition (except "as_given" and "sorted") and
            another order (except "as_built").

    Returns:
        The plan; every sample is in exactly one batch, or in `left_out` with the reason.

    Raises:
        ValueError: If a length is not legal, a sample alone exceeds the budget (and `on_oversize` is "error"), or no
            sample is left.

    Example:
        >>> config = BatchingConfig(strategy="as_given", order="as_built", token_budget=144, max_seq_len=128)
        >>> list(plan_epoch([96, 12, 12, 12, 96], config, epoch=0))
        [[0], [1, 2, 3], [4]]
    """
    epoch = whole_number("epoch", epoch, least=0)
    cut = np.minimum(check_lengths(lengths), config.max_seq_len)
    sample_ids, left_out = _within_budget(cut, config)
    usable = cut if len(sample_ids) == len(cut) else cut[sample_ids]
    if config.strategy == "bucketed" and config.bucket_bounds is None:
        config = replace(config, bucket_bounds=equal_token_bounds(usable, DEFAULT_NUM_BUCKETS))

    rng = np.random.default_rng((config.seed, epoch))
    packing = _PACK[config.strategy](usable, config, rng)
    order = _order(packing, usable, config, rng)

    sizes = np.diff(packing.offsets)[order]
    offsets = _offsets(sizes)
    shift = packing.offsets[:-1][order] - offsets[:-1]
    members = packing.members[np.arange(len(packing.members)) + np.repeat(shift, sizes)]
    sample_lengths = usable[members].astype(np.int32)
    return BatchPlan(
        sample_ids=sample_ids[members],
        offsets=offsets,
        bucket_ids=packing.bucket_ids[order],
        widths=np.maximum.reduceat(sample_lengths, offsets[:-1]),
        sample_lengths=sample_lengths,
        config=config,
        epoch=epoch,
        left_out=left_out,
    )


class EpochBatchSampler:
    """Lists of sample ids, one a batch, with a new plan for every epoch.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens.
        config: The settings of every epoch's plan.
        rank: This process's number, in [0, world_size).
        world_size: Processes that share the epoch.
        mode: What happens to the batches that do not divide by the ranks, see `BatchPlan.shard`.

    Raises:
        ValueError: As `plan_epoch` and `BatchPlan.shard`.
    """

    def __init__(
        self, lengths: object, config: BatchingConfig, *, rank: int = 0, world_size: int = 1, mode: str = "drop"
    ) -> None:
        self._lengths = check_lengths(lengths)
        self._config = config
        self._shard = {"rank": rank, "world_size": world_size, "mode": mode}
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Take the plan of another epoch (>= 0) from the next iteration on."""
        self.plan = plan_epoch(self._lengths, self._config, epoch=epoch).shard(**self._shard)

    def __len__(self) -> int:
        """Number of batches of this epoch and rank."""
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        """Give each batch's sample ids."""
        return iter(self.plan)


def _within_budget(cut: np.ndarray, config: BatchingConfig) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Sample ids that fit the budget alone, and those that do not."""
    oversize = np.flatnonzero(cut > config.token_budget)
    if not oversize.size:
        return np.arange(len(cut)), {}
    if config.on_oversize == "error":
        first = oversize[0]
        raise ValueError(
            f"sample {first} has {cut[first]} tokens after the cut to max_seq_len {config.max_seq_len}, more than "
            f"token_budget {config.token_budget} ({oversize.size} such samples); raise token_budget, lower "
            f'max_seq_len, or leave such samples out with on_oversize="drop"'
        )
    if oversize.size == len(cut):
        raise ValueError(f"no sample is left: all {len(cut)} are longer than token_budget {config.token_budget}")
    return np.flatnonzero(cut <= config.token_budget), {"over_budget": oversize}


def _order(packing: _Packing, lengths: np.ndarray, config: BatchingConfig, rng: np.random.Generator) -> np.ndarray:
    """The order in which batches are seen: int64 (num_batches,)."""
    starts, sizes = packing.offsets[:-1], np.diff(packing.offsets)
    of_members = lengths[packing.members]
    order = order_batches(config.order, packing.bucket_ids, np.add.reduceat(of_members, starts) / sizes, rng)
    if config.longest_first:
        padded = (np.maximum.reduceat(of_members, starts) * sizes)[order]
        heaviest = np.argsort(-padded, kind="stable")[: config.longest_first]
        order = np.concatenate([order[heaviest], np.delete(order, heaviest)])
    return order


def _pack_as_given(lengths: np.ndarray, config: BatchingConfig, rng: np.random.Generator) -> _Packing:
    """Pack in the order of the data: the reference for cases worked by hand."""
    return _pack(np.arange(len(lengths)), lengths, config)


def _pack_sorted(lengths: np.ndarray, config: BatchingConfig, rng: np.random.Generator) -> _Packing:
    """Pack from the longest to the shortest, which gives the fewest batches; the same batches every epoch."""
    return _pack(np.argsort(-lengths, kind="stable"), lengths, config)


def _pack_random(lengths: np.ndarray, config: BatchingConfig, rng: np.random.Generator) -> _Packing:
    """Pack a full shuffle: the freest composition, and the most padding."""
    return _pack(rng.permutation(len(lengths)), lengths, config)


def _pack_bucketed(lengths: np.ndarray, config: BatchingConfig, rng: np.random.Generator) -> _Packing:
    """Pack a shuffle of each bucket; no batch mixes buckets."""
    assert config.bucket_bounds is not None
    shuffled = rng.permutation(len(lengths))
    buckets = bucket_of(lengths, config.bucket_bounds)[shuffled]
    by_bucket = np.argsort(buckets, kind="stable")
    return _pack(shuffled[by_bucket], lengths, config, buckets[by_bucket])


_PACK = {"as_given": _pack_as_given, "sorted": _pack_sorted, "random": _pack_random, "bucketed": _pack_bucketed}


def _pack(
    members: np.ndarray, lengths: np.ndarray, config: BatchingConfig, buckets: np.ndarray | None = None
) -> _Packing:
    """Cut a sequence of samples into batches, each as long as the budget allows.

    The cost of a batch is its size times its longest sample so far, whatever the order of the lengths.
    """
    ends = np.full(len(members), len(members))
    if buckets is not None:
        ends = np.searchsorted(buckets, buckets, side="right")
    counts = _fitting(lengths[members], ends, config.token_budget, config.max_batch_size).tolist()
    starts, at = [], 0
    while at < len(members):
        starts.append(at)
        at += counts[at]
    offsets = np.asarray([*starts, len(members)], dtype=np.int64)
    bucket_ids = np.full(len(starts), -1, dtype=np.int16) if buckets is None else buckets[offsets[:-1]]
    return _Packing(members, offsets, bucket_ids)


def _fitting(lengths: np.ndarray, ends: np.ndarray, token_budget: int, max_batch_size: int) -> np.ndarray:
    """How many samples fit into a batch that begins at each place: int64 (n,), at least 1.

    For all places at once, by halving steps over running maxima of 1, 2, 4, ... neighbours: a Python loop over
    samples takes twelve times as long.
    """
    most = min(max_batch_size, len(lengths), token_budget // int(lengths.min()))
    longest = [lengths]
    while 2 ** len(longest) <= most:
        half, step = longest[-1], 2 ** (len(longest) - 1)
        longest.append(np.maximum(half[:-step], half[step:]))
    places = np.arange(len(lengths))
    limits = np.minimum(ends - places, most)
    counts = np.zeros(len(lengths), dtype=np.int64)
    maxima = np.zeros(len(lengths), dtype=np.int64)
    for level in range(len(longest) - 1, -1, -1):
        grown = counts + 2**level
        at = np.minimum(places + counts, len(longest[level]) - 1)
        widths = np.maximum(maxima, longest[level][at])
        fits = (grown <= limits) & (grown * widths <= token_budget)
        counts = np.where(fits, grown, counts)
        maxima = np.where(fits, widths, maxima)
    return counts


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """Begin of each batch and the end of the last: int64 (num_batches + 1,)."""
    return np.concatenate([[0], np.cumsum(sizes)])
