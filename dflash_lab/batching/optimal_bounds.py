"""The best bucket bounds there are, under two models of what a bucket costs.

Least padding and fewest batches are different goals. `padding_cost` pads every sample to the longest one of its bucket,
as fixed shapes do (bucket-edge model); `expected_batches` pads a batch to its own longest sample, as plans do, with
batches drawn at random from the bucket (batch-longest model). Both optima are exact over all ways to cut the distinct
lengths into at most so many buckets. In the gap between two lengths a bound is the shorter length + 1.

The bounds for fewest batches mostly lie at `token_budget // m + 1`, where the number of samples that fit changes, but
not always, so every length is looked at. Take 1,000 samples of 1 token, 50 of 100 and 450 of 128, a budget of 128
tokens, at most 64 samples a batch and two buckets: bounds (0, 101, 129) give 504.8 batches, and the best with a bound
at 128 // m + 1, (0, 65, 129), gives 515.6, because a few long samples cost less among many short ones than in batches
of their own. On the source run's lengths those points are the best up to 32 buckets at a budget of 49,152 tokens, and
up to 0.35 % worse than the best (3 buckets) at a budget of 8,191, where the longest samples fill a batch alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dflash_lab.batching.bound_programmes import BatchesProgramme, PaddingProgramme
from dflash_lab.batching.bounds import check_lengths
from dflash_lab.batching.bucket_costs import BatchModel, LengthHistogram
from dflash_lab.batching.config import check_bounds, whole_number

# Distinct lengths up to which `least_batches_bounds` looks at every bound. Measured on one core, 64 samples a batch:
# 1.2 s at 8,127 lengths for 6 buckets and 2.1 s for 32; 4 s and 8 s at 16,384. Without a cap on a batch's samples,
# 4.5 s at 8,127 for 6.
NUM_CANDIDATES = 16_384


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

    Source: Galil and Park, "Dynamic programming with convexity, concavity and sparsity", Theoretical Computer Science
        92 (1992), for programmes whose costs keep the quadrangle inequality.
    """
    num_buckets = whole_number("num_buckets", num_buckets, least=1)
    return PaddingProgramme(LengthHistogram.of(check_lengths(lengths)), num_buckets).bounds(num_buckets)


def least_batches_bounds(
    lengths: object, num_buckets: int, *, token_budget: int, max_batch_size: int, num_candidates: int = NUM_CANDIDATES
) -> tuple[int, ...]:
    """Cut the lengths into buckets with the fewest expected batches when each batch is padded to its own longest.

    Exact where there are at most `num_candidates` distinct lengths. Where there are more, bounds are chosen among the
    points where the number of samples that fit changes and length quantiles, about `num_candidates`; the cost of each
    choice is still exact. More buckets are not always better here, so there may be fewer than asked for: among costs
    that differ by rounding alone the fewest buckets win, then, as far as rounding lets it, the smallest last bound.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, after the cut; each within the budget.
        num_buckets: Most buckets, >= 1.
        token_budget: Most padded tokens in a batch, inclusive; 1 to 2**62.
        max_batch_size: Most samples in a batch; 1 to 2**62.
        num_candidates: Bounds to choose from, >= 1; time grows with its square.

    Returns:
        Bounds starting at 0 and ending one past the longest sample, fit for `BatchingConfig.bucket_bounds`.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    num_buckets = whole_number("num_buckets", num_buckets, least=1)
    model = BatchModel.of(check_lengths(lengths), token_budget, max_batch_size)
    return BatchesProgramme(model, num_buckets, num_candidates).bounds(num_buckets)


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
        lengths, token_budget, max_batch_size, num_candidates: As in `least_batches_bounds`.
        num_buckets: Most buckets of each point, each >= 1.

    Returns:
        One point for each of `num_buckets`, in its order; the same bounds as the two functions give.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    asked = [whole_number("num_buckets", number, least=1) for number in num_buckets]
    if not asked:
        raise ValueError("num_buckets is empty; legal: at least one number of buckets")
    model = BatchModel.of(check_lengths(lengths), token_budget, max_batch_size)
    padding = PaddingProgramme(model.histogram, max(asked))
    batches = BatchesProgramme(model, max(asked), num_candidates)
    points = []
    for number in asked:
        bounds = padding.bounds(number), batches.bounds(number)
        costs = model.histogram.padding_cost(bounds[0]), model.expected_batches(bounds[1])
        points.append(BoundsPoint(number, bounds[0], costs[0], bounds[1], costs[1], batches.exact))
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
    return LengthHistogram.of(check_lengths(lengths)).padding_cost(check_bounds(bounds))


def expected_batches(lengths: object, bounds: tuple[int, ...], *, token_budget: int, max_batch_size: int) -> float:
    """Estimate the batches of an epoch when each bucket is shuffled and packed (batch-longest model).

    A bucket with N samples, of which a share F(x) is at most x tokens long, makes N / E batches. E is the sum over m
    = 1 .. max_batch_size of F(token_budget / m)**m, the chance that m samples drawn at random fit together: it is the
    expected number of samples that fit. Plans have a few more batches than this. The sample that did not fit opens
    the next batch, and it is longer than most: with the source run's lengths 0.24 % more for its six buckets, 0.21 %
    for the best six, 1.3 % for one bucket of all. And the last batch of each bucket is seldom full: half a batch a
    bucket.

    Args:
        lengths, token_budget, max_batch_size: As in `least_batches_bounds`.
        bounds: As in `padding_cost`.

    Returns:
        Batches, > 0, not rounded.

    Raises:
        ValueError: If an argument is out of range, or a sample alone exceeds the budget.
    """
    return BatchModel.of(check_lengths(lengths), token_budget, max_batch_size).expected_batches(check_bounds(bounds))
