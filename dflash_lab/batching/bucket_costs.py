"""What a bucket of samples costs: padded to its own longest sample, or in batches padded to theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_lab.batching.config import whole_number

MOST = 2**62  # Largest budget and cap, which int64 has to hold.


@dataclass(frozen=True)
class LengthHistogram:
    """Distinct lengths and how many samples are shorter than each; the last count, one more, is all of them."""

    distinct: np.ndarray  # int64 (n,), rising, in tokens
    below: np.ndarray  # int64 (n + 1,)

    @classmethod
    def of(cls, lengths: np.ndarray) -> LengthHistogram:
        """Count checked lengths, int64 (num_samples,)."""
        longest = int(lengths.max())
        # Every product and sum here stays below 2**62: lengths are below 2**31, and as many samples take 16 GiB.
        assert longest * len(lengths) < 2**62
        if longest <= 4 * len(lengths) + 1024:
            # Counting is several times as fast as sorting.
            table = np.bincount(lengths)
            distinct = np.flatnonzero(table)
            return cls(distinct, np.concatenate([[0], np.cumsum(table[distinct])]))
        distinct, counts = np.unique(lengths, return_counts=True)
        return cls(distinct, np.concatenate([[0], np.cumsum(counts)]))

    def edges(self, bounds: tuple[int, ...]) -> np.ndarray:
        """Places of the bounds among the distinct lengths, empty buckets left out: int64, from 0 to n."""
        places = np.searchsorted(self.distinct, np.asarray(bounds[1:-1], dtype=np.int64), side="left")
        return np.unique(np.concatenate([[0], places, [len(self.distinct)]]))

    def bounds_at(self, edges: list[int]) -> tuple[int, ...]:
        """Bounds whose places are `edges`, which rise from 0 to n."""
        return (0, *(int(self.distinct[edge - 1]) + 1 for edge in edges[1:]))

    def padding_cost(self, bounds: tuple[int, ...]) -> int:
        """Sum up the padded tokens, each sample padded to the longest one of its bucket."""
        edges = self.edges(bounds)
        sizes, longest = np.diff(self.below[edges]), self.distinct[edges[1:] - 1]
        return sum(size * length for size, length in zip(sizes.tolist(), longest.tolist(), strict=True))


@dataclass(frozen=True)
class BatchModel:
    """Expected batches of a bucket that reaches from one distinct length to another.

    The chance that m samples fit depends on m through the samples of which m or more fit, so the terms of E are grouped
    by the capacities that occur. Terms first_term[i] to capacities[i] count the samples of which at least capacities[i]
    fit: those of the shortest reach[i] distinct lengths.
    """

    histogram: LengthHistogram
    capacities: np.ndarray  # int64 (g,), rising; how many samples of one length fit
    first_term: np.ndarray  # int64 (g,); one more than the capacity before
    reach: np.ndarray  # int64 (g,), falling from n

    @classmethod
    def of(cls, lengths: np.ndarray, token_budget: int, max_batch_size: int) -> BatchModel:
        """Count checked lengths under a budget and a cap; raises ValueError if one alone exceeds the budget."""
        token_budget = whole_number("token_budget", token_budget, least=1, most=MOST)
        max_batch_size = whole_number("max_batch_size", max_batch_size, least=1, most=MOST)
        over = np.flatnonzero(lengths > token_budget)
        if over.size:
            what = f"sample {over[0]} has {lengths[over[0]]} tokens, more than token_budget {token_budget}"
            raise ValueError(f"{what} ({over.size} such samples); legal: at most the budget")
        histogram = LengthHistogram.of(lengths)
        of_lengths = np.minimum(token_budget // histogram.distinct, max_batch_size)
        capacities = np.unique(of_lengths)
        reach = len(of_lengths) - np.searchsorted(of_lengths[::-1], capacities, side="left")
        return cls(histogram, capacities, np.concatenate([[0], capacities[:-1]]) + 1, reach)

    def group_of(self, ends: np.ndarray) -> np.ndarray:
        """Index of the least capacity in a bucket that ends before each distinct length."""
        return np.searchsorted(-self.reach, -ends, side="right") - 1

    def costs(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Expected batches of each bucket: float64 (ends, starts); without meaning where a start is not before the end.

        Both rise, and the least capacity is the same before all ends.
        """
        below, group = self.histogram.below, int(self.group_of(ends[-1]))
        costs = (below[ends][:, None] - below[starts]).astype(np.float64)  # sizes, for now
        # Buckets that begin in a later group; the others hold one capacity alone.
        later = range(group + 1, len(self.capacities))
        mixed = [int(np.searchsorted(starts, self.reach[i])) for i in later] or [0]
        sizes = costs[:, : mixed[0]]
        costs[:, mixed[0] :] /= self.capacities[group]
        if not sizes.size:
            return costs
        # With d_i samples of bucket size N in reach of group i, its terms are (d_i / N)**m. Horner's rule in d_1 / N of
        # the first later group: two operations a term, a power would take twenty; nothing overflows as d_i <= d_1.
        fewest = (below[self.reach[group + 1]] - below[starts[: mixed[0]]]).astype(np.float64)
        ratio, fitting = fewest / sizes, np.zeros_like(sizes)
        for i, inside in reversed([pair for pair in zip(later, mixed, strict=True) if pair[1]]):
            first, num_terms = self.first_term[i], float(self.capacities[i] - self.first_term[i] + 1)
            weight = ((below[self.reach[i]] - below[starts[:inside]]) / fewest[:inside]) ** float(first)
            if num_terms > 1:
                # The group's other terms are a geometric series; log1p and expm1 keep its digits near a ratio of 1.
                left_out = (below[ends][:, None] - below[self.reach[i]]) / sizes[:, :inside]
                weight = weight * -np.expm1(num_terms * np.log1p(-left_out)) / left_out
            fitting[:, :inside] += weight
            # On to the first term of the group before, if any.
            step = float(first - self.first_term[i - 1] if i > group + 1 else first)
            fitting[:, :inside] *= ratio[:, :inside] if step == 1 else ratio[:, :inside] ** step
        sizes /= fitting + self.capacities[group]
        return costs

    def expected_batches(self, bounds: tuple[int, ...]) -> float:
        """Sum up the expected batches of the buckets."""
        edges = self.histogram.edges(bounds)
        return sum(float(self.costs(edges[i : i + 1], edges[i + 1 : i + 2])[0, 0]) for i in range(len(edges) - 1))

    def candidates(self, num_candidates: int) -> np.ndarray:
        """Places where a bucket may begin or end: int64, rising from 0 to n; all of them where there are few enough."""
        num_candidates = whole_number("num_candidates", num_candidates, least=1)
        size = len(self.histogram.distinct)
        if size <= num_candidates:
            return np.arange(size + 1)
        changes = self.reach[1:]
        changes = changes[:: 1 + 2 * len(changes) // num_candidates]
        wanted = np.linspace(0, self.histogram.below[-1], num_candidates - len(changes) + 1)
        quantiles = np.searchsorted(self.histogram.below, wanted, side="left")
        return np.unique(np.concatenate([[0], changes, quantiles, [size]]))
