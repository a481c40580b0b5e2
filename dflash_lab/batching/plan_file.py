"""A plan as a Parquet file: one row a batch, the settings in the file's metadata."""

from __future__ import annotations

import dataclasses
import json
import os
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dflash_lab.batching.config import BatchingConfig
from dflash_lab.batching.plan import BatchPlan

_METADATA = b"dflash_lab.plan"


def write_plan(plan: BatchPlan, path: Path) -> None:
    """Write a plan, aside first; see `BatchPlan.save`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    offsets = pa.array(plan.offsets)
    table = pa.table(
        {
            "batch_id": pa.array(np.arange(len(plan))),
            "bucket_id": pa.array(plan.bucket_ids),
            "width_tokens": pa.array(plan.widths),
            "sample_ids": pa.LargeListArray.from_arrays(offsets, pa.array(plan.sample_ids)),
            "sample_lengths": pa.LargeListArray.from_arrays(offsets, pa.array(plan.sample_lengths)),
        }
    )
    facts = {
        "config": dataclasses.asdict(plan.config),
        "epoch": plan.epoch,
        "layout": plan.layout,
        "left_out": {reason: ids.tolist() for reason, ids in plan.left_out.items()},
        "repeated": plan.repeated.tolist(),
        "fingerprint": plan.fingerprint,
    }
    facts["checksum"] = _checksum(facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(table.replace_schema_metadata({_METADATA: json.dumps(facts)}), aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def read_plan(path: Path) -> BatchPlan:
    """Read a plan; see `BatchPlan.load`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[_METADATA])
        checksum = facts.pop("checksum")
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a plan written by BatchPlan.save") from error
    if checksum != _checksum(facts):
        raise ValueError(f"{path}: its settings, epoch or left-out samples are not those that were written")
    unknown = set(facts["config"]) - {entry.name for entry in dataclasses.fields(BatchingConfig)}
    if unknown:
        raise ValueError(f"{path}: unknown settings {', '.join(sorted(unknown))}; written by another version")
    sample_ids, sample_lengths = (table[name].combine_chunks() for name in ("sample_ids", "sample_lengths"))
    plan = BatchPlan(
        sample_ids=np.asarray(sample_ids.flatten()),
        offsets=np.concatenate([[0], np.cumsum(np.asarray(sample_ids.value_lengths()))]),
        bucket_ids=np.asarray(table["bucket_id"]),
        widths=np.asarray(table["width_tokens"]),
        sample_lengths=np.asarray(sample_lengths.flatten()),
        config=BatchingConfig(**facts["config"]),
        epoch=facts["epoch"],
        left_out=facts["left_out"],
        repeated=facts["repeated"],
        layout=facts["layout"],
    )
    if plan.fingerprint != facts["fingerprint"]:
        raise ValueError(f"{path} holds another plan than its fingerprint {facts['fingerprint']} names")
    return plan


def _checksum(facts: dict[str, object]) -> str:
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
