"""The best bucket bounds there are, under two models of what a bucket costs.

Least padding and fewest batches are different goals, so each has its function, and its model is in the name of the cost:
`padding_cost` pads every sample to the longest one of its bucket, as fixed shapes do; `expected_batches` pads a batch to
its own longest sample, as plans do, with batches drawn at random from the bucket.

Both optima are exact over all ways to cut the distinct lengths into at most so many buckets. A bound elsewhere in the
gap between two lengths would change no bucket; given is the lowest one, the shorter length + 1.

The bounds for fewest batches often lie at `token_budget // m + 1`, where the number of samples that fit changes, but not
always, so every length is looked at. Take 1,000 samples of 1 token, 50 of 100 and 450 of 128, a budget of 128 tokens, at
most 64 samples a batch and two buckets: bounds (0, 101, 129) give 504.8 batches, and the best of the points 128 // m + 1,
(0, 2, 129) in effect, gives 515.6, because a few long samples cost less among many short ones than in a batch of their
own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.config import check_bounds, whole_number

# Distinct lengths (or points between them) up to which `least_batches_bounds` looks at every bound: time grows with the
# square, 1 s at 8,127 points for 6 buckets and 3 s for 32 on one core.
NUM_CANDIDATES = 16_384
# Costs nearer than this ratio count as equal: sums of the same numbers in another order differ by less.
_SAME = 1e-12
# Bounds whose costs are computed together; with 8,127 lengths a block of them stays in a core's cache.
_BLOCK = 16
# What int64 holds with one sum to spare.
_MOST = 2**62


@dataclass(frozen=True)
class BoundsPoint:
    """The best bounds for one number of buckets.

    Args:
        num_buckets: Buckets asked for; the bounds may have fewer.
        least_padding: Bounds with the fewest padded tokens in the bucket-edge model.
        padding_cost: Those tokens.
        least_batches: Bounds with the fewest expected batches in the batch-longest model.
        expected_batches: Those batches.
        exact: Whether `least_batches` is the best of all bounds, not only of the candidates; `least_padding` always is.
    """

    num_buckets: int
    least_padding: tuple[int, ...]
    padding_cost: int
    least_batches: tuple[int, ...]
    expected_batches: float
    exact: bool


def least_padding_bounds(lengths: object, num_buckets: int) -> tuple[int, ...]:
    """Cut the lengths into buckets with the fewest padded tokens when each sample is padded to its bucket's longest.

    Exact, in whole numbers. Among cuts that cost the same, the one with the smallest last bound wins, then with the
    smallest one before it, and so on.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens.
        num_buckets: Most buckets, >= 1; with fewer distinct lengths each of them gets a bucket.

    Returns:
        Bounds starting at 0 and ending one past the longest sample, fit for `BatchingConfig.bucket_bounds`.

    Raises:
        ValueError: If a length or the number of buckets is not legal.

    Source: the bucket-edge model; the programme over rows with a rising argmin is that of Klawe and Kleitman's and
        Galil and Park's surveys on totally monotone matrices, here by halving.
    """
    num_buckets = whole_number("num_buckets", num_buckets, least=1)
    return _PaddingProgramme(_Histogram.of(check_lengths(lengths)), num_buckets).bounds(num_buckets)


def least_batches_bounds(
    lengths: object, num_buckets: int, *, token_budget: int, max_batch_size: int, num_candidates: int = NUM_CANDIDATES
) -> tuple[int, ...]:
    """Cut the lengths into buckets with the fewest expected batches when each batch is padded to its own longest.

    Exact where there are at most `num_candidates` distinct lengths. Where there are more, bounds are chosen among the
    points where the number of samples that fit changes and length quantiles, `num_candidates` in all; the cost of each
    choice is still exact. More buckets are not always better here, so there may be fewer than asked for: among costs
    that differ by rounding alone the fewest buckets win, then the smallest last bound, then the smallest one before it.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, after the cut; each within the budget.
        num_buckets: Most buckets, >= 1.
        token_budget: Most padded tokens in a batch, inclusive; 1 to 2**62.
        max_batch_size: Most samples in a batch; 1 to 2**62.
        num_candidates: Most bounds to choose from, >= 1; time grows with its square.

    Returns:
        Bounds starting at 0 and ending one past the longest sample, fit for `BatchingConfig.bucket_bounds`.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    num_buckets = whole_number("num_buckets", num_buckets, least=1)
    num_candidates = whole_number("num_candidates", num_candidates, least=1)
    model = _BatchModel.of(check_lengths(lengths), token_budget, max_batch_size)
    return _BatchesProgramme(model, num_buckets, num_candidates).bounds(num_buckets)


