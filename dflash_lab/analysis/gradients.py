"""What batching does to loss and gradients: the arms of a study, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.analysis.seeds import PairedInterval, paired_interval
from dflash_lab.analysis.study_log import StudyLog
from dflash_lab.analysis.swings import (
    WARM_UP_SHARE,
    count_modes,
    count_spikes,
    deviations_from_trend,
    lag_correlation,
    variance_split,
)

# Gradients change while a drafter learns; the noise scale is that of the later part of a run.
LATE_SHARE = 0.5
NO_DIFFERENCE = "no difference seen"


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The simple noise scale B = S / |G|^2: the batch at which noise and gradient are of one size.

    Args:
        scale: In the unit of the sizes; None where the estimate of |G|^2 is not above 0, which means that the noise
            leaves nothing of it to be seen.
        noise: S, mean over the steps.
        gradient_square: |G|^2, mean over the steps.
        num_steps: Steps with at least two micro-batches that weigh something.
    """

    scale: float | None
    noise: float
    gradient_square: float
    num_steps: int


def noise_scale(
    micro_norms: Sequence[Sequence[float]], micro_sizes: Sequence[Sequence[float]], norms: Sequence[float]
) -> NoiseScale:
    """Estimate the simple noise scale from the micro-batches of steps.

    Of each step: E|g_i|^2 = |G|^2 + S / n_i and E|g|^2 = |G|^2 + S / sum(n), so that S and |G|^2 follow from the mean
    over the micro-batches and from the whole. Both are averaged over the steps, and divided at the very end: a mean of
    ratios would have no finite expectation. Samples are taken as drawn one by one; where a micro-batch is of one
    bucket, what buckets differ by counts as noise, too, which is what an optimizer sees.

    Args:
        micro_norms: Of each step, the norm of each micro-batch's mean gradient.
        micro_sizes: Of each step, how many each is a mean of, > 0; blocks or samples.
        norms: Of each step, the norm of its whole mean gradient.

    Returns:
        The estimate; of no usable step, None and zeros.

    Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A.1.
    """
    noises, squares = [], []
    for small, sizes, norm in zip(micro_norms, micro_sizes, norms, strict=True):
        counts = np.asarray(sizes, dtype=np.float64)
        usable = counts > 0
        if usable.sum() < 2:
            continue
        mean_square = float(np.square(np.asarray(small, dtype=np.float64)[usable]).mean())
        inverse, whole = float((1 / counts[usable]).mean()), 1 / float(counts.sum())
        noise = (mean_square - norm**2) / (inverse - whole)
        noises.append(noise)
        squares.append(norm**2 - noise * whole)
    if not noises:
        return NoiseScale(scale=None, noise=0.0, gradient_square=0.0, num_steps=0)
    noise, square = float(np.mean(noises)), float(np.mean(squares))
    return NoiseScale(
        scale=noise / square if square > 0 else None, noise=noise, gradient_square=square, num_steps=len(noises)
    )


def deviation_table(log: StudyLog) -> pl.DataFrame:
    """Take warm-up and trend out of every arm's losses.

    Args:
        log: The study.

    Returns:
        Its steps after the first fifth that have a loss, with deviation: loss minus a cubic in the logarithm of the
        step, fitted to each arm and seed by itself.
    """
    parts = []
    for _, rows in _runs(log.steps):
        late = rows.filter(pl.col("step") > WARM_UP_SHARE * rows["step"].max(), pl.col("loss").is_not_null())
        found = deviations_from_trend(late["step"].to_numpy(), late["loss"].to_numpy())
        parts.append(late.with_columns(pl.Series("deviation", found, dtype=pl.Float64)))
    return pl.concat(parts)


