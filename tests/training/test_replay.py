"""A step made once more is the same to the bit, and its parts add up."""

import shutil

import numpy as np
import pytest

from dflash_lab.training import replay_step


@pytest.mark.parametrize("step", [1, 6, 13])
def test_a_step_is_the_same_to_the_bit(reference, dataset, target, step):
    replayed = replay_step(reference.run_dir, step, dataset, target, device="cpu")
    # Checkpoints stay at 12 and at the last step, and the best one: steps before them begin with the first weights.
    assert replayed.from_step < step
    assert replayed.matches_log
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
