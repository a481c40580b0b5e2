"""Measurements in a fresh process each: no peer disturbs another, and memory starts from nothing."""

from __future__ import annotations

import logging
import multiprocessing
import os
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from dflash_lab.batching import SOURCE_RUN_BUCKET_BOUNDS, BatchingConfig, BatchPlan, plan_epoch
from dflash_lab.data import source_run_lengths
from peers.outcome import measured
from peers.registry import Peer
from peers.source_way import plan_six_buckets

# Where memory is measured, arrays from this size on are given back to the system when freed, so that what is resident
# is what is used. Bytes; glibc's setting, which other systems do not read.
_MALLOC_SETTING, _OWN_MAPPING = "MALLOC_MMAP_THRESHOLD_", 2**17


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """How long one call took.

    Args:
        cpu: Seconds that this process computed; all planners here run on one core, and what else runs on the machine
            disturbs this least.
        wall: Seconds by the clock.
    """

    cpu: float
    wall: float


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory that planning one epoch takes, in bytes, without the lengths and the plan.

    Args:
        plan: The plan's arrays.
        traced: Most bytes of Python objects and numpy arrays at once.
        resident: Most resident bytes; None where the system does not tell.
    """

    plan: int
    traced: int
    resident: int | None


def in_fresh_process(work: Callable[..., dict], *arguments: object) -> dict:
    """Call a module's function in a new process; an error or the process's death comes back as {"error": why}."""
    if work is measure_memory:
        os.environ[_MALLOC_SETTING] = str(_OWN_MAPPING)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        finally:
            os.environ.pop(_MALLOC_SETTING, None)


def measure_peer(peer: Peer, num_samples: int, rounds: int) -> dict:
    """Time a peer beside the six buckets in pure Python, round after round.

    Args:
        peer: The planner.
        num_samples: Source-run lengths to plan.
        rounds: Epochs to time; a slow peer plans one.

    Returns:
        Seconds, those of the baseline, resident bytes at the peak and the outcome.
    """
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    lengths = source_run_lengths(num_samples)
    listed, budget, cap = lengths.tolist(), 49_152, 64
    plan = peer.prepare(lengths, budget, cap, 0)
    seconds, baseline = [], []
    for _ in range(1 if peer.slow else rounds):
        baseline.append(timed(lambda: plan_six_buckets(listed, budget, cap, 0, SOURCE_RUN_BUCKET_BOUNDS))[0])
        taken, batches = timed(plan)
        seconds.append(taken)
    peak = _status("VmHWM")
    outcome = measured(batches, lengths, token_budget=budget, cap=cap, packed=peer.packed, ranks=peer.ranks)
    times = {"seconds": list(map(asdict, seconds)), "baseline_seconds": list(map(asdict, baseline))}
    return {**times, "resident_bytes": peak, **asdict(outcome)}


def measure_memory(config: BatchingConfig, num_samples: int) -> dict:
    """Measure what planning takes beside lengths and plan, see `Memory`."""
    lengths = source_run_lengths(num_samples)
    # Whatever is imported or allocated once is there before.
    plan_epoch(lengths[:1000], config, epoch=0)
    before = _reset_peak()
    plan = plan_epoch(lengths, config, epoch=0)
    peak, own = _status("VmHWM"), plan_bytes(plan)
    resident = None if before is None or peak is None else peak - before - own
    del plan
    tracemalloc.start()
    kept = plan_epoch(lengths, config, epoch=0)
    traced = tracemalloc.get_traced_memory()[1] - own
    tracemalloc.stop()
    del kept
    return asdict(Memory(plan=own, traced=traced, resident=resident))


def measure_seconds(config: BatchingConfig, num_samples: int, rounds: int) -> dict:
    """Time epochs in a process of their own: {"seconds": median CPU seconds}, the first not counted."""
    lengths = source_run_lengths(num_samples)
    seconds = [timed(partial(plan_epoch, lengths, config, epoch=epoch))[0].cpu for epoch in range(rounds + 1)]
    return {"seconds": statistics.median(seconds[1:])}


def plan_bytes(plan: BatchPlan) -> int:
    """Bytes of a plan's arrays."""
    return sum(value.nbytes for value in vars(plan).values() if isinstance(value, np.ndarray))


def timed(work: Callable[[], object]) -> tuple[Seconds, object]:
    """Time one call; gives what it gave as well."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return Seconds(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall), result


def _reset_peak() -> int | None:
    """Set the process's peak to what is resident now, and give that in bytes; None where it cannot be done."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return None
    return _status("VmRSS")


def _status(name: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))
    except OSError:
        return None
