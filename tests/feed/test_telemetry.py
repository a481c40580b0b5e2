"""Which stage bounds a run."""

import pytest

from dflash_lab.feed import StageTimes


@pytest.mark.parametrize(
    ("seconds", "stage"),
    [
        ({"read_seconds": 9, "room_seconds": 0.1, "batch_seconds": 7, "target_seconds": 2, "drafter_seconds": 3,
          "feature_seconds": 6}, "loader"),
        ({"read_seconds": 1, "room_seconds": 8, "target_seconds": 9, "batch_seconds": 0.1, "drafter_seconds": 3,
          "feature_seconds": 6}, "target"),
        ({"read_seconds": 1, "room_seconds": 8, "target_seconds": 2, "blocked_seconds": 7, "drafter_seconds": 9},
         "drafter"),
        ({"read_seconds": 5, "target_seconds": 5, "drafter_seconds": 5}, "drafter"),
    ],
)  # fmt: skip
def test_the_stage_that_waits_for_nothing_bounds_the_run(seconds, stage):
    assert StageTimes(**seconds).bound_by == stage


def test_before_anything_has_run_nothing_is_known():
    assert StageTimes().bound_by is None
    assert StageTimes().busy_shares == {"loader": None, "target": None, "drafter": None}


def test_a_window_is_the_difference_of_two_moments():
    early = StageTimes(num_workers=2, read_seconds=5.0, target_seconds=1.0, drafter_seconds=1.0)
    late = StageTimes(num_workers=2, read_seconds=5.5, room_seconds=2.0, target_seconds=4.0, drafter_seconds=1.5,
                      feature_seconds=2.5)  # fmt: skip
    window = late - early
    assert window == StageTimes(
        num_workers=2, read_seconds=0.5, room_seconds=2.0, target_seconds=3.0, drafter_seconds=0.5, feature_seconds=2.5
    )
    assert (early.bound_by, window.bound_by) == ("drafter", "target")


def test_times_of_different_runs_are_not_subtracted():
    with pytest.raises(ValueError, match="legal: two moments of one run"):
        StageTimes(num_workers=2) - StageTimes()