def seed_table(log: StudyLog) -> pl.DataFrame:
    """Measure each arm and seed by itself.

    Args:
        log: The study.

    Returns:
        One row an arm and seed: label, seed, loss_spread (standard deviation of the loss around its trend, nats),
        lag_correlation, num_spikes, num_deviations, grad_norm and cosine_with_last (means over the steps),
        grad_norm_cv, noise_scale_blocks, noise_scale_samples (null where it is not to be seen, and where micro-batches
        are divided by themselves), blocks_per_step, blocks_cv, steps, tau (at the end, held out), tau_at_equal_padded
        (where the arm that needs fewest padded tokens ends; by straight lines between scores), equal_padded_tokens.
    """
    equal = int(log.arms["padded_tokens_trained"].min())
    deviations = {key: rows for key, rows in _runs(deviation_table(log))}
    micro = {key: rows for key, rows in _runs(log.micro)}
    scores = {key: rows for key, rows in _runs(log.scores)}
    rows = []
    for key, steps in _runs(log.steps):
        label, seed = key
        own = deviations[key]["deviation"].to_numpy() if key in deviations else np.empty(0)
        normalisation = steps["normalisation"][0]
        late = micro[key].filter(pl.col("step") > (1 - LATE_SHARE) * steps["step"].max())
        scales = {
            unit: _noise_scale(late, steps, f"num_{unit}") if normalisation == "window" else None
            for unit in ("blocks", "samples")
        }
        blocks = steps["num_blocks"].to_numpy()
        taus = scores[key].drop_nulls("tau")
        rows.append(
            {
                "label": label,
                "seed": seed,
                "loss_spread": float(own.std()) if len(own) > 1 else None,
                "lag_correlation": lag_correlation(own),
                "num_spikes": count_spikes(own),
                "num_deviations": len(own),
                "grad_norm": steps["grad_norm"].mean(),
                "grad_norm_cv": _cv(steps["grad_norm"].drop_nulls().to_numpy()),
                "cosine_with_last": steps["cosine_with_last"].mean(),
                "noise_scale_blocks": scales["blocks"],
                "noise_scale_samples": scales["samples"],
                "blocks_per_step": float(blocks.mean()),
                "blocks_cv": _cv(blocks),
                "steps": len(steps),
                "tau": taus["tau"][-1] if len(taus) else None,
                "tau_at_equal_padded": _tau_at(taus, equal),
                "equal_padded_tokens": equal,
            }
        )
    floats = [name for name in rows[0] if name not in ("label", "seed", "num_spikes", "num_deviations", "steps")]
    return pl.DataFrame(rows, infer_schema_length=None).cast({name: pl.Float64 for name in floats})


def study_table(log: StudyLog) -> pl.DataFrame:
    """Put the arms side by side.

    Args:
        log: The study.

    Returns:
        One row an arm: label, num_seeds, num_steps (of all seeds), and over the seeds mean and standard deviation (null
        for one seed) of tau, tau_at_equal_padded, loss_spread, grad_norm, cosine_with_last, noise_scale_blocks,
        noise_scale_samples, blocks_per_step and blocks_cv, as NAME and NAME_sd; lag_correlation (mean);
        spikes_per_thousand; loss_modes (of the deviations of all seeds; null for few); between_variance,
        within_variance (of the deviations, by the bucket with most loss weight in the step; their sum is the
        variance), between_share, between_share_by_chance; micro_between_share (the same of micro-batches).
    """
    seeds, deviations = seed_table(log), deviation_table(log)
    rows = []
    for label in log.labels:
        own = seeds.filter(pl.col("label") == label)
        steps = deviations.filter(pl.col("label") == label)
        row: dict[str, object] = {"label": label, "num_seeds": len(own), "num_steps": int(own["steps"].sum())}
        for name in _MEASURES:
            row |= {name: own[name].mean(), f"{name}_sd": own[name].std()}
        checked = int(own["num_deviations"].sum())
        row["lag_correlation"] = own["lag_correlation"].mean()
        row["spikes_per_thousand"] = 1_000 * int(own["num_spikes"].sum()) / checked if checked else None
        row["loss_modes"] = count_modes(steps["deviation"].to_numpy())
        row |= _split(steps["deviation"], steps["bucket_id"])
        row["micro_between_share"] = _micro_between(log.micro.filter(pl.col("label") == label), steps)
        rows.append(row)
    floats = [name for name in rows[0] if name not in ("label", "num_seeds", "num_steps", "loss_modes")]
    table = pl.DataFrame(rows, infer_schema_length=None)
    return table.cast({name: pl.Float64 for name in floats} | {"loss_modes": pl.Int64})


_MEASURES = (
    "tau",
    "tau_at_equal_padded",
    "loss_spread",
    "grad_norm",
    "cosine_with_last",
    "noise_scale_blocks",
    "noise_scale_samples",
    "blocks_per_step",
    "blocks_cv",
)


def tau_curve(log: StudyLog, *, labels: Sequence[str] = ()) -> pl.DataFrame:
    """Follow held-out tau over what was trained.

    Args:
        log: The study.
        labels: Arms to follow; empty takes all.

    Returns:
        One row an arm and scoring: label, batching, real_tokens, padded_tokens (means over the seeds), tau, tau_low,
        tau_high (mean, least and most over the seeds), num_seeds.
    """
    numbered = log.scores.drop_nulls("tau").with_columns(
        pl.int_range(pl.len()).over("label", "seed").alias("number"),
    )
    tau = pl.col("tau")
    grouped = numbered.group_by("label", "batching", "number", maintain_order=True).agg(
        pl.col("real_tokens_trained").mean().alias("real_tokens"),
        pl.col("padded_tokens_trained").mean().alias("padded_tokens"),
        tau.mean(),
        tau.min().alias("tau_low"),
        tau.max().alias("tau_high"),
        pl.len().alias("num_seeds"),
    )
    chosen = [label for label in log.labels if label in labels or not labels]
    order = pl.DataFrame({"label": chosen}, schema={"label": pl.String}).with_row_index("place")
    return grouped.join(order, on="label").sort("place", "number").drop("place", "number")


