"""Who is beaten by whom, on tables made by hand."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis

TABLE = pl.DataFrame(
    {
        "strategy": ["sorted", "random", "bucketed", "capacity", "twin", "worse"],
        "padding_efficiency": [1.0, 0.4, 0.86, 0.99, 0.99, 0.85],
        "share_pairs_together_again": [1.0, 0.0, 0.0002, 0.004, 0.004, 0.5],
        "window_tv": [0.4, 0.1, 0.4, 0.3, 0.3, 0.2],
    }
)


def test_a_row_is_beaten_by_the_most_efficient_that_beats_it() -> None:
    front = analysis.efficiency_diversity_front(TABLE)
    assert front["dominated_by"].to_list() == [None, None, None, None, None, "capacity"]
    assert front["on_front"].to_list() == [True] * 5 + [False]
    assert front.columns == [*TABLE.columns, "dominated_by", "on_front"]


def test_other_columns_give_another_front() -> None:
    front = analysis.efficiency_diversity_front(TABLE, sameness="window_tv")
    assert front["dominated_by"].to_list() == [None, None, "sorted", None, None, None]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25))
def test_the_front_agrees_with_all_pairs(points: list[tuple[int, int]]) -> None:
    table = pl.DataFrame(
        {
            "strategy": [str(number) for number in range(len(points))],
            "padding_efficiency": [good for good, _ in points],
            "share_pairs_together_again": [same for _, same in points],
        }
    )
    front = analysis.efficiency_diversity_front(table)
    for (good, same), beaten_by, on_front in zip(points, front["dominated_by"], front["on_front"], strict=True):
        better = [other for other in points if other[0] >= good and other[1] <= same and other != (good, same)]
        assert on_front == (not better)
        if better:
            assert points[int(beaten_by)] in better
            assert front["on_front"][int(beaten_by)]


def test_a_front_needs_numbers() -> None:
    with pytest.raises(ValueError) as error:
        analysis.efficiency_diversity_front(TABLE.with_columns(padding_efficiency=None))
    assert str(error.value).startswith("padding_efficiency is no number for sorted, random, bucketed, capacity, twin,")
    with pytest.raises(ValueError) as error:
        analysis.efficiency_diversity_front(TABLE.drop("strategy", "window_tv"))
    assert str(error.value).startswith("the table has no column strategy; it has padding_efficiency, share_pairs")
