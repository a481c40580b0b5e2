"""Scores of held-out samples: always the same samples and anchors, and without a trace in the weights."""

import json

import numpy as np
import pytest
import torch

from dflash_lab.drafter import AnchorBudget, Drafter, default_node_budgets, draft_tree
from dflash_lab.training import score_drafter, trees_of
from dflash_lab.training.assembly import drafter_config, split_samples
from dflash_lab.training.micro_batch import MicroBatchSums, sums_of
from dflash_lab.training.validation import HeldOutScorer


@pytest.fixture
def drafter(tiny_run, target):
    return Drafter(drafter_config(tiny_run.make_config().drafter, target), seed=4)


def test_scoring_twice_gives_the_same_and_noise_has_no_part_in_it(tiny_run, dataset, target, drafter):
    scores = []
    for amplitude in (0.0, 0.5):
        config = tiny_run.make_config(**{"noise.amplitude": amplitude, "noise.warmup_steps": 0})
        split = split_samples(dataset, None, config)
        scorer = HeldOutScorer(split, target, drafter.train(), target, config)
        scores += [scorer.score_held_out(), scorer.score_held_out()]
        assert drafter.training
    assert scores[0] == scores[1] == scores[2] == scores[3]
    assert all(parameter.grad is None for parameter in drafter.parameters())
    assert scores[0]["num_blocks"] > 4 and scores[0]["tau"] == scores[0]["streak"] + 1


def test_how_often_a_run_is_scored_does_not_change_it(train, reference, assert_same, tmp_path):
    result = train(tmp_path / "run", **{"validation.every_steps": None, "log.tree_every_steps": None})
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    (line,) = (tmp_path / "run" / "validation.jsonl").read_text().splitlines()
    assert json.loads(line) == reference.held_out


def test_the_split_holds_every_sample_once_and_follows_from_the_seed(tiny_run, dataset):
    config = tiny_run.make_config(**{"validation.share": 0.25, "validation.max_samples": 12})
    split = split_samples(dataset, None, config)
    assert len(split.held_out_ids) == 12 and len(split.train_ids) == 60
    assert not set(split.train_ids.tolist()) & set(split.held_out_ids.tolist())
    again = split_samples(dataset, None, config)
    assert np.array_equal(split.train_ids, again.train_ids) and np.array_equal(split.held_out_ids, again.held_out_ids)
    other = split_samples(dataset, None, config.replace({"seed": 4}))
    assert not np.array_equal(split.held_out_ids, other.held_out_ids)
    small = tiny_run.make_dataset(2)
    assert len(split_samples(small, None, tiny_run.make_config()).train_ids) == 1
    with pytest.raises(ValueError, match="holds out 1 of 1 samples; legal: a share that leaves samples to train on"):
        split_samples(tiny_run.make_dataset(1), None, tiny_run.make_config())


def test_trees_are_those_of_the_blocks_one_by_one(tiny_run, dataset, target, drafter):
    """Against a loop that builds each tree, and looks for the longest right path in it."""
    config = tiny_run.make_config()
    (drafted,) = score_drafter(drafter, target, dataset, np.array([3, 8]), config)
    with torch.no_grad():
        trees = trees_of(drafted, target, max_blocks=5)
        log_probs = target.lm_head(drafted.hidden[:, 1:]).log_softmax(-1)
    chosen = np.unique(np.linspace(0, len(drafted.blocks) - 1, 5).astype(int))
    assert trees.num_blocks == len(chosen) == 5
    assert trees.node_budgets == default_node_budgets(6)
    for budget, accepted in zip(trees.node_budgets, trees.accepted_sums, strict=True):
        expected = 0
        for block in chosen:
            tree = draft_tree(log_probs[block], budget)
            labels = drafted.blocks.labels[block, 1:].tolist()
            scored = drafted.blocks.scored[block, 1:].tolist()
            paths = {-1: ()}
            for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
                paths[node] = (*paths[parent], token)
            right = {tuple(labels[:depth]) for depth in range(6) if all(scored[:depth])}
            expected += max(len(path) for path in paths.values() if path in right)
        assert accepted == expected


def test_samples_can_be_scored_for_tables(tiny_run, dataset, target, drafter):
    config = tiny_run.make_config(**{"validation.anchors_per_sample": 3})
    total = MicroBatchSums.none(6)
    samples = np.array([1, 5, 9, 70])
    for drafted in score_drafter(drafter, target, dataset, samples, config):
        assert not drafted.hidden.requires_grad
        total = total + sums_of(drafted.loss)
    assert (
        total.scores.num_blocks == AnchorBudget(per="sample", amount=3).counts(dataset.loss_tokens[samples] - 1).sum()
    )
