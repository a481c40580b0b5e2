"""Decoding with a cache against runs without one, trees against each of their branches alone."""

import pytest
import torch

from dflash_lab.target import TransformersTarget

TAPS = (0, 3, 5)
# A tree of drafted tokens: parent of each node, -1 where it follows the cached tokens.
PARENTS = (-1, -1, 0, 0, 2, 1)


def branch(node):
    """A node and its ancestors, first to last."""
    found = []
    while node >= 0:
        found.append(node)
        node = PARENTS[node]
    return found[::-1]


def tree():
    mask = torch.zeros(len(PARENTS), len(PARENTS), dtype=torch.bool)
    for node in range(len(PARENTS)):
        mask[node, branch(node)] = True
    return mask, torch.tensor([[len(branch(node)) - 1 for node in range(len(PARENTS))]])


@pytest.fixture
def target(family, tiny_model):
    return TransformersTarget(tiny_model(family), target_layer_ids=TAPS)


@pytest.fixture
def whole(target, padded_batch):
    """Features and logits of a sequence, run at once without a cache."""

    def run(sequence):
        features = target.features(padded_batch([sequence]), with_logits=True)
        return features.hidden, features.logits

    return run


def close(ours, theirs):
    return torch.allclose(ours, theirs, atol=2e-5 * max(1.0, float(theirs.abs().max())), rtol=0)


def test_steps_give_what_one_pass_gives(target, whole, some_samples):
    sequence = some_samples([19])[0]
    hidden, logits = whole(sequence)
    for cuts in ((1,) * 19, (7, 1, 1, 10), (19,)):
        cache, steps = target.new_cache(), []
        for part in sequence.split(list(cuts)):
            steps.append(target.extend(part[None], cache))
        assert cache.length == 19
        assert close(torch.cat([step.hidden for step in steps], dim=1), hidden)
        assert close(torch.cat([step.logits for step in steps], dim=1), logits)


def test_each_node_of_a_tree_sees_its_branch_only(target, whole, some_samples):
    prompt, drafts = some_samples([9, len(PARENTS)])
    cache = target.new_cache()
    target.extend(prompt[None], cache)
    mask, depths = tree()
    step = target.extend(drafts[None], cache, position_ids=9 + depths, tree_mask=mask)
    for node in range(len(PARENTS)):
        hidden, logits = whole(torch.cat([prompt, drafts[branch(node)]]))
        assert close(step.hidden[0, node], hidden[0, -1]), node
        assert close(step.logits[0, node], logits[0, -1]), node


def test_what_is_kept_of_a_tree_goes_on_as_if_the_rest_had_never_been(target, whole, some_samples):
    prompt, drafts, rest = some_samples([9, len(PARENTS), 6])
    cache = target.new_cache()
    target.extend(prompt[None], cache)
    mask, depths = tree()
    for node in (5, 4, 0):
        target.extend(drafts[None], cache, position_ids=9 + depths, tree_mask=mask)
        kept = branch(node)
        cache.keep(9, torch.tensor(kept))
        assert cache.length == 9 + len(kept)
        sequence = torch.cat([prompt, drafts[kept], rest])
        hidden, _ = whole(sequence)
        steps = [target.extend(rest[None, :4], cache), target.extend(rest[None, 4:], cache)]
        assert close(torch.cat([step.hidden for step in steps], dim=1), hidden[:, -6:])
        cache.keep(9, torch.tensor([], dtype=torch.int64))
        assert cache.length == 9


@pytest.mark.parametrize("family", ["llama"])
def test_an_empty_cache_takes_a_tree_and_keeps_nothing(target, whole, some_samples):
    drafts = some_samples([len(PARENTS)])[0]
    mask, depths = tree()
    cache = target.new_cache()
    step = target.extend(drafts[None], cache, position_ids=depths, tree_mask=mask)
    for node in range(len(PARENTS)):
        assert close(step.hidden[0, node], whole(drafts[branch(node)])[0][0, -1])
    cache.keep(0, [])
    assert cache.length == 0
    assert close(target.extend(drafts[None], cache).hidden, whole(drafts)[0])


@pytest.mark.parametrize("family", ["llama"])
def test_what_the_cache_does_not_hold_is_refused(target, some_samples):
    cache = target.new_cache()
    target.extend(some_samples([6])[0][None], cache)
    with pytest.raises(ValueError, match=r"length is 7; legal: a whole number in \[0, 6\]"):
        cache.keep(7, [])
    for indices in ([2], [-1], [0, 0]):
        with pytest.raises(ValueError, match=r"indices is .*; legal: different whole numbers in \[0, 2\)"):
            cache.keep(4, indices)
    assert cache.length == 6


@pytest.mark.parametrize("family", ["gpt2"])
def test_shapes_ids_and_positions_are_checked(target, some_samples):
    cache = target.new_cache()
    ids = some_samples([60])[0][None]
    target.extend(ids, cache)
    with pytest.raises(ValueError, match=r"input_ids has the shape \(2, 3\); legal: \(1, n\) with n >= 1"):
        target.extend(ids[:, :6].view(2, 3), cache)
    with pytest.raises(ValueError, match=r"tree_mask has the shape \(2, 2\); legal: \(3, 3\)"):
        target.extend(ids[:, :3], cache, tree_mask=torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"position_ids has the shape \(1, 2\); legal: \(1, 3\)"):
        target.extend(ids[:, :3], cache, position_ids=torch.arange(2)[None])
    with pytest.raises(ValueError, match="has 65 positions, and GPT2LMHeadModel has 64"):
        target.extend(ids[:, :5], cache)
    with pytest.raises(ValueError, match="has the id 99"):
        target.extend(torch.tensor([[99]]), cache)
    assert cache.length == 60
    target.extend(ids[:, :4], cache)
