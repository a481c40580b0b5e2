"""What a run is put together from: no held-out sample is ever planned, and the target decides what it must."""

import dataclasses

import numpy as np
import pytest
import torch

from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import Drafter
from dflash_lab.training.assembly import (
    check_ids,
    choose_devices,
    drafter_config,
    make_optimizer,
    plan_samples,
    split_samples,
)
from dflash_lab.training.settings import DrafterSettings


@pytest.fixture(scope="module")
def config(tiny_run):
    return tiny_run.make_config()


def test_samples_are_trained_on_or_held_out_and_never_both(dataset, config):
    split = split_samples(dataset, None, config)
    assert len(split.held_out_ids) == round(0.05 * len(dataset)) == 4
    assert sorted([*split.train_ids, *split.held_out_ids]) == list(range(len(dataset)))
    assert (np.diff(split.train_ids) > 0).all() and (np.diff(split.held_out_ids) > 0).all()
    assert split.held_out is dataset


def test_the_split_depends_on_the_seed_alone(dataset, config):
    held_out = split_samples(dataset, None, config).held_out_ids.tolist()
    others = {
        "batching.seed": 9,
        "batching.token_budget": 512,
        "epochs": 7,
        "anchors.amount": 3,
        "loss.gamma": 2.0,
        "drafter.block_size": 4,
        "validation.every_steps": 1,
    }
    assert split_samples(dataset, None, config.replace(others)).held_out_ids.tolist() == held_out
    assert split_samples(dataset, None, config.replace({"seed": 4})).held_out_ids.tolist() != held_out
    # Of a larger share, the smaller one is a part.
    more = split_samples(dataset, None, config.replace({"validation.share": 0.2, "validation.max_samples": 16}))
    assert len(more.held_out_ids) == 16 and set(held_out) < set(more.held_out_ids.tolist())


def test_what_is_held_out_beyond_the_scored_ones_is_not_trained_on(dataset, config):
    split = split_samples(dataset, None, config.replace({"validation.share": 0.5}))
    assert len(split.held_out_ids) == 4 and len(split.train_ids) == 40
    assert not set(split.held_out_ids.tolist()) & set(split.train_ids.tolist())


def test_shares_that_round_to_none_or_to_all(dataset, config):
    assert len(split_samples(dataset, None, config.replace({"validation.share": 0.001})).held_out_ids) == 1
    nothing = split_samples(dataset, None, config.replace({"validation.share": 0.0}))
    assert nothing.held_out is None and len(nothing.train_ids) == len(dataset) and not len(nothing.held_out_ids)
    one = PreloadedDataset.from_rows([{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}])
    with pytest.raises(ValueError, match=r"validation.share 0.05 holds out 1 of 1 samples; legal: a share that leaves"):
        split_samples(one, None, config)


def test_a_validation_set_leaves_every_sample_to_train_on(dataset, config, tiny_run):
    validation = tiny_run.make_dataset(30)
    split = split_samples(dataset, validation, config)
    assert split.train_ids.tolist() == list(range(len(dataset))) and split.held_out is validation
    assert len(set(split.held_out_ids.tolist())) == 4 and split.held_out_ids.max() < 30


@pytest.mark.parametrize("strategy", ["sorted", "bucketed", "capacity", "packed"])
def test_plans_hold_the_chosen_samples_under_their_own_numbers(dataset, config, strategy):
    changes = {"batching.strategy": strategy}
    if strategy == "bucketed":
        changes["batching.bucket_bounds"] = (0, 16, 32, 64)
    elif config.batching.order == "window_strata":
        changes["batching.order"] = "random"
    config = config.replace(changes)
    split = split_samples(dataset, None, config)
    for epoch in range(3):
        plan = plan_samples(dataset, split.train_ids, config.batching, epoch=epoch)
        assert sorted(plan.sample_ids.tolist()) == split.train_ids.tolist()
        assert plan.left_out["held_out"].tolist() == split.held_out_ids.tolist()
        np.testing.assert_array_equal(plan.sample_lengths, dataset.lengths[plan.sample_ids])
        assert plan.padded_tokens_by_batch.max() <= config.batching.token_budget


