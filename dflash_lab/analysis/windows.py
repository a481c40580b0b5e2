"""Accumulation windows: how far the samples of one optimizer step are from those of the whole data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.batching import SOURCE_RUN_BUCKET_BOUNDS, BatchPlan, bucket_of

SHUFFLE = "full shuffle"
QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p95": 0.95}


@dataclass(frozen=True)
class WindowMix:
    """The token mix of windows beside that of the data.

    Args:
        tokens: float64 (num_windows, num_buckets), tokens of each window by length bucket.
        num_samples: int64 (num_windows,), samples of each window.
        data_mix: float64 (num_buckets,), share of each bucket in all tokens of the plan.
    """

    tokens: np.ndarray
    num_samples: np.ndarray
    data_mix: np.ndarray

    @property
    def total_variation(self) -> np.ndarray:
        """Half the sum of |window's share - data's share| over the buckets: float64 (num_windows,), in [0, 1]."""
        return np.abs(self.tokens / self.tokens.sum(axis=1, keepdims=True) - self.data_mix).sum(axis=1) / 2

    @property
    def mean_lengths(self) -> np.ndarray:
        """Tokens / samples of each window: float64 (num_windows,)."""
        return self.tokens.sum(axis=1) / self.num_samples


def pure_window_floor(data_mix: np.ndarray, window: int) -> float:
    """Give the least total variation that a window of length-pure batches of equal tokens can have from the data.

    Each batch falls into one bucket, so a window's shares are whole multiples of 1 / window; those nearest to the data
    come from rounding by the largest remainder. A window of mixed batches can be nearer, and the windows of a whole
    epoch cannot all be as near, since together they hold the data.

    Args:
        data_mix: float64 (num_buckets,), share of each bucket in all tokens; sums to 1.
        window: Batches a window, >= 1.

    Returns:
        Total variation, in [0, 1].
    """
    shares = data_mix * window
    whole = np.floor(shares)
    left = window - int(whole.sum())
    whole[np.argsort(whole - shares, kind="stable")[:left]] += 1
    return float(np.abs(whole / window - data_mix).sum() / 2)


def plan_window_mix(plan: BatchPlan, bucket_bounds: tuple[int, ...] = SOURCE_RUN_BUCKET_BOUNDS) -> WindowMix:
    """Sum up the accumulation windows of a plan.

    Args:
        plan: The plan of an epoch; `plan.config.window` batches in a row are a window.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens: the buckets of the mix, the same for plans
            that are to be compared, whatever their own.

    Returns:
        The full windows; batches at the end that fill none are in the data's mix alone.

    Raises:
        ValueError: If the bounds are not legal.
    """
    window, num_windows = plan.config.window, len(plan) // plan.config.window
    windows = np.repeat(np.arange(len(plan)) // window, plan.batch_sizes)
    return _mix(plan.sample_lengths, windows, num_windows, bucket_bounds)


def shuffle_window_mix(plan: BatchPlan, bucket_bounds: tuple[int, ...] = SOURCE_RUN_BUCKET_BOUNDS) -> WindowMix:
    """Sum up windows of the same samples as if they came in a full random shuffle, without batches.

    What a window would hold if samples were drawn with no regard to padding: the shuffled samples are cut into as many
    windows as the plan has, each of about the same number of tokens. It is a reference for window mixes and no bound:
    an order that balances windows can come nearer to the data than chance does, while batches of one length each
    cannot.

    Args:
        plan: The plan whose samples, number of windows, seed and epoch are taken.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens.

    Returns:
        As many windows as the plan has full ones; fewer where single samples are larger than a window.

    Raises:
        ValueError: If the bounds are not legal.
    """
    num_windows = len(plan) // plan.config.window
    lengths = plan.sample_lengths[
        np.random.default_rng((plan.config.seed, plan.epoch)).permutation(len(plan.sample_lengths))
    ]
    # A sample counts to the window in which its first token lies.
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    windows = before * max(1, num_windows) // plan.real_tokens
    return _mix(lengths, windows, num_windows, bucket_bounds)


def window_table(plan: BatchPlan, bucket_bounds: tuple[int, ...] = SOURCE_RUN_BUCKET_BOUNDS) -> pl.DataFrame:
    """List the accumulation windows of a plan.

    Args:
        plan: The plan of an epoch.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens: the buckets of the mix.

    Returns:
        One row a full window, in the order of training: window_id, num_samples, real_tokens, length_mean_tokens
        (tokens / samples), total_variation (between the window's token mix over the buckets and the data's).

    Raises:
        ValueError: If the bounds are not legal.
    """
    mix = plan_window_mix(plan, bucket_bounds)
    return pl.DataFrame(
        {
            "window_id": np.arange(len(mix.num_samples)),
            "num_samples": mix.num_samples,
            "real_tokens": mix.tokens.sum(axis=1).astype(np.int64),
            "length_mean_tokens": mix.mean_lengths,
            "total_variation": mix.total_variation,
        }
    )


def compare_windows(
    plans: Mapping[str, BatchPlan], bucket_bounds: tuple[int, ...] = SOURCE_RUN_BUCKET_BOUNDS
) -> pl.DataFrame:
    """Put the accumulation windows of several plans beside those of a full shuffle of the samples.

    Args:
        plans: Name -> plan of an epoch over the same samples.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens: the buckets of the mix.

    Returns:
        One row a plan, then one named "full shuffle" with the samples and the number of windows of the first plan
        (`shuffle_window_mix`): strategy (the name), config_strategy, order (both null for the shuffle), num_windows,
        total_variation (mean over windows), total_variation_p05 .. p95, mean_length_cv (standard deviation / mean of
        the windows' mean lengths), relative_mean_length_p05 .. p95 (a window's mean length / that of the data).

    Raises:
        ValueError: If there is no plan, a plan has no full window, or the bounds are not legal.
    """
    if not plans:
        raise ValueError("plans is empty; legal: at least one name with its BatchPlan")
    without = [name for name, plan in plans.items() if len(plan) < plan.config.window]
    if without:
        raise ValueError(f"no full accumulation window in {', '.join(without)}; legal: plans of a window or more")
    first = next(iter(plans.values()))
    rows = [
        {"strategy": name, "config_strategy": plan.config.strategy, "order": plan.config.order}
        | _window_statistics(plan_window_mix(plan, bucket_bounds), plan)
        for name, plan in plans.items()
    ]
    shuffled = {"strategy": SHUFFLE, "config_strategy": None, "order": None}
    return pl.DataFrame([*rows, shuffled | _window_statistics(shuffle_window_mix(first, bucket_bounds), first)])


def _mix(lengths: np.ndarray, windows: np.ndarray, num_windows: int, bucket_bounds: tuple[int, ...]) -> WindowMix:
    """Sum up by window and bucket; `windows` rise, and those at or past `num_windows` are incomplete ones."""
    num_buckets = len(bucket_bounds) - 1
    cells = windows * num_buckets + bucket_of(lengths, bucket_bounds)
    num_all = int(windows[-1]) + 1
    tokens = np.bincount(cells, weights=lengths, minlength=num_all * num_buckets).reshape(num_all, num_buckets)
    num_samples = np.bincount(windows)[:num_windows]
    filled = num_samples > 0
    return WindowMix(tokens[:num_windows][filled], num_samples[filled], tokens.sum(axis=0) / tokens.sum())


def _window_statistics(mix: WindowMix, plan: BatchPlan) -> dict[str, object]:
    variation = mix.total_variation
    relative = mix.mean_lengths / (plan.real_tokens / len(plan.sample_lengths))
    return {
        "num_windows": len(mix.num_samples),
        "total_variation": float(variation.mean()),
        **{f"total_variation_{name}": float(np.quantile(variation, share)) for name, share in QUANTILES.items()},
        "mean_length_cv": float(relative.std() / relative.mean()),
        **{f"relative_mean_length_{name}": float(np.quantile(relative, share)) for name, share in QUANTILES.items()},
    }
