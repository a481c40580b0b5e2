"""How fast samples become padded tensors, beside other ways to do it, what bounds it, and what the queue holds.

Samples with the source run's lengths and random tokens lie in an Arrow stream; their batches are the source run's six
buckets. Every round goes through all ways once, so that a ratio is of one round; rates are real tokens by the clock,
from warm pages. Slow ways do an evenly spread share of the epoch's batches, which the table names. Before anything is
timed, the tensors of all ways are compared.

    python benchmarks/feed.py [--samples 20000] [--rounds 7] [--depth 50] [--json F] [--markdown F]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from peers import collating
from peers.feeding import parts_of_the_work, resident_of_a_slow_consumer, timed_part, warm
from peers.isolated import _MALLOC_SETTING, _OWN_MAPPING, in_fresh_process

from dflash_lab.batching import BatchPlan, plan_epoch, source_run_config
from dflash_lab.data import PreloadedDataset, source_run_lengths
from dflash_lab.feed import BatchPrefetcher

OURS, COPY = "ours, 1 worker", "plain copy of the final bytes"
LOADERS = tuple(
    f"DataLoader, {number} worker process{'' if number == 1 else 'es'}, numpy collate" for number in (1, 2, 4)
)
# Real tokens per second that the source run needed: 0.65 batches/s.
NEEDED = 0.0262e6
# A row of the table, or the fastest of several -> how many times as fast we are to be, at least.
TARGETS = {
    "source run: torch.tensor of each list": ("(a)", 20),
    "DataLoader, 2 worker processes, torch format, pad_sequence": ("(b1)", 10),
    "the fastest numpy collate in worker processes": ("(b2)", 5),
    "DataLoader, 0 workers, numpy collate": ("(b2)", 1),
    "HF DataCollatorWithPadding, ids only": ("(c)", 25),
}
MEMORY_ROUNDS, MEMORY_BATCHES, PAUSE_SECONDS = 3, 150, 0.01


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to make the batches.

    Args:
        batches: Begins an epoch.
        every: Takes every so many batches of it.
    """

    batches: Callable[[], Iterable[object]]
    every: int = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    # One thread a stage: a worker is a core, and tensor operations take no second one.
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DFLASH_LAB_CACHE"] = str(Path(folder) / "cache")
        path = Path(folder) / "samples.arrow"
        collating.write_stream(path, source_run_lengths(options.samples))
        dataset = PreloadedDataset.open(path)
        plan = plan_epoch(dataset.lengths, source_run_config("bucketed"), epoch=0)
        warm(dataset)
        ways = all_ways(path, dataset, plan, options.depth)
        compare(ways)
        parts = parts_of_the_work(dataset, plan, depth=options.depth)
        result = {
            "environment": environment(),
            "samples": options.samples,
            "batches": len(plan),
            "real_tokens": plan.real_tokens,
            "padding_efficiency": plan.padding_efficiency,
            "rounds": options.rounds,
            "depth": options.depth,
            **measure(ways, parts, plan, options.rounds),
            "memory": memory(path, options.depth),
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
    packages = ("numpy", "torch", "pyarrow", "datasets", "transformers", "dflash-lab")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
    }


def all_ways(path: Path, dataset: PreloadedDataset, plan: BatchPlan, depth: int) -> dict[str, Way]:
    """Name -> way, ours in the middle, so that it is near to all others in time."""
    batches = list(plan)

    def ours(num_workers: int) -> Iterator[object]:
        with BatchPrefetcher(dataset, plan, num_workers=num_workers, depth=depth) as prefetcher:
            yield from prefetcher

    ways = {
        "source run: torch.tensor of each list": Way(batches=collating.source_way(path, batches[::20]), every=20),
        "HF DataCollatorWithPadding, ids only": Way(batches=collating.hf_collator_way(path, batches[::20]), every=20),
        "DataLoader, 2 worker processes, torch format, pad_sequence": Way(
            batches=collating.torch_format_loader(path, batches[::4], num_workers=2), every=4
        ),
        "DataLoader, 0 workers, numpy collate": Way(batches=collating.numpy_loader(dataset, batches, num_workers=0)),
    }
    for num_workers in (1, 2, 3):
        ways[f"ours, {num_workers} worker{'s' if num_workers > 1 else ''}"] = Way(batches=partial(ours, num_workers))
    for num_workers, name in zip((1, 2, 4), LOADERS, strict=True):
        loader = collating.numpy_loader(dataset, batches[::4], num_workers=num_workers)
        ways[name] = Way(batches=loader, every=4)
    loader = collating.hf_numpy_loader(path, batches[::4], num_workers=0)
    ways["DataLoader, 0 workers, HF numpy format, numpy collate"] = Way(batches=loader, every=4)
    return ways


