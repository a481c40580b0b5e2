"""How often the run diagnosis is wrong: false resets on noise, innocent suspects named, planted causes found.

Stated levels stand beside the measured rates: resets in 1,000 steps of runs without any, by the shape of the noise;
runs in which an innocent suspect is named; runs in which the planted cause is, and the only one.

    python benchmarks/false_alarms.py [--runs 200] [--steps 3000] [--json FILE] [--markdown FILE]    # four minutes
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from dflash_lab.analysis import RUN_KINDS, attribute_spikes, loss_resets, synthetic_run

STATED_PER_1000 = 0.1
NAMED = ("guilty", "inseparable")
CAUSES = {"composition": "num_blocks"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=200, help="synthetic runs of each noise and of none; a fifth a cause"
    )
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    result = {
        "cores": os.cpu_count(),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "runs": options.runs,
        "steps": options.steps,
        "noises": [noise_row(name, options.runs, options.steps) for name in NOISES],
        "causes": [
            cause_row(kind, options.runs if kind == "none" else max(20, options.runs // 5), options.steps)
            for kind in RUN_KINDS
        ],
    }
    text = markdown(result)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    if options.markdown:
        options.markdown.write_text(text)


def correlated(rng: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    """Normal noise of variance 1 whose neighbours are correlated."""
    shocks = rng.standard_normal(steps) * np.sqrt(1 - correlation**2)
    noise = np.empty(steps)
    last = rng.standard_normal()
    for step, shock in enumerate(shocks.tolist()):
        last = correlation * last + shock
        noise[step] = last
    return noise


def falling(steps: int) -> np.ndarray:
    """A fast fall and a slow one."""
    time = np.arange(steps)
    return 1 + 3 * np.exp(-15 * time / steps) + 0.5 * (1 - time / steps)


def in_thirds(steps: int) -> np.ndarray:
    return np.repeat([4.0, 2.0, 1.0], -(-steps // 3))[:steps]


NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, steps: 1 + 0.1 * rng.standard_normal(steps),
    "log-normal, sigma 0.5": lambda rng, steps: np.exp(0.5 * rng.standard_normal(steps)),
    "log-normal, sigma 1": lambda rng, steps: np.exp(rng.standard_normal(steps)),
    "Student's t, 3 degrees": lambda rng, steps: 2 + 0.1 * rng.standard_t(3, steps),
    "autocorrelated, 0.8": lambda rng, steps: 1 + 0.1 * correlated(rng, steps, 0.8),
    "autocorrelated, 0.95": lambda rng, steps: 1 + 0.1 * correlated(rng, steps, 0.95),
    "falling trend": lambda rng, steps: falling(steps) + 0.1 * rng.standard_normal(steps),
    "falling in steps": lambda rng, steps: in_thirds(steps) + 0.1 * rng.standard_normal(steps),
    "growing variance": lambda rng, steps: 1 + np.linspace(0.02, 0.2, steps) * rng.standard_normal(steps),
    "trend, t(3) and autocorrelated": lambda rng, steps: (
        falling(steps) + 0.05 * rng.standard_t(3, steps) + 0.1 * correlated(rng, steps, 0.8)
    ),
    "three modes": lambda rng, steps: (
        1 + 0.3 * rng.choice(3, steps, p=[0.52, 0.3, 0.18]) + 0.05 * rng.standard_normal(steps)
    ),
}


def noise_row(name: str, runs: int, steps: int) -> dict[str, object]:
    """Count resets in runs that have none."""
    resets = scored = hit = 0
    thresholds = []
    for seed in range(runs):
        loss = NOISES[name](np.random.default_rng((seed, steps)), steps)
        table = pl.DataFrame({"step": np.arange(1, steps + 1), "loss": loss})
        found = loss_resets(table, false_alarms_per_1000_steps=STATED_PER_1000)
        resets += found.table.height
        hit += found.table.height > 0
        scored += found.threshold.num_scored
        thresholds.append(found.threshold.spreads)
    return {
        "noise": name,
        "resets": resets,
        "per_1000_steps": 1000 * resets / scored,
        "runs_with_any": hit,
        "threshold_spreads": float(np.median(thresholds)),
    }


def cause_row(kind: str, runs: int, steps: int) -> dict[str, object]:
    """Count verdicts on runs with a planted cause."""
    cause = CAUSES.get(kind, kind)
    found = alone = false = planted = hit = 0
    for seed in range(runs):
        run = synthetic_run(kind, seed=seed, num_steps=steps, num_resets=max(5, steps // 130))
        resets = loss_resets(run)
        table = attribute_spikes(run, resets, seed=seed).table
        named = set(table.filter(pl.col("verdict").is_in(NAMED))["suspect"])
        real = set(run.filter("planted_reset")["step"])
        planted += len(real)
        hit += len(real & set(resets.table["onset_step"]))
        found += cause in set(table.filter(pl.col("verdict") == "guilty")["suspect"])
        false += bool(named - {cause})
        alone += named == {cause}
    row = {"cause": kind, "runs": runs, "planted_resets": planted, "found_to_the_step": hit, "innocent_named": false}
    return row if kind == "none" else {**row, "guilty": found, "the_only_one": alone}


def markdown(result: dict[str, object]) -> str:
    lines = [
        f"{result['runs']} runs of {result['steps']:,} steps each, a rate of {STATED_PER_1000} in 1,000 steps stated; "
        f"{result['machine']}, Python {result['python']}, numpy {result['numpy']}.",
        "",
        "| noise without resets | resets in 1,000 steps | runs with any | threshold, spreads |",
        "| --- | --- | --- | --- |",
        *(
            f"| {row['noise']} | {row['per_1000_steps']:.3f} | {row['runs_with_any']} | "
            f"{row['threshold_spreads']:.1f} |"
            for row in result["noises"]
        ),
        "",
        "| planted cause | runs | resets found to the step | cause guilty | the only one | an innocent one named |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {row['cause']} | {row['runs']} | {row['found_to_the_step']} of {row['planted_resets']} | "
            f"{row.get('guilty', '')} | {row.get('the_only_one', '')} | {row['innocent_named']} |"
            for row in result["causes"]
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
