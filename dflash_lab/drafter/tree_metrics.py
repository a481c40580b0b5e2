"""What trees of drafts would bring: accepted lengths by node budget, calibration, and ranks of the right tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from dflash_lab.drafter.tree import best_first, check_log_probs, ranked, row_counts

RECALL_RANKS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class TreeMetrics:
    """Sums and counts over blocks; two of them add up, and ratios are taken at the very end.

    Args:
        node_budgets: Tree sizes, increasing, the anchor not counted.
        num_blocks: Blocks.
        chain_accepted_sum: Accepted tokens of the plain draft: right ones before the first wrong or unscored slot.
        accepted_sums: The same for the tree of each node budget: right tokens from slot 1 on that are a path in it.
        surrogate_sums: Accepted tokens that the drafter itself expects for each budget: its probabilities of all nodes,
            as deep as the block's slots are scored from slot 1 on.
        num_full_blocks: Blocks with every slot scored.
        full_chain_accepted_sum: As `chain_accepted_sum`, over full blocks.
        full_accepted_sums: As `accepted_sums`, over full blocks.
        gold_counts: Scored slots at each position 1..block_size - 1.
        gold_rank_sums: Ranks of their labels among the drafter's tokens, from 0, at each position.
        recall_hits: For each position, how many labels are among the best 1, 2, 4, ... 128 (`RECALL_RANKS`).
    """

    node_budgets: tuple[int, ...]
    num_blocks: int
    chain_accepted_sum: int
    accepted_sums: tuple[int, ...]
    surrogate_sums: tuple[float, ...]
    num_full_blocks: int
    full_chain_accepted_sum: int
    full_accepted_sums: tuple[int, ...]
    gold_counts: tuple[int, ...]
    gold_rank_sums: tuple[int, ...]
    recall_hits: tuple[tuple[int, ...], ...]

    def __add__(self, other: TreeMetrics) -> TreeMetrics:
        """Add the sums and counts of other blocks.

        Raises:
            ValueError: If they are of other node budgets or another block size.
        """
        if not isinstance(other, TreeMetrics):
            return NotImplemented
        if self.node_budgets != other.node_budgets or len(self.gold_counts) != len(other.gold_counts):
            raise ValueError(
                f"node_budgets {self.node_budgets} with {len(self.gold_counts)} slots and {other.node_budgets} with "
                f"{len(other.gold_counts)} do not add up; legal: the same of both"
            )
        summed = {
            field.name: _added(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
            if field.name != "node_budgets"
        }
        return TreeMetrics(node_budgets=self.node_budgets, **summed)

    @property
    def tree_tau(self) -> dict[int, float]:
        """Mean acceptance length by node budget, the bonus token counted; NaN without blocks."""
        return self._by_budget([1 + _ratio(accepted, self.num_blocks) for accepted in self.accepted_sums])

    @property
    def chain_tau(self) -> float:
        """Mean acceptance length of the plain draft, the bonus token counted: streak + 1."""
        return 1 + _ratio(self.chain_accepted_sum, self.num_blocks)

    @property
    def gain_over_chain(self) -> dict[int, float]:
        """Tokens a verification that a tree of each node budget brings over the plain draft."""
        return self._by_budget([_ratio(each - self.chain_accepted_sum, self.num_blocks) for each in self.accepted_sums])

    @property
    def surrogate_tau(self) -> dict[int, float]:
        """Acceptance length that the drafter expects by node budget, the bonus token counted."""
        return self._by_budget([1 + _ratio(expected, self.num_blocks) for expected in self.surrogate_sums])

    @property
    def calibration_gap(self) -> dict[int, float]:
        """Expected minus realised tokens a verification, by node budget; above 0 the drafter is too sure of itself."""
        pairs = zip(self.surrogate_sums, self.accepted_sums, strict=True)
        return self._by_budget([_ratio(expected - accepted, self.num_blocks) for expected, accepted in pairs])

    @property
    def full_tree_tau(self) -> dict[int, float]:
        """`tree_tau` over the blocks with every slot scored."""
        return self._by_budget([1 + _ratio(accepted, self.num_full_blocks) for accepted in self.full_accepted_sums])

    @property
    def full_chain_tau(self) -> float:
        """`chain_tau` over the blocks with every slot scored."""
        return 1 + _ratio(self.full_chain_accepted_sum, self.num_full_blocks)

    @property
    def gold_ranks(self) -> tuple[float, ...]:
        """Mean rank of the label at each position from 1 on, 0 being the best guess; NaN where none is scored."""
        return tuple(map(_ratio, self.gold_rank_sums, self.gold_counts))

    def recall_at(self, num_ranks: int) -> tuple[float, ...]:
        """Give the share of labels among the best `num_ranks` guesses, at each position from 1 on.

        Args:
            num_ranks: One of `RECALL_RANKS`.

        Raises:
            ValueError: If it is another.
        """
        if num_ranks not in RECALL_RANKS:
            raise ValueError(f"num_ranks is {num_ranks!r}; legal: {', '.join(map(str, RECALL_RANKS))}")
        column = RECALL_RANKS.index(num_ranks)
        return tuple(
            _ratio(hits[column], count) for hits, count in zip(self.recall_hits, self.gold_counts, strict=True)
        )

    def _by_budget(self, values: list[float]) -> dict[int, float]:
        return dict(zip(self.node_budgets, values, strict=True))


def default_node_budgets(block_size: int) -> tuple[int, ...]:
    """Give the node budgets that are reported: the nodes of a plain draft, 32, 64 and 128.

    Args:
        block_size: Positions a block, anchor included; at least 2.
    """
    return tuple(sorted({block_size - 1, 32, 64, 128}))


def measure_trees(
    log_probs: torch.Tensor,
    labels: torch.Tensor,
    scored: torch.Tensor,
    *,
    node_budgets: Sequence[int] | None = None,
) -> TreeMetrics:
    """Measure what trees of several sizes would have had accepted of some blocks.

    One search a block serves all budgets, since a tree is the beginning of every larger one. A few hundred sampled
    blocks are enough for a log line: 256 blocks of 15 slots over 4,096 tokens take half a second on one core.

    Args:
        log_probs: float (num_blocks, num_slots, V), the drafter's log-softmax at slots 1..block_size - 1.
        labels: int64 (num_blocks, num_slots), the right tokens; of no account where not scored.
        scored: bool (num_blocks, num_slots), True where a slot has a supervised label.
        node_budgets: Tree sizes, each >= 1; None takes `default_node_budgets`.

    Returns:
        Sums and counts.

    Raises:
        ValueError: If shapes do not fit, a label is out of the vocabulary, or a number is NaN or above 0.

    Source: DDTree, arXiv 2604.12989.
    """
    check_log_probs(log_probs, num_axes=3)
    num_blocks, num_slots, vocab_size = log_probs.shape
    for name, values in (("labels", labels), ("scored", scored)):
        if values.shape != (num_blocks, num_slots):
            raise ValueError(f"{name} has the shape {tuple(values.shape)}; legal: ({num_blocks}, {num_slots})")
    if scored.dtype != torch.bool:
        raise ValueError(f"scored is {scored.dtype}; legal: torch.bool")
    budgets = default_node_budgets(num_slots + 1) if node_budgets is None else tuple(sorted(set(node_budgets)))
    if not budgets or any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in budgets):
        raise ValueError(f"node_budgets is {node_budgets!r}; legal: one or more whole numbers >= 1")
    scored = scored.to(log_probs.device)
    labels = labels.to(log_probs.device).masked_fill(~scored, 0)
    if num_blocks and not 0 <= int(labels.min()) <= int(labels.max()) < vocab_size:
        raise ValueError(f"labels are in [{int(labels.min())}, {int(labels.max())}]; legal: [0, {vocab_size})")
    gold = gold_ranks(log_probs, labels).masked_fill(~scored, -1).cpu().numpy()  # (N, S)
    scored_np = scored.cpu().numpy()  # (N, S)
    best, _ = ranked(log_probs, budgets[-1], None)  # (N, S, K)
    depths_scored = np.logical_and.accumulate(scored_np, axis=1).sum(axis=1)  # (N,)
    full = depths_scored == num_slots  # (N,)
    accepted = np.zeros((num_blocks, len(budgets)), dtype=np.int64)
    expected = np.zeros((num_blocks, len(budgets)))
    for block, rows in enumerate(best.tolist()):
        accepted[block], expected[block] = _of_block(rows, gold[block].tolist(), int(depths_scored[block]), budgets)
    chain = np.logical_and.accumulate(gold == 0, axis=1).sum(axis=1)  # (N,)
    hits = gold[:, :, None] < np.asarray(RECALL_RANKS)  # (N, S, R)
    return TreeMetrics(
        node_budgets=budgets,
        num_blocks=num_blocks,
        chain_accepted_sum=int(chain.sum()),
        accepted_sums=tuple(accepted.sum(axis=0).tolist()),
        surrogate_sums=tuple(expected.sum(axis=0).tolist()),
        num_full_blocks=int(full.sum()),
        full_chain_accepted_sum=int(chain[full].sum()),
        full_accepted_sums=tuple(accepted[full].sum(axis=0).tolist()),
        gold_counts=tuple(scored_np.sum(axis=0).tolist()),
        gold_rank_sums=tuple((gold * scored_np).sum(axis=0).tolist()),
        recall_hits=tuple(map(tuple, (hits & scored_np[:, :, None]).sum(axis=0).tolist())),
    )


def gold_ranks(log_probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Rank each label among all tokens of its slot; equal ones stand in the order of their ids, as in `draft_tree`.

    Args:
        log_probs: float (..., V).
        labels: int64 (...), each in [0, V).

    Returns:
        int64 (...), 0 for the best guess.
    """
    gold = log_probs.gather(-1, labels[..., None])  # (..., 1)
    ranks = row_counts(log_probs > gold)  # (...)
    tied = row_counts(log_probs == gold) > 1  # (...)
    if tied.any():
        earlier = torch.arange(log_probs.shape[-1], device=labels.device) < labels[tied][:, None]  # (m, V)
        ranks[tied] += row_counts((log_probs[tied] == gold[tied]) & earlier)
    return ranks


