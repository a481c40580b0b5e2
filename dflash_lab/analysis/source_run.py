"""The source run's figures, and what the same lengths give here.

The source run is the training run that this workbench starts from: 902,087 samples, six epochs, eight GPUs. Its
figures are either *reported* (a log or its authors state them) or *derived* (they follow from reported ones).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from dflash_lab.analysis.plans import bucket_shares
from dflash_lab.batching import BatchPlan, plan_epoch, source_run_config
from dflash_lab.batching.bounds import check_lengths

# Real tokens a second with six buckets, from the source run's status line; scales the modelled rates.
SOURCE_RUN_KTOK_PER_SECOND = 26.2

_SCHEMA = {
    "quantity": pl.String,
    "unit": pl.String,
    "source_run": pl.String,
    "origin": pl.String,
    "tolerance_low": pl.Float64,
    "tolerance_high": pl.Float64,
    "note": pl.String,
}
_ROWS = (
    ("samples", "samples", "902,087", "reported", 902_087, 902_087, ""),
    ("shortest sample", "tokens", "65", "reported", 65, 65, ""),
    ("longest sample", "tokens", "8,191", "reported", 8_191, 8_191, "before the cut at 8,192"),
    (
        "share of samples of 1,024 to 4,096 tokens",
        "share",
        "the bulk",
        "reported",
        0.5,
        1.0,
        "read as more than half; the fitted profile gives 0.46 and only half meets it",
    ),
    ("batches per epoch, bucketed", "batches", "46,350", "derived", 46_050, 46_650, "69,525 steps * 4 / 6 epochs"),
    ("padding efficiency, bucketed", "real / padded", "about 0.87", "reported", 0.855, 0.875, "its own estimate"),
    (
        "budget use, bucketed",
        "real / (batches * budget)",
        "0.82",
        "derived",
        0.814,
        0.834,
        "26.2 Ktok/s / 0.65 batches/s / 49,152",
    ),
    ("real tokens per batch, bucketed", "tokens", "about 40,300", "derived", 40_010, 40_993, "26.2 Ktok/s / 0.65"),
    ("last bucket's share of batches", "share", "0.52", "reported", 0.51, 0.53, "samples of 3,296 tokens and more"),
    ("padding efficiency, sorted", "real / padded", None, "not stated", 0.999, 1.0, "what sorting must give"),
    ("throughput, random / sorted", "ratio", "0.37", "derived", 0.37, 0.42, "12 / 32; with 12 / 30 it is 0.40"),
    ("throughput, sorted", "Ktok/s", "30-32", "reported", 30.0, 32.0, "ours modelled: time ~ padded tokens"),
    ("throughput, random", "Ktok/s", "12", "reported", 11.0, 13.0, "ours modelled: time ~ padded tokens"),
    ("throughput, bucketed", "Ktok/s", "25-26", "reported", None, None, "scales the two modelled rates, no check"),
)

# Strategy as `batching.source_run_strategies` names it, Ktok/s as reported and its ends, what happened.
_STORY = (
    ("sorted", "30-32", 30.0, 32.0, "fast; who shares a batch is frozen, loss spikes from 0.93 to 4.6 and 6.4"),
    ("random", "12", 12.0, 12.0, "cleanest gradients; one long sample pads its whole batch"),
    ("bucketed", "25-26", 25.0, 26.0, "fast again; runs of long batches, loss resets from 0.5 up to 13"),
    (
        "bucketed, no repeat naive",
        None,
        None,
        None,
        "first fix; without looking ahead, the epoch ends on batches of one bucket",
    ),
    ("bucketed, stride", None, None, None, "each bucket spread evenly over the epoch"),
)


def source_run_story(comparison: pl.DataFrame) -> pl.DataFrame:
    """Retell what the source run tried, in its order, with other lengths.

    Args:
        comparison: What `compare_strategies` gave for `batching.source_run_strategies`, and for any further strategies,
            which continue the story.

    Returns:
        One row a step: step, strategy, source_run_ktok_per_second (as reported, null where it stated none),
        source_run_ktok_from, source_run_ktok_to (the ends of that as numbers), ours_ktok_per_second (modelled as time ~
        padded tokens, scaled so that "bucketed" has the 26.2 of the source run's log), longest_run_batches (of one
        bucket), share_pairs_together_again, window_tv (mean over accumulation windows, from the data's mix),
        what_happened (in the source run; null for the further strategies).

    Raises:
        ValueError: If a strategy of the story is not in the table.
    """
    given = comparison["strategy"].to_list()
    missing = [name for name, *_ in _STORY if name not in given]
    if missing:
        raise ValueError(f"the table has no strategy {', '.join(missing)}; give it batching.source_run_strategies")
    schema = {
        "step": pl.Int64,
        "strategy": pl.String,
        "source_run_ktok_per_second": pl.String,
        "source_run_ktok_from": pl.Float64,
        "source_run_ktok_to": pl.Float64,
        "what_happened": pl.String,
    }
    names = [name for name, *_ in _STORY]
    further = [(name, None, None, None, None) for name in given if name not in names]
    steps = [(number, *step) for number, step in enumerate([*_STORY, *further], 1)]
    story = pl.DataFrame(steps, schema=schema, orient="row").join(
        comparison, on="strategy", how="left", maintain_order="left"
    )
    bucketed = story.row(by_predicate=pl.col("strategy") == "bucketed", named=True)["padding_efficiency"]
    return story.select(
        "step",
        "strategy",
        "source_run_ktok_per_second",
        "source_run_ktok_from",
        "source_run_ktok_to",
        ours_ktok_per_second=pl.col("padding_efficiency") / bucketed * SOURCE_RUN_KTOK_PER_SECOND,
        longest_run_batches="longest_run_batches",
        share_pairs_together_again="share_pairs_together_again",
        window_tv="window_tv",
        what_happened="what_happened",
    )


def source_run_table() -> pl.DataFrame:
    """Give the source run's figures.

    Returns:
        One row a figure: quantity, unit, source_run (as stated, null where it stated none), origin ("reported",
        "derived" from reported ones, or "not stated"), tolerance_low, tolerance_high (where ours must lie, inclusive;
        null where there is nothing to check), note.
    """
    return pl.DataFrame(_ROWS, schema=_SCHEMA, orient="row")


def reproduce_source_run(lengths: object, *, seed: int = 0) -> pl.DataFrame:
    """Plan the lengths as the source run did and put the figures next to its own.

    Only lengths with the source run's profile, 902,087 of them, can agree; with any others the rows say so.

    Args:
        lengths: Whole numbers >= 1 (num_samples,), in tokens.
        seed: Seed of the random and the bucketed plan, >= 0.

    Returns:
        `source_run_table` with ours (float) and within_tolerance (null where there is nothing to check) before note.

    Raises:
        ValueError: If a length is not legal.
    """
    checked = check_lengths(lengths)
    plans = {
        strategy: plan_epoch(
            checked, dataclasses.replace(source_run_config(strategy, seed=seed), order="as_built"), epoch=0
        )
        for strategy in ("sorted", "random", "bucketed")
    }
    ours = _our_figures(checked, plans)
    table = source_run_table()
    assert ours.keys() == set(table["quantity"])
    figures = pl.Series("ours", [ours[quantity] for quantity in table["quantity"]], dtype=pl.Float64)
    within = pl.col("ours").is_between("tolerance_low", "tolerance_high").alias("within_tolerance")
    return table.with_columns(figures).select(pl.exclude("note"), within, "note")


def _our_figures(lengths: np.ndarray, plans: dict[str, BatchPlan]) -> dict[str, float]:
    bucketed, efficiency = plans["bucketed"], {name: plan.padding_efficiency for name, plan in plans.items()}
    scale = SOURCE_RUN_KTOK_PER_SECOND / efficiency["bucketed"]
    return {
        "samples": len(lengths),
        "shortest sample": lengths.min(),
        "longest sample": lengths.max(),
        "share of samples of 1,024 to 4,096 tokens": np.mean((lengths >= 1_024) & (lengths <= 4_096)),
        "batches per epoch, bucketed": len(bucketed),
        "padding efficiency, bucketed": efficiency["bucketed"],
        "budget use, bucketed": bucketed.budget_use,
        "real tokens per batch, bucketed": bucketed.real_tokens / len(bucketed),
        "last bucket's share of batches": bucket_shares(bucketed)["share_of_batches"][-1],
        "padding efficiency, sorted": efficiency["sorted"],
        "throughput, random / sorted": efficiency["random"] / efficiency["sorted"],
        "throughput, sorted": efficiency["sorted"] * scale,
        "throughput, random": efficiency["random"] * scale,
        "throughput, bucketed": efficiency["bucketed"] * scale,
    }
