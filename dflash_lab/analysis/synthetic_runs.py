"""Runs whose resets have a known cause, to try the diagnosis on."""

from __future__ import annotations

import numpy as np
import polars as pl

from dflash_lab.batching.config import whole_number

RUN_KINDS = (
    "none",
    "bucket_change",
    "bucket_runs",
    "checkpoint",
    "learning_rate",
    "noise",
    "composition",
    "non_finite",
    "queue_stall",
)
# The source run's bounds, and a mix of batches like its own: 52 % in the last bucket.
_BOUNDS = np.array([0, 770, 1216, 1728, 2432, 3296, 8192])
_SHARES = np.array([0.05, 0.08, 0.10, 0.12, 0.13, 0.52])
_TOKEN_BUDGET, _MOST_SAMPLES = 49_152, 64
# Steps from a cause to the first loss it touches: saves and updates come after their own step's loss.
_FIRST_LAG = {"checkpoint": 1, "learning_rate": 1, "non_finite": 1}
# Share of the causes that bring a reset; the others pass.
_BRINGS = 0.9
_WARM_UP = 60


def synthetic_run(
    kind: str,
    *,
    num_steps: int = 4_000,
    seed: int = 0,
    num_resets: int = 30,
    recovery_steps: int = 40,
    checkpoint_every: int = 150,
    accumulation: int = 4,
) -> pl.DataFrame:
    """Make the log of a run whose loss resets all have one cause.

    The loss falls fast and then slowly, with noise that is autocorrelated, has heavy tails and grows with the loss, and
    lies higher for short batches. Every suspect of `attribute_spikes` is there in every run, as often as the planted
    one: saves, jumps of the learning rate and of the noise, skipped steps, stalls, bucket runs and changes. A cause
    brings a reset in nine of ten cases, at its first loss or the one after, unless one is under way.

    Args:
        kind: The cause: one of `RUN_KINDS`. "bucket_change": the largest changes of the mean bucket; "bucket_runs":
            the longest runs of batches of one bucket; "composition": the steps with fewest draft blocks; "none":
            resets at random steps.
        num_steps: Optimizer steps, >= 300.
        seed: Of everything random, >= 0.
        num_resets: Causes, about; at most a fiftieth of the steps. 0 gives a run without resets and is for "none".
        recovery_steps: Steps until the loss is back, about, >= 5.
        checkpoint_every: Steps between saves, >= 2.
        accumulation: Batches a step, >= 1.

    Returns:
        One row a step, the run log's columns as `read_run` gives them, and checkpoint and planted_reset (bool: a save
        behind this step, a reset that begins here).

    Raises:
        ValueError: If a setting is out of range.
    """
    if kind not in RUN_KINDS:
        raise ValueError(f"kind is {kind!r}; legal: {', '.join(RUN_KINDS)}")
    whole_number("num_steps", num_steps, least=300)
    whole_number("num_resets", num_resets, least=0 if kind == "none" else 1, most=num_steps // 50)
    whole_number("recovery_steps", recovery_steps, least=5)
    whole_number("checkpoint_every", checkpoint_every, least=2)
    whole_number("accumulation", accumulation, least=1)
    rng = np.random.default_rng((whole_number("seed", seed, least=0), RUN_KINDS.index(kind), num_steps))
    number = max(num_resets, 5)
    columns = _batches(num_steps, accumulation, rng)
    happens = {
        "learning_rate": _at_random(num_steps, number, rng),
        "noise": _at_random(num_steps, number, rng),
        "non_finite": _at_random(num_steps, number, rng),
        "queue_stall": _at_random(num_steps, number, rng),
        "none": _at_random(num_steps, num_resets, rng),
        "checkpoint": np.arange(1, num_steps + 1) % checkpoint_every == 0,
        "bucket_change": _most(np.abs(np.diff(columns["mean_bucket"], prepend=columns["mean_bucket"][0])), number),
        "bucket_runs": _most(columns["longest_run"], number),
        "composition": _most(-columns["num_blocks"].astype(float), number),
    }
    onsets = _onsets(happens[kind], _FIRST_LAG.get(kind, 0), recovery_steps, happens["non_finite"], rng)
    loss = _loss(columns["mean_bucket"], onsets, recovery_steps, rng)
    # Half of the skipped steps have a loss, and a gradient that is not finite.
    without_loss = happens["non_finite"] & (rng.random(num_steps) < 0.5)
    blocks = columns["num_blocks"]
    weight = blocks * 8.0
    skipped = np.where(without_loss, "non-finite loss", np.where(happens["non_finite"], "non-finite gradient", ""))
    steps = np.arange(1, num_steps + 1)
    learning_rate = np.minimum(steps / _WARM_UP, 1) * (0.6 + 0.4 * np.cos(np.pi * steps / num_steps) ** 2)
    stalls = happens["queue_stall"]
    wait = 0.02 * rng.gamma(2.0, size=num_steps) + stalls * rng.uniform(4, 20, num_steps)
    borders = np.searchsorted(np.arange(1, 4) * num_steps // 4, np.arange(num_steps), side="right")
    table = {
        "step": steps,
        "epoch": borders,
        "loss_sum": loss * weight,
        "loss_weight": weight,
        "loss": loss,
        "num_blocks": blocks,
        "grad_norm": 0.4 * loss * np.exp(0.2 * rng.standard_normal(num_steps)),
        "learning_rate": 6e-4 * learning_rate * _steady(happens["learning_rate"], (1.0, 0.6, 0.35), rng),
        "noise": 0.1 * _steady(happens["noise"], (1.0, 0.6, 1.5), rng),
        "updated": ~happens["non_finite"],
        "skipped": skipped,
        "bucket_ids": columns["bucket_ids"],
        "num_samples": columns["num_samples"],
        "real_tokens": columns["real_tokens"],
        "padded_tokens": columns["padded_tokens"],
        "length_min": columns["length_min"],
        "length_max": columns["length_max"],
        "wait_seconds": wait,
        "q_pre": np.where(stalls[:, None], 0, rng.integers(20, 51, (num_steps, 2))),
        "q_hs": np.where(stalls, 0, rng.integers(1, 4, num_steps))[:, None],
        "session": (np.arange(num_steps) >= num_steps * 0.37).astype(int),
        "checkpoint": happens["checkpoint"],
        "planted_reset": onsets,
    }
    lists = ("bucket_ids", "num_samples", "real_tokens", "padded_tokens", "q_pre", "q_hs")
    frame = pl.DataFrame({name: values for name, values in table.items()})
    frame = frame.with_columns(pl.col(name).arr.to_list() for name in lists)
    lost = pl.Series(without_loss)
    return frame.with_columns(
        pl.when(lost).then(None).otherwise(pl.col(name)).alias(name) for name in ("loss", "loss_sum", "loss_weight")
    )


def _batches(num_steps: int, accumulation: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Batches in random order, as the source run had them, with what a step's log says of them."""
    shape = (num_steps, accumulation)
    buckets = rng.choice(len(_SHARES), shape, p=_SHARES)
    low, high = np.maximum(_BOUNDS[buckets], 65), _BOUNDS[buckets + 1]
    longest = high - (rng.random(shape) ** 2 * 0.5 * (high - low)).astype(int) - 1
    shortest = low + (rng.random(shape) ** 2 * 0.3 * (longest - low)).astype(int)
    sizes = np.minimum(_TOKEN_BUDGET // longest, _MOST_SAMPLES)
    padded = sizes * longest
    real = (padded * rng.uniform(0.7, 0.95, shape)).astype(int)
    # Draft blocks of a sample vary with its loss tokens, so that blocks are more than the samples over again.
    blocks = np.maximum(1, sizes * 16 * np.exp(0.6 * rng.standard_normal(shape))).astype(int)
    flat = buckets.ravel()
    places = np.arange(flat.size)
    starts = np.concatenate([[True], flat[1:] != flat[:-1]])
    in_a_row = (places - np.maximum.accumulate(np.where(starts, places, 0)) + 1).reshape(shape)
    return {
        "bucket_ids": buckets,
        "num_samples": sizes,
        "real_tokens": real,
        "padded_tokens": padded,
        "length_min": shortest.min(axis=1),
        "length_max": longest.max(axis=1),
        "num_blocks": blocks.sum(axis=1),
        "mean_bucket": buckets.mean(axis=1),
        "longest_run": in_a_row.max(axis=1).astype(float),
    }


def _at_random(num_steps: int, number: int, rng: np.random.Generator) -> np.ndarray:
    events = np.zeros(num_steps, bool)
    events[rng.choice(np.arange(_WARM_UP + 1, num_steps), number, replace=False)] = True
    return events


def _most(measure: np.ndarray, number: int) -> np.ndarray:
    """The steps with the highest values, about twice as many as wanted: neighbours bring one reset together."""
    border = np.sort(measure)[-max(2, round(1.5 * number))]
    events = measure >= border
    return measure > border if events.sum() > 3 * number and (measure > border).any() else events


def _onsets(
    causes: np.ndarray, first_lag: int, recovery_steps: int, skipped: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    onsets = np.zeros(len(causes), bool)
    free_from = _WARM_UP
    for cause in np.flatnonzero(causes).tolist():
        onset = cause + first_lag + int(rng.random() < 0.3)
        if onset >= free_from and onset < len(causes) and not skipped[onset] and rng.random() < _BRINGS:
            onsets[onset] = True
            free_from = onset + round(1.5 * recovery_steps)
    return onsets


def _loss(mean_bucket: np.ndarray, onsets: np.ndarray, recovery_steps: int, rng: np.random.Generator) -> np.ndarray:
    num_steps = len(onsets)
    steps = np.arange(num_steps)
    level = 0.55 + 3.0 * np.exp(-steps / (num_steps / 40)) + 0.6 * np.exp(-steps / (num_steps / 3))
    shocks = rng.standard_normal(num_steps)
    wander = np.empty(num_steps)
    last = 0.0
    for step, shock in enumerate(shocks.tolist()):
        last = 0.6 * last + 0.8 * shock
        wander[step] = last
    noise = 0.04 * wander + 0.02 * rng.standard_t(3, num_steps) - 0.04 * (mean_bucket - mean_bucket.mean())
    jumps = np.zeros(num_steps)
    for onset in np.flatnonzero(onsets).tolist():
        after = np.arange(num_steps - onset)
        # Four time constants take a jump to a fiftieth.
        jumps[onset:] += rng.uniform(3, 20) * np.exp(-4 * after / recovery_steps)
    return level * np.maximum(1 + noise, 0.05) * (1 + jumps)


def _steady(changes: np.ndarray, values: tuple[float, ...], rng: np.random.Generator) -> np.ndarray:
    """A schedule that takes another of the values at each change."""
    moves = 1 + (rng.random(int(changes.sum())) < 0.5)
    places = np.concatenate([[0], np.cumsum(moves) % len(values)])
    return np.asarray(values)[places[np.cumsum(changes)]]