def bounds_curve(
    lengths: object,
    *,
    token_budget: int,
    max_batch_size: int,
    num_buckets: Iterable[int] = range(1, 33),
    num_candidates: int = NUM_CANDIDATES,
) -> list[BoundsPoint]:
    """Give both best bounds and their costs for several numbers of buckets, in one programme each.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, after the cut; each within the budget.
        token_budget: Most padded tokens in a batch, inclusive; 1 to 2**62.
        max_batch_size: Most samples in a batch; 1 to 2**62.
        num_buckets: Most buckets of each point, each >= 1.
        num_candidates: As in `least_batches_bounds`.

    Returns:
        One point for each of `num_buckets`, in its order; the same bounds as the two functions give.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    asked = [whole_number("num_buckets", number, least=1) for number in num_buckets]
    if not asked:
        raise ValueError("num_buckets is empty; legal: at least one number of buckets")
    num_candidates = whole_number("num_candidates", num_candidates, least=1)
    model = _BatchModel.of(check_lengths(lengths), token_budget, max_batch_size)
    padding = _PaddingProgramme(model.histogram, max(asked))
    batches = _BatchesProgramme(model, max(asked), num_candidates)
    points = []
    for number in asked:
        least_padding, least_batches = padding.bounds(number), batches.bounds(number)
        points.append(
            BoundsPoint(
                num_buckets=number,
                least_padding=least_padding,
                padding_cost=model.histogram.padding_cost(least_padding),
                least_batches=least_batches,
                expected_batches=model.expected_batches(least_batches),
                exact=batches.exact,
            )
        )
    return points


def padding_cost(lengths: object, bounds: tuple[int, ...]) -> int:
    """Count the padded tokens when each sample is padded to the longest sample of its bucket (bucket-edge model).

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens.
        bounds: Increasing whole numbers starting at 0; bucket i is [bounds[i], bounds[i + 1]), and the last bucket also
            takes what is longer.

    Returns:
        Tokens with padding, >= the sum of the lengths; that sum divided by it is the padding efficiency.

    Raises:
        ValueError: If a length or the bounds are not legal.
    """
    return _Histogram.of(check_lengths(lengths)).padding_cost(check_bounds(bounds))


def expected_batches(lengths: object, bounds: tuple[int, ...], *, token_budget: int, max_batch_size: int) -> float:
    """Estimate the batches of an epoch when each bucket is shuffled and packed (batch-longest model).

    A bucket with N samples, of which a share F(x) is at most x tokens long, makes N / E batches. E is the sum over
    m = 1 .. max_batch_size of F(token_budget / m)**m, the chance that m samples drawn at random fit together: it is the
    expected number of samples that fit. What the model leaves out: the sample that did not fit opens the next batch, and
    it is longer than most (a plan has some 0.2 % more batches with the source run's lengths and bounds); the last batch
    of a bucket is rarely full (half a batch a bucket).

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, after the cut; each within the budget.
        bounds: Increasing whole numbers starting at 0; bucket i is [bounds[i], bounds[i + 1]), and the last bucket also
            takes what is longer.
        token_budget: Most padded tokens in a batch, inclusive; 1 to 2**62.
        max_batch_size: Most samples in a batch; 1 to 2**62.

    Returns:
        Batches, > 0, not rounded.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    return _BatchModel.of(check_lengths(lengths), token_budget, max_batch_size).expected_batches(check_bounds(bounds))


@dataclass(frozen=True)
class _Histogram:
    """Distinct lengths and how many samples have each.

    Args:
        distinct: int64 (n,), rising, in tokens.
        below: int64 (n + 1,); entry i counts the samples shorter than distinct[i], the last one all of them.
    """

    distinct: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray) -> _Histogram:
        longest = int(lengths.max())
        if longest <= 4 * len(lengths) + 1024:
            # Counting is several times as fast as sorting.
            table = np.bincount(lengths)
            distinct = np.flatnonzero(table)
            counts = table[distinct]
        else:
            distinct, counts = np.unique(lengths, return_counts=True)
        return cls(distinct.astype(np.int64), np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    def edges(self, bounds: tuple[int, ...]) -> np.ndarray:
        """Places of the bounds among the distinct lengths, empty buckets left out: int64, from 0 to n."""
        # No bound has to fit into int64, only those that lie among the lengths.
        inner = [bound for bound in bounds[1:-1] if bound <= self.distinct[-1]]
        places = np.searchsorted(self.distinct, np.asarray(inner, dtype=np.int64), side="left")
        return np.unique(np.concatenate([[0], places, [len(self.distinct)]]))

    def bounds_at(self, edges: list[int]) -> tuple[int, ...]:
        """Bounds whose places are `edges`, which rise from 0 to n."""
        return (0, *(int(self.distinct[edge - 1]) + 1 for edge in edges[1:]))

    def padding_cost(self, bounds: tuple[int, ...]) -> int:
        edges = self.edges(bounds)
        sizes, longest = np.diff(self.below[edges]), self.distinct[edges[1:] - 1]
        return sum(size * length for size, length in zip(sizes.tolist(), longest.tolist(), strict=True))


class _PaddingProgramme:
    """Least padded tokens of the first b distinct lengths in exactly k buckets, for all b, layer by layer of k.

    With L the bucket's longest and C the samples below, layer k is D_k[b] = min over a < b of
    D_{k-1}[a] + L_b (C_b - C_a). For a < a' < b < b' the other pairing of ends costs (L_b' - L_b) (C_a' - C_a) > 0 more
    (the quadrangle inequality), so the best a rises with b, and halving the rows finds all of them in n log n.
    """

    def __init__(self, histogram: _Histogram, most_buckets: int) -> None:
        self._histogram = histogram
        size = len(histogram.distinct)
        self._choices: list[np.ndarray] = []
        if most_buckets >= size and size > 1:
            most_buckets = size - 1  # `bounds` needs no programme for one bucket a length.
        # Python's own whole numbers, slower, where int64 might not hold a product.
        fits = int(histogram.distinct[-1]) * int(histogram.below[-1]) < _MOST
        dtype = np.int64 if fits else object
        below = histogram.below.astype(dtype)
        longest = np.concatenate([[0], histogram.distinct]).astype(dtype)
        costs = longest * below
        for num_buckets in range(2, most_buckets + 1):
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
    """For each b > first, the least of costs[a] - longest[b] * below[a] over first <= a < b, and the smallest such a.

    All rows of one depth of the halving are worked on at once; together they look at each a about once.
    """
    size = len(costs) - 1
    minima, choice = np.zeros_like(costs), np.zeros(size + 1, dtype=np.int32)
    # Rows low..high, whose best a lies in least..most.
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


@dataclass(frozen=True)
class _BatchModel:
    """Expected batches of a bucket that reaches from one distinct length to another.

    The chance that m samples fit depends on m through the samples of which m or more fit, so the terms of E are grouped
    by the capacities that occur: terms `first_term[i]` to `capacities[i]` count the samples of which at least
    capacities[i] fit, which are the shortest `reach[i]` distinct lengths.

    Args:
        histogram: The lengths.
        capacities: int64 (g,), rising; how many samples of one length fit into a batch.
        first_term: int64 (g,); one more than the capacity before.
        reach: int64 (g,), falling from n; distinct lengths of which at least capacities[i] fit.
    """

    histogram: _Histogram
    capacities: np.ndarray
    first_term: np.ndarray
    reach: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray, token_budget: int, max_batch_size: int) -> _BatchModel:
        token_budget = whole_number("token_budget", token_budget, least=1, most=_MOST)
        max_batch_size = whole_number("max_batch_size", max_batch_size, least=1, most=_MOST)
        over = np.flatnonzero(lengths > token_budget)
        if over.size:
            raise ValueError(
                f"sample {over[0]} has {lengths[over[0]]} tokens, more than token_budget {token_budget} "
                f"({over.size} such samples); legal: at most the budget"
            )
        histogram = _Histogram.of(lengths)
        of_lengths = np.minimum(token_budget // histogram.distinct, max_batch_size)
        capacities = np.unique(of_lengths)
        reach = len(of_lengths) - np.searchsorted(of_lengths[::-1], capacities, side="left")
        return cls(histogram, capacities, np.concatenate([[0], capacities[:-1]]) + 1, reach)

    def group_of(self, end: int) -> int:
        """Capacity group of the longest sample of a bucket that ends before distinct length `end`."""
        return int(np.searchsorted(-self.reach, -end, side="right")) - 1

    def weights(self, starts: np.ndarray, group: int) -> list[np.ndarray]:
        """What the terms of E weigh, for `costs`, at each start of a bucket that ends in `group`.

        Args:
            starts: int64 (s,), rising places among the distinct lengths.
            group: Index of the longest sample's capacity.

        Returns:
            For each later group i, float64 (s_i,) over the starts that have samples in it: the base of its first term,
            relative to the base of group + 1, to the power of that term; in [0, 1].
        """
        below = self.histogram.below
        weights, fewest = [], None
        for reach, first_term in zip(self.reach[group + 1 :], self.first_term[group + 1 :], strict=True):
            samples = (below[reach] - below[starts[: np.searchsorted(starts, reach)]]).astype(np.float64)
            if not samples.size:
                break
            fewest = samples if fewest is None else fewest
            weights.append((samples / fewest[: len(samples)]) ** float(first_term))
        return weights

    def costs(self, starts: np.ndarray, ends: np.ndarray, group: int, weights: list[np.ndarray]) -> np.ndarray:
        """Expected batches of each bucket: float64 (e, s); without meaning where the start is not before the end.

        Args:
            starts: int64 (s,), rising places among the distinct lengths.
            ends: int64 (e,), places past the longest sample, whose capacity group is `group`.
            group: Index of that capacity.
            weights: What `self.weights(starts, group)` gives.
        """
        below = self.histogram.below
        sizes = (below[ends][:, None] - below[starts][None, :]).astype(np.float64)  # (e, s)
        capacity = float(self.capacities[group])
        if not weights:
            return sizes / capacity
        # With d_i samples of bucket size N in reach of group i, its terms are (d_i / N)**m. Horner's rule in d_1 / N:
        # two operations a term where a power would take twenty, and nothing overflows since d_i <= d_1 <= N.
        mixed = len(weights[0])
        ratio = (below[self.reach[group + 1]] - below[starts[:mixed]]) / sizes[:, :mixed]
        fitting = np.zeros_like(ratio)
        for i in range(len(weights), 0, -1):
            if i < len(weights):
                inside = len(weights[i])
                gap = int(self.first_term[group + i + 1] - self.first_term[group + i])
                step = ratio[:, :inside]
                fitting[:, :inside] *= step if gap == 1 else step ** float(gap)
            inside = len(weights[i - 1])
            terms = float(self.capacities[group + i] - self.first_term[group + i] + 1)
            weight = weights[i - 1]
            if terms > 1:
                # The group's other terms are a geometric series; log1p and expm1 keep its digits near a ratio of 1.
                left_out = (below[ends][:, None] - below[self.reach[group + i]]) / sizes[:, :inside]
                weight = weight * -np.expm1(terms * np.log1p(-left_out)) / left_out
            fitting[:, :inside] += weight
        fitting *= ratio ** float(self.first_term[group + 1])
        fitting += capacity
        costs = sizes
        costs[:, :mixed] /= fitting
        costs[:, mixed:] /= capacity
        return costs

    def expected_batches(self, bounds: tuple[int, ...]) -> float:
        edges = self.histogram.edges(bounds)
        total = 0.0
        for start, end in zip(edges, edges[1:], strict=False):
            group = self.group_of(int(end))
            starts = np.array([start])
            total += float(self.costs(starts, np.array([end]), group, self.weights(starts, group))[0, 0])
        return total

    def candidates(self, num_candidates: int) -> np.ndarray:
        """Places where a bucket may begin or end: int64, rising from 0 to n; all of them where there are few enough."""
        size = len(self.histogram.distinct)
        if size <= num_candidates:
            return np.arange(size + 1)
        changes = self.reach[1:]
        if len(changes) > num_candidates // 2:
            changes = changes[np.linspace(0, len(changes) - 1, num_candidates // 2).astype(np.int64)]
        wanted = np.linspace(0, self.histogram.below[-1], num_candidates - len(changes) + 1)
        quantiles = np.searchsorted(self.histogram.below, wanted, side="left")
        return np.unique(np.concatenate([[0], changes, quantiles, [size]]))


class _BatchesProgramme:
    """Fewest expected batches of the samples before each candidate in exactly k buckets, for all k at once.

    The cost of a bucket has no order to exploit (neither is it monotone in the bucket nor does the quadrangle inequality
    hold), so every pair of candidates is looked at, once: its cost is computed, used for all k, and forgotten.
    """

    def __init__(self, model: _BatchModel, most_buckets: int, num_candidates: int) -> None:
        self._histogram = model.histogram
        self._candidates = candidates = model.candidates(num_candidates)
        num_ends = len(candidates)
        self.exact = num_ends == len(model.histogram.distinct) + 1
        # More than 2 g - 1 buckets never help, where g capacities occur. Two neighbours with samples of one and the same
        # capacity alone cost as much as both in one bucket, so each capacity has at most one such bucket; every other
        # bucket has one of the g - 1 changes of capacity inside.
        layers = min(most_buckets, num_ends - 1, 2 * len(model.capacities) - 1)
        totals = np.full((layers, num_ends), np.inf)
        choices = np.zeros((layers, num_ends), dtype=np.int32)
        sums = np.empty((layers, num_ends))
        groups = np.searchsorted(-model.reach, -candidates, side="right") - 1
        group, weights = -1, []
        end = 1
        while end < num_ends:
            if groups[end] != group:
                group = int(groups[end])
                last = int(np.searchsorted(-groups, -group, side="right"))  # groups fall as ends rise
                weights = model.weights(candidates[:last], group)
            stop = min(end + _BLOCK, last)
            costs = model.costs(candidates[:stop], candidates[end:stop], group, weights)
            for row in range(stop - end):
                to_end = costs[row, : end + row]
                totals[0, end + row] = to_end[0]
                part = np.add(totals[:-1, : end + row], to_end, out=sums[1:, : end + row])
                best = part.argmin(axis=1)
                choices[1:, end + row] = best
                totals[1:, end + row] = part[np.arange(layers - 1), best]
            end = stop
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
