"""Checkpoints are whole or not there, and the newest whole one is found."""

import json
import shutil

import pytest
import torch
from torch import nn

from dflash_lab.training.checkpoint import (
    OPTIMIZER,
    STATE,
    WEIGHTS,
    RunState,
    WeightsNotFinite,
    find_checkpoint,
    load_weights,
    prune_checkpoints,
    read_state,
    save_checkpoint,
)


def trained(seed=0, steps=3):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 3)
    for _ in range(steps):
        step(model, optimizer, inputs)
    return model, optimizer, inputs


def step(model, optimizer, inputs):
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()


def save(run_dir, number, *, seed=0):
    model, optimizer, _ = trained(seed)
    return save_checkpoint(run_dir, model, optimizer, RunState(step=number, epoch=1, batch=7), {"seed": seed})


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    model, optimizer, inputs = trained()
    folder = save_checkpoint(tmp_path, model, optimizer, RunState(step=3), {})
    other, other_optimizer, _ = trained(seed=1, steps=0)
    load_weights(folder, other, other_optimizer)
    for _ in range(4):
        step(model, optimizer, inputs)
        step(other, other_optimizer, inputs)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_state_and_identity_come_back(tmp_path):
    state, identity = read_state(save(tmp_path, 5))
    assert state == RunState(step=5, epoch=1, batch=7)
    assert identity == {"seed": 0}


def test_a_cut_checkpoint_is_passed_over_and_named(tmp_path):
    save(tmp_path, 100)
    newer = save(tmp_path, 200)
    weights = (newer / WEIGHTS).read_bytes()
    (newer / WEIGHTS).write_bytes(weights[: len(weights) // 2])
    (newer / STATE).unlink()
    found = find_checkpoint(tmp_path)
    assert found.step == 100
    assert found.passed_over == ("step-00000200: state.json is missing",)
    # Training goes on and writes 200 again.
    save(tmp_path, 200, seed=1)
    assert find_checkpoint(tmp_path).step == 200
    assert find_checkpoint(tmp_path).passed_over == ()


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_a_file_of_another_size_is_noticed(tmp_path, name):
    folder = save(tmp_path, 1)
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    assert find_checkpoint(tmp_path) is None
    (folder / name).unlink()
    assert find_checkpoint(tmp_path) is None


def test_the_newest_is_that_of_the_largest_step_not_of_the_largest_name(tmp_path):
    save(tmp_path, 99_999_999)
    save(tmp_path, 100_000_000)
    assert find_checkpoint(tmp_path).step == 100_000_000
    assert find_checkpoint(tmp_path, at_most=99_999_999).step == 99_999_999


def test_what_a_kill_leaves_behind_is_no_checkpoint(tmp_path):
    folder = save(tmp_path, 1)
    shutil.copytree(folder, folder.with_name(".step-00000002.partial"))
    assert find_checkpoint(tmp_path).step == 1
    save(tmp_path, 2)
    assert find_checkpoint(tmp_path).step == 2


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    good = save(tmp_path, 1)
    model, optimizer, _ = trained()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(WeightsNotFinite, match="0.weight has a NaN or an infinity at step 2"):
        save_checkpoint(tmp_path, model, optimizer, RunState(step=2), {})
    assert find_checkpoint(tmp_path).path == good
    assert len(list(good.parent.iterdir())) == 1


def test_the_newest_and_the_best_stay(tmp_path):
    for number in (1, 2, 3, 4, 5):
        save(tmp_path, number)
    prune_checkpoints(tmp_path, keep=2, best_step=2)
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000002",
        "step-00000004",
        "step-00000005",
    ]


def test_moments_are_float32(tmp_path):
    from safetensors.torch import load_file

    moments = load_file(save(tmp_path, 1) / OPTIMIZER)
    assert {tensor.dtype for tensor in moments.values()} == {torch.float32}
    assert len(moments) == 3 * 5


def test_weights_of_another_drafter_are_refused(tmp_path):
    folder = save(tmp_path, 1)
    with pytest.raises(ValueError, match="is of another drafter"):
        load_weights(folder, nn.Linear(2, 2))


def test_a_state_that_is_no_json_is_incomplete(tmp_path):
    folder = save(tmp_path, 1)
    (folder / STATE).write_text(json.dumps({"state": {"unknown": 1}, "files": {}}))
    assert find_checkpoint(tmp_path) is None


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_a_file_of_the_same_size_with_other_bytes_is_passed_over(tmp_path, name):
    save(tmp_path, 1)
    newer = save(tmp_path, 2)
    held = bytearray((newer / name).read_bytes())
    held[len(held) // 2 :] = bytes(len(held) - len(held) // 2)
    (newer / name).write_bytes(held)
    found = find_checkpoint(tmp_path)
    assert found.step == 1 and found.passed_over == (f"step-00000002: {name} is not what was written",)


def test_a_state_of_another_step_is_passed_over(tmp_path):
    save(tmp_path, 1)
    newer = save(tmp_path, 2)
    held = json.loads((newer / STATE).read_text())
    held["state"]["step"] = 7
    (newer / STATE).write_text(json.dumps(held))
    assert find_checkpoint(tmp_path).passed_over == ("step-00000002: state.json is of step 7",)


def test_moments_that_are_not_finite_are_never_saved(tmp_path):
    model, optimizer, _ = trained()
    optimizer.state[model[0].weight]["exp_avg"][0, 0] = float("inf")
    with pytest.raises(WeightsNotFinite, match=r"0.weight.exp_avg has a NaN or an infinity at step 2"):
        save_checkpoint(tmp_path, model, optimizer, RunState(step=2), {})
