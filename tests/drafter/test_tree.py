"""Trees of drafts: best by brute force, nested, closed; and their metrics, worked by hand and by plain walks."""

import itertools
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_lab.drafter.tree import draft_chain, draft_tree, ranked
from dflash_lab.drafter.tree_metrics import (
    RECALL_RANKS,
    TreeMetrics,
    default_node_budgets,
    gold_ranks,
    measure_trees,
)


def random_log_probs(*shape, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).log_softmax(-1)


def paths_of(tree):
    """Token tuples of all nodes, in order."""
    paths = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def all_paths(log_probs):
    """Every path through the slots, with its summed log-probability and ranks."""
    num_slots, width = log_probs.shape
    order = [sorted(range(width), key=lambda token: (-float(row[token]), token)) for row in log_probs]
    found = {}
    for depth in range(1, num_slots + 1):
        for ranks in itertools.product(range(width), repeat=depth):
            tokens = tuple(order[slot][rank] for slot, rank in enumerate(ranks))
            total = 0.0
            for slot, token in enumerate(tokens):
                total += float(log_probs[slot, token])
            found[tokens] = (total, ranks)
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("node_budget", [1, 2, 3, 4, 5])
def test_no_other_tree_of_its_size_has_more_probability(seed, node_budget):
    log_probs = random_log_probs(2, 3, seed=seed)
    sums = {path: math.exp(total) for path, (total, _) in all_paths(log_probs).items()}
    best = max(
        sum(sums[path] for path in nodes)
        for nodes in itertools.combinations(sums, node_budget)
        if all(len(path) == 1 or path[:-1] in nodes for path in nodes)
    )
    tree = draft_tree(log_probs, node_budget)
    assert float(tree.log_probs.exp().sum()) == pytest.approx(best, abs=1e-12)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 90), st.integers(0, 10_000), st.booleans())
@settings(deadline=None, max_examples=60)
def test_nodes_are_all_paths_sorted_by_probability_then_ranks(num_slots, width, node_budget, seed, tied):
    if tied:
        # Powers of a half: sums are exact, and many paths have the same.
        choices = torch.tensor([0.5, 0.25, 0.125, 0.125])[:width]
        orders = np.random.default_rng(seed).permuted(np.tile(np.arange(width), (num_slots, 1)), axis=1)
        log_probs = torch.log2(choices)[torch.from_numpy(orders)].double()
    else:
        log_probs = random_log_probs(num_slots, width, seed=seed).double()
    expected = sorted(all_paths(log_probs).items(), key=lambda item: (-item[1][0], item[1][1]))[:node_budget]
    tree = draft_tree(log_probs, node_budget)
    assert paths_of(tree) == [path for path, _ in expected]
    assert tree.log_probs.tolist() == pytest.approx([total for _, (total, _) in expected], abs=1e-9)
    assert tree.depths.tolist() == [len(path) for path, _ in expected]
    assert tree.ranks.tolist() == [ranks[-1] for _, (_, ranks) in expected]


def test_parents_come_first_and_smaller_trees_are_beginnings():
    log_probs = random_log_probs(15, 50)
    large = draft_tree(log_probs, 128)
    assert len(large) == 128
    assert (large.parents < torch.arange(128)).all()
    assert (large.log_probs.diff() <= 0).all()
    for node_budget in (1, 15, 32, 64, 127):
        small = draft_tree(log_probs, node_budget)
        for name in ("tokens", "parents", "depths", "ranks", "log_probs"):
            assert torch.equal(getattr(small, name), getattr(large.prefix(node_budget), name))


def test_best_columns_with_their_tokens_give_the_same_tree():
    log_probs = random_log_probs(7, 200, seed=3)
    best = log_probs.topk(32, dim=-1)
    assert paths_of(draft_tree(best.values, 32, token_ids=best.indices)) == paths_of(draft_tree(log_probs, 32))


def test_a_uniform_drafter_gives_the_first_tokens_in_breadth():
    # Each depth divides the probability by 5: five nodes of depth 1, then depth 2 by ranks.
    tree = draft_tree(torch.full((3, 5), 0.2).log(), 8)
    assert paths_of(tree) == [(0,), (1,), (2,), (3,), (4,), (0, 0), (0, 1), (0, 2)]


