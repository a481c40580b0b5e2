"""A whole run: from a data set, a target and settings to a trained drafter, stopped and resumed at will."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dflash_lab.data import PreloadedDataset
from dflash_lab.target import TargetModel
from dflash_lab.training.assembly import choose_devices
from dflash_lab.training.config import RunConfig
from dflash_lab.training.heaviest import HeaviestBatch, try_heaviest
from dflash_lab.training.resume import find_resume
from dflash_lab.training.session import RunResult, Session
from dflash_lab.training.step_metrics import StepMetrics


def train_drafter(
    config: RunConfig,
    dataset: PreloadedDataset,
    target: TargetModel,
    run_dir: str | Path,
    *,
    validation: PreloadedDataset | None = None,
    device: str = "auto",
    target_devices: Sequence[str] | None = None,
    drafter_device: str | None = None,
    resume: str | Path = "auto",
    try_heaviest_first: bool = False,
    on_step: Callable[[StepMetrics], None] | None = None,
    on_status: Callable[[str], None] = print,
) -> RunResult:
    """Train a drafter for a target, from the beginning or from where an earlier session stopped.

    Batches are read ahead, run through the target by one or more loops, and trained on in plan order: what is trained
    is a function of settings, seed and data, whatever the number of workers and loops, the depth of queues, and
    resumes; on a CPU bit for bit. Ctrl-C or SIGTERM finishes the step, saves and returns; a second Ctrl-C ends at once.

    Where torch.distributed is initialised, each rank trains its share of every window, on the same weights, and rank 0
    writes.

    Args:
        config: All settings.
        dataset: The samples.
        target: The frozen target.
        run_dir: Folder of the run; made where it is not there. Holds config.json, manifest.json, metrics.jsonl,
            batches.jsonl, validation.jsonl and checkpoints/.
        validation: Held-out samples; None holds out a share of `dataset`.
        device: "auto", or where target and drafter run.
        target_devices: One target loop on each; None takes `device`.
        drafter_device: Device of the drafter; None takes `device`.
        resume: "auto" goes on where the folder holds this run; "never" refuses a folder that holds one; "must" refuses
            one that holds none. The folder of a checkpoint goes on from that: newer ones of the run, and what its log
            has behind that step, are set aside; from the checkpoint of another folder begins a run of its own.
        try_heaviest_first: Run the batches that need most memory once, without an update, before the first step, and
            tell of their memory; see `try_heaviest_batches`.
        on_step: Called with each step's metrics.
        on_status: Called with the status line every `config.log.status_every_seconds`, and with notices.

    Returns:
        The result; the drafter in it is trained up to `state.step`.

    Raises:
        ValueError: If settings, data and target do not fit one another, or the folder holds another run; the message
            names the setting that differs.
        TooManySkippedSteps: If `config.optimizer.max_skipped_in_a_row` steps in a row were not finite.
    """
    # Numbers of numpy become plain ones, as the settings on the disk are.
    config = RunConfig.from_dict(config.to_dict())
    devices = choose_devices(device, target_devices, drafter_device, num_target_loops=config.pipeline.num_target_loops)
    run = Session(config, dataset, validation, target, Path(run_dir), devices, on_step, on_status)
    resume_from = find_resume(run.run_dir, run.identity, resume=resume)
    if try_heaviest_first:
        for tried in try_heaviest(run.plans, dataset, target, run.shape, config, devices):
            on_status(str(tried))
    return run.go(resume_from)


def try_heaviest_batches(
    config: RunConfig,
    dataset: PreloadedDataset,
    target: TargetModel,
    *,
    validation: PreloadedDataset | None = None,
    device: str = "auto",
    target_devices: Sequence[str] | None = None,
    drafter_device: str | None = None,
) -> tuple[HeaviestBatch, ...]:
    """Find out whether a run's heaviest batches fit into memory, without training.

    The batches with most padded tokens and with most draft blocks, over all epochs, run through target and drafter,
    forward and backward; gradients and moments of the size that training has are held meanwhile.

    Args:
        config: As for `train_drafter`.
        dataset: As for `train_drafter`.
        target: As for `train_drafter`.
        validation: As for `train_drafter`.
        device: As for `train_drafter`.
        target_devices: As for `train_drafter`.
        drafter_device: As for `train_drafter`.

    Returns:
        Both batches with their time and memory; one if it is the same.

    Raises:
        ValueError: As `train_drafter`.
        MemoryError: If a batch does not fit, naming it, its shape and what to lower.
    """
    devices = choose_devices(device, target_devices, drafter_device, num_target_loops=config.pipeline.num_target_loops)
    # The folder is never touched: nothing runs.
    run = Session(config, dataset, validation, target, Path(), devices, None, print)
    return try_heaviest(run.plans, dataset, target, run.shape, config, devices)