def compare(ways: dict[str, Way]) -> None:
    """Stop if two ways make different tensors; also begins the worker processes and reads all that they will read."""
    print("comparing the tensors of all ways ...", file=sys.stderr)
    reference = "DataLoader, 0 workers, numpy collate"
    for name, way in ways.items():
        if name == reference:
            continue
        expected = list(ways[reference].batches())[:: way.every]
        num_batches = 0
        for batch, other in zip(way.batches(), expected, strict=True):
            tensors = batch if isinstance(batch, Mapping) else vars(batch)
            for key in ("input_ids", "attention_mask", "loss_mask"):
                if key in tensors and not torch.equal(tensors[key].to(other[key].dtype), other[key]):
                    raise SystemExit(f"{name}: batch {num_batches} has another {key} than {reference}")
            num_batches += 1


def measure(ways: dict[str, Way], parts: dict[str, Callable], plan: BatchPlan, rounds: int) -> dict:
    """Seconds of every way and part, round after round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    of_parts: dict[str, list[dict]] = {name: [] for name in parts}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
        for name, way in ways.items():
            begin = time.perf_counter()
            for _batch in way.batches():
                pass
            seconds[name].append(time.perf_counter() - begin)
        for name, part in parts.items():
            of_parts[name].append(asdict(timed_part(part)))
    tokens = plan.real_tokens_by_batch
    rates = {
        name: [float(tokens[:: ways[name].every].sum() / taken) for taken in values] for name, values in seconds.items()
    }
    rates[COPY] = [plan.real_tokens / part["seconds"] for part in of_parts["copy the final bytes"]]
    shares = {name: 1 / way.every for name, way in ways.items()}
    return {"rates": rates, "shares": shares, "parts": of_parts}


def memory(path: Path, depth: int) -> list[dict]:
    """Resident bytes of ours and of a loader without a queue, in fresh processes, before a slow consumer."""
    print("memory ...", file=sys.stderr)
    rows = []
    for name, num_workers in (("DataLoader, 0 workers, numpy collate", 0), (OURS, 1), ("ours, 3 workers", 3)):
        found = []
        for _ in range(MEMORY_ROUNDS):
            # Taken back after every process.
            os.environ[_MALLOC_SETTING] = str(_OWN_MAPPING)
            found.append(
                in_fresh_process(resident_of_a_slow_consumer, path, num_workers, depth, MEMORY_BATCHES, PAUSE_SECONDS)
            )
        # The middle one; an error or an unknown number comes first.
        found.sort(key=lambda one: one.get("resident") or 0)
        rows.append({"way": name, "num_workers": num_workers} | found[MEMORY_ROUNDS // 2])
    return rows


def as_markdown(result: dict) -> str:
    about = ", ".join(f"{name} {value}" for name, value in result["environment"].items())
    rates, rounds = result["rates"], result["rounds"]
    lines = [
        f"{result['samples']:,} samples of the source run's profile, {result['real_tokens']:,} real tokens in "
        f"{result['batches']:,} batches (padding efficiency {result['padding_efficiency']:.3f}), queue depth "
        f"{result['depth']}, medians of {rounds} rounds; {about}. All ways gave equal tensors.",
        "",
        "| way | share of the epoch | real tokens (M/s) | min-max | ours, 1 worker: times as fast | target |",
        "| --- " * 6 + "|",
    ]
    for name, values in rates.items():
        ratio = ratio_to(rates, values)
        share = result["shares"].get(name, 1.0)
        lines.append(
            f"| {name} | {'all' if share == 1 else f'1/{1 / share:.0f}'} | {statistics.median(values) / 1e6:.1f} "
            f"| {min(values) / 1e6:.1f}-{max(values) / 1e6:.1f} | {ratio:.3g} | {verdict(name, ratio)} |"
        )
    fastest = [max(values) for values in zip(*(rates[name] for name in LOADERS), strict=True)]
    name = "the fastest numpy collate in worker processes"
    ratio = ratio_to(rates, fastest)
    lines += [f"| {name} | 1/4 | {statistics.median(fastest) / 1e6:.1f} | | {ratio:.3g} | {verdict(name, ratio)} |", ""]
    ours = statistics.median(rates[OURS])
    lines += [
        f"Ours with 1 worker reaches {ratio_to(rates, rates[COPY]):.0%} of a plain copy of the final bytes (d). The "
        f"source run needed {NEEDED / 1e6:.4f} M/s, of which this is {ours / NEEDED:,.0f} times: reading and padding "
        f"never was its limit.",
        "",
        *part_lines(result),
        "",
        *memory_lines(result),
    ]
    return "\n".join(lines)


def ratio_to(rates: dict[str, list[float]], values: list[float]) -> float:
    """Median over the rounds of our rate over another way's in the same round."""
    return statistics.median(own / other for own, other in zip(rates[OURS], values, strict=True))


