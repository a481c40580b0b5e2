"""Each fault that a checkpoint has had is planted, and found."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_lab.training import audit_checkpoint
from dflash_lab.training.checkpoint import OPTIMIZER, STATE, WEIGHTS


@pytest.fixture
def checkpoint(reference, tmp_path):
    import shutil

    return shutil.copytree(reference.checkpoint, tmp_path / reference.checkpoint.name)


def change(file, name, value):
    tensors = load_file(file)
    tensors[name] = value(tensors[name])
    save_file(tensors, file)


def change_state(folder, part, **values):
    held = json.loads((folder / STATE).read_text())
    held[part].update(values)
    (folder / STATE).write_text(json.dumps(held))


def found(folder):
    return [(finding.severity, finding.where, finding.what) for finding in audit_checkpoint(folder)]


def test_a_good_checkpoint_has_nothing(checkpoint):
    assert found(checkpoint) == []


def test_values_that_are_not_finite(checkpoint):
    def spoil(tensor):
        tensor[0, :2] = float("nan")
        return tensor

    change(checkpoint / WEIGHTS, "fc.weight", spoil)
    size = load_file(checkpoint / WEIGHTS)["fc.weight"].numel()
    assert found(checkpoint) == [("error", "fc.weight", f"2 of {size} values are not finite")]


def test_norms_that_never_moved(checkpoint):
    tensors = load_file(checkpoint / WEIGHTS)
    norms = [name for name, tensor in tensors.items() if tensor.ndim == 1]
    change(checkpoint / WEIGHTS, norms[0], torch.ones_like)
    assert found(checkpoint) == []
    for name in norms[1:]:
        change(checkpoint / WEIGHTS, name, torch.ones_like)
    assert found(checkpoint) == [("warning", "norms", f"all {len(norms)} are exactly 1.0: they have never moved")]


def test_dead_tensors(checkpoint):
    change(checkpoint / WEIGHTS, "fc.weight", torch.zeros_like)
    change(checkpoint / OPTIMIZER, "norm.weight.exp_avg_sq", torch.zeros_like)
    assert found(checkpoint) == [
        ("warning", "fc.weight", "every value is 0: it has no effect"),
        ("warning", "norm.weight.exp_avg_sq", "never had a gradient other than 0: a dead tensor"),
    ]


def test_low_precision(checkpoint):
    change(checkpoint / OPTIMIZER, "fc.weight.exp_avg", lambda tensor: tensor.bfloat16())
    change(checkpoint / WEIGHTS, "fc.weight", lambda tensor: tensor.bfloat16())
    what = {(where, what) for _, where, what in found(checkpoint)}
    assert ("fc.weight.exp_avg", "moment is torch.bfloat16; legal: float32") in what
    assert ("fc.weight", "is torch.bfloat16; trained weights are float32") in what


def test_missing_moments(checkpoint):
    tensors = load_file(checkpoint / OPTIMIZER)
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith("fc.")}, checkpoint / OPTIMIZER)
    assert ("warning", OPTIMIZER, "no moments for 1 weights, the first fc.weight") in found(checkpoint)


def test_an_epoch_that_stays_0(checkpoint, reference):
    change_state(checkpoint, "state", epoch=0, batch=0)
    assert found(checkpoint) == [
        ("error", STATE, f"epoch 0 and batch 0 (0 batches) are step 0, but step is {reference.total_steps}")
    ]
    change_state(checkpoint, "state", epoch=3)
    assert found(checkpoint)[0] == ("error", STATE, "epoch is 3, and the run has 2")


def test_steps_that_were_skipped(checkpoint):
    change_state(checkpoint, "state", skipped_in_a_row=4)
    assert found(checkpoint) == [("warning", STATE, "the last 4 steps were not finite and moved nothing")]


def test_what_is_missing_or_cut(checkpoint, tmp_path):
    data = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(data[: len(data) // 2])
    findings = found(checkpoint)
    assert findings[0][:2] == ("error", checkpoint.name) and f"bytes of {len(data)}" in findings[0][2]
    assert findings[1][:2] == ("error", WEIGHTS) and findings[1][2].startswith("cannot be read (")
    (checkpoint / STATE).write_text("{")
    assert ("error", STATE) in [finding[:2] for finding in found(checkpoint)]
    (checkpoint / STATE).unlink()
    assert found(checkpoint)[0] == ("error", checkpoint.name, "state.json is missing")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint folder"):
        audit_checkpoint(tmp_path / "none")
