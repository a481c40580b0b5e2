"""A step of a finished or broken run, made once more from its checkpoint and its ledger, and looked into."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_lab.batching import BatchingConfig, BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import Drafter
from dflash_lab.feed import BatchPrefetcher
from dflash_lab.target import TargetFeatures, TargetForwardLoops, TargetModel
from dflash_lab.training.assembly import choose_devices, drafter_config, make_optimizer
from dflash_lab.training.checkpoint import find_checkpoint, load_weights
from dflash_lab.training.config import RunConfig
from dflash_lab.training.loop import DrafterTrainLoop, StepOutcome
from dflash_lab.training.micro_batch import Drafted
from dflash_lab.training.run_log import BATCHES, CONFIG, MANIFEST, METRICS, read_lines
from dflash_lab.training.schedules import ScheduleConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class StepReplay:
    """One step, looked into.

    Args:
        step: The step.
        epoch: Its epoch.
        from_step: Step of the checkpoint that it was made from; 0 stands for the first weights.
        outcome: What the step did, made again.
        logged: What the run's log says of it, plain data.
        sample_ids: int64 (S,), samples of the step in the order of its batches.
        sample_loss_sum: float64 (S,), sum of weight * loss of each.
        sample_loss_weight: float64 (S,), sum of the weights.
        sample_blocks: int64 (S,), draft blocks.
        position_loss_sum: float64 (block_size - 1,), at slots 1, 2, ... of a block.
        position_loss_weight: float64 (block_size - 1,).
    """

    step: int
    epoch: int
    from_step: int
    outcome: StepOutcome
    logged: Mapping[str, Any]
    sample_ids: np.ndarray
    sample_loss_sum: np.ndarray
    sample_loss_weight: np.ndarray
    sample_blocks: np.ndarray
    position_loss_sum: np.ndarray
    position_loss_weight: np.ndarray

    @property
    def loss(self) -> float | None:
        """Loss of the step, made again; None where nothing was scored."""
        sums = self.outcome.sums
        return sums.loss_sum / sums.loss_weight if sums.loss_weight else None

    @property
    def matches_log(self) -> bool:
        """Whether sums and gradient norm are, to the bit, those that the run logged."""
        sums = self.outcome.sums
        mine = (sums.loss_sum, sums.loss_weight, self.outcome.grad_norm)
        return mine == (self.logged["loss_sum"], self.logged["loss_weight"], self.logged["grad_norm"])


def replay_step(
    run_dir: str | Path, step: int, dataset: PreloadedDataset, target: TargetModel, *, device: str = "auto"
) -> StepReplay:
    """Make a step of a run once more.

    The newest checkpoint before the step, or else the run's first weights, are trained on with the batches that the
    ledger names. On the CPU the step is the same to the bit, unless the run was on another device or had several ranks.

    Args:
        run_dir: The run's folder; only read.
        step: One that is in its log, >= 1.
        dataset: The run's samples.
        target: Its target.
        device: "auto", or where to compute.

    Returns:
        The step.

    Raises:
        ValueError: If the folder holds no such step, or data or target are others than the run's.
    """
    run_dir = Path(run_dir)
    manifest = _read(run_dir / MANIFEST)
    for name, mine in (("data", dataset.fingerprint), ("target", target.fingerprint)):
        if mine != manifest["identity"][name]:
            raise ValueError(f"the {name} has the fingerprint {mine}, and that of {run_dir} has another one")
    config = RunConfig.from_dict(_read(run_dir / CONFIG))
    logged = {line["step"]: line for line in read_lines(run_dir / METRICS)}
    if step not in logged:
        raise ValueError(f"step is {step}; legal: a step in the log of {run_dir}, which has {_span(logged)}")
    found = find_checkpoint(run_dir, at_most=step - 1)
    from_step = 0 if found is None else found.step
    ledger = _ledger(run_dir, range(from_step + 1, step + 1))
    where = choose_devices(device, None, None, num_target_loops=1).drafter
    drafter = Drafter(drafter_config(config.drafter, target), seed=config.seed).to(where)
    optimizer = make_optimizer(drafter, config)
    if found is not None:
        load_weights(found.path, drafter, optimizer)
    schedule = ScheduleConfig.of(config.optimizer, config.noise, int(manifest["total_steps"]))
    loop = DrafterTrainLoop(drafter, optimizer, target.to(where), config, schedule, step=from_step)
    with_logits = config.loss.kind == "kl"
    last: list[TargetFeatures] = []
    for _, steps in itertools.groupby(ledger, key=lambda record: record.epoch):
        records = list(steps)
        with _features(records, dataset, loop.target, config.batching, with_logits) as features:
            for record in records:
                window = itertools.islice(features, len(record.batches))
                if record.step < step:
                    loop.train_window(window)
                else:
                    last = list(window)
    noise = loop.noise
    # With gradients enabled, as in training: without them a kernel may be another one, with other last bits.
    drafted = [loop.micro_batch.draft(features, noise=noise) for features in last]
    sample_sums = [_by_sample(of_batch, features) for of_batch, features in zip(drafted, last, strict=True)]
    position_sums = np.sum([_by_position(of_batch) for of_batch in drafted], axis=0)
    del drafted
    return StepReplay(
        step=step,
        epoch=ledger[-1].epoch,
        from_step=from_step,
        outcome=loop.train_window(last),
        logged=logged[step],
        sample_ids=np.concatenate([features.batch.sample_ids.cpu().numpy() for features in last]),
        sample_loss_sum=np.concatenate([sums[0] for sums in sample_sums]),
        sample_loss_weight=np.concatenate([sums[1] for sums in sample_sums]),
        sample_blocks=np.concatenate([sums[2] for sums in sample_sums]).astype(np.int64),
        position_loss_sum=position_sums[0],
        position_loss_weight=position_sums[1],
    )


@dataclass(frozen=True)
class _Record:
    """The ledger's words on a step, of all ranks."""

    step: int
    epoch: int
    batches: list[dict[str, Any]]


