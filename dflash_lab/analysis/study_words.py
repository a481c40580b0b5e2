"""What a study says, in words: its conditions, and which differences are seen."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from dflash_lab.analysis.gradients import NO_DIFFERENCE, compare_arms
from dflash_lab.analysis.study_log import StudyLog


def study_conditions(log: StudyLog, *, hardware: str = "") -> str:
    """Say how many seeds and tokens a study has, and where it ran, for captions.

    Args:
        log: The study.
        hardware: Where, in words.
    """
    seeds = log.arms.group_by("label").len()["len"]
    count = f"{seeds.max()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    tokens = sorted(set(log.arms["real_tokens_trained"].to_list()))
    most = f"{tokens[-1]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
    words = f"{count} {'seed' if count == '1' else 'seeds'} an arm, each of {most} real tokens"
    return f"{words}; {hardware}" if hardware else words


def batching_labels(log: StudyLog) -> list[str]:
    """Give the arms that differ in their batching alone, in the order of the study.

    Args:
        log: The study.
    """
    plain = log.arms.filter(pl.col("label") == pl.col("batching"))
    return plain["label"].unique(maintain_order=True).to_list()


def comparison_text(seeds: pl.DataFrame, measure: str, *, reference: str, labels: Sequence[str]) -> str:
    """Say how arms differ from one in a measure, and where no difference is seen.

    Args:
        seeds: From `seed_table`.
        measure: Its column.
        reference: Label of the arm that the others are compared with.
        labels: Arms to name, the reference among them or not.

    Returns:
        A sentence: the arm with the highest mean, and every comparison with its interval.

    Raises:
        ValueError: If there is no such reference.
    """
    chosen = seeds.filter(pl.col("label").is_in([*labels, reference])).drop_nulls(measure)
    if chosen.is_empty():
        return "no arm has a value, so nothing can be compared"
    value = pl.col(measure)
    means = chosen.group_by("label", maintain_order=True).agg(
        value.mean().alias("mean"), value.std().alias("spread"), pl.len().alias("n")
    )
    best = means.sort("mean", descending=True).row(0, named=True)
    spread = "" if best["spread"] is None else f" ± {best['spread']:.2f}"
    base = means.filter(pl.col("label") == reference)
    if len(base) and base["mean"][0] == best["mean"]:
        # Among equals the one that the others are compared with.
        best = base.row(0, named=True)
        spread = "" if best["spread"] is None else f" ± {best['spread']:.2f}"
    said = f"the highest mean is that of {best['label']}, {best['mean']:.2f}{spread}"
    if len(base) and best["label"] != reference:
        row = base.row(0, named=True)
        said += f" ({reference}: {row['mean']:.2f}" + ("" if row["spread"] is None else f" ± {row['spread']:.2f}") + ")"
    compared = compare_arms(seeds, measure, reference=reference, labels=[name for name in labels if name != reference])
    if compared.is_empty():
        return f"{said}; there is no other arm with a value to compare with"
    if compared["low"].null_count() == len(compared):
        return f"{said}; with one seed no difference can be told from chance"
    parts = [
        f"{row['label']} {row['seen']} by {abs(row['difference']):.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
        for row in compared.filter(pl.col("seen") != NO_DIFFERENCE).iter_rows(named=True)
    ]
    same = compared.filter(pl.col("seen") == NO_DIFFERENCE)
    if len(same):
        named = ", ".join(
            f"{row['label']} ({row['difference']:+.2f}; {row['low']:+.2f} to {row['high']:+.2f})"
            for row in same.drop_nulls("low").iter_rows(named=True)
        )
        parts.append(f"{NO_DIFFERENCE} for {named}")
    method = "; ".join(compared["method"].unique(maintain_order=True).to_list())
    return (
        f"{said}; against {reference}, paired over {compared['num_pairs'].max()} seeds ({method}): {'; '.join(parts)}"
    )
