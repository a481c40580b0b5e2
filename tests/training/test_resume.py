"""Stopped, broken, killed and resumed: what is trained is the same to the bit."""

import json
import os
import random
import shutil
import signal
import threading
import time

import pytest
from safetensors.torch import load_file

from dflash_lab import analysis, data
from dflash_lab.training.checkpoint import WEIGHTS, find_checkpoint

# Each round kills a run in a process of its own and lets another one end it: `make soak` makes 20.
NUM_KILLS = int(os.environ.get("DFLASH_LAB_SOAK_KILLS", "1"))
TRAINED = ("step", "loss_sum", "loss_weight", "learning_rate", "noise", "grad_norm", "batch_ids", "accepted_sum")


def assert_same_log(run_dir, other):
    table, wanted = analysis.read_run(run_dir), analysis.read_run(other)
    for column in TRAINED:
        assert table[column].to_list() == wanted[column].to_list(), column


def stop_at(step, number=signal.SIGTERM):
    def stop(metrics):
        if metrics.step == step:
            signal.raise_signal(number)

    return stop


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline.num_workers": 3, "pipeline.num_target_loops": 2, "pipeline.prefetch_depth": 2},
        {"pipeline.num_workers": 1, "pipeline.prefetch_depth": 50, "pipeline.feature_depth": 1},
    ],
    ids=["three workers, two targets", "one worker, deep"],
)
def test_threads_and_depths_change_nothing(train, reference, assert_same, tmp_path, changes):
    result = train(tmp_path / "run", **changes)
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    assert_same_log(tmp_path / "run", reference.run_dir)


def test_a_run_that_is_stopped_and_resumed_is_the_same(train, reference, assert_same, tmp_path):
    lines = []
    # Step 7 ends an epoch, and step 8 begins one.
    boundary = analysis.read_run(reference.run_dir)["epoch"].to_list().index(1)
    for step in (3, boundary, boundary + 1):
        result = train(tmp_path / "run", on_step=stop_at(step), on_status=lines.append)
        assert result.stopped_by == "SIGTERM" and result.state.step == step and not result.complete
        assert find_checkpoint(tmp_path / "run").step == step
        assert lines[-1].startswith(f"stopped by SIGTERM after step {step} of {result.total_steps}; saved in ")
    assert (result.state.epoch, result.state.batch) == (1, 2)
    # What does not decide the weights may change.
    harmless = {"pipeline.num_workers": 1, "log.status_every_seconds": 5.0, "checkpoints.keep": 1}
    result = train(tmp_path / "run", on_status=lines.append, **harmless)
    assert f"going on from step-{boundary + 1:08d}: epoch 1, 2 batches of it trained" in lines
    assert result.complete and result.stopped_by == "" and result.state.session == 3
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    assert_same_log(tmp_path / "run", reference.run_dir)
    sessions = json.loads((tmp_path / "run" / "manifest.json").read_text())["sessions"]
    assert [session["from_step"] for session in sessions] == [0, 3, boundary, boundary + 1]


def test_the_position_counts_what_was_trained_not_what_was_read(train, tmp_path):
    result = train(tmp_path / "run", on_step=stop_at(2), **{"pipeline.prefetch_depth": 50})
    assert (result.state.epoch, result.state.batch) == (0, 4)
    assert analysis.read_run(tmp_path / "run")["position"].to_list() == [2, 4]


def test_a_finished_run_is_not_trained_again(train, reference, assert_same, tmp_path):
    shutil.copytree(reference.run_dir, tmp_path / "run")
    result = train(tmp_path / "run", on_step=lambda metrics: pytest.fail("trained again"))
    assert result.complete
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_the_old_handler_comes_back(train, tmp_path, number):
    def of_the_caller(*_):
        pytest.fail("not meant for the caller")

    before = signal.signal(number, of_the_caller)
    try:
        result = train(tmp_path / "run", on_step=stop_at(2, number))
        assert signal.getsignal(number) is of_the_caller
    finally:
        signal.signal(number, before)
    assert (result.stopped_by, result.state.step) == (number.name, 2)


def test_a_second_ctrl_c_ends_at_once_and_the_last_whole_step_is_kept(train, reference, assert_same, tmp_path):
    def stop(metrics):
        if metrics.step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        train(tmp_path / "run", on_step=stop, **{"checkpoints.every_steps": None, "checkpoints.every_minutes": None})
    assert "the run is saved at step 5, in " in caught.value.__notes__[0]
    assert find_checkpoint(tmp_path / "run").step == 5
    result = train(tmp_path / "run")
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())


