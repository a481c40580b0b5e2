"""Tables of a feed, from a pipeline that was written down by hand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dflash_lab.analysis.feed import (
    queue_depth_table,
    queue_summary,
    stage_table,
    starvation_table,
    workers_needed_table,
)


@dataclass(frozen=True)
class Sizes:
    depth: int


@dataclass(frozen=True)
class Seen:
    """Two targets and two workers over 10 s; four moments."""

    config: Sizes
    seconds: np.ndarray
    q_pre: np.ndarray
    worker_busy_seconds: np.ndarray
    worker_blocked_seconds: np.ndarray
    target_busy_seconds: np.ndarray
    target_starved_seconds: np.ndarray
    target_blocked_seconds: np.ndarray
    drafter_busy_seconds: float
    drafter_starved_seconds: float
    batches_by_target: np.ndarray
    trained_seconds: np.ndarray
    batches_per_second: float
    bounding_stage: str


SEEN = Seen(
    config=Sizes(4),
    seconds=np.array([0.0, 4.0, 8.0, 10.0]),
    q_pre=np.array([[0, 0], [4, 3], [4, 1], [3, 0]]),
    worker_busy_seconds=np.array([2.0, 3.0]),
    worker_blocked_seconds=np.array([8.0, 7.0]),
    target_busy_seconds=np.array([9.0, 6.0]),
    target_starved_seconds=np.array([0.5, 4.0]),
    target_blocked_seconds=np.array([0.5, 0.0]),
    drafter_busy_seconds=4.0,
    drafter_starved_seconds=6.0,
    batches_by_target=np.array([9, 6]),
    trained_seconds=np.array([1.0, 5.0, 10.0]),
    batches_per_second=0.4,
    bounding_stage="targets",
)


@dataclass(frozen=True)
class Grid:
    read_tokens_per_second: np.ndarray
    batches_per_second: np.ndarray
    num_workers: np.ndarray


def test_depths_are_listed_by_moment_and_target() -> None:
    table = queue_depth_table({"ours": SEEN, "theirs": replace(SEEN, config=Sizes(9))})
    assert table.columns == ["rehearsal", "time_seconds", "target_id", "depth_batches", "capacity_batches"]
    assert len(table) == 16
    assert table.row(5) == ("ours", 8.0, 1, 1, 4)
    assert table.row(10) == ("theirs", 4.0, 0, 4, 9)


def test_the_summary_leaves_the_filling_out_and_takes_shares_of_the_whole_time() -> None:
    (row,) = queue_summary({"ours": SEEN}).to_dicts()
    assert row == {
        "rehearsal": "ours",
        "num_targets": 2,
        "capacity_batches": 4,
        "depth_min_batches": 0,
        "depth_max_batches": 4,
        # (1 + 3 + 3) / 3: the first moment, when all were empty, is before a quarter of the time.
        "spread_mean_batches": pytest.approx(7 / 3),
        "spread_last_batches": 3,
        "starved_share_max": 0.4,
        "starved_share": pytest.approx(4.5 / 20),
        "batches_per_second": 0.4,
        "num_trained_batches": 3,
        "bounding_stage": "targets",
    }
    (whole,) = queue_summary({"ours": SEEN}, skip_share=0.0).to_dicts()
    assert whole["spread_mean_batches"] == pytest.approx(7 / 4)


def test_each_target_has_its_times() -> None:
    table = starvation_table({"ours": SEEN})
    assert table.rows() == [("ours", 0, 9, 9.0, 0.5, 0.5, 0.05), ("ours", 1, 6, 6.0, 4.0, 0.0, 0.4)]
    assert table.columns[2:] == ["num_batches", "busy_seconds", "starved_seconds", "blocked_seconds", "starved_share"]


def test_stages_are_summed_over_their_members_and_one_bounds() -> None:
    table = stage_table({"ours": SEEN})
    assert table.rows() == [
        ("ours", "workers", 2, 5.0, 0.0, 15.0, 0.25, False),
        ("ours", "targets", 2, 15.0, 4.5, 0.5, 0.75, True),
        ("ours", "drafter", 1, 4.0, 6.0, 0.0, 0.4, False),
    ]


def test_waits_that_were_measured_beyond_the_end_are_no_more_than_all() -> None:
    late = replace(SEEN, target_starved_seconds=np.array([0.0, 10.2]), drafter_busy_seconds=10.1)
    assert starvation_table({"ours": late})["starved_share"].to_list() == [0.0, 1.0]
    assert queue_summary({"ours": late})["starved_share_max"][0] == 1.0
    assert stage_table({"ours": late})["busy_share"].to_list() == [0.25, 0.75, 1.0]


def test_worker_counts_that_do_not_exist_are_null() -> None:
    grid = Grid(np.array([10.0, 1e6]), np.array([0.65, 6.5]), np.array([[2, 1], [-1, 4]]))
    assert workers_needed_table(grid).rows() == [(0.65, 10.0, 2), (0.65, 1e6, 1), (6.5, 10.0, None), (6.5, 1e6, 4)]


@pytest.mark.parametrize("table", [queue_depth_table, queue_summary, starvation_table, stage_table])
def test_no_rehearsal_is_refused(table: object) -> None:
    with pytest.raises(ValueError) as error:
        table({})
    assert str(error.value) == "rehearsals is empty; legal: at least one"


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        queue_summary({"ours": SEEN}, skip_share=1.0)
    assert str(error.value) == "skip_share is 1.0; legal: a number in [0, 1)"
