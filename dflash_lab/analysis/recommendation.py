"""The plan that we would choose for given lengths, and why, in three sentences with numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import polars as pl

from dflash_lab.analysis.comparison import compare_strategies
from dflash_lab.analysis.costs import PADDED_TOKENS, CostModel
from dflash_lab.batching import SOURCE_RUN_BUCKET_BOUNDS, BatchingConfig, plan_epoch

YOURS = "yours"
# The full shuffle: what the company of samples is measured by.
RANDOM = "random"
_PAIRS = "share_pairs_together_again"
_SPEED = "relative_throughput_by_cost"
# One pair in twenty meeting again still is a new composition; frozen batches have all of them. Fewer samples meet again
# more often: with 64 cuts 0.5 % of the source run's 902,087, and 9 % of 50,000.
_FEW_PAIRS = 0.05
_FROZEN = 0.5
# Where nothing that mixes as well as that is fast enough, a quarter of the pairs still is far from frozen.
_HALF_FROZEN = 0.25
# Samples that meet others are worth a fifth of the speed of frozen batches, not more.
_LEAST_SPEED = 0.8
# Faster or slower by less than this is less than two runs of one plan differ by.
_AS_FAST = 0.01
# Mixes of windows that differ by less than this differ by as much from seed to seed.
_AS_MIXED = 0.01
# So much faster, and a plan may mix less well: its steps cost that much less.
_MUCH_FASTER = 1.25


@dataclass(frozen=True)
class Recommendation:
    """What to plan with, and why; `str` gives the sentences.

    Attributes:
        config: The settings to take; the very ones that were given where nothing beats them.
        is_yours: Whether they are those.
        sentences: Three, each with its numbers: speed, mixing, and what limits the plan.
        table: What `compare_strategies` gave for all plans tried; "yours" is the given one.
    """

    config: BatchingConfig
    is_yours: bool
    sentences: tuple[str, str, str]
    table: pl.DataFrame = field(repr=False, compare=False)

    def __str__(self) -> str:
        return " ".join(self.sentences)


def recommend(
    lengths: object,
    config: BatchingConfig,
    *,
    padded: bool = True,
    cost_model: CostModel = PADDED_TOKENS,
    bucket_bounds: tuple[int, ...] = SOURCE_RUN_BUCKET_BOUNDS,
    epochs: int = 2,
) -> Recommendation:
    """Try the plans that are worth it beside the one in use, and choose by `choose_plan`.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens, before the cut.
        config: The settings in use; budget, cut, cap, window and seed are kept.
        padded: True for a target that takes padded batches only, False for one that takes packed rows too and keeps
            their samples apart.
        cost_model: What a batch costs: time ~ padded tokens, QUADRATIC_ATTENTION, or one calibrated from a run.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens: the buckets that a window's mix is told by.
        epochs: Epochs to plan, >= 2.

    Returns:
        The choice and three sentences.

    Raises:
        ValueError: If an argument is out of range or a plan is refused.
    """
    if epochs < 2:
        raise ValueError(f"epochs is {epochs}; legal: a whole number >= 2, since company is compared between epochs")
    configs = {YOURS: config} | _candidates(config, bucket_bounds, padded=padded)
    table = compare_strategies(
        lengths, configs, epochs=epochs, bucket_bounds=bucket_bounds, cost_model=cost_model, baseline=YOURS
    )
    chosen = choose_plan(table)
    rows = {row["strategy"]: row for row in table.iter_rows(named=True)}
    ours, yours = rows[chosen], rows[YOURS]
    sentences = (
        _speed_sentence(table, ours, yours, configs[chosen]),
        _mixing_sentence(ours, yours),
        _limit_sentence(ours, cost_model, _attention_share(lengths, configs[chosen], cost_model)),
    )
    return Recommendation(configs[chosen], chosen == YOURS, sentences, table)


def choose_plan(table: pl.DataFrame) -> str:
    """Choose the fastest plan that mixes samples well; the one in use unless another is worth the change.

    A plan mixes well if few of the pairs that share a batch share one again (5 %, or twice as many as in a full
    shuffle, or as many as with the plan in use if that is not frozen) and its windows are as near to the data's mix as
    those of the plan in use. To a plan that is faster by a quarter or more, twice as many pairs and any windows are
    allowed. Of plans as fast as the fastest, within 1 %, the one whose windows are nearest to the data is taken. It is
    worth the change if it is faster by 1 % or more, or as fast with windows nearer by 0.01 or more, or if the plan in
    use is frozen. Frozen batches are given up for at least 0.8 of their speed; where nothing that mixes well has that,
    for a quarter of the pairs; and where nothing has that either, they are kept.

    Args:
        table: One row a plan, "yours" and "random" among them: strategy, share_pairs_together_again,
            relative_throughput_by_cost, window_tv.

    Returns:
        The name of the chosen row.

    Raises:
        ValueError: If one of the two rows is missing.
    """
    rows = {row["strategy"]: row for row in table.iter_rows(named=True)}
    missing = [name for name in (YOURS, RANDOM) if name not in rows]
    if missing:
        raise ValueError(f"the table has no strategy {', '.join(missing)}; it has {', '.join(rows)}")
    yours = rows[YOURS]
    is_frozen = _pairs(yours) > max(_FROZEN, 2 * _pairs(rows[RANDOM]))
    most_pairs = max(_FEW_PAIRS, 2 * _pairs(rows[RANDOM]), 0.0 if is_frozen else _pairs(yours))
    fit = _fitting(rows, yours, most_pairs, is_frozen)
    if not fit and is_frozen:
        fit = _fitting(rows, yours, _HALF_FROZEN, is_frozen)
    if not fit:
        return YOURS
    fastest = max(row[_SPEED] for row in fit)
    best = min((row for row in fit if row[_SPEED] >= fastest * (1 - _AS_FAST)), key=_variation)
    is_faster = best[_SPEED] >= yours[_SPEED] * (1 + _AS_FAST)
    is_nearer = best[_SPEED] >= yours[_SPEED] * (1 - _AS_FAST) and _variation(best) <= _variation(yours) - _AS_MIXED
    return best["strategy"] if is_frozen or is_faster or is_nearer else YOURS


def _fitting(
    rows: dict[str, dict[str, object]], yours: dict[str, object], most_pairs: float, is_frozen: bool
) -> list[dict[str, object]]:
    """Rows that mix well enough, and cost no more than mixing is worth."""
    fit = []
    for row in rows.values():
        is_much_faster = row[_SPEED] >= yours[_SPEED] * _MUCH_FASTER
        has_few_pairs = _pairs(row) <= most_pairs * (2 if is_much_faster else 1)
        has_near_windows = is_much_faster or _variation(row) <= _variation(yours) + _AS_MIXED
        is_fast_enough = not is_frozen or row[_SPEED] >= yours[_SPEED] * _LEAST_SPEED
        if has_few_pairs and has_near_windows and is_fast_enough:
            fit.append(row)
    return fit


def _candidates(config: BatchingConfig, bounds: tuple[int, ...], *, padded: bool) -> dict[str, BatchingConfig]:
    balanced = replace(config, order="window_balanced", bucket_bounds=bounds)
    tried = {
        RANDOM: replace(config, strategy="random", order="random"),
        "bucketed": replace(balanced, strategy="bucketed"),
        "pooled": replace(balanced, strategy="pooled", pool_size=8192),
        **{f"capacity, {cuts} cuts": replace(balanced, strategy="capacity", num_cuts=cuts) for cuts in (0, 8, 64)},
    }
    return tried if padded else tried | {"packed": replace(config, strategy="packed", order="random")}


def _speed_sentence(
    table: pl.DataFrame, ours: dict[str, object], yours: dict[str, object], config: BatchingConfig
) -> str:
    if ours["strategy"] == YOURS:
        others = table.filter(pl.col("strategy") != YOURS)
        fastest = others.row(others[_SPEED].arg_max(), named=True)
        return (
            f"Keep {_described(config)}: {_batches(ours)} an epoch at padding efficiency "
            f"{ours['padding_efficiency']:.3f}, and nothing tried is worth the change; the fastest other plan, "
            f"{fastest['strategy']}, is modelled {fastest[_SPEED] / yours[_SPEED]:.3f} times as fast, with "
            f"{_percent(fastest[_PAIRS])} of pairs together again."
        )
    if ours["padding_efficiency"] == yours["padding_efficiency"]:
        return (
            f"Take {_described(config)}: the same batches as yours, {_batches(ours)} an epoch at padding efficiency "
            f"{ours['padding_efficiency']:.3f}, in another order."
        )
    return (
        f"Take {_described(config)}: {_batches(ours)} an epoch instead of {yours['num_batches']:,.0f}, "
        f"padding efficiency {ours['padding_efficiency']:.3f} instead of {yours['padding_efficiency']:.3f}, modelled "
        f"{ours[_SPEED] / yours[_SPEED]:.3f} times as fast as yours."
    )


def _mixing_sentence(ours: dict[str, object], yours: dict[str, object]) -> str:
    is_yours = ours["strategy"] == YOURS
    pairs = "" if is_yours else f" ({_percent(yours[_PAIRS])} with yours)"
    text = f"Of the pairs of samples that share a batch {_percent(ours[_PAIRS])} share one again an epoch later{pairs}"
    if ours["window_tv"] is None or yours["window_tv"] is None:
        return f"{text}, and there are too few batches for an accumulation window."
    with_yours = "" if is_yours else f"{yours['window_tv']:.2f} with yours, "
    return (
        f"{text}, and the token mix of an accumulation window is {ours['window_tv']:.2f} from that of the data "
        f"({with_yours}{ours['window_tv_of_shuffle']:.2f} in a full shuffle)."
    )


def _limit_sentence(ours: dict[str, object], cost_model: CostModel, attention: float) -> str:
    if cost_model.per_token_squared:
        text = (
            f"Attention between tokens is {_percent(attention)} of the modelled cost, and the lengths inside a batch "
            f"spread by {_percent(ours['length_cv_in_batch'])} of their mean, which "
        )
        if ours["config_strategy"] == "packed":
            return f"{text}costs packed rows nothing, since samples of a row do not see each other."
        return f"{text}padding pays for in tokens and once more in pairs of them."
    if ours["config_strategy"] == "packed":
        return (
            f"Its rows are {_percent(ours['budget_use'])} full, so that no plan at this budget is more than "
            f"{_percent(1 / ours['budget_use'] - 1)} faster; {ours['samples_per_batch']:.1f} samples share a row, "
            f"which the target must keep apart."
        )
    return (
        f"It has {_percent(ours['excess_over_least'])} more batches than the fewest that any padded plan of these "
        f"lengths can have, and the lengths inside a batch spread by {_percent(ours['length_cv_in_batch'])} of their "
        f"mean; only packed rows mix lengths inside a batch without padding."
    )


def _attention_share(lengths: object, config: BatchingConfig, cost_model: CostModel) -> float:
    if not cost_model.per_token_squared:
        return 0.0
    plan = plan_epoch(lengths, config, epoch=0)
    linear = len(plan) * cost_model.per_batch + plan.padded_tokens * cost_model.per_token
    return float(1 - linear / cost_model.batch_costs(plan).sum())


def _described(config: BatchingConfig) -> str:
    details = {"capacity": f" ({config.num_cuts} cuts)", "pooled": f" (pools of {config.pool_size:,})"}
    return f'strategy "{config.strategy}"{details.get(config.strategy, "")} in order "{config.order}"'


def _batches(row: dict[str, object]) -> str:
    return f"{row['num_batches']:,.0f} batch{'' if row['num_batches'] == 1 else 'es'}"


def _pairs(row: dict[str, object]) -> float:
    """No two samples in a batch: none that could meet again."""
    return row[_PAIRS] or 0.0


def _variation(row: dict[str, object]) -> float:
    """No full window: none that could be told apart."""
    return row["window_tv"] or 0.0


def _percent(share: float | None) -> str:
    percent = 100 * (share or 0.0)
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.4g} %"
