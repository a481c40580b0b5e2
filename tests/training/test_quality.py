"""What is said of a drafter's quality: each block with its own sample, and speeds that are what decoding gave."""

import dataclasses

import numpy as np
import pytest
import torch

from dflash_lab import data, drafter, training
from dflash_lab.target import TransformersTarget
from dflash_lab.target.tiny_training import TinySettings, tiny_model
from dflash_lab.training.assembly import drafter_config

BLOCK = 6


@pytest.fixture(scope="module")
def scored(tiny_run):
    """evaluate(sample_ids, **options) of a drafter on a random target."""
    config = tiny_run.make_config(**{"validation.anchors_per_sample": 5})
    target, dataset = tiny_run.RandomTarget(), tiny_run.make_dataset()
    shape = drafter_config(config.drafter, target)
    model = drafter.Drafter(shape, seed=1)
    return lambda ids, **options: training.evaluate_drafter(model, target, dataset, np.asarray(ids), config, **options)


def test_sums_agree_with_the_blocks(scored):
    quality = scored(range(0, 80, 2), tree_blocks=10_000)
    assert quality.accepted.sum() == quality.scores.accepted_sum
    assert len(quality.accepted) == quality.scores.num_blocks == len(quality.sample_ids)
    # With every block in a tree, trees and scores have counted the same drafts.
    assert quality.trees.num_blocks == quality.scores.num_blocks
    assert quality.trees.chain_accepted_sum == quality.scores.accepted_sum
    assert set(quality.sample_ids.tolist()) == set(range(0, 80, 2))
    assert quality.sources == ["even"] * len(quality.sources)


def test_each_block_is_with_its_own_sample(scored, tiny_run):
    together = scored(range(12))
    lengths = tiny_run.make_dataset().lengths
    for number in range(12):
        alone = scored([number])
        own = together.sample_ids == number
        assert sorted(alone.accepted.tolist()) == sorted(together.accepted[own].tolist())
        assert set(together.lengths[own].tolist()) == {lengths[number]}
        assert {together.sources[each] for each in np.flatnonzero(own)} == {"odd" if number % 2 else "even"}


def test_fewer_trees_than_blocks(scored):
    quality = scored(range(40), tree_blocks=8)
    assert 0 < quality.trees.num_blocks < quality.scores.num_blocks
    assert quality.trees.node_budgets == (BLOCK - 1, 32, 64, 128)


def test_samples_without_a_block_are_refused(tiny_run):
    config = tiny_run.make_config()
    target = tiny_run.RandomTarget()
    # The only supervised token is the first: nothing stands before it.
    bare = data.PreloadedDataset.from_rows([{"input_ids": [1, 2, 3], "loss_mask": [1, 0, 0]}])
    model = drafter.Drafter(drafter_config(config.drafter, target))
    with pytest.raises(ValueError, match="none of the 1 samples has a supervised token behind another"):
        training.evaluate_drafter(model, target, bare, np.array([0]), config)


@pytest.fixture(scope="module")
def pair(tiny_run):
    model = tiny_model(TinySettings(steps=1, hidden_size=64, intermediate_size=64, num_layers=3), 64)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.mul_(6)
    target = TransformersTarget(model, target_layer_ids=(0, 1), name="random")
    config = tiny_run.make_config()
    return target, drafter.Drafter(drafter_config(config.drafter, target), seed=2)


PROMPTS = [np.array([1, 2, 3]), np.array([9, 8, 7, 6])]


def test_decoding_both_ways_gives_the_same_tokens(pair):
    both = training.decode_both_ways(*pair, PROMPTS, 12)
    assert both.num_equal == 2
    lengths = [length for each in both.drafted for length in each.acceptance_lengths]
    assert both.num_verifications == len(lengths)
    assert both.tau == pytest.approx(np.mean(lengths))
    assert both.speed_up > 0
    again = training.decode_both_ways(*pair, PROMPTS, 12, tree_budget=16)
    assert again.num_equal == 2
    with pytest.raises(ValueError, match="there are no prompts"):
        training.decode_both_ways(*pair, [], 12)


def test_unequal_tokens_are_counted(pair):
    both = training.decode_both_ways(*pair, PROMPTS, 4)
    other = dataclasses.replace(both.drafted[0], token_ids=(0, 0, 0, 0))
    assert dataclasses.replace(both, drafted=(other, both.drafted[1])).num_equal == 1


def test_texts_that_end_at_once_have_no_tau(pair):
    both = training.decode_both_ways(*pair, PROMPTS, 1)
    assert both.tau is None and both.speed_up is None and both.num_verifications == 0


def test_speed_is_predicted_for_all_and_measured_where_asked(pair, scored):
    quality = scored(range(20))
    ways = training.measure_drafting_speed(*pair, quality, PROMPTS, 8, measured_budgets=[32], repeats=2)
    assert [(way.kind, way.node_budget) for way in ways] == [
        ("chain", 5), ("tree", 5), ("tree", 32), ("tree", 64), ("tree", 128),
    ]  # fmt: skip
    assert [way.is_equal for way in ways] == [True, None, True, None, None]
    assert [way.measured_tau is None for way in ways] == [False, True, False, True, True]
    for way in ways:
        assert way.speed_up == pytest.approx(way.tau * way.target_seconds / (way.verify_seconds + way.drafter_seconds))
    assert ways[0].tau == quality.trees.chain_tau and ways[4].tau == quality.trees.tree_tau[128]
    with pytest.raises(ValueError, match=r"measured_budgets has \[9\]; legal: 5, 32, 64, 128"):
        training.measure_drafting_speed(*pair, quality, PROMPTS, 8, measured_budgets=[9])
