"""The status line: the source run's fields, with rates of this session alone."""

import dataclasses
import re

import pytest

from dflash_lab.training.status import StatusLine, duration
from dflash_lab.training.step_metrics import StepMetrics

SOURCE_RUN_LINE = (
    "[478m] step=4690 loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s "
    "(26.2Ktok/s) | q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
)


def step(number, seconds, **changes):
    values = dict(
        step=number,
        epoch=0,
        position=4 * number,
        progress=0.405,
        loss_sum=100.72,
        loss_weight=100.0,
        correct_by_position=[154],
        total_by_position=[1000],
        accepted_sum=80,
        num_blocks=100,
        full_accepted_sum=0,
        num_full_blocks=0,
        grad_norm=1.0,
        learning_rate=5.99e-4,
        noise=0.0998,
        updated=True,
        batch_ids=[0, 1, 2, 3],
        bucket_ids=[0, 0, 0, 0],
        num_samples=[1, 1, 1, 1],
        real_tokens=[40_300] * 4,
        padded_tokens=[49_152] * 4,
        length_min=1,
        length_max=2,
        step_seconds=1.0,
        read_seconds=1.0,
        target_seconds=1.0,
        wait_seconds=0.0,
        train_seconds=1.0,
        q_pre=[43, 50, 28, 31, 25, 38],
        q_hs=[2],
        elapsed_seconds=seconds,
        session=0,
    )
    return StepMetrics(**{**values, **changes})


def test_the_line_of_the_source_run():
    line = StatusLine(total_batches=278_100, done_at_start=0)
    # One step of 4 batches in 4 / 0.65 seconds, 4,690 of them.
    seconds = 4 / 0.65
    for number in range(1, 4_691):
        line.add(step(number, number * seconds), produced=4 * number)
    text = line.text(step(4_690, 4_690 * seconds))
    fields = re.findall(r"(\w+)[=~]", SOURCE_RUN_LINE)
    assert re.findall(r"(\w+)[=~]", text) == fields
    assert text == (
        "[481m] step=4690 loss=1.0072 acc=0.154 streak=0.80 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s "
        "(26.2Ktok/s) | q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
    )


def test_the_time_left_is_at_the_rate_of_this_session():
    line = StatusLine(total_batches=1_000, done_at_start=900)
    last = None
    for number in range(1, 11):
        last = step(225 + number, 2.0 * number, batch_ids=[number])
        line.add(last, produced=number)
    assert line.text(last).endswith("ETA=3.0m")


def test_rates_are_those_of_the_last_minute():
    line = StatusLine(total_batches=10_000, done_at_start=0)
    seconds = 0.0
    for number in range(1, 61):
        # Ten seconds a step at first, one second a step in the end.
        seconds += 10.0 if number <= 10 else 1.0
        line.add(step(number, seconds), produced=4 * number)
    text = line.text(step(60, seconds))
    # The last 60 seconds hold 50 steps of one second and one of ten.
    rate = float(re.search(r"dft=([\d.]+)b/s", text)[1])
    assert rate == pytest.approx(4 * 51 / 60, abs=0.01)


def test_a_step_without_anchors_has_no_loss():
    line = StatusLine(total_batches=10, done_at_start=0)
    empty = dataclasses.replace(step(1, 1.0), loss_weight=0.0, total_by_position=[0], num_blocks=0)
    line.add(empty, produced=4)
    assert "loss=none acc=none streak=none" in line.text(empty)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0, "0s"), (59, "59s"), (60, "1.0m"), (5_400, "1.5h"), (397_440, "4.6d")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
