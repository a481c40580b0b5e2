"""The plan of one epoch: an immutable value with its laws."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dflash_lab.batching.config import BatchingConfig, whole_number
from dflash_lab.batching.sharding import deal_batches

LAYOUTS = ("padded", "packed")
SHARD_MODES = ("drop", "repeat")


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchPlan:
    """Which samples form which batch, in the order in which the batches are seen, for one epoch.

    `len(plan)` is the number of batches, `plan[i]` an int64 array of sample ids, and iteration gives lists, so that a
    plan serves as the `batch_sampler` of a `torch.utils.data.DataLoader` for its epoch. All arrays are read-only.

    Args:
        sample_ids: int64 (num_planned,), batch after batch.
        offsets: int64 (num_batches + 1,); batch i is `sample_ids[offsets[i]:offsets[i + 1]]`.
        bucket_ids: int16 (num_batches,), -1 where the strategy has no buckets.
        widths: int32 (num_batches,), the padded width: the longest sample of the batch, in tokens.
        sample_lengths: int32 (num_planned,), tokens after the cut, beside `sample_ids`.
        config: The settings, bucket bounds filled in.
        epoch: Number of the epoch.
        left_out: Reason -> int64 sample ids that are in no batch of this plan.
        repeated: int64 sample ids of this rank's batches that another rank has as well, after `shard` with "repeat".
        layout: "padded" (a batch costs size * longest) or "packed" (a row costs the budget).
    """

    sample_ids: np.ndarray
    offsets: np.ndarray
    bucket_ids: np.ndarray
    widths: np.ndarray
    sample_lengths: np.ndarray
    config: BatchingConfig
    epoch: int
    left_out: Mapping[str, np.ndarray] = field(default_factory=dict)
    repeated: np.ndarray = field(default_factory=lambda: np.arange(0))
    layout: str = "padded"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}; legal: {', '.join(LAYOUTS)}")
        for name, dtype in _ARRAYS.items():
            object.__setattr__(self, name, _owned(name, getattr(self, name), dtype))
        left_out = {
            reason: _owned(f"left_out[{reason!r}]", ids, np.int64) for reason, ids in self.left_out.items() if len(ids)
        }
        object.__setattr__(self, "left_out", MappingProxyType(left_out))
        object.__setattr__(self, "repeated", _owned("repeated", self.repeated, np.int64))

    def __getstate__(self) -> dict[str, object]:
        """Give the fields alone: a mapping proxy cannot be pickled, and cached totals are cheap."""
        state = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {**state, "left_out": dict(self.left_out)}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take the fields, with arrays that cannot be written again."""
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.widths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Give the sample ids of one batch: int64 (batch size,)."""
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of a plan with {len(self)} batches")
        index %= len(self)
        return self.sample_ids[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[list[int]]:
        """Give each batch as a list of sample ids."""
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.sample_ids[begin:end].tolist()

    def __eq__(self, other: object) -> bool:
        """Two plans are equal when they hold the same batches in the same order, made by the same settings."""
        if not isinstance(other, BatchPlan):
            return NotImplemented
        return (self.fingerprint, self.config, self.epoch) == (other.fingerprint, other.config, other.epoch)

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """One line, whatever the size."""
        return (
            f"BatchPlan(epoch {self.epoch}, {self.config.strategy}/{self.config.order}, {len(self):,} batches, "
            f"{len(self.sample_ids):,} samples, padding efficiency {self.padding_efficiency:.3f}, "
            f"budget use {self.budget_use:.3f}, {self.num_left_out:,} left out)"
        )

    @property
    def batch_sizes(self) -> np.ndarray:
        """Samples in each batch: int64 (num_batches,)."""
        return np.diff(self.offsets)

    @property
    def padded_tokens_by_batch(self) -> np.ndarray:
        """Cost of each batch, padding included, in tokens: int64 (num_batches,)."""
        if self.layout == "packed":
            return np.full(len(self), self.config.token_budget, dtype=np.int64)
        return self.batch_sizes * self.widths.astype(np.int64)

    @property
    def real_tokens_by_batch(self) -> np.ndarray:
        """Tokens of each batch without padding: int64 (num_batches,)."""
        return np.add.reduceat(self.sample_lengths.astype(np.int64), self.offsets[:-1])

    @cached_property
    def real_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.sample_lengths.sum(dtype=np.int64))

    @cached_property
    def padded_tokens(self) -> int:
        """Tokens with padding."""
        return int(self.padded_tokens_by_batch.sum())

    @property
    def padding_efficiency(self) -> float:
        """Real / padded tokens, in (0, 1]."""
        return self.real_tokens / self.padded_tokens

    @property
    def budget_use(self) -> float:
        """Real tokens / (batches * budget), in (0, 1]; also counts the corner that no further sample fits into."""
        return self.real_tokens / (len(self) * self.config.token_budget)

    @property
    def num_left_out(self) -> int:
        """Samples that are in no batch of this plan."""
        return sum(map(len, self.left_out.values()))

    @cached_property
    def fingerprint(self) -> str:
        """Names the content: the same batches in the same order have the same fingerprint."""
        digest = blake2b(f"plan 1 {self.layout}".encode(), digest_size=16)
        for name, dtype in _ARRAYS.items():
            array = np.asarray(getattr(self, name), dtype=np.dtype(dtype).newbyteorder("<"))
            digest.update(f" {name} {len(array)} ".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def shard(self, rank: int, world_size: int, *, mode: str = "drop") -> BatchPlan:
        """Deal the batches to ranks, the same number to each.

        Whole accumulation windows are dealt, so that every rank's windows have the mix that the order gave them, and
        batch j of a step is the j-th of its window on every rank: where the order has strata, the ranks' batches are of
        one stratum and take alike. Of each `world_size` windows the dearest goes to the rank that has had the least
        padded tokens so far. Batches that fill no more windows are dealt one by one.

        Args:
            rank: This rank, in [0, world_size).
            world_size: Number of ranks, >= 1.
            mode: What to do when the batches do not divide by the ranks. "drop" leaves the last few out, or, where the
                end of the order is the same every epoch, another stretch each epoch. "repeat" gives some ranks a
                batch that another rank has as well.

        Returns:
            This rank's plan; `left_out` names the samples of "other_ranks" and of the "dropped_tail", `repeated` those
            that another rank sees as well.

        Raises:
            ValueError: If an argument is out of range, or this rank would get no batch.
        """
        world_size = whole_number("world_size", world_size, least=1)
        rank = whole_number("rank", rank, least=0, most=world_size - 1)
        if mode not in SHARD_MODES:
            raise ValueError(f"mode is {mode!r}; legal: {', '.join(SHARD_MODES)}")
        deal = deal_batches(
            self.padded_tokens_by_batch,
            world_size=world_size,
            window=self.config.window,
            repeat=mode == "repeat",
            # An order that is the same every epoch leaves another stretch of itself out each time.
            rotation=self.epoch * (len(self) % world_size) if self._has_fixed_end else 0,
        )
        mine = deal.of_ranks[rank]
        if not mine.size:
            raise ValueError(
                f"{len(self)} batches give none to each of {world_size} ranks; "
                f'lower token_budget or world_size, or take mode="repeat"'
            )
        others = np.setdiff1d(deal.of_ranks, mine)
        shared = np.intersect1d(np.delete(deal.of_ranks, rank, axis=0), mine)
        sharded = self._take(mine, {"other_ranks": others, "dropped_tail": deal.tail})
        return dataclasses.replace(sharded, repeated=self.sample_ids[self._members(shared)])

    @property
    def _has_fixed_end(self) -> bool:
        return self.config.order == "as_built" or self.config.longest_first > 0

    def skip(self, num_batches: int) -> BatchPlan:
        """Give the rest of the epoch after `num_batches` batches have been trained.

        Args:
            num_batches: In [0, len(plan)).

        Returns:
            The remaining batches; `left_out` names the samples that are "skipped".

        Raises:
            ValueError: If no batch would remain; position n of n is position 0 of the next epoch.
        """
        num_batches = whole_number("num_batches", num_batches, least=0, most=len(self) - 1)
        every = np.arange(len(self))
        return self._take(every[num_batches:], {"skipped": every[:num_batches]})

    def _take(self, batches: np.ndarray, rest: dict[str, np.ndarray]) -> BatchPlan:
        """Give some batches as a plan of their own, and name the samples of the rest."""
        left_out = dict(self.left_out)
        for reason, others in rest.items():
            left_out[reason] = np.concatenate(
                [left_out.get(reason, others[:0]), self.sample_ids[self._members(others)]]
            )
        members = self._members(batches)
        return dataclasses.replace(
            self,
            sample_ids=self.sample_ids[members],
            offsets=np.concatenate([[0], np.cumsum(self.batch_sizes[batches])]),
            bucket_ids=self.bucket_ids[batches],
            widths=self.widths[batches],
            sample_lengths=self.sample_lengths[members],
            left_out=left_out,
        )

    def _members(self, batches: np.ndarray) -> np.ndarray:
        """Places of the batches' samples in `sample_ids`: int64."""
        sizes = self.batch_sizes[batches]
        ends = np.cumsum(sizes)
        return np.arange(sizes.sum()) + np.repeat(self.offsets[:-1][batches] - (ends - sizes), sizes)

    def validate(self, lengths: object) -> None:
        """Check every law of a plan against the lengths that it was made from.

        Args:
            lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.

        Raises:
            ValueError: If a law is broken; the message names the law and the first batch or sample.
        """
        from dflash_lab.batching.laws import check_plan

        check_plan(self, lengths)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as Parquet, one row a batch, with its config and fingerprint; written aside and renamed.

        Args:
            path: Where to; folders are made.
        """
        from dflash_lab.batching.plan_file import write_plan

        write_plan(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BatchPlan:
        """Read a plan that `save` has written.

        Args:
            path: The Parquet file.

        Returns:
            A plan equal to the saved one.

        Raises:
            ValueError: If the file is not a saved plan or its content does not match its fingerprint.
        """
        from dflash_lab.batching.plan_file import read_plan

        return read_plan(Path(path))


_ARRAYS = {
    "sample_ids": np.int64,
    "offsets": np.int64,
    "bucket_ids": np.int16,
    "widths": np.int32,
    "sample_lengths": np.int32,
}


def _owned(name: str, values: object, dtype: type) -> np.ndarray:
    """Give values as an array of this type that nobody can write to: a copy, unless that is what they are."""
    array = np.asarray(values)
    if array.dtype == dtype and not array.flags.writeable and array.flags.owndata and array.flags.c_contiguous:
        return array
    owned = np.array(array, dtype=dtype, order="C") if array.size else np.empty(0, dtype)
    if array.size and not np.array_equal(owned, array):
        place = int(np.flatnonzero(owned != array)[0])
        raise ValueError(f"{name}[{place}] is {array[place]}; legal: what {np.dtype(dtype)} can hold")
    owned.flags.writeable = False
    return owned
