"""Batches of a plan, read from a data set one at a time, by any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_lab.batching import BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.feed.batch import Batch
from dflash_lab.feed.layout import BatchLayout, SampleTokens
from dflash_lab.feed.samples import check_tokens

# Ways to read a data set, the fastest first.
_WAYS = ("token_views_of", "token_views", "__getitem__")


@dataclass
class ReadPlace:
    """Which sample is being read, for whoever has to say where an error arose.

    Args:
        sample_id: The sample; None between samples.
    """

    sample_id: int | None = None


class PlanReader:
    """Makes the batches of one plan; safe to use from several threads at once.

    Args:
        dataset: See `BatchPrefetcher`.
        plan: One epoch.
        pin_memory: Whether the tensors are pinned.

    Raises:
        ValueError: If the plan is broken, or was not made from this data set.
    """

    def __init__(self, dataset: Any, plan: BatchPlan, *, pin_memory: bool) -> None:
        check_belongs(plan, dataset)
        self.plan = plan
        way = way_to_read(dataset)
        self._read_all = dataset.token_views_of if way == "token_views_of" else None
        self._read_one = dataset.token_views if way == "token_views" else _fields_of(dataset)
        # Only our own store is known to give what it was asked for.
        self._is_trusted = isinstance(dataset, PreloadedDataset)
        self._widths = plan.widths if plan.layout == "padded" else np.full(len(plan), plan.config.token_budget)
        self._layout = BatchLayout(plan.layout, pin_memory=pin_memory)

    def read(self, batch_id: int, place: ReadPlace) -> Batch:
        """Read one batch.

        Args:
            batch_id: Its number in the plan.
            place: Told which sample is being read.

        Returns:
            The batch, in memory of its own.

        Raises:
            ValueError: If a sample is not what the plan was made from.
            Exception: Whatever reading raises.
        """
        begin, end = self.plan.offsets[batch_id : batch_id + 2].tolist()
        sample_ids = self.plan.sample_ids[begin:end]
        lengths = self.plan.sample_lengths[begin:end].astype(np.int64)
        many = self._many if self._read_all else self._one_by_one
        ids, masks = many(sample_ids, lengths, place)
        return self._layout.fill(
            SampleTokens(input_ids=ids, loss_masks=masks, lengths=lengths, sample_ids=sample_ids),
            int(self._widths[batch_id]),
            batch_id=batch_id,
            bucket_id=int(self.plan.bucket_ids[batch_id]),
            epoch=self.plan.epoch,
        )

    def _many(
        self, sample_ids: np.ndarray, lengths: np.ndarray, place: ReadPlace
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        try:
            views = self._read_all(sample_ids, lengths)
        except BaseException:
            place.sample_id = self._first_bad(sample_ids, lengths)
            raise
        if self._is_trusted:
            return views.input_ids, views.loss_masks
        given = zip(views.input_ids, views.loss_masks, strict=True)
        return self._checked(given, sample_ids, lengths, place)

    def _first_bad(self, sample_ids: np.ndarray, lengths: np.ndarray) -> int | None:
        """Find the sample that cannot be read by itself; None where each can."""
        for at, sample_id in enumerate(sample_ids.tolist()):
            try:
                self._read_all(sample_ids[at : at + 1], lengths[at : at + 1])
            except BaseException:
                return sample_id
        return None

    def _one_by_one(
        self, sample_ids: np.ndarray, lengths: np.ndarray, place: ReadPlace
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return self._checked(map(self._read_one, sample_ids.tolist()), sample_ids, lengths, place)

    def _checked(
        self,
        given: Iterator[tuple[object, object]],
        sample_ids: np.ndarray,
        lengths: np.ndarray,
        place: ReadPlace,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Take samples one by one, each checked and cut."""
        checked = []
        for sample_id, length in zip(sample_ids.tolist(), lengths.tolist(), strict=True):
            place.sample_id = sample_id
            ids, mask = next(given)
            checked.append(check_tokens(ids, mask, name=f"sample {sample_id}", length=length))
        place.sample_id = None
        return [tokens.input_ids for tokens in checked], [tokens.loss_mask for tokens in checked]


