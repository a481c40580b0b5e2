"""What a run is put together from: devices, the drafter's shape, held-out samples and the plans of all epochs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_lab.batching import BatchingConfig, BatchPlan, plan_epoch
from dflash_lab.data import PreloadedDataset
from dflash_lab.drafter import Drafter, DrafterConfig, check_mask_token_id
from dflash_lab.target import TargetModel
from dflash_lab.training.config import RunConfig
from dflash_lab.training.settings import DrafterSettings

# Which samples are held out does not change with anchors or weights of the same seed.
_HELD_OUT_KEY = 0x4E1D


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Where a run computes.

    Args:
        drafter: Device of the drafter.
        targets: Device of each target loop.
    """

    drafter: torch.device
    targets: tuple[torch.device, ...]


def choose_devices(
    device: str, target_devices: Sequence[str] | None, drafter_device: str | None, *, num_target_loops: int
) -> Devices:
    """Settle the devices of a run.

    Args:
        device: "auto" takes the accelerator where there is one, else the CPU; or a name that torch knows.
        target_devices: One target loop on each; None runs `num_target_loops` on `device`.
        drafter_device: Device of the drafter; None takes `device`.
        num_target_loops: Loops where no target devices are given.

    Raises:
        ValueError: If a device is not one of this machine.
    """
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = "cpu" if accelerator is None else accelerator.type
    targets = [device] * num_target_loops if target_devices is None else list(target_devices)
    if not targets:
        raise ValueError("target_devices is empty; legal: None, or at least one device")
    return Devices(drafter=_device(drafter_device or device), targets=tuple(map(_device, targets)))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def drafter_config(settings: DrafterSettings, target: TargetModel) -> DrafterConfig:
    """Give the drafter the shape that its settings and its target ask for.

    Raises:
        ValueError: If no mask token is named, it is one of the target's control tokens, or the shape is not legal.
    """
    width = target.hidden_size
    if settings.mask_token_id is None:
        raise ValueError(
            f"drafter.mask_token_id is not set; legal: an unused id in [0, {target.vocab_size}), "
            f"never that of padding, end or unknown"
        )
    check_mask_token_id(settings.mask_token_id, vocab_size=target.vocab_size, taken_ids=target.control_ids)
    head_dim = settings.head_dim or (128 if width >= 1024 else 32)
    heads = settings.num_attention_heads or max(1, width // head_dim)
    return DrafterConfig(
        block_size=settings.block_size,
        num_hidden_layers=settings.num_hidden_layers,
        hidden_size=width,
        intermediate_size=settings.intermediate_size or 3 * width,
        num_attention_heads=heads,
        num_key_value_heads=settings.num_key_value_heads or heads,
        head_dim=head_dim,
        rms_norm_eps=settings.rms_norm_eps,
        rope_theta=float(target.rope_theta),
        vocab_size=target.vocab_size,
        mask_token_id=settings.mask_token_id,
        target_layer_ids=tuple(target.target_layer_ids),
        num_target_layers=target.num_layers,
    )


def check_ids(dataset: PreloadedDataset, target: TargetModel) -> None:
    """Refuse samples whose ids the target does not know.

    Raises:
        ValueError: Naming the largest id.
    """
    if dataset.max_id >= target.vocab_size:
        raise ValueError(
            f"the samples of {dataset.report.name} have the id {dataset.max_id}, and the target {target.name} knows "
            f"ids in [0, {target.vocab_size}): they were made with another tokenizer"
        )


def check_positions(plans: Sequence[BatchPlan], target: TargetModel) -> None:
    """Refuse samples that are longer than the target has positions, before any step is trained.

    Raises:
        ValueError: Naming the longest sample.
    """
    if target.max_positions is None:
        return
    for plan in plans:
        place = int(plan.sample_lengths.argmax())
        if plan.sample_lengths[place] > target.max_positions:
            raise ValueError(
                f"sample {plan.sample_ids[place]} has {plan.sample_lengths[place]} tokens, and {target.name} has "
                f"{target.max_positions} positions; legal: batching.max_seq_len of at most {target.max_positions}"
            )


def check_has_blocks(dataset: PreloadedDataset, train_ids: np.ndarray) -> tuple[str, ...]:
    """Refuse samples of which none can open a draft block, and count those that cannot.

    A block needs a supervised token behind another one.

    Returns:
        Notices.

    Raises:
        ValueError: If no sample has two supervised tokens.
    """
    without = int((dataset.loss_tokens[train_ids] < 2).sum())
    if without == len(train_ids):
        raise ValueError(
            f"none of the {len(train_ids):,} samples of {dataset.report.name} has two supervised tokens, which a draft "
            f"block needs; legal: some do"
        )
    if not without:
        return ()
    return (f"{without:,} of {len(train_ids):,} samples have fewer than two supervised tokens: no block opens in them",)


def make_optimizer(drafter: Drafter, config: RunConfig) -> torch.optim.AdamW:
    """Give AdamW over the drafter's weights; matrices decay, norms never do."""
    matrices = [parameter for parameter in drafter.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in drafter.parameters() if parameter.ndim <= 1]
    settings = config.optimizer
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": norms, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Which samples are trained on, and which only scored.

    Args:
        train_ids: int64, ascending.
        held_out_ids: int64, ascending, of `held_out`.
        held_out: The data set that they are of; None where nothing is held out.
    """

    train_ids: np.ndarray
    held_out_ids: np.ndarray
    held_out: PreloadedDataset | None


def split_samples(dataset: PreloadedDataset, validation: PreloadedDataset | None, config: RunConfig) -> Split:
    """Choose the held-out samples: some of the validation set, or a share of the data set, by the run's seed.

    Raises:
        ValueError: If nothing would be left to train on.
    """
    settings = config.validation
    rng = np.random.default_rng((config.seed, _HELD_OUT_KEY))
    # The raw words of the bit generator, sorted, are the same permutation under any numpy.
    every = dataset if validation is None else validation
    shuffled = np.argsort(rng.bit_generator.random_raw(len(every)), kind="stable")
    if validation is not None:
        chosen = np.sort(shuffled[: settings.max_samples])
        return Split(train_ids=np.arange(len(dataset)), held_out_ids=chosen, held_out=validation)
    num_held_out = round(settings.share * len(dataset))
    if settings.share > 0:
        num_held_out = max(1, num_held_out)
    if num_held_out >= len(dataset):
        raise ValueError(
            f"validation.share {settings.share} holds out {num_held_out} of {len(dataset)} samples; legal: a share "
            f"that leaves samples to train on"
        )
    held_out, train = shuffled[:num_held_out], shuffled[num_held_out:]
    return Split(
        train_ids=np.sort(train),
        held_out_ids=np.sort(held_out[: settings.max_samples]),
        held_out=dataset if num_held_out else None,
    )


def plan_samples(dataset: PreloadedDataset, sample_ids: np.ndarray, config: BatchingConfig, *, epoch: int) -> BatchPlan:
    """Plan an epoch over some samples of a data set, which keep their numbers.

    Args:
        dataset: The samples.
        sample_ids: int64, ascending, those to plan.
        config: The batching.
        epoch: Number of the epoch.

    Returns:
        The plan; the others are in its `left_out`, as "held_out".

    Raises:
        ValueError: As `PreloadedDataset.build_batches`.
    """
    if len(sample_ids) == len(dataset):
        return dataset.build_batches(config, epoch=epoch)
    bare = np.intersect1d(dataset.bare_after_cut(config.max_seq_len), sample_ids)
    if bare.size:
        raise ValueError(
            f"sample {bare[0]} has no loss token left after the cut to the config's max_seq_len {config.max_seq_len} "
            f"({bare.size} such samples); open the data set with max_seq_len={config.max_seq_len}, which leaves them "
            f"out"
        )
    plan = plan_epoch(dataset.lengths[sample_ids], config, epoch=epoch)
    left_out: Mapping[str, np.ndarray] = {reason: sample_ids[ids] for reason, ids in plan.left_out.items()}
    held_out = np.setdiff1d(np.arange(len(dataset)), sample_ids, assume_unique=True)
    return dataclasses.replace(
        plan, sample_ids=sample_ids[plan.sample_ids], left_out={**left_out, "held_out": held_out}
    )
