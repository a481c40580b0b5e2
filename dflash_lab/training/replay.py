"""A step of a finished or broken run, made once more from its checkpoint and its ledger, and looked into."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from dflash_lab.batching import BatchingConfig, BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import Drafter
from dflash_lab.feed import BatchPrefetcher
from dflash_lab.target import TargetFeatures, TargetForwardLoops, TargetModel
from dflash_lab.training.assembly import choose_devices, drafter_config, make_optimizer, plan_samples, split_samples
from dflash_lab.training.checkpoint import WEIGHTS, find_checkpoint, load_weights, read_state, why_incomplete
from dflash_lab.training.config import RunConfig, first_difference
from dflash_lab.training.files import read_json
from dflash_lab.training.ledger import LedgerStep, read_ledger
from dflash_lab.training.loop import DrafterTrainLoop
from dflash_lab.training.manifest import code_fingerprint
from dflash_lab.training.replayed import BatchParts, StepReplay, joined
from dflash_lab.training.run_log import CONFIG, MANIFEST, METRICS, read_lines
from dflash_lab.training.schedules import ScheduleConfig


def replay_step(
    run_dir: str | Path,
    step: int,
    dataset: PreloadedDataset,
    target: TargetModel,
    *,
    checkpoint: str | Path | None = None,
    device: str = "auto",
) -> StepReplay:
    """Make a step of a run once more.

    The newest checkpoint before the step, or else the run's first weights, are trained on with the batches that the
    ledger names. On the CPU, with as many of torch's threads as the run had, the step is the same to the bit, unless
    the run was on another device or had several ranks; `environment_differences` says what is not as it was.

    Args:
        run_dir: The run's folder; only read.
        step: One that is in its log, >= 1.
        dataset: The run's samples.
        target: Its target.
        checkpoint: Folder of the checkpoint to begin with, of a step before this one; None takes the newest such one of
            the run. A run that went on from another folder's checkpoint needs that one for the steps before its own
            first one.
        device: "auto", or where to compute.

    Returns:
        The step.

    Raises:
        ValueError: If the folder holds no such step, or data, target, settings or checkpoint are others than the run's.
    """
    run_dir = Path(run_dir)
    manifest = _read(run_dir / MANIFEST)
    identity = manifest["identity"]
    for name, mine in (("data", dataset.fingerprint), ("target", target.fingerprint)):
        if mine != identity[name]:
            raise ValueError(f"the {name} has the fingerprint {mine}, and that of {run_dir} has {identity[name]}")
    of_target = {"target_layer_ids": list(target.target_layer_ids), "target_settings": dict(target.settings)}
    differs = first_difference(of_target, {name: identity[name] for name in of_target})
    if differs is not None:
        raise ValueError(f"the target is not that of {run_dir}: now {differs}")
    config = RunConfig.from_dict(_read(run_dir / CONFIG))
    difference = first_difference(config.identity, identity["config"])
    if difference is not None:
        raise ValueError(f"{run_dir / CONFIG} is not what the run was made with: {difference}")
    logged = {line["step"]: line for line in read_lines(run_dir / METRICS)}
    if step not in logged:
        raise ValueError(f"step is {step}; legal: a step in the log of {run_dir}, which has {_span(logged)}")
    begin = _begin(run_dir, step, manifest, None if checkpoint is None else Path(checkpoint))
    records = _records(run_dir, range(begin.step + 1, step + 1))
    where = choose_devices(device, None, None, num_target_loops=1).drafter
    drafter = Drafter(drafter_config(config.drafter, target), seed=config.seed).to(where)
    optimizer = make_optimizer(drafter, config)
    if begin.path is not None:
        load_weights(begin.path, drafter, optimizer)
    schedule = ScheduleConfig.of(config.optimizer, config.noise, int(manifest["total_steps"]))
    loop = DrafterTrainLoop(drafter, optimizer, target.to(where), config, schedule, step=begin.step)
    with_logits = config.loss.kind == "kl"
    sessions = _sessions_of(records, manifest)
    last: list[TargetFeatures] = []
    with _threads():
        for (_, session), steps in itertools.groupby(zip(records, sessions, strict=True), key=_epoch_and_session):
            of_part = [record for record, _ in steps]
            torch.set_num_threads(int(manifest["sessions"][session]["threads"]))
            with _features(of_part, dataset, loop.target, config.batching, with_logits) as features:
                for record in of_part:
                    window = itertools.islice(features, len(record.batches))
                    if record.step < step:
                        loop.train_window(window)
                    else:
                        last = list(window)
        noise = loop.noise
        # With gradients enabled, as in training: without them a kernel may be another one, with other last bits.
        parts = joined([BatchParts.of(loop.micro_batch.draft(features, noise=noise), features) for features in last])
        outcome = loop.train_window(last)
    return StepReplay(
        step=step,
        epoch=records[-1].epoch,
        from_step=begin.step,
        outcome=outcome,
        logged=logged[step],
        batches=records[-1].batches,
        plan_difference=_plan_difference(records, dataset, config, identity),
        matches_checkpoint=_matches_checkpoint(run_dir, step, drafter),
        environment_differences=_environment_differences(manifest, sorted(set(sessions)), where),
        **vars(parts),
    )


@contextmanager
def _threads() -> Iterator[None]:
    """Leave torch's threads as they were: how many there are decides the last bits of sums."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sessions_of(records: Sequence[LedgerStep], manifest: Mapping[str, Any]) -> list[int]:
    """Which session of the run made each step, by its place in the manifest: the last that began before it."""
    begins = [int(session["from_step"]) for session in manifest["sessions"]]
    return [max(at for at, begin in enumerate(begins) if begin < record.step) for record in records]