def way_to_read(dataset: Any) -> str:
    """Choose how to read: what the object itself or its most derived class defines, the fastest of it.

    So a subclass that changes how one sample is read is read in its own way, not past it.

    Raises:
        ValueError: If there is no way.
    """
    own = vars(dataset) if hasattr(dataset, "__dict__") else {}
    # Python looks `dataset[i]` up in the class alone.
    places = [own.keys() - {"__getitem__"}, *map(vars, type(dataset).__mro__)]
    for names in places:
        found = [way for way in _WAYS if way in names]
        if found:
            return found[0]
    # Wrappers may pass every name on without defining one.
    passed_on = [way for way in _WAYS[:2] if hasattr(dataset, way)]
    if passed_on:
        return passed_on[0]
    raise ValueError(f"dataset is a {type(dataset).__name__}; legal: a data set with one of {', '.join(_WAYS)}")


def check_belongs(plan: object, dataset: Any) -> None:
    """Check that a plan is whole and can have been made from a data set.

    Raises:
        ValueError: If it is not; the message names the first sample or batch.
    """
    if not isinstance(plan, BatchPlan):
        raise ValueError(f"plan is a {type(plan).__name__}; legal: a BatchPlan, such as dataset.build_batches gives")
    sizes = plan.batch_sizes
    whole = len(plan.offsets) == len(plan) + 1 == len(plan.bucket_ids) + 1 and len(plan.sample_ids) == len(
        plan.sample_lengths
    )
    if not (len(plan) and whole and plan.offsets[0] == 0 and plan.offsets[-1] == len(plan.sample_ids)):
        raise ValueError(f"broken plan: {plan!r} has no batches, or arrays that do not agree")
    _first(sizes < 1, lambda at: f"broken plan: batch {at} has no samples")
    _first(plan.sample_lengths < 1, lambda at: f"broken plan: sample {plan.sample_ids[at]} has no tokens")
    if plan.layout == "packed":
        held, most = plan.real_tokens_by_batch, np.full(len(plan), plan.config.token_budget)
    else:
        held, most = np.maximum.reduceat(plan.sample_lengths, plan.offsets[:-1]), plan.widths
    _first(held > most, lambda at: f"broken plan: batch {at} has {held[at]} tokens in a row of {most[at]}")
    foreign = "the plan was made from other data"
    if isinstance(dataset, Sized):
        num_samples = len(dataset)
        _first(
            (plan.sample_ids < 0) | (plan.sample_ids >= num_samples),
            lambda at: f"sample {plan.sample_ids[at]} is not among the data set's {num_samples} samples: {foreign}",
        )
    if hasattr(dataset, "lengths"):
        known = np.asarray(dataset.lengths)
        if known.ndim != 1 or known.dtype.kind not in "iu" or len(known) <= plan.sample_ids.max():
            raise ValueError(
                f"lengths of the data set is {known.dtype} {known.shape}; legal: whole numbers, one a sample"
            )
        lengths = known[plan.sample_ids]
        _first(
            plan.sample_lengths > lengths,
            lambda at: (
                f"sample {plan.sample_ids[at]} has {lengths[at]} tokens, and {plan.sample_lengths[at]} "
                f"in the plan: {foreign}"
            ),
        )


def _first(broken: np.ndarray, message: Callable[[int], str]) -> None:
    if broken.any():
        raise ValueError(message(int(np.argmax(broken))))


def _fields_of(dataset: Any) -> Callable[[int], tuple[object, object]]:
    def read(sample_id: int) -> tuple[object, object]:
        sample = dataset[sample_id]
        return sample.input_ids, sample.loss_mask

    return read
