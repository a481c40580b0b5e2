"""The source run's table, and the same figures from its length profile."""

import polars as pl
import pytest

from dflash_lab import analysis, data


def test_every_figure_says_where_it_comes_from() -> None:
    table = analysis.source_run_table()
    assert set(table["origin"]) == {"reported", "derived", "not stated"}
    assert table.filter(pl.col("origin") == "not stated")["source_run"].to_list() == [None]
    assert table["quantity"].is_unique().all()
    assert (table["tolerance_low"].is_null() == table["tolerance_high"].is_null()).all()


def test_the_profile_reproduces_the_source_run() -> None:
    lengths = data.source_run_lengths(902_087, seed=0)
    table = analysis.reproduce_source_run(lengths)
    ours = dict(table["quantity", "ours"].iter_rows())
    assert ours["padding efficiency, bucketed"] == pytest.approx(0.865, abs=0.01)
    assert ours["budget use, bucketed"] == pytest.approx(0.824, abs=0.01)
    assert ours["batches per epoch, bucketed"] == pytest.approx(46_350, abs=300)
    assert ours["last bucket's share of batches"] == pytest.approx(0.52, abs=0.01)
    assert 0.37 <= ours["throughput, random / sorted"] <= 0.42
    assert ours["padding efficiency, sorted"] > 0.999
    # The one fact that the fitted profile only half meets, and says so.
    missed = table.filter(pl.col("within_tolerance") == False)  # noqa: E712
    assert missed["quantity"].to_list() == ["share of samples of 1,024 to 4,096 tokens"]
    assert "only half meets it" in missed["note"].item()
    unchecked = table.filter(pl.col("within_tolerance").is_null())
    assert unchecked["quantity"].to_list() == ["throughput, bucketed"]


def test_other_lengths_do_not_agree_in_silence() -> None:
    table = analysis.reproduce_source_run([100, 200, 3_000])
    within = dict(table["quantity", "within_tolerance"].iter_rows())
    assert within["samples"] is False
    assert within["batches per epoch, bucketed"] is False