def _epoch_and_session(pair: tuple[LedgerStep, int]) -> tuple[int, int]:
    record, session = pair
    return record.epoch, session


def _environment_differences(
    manifest: Mapping[str, Any], sessions: Sequence[int], device: torch.device
) -> tuple[str, ...]:
    """Say what may make other bits: device, ranks and versions of the sessions that made the steps."""
    found = []
    ranks = int(manifest["identity"]["ranks"])
    if ranks > 1:
        found.append(f"the run had {ranks} ranks, whose sums are added in another order here")
    for at in sessions:
        session = manifest["sessions"][at]
        if torch.device(session["device"]).type != device.type:
            found.append(f"session {at} had the device {session['device']}, and here it is {device}")
        if session.get("code", code_fingerprint()) != code_fingerprint():
            found.append(f"session {at} ran other code of dflash_lab than is here")
        for name, version in session["versions"].items():
            here = _version(name)
            if here != version:
                found.append(f"session {at} had {name} {version}, and here it is {here}")
    return tuple(found)


@dataclass(frozen=True)
class _Begin:
    """Where a replay begins: a checkpoint, or the first weights at step 0."""

    step: int
    path: Path | None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _begin(run_dir: Path, step: int, manifest: Mapping[str, Any], checkpoint: Path | None) -> _Begin:
    if checkpoint is not None:
        reason = why_incomplete(checkpoint)
        if reason is not None:
            raise ValueError(f"checkpoint {checkpoint} is not complete: {reason}")
        state, made_of = read_state(checkpoint)
        difference = first_difference(made_of, manifest["identity"])
        if difference is not None:
            raise ValueError(f"checkpoint {checkpoint} is of another run than {run_dir}: {difference}")
        if state.step >= step:
            raise ValueError(f"checkpoint {checkpoint} is of step {state.step}; legal: one of a step before {step}")
        return _Begin(state.step, checkpoint)
    found = find_checkpoint(run_dir, at_most=step - 1)
    if found is not None:
        return _Begin(found.step, found.path)
    # The first session of a folder began where its run did, or where it was taken over from another folder.
    taken_over = int(manifest["sessions"][0]["from_step"])
    if taken_over:
        raise ValueError(
            f"{run_dir} went on from step {taken_over} of a run in another folder, and has no checkpoint of its own "
            f"before step {step}; legal: checkpoint=, the folder of that other run's checkpoint of step {taken_over}"
        )
    return _Begin(0, None)


