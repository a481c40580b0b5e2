"""What is recommended: on tables made by hand, and on lengths where one plan or none beats what is in use."""

import dataclasses
from functools import cache

import polars as pl
import pytest

from dflash_lab import analysis, batching, data

# Enough that few pairs meet again in a cut of 64.
LENGTHS = data.source_run_lengths(150_000)
BUCKETED = batching.source_run_config("bucketed")


@cache
def recommended() -> analysis.Recommendation:
    return analysis.recommend(LENGTHS, BUCKETED)


def table_of(**plans: tuple[float, float, float | None]) -> pl.DataFrame:
    """Name -> relative throughput, pairs together again, total variation of windows."""
    speeds, pairs, variations = zip(*plans.values(), strict=True)
    columns = {"relative_throughput_by_cost": speeds, "share_pairs_together_again": pairs, "window_tv": variations}
    return pl.DataFrame({"strategy": list(plans), **{name: list(values) for name, values in columns.items()}})


@pytest.mark.parametrize(
    ("plans", "chosen"),
    [
        # Faster, and mixes as well.
        ({"yours": (1.0, 0.001, 0.4), "random": (0.5, 0.0, 0.1), "new": (1.1, 0.004, 0.3)}, "new"),
        # Faster by less than two runs differ.
        ({"yours": (1.0, 0.001, 0.3), "random": (0.5, 0.0, 0.1), "new": (1.005, 0.004, 0.3)}, "yours"),
        # As fast, with windows nearer to the data.
        ({"yours": (1.0, 0.001, 0.4), "random": (0.5, 0.0, 0.1), "new": (0.995, 0.004, 0.3)}, "new"),
        # Of two as fast, the one with better windows.
        ({"yours": (1.0, 0.0, 0.4), "random": (0.5, 0.0, 0.1), "a": (1.105, 0.0, 0.35), "b": (1.1, 0.0, 0.3)}, "b"),
        # Faster, but frozen.
        ({"yours": (1.0, 0.001, 0.4), "random": (0.5, 0.0, 0.1), "new": (1.1, 1.0, 0.3)}, "yours"),
        # What is in use is frozen: its speed does not save it.
        ({"yours": (1.0, 1.0, 0.4), "random": (0.5, 0.0, 0.1), "new": (0.98, 0.004, 0.3)}, "new"),
        # Frozen, and the only plan that mixes well is far slower: a mix that is not frozen will do, or else yours.
        ({"yours": (1.0, 0.9, 0.4), "random": (0.5, 0.01, 0.1), "new": (0.85, 0.07, 0.3)}, "new"),
        ({"yours": (1.0, 0.9, 0.4), "random": (0.5, 0.01, 0.1), "new": (0.85, 0.3, 0.3)}, "yours"),
        # Faster, with windows further from the data: only for much more speed.
        ({"yours": (1.0, 0.0, 0.1), "random": (1.0, 0.0, 0.1), "new": (1.2, 0.004, 0.3)}, "yours"),
        ({"yours": (1.0, 0.0, 0.1), "random": (1.0, 0.0, 0.1), "new": (2.4, 0.004, 0.3)}, "new"),
        # Few samples: even a full shuffle has many pairs meet again.
        ({"yours": (1.0, 0.3, 0.4), "random": (0.5, 0.2, 0.1), "new": (1.1, 0.35, 0.3)}, "new"),
        # No pairs and no windows.
        ({"yours": (1.0, None, None), "random": (1.0, None, None), "new": (1.0, None, None)}, "yours"),
    ],
)
def test_the_choice_on_tables_made_by_hand(plans: dict[str, tuple], chosen: str) -> None:
    assert analysis.choose_plan(table_of(**plans)) == chosen


def test_the_choice_needs_what_it_compares_with() -> None:
    with pytest.raises(ValueError) as error:
        analysis.choose_plan(table_of(new=(1.0, 0.0, 0.1), yours=(1.0, 0.0, 0.1)))
    assert str(error.value) == "the table has no strategy random; it has new, yours"


def test_six_buckets_give_way_to_capacity_for_padded_targets() -> None:
    found = recommended()
    assert not found.is_yours
    assert (found.config.strategy, found.config.order) == ("capacity", "window_balanced")
    assert (found.config.token_budget, found.config.seed) == (BUCKETED.token_budget, BUCKETED.seed)
    row = found.table.filter(pl.col("strategy") == "yours").row(0, named=True)
    assert f"instead of {row['num_batches']:,.0f}" in found.sentences[0]
    assert "in a full shuffle" in found.sentences[1]
    assert found.sentences[2].startswith("It has 0 % more batches than the fewest that any padded plan")
    assert str(found) == " ".join(found.sentences)


def test_targets_that_take_packed_rows_get_them() -> None:
    found = analysis.recommend(LENGTHS, BUCKETED, padded=False)
    assert found.config.strategy == "packed"
    assert "packed" not in recommended().table["strategy"]
    assert "samples share a row, which the target must keep apart." in found.sentences[2]


@pytest.mark.parametrize("padded", [True, False])
def test_quadratic_attention_is_told_with_its_share(padded: bool) -> None:
    found = analysis.recommend(LENGTHS, BUCKETED, padded=padded, cost_model=analysis.QUADRATIC_ATTENTION)
    assert found.sentences[2].startswith("Attention between tokens is 6.9 % of the modelled cost")


def test_what_cannot_be_beaten_is_kept() -> None:
    best = recommended().config
    again = analysis.recommend(LENGTHS, best)
    assert again.is_yours and again.config is best
    assert again.sentences[0].startswith('Keep strategy "capacity"')
    one_length = dataclasses.replace(BUCKETED, strategy="random", bucket_bounds=None)
    kept = analysis.recommend([500] * 400, one_length)
    assert kept.is_yours and kept.config is one_length
    assert "nothing tried is worth the change" in str(kept)


def test_a_single_batch_is_kept_with_words_that_hold() -> None:
    kept = analysis.recommend([7, 7], dataclasses.replace(BUCKETED, strategy="sorted"))
    assert kept.is_yours
    assert "1 batch an epoch" in kept.sentences[0]
    assert kept.sentences[1].endswith("and there are too few batches for an accumulation window.")


def test_one_epoch_has_no_company_to_compare() -> None:
    with pytest.raises(ValueError) as error:
        analysis.recommend([7], BUCKETED, epochs=1)
    assert str(error.value) == "epochs is 1; legal: a whole number >= 2, since company is compared between epochs"


@pytest.mark.parametrize(("strategy", "order"), [("capacity", "window_strata"), ("sorted", "random")])
@pytest.mark.parametrize("num_samples", [300, 2_000])
def test_asking_again_gives_the_same_and_never_half_the_speed(strategy: str, order: str, num_samples: int) -> None:
    lengths = data.source_run_lengths(num_samples)
    config = dataclasses.replace(BUCKETED, strategy=strategy, order=order)
    first = analysis.recommend(lengths, config)
    chosen = first.table.row(by_predicate=pl.col("strategy") == "yours", named=True)
    again = analysis.recommend(lengths, first.config)
    assert again.is_yours and again.config == first.config
    yours = again.table.row(by_predicate=pl.col("strategy") == "yours", named=True)
    assert yours["padding_efficiency"] >= 0.8 * chosen["padding_efficiency"]
