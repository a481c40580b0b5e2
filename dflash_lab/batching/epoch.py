"""The plan of an epoch, and the sampler that makes one for every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from dflash_lab.batching.bounds import check_lengths, equal_token_bounds
from dflash_lab.batching.config import BatchingConfig, whole_number
from dflash_lab.batching.draws import Draws
from dflash_lab.batching.order import order_batches
from dflash_lab.batching.plan import BatchPlan
from dflash_lab.batching.strategies import PACK

# The source run had six buckets; a plan without given bounds takes as many.
DEFAULT_NUM_BUCKETS = 6


def plan_epoch(lengths: object, config: BatchingConfig, *, epoch: int) -> BatchPlan:
    """Plan the batches of one epoch.

    The plan is a pure function of the arguments, the same under any numpy version; no global generator is read or
    moved.

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
    left_out = _over_budget(cut, config)
    # None where every sample is planned: an array of all numbers would be the largest thing here.
    sample_ids = np.delete(np.arange(len(cut)), left_out["over_budget"]) if left_out else None
    usable = cut if sample_ids is None else cut[sample_ids]
    if config.strategy == "bucketed" and config.bucket_bounds is None:
        config = replace(config, bucket_bounds=equal_token_bounds(usable, DEFAULT_NUM_BUCKETS))

    draws = Draws(config.seed, epoch)
    packing = PACK[config.strategy](usable, config, draws)
    order = order_batches(packing, usable, config, draws)

    sizes = np.diff(packing.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.repeat(packing.offsets[:-1][order] - offsets[:-1], sizes)
    places += np.arange(len(places))
    members = packing.members[places]
    del places
    sample_lengths = usable[members].astype(np.int32)
    if config.strategy == "packed":
        layout, widths = "packed", np.full(len(sizes), config.token_budget)
    else:
        layout, widths = "padded", np.maximum.reduceat(sample_lengths, offsets[:-1])
    arrays = {
        "sample_ids": members if sample_ids is None else sample_ids[members],
        "offsets": offsets,
        "bucket_ids": packing.bucket_ids[order],
        "widths": widths.astype(np.int32),
        "sample_lengths": sample_lengths,
    }
    for array in arrays.values():
        # What cannot be written to is taken over by the plan without a copy.
        array.flags.writeable = False
    return BatchPlan(**arrays, config=config, epoch=epoch, left_out=left_out, layout=layout)


class EpochBatchSampler:
    """Lists of sample ids, one a batch, with a new plan for every epoch.

    Serves as `batch_sampler` of a `torch.utils.data.DataLoader`. Call `set_epoch` before each epoch.

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
        self._ahead: tuple[int, Future[BatchPlan]] | None = None
        self.plan = self._make(0)

    def __getstate__(self) -> dict[str, object]:
        """Leave out the plan that is being built ahead: a thread cannot be copied, and the plan can be made again."""
        return {**self.__dict__, "_ahead": None}

    def set_epoch(self, epoch: int) -> None:
        """Take the plan of another epoch (>= 0) from the next iteration on; the one built ahead, if it is that one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == epoch:
            self.plan = ahead[1].result()
        elif epoch != self.plan.epoch:
            self.plan = self._make(epoch)

    def plan_ahead(self, epoch: int) -> None:
        """Begin to build the plan of a coming epoch (>= 0) in the background; `set_epoch` waits for it."""
        epoch = whole_number("epoch", epoch, least=0)
        pool = ThreadPoolExecutor(1, thread_name_prefix="plan-ahead")
        self._ahead = (epoch, pool.submit(self._make, epoch))
        pool.shutdown(wait=False)

    def __len__(self) -> int:
        """Number of batches of this epoch and rank."""
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        """Give each batch's sample ids."""
        return iter(self.plan)

    def _make(self, epoch: int) -> BatchPlan:
        return plan_epoch(self._lengths, self._config, epoch=epoch).shard(**self._shard)


def _over_budget(cut: np.ndarray, config: BatchingConfig) -> dict[str, np.ndarray]:
    """Sample ids that do not fit the budget alone, as the plan's `left_out`."""
    oversize = np.flatnonzero(cut > config.token_budget)
    if not oversize.size:
        return {}
    if config.on_oversize == "error":
        first = oversize[0]
        raise ValueError(
            f"sample {first} has {cut[first]} tokens after the cut to max_seq_len {config.max_seq_len}, more than "
            f"token_budget {config.token_budget} ({oversize.size} such samples); raise token_budget, lower "
            f'max_seq_len, or leave such samples out with on_oversize="drop"'
        )
    if oversize.size == len(cut):
        raise ValueError(f"no sample is left: all {len(cut)} are longer than token_budget {config.token_budget}")
    return {"over_budget": oversize}
