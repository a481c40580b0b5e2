"""Bucket bounds chosen in several ways, planned side by side."""

import numpy as np
import pytest

from dflash_lab import analysis, batching

LENGTHS = np.random.default_rng(1).integers(1, 200, 3_000)
CONFIG = batching.BatchingConfig(strategy="bucketed", token_budget=1_600, max_seq_len=150, max_batch_size=16, seed=3)


def test_every_way_is_planned_with_its_own_bounds():
    table = analysis.bounds_table(LENGTHS, CONFIG, num_buckets=[1, 4, 9], given=[0, 40, 80, 150])
    assert table["kind"].unique(maintain_order=True).to_list() == [
        "equal tokens",
        "least padding",
        "fewest batches",
        "given",
    ]
    assert table["num_buckets"].to_list() == [1, 4, 9] * 3 + [3]
    cut = np.minimum(LENGTHS, 150)
    least = batching.least_possible_batches(cut, 1_600, 16)
    for row in table.iter_rows(named=True):
        plan = batching.plan_epoch(
            LENGTHS,
            batching.BatchingConfig(
                strategy="bucketed", order="as_built", token_budget=1_600, max_seq_len=150, max_batch_size=16, seed=3,
                bucket_bounds=row["bucket_bounds"],
            ),
            epoch=0,
        )  # fmt: skip
        assert row["num_batches"] == len(plan)
        assert row["padding_efficiency"] == pytest.approx(plan.padding_efficiency)
        assert row["excess_over_least"] == pytest.approx(len(plan) / least - 1)
        edges = np.asarray(row["bucket_bounds"])[plan.bucket_ids.astype(int) + 1]
        assert row["last_bucket_share_of_batches"] == np.mean(edges == row["bucket_bounds"][-1])


def test_each_optimum_wins_in_its_own_measure():
    table = analysis.bounds_table(LENGTHS, CONFIG, num_buckets=[5])
    rows = {row["kind"]: row for row in table.iter_rows(named=True)}
    assert rows["least padding"]["bucket_edge_efficiency"] == table["bucket_edge_efficiency"].max()
    assert rows["fewest batches"]["expected_batches"] == table["expected_batches"].min()


def test_what_cannot_be_tried_is_refused():
    with pytest.raises(ValueError, match="num_buckets is empty; legal: at least one whole number >= 1"):
        analysis.bounds_table(LENGTHS, CONFIG, num_buckets=[])
    with pytest.raises(ValueError, match="no sample is left: all 2 are longer than token_budget 1600"):
        analysis.bounds_table([9_000, 9_000], batching.BatchingConfig(
            strategy="bucketed", token_budget=1_600, max_seq_len=9_000
        ))  # fmt: skip
