"""Dynamic programmes over bucket bounds, one for each model of what a bucket costs."""

from __future__ import annotations

import numpy as np

from dflash_lab.batching.bucket_costs import BatchModel, LengthHistogram

# Costs nearer than this ratio count as equal: sums of the same numbers in another order differ by less.
_SAME = 1e-12
# Bounds whose costs are computed together: 4 MB at 8,127 lengths; 16 take twice as long without a cap on a batch.
_BLOCK = 64


class PaddingProgramme:
    """Least padded tokens of the first b distinct lengths in exactly k buckets, for all b, layer by layer of k.

    With L the bucket's longest and C the samples below, layer k is D_k[b] = min over a < b of
    D_{k-1}[a] + L_b (C_b - C_a). For a < a' < b < b' the other pairing of ends costs (L_b' - L_b) (C_a' - C_a) > 0 more
    (the quadrangle inequality), so the best a rises with b, and halving the rows finds all of them in n log n.
    """

    def __init__(self, histogram: LengthHistogram, most_buckets: int) -> None:
        self._histogram = histogram
        self._choices: list[np.ndarray] = []
        below = histogram.below
        longest = np.concatenate([[0], histogram.distinct])
        costs = longest * below
        # One bucket for each length needs no programme: `bounds` knows.
        for num_buckets in range(2, min(most_buckets, len(histogram.distinct) - 1) + 1):
            lines, choice = _rising_minima(costs, longest, below, num_buckets - 1)
            costs = lines + longest * below
            self._choices.append(choice)

    def bounds(self, num_buckets: int) -> tuple[int, ...]:
        """Best bounds for at most so many buckets; more of them always pad less while there are lengths to part."""
        size = len(self._histogram.distinct)
        if num_buckets >= size:
            return self._histogram.bounds_at(list(range(size + 1)))
        return self._histogram.bounds_at(_walk_back(self._choices, num_buckets, size))


def _rising_minima(
    costs: np.ndarray, longest: np.ndarray, below: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each b > first, the least costs[a] - longest[b] * below[a] over first <= a < b, and the smallest such a."""
    size = len(costs) - 1
    minima, choice = np.zeros_like(costs), np.zeros(size + 1, dtype=np.int32)
    # Rows low..high, whose best a lies in least..most. All rows of one depth of the halving are worked on at once.
    low, high = np.array([first + 1]), np.array([size])
    least, most = np.array([first]), np.array([size - 1])
    while low.size:
        row = (low + high) // 2
        counts = np.minimum(most, row - 1) - least + 1
        starts = np.cumsum(counts) - counts
        columns = np.arange(counts.sum()) + np.repeat(least - starts, counts)
        values = costs[columns] - np.repeat(longest[row], counts) * below[columns]
        minima[row] = np.minimum.reduceat(values, starts)
        hits = np.flatnonzero(values == np.repeat(minima[row], counts))
        best = columns[hits[np.searchsorted(hits, starts)]]
        choice[row] = best
        before, after = low < row, row < high
        low, high = np.concatenate([low[before], row[after] + 1]), np.concatenate([row[before] - 1, high[after]])
        least, most = np.concatenate([least[before], best[after]]), np.concatenate([best[before], most[after]])
    return minima, choice


def _walk_back(choices: list[np.ndarray], num_buckets: int, end: int) -> list[int]:
    """Ends of the buckets, from 0 to `end`; choices[k - 2][b] is where the last of k buckets that ends at b begins."""
    edges = [end]
    for number in range(num_buckets, 1, -1):
        edges.append(int(choices[number - 2][edges[-1]]))
    return [0, *reversed(edges)]


class BatchesProgramme:
    """Fewest expected batches of the samples before each candidate in exactly k buckets, for all k at once.

    Bucket costs have no order to exploit: more samples may cost less, and the quadrangle inequality holds neither way
    round. So every pair of candidates is looked at, once: its cost is computed, used for all k, and forgotten.
    """

    def __init__(self, model: BatchModel, most_buckets: int, num_candidates: int) -> None:
        self._histogram = model.histogram
        self._candidates = candidates = model.candidates(num_candidates)
        num_ends = len(candidates)
        self.exact = num_ends == len(model.histogram.distinct) + 1
        # More than 2 g - 1 buckets never help, where g capacities occur. Two neighbours with samples of one and the
        # same capacity alone cost as much as both in one bucket, so each capacity has at most one such bucket; every
        # other bucket has one of the g - 1 changes of capacity inside.
        layers = min(most_buckets, num_ends - 1, 2 * len(model.capacities) - 1)
        totals = np.full((layers, num_ends), np.inf)
        choices = np.zeros((layers, num_ends), dtype=np.int32)
        groups = model.group_of(candidates)
        end = 1
        while end < num_ends:
            # Groups fall as ends rise.
            stop = min(end + _BLOCK, int(np.searchsorted(-groups, -groups[end], side="right")))
            for costs in model.costs(candidates[:stop], candidates[end:stop]):
                totals[0, end] = costs[0]
                sums = totals[:-1, :end] + costs[:end]
                choices[1:, end] = sums.argmin(axis=1)
                totals[1:, end] = sums[np.arange(layers - 1), choices[1:, end]]
                end += 1
        self._choices = list(choices[1:])
        self._totals = totals[:, -1].tolist()

    def bounds(self, num_buckets: int) -> tuple[int, ...]:
        """Best bounds for at most so many buckets, fewest buckets first."""
        best = 0
        for number, total in enumerate(self._totals[:num_buckets]):
            if total < self._totals[best] * (1 - _SAME):
                best = number
        edges = _walk_back(self._choices, best + 1, len(self._candidates) - 1)
        return self._histogram.bounds_at(self._candidates[edges].tolist())
