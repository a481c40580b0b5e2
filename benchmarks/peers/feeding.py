"""What bounds a feed, part by part, and what it holds in memory: each measured on the same plan."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dflash_lab.batching import BatchPlan, plan_epoch, source_run_config
from dflash_lab.data import PreloadedDataset
from dflash_lab.feed import BatchPrefetcher
from dflash_lab.feed.reader import PlanReader, ReadPlace
from peers.collating import numpy_loader
from peers.isolated import _reset_peak, _status

# input_ids int64, attention_mask and loss_mask one byte each.
BYTES_A_TOKEN = 8 + 1 + 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """One pass over an epoch's batches that does a part of the work.

    Args:
        cpu_seconds: That the thread computed, which other work on the machine disturbs least.
        seconds: By the clock.
        faults: Pages that the system had to give out on the way.
    """

    cpu_seconds: float
    seconds: float
    faults: int


def timed_part(work: Callable[[], None]) -> Part:
    """Run one pass over an epoch and measure it."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu, clock = time.thread_time(), time.perf_counter()
    work()
    return Part(
        cpu_seconds=time.thread_time() - cpu,
        seconds=time.perf_counter() - clock,
        faults=resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
    )


def parts_of_the_work(dataset: PreloadedDataset, plan: BatchPlan, *, depth: int) -> dict[str, Callable[[], None]]:
    """Give the parts of one epoch, from the least to all that one thread does without a queue.

    Args:
        dataset: The samples.
        plan: The epoch.
        depth: Buffers that the plain copies go to in turn, as many as a queue holds.

    Returns:
        Name -> a function that does it once.
    """
    shapes = [(len(batch), int(width)) for batch, width in zip(plan, plan.widths, strict=True)]
    sizes = [rows * width * BYTES_A_TOKEN for rows, width in shapes]
    ends = np.cumsum(sizes)
    # Touched once, so that every page is there; as large as an epoch, so that no cache holds it.
    source = np.ones(int(ends[-1]), np.uint8)
    rotating = [np.ones(max(sizes), np.uint8) for _ in range(depth)]
    batches = [
        (plan[number], plan.sample_lengths[begin:end].astype(np.int64), rows, width)
        for number, ((rows, width), begin, end) in enumerate(
            zip(shapes, plan.offsets[:-1], plan.offsets[1:], strict=True)
        )
    ]
    most = max(rows * width for rows, width in shapes)
    ids, narrow, masks = ([np.ones(most, dtype) for _ in range(depth)] for dtype in (np.int64, np.int32, bool))
    padding, no_loss = np.zeros(int(plan.widths.max()), np.int32), np.zeros(int(plan.widths.max()), bool)
    reader = PlanReader(dataset, plan, pin_memory=False)

    def copy_bytes() -> None:
        for number, (end, size) in enumerate(zip(ends.tolist(), sizes, strict=True)):
            rotating[number % depth][:size] = source[end - size : end]

    def copy_bytes_into_new_memory() -> None:
        kept: list[np.ndarray] = []
        for end, size in zip(ends.tolist(), sizes, strict=True):
            kept.append(source[end - size : end].copy())
            del kept[:-depth]

    def make_tensors() -> None:
        kept: list[object] = []
        for rows, width in shapes:
            kept.append(
                [torch.zeros(rows, width, dtype=dtype) for dtype in (torch.int64, torch.bool, torch.bool)]  # (R, T)
            )
            del kept[:-depth]

    def find_samples() -> None:
        for sample_ids, lengths, _, _ in batches:
            dataset.token_views_of(sample_ids, lengths)

    def copy_tokens(into: list[np.ndarray] | None, *, with_masks: bool) -> None:
        kept: list[np.ndarray] = []
        for number, (sample_ids, lengths, rows, width) in enumerate(batches):
            views, gaps = dataset.token_views_of(sample_ids, lengths), (width - lengths).tolist()
            fields = [(views.input_ids, padding, into or [], np.int64), (views.loss_masks, no_loss, masks, bool)]
            for parts, blank, buffers, dtype in fields[: 1 + with_masks]:
                pieces = [piece for part, gap in zip(parts, gaps, strict=True) for piece in (part, blank[:gap])]
                out = buffers[number % depth][: rows * width] if into else np.empty(rows * width, dtype)
                np.concatenate(pieces, out=out)
                kept.append(out)
            del kept[: -2 * depth]

    def read_batches() -> None:
        kept: list[object] = []
        for number in range(len(plan)):
            kept.append(reader.read(number, ReadPlace()))
            del kept[:-depth]

    return {
        "copy the final bytes": copy_bytes,
        "copy the final bytes into new memory": copy_bytes_into_new_memory,
        "make new tensors and zero them": make_tensors,
        "find every sample": find_samples,
        "find, copy ids as int32": lambda: copy_tokens(narrow, with_masks=False),
        "find, copy ids as int64": lambda: copy_tokens(ids, with_masks=False),
        "find, copy ids as int64, copy loss masks": lambda: copy_tokens(ids, with_masks=True),
        "the same into new memory": lambda: copy_tokens(None, with_masks=True),
        "all of it, without a queue": read_batches,
    }


def resident_of_a_slow_consumer(
    path: Path, num_workers: int, depth: int, num_batches: int, pause_seconds: float
) -> dict[str, int | None]:
    """Measure what a feed adds to a process while its queue is full, because whoever takes from it is slow.

    Args:
        path: Token file; every sample is read once before, so that the map itself is resident on both sides.
        num_workers: Threads of the prefetcher; 0 takes a `DataLoader` without workers in its place.
        depth: Most batches in the queue.
        num_batches: Batches to take.
        pause_seconds: Seconds that each one is held.

    Returns:
        resident: bytes at the peak less those before the first batch, None where the system does not tell; largest:
        bytes of the largest batch.
    """
    torch.set_num_threads(1)
    dataset = PreloadedDataset.open(path)
    plan = plan_epoch(dataset.lengths, source_run_config("bucketed"), epoch=0)
    warm(dataset)
    # Whatever is imported or allocated once is there before.
    consume(dataset, plan, num_workers=num_workers, depth=1, num_batches=3, pause_seconds=0.0)
    before = _reset_peak()
    consume(dataset, plan, num_workers=num_workers, depth=depth, num_batches=num_batches, pause_seconds=pause_seconds)
    peak = _status("VmHWM")
    return {
        "resident": None if before is None or peak is None else peak - before,
        "largest": int(plan.padded_tokens_by_batch.max()) * BYTES_A_TOKEN,
    }


def consume(
    dataset: PreloadedDataset,
    plan: BatchPlan,
    *,
    num_workers: int,
    depth: int,
    num_batches: int,
    pause_seconds: float,
) -> None:
    """Take batches and hold each for a while."""
    if not num_workers:
        _take(numpy_loader(dataset, list(plan), num_workers=0)(), num_batches, pause_seconds)
        return
    with BatchPrefetcher(dataset, plan, num_workers=num_workers, depth=depth) as batches:
        _take(batches, num_batches, pause_seconds)


def warm(dataset: PreloadedDataset) -> int:
    """Read each token and mask value once."""
    return sum(int(part.sum()) for number in range(len(dataset)) for part in dataset.token_views(number))


def _take(batches: Iterable[object], num_batches: int, pause_seconds: float) -> None:
    for _, _batch in zip(range(num_batches), batches, strict=False):
        time.sleep(pause_seconds)
