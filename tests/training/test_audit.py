"""Each fault that a checkpoint has had is planted, and found."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_lab.drafter import Drafter
from dflash_lab.training import audit_checkpoint
from dflash_lab.training.checkpoint import OPTIMIZER, STATE, WEIGHTS


@pytest.fixture
def checkpoint(reference, tmp_path):
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
    """Findings, without the one that every file has which was written again."""
    findings = [(finding.severity, finding.where, finding.what) for finding in audit_checkpoint(folder)]
    return [finding for finding in findings if not finding[2].endswith("is not what was written")]


def test_a_file_that_was_written_again_is_named(checkpoint):
    tensors = load_file(checkpoint / WEIGHTS)
    tensors["fc.weight"][0, 0] += 1e-3
    save_file(tensors, checkpoint / WEIGHTS)
    (finding,) = audit_checkpoint(checkpoint)
    assert (finding.severity, finding.what) == ("error", "drafter.safetensors is not what was written")


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
    what = f"1 of {len(tensors)} tensors are, to the bit, what they were before the first step: {norms[0]}"
    assert found(checkpoint) == [("warning", "weights", what)]
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


def test_a_state_without_a_field_or_with_one_too_many(checkpoint):
    held = json.loads((checkpoint / STATE).read_text())
    del held["state"]["batch"], held["state"]["skipped_in_a_row"]
    (checkpoint / STATE).write_text(json.dumps(held))
    # What is not there has its default: 0 batches of the epoch behind the last one, as it was.
    assert found(checkpoint) == []
    change_state(checkpoint, "state", position=3)
    findings = found(checkpoint)
    assert [finding[:2] for finding in findings] == [
        ("error", checkpoint.name), ("error", STATE), ("not checked", "weights"),
    ]  # fmt: skip
    assert all("unexpected keyword argument 'position'" in finding[2] for finding in findings[:2])


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


def test_tensors_that_have_not_moved(checkpoint, reference, tmp_path):
    first = Drafter(reference.drafter.config, seed=3).state_dict()
    change(checkpoint / WEIGHTS, "fc.weight", lambda _: first["fc.weight"])
    assert found(checkpoint) == [
        ("warning", "weights", "1 of 25 tensors are, to the bit, what they were before the first step: fc.weight")
    ]
    # Beside its run's earlier checkpoint, which it finds itself or is given.
    run_dir = shutil.copytree(reference.run_dir, tmp_path / "run")
    [*_, before, last] = sorted((run_dir / "checkpoints").glob("step-*"))
    held = load_file(before / WEIGHTS)
    change(last / WEIGHTS, "norm.weight", lambda _: held["norm.weight"])
    what = f"1 of 25 tensors are, to the bit, what they were at step {int(before.name[5:])}: norm.weight"
    assert found(last) == [("warning", "weights", what)]
    _, given = audit_checkpoint(last, earlier=before)
    assert given.what == f"1 of 25 tensors are, to the bit, what they were in {before.name}: norm.weight"
    save_file(held, last / WEIGHTS)
    assert any("25 of 25 tensors are, to the bit, what they were at step" in each[2] for each in found(last))
    # Steps that moved nothing are no reason to have moved.
    step = json.loads((last / STATE).read_text())["state"]["step"]
    change_state(last, "state", skipped_steps=step - json.loads((before / STATE).read_text())["state"]["step"])
    assert not any("to the bit" in each[2] for each in found(last))


def test_tensors_that_are_missing_too_many_or_of_another_shape(checkpoint):
    tensors = load_file(checkpoint / WEIGHTS)
    tensors["layers.0.extra.weight"] = torch.ones(2, 2)
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["fc.weight"] = tensors["fc.weight"][:, :-1].clone()
    save_file(tensors, checkpoint / WEIGHTS)
    whats = [each[2] for each in found(checkpoint) if each[1] == "weights"]
    missing, extra = whats
    assert missing == ("1 tensors are missing, beside those before the first step: layers.1.mlp.up_proj.weight")
    assert extra == "1 tensors are too many, beside those before the first step: layers.0.extra.weight"
    shape = tuple(tensors["fc.weight"].shape)
    wrong = f"has the shape {shape}, and {(shape[0], shape[1] + 1)} before the first step"
    assert ("error", "fc.weight", wrong) in found(checkpoint)


def test_an_optimizer_that_was_begun_anew(checkpoint, reference):
    def set_back(tensors, count):
        return {name: torch.tensor(count) if name.endswith(".step") else held for name, held in tensors.items()}

    save_file(set_back(load_file(checkpoint / OPTIMIZER), 3.0), checkpoint / OPTIMIZER)
    assert found(checkpoint) == [
        (
            "error",
            "optimizer",
            f"its moments are of 3 updates, and the run made {reference.total_steps}: the optimizer was begun anew, or "
            f"steps were counted wrongly",
        )
    ]
    change(checkpoint / OPTIMIZER, "fc.weight.step", lambda _: torch.tensor(1.0))
    assert ("warning", "optimizer", "1 weights were moved less often than 3 times, the first fc.weight") in found(
        checkpoint
    )


@pytest.fixture
def other(tmp_path):
    """A folder as another trainer leaves it: sharded weights, a pickled optimizer, a state of its own."""
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    weights = {"model.norm.weight": torch.full((4,), 1.5), "model.up.weight": torch.randn(4, 4)}
    for number, (name, tensor) in enumerate(weights.items()):
        save_file({name: tensor}, folder / f"model-{number}.safetensors")
    places = {name: f"model-{number}.safetensors" for number, name in enumerate(weights)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    state = {at: {"exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4), "step": 500} for at in range(2)}
    torch.save({"state": state, "param_groups": [{"betas": (0.9, 0.95), "params": [0, 1]}]}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 500, "epoch": 2.5}))
    return folder


def test_another_trainers_checkpoint_is_looked_into_as_far_as_it_goes(other):
    assert found(other) == [
        (
            "not checked",
            "epoch",
            "epoch is 2.5 at step 500: right or wrong by steps_per_epoch, which was not given",
        ),
        (
            "not checked",
            "weights",
            "whether tensors have moved, are missing or too many: there is no earlier checkpoint to compare with",
        ),
    ]
    assert [each.severity for each in audit_checkpoint(other, earlier=other, steps_per_epoch=200)] == ["warning"]


def test_faults_of_another_trainers_checkpoint(other, tmp_path):
    shutil.copytree(other, tmp_path / "earlier")
    save_file({"model.norm.weight": torch.ones(4, dtype=torch.bfloat16)}, other / "model-0.safetensors")
    state = {0: {"exp_avg": torch.ones(4).half(), "exp_avg_sq": torch.zeros(4), "step": 500}}
    torch.save({"state": state, "param_groups": []}, other / "optimizer.pt")
    (other / "model-1.safetensors").unlink()
    (other / "trainer_state.json").write_text(json.dumps({"global_step": 500, "epoch": 0}))
    findings = [
        (each.where, each.what) for each in audit_checkpoint(other, earlier=tmp_path / "earlier", steps_per_epoch=200)
    ]
    assert findings == [
        (
            "model.safetensors.index.json",
            "names 1 tensors that are not there, the first model.up.weight in model-1.safetensors",
        ),
        ("model.norm.weight", "is torch.bfloat16; trained weights are float32"),
        ("norms", "all 1 are exactly 1.0: they have never moved"),
        ("0.exp_avg", "moment is torch.float16; legal: float32"),
        ("0.exp_avg_sq", "never had a gradient other than 0: a dead tensor"),
        ("epoch", "epoch is 0 at step 500, which is 2.50 epochs: it stays 0"),
        ("weights", "1 tensors are missing, beside those in earlier: model.up.weight"),
    ]


def test_a_pickled_file_alone(tmp_path):
    held = {"model": {"fc.weight": torch.zeros(2, 2), "norm.weight": torch.tensor([1.0, float("inf")])}, "epoch": 0}
    torch.save({**held, "optimizer": {"state": {}, "param_groups": []}}, tmp_path / "last.pt")
    whats = [(each.severity, each.where) for each in audit_checkpoint(tmp_path / "last.pt")]
    assert whats == [
        ("warning", "fc.weight"), ("error", "norm.weight"), ("not checked", "optimizer"), ("not checked", "epoch"),
        ("not checked", "weights"),
    ]  # fmt: skip


class Loud:
    def __reduce__(self):
        return (print, ("this must never be printed",))


def test_a_pickled_file_runs_nothing_and_what_is_no_checkpoint_is_said(tmp_path, capsys):
    torch.save({"model": Loud()}, tmp_path / "model.pt")
    (tmp_path / "notes.txt").write_text("nothing")
    assert ("error", "model.pt") in [finding[:2] for finding in found(tmp_path)]
    assert "this must never" not in capsys.readouterr().out
    (tmp_path / "model.pt").unlink()
    assert ("error", tmp_path.name, "holds no weights; of other kinds: notes.txt") in found(tmp_path)
    with pytest.raises(ValueError, match="steps_per_epoch is 0; legal: a number > 0"):
        audit_checkpoint(tmp_path, steps_per_epoch=0)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint folder .*none"):
        audit_checkpoint(tmp_path, earlier=tmp_path / "none")


def test_tensors_in_lists_in_two_files_and_of_one_byte_are_looked_into(tmp_path):
    low = torch.tensor([float("nan"), 1.0]).to(torch.float8_e4m3fn)
    save_file({"a.weight": torch.zeros(3), "low": low}, tmp_path / "model.safetensors")
    torch.save(
        {"layers": [torch.zeros(2), {"b": torch.full((2,), math.inf)}], "a.weight": torch.ones(1)}, tmp_path / "z.pt"
    )
    torch.save(torch.ones(3), tmp_path / "bare.pt")
    lines = {(finding[0], finding[1]): finding[2] for finding in found(tmp_path)}
    assert lines["error", "bare.pt"] == "cannot be read (it holds a Tensor; legal: tensors by their names)"
    assert lines["warning", "a.weight"].startswith("every value is 0")
    assert lines["warning", "layers.0"].startswith("every value is 0")
    assert lines["error", "layers.1.b"] == "2 of 2 values are not finite"
    assert lines["error", "low"] == "1 of 2 values are not finite"
    assert "z.pt:a.weight" not in [where for _, where in lines]


def test_an_identity_that_cannot_be_read(checkpoint):
    change_state(checkpoint, "identity", batches_per_epoch=5, config=None)
    findings = [finding for finding in found(checkpoint) if finding[1] in (STATE, "weights")]
    assert findings[0][0] == "error" and findings[0][2].startswith("its identity cannot be read (TypeError")
    assert findings[1][0] == "not checked" and findings[1][2].startswith("the run's first weights cannot be made again")
