"""How fast an epoch is planned, and how good the plan is, beside pure Python and beside other planners.

Every strategy and order is timed on the source run's lengths, round after round, each round beginning with the source
run's way in pure Python; ratios are those of one round. Seconds are those that the process computed, all on one core:
they change least with what else the machine does (the JSON has the clock's, too). Memory and peers are measured in a
fresh process each. README.md in this folder says how to install the peers; those that are not installed are named and
left out.

    python benchmarks/planning.py [--samples 902087] [--rounds 5] [--only WORD ...] [--slow] [--json F] [--markdown F]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
from peers import PEERS, measured, plan_random, plan_six_buckets, plan_sorted
from peers.isolated import in_fresh_process, measure_memory, measure_peer, measure_seconds, timed

from dflash_lab.batching import (
    ORDERS,
    SOURCE_RUN_BUCKET_BOUNDS,
    STRATEGIES,
    BatchingConfig,
    least_possible_batches,
    plan_epoch,
    source_run_config,
)
from dflash_lab.data import SOURCE_RUN_NUM_SAMPLES, source_run_lengths

BUDGET, CAP = 49_152, 64
BASELINE = "pure Python, six buckets"
GROWTH_SIZES = (902_087, 2_000_000, 5_000_000, 10_000_000, 20_000_000)
GROWTH_CONFIGS = {"bucketed": ("bucketed", "random"), "capacity, window_strata": ("capacity", "window_strata")}
# What is promised for an epoch of the source run: times as fast as the baseline, and bytes beside lengths and plan.
TARGETS = {"bucketed, random": (12, 40e6), "capacity, window_strata": (20, 40e6)}
COLUMNS = ("planner", "CPU s", "min-max", "times as fast", "batches", "efficiency", "use", "extra MB", "remark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=SOURCE_RUN_NUM_SAMPLES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="rows whose names hold one of the words, or: growth")
    parser.add_argument("--slow", action="store_true", help="also peers that take minutes, one round each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    lengths = source_run_lengths(options.samples)
    result = {
        "environment": environment(),
        "samples": options.samples,
        "rounds": options.rounds,
        "least_possible_batches": least_possible_batches(lengths, BUDGET, CAP),
        "rows": ours(lengths, options.rounds, options.only) + others(options),
        "growth": growth(options.rounds) if wanted("growth", options.only) else [],
    }
    text = as_markdown(result)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(text + "\n")


def environment() -> dict:
    """Hardware and versions."""
    cpu, told = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    for line in told.read_text().splitlines() if told.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "dflash-lab": metadata.version("dflash-lab"),
    }


def wanted(name: str, words: list[str] | None) -> bool:
    return not words or any(word in name for word in words)


def configs() -> dict[str, BatchingConfig]:
    """Name -> settings of every row of ours."""
    pairs = [(strategy, "random") for strategy in STRATEGIES]
    pairs += [("capacity", order) for order in ORDERS if order != "random"]
    pairs += [("bucketed", order) for order in ("no_repeat", "window_strata")]
    named = {f"{strategy}, {order}": source_run_config(strategy, order=order) for strategy, order in pairs}
    strata = named["capacity, window_strata"]
    for num_cuts in (0, 256):
        named[f"capacity, window_strata, {num_cuts} cuts"] = replace(strata, num_cuts=num_cuts)
    return named


def ours(lengths: np.ndarray, rounds: int, words: list[str] | None) -> list[dict]:
    """Time pure Python and every strategy and order, and measure their batches and memory."""
    listed = lengths.tolist()
    python = {
        "pure Python, sorted": lambda seed: plan_sorted(listed, BUDGET, CAP, seed),
        "pure Python, random": lambda seed: plan_random(listed, BUDGET, CAP, seed),
        BASELINE: lambda seed: plan_six_buckets(listed, BUDGET, CAP, seed, SOURCE_RUN_BUCKET_BOUNDS),
    }
    python = {name: plan for name, plan in python.items() if name == BASELINE or wanted(name, words)}
    planned = {name: config for name, config in configs().items() if wanted(name, words)}
    seconds: dict[str, list[dict]] = {name: [] for name in (*python, *planned)}
    for epoch in range(rounds):
        print(f"round {epoch + 1} of {rounds} ...", file=sys.stderr)
        for name, plan in python.items():
            seconds[name].append(vars(timed(partial(plan, epoch))[0]))
        for name, config in planned.items():
            seconds[name].append(vars(timed(partial(plan_epoch, lengths, config, epoch=epoch))[0]))
    print("memory ...", file=sys.stderr)
    rows = []
    for name in seconds:
        row = {"planner": name, "seconds": seconds[name], "baseline_seconds": seconds[BASELINE]}
        row["is_full_size"] = len(lengths) == SOURCE_RUN_NUM_SAMPLES
        if name in python:
            rows.append(row | vars(measured(python[name](0), lengths, token_budget=BUDGET, cap=CAP, packed=False)))
            continue
        plan = plan_epoch(lengths, planned[name], epoch=0)
        plan.validate(lengths)
        packed = plan.layout == "packed"
        row |= vars(measured(plan, lengths, token_budget=BUDGET, cap=CAP, packed=packed))
        rows.append(row | {"memory": in_fresh_process(measure_memory, planned[name], len(lengths))})
    return rows


def others(options: argparse.Namespace) -> list[dict]:
    """Measure the peers that are installed, and say why the others are not measured."""
    rows = []
    for peer in PEERS:
        if not wanted(peer.name, options.only):
            continue
        row = {"planner": peer.name, "package": peer.package, "version": peer.version, "remark": peer.remark}
        if not peer.version:
            row["error"] = f"not installed: {peer.package}"
        elif peer.slow and not options.slow:
            row["error"] = "takes minutes: give --slow"
        else:
            print(f"{peer.name} ...", file=sys.stderr)
            row |= in_fresh_process(measure_peer, peer, options.samples, options.rounds)
        rows.append(row)
    return rows


def growth(rounds: int) -> list[dict]:
    """Time and memory at growing sizes, with a straight line through each."""
    rows = []
    for name, (strategy, order) in GROWTH_CONFIGS.items():
        config = source_run_config(strategy, order=order)
        print(f"growth of {name} ...", file=sys.stderr)
        found = [
            in_fresh_process(measure_memory, config, size) | in_fresh_process(measure_seconds, config, size, rounds)
            for size in GROWTH_SIZES
        ]
        if errors := [memory["error"] for memory in found if "error" in memory]:
            rows.append({"planner": name, "error": errors[0]})
            continue
        seconds, traced = ([memory[key] for memory in found] for key in ("seconds", "traced"))
        rows.append(
            {
                "planner": name,
                "samples": GROWTH_SIZES,
                "memory": found,
                "seconds_fit": straight_line(GROWTH_SIZES, seconds),
                "traced_fit": straight_line(GROWTH_SIZES, traced),
            }
        )
    return rows


def straight_line(x: tuple[int, ...], y: list[float]) -> dict:
    """Least-squares line: slope, intercept and the share of the variance that it explains."""
    slope, intercept = np.polyfit(x, y, 1)
    rest = np.asarray(y) - (slope * np.asarray(x) + intercept)
    return {"slope": float(slope), "intercept": float(intercept), "r_squared": float(1 - rest.var() / np.var(y))}


def as_markdown(result: dict) -> str:
    about = ", ".join(f"{name} {value}" for name, value in result["environment"].items())
    lines = [
        f"{result['samples']:,} lengths with the source run's profile, budget {BUDGET:,}, at most {CAP} a batch, "
        f"median of {result['rounds']} rounds; {about}. No padded plan can have fewer than "
        f"{result['least_possible_batches']:,} batches. Times as fast: than {BASELINE}, in the same round. Extra MB: "
        "beside lengths and plan, most bytes of arrays and objects at once / most resident; of peers, all that is "
        "resident.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- " * len(COLUMNS) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in result["rows"]),
    ]
    for row in result["growth"]:
        lines += ["", *growth_lines(row)]
    return "\n".join(lines)


def cells(row: dict) -> list[str]:
    name = (
        f"{row['planner']} ({row['package'].split('==')[0]} {row['version']})" if "package" in row else row["planner"]
    )
    if "error" in row:
        return [name, *[""] * (len(COLUMNS) - 2), row["error"]]
    seconds, baseline = ([taken["cpu"] for taken in row[key]] for key in ("seconds", "baseline_seconds"))
    ratio = statistics.median(base / own for base, own in zip(baseline, seconds, strict=True))
    return [
        name,
        f"{statistics.median(seconds):.3f}",
        f"{min(seconds):.3f}-{max(seconds):.3f}",
        f"{ratio:.3g}",
        f"{row['num_batches']:,}",
        f"{row['padding_efficiency']:.3f}",
        f"{row['budget_use']:.4f}",
        memory_cell(row),
        "; ".join(remarks(row, ratio)),
    ]


def memory_cell(row: dict) -> str:
    memory = row.get("memory", {})
    if "traced" in memory:
        resident = "?" if memory["resident"] is None else f"{memory['resident'] / 1e6:.0f}"
        return f"{memory['traced'] / 1e6:.0f} / {resident}"
    return f"all {row['resident_bytes'] / 1e6:,.0f}" if row.get("resident_bytes") else memory.get("error", "")


def remarks(row: dict, ratio: float) -> list[str]:
    """What the figures do not say: broken limits, lost samples, and whether a target is met."""
    found = [row["remark"]] if row.get("remark") else []
    if row["num_over_budget"]:
        found.append(f"{row['num_over_budget']:,} over budget, up to {row['worst_over_budget']:.2f}x")
    if row["num_over_cap"]:
        found.append(f"{row['num_over_cap']:,} of more than {CAP} samples")
    if row["num_lost"]:
        found.append(f"{row['num_lost']:,} samples lost")
    if row["planner"] in TARGETS and row["is_full_size"] and "traced" in row["memory"]:
        least, most = TARGETS[row["planner"]]
        met = ratio >= least and row["memory"]["traced"] <= most
        found.append(f"target {least}x and {most / 1e6:.0f} MB: {'met' if met else 'NOT met'}")
    return found


def growth_lines(row: dict) -> list[str]:
    if "error" in row:
        return [f"{row['planner']}: {row['error']}"]
    time_fit, memory_fit = row["seconds_fit"], row["traced_fit"]
    return [
        f"Growth of {row['planner']}: {time_fit['slope'] * 1e9:.0f} ns and {memory_fit['slope']:.1f} extra bytes a "
        f"sample, R2 of the straight lines {time_fit['r_squared']:.4f} and {memory_fit['r_squared']:.4f}.",
        "",
        "| samples | CPU s | ns a sample | extra MB | resident extra MB | plan MB |",
        "| --- " * 6 + "|",
        *(
            f"| {size:,} | {memory['seconds']:.3f} | {memory['seconds'] / size * 1e9:.0f} "
            f"| {memory['traced'] / 1e6:.0f} | {(memory['resident'] or 0) / 1e6:.0f} | {memory['plan'] / 1e6:.0f} |"
            for size, memory in zip(row["samples"], row["memory"], strict=True)
        ),
    ]


if __name__ == "__main__":
    main()
