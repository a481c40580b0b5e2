"""Sample lengths with the profile of the run that this workbench grew out of, at any size."""

from __future__ import annotations

import math

import numpy as np

from dflash_lab.batching.config import whole_number

SOURCE_RUN_NUM_SAMPLES = 902_087
_SHORTEST, _LONGEST = 65, 8_191
# Weight, mu and sigma of log-normals fitted to what the run reported: batches an epoch, padding efficiency, budget use
# and the last bucket's share. A single log-normal cannot meet them. One reported fact is only half met: "the bulk
# between 1,024 and 4,096" is 46 % of the samples here.
_MIXTURE = (
    (0.6813, 7.16477, 0.4956),
    (0.1314, 5.66665, 0.738),
    (0.1823, 8.61178, 0.0277),
    (0.0050, 8.96726, 0.3465),
)


def source_run_lengths(num_samples: int = SOURCE_RUN_NUM_SAMPLES, *, seed: int = 0) -> np.ndarray:
    """Give sample lengths with the source run's profile: a mixture of four log-normals on 65..8191.

    The lengths are the mixture's quantile mid-points, so that every size has the same shape; the seed only permutes.

    Args:
        num_samples: How many, >= 1.
        seed: Permutation's seed, >= 0.

    Returns:
        int32 (num_samples,), in tokens.

    Raises:
        ValueError: If an argument is out of range.
    """
    num_samples = whole_number("num_samples", num_samples, least=1)
    seed = whole_number("seed", seed, least=0)
    lengths = np.arange(_SHORTEST, _LONGEST + 1, dtype=np.int32)
    # Mid-point i + 1/2 of n falls to the first length whose share reaches it.
    reached = np.floor(_shares_up_to(lengths) * num_samples + 0.5).astype(np.int64)
    counts = np.diff(reached, prepend=0)
    ordered = np.repeat(lengths, counts)
    if num_samples > 1:
        ordered[0], ordered[-1] = _SHORTEST, _LONGEST
    return np.random.default_rng(seed).permutation(ordered)


def _shares_up_to(lengths: np.ndarray) -> np.ndarray:
    """Share of the samples at or under each length: float64, the last one exactly 1."""
    edges = [math.log(_SHORTEST - 0.5), *np.log(lengths + 0.5).tolist()]
    shares = np.zeros(len(lengths))
    for weight, mu, sigma in _MIXTURE:
        below = np.asarray([0.5 * (1 + math.erf((edge - mu) / (sigma * math.sqrt(2)))) for edge in edges])
        shares += weight * (below[1:] - below[0]) / (below[-1] - below[0])
    return shares / shares[-1]
