"""How good a drafter is on samples that it was not trained on, and how fast it decodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import (
    BlockScores,
    DecodedPrompt,
    Drafter,
    TreeMetrics,
    accepted_prefix,
    greedy_decode,
    mean_acceptance_length,
    measure_forward_seconds,
    predicted_speed_up,
    speculative_decode,
)
from dflash_lab.drafter.verifying import disagreements
from dflash_lab.target import TransformersTarget
from dflash_lab.training.assembly import plan_samples
from dflash_lab.training.config import RunConfig
from dflash_lab.training.validation import score_drafter, trees_of


@dataclass(frozen=True, kw_only=True, eq=False)
class DrafterQuality:
    """A drafter's blocks on held-out samples, under the samples' own tokens (teacher forcing).

    Args:
        accepted: int64 (N,), accepted draft tokens of each block with a scored slot, the bonus token not counted.
        sample_ids: int64 (N,), the sample that each block is of.
        lengths: int32 (N,), tokens of that sample after the cut.
        sources: Source of that sample, None where it has none.
        scores: Counts of all blocks.
        trees: What draft trees would bring, over at most the number of blocks that was asked for.
    """

    accepted: np.ndarray
    sample_ids: np.ndarray
    lengths: np.ndarray
    sources: list[str | None]
    scores: BlockScores
    trees: TreeMetrics


@dataclass(frozen=True, kw_only=True)
class DraftingSpeed:
    """One way of drafting: what single passes promise, and what decoding gave.

    Args:
        kind: "chain" or "tree".
        node_budget: Drafted tokens that are verified at once.
        tau: Acceptance length that the prediction is made with.
        target_seconds: A pass of the target over one token.
        verify_seconds: A pass of the target over the draft and its anchor.
        drafter_seconds: A draft.
        speed_up: Predicted, times as fast as plain decoding.
        measured_tau: Acceptance length in decoding; None where it was not decoded.
        measured_speed_up: Seconds of plain decoding over those of this way, reading the prompt left out; likewise.
        is_equal: Whether its tokens were those of plain decoding; likewise.
    """

    kind: str
    node_budget: int
    tau: float
    target_seconds: float
    verify_seconds: float
    drafter_seconds: float
    speed_up: float
    measured_tau: float | None = None
    measured_speed_up: float | None = None
    is_equal: bool | None = None


@dataclass(frozen=True, kw_only=True)
class DecodedBothWays:
    """Prompts decoded plainly and with a drafter.

    Args:
        plain: Without.
        drafted: With.
    """

    plain: tuple[DecodedPrompt, ...]
    drafted: tuple[DecodedPrompt, ...]

    @property
    def num_equal(self) -> int:
        """Prompts behind which both ways wrote the same tokens."""
        return sum(one.token_ids == two.token_ids for one, two in zip(self.plain, self.drafted, strict=True))

    @property
    def num_verifications(self) -> int:
        """Passes of the target behind the prompts, with the drafter."""
        return sum(len(each.acceptance_lengths) for each in self.drafted)

    @property
    def tau(self) -> float | None:
        """Tokens a verification; None where nothing was verified, since every text ended at once."""
        return mean_acceptance_length(self.drafted) if self.num_verifications else None

    @property
    def speed_up(self) -> float | None:
        """Seconds without over seconds with the drafter, reading prompts left out; None where nothing was verified."""
        return _decoding_seconds(self.plain) / _decoding_seconds(self.drafted) if self.num_verifications else None


def evaluate_drafter(
    drafter: Drafter,
    target: TransformersTarget,
    dataset: PreloadedDataset,
    sample_ids: np.ndarray,
    config: RunConfig,
    *,
    tree_blocks: int = 384,
) -> DrafterQuality:
    """Score a drafter on samples, block by block.

    Args:
        drafter: The drafter.
        target: Its target, on the same device.
        dataset: Where the samples are.
        sample_ids: int64, ascending, the samples to score.
        config: The run's settings; `validation.anchors_per_sample` blocks of each sample.
        tree_blocks: Most blocks whose draft trees are measured, spread evenly over the batches; >= 1.

    Returns:
        Counts and accepted lengths. The same samples and settings give the same blocks every time.

    Raises:
        ValueError: If no block has a scored slot; the drafter is of another target or block size; or the ids are none.
    """
    sample_ids = _checked_ids(sample_ids, len(dataset))
    wrong = disagreements(drafter.config, target)
    wrong |= (
        {}
        if drafter.config.block_size == config.drafter.block_size
        else {"block_size": (drafter.config.block_size, config.drafter.block_size)}
    )
    if wrong:
        name, (own, other) = next(iter(wrong.items()))
        raise ValueError(f"{name} of the drafter is {own}, and that of target and settings is {other}; legal: the same")
    if isinstance(tree_blocks, bool) or not isinstance(tree_blocks, int) or tree_blocks < 1:
        raise ValueError(f"tree_blocks is {tree_blocks!r}; legal: a whole number >= 1")
    plan = plan_samples(dataset, sample_ids, config.batching, epoch=0)
    a_batch = -(-tree_blocks // max(1, len(plan)))
    scores = BlockScores.none(config.drafter.block_size)
    trees: TreeMetrics | None = None
    accepted, of_samples = [], []
    with torch.no_grad():
        drafts = score_drafter(drafter, target, dataset, sample_ids, config)
        for ids, drafted in zip(plan, drafts, strict=True):
            loss = drafted.loss
            has_any = loss.scored[:, 1:].any(dim=1)  # (N,)
            if not bool(has_any.any()):
                continue
            scores = scores + BlockScores.of(loss.correct, loss.scored)
            accepted.append(accepted_prefix((loss.correct & loss.scored)[:, 1:])[has_any].cpu().numpy())
            of_samples.append(np.asarray(ids)[drafted.blocks.documents[has_any].cpu().numpy()])
            measured = trees_of(drafted, target, max_blocks=a_batch)
            trees = measured if trees is None else trees + measured
    if trees is None:
        raise ValueError(f"none of the {len(sample_ids)} samples has a supervised token behind another; legal: some do")
    blocks = np.concatenate(of_samples)
    lengths = np.minimum(dataset.lengths[blocks], config.batching.max_seq_len)
    sources = [None] * len(blocks) if dataset.sources is None else [dataset.sources[each] for each in blocks.tolist()]
    return DrafterQuality(
        accepted=np.concatenate(accepted),
        sample_ids=blocks,
        lengths=lengths,
        sources=sources,
        scores=scores,
        trees=trees,
    )


def _checked_ids(sample_ids: object, num_samples: int) -> np.ndarray:
    ids = np.asarray(sample_ids)
    is_whole = ids.ndim == 1 and len(ids) > 0 and np.issubdtype(ids.dtype, np.integer)
    if not is_whole or ids.min() < 0 or ids.max() >= num_samples or (np.diff(ids) <= 0).any():
        raise ValueError(
            f"sample_ids has the shape {ids.shape} and dtype {ids.dtype}; legal: at least one whole number in "
            f"[0, {num_samples}), each larger than the one before"
        )
    return ids.astype(np.int64)


def decode_both_ways(
    target: TransformersTarget,
    drafter: Drafter,
    prompts: Sequence[np.ndarray],
    max_new_tokens: int,
    *,
    end_ids: Collection[int] = (),
    tree_budget: int | None = None,
) -> DecodedBothWays:
    """Decode prompts greedily without and with a drafter.

    Args:
        target: The target.
        drafter: Its drafter.
        prompts: int64 (n,) each.
        max_new_tokens: Most tokens a prompt, >= 1.
        end_ids: Ids that end a text.
        tree_budget: Nodes of the draft tree; None verifies the plain draft.

    Returns:
        Both, prompt by prompt.

    Raises:
        ValueError: As `speculative_decode`; or if there is no prompt.
    """
    if not len(prompts):
        raise ValueError("there are no prompts; legal: at least one")
    asked = [torch.as_tensor(np.asarray(prompt, np.int64)) for prompt in prompts]
    plain: list[DecodedPrompt] = []
    drafted: list[DecodedPrompt] = []
    # By turns: where others use the machine, too, both ways meet the same load.
    for prompt in asked:
        plain += greedy_decode(target, [prompt], max_new_tokens, eos_token_id=end_ids)
        drafted += speculative_decode(
            target, drafter, [prompt], max_new_tokens, eos_token_id=end_ids, tree_budget=tree_budget
        )
    return DecodedBothWays(plain=tuple(plain), drafted=tuple(drafted))


def measure_drafting_speed(
    target: TransformersTarget,
    drafter: Drafter,
    quality: DrafterQuality,
    prompts: Sequence[np.ndarray],
    max_new_tokens: int,
    *,
    end_ids: Collection[int] = (),
    measured_budgets: Sequence[int] = (),
    repeats: int = 25,
) -> tuple[DraftingSpeed, ...]:
    """Predict what the plain draft and trees of each node budget gain, and decode to see.

    The prediction takes acceptance lengths under teacher forcing and medians of single passes behind a context as long
    as the prompts with half of their answers. It leaves out the building of trees, which the measurement has.

    Args:
        target: The target.
        drafter: Its drafter, on the same device.
        quality: What `evaluate_drafter` found.
        prompts: int64 (n,) each.
        max_new_tokens: Most tokens a prompt, >= 1.
        end_ids: Ids that end a text.
        measured_budgets: Node budgets whose trees are decoded with, of those in `quality`; the plain draft always is.
        repeats: Passes whose median is taken, >= 1.

    Returns:
        The plain draft, and a tree of each node budget.

    Raises:
        ValueError: If a measured budget is none of the trees'; or as `decode_both_ways`.
    """
    trees = quality.trees
    unknown = sorted(set(measured_budgets) - set(trees.node_budgets))
    if unknown:
        raise ValueError(f"measured_budgets has {unknown}; legal: {', '.join(map(str, trees.node_budgets))}")
    num_slots = drafter.config.block_size - 1
    chain_tau = trees.chain_tau
    ways = [("chain", num_slots, chain_tau), *(("tree", n, tau) for n, tau in trees.tree_tau.items())]
    context = max(1, round(float(np.mean([len(prompt) for prompt in prompts])) + max_new_tokens / 2))
    widths = sorted({1, *(budget + 1 for _, budget, _ in ways)})
    passes = measure_forward_seconds(target, drafter, context_length=context, widths=widths, repeats=repeats)
    found: list[DraftingSpeed] = []
    for kind, budget, tau in ways:
        decoded = None
        if kind == "chain" or budget in measured_budgets:
            nodes = None if kind == "chain" else budget
            decoded = decode_both_ways(target, drafter, prompts, max_new_tokens, end_ids=end_ids, tree_budget=nodes)
        seconds = passes.target_seconds
        found.append(
            DraftingSpeed(
                kind=kind,
                node_budget=budget,
                tau=tau,
                target_seconds=seconds[1],
                verify_seconds=seconds[budget + 1],
                drafter_seconds=passes.drafter_seconds,
                speed_up=predicted_speed_up(tau, seconds[1], seconds[budget + 1], passes.drafter_seconds),
                measured_tau=None if decoded is None else decoded.tau,
                measured_speed_up=None if decoded is None else decoded.speed_up,
                is_equal=None if decoded is None else decoded.num_equal == len(prompts),
            )
        )
    return tuple(found)


def _decoding_seconds(decoded: Sequence[DecodedPrompt]) -> float:
    return sum(each.total_seconds - each.prefill_seconds for each in decoded)
