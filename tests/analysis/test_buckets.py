"""Runs of one bucket, and which bucket comes when."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis, batching


def test_an_02_the_first_and_the_last_run_count() -> None:
    runs = analysis.bucket_runs([5, 5, 5, 0, 5, 5, 1, 1, 5])
    assert runs["bucket_id", "run_batches"].rows() == [(5, 3), (0, 1), (5, 2), (1, 2), (5, 1)]
    assert runs["start_batch"].to_list() == [0, 3, 4, 6, 8]
    summary = analysis.run_summary([5, 5, 5, 0, 5, 5, 1, 1, 5])
    assert summary == analysis.RunSummary(num_runs=5, longest_batches=3, mean_batches=1.8)


def test_an_02_no_batches_give_no_runs() -> None:
    runs = analysis.bucket_runs([])
    assert runs.height == 0
    assert runs.schema == {"bucket_id": pl.Int64, "start_batch": pl.Int64, "run_batches": pl.Int64}
    assert analysis.run_summary(np.array([], dtype=np.int16)) == analysis.RunSummary(0, 0, None)


@given(st.lists(st.integers(-1, 3), max_size=40))
def test_runs_give_the_sequence_back(ids: list[int]) -> None:
    runs = analysis.bucket_runs(np.asarray(ids, dtype=np.int16))
    again = [bucket for bucket, _, length in runs.iter_rows() for _ in range(length)]
    assert again == ids
    assert all(one != next_one for one, next_one in zip(runs["bucket_id"], runs["bucket_id"][1:], strict=False))


def test_bucket_ids_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError) as error:
        analysis.bucket_runs([0.5, 1.0])
    assert str(error.value) == "bucket_ids has shape (2,) and dtype float64; legal: one whole number a batch"


def test_intervals_are_half_open_and_the_last_has_no_end() -> None:
    intervals = analysis.bucket_intervals((0, 770, 8_192))
    assert intervals.rows() == [(0, "[0, 770)", 0, 770), (1, "[770, ∞)", 770, None)]


def _plan_tables() -> dict[str, pl.DataFrame]:
    lengths = np.random.default_rng(0).integers(1, 100, 400)
    config = {"token_budget": 300, "max_seq_len": 100}
    return {
        "bucketed": analysis.plan_table(
            batching.plan_epoch(
                lengths, batching.BatchingConfig(strategy="bucketed", bucket_bounds=(0, 30, 60, 100), **config), epoch=0
            )
        ),
        "sorted": analysis.plan_table(
            batching.plan_epoch(lengths, batching.BatchingConfig(strategy="sorted", **config), epoch=0)
        ),
    }


def test_run_length_counts_hold_every_batch_and_start_at_one() -> None:
    tables = _plan_tables()
    counts = analysis.run_length_counts(tables)
    assert counts["strategy"].unique().to_list() == ["bucketed"]
    assert counts["num_batches"].sum() == tables["bucketed"].height
    assert counts["share_of_batches"].sum() == pytest.approx(1)
    assert counts["share_of_batches_at_least"][0] == pytest.approx(1)
    assert counts["num_runs"].sum() == analysis.bucket_runs(tables["bucketed"]["bucket_id"]).height


@pytest.mark.parametrize("num_windows", [1, 7, 10_000])
def test_strip_windows_hold_every_batch_once(num_windows: int) -> None:
    tables = _plan_tables()
    strip = analysis.bucket_strip(tables, num_windows=num_windows, num_first=5)
    epoch = strip.filter(pl.col("part") == "epoch")
    batches = epoch.with_columns(batches=pl.col("num_batches") * pl.col("share_of_batches"))
    assert batches["batches"].sum() == pytest.approx(tables["bucketed"].height)
    assert epoch["window_id"].n_unique() == min(num_windows, tables["bucketed"].height)
    first = strip.filter(pl.col("part") == "first")
    assert first["bucket_id"].to_list() == tables["bucketed"]["bucket_id"][:5].to_list()


def test_plans_without_buckets_alone_are_refused() -> None:
    with pytest.raises(ValueError) as error:
        analysis.bucket_strip({"sorted": _plan_tables()["sorted"]})
    assert str(error.value) == "no plan has buckets among sorted; legal: at least one"