def test_ties_that_do_not_fit_are_taken_in_the_order_of_ids():
    log_probs = random_log_probs(1, 1000)
    log_probs[0, 900] = 0.0
    log_probs[0, 7:900] = -5.0
    log_probs[0, :7] = -9.0
    log_probs[0, 901:] = -9.0
    values, tokens = ranked(log_probs, 4, None)
    assert tokens.tolist() == [[900, 7, 8, 9]]
    assert values.tolist() == [[0.0, -5.0, -5.0, -5.0]]


def test_impossible_tokens_stay_out():
    log_probs = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    tree = draft_tree(log_probs, 20)
    assert paths_of(tree) == [(0,), (0, 0), (1,), (1, 0)]
    assert tree.log_probs.exp().tolist() == pytest.approx([0.5] * 4)


def test_anchor_and_nodes_see_their_ancestors_only():
    tree = draft_tree(random_log_probs(4, 6, seed=5), 20)
    paths = [(), *paths_of(tree)]
    expected = [[seen == path[: len(seen)] for seen in paths] for path in paths]
    assert tree.tree_mask().tolist() == expected
    assert tree.position_ids(30).tolist() == [30 + len(path) for path in paths]


def test_the_longest_path_follows_the_targets_choices():
    # Both slots prefer token 0; paths in order: (0), (0, 0), (1), (0, 1), (1, 0) with 0.6, 0.42, 0.4, 0.28 * 0.6 ...
    tree = draft_tree(torch.tensor([[0.6, 0.4], [0.7, 0.3]]).log(), 4)
    assert paths_of(tree) == [(0,), (0, 0), (1,), (1, 0)]
    assert tree.longest_path([1, 9, 9, 0, 5]) == [2, 3]
    assert tree.longest_path([0, 1, 9, 0, 5]) == [0]
    assert tree.longest_path([3, 0, 0, 0, 0]) == []
    with pytest.raises(ValueError, match="choices has 4 entries; legal: 5"):
        tree.longest_path([0, 0, 0, 0])


def test_the_chain_is_the_best_guess_of_each_slot():
    log_probs = random_log_probs(5, 30, seed=2)
    chain = draft_chain(log_probs)
    assert chain.tokens.tolist() == log_probs.argmax(-1).tolist()
    assert chain.parents.tolist() == [-1, 0, 1, 2, 3]
    assert torch.equal(chain.tree_mask(), torch.ones(6, 6, dtype=torch.bool).tril())
    assert chain.log_probs.tolist() == pytest.approx(log_probs.amax(-1).double().cumsum(0).tolist())


@pytest.mark.parametrize(
    ("log_probs", "node_budget", "message"),
    [
        (torch.zeros(3), 4, r"log_probs has the shape \(3,\); legal: \(num_slots, vocab_size\)"),
        (torch.zeros(0, 3), 4, r"log_probs has the shape \(0, 3\)"),
        (torch.zeros(2, 3, dtype=torch.int64), 4, "log_probs is torch.int64; legal: a floating-point type"),
        (torch.tensor([[0.5, -1.0]]), 4, "largest value 0.5; legal: a log-softmax, at most 0"),
        (torch.tensor([[float("nan"), -1.0]]), 4, "largest value nan"),
        (torch.zeros(2, 3), 0, "node_budget is 0; legal: a whole number >= 1"),
        (torch.zeros(2, 3), 2.0, "node_budget is 2.0"),
        (torch.zeros(2, 3), True, "node_budget is True"),
    ],
)
def test_what_is_no_draft_is_refused(log_probs, node_budget, message):
    with pytest.raises(ValueError, match=message):
        draft_tree(log_probs, node_budget)


def test_token_ids_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"token_ids has the shape \(2, 2\); legal: \(2, 3\)"):
        draft_tree(torch.zeros(2, 3), 2, token_ids=torch.zeros(2, 2, dtype=torch.int64))


def walked(log_probs, labels, scored, node_budget):
    """Accepted and expected tokens of one block, by walking its tree."""
    tree = draft_tree(log_probs, node_budget)
    depth_scored = next((slot for slot, flag in enumerate(scored.tolist()) if not flag), len(scored))
    paths = paths_of(tree)
    right = [path for path in paths if len(path) <= depth_scored and list(path) == labels[: len(path)].tolist()]
    expected = sum(
        math.exp(float(total)) for path, total in zip(paths, tree.log_probs, strict=True) if len(path) <= depth_scored
    )
    return max((len(path) for path in right), default=0), expected