def _matches_checkpoint(run_dir: Path, step: int, drafter: Drafter) -> bool | None:
    """Whether the weights are those that the run saved at a step; None where it saved none."""
    found = find_checkpoint(run_dir, at_most=step)
    if found is None or found.step != step:
        return None
    saved, mine = load_file(found.path / WEIGHTS), drafter.state_dict()
    return saved.keys() == mine.keys() and all(torch.equal(saved[name], mine[name].cpu()) for name in saved)


def _records(run_dir: Path, steps: range) -> list[LedgerStep]:
    found = read_ledger(run_dir, steps).steps
    missing = [step for step in steps if step not in found]
    if missing:
        raise ValueError(f"the ledger of {run_dir} has no step {missing[0]}, from which step {steps[-1]} follows")
    return [found[step] for step in steps]


def _plan_difference(
    ledger: Sequence[LedgerStep], dataset: PreloadedDataset, config: RunConfig, identity: Mapping[str, Any]
) -> str | None:
    """Name the first batch of the ledger that is another one in the plan; None if all agree."""
    # A validation set of its own leaves all samples to train on.
    is_whole = bool(identity["validation"])
    train_ids = np.arange(len(dataset)) if is_whole else split_samples(dataset, None, config).train_ids
    sizes, ranks, window = identity["batches_per_epoch"], identity["ranks"], config.accumulation
    for epoch, records in itertools.groupby(ledger, key=lambda record: record.epoch):
        whole = plan_samples(dataset, train_ids, config.batching, epoch=epoch)
        plans = [whole] if ranks == 1 else [whole.shard(rank, ranks) for rank in range(ranks)]
        steps_before = sum(-(-size // window) for size in sizes[:epoch])
        for record in records:
            begin = (record.step - 1 - steps_before) * window
            planned = [
                (rank, at, plan[at].tolist(), int(plan.widths[at]))
                for rank, plan in enumerate(plans)
                for at in range(begin, min(begin + window, len(plan)))
            ]
            held = [(row["rank"], row["batch_id"], row["sample_ids"], row["width"]) for row in record.batches]
            for mine, other in itertools.zip_longest(held, planned):
                if mine != other:
                    return (
                        f"step {record.step} of epoch {epoch}: the ledger has {_batch_in_words(mine)}, and the plan "
                        f"{_batch_in_words(other)}"
                    )
    return None


def _batch_in_words(batch: tuple[int, int, list[int], int] | None) -> str:
    if batch is None:
        return "no further batch"
    _, batch_id, sample_ids, width = batch
    shown = ", ".join(map(str, sample_ids[:8])) + (", ..." if len(sample_ids) > 8 else "")
    return f"batch {batch_id} of {len(sample_ids)} samples [{shown}] and width {width}"


def _features(
    records: Sequence[LedgerStep],
    dataset: PreloadedDataset,
    target: TargetModel,
    batching: BatchingConfig,
    with_logits: bool,
) -> TargetForwardLoops:
    """Read the batches of some steps of one epoch, and run the target over them, as training does."""
    batches = [batch for record in records for batch in record.batches]
    sizes = [len(batch["sample_ids"]) for batch in batches]
    plan = BatchPlan(
        sample_ids=np.concatenate([np.asarray(batch["sample_ids"], np.int64) for batch in batches]),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        bucket_ids=np.asarray([batch["bucket_id"] for batch in batches], np.int16),
        widths=np.asarray([batch["width"] for batch in batches], np.int32),
        sample_lengths=np.concatenate([np.asarray(batch["lengths"], np.int32) for batch in batches]),
        config=batching,
        epoch=records[0].epoch,
        layout=batches[0]["layout"],
    )
    return TargetForwardLoops([target], BatchPrefetcher(dataset, plan, num_workers=1), with_logits=with_logits)


def _span(steps: Mapping[int, object]) -> str:
    return f"steps {min(steps)} to {max(steps)}" if steps else "none"


def _read(file: Path) -> Any:
    if not file.exists():
        raise ValueError(f"{file.parent} holds no run: there is no {file.name}")
    return read_json(file)
