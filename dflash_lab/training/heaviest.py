"""Whether the heaviest batches of a run fit into memory, found out before its first step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from dflash_lab.batching import BatchPlan
from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import AnchorBudget, Drafter, DrafterConfig
from dflash_lab.feed import Batch, BatchPrefetcher
from dflash_lab.target import TargetModel
from dflash_lab.training.assembly import Devices
from dflash_lab.training.config import RunConfig
from dflash_lab.training.micro_batch import MicroBatch


@dataclass(frozen=True, kw_only=True)
class HeaviestBatch:
    """A batch that was run forward and backward, without an update.

    Args:
        why: "most padded tokens" (the target's and the features' memory) or "most draft blocks" (the drafter's).
        epoch: Its epoch.
        batch_id: Its number in the epoch's plan.
        num_samples: Samples.
        padded_tokens: Tokens with padding.
        num_blocks: Draft blocks.
        seconds: Target and drafter together.
        peak_bytes: Device -> most memory in use at one time, gradients and optimizer included; "cpu": of the whole
            process since it began.
    """

    why: str
    epoch: int
    batch_id: int
    num_samples: int
    padded_tokens: int
    num_blocks: int
    seconds: float
    peak_bytes: dict[str, int]

    def __str__(self) -> str:
        """One line for a reader."""
        memory = ", ".join(f"{size / 2**30:.2f} GiB on {device}" for device, size in self.peak_bytes.items())
        return (
            f"{self.why}: batch {self.batch_id} of epoch {self.epoch} ({self.num_samples} samples, "
            f"{self.padded_tokens:,} padded tokens, {self.num_blocks:,} blocks) took {self.seconds:.1f} s and at most "
            f"{memory}"
        )


def try_heaviest(
    plans: Sequence[BatchPlan],
    dataset: PreloadedDataset,
    target: TargetModel,
    shape: DrafterConfig,
    config: RunConfig,
    devices: Devices,
) -> tuple[HeaviestBatch, ...]:
    """Run the batches with most padded tokens and with most draft blocks through target and drafter.

    Gradients and moments of the size that training has are held meanwhile, and as many batches of features as the
    queues behind the target loops hold. Nothing of it stays.

    Args:
        plans: Of all epochs.
        dataset: The samples.
        target: The target.
        shape: Of the drafter.
        config: The run's settings.
        devices: Where the run computes.

    Returns:
        Both batches; one if it is the same.

    Raises:
        MemoryError: If a batch does not fit, naming it, its shape and what to lower.
    """
    drafter = Drafter(shape, seed=config.seed).to(devices.drafter)
    for parameter in drafter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    moments = [torch.zeros_like(parameter) for parameter in drafter.parameters() for _ in range(2)]
    features_of, head = target.to(devices.targets[0]), target.to(devices.drafter)
    micro_batch = MicroBatch(drafter, head, config)
    chosen: dict[tuple[int, int], str] = {}
    for why, costs in (
        ("most padded tokens", [plan.padded_tokens_by_batch for plan in plans]),
        ("most draft blocks", [_blocks_by_batch(plan, dataset, config) for plan in plans]),
    ):
        epoch = max(range(len(plans)), key=lambda epoch: costs[epoch].max())
        place = epoch, int(costs[epoch].argmax())
        chosen.setdefault(place, why)
    tried = []
    for (epoch, batch_id), why in chosen.items():
        own = {str(device): device for device in (devices.drafter, devices.targets[0])}
        for device in own.values():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
        with BatchPrefetcher(dataset, plans[epoch], num_workers=1, depth=1, start=batch_id) as batches:
            batch = next(iter(batches))
        begin = time.perf_counter()
        with _named_if_too_large(batch, why, config):
            features = features_of.features(batch, with_logits=config.loss.kind == "kl")
            # Full queues of the heaviest batch: training cannot hold more.
            waiting = [features.hidden.clone() for _ in devices.targets for _ in range(config.pipeline.feature_depth)]
            sums = micro_batch.add_gradients(features, noise=config.noise.amplitude)
        tried.append(
            HeaviestBatch(
                why=why,
                epoch=epoch,
                batch_id=batch_id,
                num_samples=batch.num_samples,
                padded_tokens=batch.padded_tokens,
                num_blocks=sums.scores.num_blocks,
                seconds=time.perf_counter() - begin,
                peak_bytes={name: _peak_bytes(device) for name, device in own.items()},
            )
        )
        del features, waiting
    del moments
    return tuple(tried)


@contextmanager
def _named_if_too_large(batch: Batch, why: str, config: RunConfig) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU torch raises a bare RuntimeError; only its words tell.
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        rows, width = batch.input_ids.shape
        raise MemoryError(
            f"batch {batch.batch_id} of epoch {batch.epoch} ({why}) does not fit into memory: {batch.num_samples} "
            f"samples in {rows} rows of {width} tokens; lower batching.token_budget ({config.batching.token_budget}), "
            f"batching.max_seq_len ({config.batching.max_seq_len}) or anchors.amount ({config.anchors.amount} per "
            f"{config.anchors.per}): {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error


def _blocks_by_batch(plan: BatchPlan, dataset: PreloadedDataset, config: RunConfig) -> np.ndarray:
    """Count the blocks of each batch from the samples' supervised tokens: int64 (num_batches,)."""
    budget = AnchorBudget(per=config.anchors.per, amount=config.anchors.amount)
    # A position needs a supervised one behind it: a single stretch of n supervised tokens has n - 1.
    valid = np.maximum(dataset.loss_tokens[plan.sample_ids].astype(np.int64) - 1, 0)
    if config.anchors.per == "batch":
        return np.minimum(np.add.reduceat(valid, plan.offsets[:-1]), int(config.anchors.amount))
    return np.add.reduceat(budget.counts(valid), plan.offsets[:-1])


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        # Windows has no such count.
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