def random_blocks(num_blocks=40, num_slots=7, width=60, seed=1):
    log_probs = random_log_probs(num_blocks, num_slots, width, seed=seed, scale=3.0)
    generator = np.random.default_rng(seed)
    rank = torch.from_numpy(np.minimum(generator.geometric(0.6, (num_blocks, num_slots)) - 1, width - 1))
    labels = log_probs.argsort(-1, descending=True).gather(-1, rank[..., None])[..., 0]
    scored = torch.arange(num_slots) < torch.from_numpy(generator.integers(1, 2 * num_slots, num_blocks))[:, None]
    scored[::5, 3] = False
    return log_probs, labels, scored


def test_metrics_equal_walks_through_every_tree():
    log_probs, labels, scored = random_blocks()
    metrics = measure_trees(log_probs, labels, scored)
    assert metrics.node_budgets == (7, 32, 64, 128) == default_node_budgets(8)
    for place, node_budget in enumerate(metrics.node_budgets):
        blocks = [walked(*block, node_budget) for block in zip(log_probs, labels, scored, strict=True)]
        full = [accepted for (accepted, _), flags in zip(blocks, scored, strict=True) if flags.all()]
        assert metrics.accepted_sums[place] == sum(accepted for accepted, _ in blocks)
        assert metrics.surrogate_sums[place] == pytest.approx(sum(expected for _, expected in blocks))
        assert metrics.full_accepted_sums[place] == sum(full)
        assert metrics.num_full_blocks == len(full) > 0
        tau = 1 + sum(accepted for accepted, _ in blocks) / 40
        assert metrics.tree_tau[node_budget] == pytest.approx(tau)
        gap = sum(expected - accepted for accepted, expected in blocks) / 40
        assert metrics.calibration_gap[node_budget] == pytest.approx(gap)
        assert metrics.surrogate_tau[node_budget] == pytest.approx(tau + gap)
        assert metrics.gain_over_chain[node_budget] == pytest.approx(tau - metrics.chain_tau)
    right = (log_probs.argmax(-1) == labels) & scored
    streaks = [next((slot for slot, flag in enumerate([*row, False]) if not flag)) for row in right.tolist()]
    assert metrics.chain_accepted_sum == sum(streaks)
    assert metrics.chain_tau == pytest.approx(1 + sum(streaks) / 40)
    assert metrics.full_chain_tau == pytest.approx(
        1 + np.mean([streak for streak, flags in zip(streaks, scored, strict=True) if flags.all()])
    )


def test_gold_ranks_and_recall_by_sorting():
    log_probs, labels, scored = random_blocks(width=300)
    metrics = measure_trees(log_probs, labels, scored)
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    ranks = (order == labels[..., None]).int().argmax(-1)
    assert torch.equal(gold_ranks(log_probs, labels), ranks)
    for slot in range(7):
        of_slot = ranks[:, slot][scored[:, slot]].tolist()
        assert metrics.gold_counts[slot] == len(of_slot)
        assert metrics.gold_ranks[slot] == pytest.approx(np.mean(of_slot))
        for num_ranks in RECALL_RANKS:
            expected = np.mean([rank < num_ranks for rank in of_slot])
            assert metrics.recall_at(num_ranks)[slot] == pytest.approx(expected)
    with pytest.raises(ValueError, match="num_ranks is 3; legal: 1, 2, 4"):
        metrics.recall_at(3)


def test_equal_tokens_rank_by_their_ids_as_in_the_tree():
    log_probs = torch.full((1, 1, 6), 1 / 6).log()
    for label in range(6):
        assert gold_ranks(log_probs, torch.tensor([[label]])).tolist() == [[label]]
        metrics = measure_trees(
            log_probs, torch.tensor([[label]]), torch.ones(1, 1, dtype=torch.bool), node_budgets=[3]
        )
        assert metrics.accepted_sums == (int(label < 3),)


