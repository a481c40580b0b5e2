"""How long a data set takes to open, against reading its tokens.

One Arrow stream of 902,087 samples (the source run's lengths, a tenth as long, so about 0.75 GB) is opened for the
first time, opened again, opened with another cut, and read at random. Baseline in the same run: pyarrow reads every
token of the file once, from warm pages, as does the first open.

    python benchmarks/opening.py [--samples 902087]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data import SOURCE_RUN_NUM_SAMPLES, PreloadedDataset, source_run_lengths

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=SOURCE_RUN_NUM_SAMPLES)
    num_samples = parser.parse_args().samples
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DFLASH_LAB_CACHE"] = str(Path(folder) / "cache")
        path = Path(folder) / "samples.arrow"
        write(path, np.maximum(source_run_lengths(num_samples) // 10, 1))
        baseline = median_seconds(lambda: read_all(path))
        first = median_seconds(lambda: PreloadedDataset.open(path), rounds=1)
        again = median_seconds(lambda: PreloadedDataset.open(path))
        dataset = PreloadedDataset.open(path)
        rows = np.random.default_rng(0).integers(0, len(dataset), 10_000).tolist()
        reads = median_seconds(lambda: [dataset[row] for row in rows])
        result = {
            "samples": num_samples,
            "file_bytes": path.stat().st_size,
            "cores": os.cpu_count(),
            "read_all_tokens_seconds": round(baseline, 3),
            "first_open_seconds": round(first, 3),
            "later_open_seconds": round(again, 3),
            "later_open_over_read_all": round(again / baseline, 4),
            "first_open_over_later_open": round(first / again, 1),
            "random_sample_microseconds": round(reads / len(rows) * 1e6, 1),
        }
    print(json.dumps(result, indent=2))


def write(path: Path, lengths: np.ndarray) -> None:
    """Write random tokens with these lengths, 1,000 samples a batch."""
    rng = np.random.default_rng(0)
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.bool_())})
    with pa.ipc.new_stream(str(path), schema) as writer:
        for begin in range(0, len(lengths), 1_000):
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths[begin : begin + 1_000])]).astype(np.int32))
            num_tokens = offsets[-1].as_py()
            ids = pa.array(rng.integers(0, 150_000, num_tokens, dtype=np.int32))
            mask = pa.array(rng.random(num_tokens) < 0.6)
            lists = [pa.ListArray.from_arrays(offsets, values) for values in (ids, mask)]
            writer.write_batch(pa.record_batch(lists, schema=schema))


def read_all(path: Path) -> int:
    """Touch every token and mask bit once."""
    total = 0
    with pa.OSFile(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            total += int(batch.column(0).values.to_numpy().sum()) + batch.column(1).values.true_count
    return total


def median_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
