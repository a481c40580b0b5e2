"""A step made once more is the same to the bit, and its parts add up."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch

from dflash_lab import data
from dflash_lab.training import replay_step


@pytest.mark.parametrize("step", [1, 6, 13])
def test_a_step_is_the_same_to_the_bit(reference, dataset, target, step):
    replayed = replay_step(reference.run_dir, step, dataset, target, device="cpu")
    # Checkpoints stay at 12 and at the last step, and the best one: steps before them begin with the first weights.
    assert replayed.from_step < step
    assert replayed.matches_log and replayed.log_differences == () and replayed.environment_differences == ()
    assert replayed.loss == replayed.logged["loss_sum"] / replayed.logged["loss_weight"]
    assert replayed.outcome.learning_rate == replayed.logged["learning_rate"]
    assert replayed.outcome.noise == replayed.logged["noise"]
    sums = replayed.outcome.sums
    for parts, whole in (
        (replayed.sample_loss_sum, sums.loss_sum),
        (replayed.sample_loss_weight, sums.loss_weight),
        (replayed.position_loss_sum, sums.loss_sum),
        (replayed.position_loss_weight, sums.loss_weight),
    ):
        assert parts.sum() == pytest.approx(whole, rel=1e-12)
    assert replayed.sample_blocks.sum() == sums.scores.num_blocks
    assert replayed.position_loss_sum.shape == (5,)
    # Weights decay from slot to slot: exp(-(k - 1) / 4) of all that are scored.
    scored = np.array(replayed.logged["total_by_position"])
    np.testing.assert_allclose(replayed.position_loss_weight, scored * np.exp(-np.arange(5) / 4), rtol=1e-6)


def test_samples_are_those_of_the_ledger_and_the_dear_one_stands_out(reference, dataset, target):
    replayed = replay_step(reference.run_dir, 3, dataset, target, device="cpu")
    assert len(replayed.sample_ids) == sum(replayed.logged["num_samples"]) == len(set(replayed.sample_ids.tolist()))
    lengths = dataset.lengths[replayed.sample_ids]
    assert lengths.sum() == sum(replayed.logged["real_tokens"])
    assert (replayed.sample_blocks <= 6).all() and (replayed.sample_loss_weight > 0).all()


def test_a_run_that_was_stopped_in_its_middle(train, dataset, target, tmp_path):
    import signal

    def stop(metrics):
        if metrics.step in (3, 5):
            signal.raise_signal(signal.SIGTERM)

    changes = {"noise.amplitude": 0.3, "noise.warmup_steps": 2, "loss.kind": "kl", "batching.strategy": "packed"}
    changes |= {"checkpoints.keep": 9, "checkpoints.every_steps": None}
    for _ in range(3):
        train(tmp_path / "run", max_steps=7, on_step=stop, **changes)
    for step in (4, 7):
        replayed = replay_step(tmp_path / "run", step, dataset, target, device="cpu")
        assert replayed.matches_log and replayed.from_step == {4: 3, 7: 5}[step]


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_every_step_of_a_run_with_tail_windows_is_made_again(train, dataset, target, tmp_path, noise):
    changes = {"batching.window": 3, "checkpoints.keep": 99, "validation.every_steps": None, "noise.amplitude": noise}
    result = train(tmp_path / "run", **changes, **{"noise.warmup_steps": 2})
    before = contents(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "batches.jsonl").read_text().splitlines()]
    sizes = [len(line["batches"]) for line in lines]
    tail = next(line["step"] for line in lines if len(line["batches"]) < 3)
    second_epoch = next(line["step"] for line in lines if line["epoch"] == 1)
    # Both epochs end in a smaller window.
    assert 0 < sizes[tail - 1] < 3 and second_epoch == tail + 1 and sizes[-1] == sizes[tail - 1]
    for step in sorted({1, 4, 5, 9, tail, second_epoch, result.total_steps}):
        replayed = replay_step(tmp_path / "run", step, dataset, target, device="cpu")
        assert replayed.matches_log and replayed.plan_difference is None
        # Checkpoints stand at 4, 8, ...; a step is made from the one before it, never from its own.
        assert replayed.from_step == (step - 1) // 4 * 4
        # They stand at 4, 8, ... and at the end.
        assert replayed.matches_checkpoint is (True if step % 4 == 0 or step == result.total_steps else None)
        assert (replayed.outcome.noise > 0) == (noise > 0 and step > 1)
        assert replayed.sample_ids.tolist() == [
            sample for batch in lines[step - 1]["batches"] for sample in batch["sample_ids"]
        ]
    assert contents(tmp_path / "run") == before


def test_blocks_add_up_to_samples_and_to_the_log(reference, dataset, target):
    replayed = replay_step(reference.run_dir, 6, dataset, target, device="cpu")
    assert len(replayed.block_anchors) == replayed.logged["num_blocks"]
    for number, sample in enumerate(replayed.sample_ids.tolist()):
        own = replayed.block_sample_ids == sample
        assert own.sum() == replayed.sample_blocks[number]
        assert replayed.block_loss_sum[own].sum() == pytest.approx(replayed.sample_loss_sum[number], rel=1e-12)
        anchors, mask = replayed.block_anchors[own], dataset[sample].loss_mask
        assert (np.diff(anchors) > 0).all() and mask[anchors].all() and mask[anchors + 1].all()


def test_accepted_tokens_of_blocks_are_those_of_the_log(train, target, tmp_path):
    # What repeats itself is learned: otherwise nothing would be accepted.
    rows = [{"input_ids": [5 + (n + at) % 3 for at in range(30)], "loss_mask": [1] * 30} for n in range(60)]
    dataset = data.PreloadedDataset.from_rows(rows)
    train(tmp_path / "run", dataset=dataset, max_steps=30, epochs=8, **{"optimizer.learning_rate": 1e-2})
    replayed = replay_step(tmp_path / "run", 30, dataset, target, device="cpu")
    assert replayed.block_accepted.sum() == replayed.logged["accepted_sum"] > len(replayed.block_accepted)
    assert replayed.block_accepted.max() <= 5


def test_a_ledger_that_is_not_the_plan_is_told(reference, dataset, target, tmp_path):
    shutil.copytree(reference.run_dir, tmp_path / "run")
    ledger = tmp_path / "run" / "batches.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    batch = lines[2]["batches"][0]
    batch["sample_ids"] = batch["sample_ids"][::-1]
    batch["lengths"] = batch["lengths"][::-1]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = replay_step(tmp_path / "run", 3, dataset, target, device="cpu")
    assert replayed.plan_difference.startswith(
        f"step 3 of epoch 0: the ledger has batch {batch['batch_id']} of {len(batch['sample_ids'])} samples "
        f"[{batch['sample_ids'][0]}, "
    )
    assert f"and the plan batch {batch['batch_id']} of {len(batch['sample_ids'])} samples" in replayed.plan_difference
    # What is made again is the ledger's.
    assert replayed.sample_ids[: len(batch["sample_ids"])].tolist() == batch["sample_ids"]
    lines[2]["batches"].pop()
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = replay_step(tmp_path / "run", 3, dataset, target, device="cpu")
    assert replayed.plan_difference is not None and not replayed.matches_log


def test_a_run_with_a_validation_set_is_compared_with_a_plan_of_all_samples(train, dataset, target, tiny_run, tmp_path):
    train(tmp_path / "run", max_steps=3, validation=tiny_run.make_dataset(10))
    replayed = replay_step(tmp_path / "run", 3, dataset, target, device="cpu")
    assert replayed.matches_log and replayed.plan_difference is None


def test_packed_rows_are_those_of_the_plan(train, dataset, target, tmp_path):
    train(tmp_path / "run", max_steps=3, **{"batching.strategy": "packed"})
    replayed = replay_step(tmp_path / "run", 2, dataset, target, device="cpu")
    assert replayed.matches_log and replayed.plan_difference is None


def test_settings_that_were_changed_afterwards_are_named(reference, dataset, target, tmp_path):
    shutil.copytree(reference.run_dir, tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    settings["loss"]["gamma"] = 7.0
    (tmp_path / "run" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"config.json is not what the run was made with: loss.gamma is 7.0 and was 4"):
        replay_step(tmp_path / "run", 1, dataset, target, device="cpu")


def test_what_cannot_be_replayed_is_refused(reference, dataset, target, tiny_run, tmp_path):
    for step in (0, 99):
        with pytest.raises(ValueError, match=f"step is {step}; legal: a step in the log of .*, which has steps 1 to "):
            replay_step(reference.run_dir, step, dataset, target)
    with pytest.raises(ValueError, match="the data has the fingerprint"):
        replay_step(reference.run_dir, 1, tiny_run.make_dataset(79), target)
    with pytest.raises(ValueError, match="the target has the fingerprint"):
        replay_step(reference.run_dir, 1, dataset, tiny_run.RandomTarget(seed=1))
    with pytest.raises(ValueError, match="holds no run: there is no manifest.json"):
        replay_step(tmp_path, 1, dataset, target)
    shutil.copytree(reference.run_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    lines = (tmp_path / "run" / "batches.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "batches.jsonl").write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(ValueError, match="has no step 2, from which step 5 follows"):
        replay_step(tmp_path / "run", 5, dataset, target, device="cpu")


def test_slots_add_up_to_blocks_positions_and_counts(reference, dataset, target):
    replayed = replay_step(reference.run_dir, 6, dataset, target, device="cpu")
    weighted = replayed.slot_losses * replayed.slot_weights
    np.testing.assert_allclose(weighted.sum(1), replayed.block_loss_sum, rtol=1e-12)
    np.testing.assert_allclose(weighted.sum(0), replayed.position_loss_sum, rtol=1e-12)
    assert replayed.slot_correct.sum(0).tolist() == replayed.logged["correct_by_position"]
    # A slot is scored where its token is supervised, and weighs exp(-(k - 1) / 4) there.
    for block in (0, 7, len(replayed.block_anchors) - 1):
        mask = dataset[int(replayed.block_sample_ids[block])].loss_mask
        anchor = int(replayed.block_anchors[block])
        scored = [anchor + k < len(mask) and bool(mask[anchor + k]) for k in range(1, 6)]
        expected = [math.exp(-k / 4) if is_scored else 0.0 for k, is_scored in enumerate(scored)]
        np.testing.assert_allclose(replayed.slot_weights[block], expected, rtol=1e-6)
        right = replayed.slot_correct[block].tolist()
        assert replayed.block_accepted[block] == (right + [False]).index(False)
    table = replayed.position_table()
    assert table["position"].to_list() == [1, 2, 3, 4, 5]
    assert table["loss"][0] == table["loss_sum"][0] / table["loss_weight"][0]
    assert replayed.grad_norm == replayed.logged["grad_norm"]


def test_what_the_log_says_otherwise_is_named(reference, dataset, target, tmp_path):
    run_dir = shutil.copytree(reference.run_dir, tmp_path / "run")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    was = lines[0]["loss_sum"]
    lines[0] |= {"loss_sum": was * 2, "accepted_sum": -1, "length_max": 7, "step_seconds": 1e9}
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    replayed = replay_step(run_dir, 1, dataset, target, device="cpu")
    assert not replayed.matches_log
    # In the order of the fields; times are not made again.
    first, second, third = replayed.log_differences
    assert first == f"loss_sum is {was!r} and was {2 * was!r} (5.0e-01 of it)"
    assert second.endswith(" and was -1") and third == f"length_max is {replayed._fields()['length_max']} and was 7"


def test_a_step_that_was_not_finite_is_null_in_the_log(reference, dataset, target):
    replayed = replay_step(reference.run_dir, 1, dataset, target, device="cpu")
    outcome = dataclasses.replace(replayed.outcome, grad_norm=math.inf)
    logged = {**replayed.logged, "grad_norm": None}
    assert dataclasses.replace(replayed, outcome=outcome, logged=logged).matches_log
    assert not dataclasses.replace(replayed, outcome=outcome).matches_log


def test_a_run_that_went_on_from_another_folders_checkpoint(train, dataset, target, tmp_path):
    changes = {"checkpoints.keep": 9, "validation.every_steps": None}
    train(tmp_path / "first", max_steps=9, **changes)
    begin = tmp_path / "first" / "checkpoints" / "step-00000004"
    fork = tmp_path / "fork"
    train(fork, max_steps=9, resume=begin, **changes)
    # Its own checkpoints stand at 8 and 9.
    with pytest.raises(
        ValueError, match="fork went on from step 4 of a run in another folder, and has no checkpoint of"
    ):
        replay_step(fork, 6, dataset, target, device="cpu")
    replayed = replay_step(fork, 6, dataset, target, checkpoint=begin, device="cpu")
    assert replayed.from_step == 4 and replayed.log_differences == ()
    assert replay_step(fork, 9, dataset, target, device="cpu").from_step == 8
    with pytest.raises(ValueError, match="legal: a step in the log of .*, which has steps 5 to 9"):
        replay_step(fork, 4, dataset, target, checkpoint=begin, device="cpu")
    with pytest.raises(ValueError, match="step-00000008 is of step 8; legal: one of a step before 6"):
        replay_step(fork, 6, dataset, target, checkpoint=fork / "checkpoints" / "step-00000008", device="cpu")
    with pytest.raises(ValueError, match="checkpoint .*none is not complete: state.json is missing"):
        replay_step(fork, 6, dataset, target, checkpoint=tmp_path / "none", device="cpu")
    held = json.loads((begin / "state.json").read_text())
    held["identity"]["config"]["seed"] = 4
    (begin / "state.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match="is of another run than .*fork: config.seed is 4 and was 3"):
        replay_step(fork, 6, dataset, target, checkpoint=begin, device="cpu")


def test_torch_has_as_many_threads_as_the_run_had(reference, dataset, target, tmp_path, monkeypatch):
    run_dir = shutil.copytree(reference.run_dir, tmp_path / "run")
    manifest = json.loads((run_dir / "manifest.json").read_text())
    manifest["sessions"][0] |= {"threads": 2, "device": "cuda:0", "versions": {"torch": "0.1", "gone-package": "3"}}
    manifest["sessions"][0]["code"] = "of another day"
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    asked = []
    # Two threads on a busy machine wait for each other.
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    replayed = replay_step(run_dir, 1, dataset, target, device="cpu")
    assert asked == [2, 1]
    assert replayed.environment_differences == (
        "session 0 had the device cuda:0, and here it is cpu",
        "session 0 ran other code of dflash_lab than is here",
        f"session 0 had torch 0.1, and here it is {torch.__version__}",
        "session 0 had gone-package 3, and here it is none",
    )


def test_settings_of_the_optimizer_show_in_the_weights_alone(reference, dataset, target, tmp_path):
    # Of the last step, which has a checkpoint; sums and gradient norm come before the update.
    run_dir = shutil.copytree(reference.run_dir, tmp_path / "run")
    for file in (run_dir / "config.json", run_dir / "manifest.json"):
        held = json.loads(file.read_text())
        config = held if file.name == "config.json" else held["identity"]["config"]
        config["optimizer"]["max_grad_norm"] = 1e-3
        file.write_text(json.dumps(held))
    last = reference.total_steps
    assert replay_step(reference.run_dir, last, dataset, target, device="cpu").matches_checkpoint is True
    replayed = replay_step(run_dir, last, dataset, target, device="cpu")
    assert replayed.from_step == last - 2 and replayed.matches_checkpoint is False
