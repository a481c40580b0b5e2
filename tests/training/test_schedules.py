"""Learning rate and noise, step by step, against hand-worked values."""

import math

import pytest

from dflash_lab.training import ScheduleConfig, learning_rate, noise_amplitude


def rates(warmup, total, schedule="cosine", peak=1.0):
    config = ScheduleConfig(total_steps=total, warmup_steps=warmup, learning_rate=peak, schedule=schedule)
    return [learning_rate(step, config) for step in range(total)]


def test_without_warm_up_the_first_step_has_the_peak_and_the_last_is_above_0():
    values = rates(0, 10)
    assert values[0] == 1.0
    assert all(later < earlier for earlier, later in zip(values, values[1:], strict=False))
    assert values[9] == pytest.approx((1 + math.cos(math.pi * 0.9)) / 2)


def test_the_warm_up_begins_above_0_and_ends_at_the_peak():
    assert rates(4, 10)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_warm_up_as_long_as_the_run_stays_finite():
    assert rates(10, 10) == pytest.approx([step / 10 for step in range(1, 11)])


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match=r"warmup_steps is 20 in a run of 10 steps; legal: in \[0, 10\]"):
        ScheduleConfig(total_steps=10, warmup_steps=20)


def test_the_third_step_of_ten_warm_up_steps():
    config = ScheduleConfig(total_steps=1_000, warmup_steps=10, learning_rate=6e-4)
    assert learning_rate(2, config) == pytest.approx(1.8e-4)


def test_linear_and_constant():
    assert rates(2, 6, "linear") == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])
    assert rates(2, 6, "constant") == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_past_the_end_the_last_rate_holds():
    config = ScheduleConfig(total_steps=10, learning_rate=1.0)
    assert learning_rate(9, config) == learning_rate(1_000, config) > 0


def test_the_noise_ramps_by_optimizer_step_and_stays():
    config = ScheduleConfig(total_steps=2_000, noise_amplitude=0.1, noise_warmup_steps=100)
    values = [noise_amplitude(step, config) for step in (0, 1, 50, 99, 100, 1_000)]
    assert values == pytest.approx([0, 0.001, 0.05, 0.099, 0.1, 0.1])


def test_noise_without_a_ramp_is_there_at_once_and_none_is_none():
    assert noise_amplitude(0, ScheduleConfig(total_steps=5, noise_amplitude=0.1)) == 0.1
    assert noise_amplitude(3, ScheduleConfig(total_steps=5)) == 0.0


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(ValueError, match="step is .*; legal: a whole number >= 0"):
        learning_rate(step, ScheduleConfig(total_steps=5))
