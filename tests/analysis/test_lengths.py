"""Length tables: the cut, the buckets, shares as ratios of sums, and small tables for figures."""

import time

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60)


def test_length_table_cuts_first_and_buckets_the_cut_length() -> None:
    table = analysis.length_table(
        [3, 10, 25, 90], loss_tokens=[1, 10, 0, 45], sources=["a", "b", None, "a"], bucket_bounds=(0, 10, 20, 30),
        max_seq_len=25,
    )  # fmt: skip
    assert table.columns == [
        "sample_id", "length_tokens", "kept_tokens", "loss_tokens", "source", "bucket_id", "bucket", "truncated",
    ]  # fmt: skip
    assert table["sample_id"].to_list() == [0, 1, 2, 3]
    assert table["length_tokens"].to_list() == [3, 10, 25, 90]
    assert table["kept_tokens"].to_list() == [3, 10, 25, 25]
    assert table["bucket_id"].to_list() == [0, 1, 2, 2]
    assert table["bucket"].to_list() == ["[0, 10)", "[10, 20)", "[20, ∞)", "[20, ∞)"]
    assert table["truncated"].to_list() == [False, False, False, True]
    assert table["source"].to_list() == ["a", "b", None, "a"]


def test_what_was_not_given_is_null() -> None:
    table = analysis.length_table([3, 4])
    for name in ("loss_tokens", "source", "bucket_id", "bucket"):
        assert table[name].null_count() == 2
    assert table.schema["bucket_id"] == pl.Int16


def test_length_summary_divides_sums() -> None:
    table = analysis.length_table([100, 10, 10], loss_tokens=[50, 1, 0], sources=["x", "x", "y"], max_seq_len=60)
    whole = analysis.length_summary(table).row(0, named=True)
    assert (whole["num_samples"], whole["num_tokens"]) == (3, 80)
    assert whole["mean_tokens"] == pytest.approx(80 / 3)
    assert whole["share_truncated"] == pytest.approx(1 / 3)
    assert whole["share_of_tokens_cut"] == pytest.approx(40 / 120)
    assert whole["loss_token_share"] == pytest.approx(51 / 120)
    by_source = analysis.length_summary(table, by="source")
    assert by_source["source"].to_list() == ["x", "y"]
    assert by_source["share_of_tokens"].to_list() == pytest.approx([70 / 80, 10 / 80])
    assert by_source["loss_token_share"].to_list() == pytest.approx([51 / 110, 0.0])


def test_unknown_loss_tokens_are_null_and_not_zero() -> None:
    assert analysis.length_summary(analysis.length_table([5, 6]))["loss_token_share"].to_list() == [None]


def test_empty_buckets_have_a_row_and_their_interval() -> None:
    table = analysis.length_table([25, 26], bucket_bounds=(0, 10, 20, 30))
    summary = analysis.length_summary(table, by="bucket")
    assert summary["bucket_id"].to_list() == [0, 1, 2]
    assert summary["bucket_from_tokens"].to_list() == [0, 10, 20]
    assert summary["bucket_to_tokens"].to_list() == [10, 20, None]
    assert summary["num_samples"].to_list() == [0, 0, 2]
    assert summary["share_of_tokens"].to_list() == [0.0, 0.0, 1.0]
    assert summary["mean_tokens"].to_list() == [None, None, 25.5]


@given(LENGTHS, st.integers(1, 300), st.integers(1, 12), st.booleans())
def test_small_tables_lose_no_sample_and_no_token(lengths: list[int], cut: int, num_bins: int, log: bool) -> None:
    table = analysis.length_table(lengths, bucket_bounds=(0, 7, 50, 120), max_seq_len=cut)
    buckets = analysis.length_summary(table, by="bucket")
    assert buckets["num_samples"].sum() == len(lengths)
    assert buckets["num_tokens"].sum() == np.minimum(lengths, cut).sum()
    bins = analysis.length_histogram(table, num_bins=num_bins, log=log)
    assert bins["num_samples"].sum() == len(lengths)
    assert bins["num_tokens"].sum() == sum(lengths)
    assert bins.height <= num_bins
    assert bins["bin_from_tokens"][1:].to_list() == bins["bin_to_tokens"][:-1].to_list()
    points = analysis.length_ecdf(table, num_points=6)
    for length, samples, tokens in points.iter_rows():
        upto = [value for value in lengths if value <= length]
        assert samples == pytest.approx(len(upto) / len(lengths))
        assert tokens == pytest.approx(sum(upto) / sum(lengths))
    assert points["length_tokens"][-1] == max(lengths)