def test_a_wrong_first_guess_is_saved_by_the_tree_and_not_by_the_chain():
    # Labels are the second guess, then the best: the chain accepts nothing, a tree of 4 nodes both.
    log_probs = torch.tensor([[[0.6, 0.4], [0.7, 0.3]]]).log()
    labels, scored = torch.tensor([[1, 0]]), torch.ones(1, 2, dtype=torch.bool)
    metrics = measure_trees(log_probs, labels, scored, node_budgets=[2, 4])
    assert metrics.chain_tau == 1.0
    assert metrics.tree_tau == {2: 1.0, 4: 3.0}
    # Nodes 0.6, 0.42, 0.4, 0.28.
    assert metrics.surrogate_tau == pytest.approx({2: 2.02, 4: 2.7})
    assert metrics.calibration_gap == pytest.approx({2: 1.02, 4: -0.3})


def test_expectation_stops_where_labels_stop():
    log_probs = torch.tensor([[[0.6, 0.4], [0.7, 0.3]]]).log()
    metrics = measure_trees(log_probs, torch.tensor([[0, 0]]), torch.tensor([[True, False]]), node_budgets=[4])
    assert metrics.tree_tau == {4: 2.0}
    assert metrics.surrogate_tau == pytest.approx({4: 2.0})
    assert metrics.num_full_blocks == 0 and math.isnan(metrics.full_tree_tau[4])


def test_a_calibrated_drafter_has_no_gap():
    # Labels drawn from the drafter itself, 4,000 times: the expected and the realised length agree.
    one = random_log_probs(4, 8, seed=9)
    generator = torch.Generator().manual_seed(4)
    labels = torch.stack([row.exp().multinomial(4000, replacement=True, generator=generator) for row in one], dim=1)
    metrics = measure_trees(
        one.expand(4000, -1, -1), labels, torch.ones(4000, 4, dtype=torch.bool), node_budgets=[3, 30]
    )
    assert abs(metrics.calibration_gap[3]) < 0.05
    assert abs(metrics.calibration_gap[30]) < 0.05
    assert metrics.tree_tau[30] > metrics.tree_tau[3] + 0.5


def test_parts_add_up_to_the_whole():
    log_probs, labels, scored = random_blocks()
    whole = measure_trees(log_probs, labels, scored)
    parts = [measure_trees(log_probs[part], labels[part], scored[part]) for part in (slice(0, 3), slice(3, 40))]
    added = parts[0] + parts[1]
    assert isinstance(added, TreeMetrics)
    assert added.surrogate_sums == pytest.approx(whole.surrogate_sums)
    for name in ("accepted_sums", "num_blocks", "recall_hits", "gold_rank_sums", "chain_accepted_sum", "gold_counts"):
        assert getattr(added, name) == getattr(whole, name)
    other = measure_trees(log_probs, labels, scored, node_budgets=[5])
    with pytest.raises(ValueError, match="do not add up; legal: the same of both"):
        whole + other


def test_no_blocks_give_no_numbers():
    metrics = measure_trees(torch.zeros(0, 3, 4), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3).bool())
    assert metrics.num_blocks == 0 and metrics.accepted_sums == (0, 0, 0, 0)
    assert math.isnan(metrics.tree_tau[32]) and math.isnan(metrics.gold_ranks[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.zeros(1, 3, dtype=torch.int64)}, r"labels has the shape \(1, 3\); legal: \(1, 2\)"),
        ({"scored": torch.ones(1, 2)}, "scored is torch.float32; legal: torch.bool"),
        ({"labels": torch.tensor([[0, 4]])}, r"labels are in \[0, 4\]; legal: \[0, 4\)"),
        ({"node_budgets": []}, r"node_budgets is \[\]; legal: one or more whole numbers >= 1"),
        ({"node_budgets": [0, 3]}, r"node_budgets is \[0, 3\]"),
        ({"log_probs": torch.zeros(1, 4)}, r"legal: \(num_blocks, num_slots, vocab_size\)"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(changes, message):
    arguments = {
        "log_probs": random_log_probs(1, 2, 4),
        "labels": torch.tensor([[0, 3]]),
        "scored": torch.ones(1, 2, dtype=torch.bool),
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        measure_trees(**arguments)


def test_a_few_hundred_blocks_take_well_under_a_second():
    log_probs = random_log_probs(256, 15, 4096)
    labels, scored = log_probs.argmax(-1), torch.ones(256, 15, dtype=torch.bool)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        measure_trees(log_probs, labels, scored)
        seconds.append(time.perf_counter() - start)
    # 0.5 s on one busy core.
    assert min(seconds) < 2.0
