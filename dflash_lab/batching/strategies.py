"""Who shares a batch: the strategies, each a packing of the epoch's samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dflash_lab.batching.bounds import bucket_of
from dflash_lab.batching.config import BatchingConfig
from dflash_lab.batching.draws import Draws, stable_order
from dflash_lab.batching.packing import Packing, pack, without_buckets
from dflash_lab.batching.rows import pack_rows

# Up to here a table with an entry a length is smaller and faster than sorting the lengths.
_LONGEST_TABLE = 2**22


def _pack_as_given(lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> Packing:
    """Pack in the order of the data: the reference for cases worked by hand."""
    return pack(np.arange(len(lengths)), lengths, config)


def _pack_sorted(lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> Packing:
    """Pack from the longest to the shortest, which gives the fewest batches; the same batches every epoch."""
    return pack(stable_order(lengths.max() - lengths), lengths, config, descending=True)


def _pack_random(lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> Packing:
    """Pack a full shuffle: the freest composition, and the most padding."""
    return pack(draws.permutation(len(lengths)), lengths, config)


def _pack_bucketed(lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> Packing:
    """Pack a shuffle of each bucket; no batch mixes buckets."""
    assert config.bucket_bounds is not None
    buckets = bucket_of(lengths, config.bucket_bounds)
    members = draws.shuffle_within(buckets.view(np.uint16))
    return pack(members, lengths, config, segments=buckets[members])


def _pack_capacity(lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> Packing:
    """Pack classes of samples of which equally many fit, shuffled inside a class at no cost in batches.

    A class is the number of samples of one's length that fit, so any n samples of class n fit a batch. From the longest
    class on, a batch that the rest of a class does not fill is filled up from the next, of shorter samples. So each
    batch has as many samples as its longest one allows, which gives the fewest batches there can be. Cuts at length
    quantiles, shifted by chance every epoch, keep lengths alike inside a batch.
    """
    distinct, place, counts = _by_length(lengths)
    sizes = np.minimum(config.token_budget // distinct, config.max_batch_size)
    last_of_class = np.append(sizes[1:] != sizes[:-1], True)
    last_of_part = last_of_class.copy()
    if config.num_cuts:
        last_of_part[_cuts(np.cumsum(counts), np.flatnonzero(last_of_class), config.num_cuts, draws)] = True
    parts = np.cumsum(last_of_part[::-1])[::-1] - 1
    members = draws.shuffle_within(parts.astype(np.uint16 if parts[0] < 2**16 else np.uint32)[place])

    ends = np.cumsum(counts[::-1])
    starts, at = [], 0
    for last in np.flatnonzero(last_of_class)[::-1].tolist():
        # Number of samples in this class and all longer ones.
        first = np.searchsorted(sizes[::-1], sizes[last], side="right")
        num_batches = -(-(int(ends[first - 1]) - at) // int(sizes[last]))
        starts.append(at + sizes[last] * np.arange(num_batches))
        at += int(sizes[last]) * num_batches
    offsets = np.append(np.concatenate(starts), len(members))
    return Packing(members, offsets, without_buckets(len(offsets) - 1))


def _cuts(up_to: np.ndarray, last_of_class: np.ndarray, num_cuts: int, draws: Draws) -> np.ndarray:
    """Places, among the distinct lengths, behind which a class is cut: as many in a class as its share of the samples.

    A class with less than its share for one is narrow enough as it is; cutting it would only make its samples meet
    more often.

    Args:
        up_to: int64 (n,), samples of this distinct length and shorter ones.
        last_of_class: int64, the last distinct length of each class.
        num_cuts: Cuts in all, about.
        draws: The epoch's random numbers; one is drawn, by how much the cuts are shifted.
    """
    ends = up_to[last_of_class]
    sizes = np.diff(ends, prepend=0)
    shares = sizes * num_cuts // up_to[-1]
    of_cut = np.repeat(np.arange(len(sizes)), shares)
    number = np.arange(len(of_cut)) - np.repeat(np.cumsum(shares) - shares, shares)
    quantiles = (number + draws.uniform(1)) / shares[of_cut]
    return np.searchsorted(up_to, (ends - sizes)[of_cut] + quantiles * sizes[of_cut])


def _pack_pooled(lengths: np.ndarray, config: BatchingConfig, draws: Draws) -> Packing:
    """Cut a shuffle into pools, and pack each from its longest sample to its shortest."""
    shuffled = draws.permutation(len(lengths))
    pools = np.arange(len(lengths)) // config.pool_size
    # Stable, the longest first, then by pool: sorted inside each pool.
    descending = stable_order(lengths.max() - lengths[shuffled])
    by_pool = descending[stable_order(pools[descending])]
    return pack(shuffled[by_pool], lengths, config, segments=pools, descending=True)


PACK: dict[str, Callable[[np.ndarray, BatchingConfig, Draws], Packing]] = {
    "as_given": _pack_as_given,
    "sorted": _pack_sorted,
    "random": _pack_random,
    "bucketed": _pack_bucketed,
    "capacity": _pack_capacity,
    "pooled": _pack_pooled,
    "packed": pack_rows,
}


def _by_length(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct lengths, shortest first; each sample's place among them; samples of each."""
    if lengths.max() > _LONGEST_TABLE:
        return np.unique(lengths, return_inverse=True, return_counts=True)
    counts = np.bincount(lengths)
    distinct = np.flatnonzero(counts)
    table = np.zeros(len(counts), dtype=np.int32)
    table[distinct] = np.arange(len(distinct))
    return distinct, table[lengths], counts[distinct]