def compare_arms(seeds: pl.DataFrame, measure: str, *, reference: str, labels: Sequence[str] = ()) -> pl.DataFrame:
    """Compare a measure of every arm with that of one, paired over the seeds.

    Each interval is one of 95 % by itself: of 20 comparisons without a difference, one is expected to show one.

    Args:
        seeds: From `seed_table`.
        measure: Name of its column.
        reference: Label of the arm to compare with.
        labels: Arms to compare; empty takes all others.

    Returns:
        One row an arm: label, reference, difference (mean over the seeds, arm minus reference), low, high (null for one
        pair), num_pairs, method, seen ("higher", "lower", or "no difference seen"). Arms without a pair are left out.

    Raises:
        ValueError: If there is no such arm or measure.
    """
    if measure not in seeds.columns:
        raise ValueError(f"measure is {measure!r}; legal: {', '.join(seeds.columns)}")
    known = seeds["label"].unique(maintain_order=True).to_list()
    if reference not in known:
        raise ValueError(f"reference is {reference!r}; legal: {', '.join(known)}")
    base = seeds.filter(pl.col("label") == reference).select("seed", pl.col(measure).alias("base"))
    rows = []
    for label in labels or [name for name in known if name != reference]:
        pairs = seeds.filter(pl.col("label") == label).join(base, on="seed").drop_nulls([measure, "base"])
        if len(pairs):
            found = paired_interval((pairs[measure] - pairs["base"]).to_list())
            rows.append({"label": label, "reference": reference, **interval_row(found)})
    names = {"label": pl.String, "reference": pl.String, **_INTERVAL_TYPES}
    return pl.DataFrame(rows, schema=names)


_INTERVAL_TYPES = {
    "difference": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "num_pairs": pl.Int64,
    "method": pl.String,
    "seen": pl.String,
}


def interval_row(found: PairedInterval) -> dict[str, object]:
    """Give an interval as columns, with what is seen in words."""
    seen = ("higher" if found.mean > 0 else "lower") if found.excludes_zero else NO_DIFFERENCE
    values = (found.mean, found.low, found.high, found.n, found.method, seen)
    return dict(zip(_INTERVAL_TYPES, values, strict=True))


def _runs(table: pl.DataFrame) -> Iterator[tuple[tuple[str, int], pl.DataFrame]]:
    yield from table.group_by("label", "seed", maintain_order=True)  # type: ignore[misc]


def _noise_scale(micro: pl.DataFrame, steps: pl.DataFrame, sizes: str) -> float | None:
    by_step = micro.drop_nulls("grad_norm").group_by("step", maintain_order=True).agg("grad_norm", sizes)
    joined = by_step.join(steps.select("step", pl.col("grad_norm").alias("norm")).drop_nulls(), on="step")
    return noise_scale(joined["grad_norm"].to_list(), joined[sizes].to_list(), joined["norm"].to_list()).scale


def _cv(values: np.ndarray) -> float | None:
    return float(values.std() / values.mean()) if len(values) and values.mean() else None


def _tau_at(scores: pl.DataFrame, padded_tokens: int) -> float | None:
    points = scores["padded_tokens_trained"].to_numpy()
    if not len(points) or not points[0] <= padded_tokens <= points[-1]:
        return None
    return float(np.interp(padded_tokens, points, scores["tau"].to_numpy()))


def _split(values: pl.Series, groups: pl.Series) -> dict[str, float | None]:
    names = ("between_variance", "within_variance", "between_share", "between_share_by_chance")
    if not len(values):
        return dict.fromkeys(names)
    split = variance_split(values.to_numpy(), groups.to_numpy())
    return dict(zip(names, (split.between, split.within, split.between_share, split.share_by_chance), strict=True))


def _micro_between(micro: pl.DataFrame, steps: pl.DataFrame) -> float | None:
    """The same split of single micro-batches, around the trend of their steps."""
    trend = steps.select("seed", "step", (pl.col("loss") - pl.col("deviation")).alias("trend"))
    joined = micro.drop_nulls("loss").join(trend, on=["seed", "step"])
    return _split(joined["loss"] - joined["trend"], joined["bucket_id"])["between_share"]