def test_ecdf_has_few_points_and_exact_medians() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 20_001))
    points = analysis.length_ecdf(analysis.length_table(lengths), num_points=64)
    assert points.height <= 130
    assert points.filter(pl.col("share_of_samples") >= 0.5)["length_tokens"][0] == 10_000
    cumulated = np.cumsum(np.arange(1, 20_001))
    median = 1 + np.searchsorted(cumulated, cumulated[-1] / 2)
    assert points.filter(pl.col("share_of_tokens") >= 0.5)["length_tokens"][0] == median


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": [3, 0]}, "the length of sample 1 is 0 (1 such samples); legal: a whole number"),
        ({"lengths": [3, 2.5]}, "the length of sample 1 is 2.5 (1 such samples); legal: a whole number"),
        ({"lengths": []}, "lengths is empty; legal: at least one sample"),
        (
            {"lengths": [3, 4], "loss_tokens": [1]},
            "loss_tokens has shape (1,), lengths has shape (2,); legal: one value a sample",
        ),
        (
            {"lengths": [3, 4], "loss_tokens": [1, 5]},
            "loss_tokens of sample 1 is 5 (1 such samples); legal: a whole number in [0, 4], its length",
        ),
        (
            {"lengths": [3, 4], "loss_tokens": [0.5, 1.0]},
            "loss_tokens has dtype float64; legal: whole numbers in [0, length]",
        ),
        (
            {"lengths": [3, 4], "sources": ["a"]},
            "sources has shape (1,), lengths has shape (2,); legal: one value a sample",
        ),
        ({"lengths": [3], "max_seq_len": 0}, "max_seq_len is 0; legal: a whole number >= 1"),
        ({"lengths": [3], "bucket_bounds": (5, 10)}, "bucket_bounds is (5, 10); legal: increasing whole numbers"),
    ],
)
def test_what_length_table_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.length_table(**settings)
    assert str(error.value).startswith(message)


def test_summary_says_what_the_table_lacks() -> None:
    table = analysis.length_table([3, 4])
    with pytest.raises(ValueError) as error:
        analysis.length_summary(table, by="bucket")
    assert str(error.value) == "by is 'bucket', but the table knows no bucket; give length_table its bucket_bounds"
    with pytest.raises(ValueError) as error:
        analysis.length_summary(table, by="length")
    assert str(error.value) == "by is 'length'; legal: all, source, bucket"


def test_a_million_samples_take_less_than_a_second_or_two() -> None:
    lengths = np.random.default_rng(0).integers(65, 8_192, 902_087)
    begin = time.perf_counter()
    table = analysis.length_table(lengths, bucket_bounds=(0, 1_024, 4_096, 8_192), max_seq_len=8_000)
    analysis.length_summary(table, by="bucket")
    # 0.1 s on two quiet cores; the limit only tells a vectorised table from a loop.
    assert time.perf_counter() - begin < 2


def test_supervised_shares_are_binned_with_one_in_the_last_bin():
    table = analysis.length_table([10, 10, 20, 4], loss_tokens=[0, 5, 20, 3])
    bins = analysis.loss_share_histogram(table, num_bins=4)
    assert bins["num_samples"].to_list() == [1, 0, 1, 2]
    assert bins["num_tokens"].to_list() == [10, 0, 10, 24]
    assert bins["share_of_samples"].sum() == bins["share_of_tokens"].sum() == 1
    assert bins["share_from"].to_list() == [0, 0.25, 0.5, 0.75]
    with pytest.raises(ValueError, match="the table knows no loss tokens; give length_table its loss_tokens"):
        analysis.loss_share_histogram(analysis.length_table([3]))


def test_a_table_does_not_change_with_the_callers_arrays() -> None:
    lengths, loss_tokens = np.array([3, 4]), np.array([1, 2])
    table = analysis.length_table(lengths, loss_tokens=loss_tokens)
    lengths[0] = loss_tokens[0] = 99
    assert table["length_tokens", "kept_tokens", "loss_tokens"].row(0) == (3, 3, 1)


@pytest.mark.parametrize(
    "sources",
    [
        pa.array(["a", None]),
        pa.chunked_array([["a"], [None]]),
        pa.array(["a", None]).dictionary_encode(),
        pl.Series(["a", None], dtype=pl.Categorical),
        np.array(["a", None], dtype=object),
        iter(["a", None]),
    ],
)
def test_sources_come_in_any_array_of_texts(sources: object) -> None:
    assert analysis.length_table([3, 4], sources=sources)["source"].to_list() == ["a", None]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([1, 2], "sources has dtype Int64; legal: texts, None for an unknown one"),
        (pa.array([1, 2]), "sources has dtype Int64; legal: texts, None for an unknown one"),
        (["a", 2], "sources is not one text a sample"),
    ],
)
def test_sources_that_are_not_texts_are_refused(sources: object, message: str) -> None:
    with pytest.raises(ValueError) as error:
        analysis.length_table([3, 4], sources=sources)
    assert str(error.value).startswith(message)


def test_no_rows_have_no_summary() -> None:
    empty = analysis.length_table([3]).clear()
    for summed in (analysis.length_summary, analysis.length_histogram, analysis.length_ecdf):
        with pytest.raises(ValueError) as error:
            summed(empty)
        assert str(error.value) == "the length table is empty; legal: at least one sample"


@pytest.mark.parametrize("num_points", [2, 3, 4])
def test_few_points_still_have_both_medians(num_points: int) -> None:
    points = analysis.length_ecdf(analysis.length_table(np.arange(1, 1_001)), num_points=num_points)
    assert {1, 500, 707, 1_000} <= set(points["length_tokens"])


@given(st.integers(1, 60), st.integers(1, 120))
def test_a_share_on_an_edge_opens_its_bin(length: int, num_bins: int) -> None:
    table = analysis.length_table([length] * (length + 1), loss_tokens=np.arange(length + 1))
    bins = analysis.loss_share_histogram(table, num_bins=num_bins)
    exact = [min(loss * num_bins // length, num_bins - 1) for loss in range(length + 1)]
    assert bins["num_samples"].to_list() == np.bincount(exact, minlength=num_bins).tolist()


def test_29_of_50_is_in_the_58th_of_100_bins() -> None:
    table = analysis.length_table([50], loss_tokens=[29])
    assert analysis.loss_share_histogram(table, num_bins=100)["num_samples"].arg_max() == 58
