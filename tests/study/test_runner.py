"""A study trains what is missing, in any number of processes, and leaves none behind."""

import json
import pickle
import shutil
import subprocess
import sys
import time

import polars as pl
import pytest

from dflash_lab import analysis, study
from dflash_lab.study import worker
from dflash_lab.study.arms import BUCKETS, METRICS, SCORES


class OddError(Exception):
    """Cannot be read again: its arguments are not those that it was made with."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


LOGS = (METRICS, SCORES, BUCKETS)


def logs(done):
    return {(folder.name, name): (folder / name).read_bytes() for folder in done.arm_folders for name in LOGS}


def test_all_arms_pass_over_the_same_tokens(done, settings, material):
    log = analysis.read_study(done.arm_folders)
    assert log.arms["real_tokens_trained"].unique().to_list() == [2 * material.num_tokens]
    assert done.num_trained == len(settings.specs()) == len(log.arms)
    assert log.scores.group_by("label").len()["len"].to_list() == [settings.num_scores] * len(log.labels)
    for label, steps in log.steps.group_by("label"):
        arm = log.arms.filter(pl.col("label") == label[0])
        assert steps["num_blocks"].sum() == arm["blocks_trained"][0]
        assert steps["padded_tokens"].sum() == arm["padded_tokens_trained"][0]
    plain, even = (log.arms.filter(pl.col("label") == name) for name in ("bucketed", "bucketed, anchors per batch"))
    assert plain["blocks_trained"][0] == pytest.approx(even["blocks_trained"][0], rel=0.1)


def test_the_second_time_nothing_is_trained(done, run):
    before = logs(done)
    again, said = run(done.folder.parents[1])
    assert again.num_trained == 0 and said == []
    assert again.arm_folders == done.arm_folders and again.hardware == done.hardware
    assert logs(again) == before


def test_an_arm_that_is_half_there_is_trained_again_and_alike(done, run, tmp_path):
    outputs = tmp_path / "outputs"
    shutil.copytree(done.folder.parents[1], outputs)
    folder = outputs / "study" / done.folder.name / done.arm_folders[1].name
    (folder / "arm.json").unlink()
    # What a process that was killed leaves behind.
    (folder.parent / f".{folder.name}.00000000-1.x.partial").mkdir()
    again, said = run(outputs)
    assert again.num_trained == 1 and len(said) == 2
    assert logs(again) == logs(done)


def test_more_seeds_and_arms_are_added_to_those_that_are_there(done, run, tmp_path):
    outputs = tmp_path / "outputs"
    shutil.copytree(done.folder.parents[1], outputs)
    more, _ = run(outputs, arms=("bucketed", "sorted"), normalisations=(), seeds=(0,))
    assert more.num_trained == 1
    assert more.folder.name == done.folder.name
    other, _ = run(outputs, arms=(), normalisations=(), anchor_budgets=(), learning_rate=1e-3)
    assert other.num_trained == 1 and other.folder != more.folder


def test_two_processes_make_the_same_arms(done, run, tmp_path):
    beside, said = run(tmp_path, processes=2)
    assert beside.num_trained == len(done.arm_folders)
    assert logs(beside) == logs(done)
    assert said[-1].startswith(f"{beside.num_trained} of {beside.num_trained} arms after")
    assert "2 arms at a time" in beside.hardware


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_an_arm_reaches_the_caller(run, tiny_study, tmp_path, processes):
    with pytest.raises(ZeroDivisionError, match="the head is broken") as error:
        run(tmp_path, processes=processes, opener=tiny_study.open_failing)
    if processes == 2:
        [note] = error.value.__notes__
        assert "in a process of the study" in note and "in lm_head" in note
    assert not list(tmp_path.glob("study/*/*/arm.json"))


def test_an_error_that_cannot_travel_comes_as_its_text():
    try:
        raise OddError("this", "that")
    except OddError as error:
        sent = worker._sendable(error)
    assert type(sent) is RuntimeError
    assert str(sent).startswith("OddError: this and that\nin a process of the study:\nTraceback")


def test_a_process_that_dies_is_told(run, tiny_study, tmp_path):
    with pytest.raises(RuntimeError, match="a process of the study ended with exit status 3 before its arm was done"):
        run(tmp_path, processes=2, opener=tiny_study.open_dying)


def test_other_samples_in_another_process_are_refused(run, tiny_study, tmp_path):
    with pytest.raises(ValueError, match="target and samples are [0-9a-f]{16} in another process and [0-9a-f]{16}"):
        run(tmp_path, processes=2, opener=tiny_study.open_other_samples)


def test_an_interrupt_ends_every_process(tiny_study, tmp_path, monkeypatch):
    from dflash_lab.study import processes

    begun = []
    real = subprocess.Popen

    def remember(*arguments, **options):
        begun.append(real(*arguments, **options))
        return begun[-1]

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes.subprocess, "Popen", remember)
    monkeypatch.setattr(processes, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        study.run_study(
            tiny_study.make_settings(),
            outputs=tmp_path,
            processes=2,
            opener=tiny_study.open_tiny,
            on_status=lambda line: None,
        )
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)


def test_a_process_ends_with_its_caller():
    started = subprocess.Popen(
        [sys.executable, "-m", "dflash_lab.study.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    started.stdin.write(pickle.dumps(sys.path) + pickle.dumps(pickle.dumps((60, time.sleep, "", ""))))
    # As when the caller is killed: its end of the pipe is closed for it.
    started.stdin.close()
    assert started.wait(20) == 0
    started.stdout.close()


def test_settings_are_written_beside_the_arms(done):
    found = json.loads((done.folder / "study.json").read_text())
    assert found["settings"]["tokens_per_epoch"] == 800
    assert found["hardware"] == done.hardware and "1 arm at a time" in done.hardware