def test_a_plan_of_all_samples_is_that_of_the_data_set(dataset, config):
    plan = plan_samples(dataset, np.arange(len(dataset)), config.batching, epoch=1)
    assert plan == dataset.build_batches(config.batching, epoch=1) and "held_out" not in plan.left_out


def test_a_sample_that_the_cut_leaves_without_loss_is_named(config):
    rows = [{"input_ids": [1] * 20, "loss_mask": [1] * 20} for _ in range(6)]
    rows[4] = {"input_ids": [1] * 20, "loss_mask": [0] * 15 + [1] * 5}
    dataset = PreloadedDataset.from_rows(rows)
    batching = config.replace({"batching.max_seq_len": 10}).batching
    with pytest.raises(ValueError, match=r"sample 4 has no loss token left after the cut .* max_seq_len 10 \(1 such"):
        plan_samples(dataset, np.array([0, 1, 4, 5]), batching, epoch=0)
    # The same sample held out does no harm.
    plan = plan_samples(dataset, np.array([0, 1, 2, 5]), batching, epoch=0)
    assert sorted(plan.sample_ids.tolist()) == [0, 1, 2, 5] and set(plan.sample_lengths.tolist()) == {10}


def test_the_target_decides_the_drafters_shape(target):
    shape = drafter_config(DrafterSettings(mask_token_id=63, head_dim=16), target)
    assert (shape.hidden_size, shape.vocab_size, shape.rope_theta) == (32, 64, 10_000.0)
    assert (shape.target_layer_ids, shape.num_target_layers) == ((0, 1, 2), 4)
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size) == (2, 2, 96)
    given = DrafterSettings(
        mask_token_id=63, head_dim=8, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40
    )
    shape = drafter_config(given, target)
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size) == (4, 2, 40)


def test_a_mask_token_must_be_named_and_known(target):
    with pytest.raises(ValueError, match=r"drafter.mask_token_id is not set; legal: an unused id in \[0, 64\), never"):
        drafter_config(DrafterSettings(), target)
    with pytest.raises(ValueError, match="mask_token_id is 64"):
        drafter_config(DrafterSettings(mask_token_id=64), target)
    with pytest.raises(ValueError, match=r"mask_token_id is 0; legal: an unused id, none of \[0\]"):
        drafter_config(DrafterSettings(mask_token_id=0), target)


def test_ids_past_the_vocabulary_are_refused(target):
    rows = [{"input_ids": [1, 2, largest], "loss_mask": [0, 1, 1]} for largest in (3, 63)]
    check_ids(PreloadedDataset.from_rows(rows), target)
    rows[1]["input_ids"][2] = 64
    with pytest.raises(ValueError, match=r"have the id 64, and the target random knows ids in \[0, 64\)"):
        check_ids(PreloadedDataset.from_rows(rows), target)


def test_devices():
    chosen = choose_devices("cpu", None, None, num_target_loops=3)
    assert chosen.targets == (torch.device("cpu"),) * 3 and chosen.drafter == torch.device("cpu")
    # Where the targets are named, their number is that of the loops.
    assert len(choose_devices("cpu", ["cpu", "cpu"], "cpu", num_target_loops=5).targets) == 2
    assert choose_devices("auto", None, None, num_target_loops=1).drafter.type in ("cpu", "cuda", "mps", "xpu")
    with pytest.raises(ValueError, match="target_devices is empty; legal: None, or at least one device"):
        choose_devices("cpu", [], None, num_target_loops=1)
    for place in ({"device": "nowhere"}, {"target_devices": ["cpu", "nowhere"]}, {"drafter_device": "nowhere"}):
        arguments = {"device": "cpu", "target_devices": None, "drafter_device": None, **place}
        with pytest.raises(ValueError, match="device 'nowhere' cannot be used: "):
            choose_devices(*arguments.values(), num_target_loops=1)


def test_matrices_decay_and_norms_do_not(target, config):
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, weight_decay=0.1))
    drafter = Drafter(drafter_config(config.drafter, target), seed=0)
    optimizer = make_optimizer(drafter, config)
    decay = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    assert len(decay) == len(list(drafter.parameters()))
    for name, weight in drafter.named_parameters():
        assert decay[id(weight)] == (0.0 if "norm" in name else 0.1), name
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["lr"]) == ((0.9, 0.95), 1e-8, config.optimizer.learning_rate)
