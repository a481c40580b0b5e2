"""Which batches a step was made of, counted by hand and as the trainer counts."""

import numpy as np
import polars as pl
import pytest

from dflash_lab.analysis import add_planned_batches
from dflash_lab.analysis.planned_steps import crosses_epochs
from dflash_lab.batching import BatchingConfig, plan_epoch

LENGTHS = np.array([3, 9, 4, 8, 2, 7, 5, 6, 1, 10])


@pytest.fixture(scope="module")
def plans():
    config = BatchingConfig(
        strategy="bucketed", order="random", bucket_bounds=(0, 5, 8, 16), token_budget=10, max_seq_len=16, window=2
    )
    return [plan_epoch(LENGTHS, config, epoch=epoch) for epoch in range(2)]


def steps(*numbers):
    return pl.DataFrame({"step": numbers, "loss": [1.0] * len(numbers)})


def expected(batches):
    """What the rows of batches (lists of lengths) of one step must say."""
    return {
        "bucket_ids": [int(np.searchsorted([0, 5, 8], lengths[0], side="right")) - 1 for lengths in batches],
        "num_samples": [len(lengths) for lengths in batches],
        "real_tokens": [sum(lengths) for lengths in batches],
        "padded_tokens": [len(lengths) * max(lengths) for lengths in batches],
        "length_min": min(min(lengths) for lengths in batches),
        "length_max": max(max(lengths) for lengths in batches),
    }


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2, 3, 100])
def test_steps_take_windows_in_the_order_of_the_plans(plans, accumulation, across):
    epochs = [[LENGTHS[ids].tolist() for ids in plan] for plan in plans]
    pools = [epochs[0] + epochs[1]] if across else epochs
    windows = [pool[at : at + accumulation] for pool in pools for at in range(0, len(pool), accumulation)]
    # Every second step only, as a status line is not written at each.
    numbers = list(range(1, len(windows) + 1, 2))
    table = add_planned_batches(steps(*numbers), plans, accumulation=accumulation, across_epochs=across)
    for row in table.iter_rows(named=True):
        assert {name: row[name] for name in expected([[1]])} == expected(windows[row["step"] - 1])
    total = len(windows)
    assert crosses_epochs([len(plan) for plan in plans], accumulation, total) in (across, False)


def test_the_source_runs_steps_cross_its_epochs():
    # 46,350 batches an epoch, 4 a step: 11,587.5 steps an epoch, 69,525 in six.
    assert crosses_epochs([46_350] * 6, 4, 69_525) is True
    assert crosses_epochs([46_350] * 6, 4, 69_528) is False
    assert crosses_epochs([46_350] * 6, 4, 69_526) is None


def test_steps_that_the_plans_do_not_reach_are_refused(plans):
    sizes = sum(map(len, plans))
    with pytest.raises(ValueError, match=rf"steps 1 to 99, and 2 plans of {sizes} batches make \d+ steps of 2; legal"):
        add_planned_batches(steps(1, 99), plans, accumulation=2)
    with pytest.raises(ValueError, match="the log has steps 0 to 1"):
        add_planned_batches(steps(0, 1), plans, accumulation=2)
    with pytest.raises(ValueError, match="plans is empty"):
        add_planned_batches(steps(1), [], accumulation=2)
    with pytest.raises(ValueError, match="accumulation"):
        add_planned_batches(steps(1), plans, accumulation=0)
