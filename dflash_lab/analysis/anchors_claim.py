"""Whether anchors per sample, and not only lengths, make a loss swing: the claim, with its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from dflash_lab.analysis.gradients import deviation_table, seed_table
from dflash_lab.analysis.seeds import PairedInterval, paired_interval
from dflash_lab.analysis.study_log import StudyLog

CONFIRMED, REFUTED, NOT_DECIDED = "confirmed", "refuted", "not decided"
# A spread that even budgets lower by less than this share is not driven by uneven ones.
SMALLEST_EFFECT = 0.10
_WORDS = {"supervised_token": "per supervised token", "batch": "per batch"}


@dataclass(frozen=True, kw_only=True)
class SwingRatio:
    """A spread with anchors per sample over that with another budget, on the same batches.

    Args:
        other: The other budget: "supervised_token" or "batch".
        ratio: Geometric mean over the seeds of the ratios of standard deviations; above 1 the loss swings more with
            anchors per sample.
        low: Lower end of its 95 % interval; None for one seed.
        high: Upper end.
        num_seeds: Seeds.
        method: How the interval was made.
        blocks_cv: Variation of blocks per step with the other budget: standard deviation / mean.
    """

    other: str
    ratio: float
    low: float | None
    high: float | None
    num_seeds: int
    method: str
    blocks_cv: float | None


@dataclass(frozen=True, kw_only=True)
class AnchorsClaim:
    """What the arms say of the claim.

    Args:
        verdict: "confirmed", "refuted" or "not decided".
        batching: The batching that all budgets were tried on.
        blocks_cv: Variation of blocks per step with anchors per sample.
        ratios: One a budget.
        size_by_blocks: Partial rank correlation between the size of a step's deviation and its blocks, with its mean
            length held fixed; below 0 where few blocks make large swings. None where it cannot be had.
        size_by_blocks_low: Lower end of the middle 95 % of resampled steps.
        size_by_blocks_high: Upper end.
        size_by_length: The same with blocks and mean length exchanged.
        size_by_length_low: Lower end.
        size_by_length_high: Upper end.
        num_steps: Steps behind the correlations, of all budgets and seeds.
    """

    verdict: str
    batching: str
    blocks_cv: float | None
    ratios: tuple[SwingRatio, ...]
    size_by_blocks: float | None
    size_by_blocks_low: float | None
    size_by_blocks_high: float | None
    size_by_length: float | None
    size_by_length_low: float | None
    size_by_length_high: float | None
    num_steps: int

    @property
    def text(self) -> str:
        """The numbers behind the verdict, in words."""
        parts = []
        for each in self.ratios:
            ends = "one seed, no interval" if each.low is None else f"{each.low:.2f} to {each.high:.2f}"
            parts.append(
                f"with anchors per sample the loss spreads {each.ratio:.2f} times as wide as with anchors "
                f"{_WORDS[each.other]} ({ends}; {each.num_seeds} {'seed' if each.num_seeds == 1 else 'seeds'})"
            )
        if self.size_by_blocks is not None:
            parts.append(
                f"the size of a step's swing has a partial rank correlation of {self.size_by_blocks:.2f} "
                f"({self.size_by_blocks_low:.2f} to {self.size_by_blocks_high:.2f}) with its blocks and of "
                f"{self.size_by_length:.2f} ({self.size_by_length_low:.2f} to {self.size_by_length_high:.2f}) with its "
                f"mean length, over {self.num_steps:,} steps"
            )
        return "; ".join(parts) or "there are no arms with other budgets, or too few steps to have a spread"


def anchors_claim(log: StudyLog, *, num_draws: int = 2_000, seed: int = 0) -> AnchorsClaim:
    """Weigh the claim that anchors per sample, and not only lengths, make the loss of steps swing.

    The same batches are trained with three budgets that open as many blocks an epoch; anchors per sample open many in a
    batch of short samples and few in one of long ones, the others do not. If that makes the loss swing, its spread
    around the trend is larger with anchors per sample. "confirmed": the interval of that ratio lies above 1 for every
    other budget. "refuted": it lies below 1.1 for every one. Else "not decided".

    Args:
        log: A study with several budgets on one batching.
        num_draws: Resamplings of steps, >= 1: of a seed and step, which all budgets share.
        seed: Of them, >= 0.

    Returns:
        The verdict with its numbers.

    Raises:
        ValueError: If the batching with several budgets lacks anchors per sample.
    """
    arms = log.arms.filter(pl.col("normalisation") == "window")
    others = arms.filter(pl.col("anchors_per") != "sample")
    batching = others["batching"][0] if len(others) else str(arms["batching"][0])
    labels = dict(arms.filter(pl.col("batching") == batching).select("anchors_per", "label").unique().iter_rows())
    if "sample" not in labels:
        raise ValueError(f"{batching} has no arm with anchors per sample; legal: one to compare the others with")
    measured = {row["label"]: row for row in _means(seed_table(log))}
    ratios = tuple(_ratios(log, labels, measured))
    chosen = deviation_table(log).filter(pl.col("label").is_in(list(labels.values())), pl.col("num_blocks") > 0)
    found = _partial(chosen, num_draws, seed) if ratios else [None] * 6
    return AnchorsClaim(
        verdict=_verdict(ratios),
        batching=batching,
        blocks_cv=measured[labels["sample"]]["blocks_cv"],
        ratios=ratios,
        size_by_blocks=found[0],
        size_by_blocks_low=found[1],
        size_by_blocks_high=found[2],
        size_by_length=found[3],
        size_by_length_low=found[4],
        size_by_length_high=found[5],
        num_steps=len(chosen),
    )


def budget_table(claim: AnchorsClaim) -> pl.DataFrame:
    """Tabulate the ratios of a claim.

    Args:
        claim: From `anchors_claim`.

    Returns:
        One row a budget: budget, blocks_cv, loss_spread_ratio (with anchors per sample over with this budget), low,
        high, num_seeds, method. The first row is anchors per sample itself, 1 by definition.
    """
    first = ("per sample", claim.blocks_cv, 1.0, None, None, None, None)
    rows = [
        (_WORDS[each.other], each.blocks_cv, each.ratio, each.low, each.high, each.num_seeds, each.method)
        for each in claim.ratios
    ]
    types = {
        "budget": pl.String, "blocks_cv": pl.Float64, "loss_spread_ratio": pl.Float64, "low": pl.Float64,
        "high": pl.Float64, "num_seeds": pl.Int64, "method": pl.String,
    }  # fmt: skip
    return pl.DataFrame([first, *rows], schema=types, orient="row")


def _means(seeds: pl.DataFrame) -> list[dict]:
    return seeds.group_by("label", maintain_order=True).agg(pl.col("blocks_cv").mean()).to_dicts()


def _ratios(log: StudyLog, labels: dict[str, str], measured: dict[str, dict]) -> list[SwingRatio]:
    seeds = seed_table(log).filter(pl.col("loss_spread") > 0)
    base = seeds.filter(pl.col("label") == labels["sample"]).select("seed", pl.col("loss_spread").alias("base"))
    found = []
    for other in (budget for budget in _WORDS if budget in labels):
        pairs = seeds.filter(pl.col("label") == labels[other]).join(base, on="seed")
        if not len(pairs):
            continue
        interval: PairedInterval = paired_interval(np.log(pairs["base"] / pairs["loss_spread"]).to_list())
        found.append(
            SwingRatio(
                other=other,
                ratio=math.exp(interval.mean),
                low=None if interval.low is None else math.exp(interval.low),
                high=None if interval.high is None else math.exp(interval.high),
                num_seeds=interval.n,
                method=interval.method,
                blocks_cv=measured[labels[other]]["blocks_cv"],
            )
        )
    return found


def _verdict(ratios: tuple[SwingRatio, ...]) -> str:
    if not ratios or any(each.low is None or each.high is None for each in ratios):
        return NOT_DECIDED
    if all(each.low > 1 for each in ratios):  # type: ignore[operator]
        return CONFIRMED
    return REFUTED if all(each.high < 1 + SMALLEST_EFFECT for each in ratios) else NOT_DECIDED  # type: ignore[operator]


def _partial(steps: pl.DataFrame, num_draws: int, seed: int) -> list[float | None]:
    """Give both partial rank correlations, each with its interval over resampled steps."""
    columns = np.column_stack(
        [
            _ranks(np.abs(steps["deviation"].to_numpy())),
            _ranks(steps["num_blocks"].to_numpy()),
            _ranks(steps["mean_length"].to_numpy()),
        ]
    )  # (n, 3)
    whole = _partial_pair(columns)
    # The budgets share the batches of a step: what they have in common must not count three times.
    _, groups = np.unique(
        steps.select(pl.struct("seed", "step").rank("dense")).to_series().to_numpy(), return_inverse=True
    )
    if whole is None or groups.max() < 9:
        return [None] * 6
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(groups))[:-1])
    rng = np.random.default_rng((seed, len(members)))
    drawn = []
    for _ in range(num_draws):
        rows = np.concatenate([members[place] for place in rng.integers(len(members), size=len(members))])
        pair = _partial_pair(columns[rows])
        if pair is not None:
            drawn.append(pair)
    if not drawn:
        return [None] * 6
    low, high = np.quantile(np.array(drawn), [0.025, 0.975], axis=0)
    return [whole[0], float(low[0]), float(high[0]), whole[1], float(low[1]), float(high[1])]


def _partial_pair(columns: np.ndarray) -> tuple[float, float] | None:
    """Correlate column 0 with 1 given 2, and with 2 given 1; None where a column does not vary or two are the same."""
    if (columns.std(axis=0) == 0).any():
        return None
    table = np.corrcoef(columns, rowvar=False)
    free = [1 - table[0, 1] ** 2, 1 - table[0, 2] ** 2, 1 - table[1, 2] ** 2]
    if min(free) < 1e-9:
        return None
    by_blocks = (table[0, 1] - table[0, 2] * table[1, 2]) / math.sqrt(free[1] * free[2])
    by_length = (table[0, 2] - table[0, 1] * table[1, 2]) / math.sqrt(free[0] * free[2])
    return float(by_blocks), float(by_length)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Mean ranks, so that equal values have equal ones."""
    return pl.Series(values).rank("average").to_numpy()
