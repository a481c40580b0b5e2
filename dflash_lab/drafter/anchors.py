"""Which tokens open a draft block: drawn for each sample by itself, whatever batch it sits in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

from dflash_lab.drafter.blocks import Documents, DraftBlocks
from dflash_lab.drafter.config import positive_number, whole_number

BUDGETS = ("sample", "supervised_token", "batch")
# Keeps these draws apart from others that are keyed by seed, epoch and sample.
_KEY = 0xA7C1


@dataclass(frozen=True, kw_only=True)
class AnchorBudget:
    """How many anchors are drawn; a sample never has more than it has valid positions.

    Args:
        per: "sample", "supervised_token" or "batch".
        amount: Anchors of each sample; or for each of its valid positions, in (0, 1], rounded up; or of each batch,
            shared by the samples in proportion to their valid positions.

    Raises:
        ValueError: If a value is out of range.
    """

    per: str = "sample"
    amount: float = 512

    def __post_init__(self) -> None:
        if self.per not in BUDGETS:
            raise ValueError(f"per is {self.per!r}; legal: {', '.join(BUDGETS)}")
        if self.per == "supervised_token":
            positive_number("amount", self.amount)
            if self.amount > 1:
                raise ValueError(f"amount is {self.amount!r}; legal for supervised_token: a number in (0, 1]")
        else:
            whole_number("amount", self.amount, least=1)  # type: ignore[arg-type]

    def counts(self, num_valid: np.ndarray) -> np.ndarray:
        """Give the anchors of each sample of a batch.

        Args:
            num_valid: int64 (D,), valid positions of each sample.

        Returns:
            int64 (D,), at most `num_valid`. A batch's budget is used up wherever there are positions enough: shares are
            rounded down, and what is left goes to the largest remainders, the first ones among equals.
        """
        num_valid = np.asarray(num_valid, dtype=np.int64)
        if self.per == "sample":
            return np.minimum(num_valid, int(self.amount))
        if self.per == "supervised_token":
            # As the number is written: in floating point 0.07 of 100 positions is above 7 and would be rounded up to 8.
            share = Fraction(str(self.amount))
            return np.array([math.ceil(share * own) for own in num_valid.tolist()], dtype=np.int64)
        total = int(num_valid.sum())
        if total <= self.amount:
            return num_valid
        amount = int(self.amount)
        counts = num_valid * amount // total
        remainders = num_valid * amount % total
        counts[np.argsort(-remainders, kind="stable")[: amount - int(counts.sum())]] += 1
        return counts


def valid_anchors(loss_mask: np.ndarray) -> np.ndarray:
    """Find the positions that may open a block: supervised, with a supervised one right behind.

    Args:
        loss_mask: bool (L,), of the sample's true length.

    Returns:
        int64 positions, ascending.
    """
    return np.flatnonzero(loss_mask[:-1] & loss_mask[1:])


def sample_anchors(loss_mask: object, num_anchors: int, *, seed: int, epoch: int, sample_id: int) -> np.ndarray:
    """Draw a sample's anchors, uniformly and without replacement.

    The key (seed, epoch, sample_id) fixes the order; fewer anchors are a prefix of more.

    Args:
        loss_mask: bool (L,), of the sample's true length, without padding.
        num_anchors: How many, >= 0; with fewer valid positions all are used once.
        seed: Of the run, >= 0.
        epoch: >= 0.
        sample_id: The sample's number, >= 0.

    Returns:
        int64 positions in drawing order.

    Raises:
        ValueError: If an argument is out of range.

    Source: DFlash, arXiv 2602.06036, section 4.
    """
    for name, value, least in (("num_anchors", num_anchors, 0), ("seed", seed, 0), ("epoch", epoch, 0)):
        whole_number(name, value, least=least)
    mask = np.asarray(loss_mask, dtype=bool)
    if mask.ndim != 1:
        raise ValueError(f"loss_mask has the shape {mask.shape}; legal: (L,)")
    valid = valid_anchors(mask)
    # Words of the bit generator itself, sorted: the same under any version of numpy.
    words = np.random.PCG64((_KEY, seed, epoch, sample_id)).random_raw(len(valid))
    return valid[np.argsort(words, kind="stable")[:num_anchors]]


def draw_blocks(
    input_ids: torch.Tensor,
    loss_mask: torch.Tensor,
    documents: Documents,
    sample_ids: torch.Tensor,
    *,
    budget: AnchorBudget,
    block_size: int,
    mask_token_id: int,
    seed: int,
    epoch: int,
) -> DraftBlocks:
    """Draw the blocks of a batch.

    Args:
        input_ids: int64 (R, T).
        loss_mask: bool (R, T).
        documents: Where the samples lie.
        sample_ids: int64 (D,), numbers of the samples.
        budget: How many anchors.
        block_size: Positions of a block, the anchor included; >= 2.
        mask_token_id: Stands at the positions to predict.
        seed: Of the run.
        epoch: Number of the epoch.

    Returns:
        The blocks, sample after sample, anchors ascending, on the device of `input_ids`.
    """
    whole_number("block_size", block_size, least=2)
    ids, mask = input_ids.cpu().numpy(), loss_mask.cpu().numpy()
    places = zip(documents.rows.tolist(), documents.starts.tolist(), documents.lengths.tolist(), strict=True)
    spans = [(row, slice(start, start + length)) for row, start, length in places]
    masks = [mask[row, span] for row, span in spans]
    counts = budget.counts(np.array([len(valid_anchors(own)) for own in masks], dtype=np.int64))
    drawn = [
        np.sort(sample_anchors(own, int(count), seed=seed, epoch=epoch, sample_id=sample_id))
        for own, count, sample_id in zip(masks, counts, sample_ids.tolist(), strict=True)
    ]
    num_anchors = [len(own) for own in drawn]
    of_block = np.repeat(np.arange(len(spans)), num_anchors)  # (N,)
    anchors = np.concatenate([np.arange(0), *drawn])  # (N,)
    rows = np.array([row for row, _ in spans], dtype=np.int64)[of_block]
    starts = np.array([span.start for _, span in spans], dtype=np.int64)[of_block]
    lengths = documents.lengths.cpu().numpy()[of_block]
    slots = anchors[:, None] + np.arange(block_size)  # (N, B)
    inside = slots < lengths[:, None]
    columns = starts[:, None] + np.where(inside, slots, 0)
    scored = inside & mask[rows[:, None], columns]
    scored[:, 0] = False
    labels = np.where(scored, ids[rows[:, None], columns], 0)
    block_ids = np.full((len(anchors), block_size), mask_token_id, dtype=np.int64)
    block_ids[:, 0] = ids[rows, starts + anchors]
    blocks = DraftBlocks(
        documents=torch.from_numpy(of_block),
        anchors=torch.from_numpy(anchors),
        input_ids=torch.from_numpy(block_ids),
        labels=torch.from_numpy(labels),
        scored=torch.from_numpy(scored),
    )
    return blocks.to(input_ids.device)


def noisy_features(
    features: torch.Tensor,
    documents: Documents,
    sample_ids: torch.Tensor,
    *,
    amplitude: float,
    seed: int,
    epoch: int,
) -> torch.Tensor:
    """Add uniform noise to target features, for training; each sample's noise is drawn by itself.

    Args:
        features: (R, T, F).
        documents: Where the samples lie.
        sample_ids: int64 (D,), numbers of the samples.
        amplitude: Noise is in [-amplitude, amplitude]; >= 0, and 0 gives the features back as they are.
        seed: Of the run.
        epoch: Number of the epoch.

    Returns:
        (R, T, F), a new tensor; padding keeps what it had.

    Raises:
        ValueError: If the amplitude is not legal.

    Source: EAGLE's trainers; the DFlash paper has none.
    """
    if not 0 <= amplitude < math.inf:
        raise ValueError(f"amplitude is {amplitude!r}; legal: a finite number >= 0")
    if amplitude == 0:
        return features
    noisy = features.clone()
    places = zip(
        documents.rows.tolist(), documents.starts.tolist(), documents.lengths.tolist(), sample_ids.tolist(), strict=True
    )
    for row, start, length, sample_id in places:
        # SeedSequence mixes the key; torch's generator draws on the CPU, the same for any device.
        state = np.random.SeedSequence((_KEY, 1, seed, epoch, sample_id)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        noise = torch.rand(length, features.shape[-1], generator=generator).mul_(2).sub_(1).mul_(amplitude)
        noisy[row, start : start + length] += noise.to(features.device, features.dtype)
    return noisy
