"""How good a drafter is, as tables: by position and by slice, with draft trees, and as speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from dflash_lab.analysis.buckets import bucket_intervals
from dflash_lab.analysis.run_log import read_run

VALIDATION_NAME = "validation.jsonl"
ALL, REST = "all", "the rest"
# Share of resampled means inside the interval.
_INTERVAL = 0.95


def step_table(run_dir: str | Path) -> pl.DataFrame:
    """Read a run's steps with its held-out scores and the depths of its queues.

    Args:
        run_dir: The run's folder.

    Returns:
        `read_run`'s rows with held_out_loss, held_out_accuracy, held_out_streak and held_out_tau, null at steps
        without a score; q_pre_min and q_pre_max, batches in the emptiest and the fullest queue before the targets; and
        q_hs, batches in all queues before the drafter.

    Raises:
        FileNotFoundError: If there is no log.
        ValueError: As `read_run`.
    """
    folder = Path(run_dir)
    table = read_run(folder)
    depths = (
        pl.col("q_pre").list.min().alias("q_pre_min"),
        pl.col("q_pre").list.max().alias("q_pre_max"),
        pl.col("q_hs").list.sum(),
    )
    table = table.with_columns(depths)
    names = ("loss", "accuracy", "streak", "tau")
    file = folder / VALIDATION_NAME
    if not file.is_file() or not file.stat().st_size:
        return table.with_columns(pl.lit(None, pl.Float64).alias(f"held_out_{name}") for name in names)
    scores = read_run(file).select("step", *(pl.col(name).cast(pl.Float64).alias(f"held_out_{name}") for name in names))
    return table.join(scores, on="step", how="left", maintain_order="left")


def position_table(
    correct: Sequence[int], total: Sequence[int], survived: Sequence[int], reachable: Sequence[int]
) -> pl.DataFrame:
    """Tabulate how often each position of a block is right.

    Args:
        correct: Right tokens at positions 1, 2, ...
        total: Scored tokens there.
        survived: Blocks that are right from position 1 through this one.
        reachable: Blocks whose positions 1 through this one are all scored.

    Returns:
        One row a position that any block is scored through: position, accuracy, survival (shares), num_tokens,
        num_blocks.

    Raises:
        ValueError: If the lengths differ.
    """
    if not len(correct) == len(total) == len(survived) == len(reachable):
        counts = [len(correct), len(total), len(survived), len(reachable)]
        raise ValueError(f"the counts are of {counts} positions; legal: the same number")
    table = pl.DataFrame(
        {
            "position": np.arange(1, len(correct) + 1),
            "num_right": np.asarray(correct, np.int64),
            "num_tokens": np.asarray(total, np.int64),
            "num_survived": np.asarray(survived, np.int64),
            "num_blocks": np.asarray(reachable, np.int64),
        }
    ).filter(pl.col("num_blocks") > 0)
    return table.select(
        "position",
        (pl.col("num_right") / pl.col("num_tokens")).alias("accuracy"),
        (pl.col("num_survived") / pl.col("num_blocks")).alias("survival"),
        "num_tokens",
        "num_blocks",
    )


def tau_by_slice(
    accepted: np.ndarray,
    sample_ids: np.ndarray,
    slices: Sequence[str | None],
    *,
    most_slices: int = 8,
    order: Sequence[str] = (),
    num_draws: int = 1_000,
    seed: int = 0,
) -> pl.DataFrame:
    """Tabulate the acceptance length of parts of the data, with an interval each.

    The interval is a bootstrap over samples, not over blocks: blocks of one sample are much alike, and an interval over
    them would be too narrow. Over a single sample it is that sample's own value and says nothing.

    Args:
        accepted: int64 (num_blocks,), accepted draft tokens of each block, the bonus token not counted.
        sample_ids: int64 (num_blocks,), the sample that each block is of.
        slices: Name of the slice that each block is in; None stands for blocks of no known slice.
        most_slices: Slices that get a row, >= 1: those with most blocks. The others are taken together.
        order: Names in the order to show; others follow, those with most blocks first.
        num_draws: Resamplings, >= 1.
        seed: Of them, >= 0.

    Returns:
        Rows of all blocks, of each slice and of the rest: slice, tau, tau_low, tau_high (the middle 95 % of the
        resampled means), num_samples, num_blocks.

    Raises:
        ValueError: If there is no block, or the lengths differ.
    """
    accepted, sample_ids = np.asarray(accepted, np.int64), np.asarray(sample_ids, np.int64)
    if not len(accepted) or not len(accepted) == len(sample_ids) == len(slices):
        raise ValueError(
            f"there are {len(accepted)} blocks, {len(sample_ids)} sample ids and {len(slices)} slices; legal: one of "
            f"each for every block, and at least one block"
        )
    names = np.asarray(["unknown" if name is None else str(name) for name in slices], dtype=object)
    found, counts = np.unique(names.astype(str), return_counts=True)
    largest = found[np.argsort(-counts, kind="stable")[:most_slices]].tolist()
    shown = [name for name in order if name in largest] + [name for name in largest if name not in order]
    rest = ~np.isin(names.astype(str), largest)
    parts = [(ALL, np.ones(len(names), bool)), *((name, names == name) for name in shown)]
    if rest.any():
        parts.append((f"{REST} ({len(found) - len(largest):,})", rest))
    rows = []
    for name, chosen in parts:
        sums, numbers = _by_sample(accepted[chosen], sample_ids[chosen])
        low, high = _interval(sums, numbers, num_draws, seed)
        rows.append(
            {
                "slice": name,
                "tau": 1 + float(sums.sum() / numbers.sum()),
                "tau_low": 1 + low,
                "tau_high": 1 + high,
                "num_samples": len(numbers),
                "num_blocks": int(numbers.sum()),
            }
        )
    return pl.DataFrame(rows)


def length_slices(lengths: np.ndarray, bucket_bounds: Sequence[int]) -> tuple[list[str], list[str]]:
    """Name the length bucket of each sample or block.

    Args:
        lengths: int (n,), in tokens.
        bucket_bounds: Half-open buckets as in `bucket_intervals`.

    Returns:
        A name each, such as "[128, 256) tokens", and all names, shortest bucket first.

    Raises:
        ValueError: If the bounds are not legal.
    """
    intervals = bucket_intervals(tuple(bucket_bounds))
    names = [f"{text} tokens" for text in intervals["bucket"].cast(pl.String).to_list()]
    starts = intervals["bucket_from_tokens"].to_numpy()
    return [names[place] for place in np.searchsorted(starts, lengths, side="right") - 1], names


def tree_table(
    node_budgets: Sequence[int],
    accepted_sums: Sequence[float],
    expected_sums: Sequence[float],
    *,
    chain_accepted_sum: float,
    num_blocks: int,
) -> pl.DataFrame:
    """Tabulate what draft trees of several sizes would bring.

    Args:
        node_budgets: Nodes of each tree, the anchor not counted.
        accepted_sums: Accepted draft tokens with each, over all blocks.
        expected_sums: Those that the drafter's own probabilities promise.
        chain_accepted_sum: Accepted draft tokens of the plain draft, over the same blocks.
        num_blocks: Blocks, >= 1.

    Returns:
        One row a node budget: node_budget, chain_tau, tree_tau, expected_tree_tau, gain_over_chain and
        calibration_gap (expected minus realised, above 0 where the drafter is too sure of itself), in tokens a
        verification, and num_blocks.

    Raises:
        ValueError: If there is no block.
    """
    if num_blocks < 1:
        raise ValueError(f"num_blocks is {num_blocks}; legal: at least one block with a scored slot")
    tree, expected, chain = pl.col("tree_tau"), pl.col("expected_tree_tau"), pl.col("chain_tau")
    return pl.DataFrame(
        {
            "node_budget": list(node_budgets),
            "chain_tau": [1 + chain_accepted_sum / num_blocks] * len(node_budgets),
            "tree_tau": [1 + each / num_blocks for each in accepted_sums],
            "expected_tree_tau": [1 + each / num_blocks for each in expected_sums],
        }
    ).with_columns(
        (tree - chain).alias("gain_over_chain"),
        (expected - tree).alias("calibration_gap"),
        pl.lit(num_blocks).alias("num_blocks"),
    )


def speed_up_table(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Tabulate ways of drafting with what was predicted and what was measured of them.

    Args:
        rows: One a way: kind ("chain" or "tree"), node_budget, tau, target_seconds, verify_seconds, drafter_seconds,
            speed_up, and, where it was decoded, measured_tau, measured_speed_up and is_equal; None or missing else.

    Returns:
        The rows, chain first and trees by size, with every column; times in milliseconds.

    Raises:
        ValueError: If there is no row, or a kind is another.
    """
    if not rows or any(row["kind"] not in ("chain", "tree") for row in rows):
        raise ValueError(f"the kinds are {[row['kind'] for row in rows]}; legal: at least one, chain or tree")
    schema = {
        "kind": pl.String,
        "node_budget": pl.Int64,
        "tau": pl.Float64,
        "target_seconds": pl.Float64,
        "verify_seconds": pl.Float64,
        "drafter_seconds": pl.Float64,
        "speed_up": pl.Float64,
        "measured_tau": pl.Float64,
        "measured_speed_up": pl.Float64,
        "is_equal": pl.Boolean,
    }
    table = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
    seconds = [name for name in schema if name.endswith("_seconds")]
    in_ms = [(1_000 * pl.col(name)).alias(name.replace("_seconds", "_ms")) for name in seconds]
    return (
        table.with_columns(in_ms)
        .select(name.replace("_seconds", "_ms") for name in schema)
        .sort("kind", "node_budget", maintain_order=True)
    )


def _by_sample(accepted: np.ndarray, sample_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums and numbers of blocks of each sample."""
    _, places = np.unique(sample_ids, return_inverse=True)
    return np.bincount(places, weights=accepted), np.bincount(places)


def _interval(sums: np.ndarray, numbers: np.ndarray, num_draws: int, seed: int) -> tuple[float, float]:
    """Draw as many samples as there are, with repeats, over and over: the middle of the means."""
    rng = np.random.default_rng((seed, len(numbers)))
    means = np.empty(num_draws)
    for draw in range(num_draws):
        drawn = rng.integers(0, len(numbers), len(numbers))
        means[draw] = sums[drawn].sum() / numbers[drawn].sum()
    low, high = np.quantile(means, [(1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2])
    return float(low), float(high)