def _ledger(run_dir: Path, steps: range) -> list[_Record]:
    by_step: dict[int, _Record] = {}
    ranks = sorted(run_dir.glob("rank-*"), key=lambda folder: int(folder.name.removeprefix("rank-")))
    for folder in [run_dir, *ranks]:
        for line in read_lines(folder / BATCHES):
            number = int(line["step"])  # type: ignore[call-overload]
            record = by_step.setdefault(number, _Record(number, int(line["epoch"]), []))  # type: ignore[call-overload]
            record.batches.extend(line["batches"])  # type: ignore[arg-type]
    missing = [step for step in steps if step not in by_step]
    if missing:
        raise ValueError(f"the ledger of {run_dir} has no step {missing[0]}, from which step {steps[-1]} follows")
    return [by_step[step] for step in steps]


def _features(
    records: Sequence[_Record],
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


def _by_sample(drafted: Drafted, features: TargetFeatures) -> np.ndarray:
    """Sum of weighted losses, sum of weights and blocks of each sample: float64 (3, D)."""
    weights, weighted = _weights(drafted)
    rows = np.stack([weighted.sum(1), weights.sum(1), np.ones(len(weights))])  # (3, N)
    owners = drafted.blocks.documents.cpu().numpy()
    sums = np.zeros((3, features.batch.num_samples))
    for own, values in zip(sums, rows, strict=True):
        np.add.at(own, owners, values)
    return sums


def _by_position(drafted: Drafted) -> np.ndarray:
    """Sum of weighted losses and sum of weights of each slot but the anchor: float64 (2, block_size - 1)."""
    weights, weighted = _weights(drafted)
    return np.stack([weighted.sum(0)[1:], weights.sum(0)[1:]])


def _weights(drafted: Drafted) -> tuple[np.ndarray, np.ndarray]:
    weights = drafted.loss.weights.detach().cpu().double().numpy()  # (N, B)
    return weights, weights * drafted.loss.losses.cpu().double().numpy()


def _span(steps: Mapping[int, object]) -> str:
    return f"steps {min(steps)} to {max(steps)}" if steps else "none"


def _read(file: Path) -> Any:
    if not file.exists():
        raise ValueError(f"{file.parent} holds no run: there is no {file.name}")
    return json.loads(file.read_text(encoding="utf-8"))
