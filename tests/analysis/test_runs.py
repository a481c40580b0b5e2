"""Sums first, ratios last."""

import warnings

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis


def test_an_05_accuracy_is_a_ratio_of_sums() -> None:
    table = pl.DataFrame({"correct": [9, 10], "total": [10, 90]})
    whole = analysis.ratio_of_sums(table, "correct", "total")
    assert whole.to_dicts() == [{"num_rows": 2, "correct": 19, "total": 100, "ratio": pytest.approx(0.19)}]
    mean_of_means = (table["correct"] / table["total"]).mean()
    assert mean_of_means == pytest.approx(0.505556, abs=1e-6)


def test_an_06_sample_and_population_variance() -> None:
    spread = analysis.loss_spread([1, 2, 4])
    assert (spread.n, spread.mean) == (3, pytest.approx(7 / 3))
    assert spread.sample_variance == pytest.approx(2.333333, abs=1e-6)
    assert spread.population_variance == pytest.approx(1.555556, abs=1e-6)


def test_an_06_a_small_spread_around_a_large_mean_keeps_its_digits() -> None:
    spread = analysis.loss_spread([12.0, 12.001, 12.002])
    assert spread.sample_variance == pytest.approx(1.0e-6, rel=0.01)
    assert spread.population_variance == pytest.approx(6.6667e-7, rel=0.01)


def test_an_06_one_loss_has_no_known_spread() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert analysis.loss_spread([2.5]) == analysis.LossSpread(1, 2.5, None, 0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_spread_agrees_with_numpy(losses: list[float]) -> None:
    spread = analysis.loss_spread(losses)
    assert spread.sample_variance == pytest.approx(np.var(losses, ddof=1), rel=1e-9, abs=1e-9)
    assert spread.population_variance == pytest.approx(np.var(losses), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([1.0, float("nan"), 2.0], "losses has nan at position 1 (1 such values); legal: finite numbers"),
        ([1.0, 2.0, float("inf")], "losses has inf at position 2 (1 such values); legal: finite numbers"),
        ([], "losses has shape (0,); legal: one dimension, at least one loss"),
    ],
)
def test_what_loss_spread_refuses(losses: list[float], message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.loss_spread(losses)
    assert str(error.value) == message


def test_loss_by_bucket_sums_before_it_divides() -> None:
    table = pl.DataFrame(
        {
            "bucket_id": [1, 0, 1, 2],
            "loss_sum": [10.0, 4.0, 2.0, 0.0],
            "loss_weight": [5.0, 4.0, 1.0, 0.0],
            "correct": [1, 2, 3, 0],
            "total": [10, 4, 2, 0],
        }
    )
    rows = analysis.loss_by_bucket(table)
    assert rows.columns == [
        "bucket_id", "num_rows", "loss_sum", "loss_weight", "loss", "correct", "total", "accuracy",
    ]  # fmt: skip
    assert rows["bucket_id"].to_list() == [0, 1, 2]
    assert rows["loss"].to_list() == [1.0, 2.0, None]
    assert rows["accuracy"].to_list() == [0.5, pytest.approx(4 / 12), None]
    assert rows["num_rows"].to_list() == [1, 2, 1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pl.DataFrame({"a": [1]}), "the table has no column b; it has a"),
        (pl.DataFrame({"a": [1, 1], "b": [2, None]}), "column b has 1 nulls, the first in row 1; legal: none"),
        (
            pl.DataFrame({"a": [1.0, float("nan")], "b": [2, 2]}),
            "column a has nan at position 1 (1 such values); legal: finite numbers",
        ),
        (pl.DataFrame({"a": ["x"], "b": [2]}), "column a has dtype String; legal: numbers"),
    ],
)
def test_a_ratio_leaves_no_row_out_in_silence(table: pl.DataFrame, message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.ratio_of_sums(table, "a", "b")
    assert str(error.value) == message


def test_no_rows_give_no_ratio() -> None:
    table = pl.DataFrame(schema={"a": pl.Int64, "b": pl.Int64})
    assert analysis.ratio_of_sums(table, "a", "b")["ratio"].to_list() == [None]
    assert analysis.ratio_of_sums(table.with_columns(k=pl.lit(1)), "a", "b", by="k").height == 0


@pytest.mark.parametrize("dtype", [pl.Int32, pl.UInt32, pl.Float32])
def test_sums_of_narrow_columns_do_not_overflow(dtype: pl.DataType) -> None:
    largest = 2.0**127 if dtype == pl.Float32 else 2**31 - 1
    table = pl.DataFrame({"a": pl.Series([largest] * 4, dtype=dtype), "b": pl.Series([1] * 4, dtype=pl.Int8)})
    row = analysis.ratio_of_sums(table, "a", "b").row(0, named=True)
    assert (row["a"], row["ratio"]) == (4 * largest, largest)
    by_bucket = table.select(bucket_id=0, loss_sum="a", loss_weight="b", correct="a", total="b")
    assert analysis.loss_by_bucket(by_bucket)["loss", "accuracy"].row(0) == (largest, largest)


@pytest.mark.parametrize(
    ("by", "numerator", "named"), [("a", "a", "a"), ("num_rows", "a", "num_rows"), (None, "ratio", "ratio")]
)
def test_two_columns_of_one_name_are_refused(by: str | None, numerator: str, named: str) -> None:
    table = pl.DataFrame({"a": [1], "b": [2], "num_rows": [3], "ratio": [4]})
    with pytest.raises(ValueError) as error:
        analysis.ratio_of_sums(table, numerator, "b", by=by)
    assert str(error.value) == (
        f"the result would have two columns {named}; legal: grouping and summed columns that differ, none of them "
        f"named num_rows or ratio"
    )
    assert analysis.ratio_of_sums(table, "b", "b")["ratio"].item() == 1


def test_the_spread_of_the_largest_losses_is_right_or_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert analysis.loss_spread([1e308, 1e308]) == analysis.LossSpread(2, 1e308, 0.0, 0.0)
        assert analysis.loss_spread([0.0, 0.0]) == analysis.LossSpread(2, 0.0, 0.0, 0.0)
        assert analysis.loss_spread([-1e150, 1e150]).population_variance == pytest.approx(1e300)
        with pytest.raises(ValueError, match=r"losses from -1e\+308 to 1e\+308 have a variance over 1.79"):
            analysis.loss_spread([-1e308, 1e308])
