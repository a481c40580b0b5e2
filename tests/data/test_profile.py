"""The source run's length profile."""

import numpy as np
import pytest

from dflash_lab.batching import plan_epoch, source_run_config
from dflash_lab.data import SOURCE_RUN_NUM_SAMPLES, source_run_lengths


def test_the_profile_has_the_reported_figures():
    lengths = source_run_lengths()
    assert len(lengths) == SOURCE_RUN_NUM_SAMPLES == 902_087
    assert lengths.sum(dtype=np.int64) == 1_876_253_718
    assert (lengths.min(), lengths.max()) == (65, 8191)
    assert np.quantile(lengths, [0.05, 0.25, 0.5, 0.75, 0.9, 0.99]).tolist() == [236, 835, 1367, 2499, 5487, 5784]


def test_the_seed_permutes_and_changes_nothing_else():
    one, other = source_run_lengths(10_000, seed=1), source_run_lengths(10_000, seed=2)
    assert (one != other).any()
    assert (np.sort(one) == np.sort(other)).all()
    assert (one == source_run_lengths(10_000, seed=1)).all()


@pytest.mark.parametrize("num_samples", [1, 2, 3, 17, 1_000])
def test_every_size_has_the_same_shape(num_samples):
    lengths = source_run_lengths(num_samples)
    assert len(lengths) == num_samples
    assert abs(np.median(lengths) - 1367) < 4000 / num_samples + 3000 * (num_samples == 2)


@pytest.mark.parametrize(("name", "value"), [("num_samples", 0), ("num_samples", 2.5), ("seed", -1)])
def test_arguments_out_of_range_are_refused(name, value):
    arguments = {"num_samples": 10, "seed": 0, name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}; legal: a whole number >="):
        source_run_lengths(arguments["num_samples"], seed=arguments["seed"])


def test_the_source_runs_table_is_reproduced_at_full_size():
    lengths = source_run_lengths()
    plans = {
        strategy: plan_epoch(lengths, source_run_config(strategy), epoch=0)
        for strategy in ("sorted", "random", "bucketed")
    }
    bucketed = plans["bucketed"]
    bucketed.validate(lengths)
    assert bucketed.padding_efficiency == pytest.approx(0.865, abs=0.01)
    assert bucketed.budget_use == pytest.approx(0.824, abs=0.01)
    assert len(bucketed) == pytest.approx(46_350, abs=300)
    assert np.mean(bucketed.bucket_ids == 5) == pytest.approx(0.52, abs=0.01)
    assert plans["sorted"].padding_efficiency > 0.999
    assert len(plans["sorted"]) == 41_088
    assert 0.37 <= plans["random"].padding_efficiency / plans["sorted"].padding_efficiency <= 0.42
