"""Scores of a drafter on samples that it is not trained on, and of the draft trees it would give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import AnchorBudget, Drafter, TreeMetrics, default_node_budgets, measure_trees
from dflash_lab.feed import BatchPrefetcher
from dflash_lab.target import TargetFeatures, TargetModel
from dflash_lab.training.assembly import Split, plan_samples
from dflash_lab.training.config import RunConfig
from dflash_lab.training.micro_batch import Drafted, MicroBatch, MicroBatchSums, sums_of
from dflash_lab.training.run_log import finite

# Held-out samples are always scored as of this epoch: the same plan and the same anchors every time.
_EPOCH = 0


class HeldOutScorer:
    """Scores a drafter, always on the same held-out samples and anchors.

    Args:
        split: Which samples are held out.
        features_of: Runs the target.
        drafter: The drafter.
        target: Gives embedding and head, on the drafter's device.
        config: The run's settings.
    """

    def __init__(
        self, split: Split, features_of: TargetModel, drafter: Drafter, target: TargetModel, config: RunConfig
    ) -> None:
        self._split, self._features_of, self._drafter, self._config = split, features_of, drafter, config
        self._micro_batch = MicroBatch(drafter, target, config)
        self._target = target
        self._plan = None
        if split.held_out is not None:
            self._plan = plan_samples(split.held_out, split.held_out_ids, config.batching, epoch=_EPOCH)

    def score_held_out(self) -> dict[str, object]:
        """Score the held-out samples.

        Returns:
            Plain data: sums and counts, and loss, accuracy, streak, tau and full_tau, which are None where there is
            nothing to divide by; a loss that is not finite is None, too.
        """
        sums = MicroBatchSums.none(self._config.drafter.block_size)
        for drafted in self.drafted():
            sums = sums + sums_of(drafted.loss)
        scores = sums.scores
        return {
            "num_samples": len(self._split.held_out_ids),
            "loss_sum": finite(sums.loss_sum),
            "loss_weight": sums.loss_weight,
            "correct_by_position": list(scores.correct_by_position),
            "total_by_position": list(scores.total_by_position),
            "accepted_sum": scores.accepted_sum,
            "num_blocks": scores.num_blocks,
            "loss": finite(sums.loss_sum / sums.loss_weight) if sums.loss_weight else None,
            "accuracy": scores.accuracy,
            "streak": scores.streak,
            "tau": scores.tau,
            "full_tau": scores.full_tau,
        }

    def drafted(self) -> Iterator[Drafted]:
        """Run the drafter over the held-out samples, batch after batch."""
        assert self._plan is not None and self._split.held_out is not None
        budget = AnchorBudget(per="sample", amount=self._config.validation.anchors_per_sample)
        was_training = self._drafter.training
        self._drafter.eval()
        try:
            with torch.no_grad(), BatchPrefetcher(self._split.held_out, self._plan, num_workers=1, depth=2) as batches:
                for batch in batches:
                    features = self._features_of.features(batch, with_logits=self._config.loss.kind == "kl")
                    yield self._micro_batch.draft(features, budget=budget, epoch=_EPOCH)
        finally:
            self._drafter.train(was_training)

    def score_trees(self, window: Sequence[TargetFeatures], *, max_blocks: int) -> TreeMetrics | None:
        """Score draft trees on blocks of a step's own batches, without noise.

        Args:
            window: Features of the step.
            max_blocks: Most blocks; they are spread evenly over the first batch that has some.

        Returns:
            The sums, or None where no batch has a block, or the drafter gives no finite numbers.
        """
        was_training = self._drafter.training
        self._drafter.eval()
        try:
            with torch.no_grad():
                for features in window:
                    drafted = self._micro_batch.draft(features)
                    if len(drafted.blocks):
                        # A step that diverged ends the run by its loss; trees only look on.
                        if not bool(drafted.hidden.isfinite().all()):
                            return None
                        return trees_of(drafted, self._target, max_blocks=max_blocks)
        finally:
            self._drafter.train(was_training)
        return None


def trees_of(drafted: Drafted, target: TargetModel, *, max_blocks: int) -> TreeMetrics:
    """Measure the draft trees of some blocks, evenly spread.

    Args:
        drafted: Blocks and the drafter's states.
        target: Its head.
        max_blocks: Most blocks, >= 1.
    """
    count = len(drafted.blocks)
    chosen = torch.from_numpy(np.unique(np.linspace(0, count - 1, min(count, max_blocks)).astype(np.int64)))
    chosen = chosen.to(drafted.hidden.device)
    log_probs = target.lm_head(drafted.hidden[chosen, 1:]).float().log_softmax(-1)  # (n, B - 1, V)
    return measure_trees(
        log_probs,
        drafted.blocks.labels[chosen, 1:],
        drafted.blocks.scored[chosen, 1:],
        node_budgets=default_node_budgets(drafted.blocks.block_size),
    )


def tree_fields(trees: TreeMetrics) -> dict[str, object]:
    """Give tree sums as fields of `StepMetrics`."""
    return {
        "tree_budgets": trees.node_budgets,
        "tree_accepted_sum": tuple(map(float, trees.accepted_sums)),
        "tree_expected_sum": tuple(map(float, trees.surrogate_sums)),
        "chain_accepted_sum": float(trees.chain_accepted_sum),
        "num_tree_blocks": trees.num_blocks,
    }


def score_drafter(
    drafter: Drafter,
    target: TargetModel,
    dataset: PreloadedDataset,
    sample_ids: np.ndarray,
    config: RunConfig,
) -> Iterator[Drafted]:
    """Run a drafter over samples of a data set, for tables of its quality.

    Args:
        drafter: The drafter, on the target's device.
        target: Its target.
        dataset: The samples.
        sample_ids: int64, ascending, those to score.
        config: The run's settings; `validation.anchors_per_sample` anchors of each.

    Returns:
        Blocks, states and losses, batch after batch; no gradients.
    """
    split = Split(train_ids=np.arange(0), held_out_ids=np.asarray(sample_ids, np.int64), held_out=dataset)
    return HeldOutScorer(split, target, drafter, target, config).drafted()
