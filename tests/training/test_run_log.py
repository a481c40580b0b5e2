"""The files of a run: strict lines, each step once, nothing lost in silence."""

import json

import pytest
import torch

from dflash_lab.feed import Batch
from dflash_lab.training import RunLog, StepMetrics
from dflash_lab.training.run_log import BATCHES, METRICS, SET_ASIDE, VALIDATION, finite, read_lines


def batch(batch_id, lengths, *, layout="padded", epoch=0):
    lengths = torch.tensor(lengths)
    width = int(lengths.max())
    mask = torch.arange(width) < lengths[:, None]
    return Batch(
        input_ids=mask.long(),
        attention_mask=mask,
        loss_mask=mask,
        lengths=lengths,
        sample_ids=torch.arange(len(lengths)) + 10 * batch_id,
        rows=torch.arange(len(lengths)),
        starts=torch.zeros_like(lengths),
        layout=layout,
        batch_id=batch_id,
        bucket_id=batch_id % 2,
        epoch=epoch,
    )


def metrics(step, **changes):
    values = dict(
        step=step,
        epoch=0,
        position=2 * step,
        progress=0.1 * step,
        loss_sum=3.0,
        loss_weight=2.0,
        correct_by_position=[3, 1],
        total_by_position=[10, 10],
        accepted_sum=2,
        num_blocks=10,
        full_accepted_sum=2,
        num_full_blocks=8,
        grad_norm=1.0,
        learning_rate=1e-3,
        noise=0.0,
        updated=True,
        batch_ids=[2 * step - 2, 2 * step - 1],
        bucket_ids=[0, 1],
        num_samples=[2, 2],
        real_tokens=[10, 12],
        padded_tokens=[12, 14],
        length_min=2,
        length_max=7,
        step_seconds=0.5,
        read_seconds=0.1,
        target_seconds=0.2,
        wait_seconds=0.1,
        train_seconds=0.3,
        q_pre=[4],
        q_hs=[1],
        elapsed_seconds=0.5 * step,
        session=0,
    )
    return StepMetrics(**{**values, **changes})


def write(run_dir, steps, *, after_step=0):
    with RunLog(run_dir, after_step=after_step) as log:
        for step in steps:
            log.add_step(metrics(step, session=after_step), [batch(2 * step - 2, [3, 5]), batch(2 * step - 1, [4, 4])])
            if step % 2 == 0:
                log.add_validation({"step": step, "tau": 1.5})


def steps_in(run_dir, name):
    return [json.loads(line)["step"] for line in (run_dir / name).read_text().splitlines()]


def test_a_step_says_which_samples_it_was_made_of(tmp_path):
    write(tmp_path, [1])
    (line,) = read_lines(tmp_path / BATCHES)
    assert (line["step"], line["epoch"], line["rank"]) == (1, 0, 0)
    assert line["batches"][0] == {
        "batch_id": 0,
        "bucket_id": 0,
        "layout": "padded",
        "width": 5,
        "real_tokens": 8,
        "padded_tokens": 10,
        "length_min": 3,
        "length_max": 5,
        "sample_ids": [0, 1],
        "lengths": [3, 5],
    }


def test_a_line_is_there_for_others_at_once(tmp_path):
    with RunLog(tmp_path) as log:
        log.add_step(metrics(1), [batch(0, [3])])
        assert steps_in(tmp_path, METRICS) == steps_in(tmp_path, BATCHES) == [1]


def test_opened_for_a_step_it_sets_later_ones_aside(tmp_path):
    write(tmp_path, range(1, 7))
    write(tmp_path, [5], after_step=4)
    assert steps_in(tmp_path, METRICS) == steps_in(tmp_path, BATCHES) == [1, 2, 3, 4, 5]
    assert steps_in(tmp_path, VALIDATION) == [2, 4]
    assert steps_in(tmp_path, METRICS + SET_ASIDE) == [5, 6]
    assert [line["session"] for line in read_lines(tmp_path / METRICS)] == [0, 0, 0, 0, 4]
    # What is set aside later comes behind what is there.
    write(tmp_path, [], after_step=4)
    assert steps_in(tmp_path, METRICS + SET_ASIDE) == [5, 6, 5]


def test_a_half_last_line_is_set_apart(tmp_path):
    write(tmp_path, [1, 2])
    whole = (tmp_path / METRICS).read_bytes()
    (tmp_path / METRICS).write_bytes(whole[:-40])
    assert [line["step"] for line in read_lines(tmp_path / METRICS)] == [1]
    write(tmp_path, [2, 3], after_step=1)
    assert steps_in(tmp_path, METRICS) == [1, 2, 3]
    aside = (tmp_path / (METRICS + SET_ASIDE)).read_bytes()
    assert aside == whole.splitlines(keepends=True)[1][:-40] + b"\n"


def test_what_stands_is_not_written_again(tmp_path):
    write(tmp_path, [1, 2])
    before = (tmp_path / METRICS).stat().st_ino
    write(tmp_path, [3], after_step=2)
    assert (tmp_path / METRICS).stat().st_ino == before
    assert not (tmp_path / (METRICS + SET_ASIDE)).exists()


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    with RunLog(tmp_path) as log, pytest.raises(ValueError, match="Out of range float values"):
        log.add_step(metrics(1, loss_sum=float("nan")), [batch(0, [3])])
    assert (tmp_path / METRICS).read_text() == ""
    assert [finite(value) for value in (1.5, float("nan"), float("inf"))] == [1.5, None, None]


def test_ratios_are_taken_of_sums():
    step = metrics(1)
    assert (step.loss, step.accuracy, step.streak) == (1.5, 0.2, 0.2)
    # 9 of 10 and 10 of 90 are 0.19, not 0.5056.
    assert metrics(1, correct_by_position=[9, 10], total_by_position=[10, 90]).accuracy == 0.19
    empty = metrics(1, loss_sum=0.0, loss_weight=0.0, total_by_position=[0, 0], num_blocks=0)
    assert (empty.loss, empty.accuracy, empty.streak) == (None, None, None)
    assert metrics(1, loss_sum=None).loss is None
