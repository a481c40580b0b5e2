"""The cost model: its three terms, found again from measured batches."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis, batching
from dflash_lab.analysis import CostModel

SIZES = np.array([1, 2, 5, 9, 3, 40])
WIDTHS = np.array([8_000, 4_100, 2_000, 300, 900, 70])
TERMS = pl.DataFrame({"padded_tokens": SIZES * WIDTHS, "squared_tokens": SIZES * WIDTHS**2})


def measured(model: CostModel) -> pl.DataFrame:
    seconds = model.per_batch + model.per_token * pl.col("padded_tokens")
    return TERMS.with_columns(seconds=seconds + model.per_token_squared * pl.col("squared_tokens"))


@given(st.floats(0, 1), st.floats(1e-6, 1e-3), st.floats(0, 1e-6))
def test_calibration_finds_the_terms_again(per_batch: float, per_token: float, squared: float) -> None:
    model = CostModel(per_batch=per_batch, per_token=per_token, per_token_squared=squared)
    fitted = CostModel.calibrated(measured(model))
    batches = measured(model)
    again = measured(fitted)
    assert again["seconds"].to_list() == pytest.approx(batches["seconds"].to_list(), rel=1e-4)
    assert min(fitted.per_batch, fitted.per_token, fitted.per_token_squared) >= 0


def test_exact_terms_are_found_exactly() -> None:
    model = CostModel(per_batch=0.05, per_token=2e-5, per_token_squared=3e-10)
    fitted = CostModel.calibrated(measured(model))
    assert fitted.per_batch == pytest.approx(0.05)
    assert fitted.per_token == pytest.approx(2e-5)
    assert fitted.per_token_squared == pytest.approx(3e-10)


@given(st.lists(st.floats(0.01, 10), min_size=6, max_size=6))
def test_no_other_terms_fit_better(seconds: list[float]) -> None:
    fitted = CostModel.calibrated(TERMS.with_columns(seconds=pl.Series(seconds)))
    columns = np.column_stack([np.ones(6), TERMS.to_numpy()])
    best = np.array([fitted.per_batch, fitted.per_token, fitted.per_token_squared])
    error = np.square(columns @ best - seconds).sum()
    generator = np.random.default_rng(0)
    scale = np.mean(seconds) / columns.mean(axis=0)
    for other in generator.uniform(0, 2, (300, 3)) * scale:
        assert error <= np.square(columns @ other - seconds).sum() * (1 + 1e-9)


def test_what_batches_cannot_tell_apart_is_zero() -> None:
    same = pl.DataFrame({"padded_tokens": [100] * 4, "squared_tokens": [1_000] * 4, "seconds": [0.5] * 4})
    fitted = CostModel.calibrated(same)
    assert fitted.per_batch == pytest.approx(0.5)
    assert (fitted.per_token, fitted.per_token_squared) == (0.0, 0.0)


def test_a_plans_costs_are_worked_by_hand() -> None:
    config = batching.BatchingConfig(strategy="as_given", order="as_built", token_budget=80, max_seq_len=40)
    model = CostModel(per_batch=7, per_token=2, per_token_squared=0.5)
    padded = batching.plan_epoch([10, 30, 40, 5], config, epoch=0)
    assert model.batch_costs(padded).tolist() == [7 + 2 * 60 + 0.5 * 2 * 900, 7 + 2 * 80 + 0.5 * 2 * 1_600]
    packed = batching.plan_epoch(
        [40, 40], batching.BatchingConfig(strategy="packed", token_budget=80, max_seq_len=40), epoch=0
    )
    assert model.batch_costs(packed).tolist() == [7 + 2 * 80 + 0.5 * 2 * 1_600]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ((-1.0, 1.0, 0.0), "per_batch is -1.0; legal: a finite number >= 0"),
        ((0.0, float("inf"), 0.0), "per_token is inf; legal: a finite number >= 0"),
        ((0.0, 0.0, 0.0), "per_batch, per_token, per_token_squared are all 0; legal: at least one above 0"),
    ],
)
def test_what_a_cost_model_refuses(terms: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError) as error:
        CostModel(per_batch=terms[0], per_token=terms[1], per_token_squared=terms[2])
    assert str(error.value) == message


def test_batches_that_were_not_measured_are_refused() -> None:
    with pytest.raises(ValueError) as error:
        CostModel.calibrated(TERMS)
    assert str(error.value) == "the table has no column seconds; it has padded_tokens, squared_tokens"
    for batches in (
        TERMS.head(2).with_columns(seconds=1.0),
        TERMS.with_columns(seconds=0.0),
        TERMS.with_columns(seconds=None),
    ):
        with pytest.raises(ValueError, match="a batch was not measured; legal: three batches or more"):
            CostModel.calibrated(batches)


def test_the_default_model_sees_attention() -> None:
    lengths = np.random.default_rng(0).integers(64, 8_000, 3_000)
    configs = {name: batching.source_run_config(name) for name in ("sorted", "packed")}
    table = analysis.compare_strategies(lengths, configs, epochs=1)
    assert table["relative_throughput_by_cost"].max() == 1.0
    assert table["relative_throughput_by_cost"][1] == 1.0
