"""Feed: a data set and a plan in, batches of tensors out, read ahead in the background and always in plan order."""

from dflash_lab.feed.ahead import RunAhead, run_ahead
from dflash_lab.feed.batch import Batch
from dflash_lab.feed.bounded_queue import BoundedQueue, QueueEnded
from dflash_lab.feed.collate import collate
from dflash_lab.feed.pipeline import PipelineConfig, Rehearsal
from dflash_lab.feed.prefetch import BatchPrefetcher
from dflash_lab.feed.rehearsal import measure_rate, rehearse
from dflash_lab.feed.schedule import ReadFailure
from dflash_lab.feed.simulation import WorkersNeeded, simulate, smallest_worker_count, workers_needed
from dflash_lab.feed.stopwatch import Stopwatch
from dflash_lab.feed.telemetry import StageTimes

__all__ = [
    "Batch",
    "BatchPrefetcher",
    "BoundedQueue",
    "PipelineConfig",
    "QueueEnded",
    "ReadFailure",
    "Rehearsal",
    "RunAhead",
    "StageTimes",
    "Stopwatch",
    "WorkersNeeded",
    "collate",
    "measure_rate",
    "rehearse",
    "run_ahead",
    "simulate",
    "smallest_worker_count",
    "workers_needed",
]
