"""What one strategy does over several epochs: sums and counts epoch after epoch, divided at the very end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash_lab.analysis.anchors import AnchorBudgets, draft_blocks
from dflash_lab.analysis.buckets import run_summary
from dflash_lab.analysis.costs import CostModel
from dflash_lab.analysis.plans import PairCount, batch_buckets, pairs_together_again
from dflash_lab.analysis.windows import WindowMix, plan_window_mix, pure_window_floor, shuffle_window_mix
from dflash_lab.batching import BatchPlan, least_possible_batches


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What the measures need besides the plans.

    Args:
        bucket_bounds: Buckets of window mixes and, for strategies without buckets, of runs.
        loss_tokens: int64 (num_samples,), supervised tokens by sample id; None takes every token.
        anchors: Budgets of anchors.
        cost_model: What a batch costs.
    """

    bucket_bounds: tuple[int, ...]
    loss_tokens: np.ndarray | None
    anchors: AnchorBudgets
    cost_model: CostModel


@dataclass
class _Windows:
    """Total variation and mean length of windows, epoch after epoch."""

    variations: list[np.ndarray] = field(default_factory=list)
    mean_lengths: list[np.ndarray] = field(default_factory=list)

    def add(self, mix: WindowMix) -> None:
        self.variations.append(mix.total_variation)
        self.mean_lengths.append(mix.mean_lengths)

    def row(self, ending: str) -> dict[str, float | None]:
        variations, means = np.concatenate(self.variations), np.concatenate(self.mean_lengths)
        return {
            f"window_tv{ending}": float(variations.mean()) if variations.size else None,
            f"window_mean_length_cv{ending}": coefficient_of_variation(means),
        }


@dataclass
class StrategyMeasures:
    """Sums over the epochs of one strategy; `add` each plan in the order of the epochs, then take the `row`.

    Args:
        measuring: Bounds, supervised tokens, budgets of anchors and the cost model.
    """

    measuring: Measuring
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    real: int = 0
    padded: int = 0
    cost: float = 0.0
    left_out: int = 0
    runs: int = 0
    longest_run: int = 0
    pairs: int = 0
    pairs_again: int = 0
    fewest_batches: int | None = 0
    budget_tokens: int = 0
    length_cv: float = 0.0
    lag_product: float = 0.0
    lag_square: float = 0.0
    windows: _Windows = field(default_factory=_Windows)
    shuffled: _Windows = field(default_factory=_Windows)
    floors: list[float] = field(default_factory=list)
    blocks: dict[str, list[np.ndarray]] = field(default_factory=dict)
    last: BatchPlan | None = None

    def add(self, plan: BatchPlan, *, fewest_batches: int | None) -> None:
        """Measure the plan of the next epoch.

        Args:
            plan: The plan.
            fewest_batches: The least that any padded plan of its samples needs; None for packed rows.
        """
        bounds = self.measuring.bucket_bounds
        self.epochs += 1
        self.batches += len(plan)
        self.samples += len(plan.sample_ids)
        self.real += plan.real_tokens
        self.padded += plan.padded_tokens
        self.cost += float(self.measuring.cost_model.batch_costs(plan).sum())
        self.left_out += plan.num_left_out
        self.budget_tokens += len(plan) * plan.config.token_budget
        self.fewest_batches = None if fewest_batches is None else self.fewest_batches + fewest_batches
        runs = run_summary(batch_buckets(plan, bounds))
        self.runs += runs.num_runs
        self.longest_run = max(self.longest_run, runs.longest_batches)
        if self.last is not None:
            pairs = pairs_together_again(self.last, plan)
            self.pairs += pairs.num_pairs
            self.pairs_again += pairs.num_together_again
        self._add_lengths(plan)
        mix = plan_window_mix(plan, bounds)
        self.windows.add(mix)
        self.floors.append(pure_window_floor(mix.data_mix, plan.config.window))
        self.shuffled.add(shuffle_window_mix(plan, bounds))
        for budget, counts in draft_blocks(plan, self.measuring.anchors, self.measuring.loss_tokens).items():
            self.blocks.setdefault(budget, []).append(counts)
        self.last = plan

    def _add_lengths(self, plan: BatchPlan) -> None:
        sizes, tokens = plan.batch_sizes, plan.real_tokens_by_batch
        means = tokens / sizes
        # In two passes: the one-pass form loses the small spread of a batch of nearly one length.
        deviations = plan.sample_lengths - np.repeat(means, sizes)
        variances = np.add.reduceat(np.square(deviations), plan.offsets[:-1]) / sizes
        self.length_cv += float((np.sqrt(variances) / means).sum())
        off = means - means.mean()
        self.lag_product += float((off[1:] * off[:-1]).sum())
        self.lag_square += float(np.square(off).sum())

    def row(self) -> dict[str, object]:
        """Divide: the figures of `compare_strategies`, name, strategy and relative throughput left out."""
        blocks = {budget: np.concatenate(counts) for budget, counts in self.blocks.items()}
        again = PairCount(num_pairs=self.pairs, num_together_again=self.pairs_again)
        return {
            "num_epochs": self.epochs,
            "num_batches": self.batches / self.epochs,
            "padding_efficiency": self.real / self.padded,
            "budget_use": self.real / self.budget_tokens,
            "fill": self.padded / self.budget_tokens,
            "real_tokens_per_batch": self.real / self.batches,
            "samples_per_batch": self.samples / self.batches,
            "excess_over_least": None if self.fewest_batches is None else self.batches / self.fewest_batches - 1,
            "longest_run_batches": self.longest_run,
            "mean_run_batches": self.batches / self.runs,
            # Where no two samples share a batch none meet again.
            "share_pairs_together_again": 0.0 if self.epochs > 1 and not self.pairs else again.share,
            "length_cv_in_batch": self.length_cv / self.batches,
            "lag1_mean_length": self.lag_product / self.lag_square if self.lag_square > 0 else None,
            **self.windows.row(""),
            "window_tv_floor": float(np.mean(self.floors)),
            **self.shuffled.row("_of_shuffle"),
            **{f"draft_blocks_per_batch_by_{budget}": float(counts.mean()) for budget, counts in blocks.items()},
            **{f"draft_blocks_cv_by_{budget}": coefficient_of_variation(counts) for budget, counts in blocks.items()},
            "real_tokens_per_cost": self.real / self.cost,
            "num_left_out": self.left_out / self.epochs,
        }


class FewestBatches:
    """The least batches of a plan's samples, counted once for plans of the same samples and limits."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}

    def of(self, plan: BatchPlan) -> int | None:
        """Give the least that any padded plan needs; None for packed rows, which may need fewer."""
        if plan.layout == "packed":
            return None
        config = plan.config
        limits = (config.token_budget, config.max_batch_size, config.max_seq_len)
        if limits not in self._known:
            self._known[limits] = least_possible_batches(
                plan.sample_lengths, config.token_budget, config.max_batch_size
            )
        return self._known[limits]


def coefficient_of_variation(values: np.ndarray) -> float | None:
    """Give standard deviation / mean; None where there are no values or the mean is 0.

    Args:
        values: Numbers (n,), >= 0.
    """
    return float(values.std() / values.mean()) if values.size and values.mean() > 0 else None