def test_weights_that_are_half_moved_are_not_saved(train, reference, assert_same, tmp_path, monkeypatch):
    import torch

    honest, calls = torch.optim.AdamW.step, []

    def interrupted(self, *arguments, **options):
        honest(self, *arguments, **options)
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run")
    monkeypatch.setattr(torch.optim.AdamW, "step", honest)
    assert find_checkpoint(tmp_path / "run").step == 5
    assert_same(train(tmp_path / "run").drafter.state_dict(), reference.drafter.state_dict())


def test_a_run_in_another_thread_takes_no_signals(train, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    seen, results = [], []

    def run():
        look = lambda metrics: seen.append(signal.getsignal(signal.SIGTERM))  # noqa: E731
        results.append(train(tmp_path / "run", epochs=1, on_step=look))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert results[0].complete and set(seen) == {before}


def test_an_error_in_the_target_reaches_the_caller_and_the_run_can_go_on(
    train, reference, target, assert_same, tmp_path, monkeypatch
):
    honest, calls = type(target).features, []

    def breaking(self, batch, **options):
        calls.append(batch.batch_id)
        if len(calls) == 12:
            raise ValueError("boom 13")
        return honest(self, batch, **options)

    monkeypatch.setattr(type(target), "features", breaking)
    with pytest.raises(ValueError, match="boom 13"):
        train(tmp_path / "run")
    monkeypatch.setattr(type(target), "features", honest)
    assert_same(train(tmp_path / "run").drafter.state_dict(), reference.drafter.state_dict())


def test_an_error_in_reading_reaches_the_caller_and_nothing_behind_it_is_trained(train, tiny_run, tmp_path):
    class Broken(data.PreloadedDataset):
        def token_views_of(self, sample_ids, lengths):
            if 13 in sample_ids:
                raise ValueError("boom 13")
            return super().token_views_of(sample_ids, lengths)

    dataset = tiny_run.make_dataset()
    dataset.__class__ = Broken
    with pytest.raises(ValueError, match="boom 13"):
        train(tmp_path / "run", dataset=dataset)
    ledger = (tmp_path / "run" / "batches.jsonl").read_text().splitlines()
    trained = {sample for line in ledger for batch in json.loads(line)["batches"] for sample in batch["sample_ids"]}
    assert 13 not in trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batching.token_budget": 300}, "now config.batching.token_budget is 300 and was 256"),
        ({"batching.strategy": "random"}, "now config.batching.strategy is 'random' and was 'capacity'"),
        ({"batching.window": 3}, "now config.batching.window is 3 and was 2"),
        ({"seed": 4}, "now config.seed is 4 and was 3"),
        ({"epochs": 3}, "now config.epochs is 3 and was 2"),
        ({"loss.gamma": 5.0}, "now config.loss.gamma is 5.0 and was 4.0"),
        ({"optimizer.betas": [0.9, 0.999]}, r"now config.optimizer.betas is \[0.9, 0.999\] and was \[0.9, 0.95\]"),
    ],
)
def test_a_changed_setting_is_refused_by_its_name(train, reference, changes, message):
    with pytest.raises(ValueError, match=f"holds another run: {message}; take another run_dir"):
        train(reference.run_dir, **changes)