def _of_block(
    best: list[list[float]], gold: list[int], depth_scored: int, budgets: tuple[int, ...]
) -> tuple[list[int], list[float]]:
    """Accepted tokens and expected ones of one block, by node budget."""
    arrivals: list[int] = []  # node number of the right path's first, second, ... token
    expected = np.zeros(budgets[-1] + 1)
    last, depth_reached = -1, 0
    totals, numbers = [], []
    for node, (parent, depth, rank, total) in enumerate(best_first(best, budgets[-1])):
        if depth > depth_scored:
            continue
        numbers.append(node + 1)
        totals.append(total)
        if parent == last and depth == depth_reached + 1 and rank == gold[depth - 1]:
            arrivals.append(node)
            last, depth_reached = node, depth
    expected[numbers] = np.exp(totals)
    expected = expected.cumsum()
    accepted = [sum(arrival < budget for arrival in arrivals) for budget in budgets]
    return accepted, [float(expected[budget]) for budget in budgets]


def _added(first: int | float | tuple, second: int | float | tuple) -> int | float | tuple:
    if isinstance(first, tuple):
        return tuple(_added(a, b) for a, b in zip(first, second, strict=True))
    return first + second


def _ratio(numerator: float, denominator: int) -> float:
    return numerator / denominator if denominator else float("nan")
