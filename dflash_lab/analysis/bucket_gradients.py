"""Whether length buckets pull a drafter in different directions: norms of their gradients, and cosines between them."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from dflash_lab.analysis.buckets import bucket_intervals
from dflash_lab.analysis.gradients import LATE_SHARE
from dflash_lab.analysis.study_log import StudyLog

# A bucket whose halves agree less than this is noise: dividing by what is left of its norm would give any cosine.
LEAST_HALF_COSINE = 0.15


def bucket_gradient_table(log: StudyLog, *, label: str) -> pl.DataFrame:
    """Compare the mean gradients of buckets in the second half of an arm.

    Each bucket's gradient was taken twice, over two halves of its samples. The product of two different halves has no
    noise on average, so norms and cosines here are those of the mean gradients without it: a plain cosine between two
    noisy means is near 0 whatever the means are. Products are added up over the looks that were taken, halfway and at
    the end, and over the seeds, and divided at the very end.

    Args:
        log: The study.
        label: The arm.

    Returns:
        One row a pair of buckets, both orders and each with itself: bucket, other_bucket (their intervals, tokens),
        cosine (noise taken out; 1 of a bucket with itself; null where a half_cosine is below 0.15, which leaves too
        little to divide by; an estimate, which may lie a little outside [-1, 1]), plain_cosine (of the means over both
        halves), half_cosine (between the two halves of a bucket: what noise leaves of 1; null of two buckets),
        grad_norm (of the first bucket, noise taken out; null where it is not to be seen), num_blocks (of both halves,
        all looks and seeds, of the first bucket), num_seeds.

    Raises:
        ValueError: If there is no such arm.
    """
    looks = log.looks.filter(pl.col("label") == label)
    if looks.is_empty():
        raise ValueError(f"label is {label!r}; legal: {', '.join(log.labels)}")
    # Half of an odd number of steps was rounded.
    late = looks.filter(pl.col("step") >= LATE_SHARE * pl.col("step").max().over("seed") - 1)
    products = np.sum([np.asarray(each, dtype=np.float64) for each in late["products"].to_list()], axis=0)
    blocks = np.sum([np.asarray(each) for each in late["half_num_blocks"].to_list()], axis=0).sum(axis=1)
    names = bucket_intervals(log.bucket_bounds)["bucket"].cast(pl.String).to_list()
    # (buckets, half, buckets, half)
    halves = products.reshape(len(names), 2, len(names), 2)
    own = np.array([halves[place, 0, place, 1] for place in range(len(names))])
    inside = np.array(
        [math.sqrt(halves[place, 0, place, 0] * halves[place, 1, place, 1]) for place in range(len(names))]
    )
    agreement = np.divide(own, inside, out=np.zeros_like(own), where=inside > 0)
    rows = []
    for one in range(len(names)):
        for other in range(len(names)):
            across = halves[one, :, other, :]
            clean = own[one] if one == other else float(across.mean())
            seen = min(agreement[one], agreement[other]) >= LEAST_HALF_COSINE
            squares = [float(halves[place, :, place, :].sum()) for place in (one, other)]
            rows.append(
                {
                    "bucket": names[one],
                    "other_bucket": names[other],
                    "cosine": clean / math.sqrt(own[one] * own[other]) if seen else None,
                    "plain_cosine": float(across.sum()) / math.sqrt(squares[0] * squares[1])
                    if min(squares) > 0
                    else None,
                    "half_cosine": float(agreement[one]) if one == other and inside[one] else None,
                    "grad_norm": math.sqrt(own[one] / len(late)) if own[one] > 0 else None,
                    "num_blocks": int(blocks[one]),
                    "num_seeds": late["seed"].n_unique(),
                }
            )
    floats = ("cosine", "plain_cosine", "half_cosine", "grad_norm")
    return pl.DataFrame(rows, infer_schema_length=None).cast({name: pl.Float64 for name in floats})


def bucket_norm_table(pairs: pl.DataFrame) -> pl.DataFrame:
    """Give the buckets of a table of pairs by themselves.

    Args:
        pairs: From `bucket_gradient_table`.

    Returns:
        One row a bucket: bucket, grad_norm, half_cosine, num_blocks, num_seeds.
    """
    own = pairs.filter(pl.col("bucket") == pl.col("other_bucket"))
    return own.select("bucket", "grad_norm", "half_cosine", "num_blocks", "num_seeds")