def test_other_data_and_another_target_are_refused(train, reference, tiny_run):
    with pytest.raises(ValueError, match="holds another run: now data is"):
        train(reference.run_dir, dataset=tiny_run.make_dataset(79))
    with pytest.raises(ValueError, match="holds another run: now target is"):
        train(reference.run_dir, target=tiny_run.RandomTarget(seed=1))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(train, reference, assert_same, tmp_path):
    shutil.copytree(reference.run_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ValueError, match="holds another run: now config.seed is 4 and was 3"):
        train(tmp_path / "run", seed=4)
    result = train(tmp_path / "run")
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    assert_same_log(tmp_path / "run", reference.run_dir)
    (tmp_path / "run" / "manifest.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ValueError, match="holds a run's files without its manifest.json"):
        train(tmp_path / "run")


def test_a_folder_with_a_run_can_be_refused_or_asked_for(train, reference, tmp_path):
    with pytest.raises(ValueError, match='holds a run already; legal: another folder, or resume="auto"'):
        train(reference.run_dir, resume="never")
    with pytest.raises(ValueError, match="holds no complete checkpoint to go on from"):
        train(tmp_path / "none", resume="must")
    with pytest.raises(ValueError, match="resume is 'sometimes'; legal: auto, never, must, or the folder of a check"):
        train(tmp_path / "none", resume="sometimes")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; legal: a folder"):
        train(tmp_path / "file")
    assert not (tmp_path / "none").exists()


def test_going_back_to_an_earlier_checkpoint(train, reference, assert_same, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, **{"checkpoints.keep": 9})
    earlier = run_dir / "checkpoints" / "step-00000004"
    train(run_dir, resume=earlier, on_step=stop_at(6), **{"checkpoints.keep": 9})
    # What was behind step 4 is out of the way: the newest is that of step 6, and the log ends there.
    assert find_checkpoint(run_dir).step == 6
    assert analysis.read_run(run_dir)["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert (run_dir / "checkpoints" / "set_aside" / "step-00000008").is_dir()
    result = train(run_dir)
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    assert_same_log(run_dir, reference.run_dir)


def test_a_run_that_begins_with_the_checkpoint_of_another(train, reference, assert_same, tmp_path):
    train(tmp_path / "first", on_step=stop_at(5))
    checkpoint = find_checkpoint(tmp_path / "first").path
    with pytest.raises(ValueError, match="holds a run already, and the checkpoint .* is not one of its own"):
        train(reference.run_dir, resume=checkpoint)
    result = train(tmp_path / "second", resume=checkpoint)
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    assert analysis.read_run(tmp_path / "second")["step"].to_list() == list(range(6, result.total_steps + 1))
    assert find_checkpoint(tmp_path / "first").step == 5
    (checkpoint / WEIGHTS).unlink()
    with pytest.raises(ValueError, match="is not complete: drafter.safetensors is missing"):
        train(tmp_path / "third", resume=checkpoint)


def test_a_folder_in_use_is_refused(start, train, tmp_path):
    process = start(tmp_path / "run", "epochs=40", "checkpoints.every_steps=null")
    for line in process.stdout:
        if line == "step 1\n":
            break
    with pytest.raises(ValueError, match="run is in use by another process that trains there"):
        train(tmp_path / "run", epochs=40)
    process.kill()
    process.wait()
    assert train(tmp_path / "run", epochs=40, on_step=stop_at(2)).state.step == 2


def test_saving_by_minutes(train, tmp_path):
    seen = []

    def look(metrics):
        seen.append(find_checkpoint(tmp_path / "run").step)

    train(
        tmp_path / "run",
        max_steps=5,
        on_step=look,
        **{"checkpoints.every_steps": None, "checkpoints.every_minutes": 1e-9},
    )
    assert seen == [1, 2, 3, 4, 5]
    # By the hour, nothing is saved before the end but the best by held-out score.
    changes = {"checkpoints.every_steps": None, "checkpoints.every_minutes": 60.0, "validation.every_steps": None}
    train(tmp_path / "other", max_steps=5, **changes)
    assert [folder.name for folder in (tmp_path / "other" / "checkpoints").iterdir()] == ["step-00000005"]


def test_a_checkpoint_that_a_kill_has_cut_is_passed_over_aloud_and_written_again(
    train, reference, assert_same, tmp_path
):
    train(tmp_path / "run", on_step=stop_at(8))
    weights = tmp_path / "run" / "checkpoints" / "step-00000008" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:1000])
    lines = []
    result = train(tmp_path / "run", on_status=lines.append)
    assert any(line.startswith("passed over step-00000008: drafter.safetensors has 1000 bytes of ") for line in lines)
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())
    assert_same_log(tmp_path / "run", reference.run_dir)


@pytest.mark.slow
def test_killed_at_any_step_and_resumed_the_weights_are_the_same(start, reference, assert_same, tmp_path):
    wanted, total = reference.drafter.state_dict(), reference.total_steps
    rng = random.Random(5)
    variants = [["pipeline.num_workers=3", "pipeline.num_target_loops=2"], ["pipeline.prefetch_depth=2"], []]
    for round_number in range(NUM_KILLS):
        run_dir = tmp_path / "killed"
        shutil.rmtree(run_dir, ignore_errors=True)
        kill_at = rng.randrange(1, total)
        process = start(run_dir, "checkpoints.every_steps=2", *variants[round_number % 3])
        for line in process.stdout:
            if line == f"step {kill_at}\n":
                # Anywhere between two steps: while training, writing the log or saving.
                time.sleep(rng.random() * 0.1)
                process.kill()
                break
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == -signal.SIGKILL or "ended at" in rest
        again = start(run_dir, "checkpoints.every_steps=2", *variants[(round_number + 1) % 3])
        assert f"ended at {total} of {total}" in again.communicate(timeout=200)[0]
        assert_same(load_file(find_checkpoint(run_dir).path / WEIGHTS), wanted)
        assert_same_log(run_dir, reference.run_dir)


@pytest.mark.slow
def test_sigterm_from_outside_saves_and_ends(start, tmp_path):
    process = start(tmp_path / "run", "checkpoints.every_steps=null", "epochs=40")
    for line in process.stdout:
        if line == "step 3\n":
            process.terminate()
            break
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "stopped by SIGTERM after step " in rest
    step = find_checkpoint(tmp_path / "run").step
    assert step >= 3 and f"ended at {step} of " in rest
