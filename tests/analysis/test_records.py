"""Records become a table whose types are found over all rows."""

import polars as pl
import pytest

from dflash_lab.analysis import record_table


def test_types_are_found_over_all_rows_and_missing_names_are_null():
    # A first row without a value must not decide the type, and whole numbers may stand among fractions.
    rows = [{"a": None, "b": 1}, *({"a": "x", "b": 2} for _ in range(200)), {"b": 0.5, "c": True}]
    table = record_table(rows)
    assert table.schema == {"a": pl.String, "b": pl.Float64, "c": pl.Boolean}
    assert table["a"][-1] is None and table["c"].null_count() == 201 and table["b"].to_list()[:2] == [1.0, 2.0]


def test_columns_come_first_and_are_there_without_rows():
    table = record_table([{"b": 1, "a": 2}], ["a", "z"])
    assert table.columns == ["a", "z", "b"] and table["z"].to_list() == [None]
    assert record_table([], ["a"]).columns == ["a"] and record_table(iter([])).columns == []


def test_values_of_several_kinds_are_refused():
    with pytest.raises(ValueError, match="column a holds values of int, str; legal: values of one kind"):
        record_table([{"a": 1}, {"a": "x"}])
    with pytest.raises(ValueError, match="column a holds values of bool, int"):
        record_table([{"a": True}, {"a": 2}])