def verdict(name: str, ratio: float) -> str:
    if name not in TARGETS:
        return ""
    label, least = TARGETS[name]
    return f"{label} {least}x: {'met' if ratio >= least else 'NOT met'}"


def part_lines(result: dict) -> list[str]:
    """What one thread spends an epoch on."""
    batches = result["batches"]
    whole = statistics.median(result["real_tokens"] / rate for rate in result["rates"][OURS])
    lines = [
        f"What bounds it: parts of the work on one thread, beside {whole * 1e3:.0f} ms for an epoch through the queue.",
        "",
        "| part | CPU ms an epoch | CPU us a batch | ms by the clock | pages given out |",
        "| --- " * 5 + "|",
    ]
    for name, values in result["parts"].items():
        cpu, clock, faults = (
            statistics.median(part[key] for part in values) for key in ("cpu_seconds", "seconds", "faults")
        )
        lines.append(f"| {name} | {cpu * 1e3:.0f} | {cpu / batches * 1e6:.0f} | {clock * 1e3:.0f} | {faults:,.0f} |")
    return lines


def memory_lines(result: dict) -> list[str]:
    """What the queue holds beyond a loader without one, against depth times the largest batch."""
    base, *others = result["memory"]
    if errors := [row["error"] for row in result["memory"] if "error" in row]:
        return [f"Memory: {errors[0]}"]
    lines = [
        f"Resident memory before a consumer that holds each batch for {PAUSE_SECONDS * 1e3:.0f} ms, beyond the open, "
        f"warm data set; medians of {MEMORY_ROUNDS} fresh processes.",
        "",
        "| way | MB | beyond the loader without a queue | depth x largest batch (MB) | target |",
        "| --- " * 5 + "|",
        f"| {base['way']} | {megabytes(base['resident'])} | | | |",
    ]
    allowed = result["depth"] * base["largest"]
    for row in others:
        beyond = None if None in (row["resident"], base["resident"]) else row["resident"] - base["resident"]
        told = "" if beyond is None else "met" if beyond <= allowed else "NOT met"
        lines.append(
            f"| {row['way']} | {megabytes(row['resident'])} | {megabytes(beyond)} | {megabytes(allowed)} | {told} |"
        )
    return lines


def megabytes(number: float | None) -> str:
    return "?" if number is None else f"{number / 1e6:.1f}"


if __name__ == "__main__":
    main()
