"""Gradients looked at while a run goes on: of each micro-batch, of each step, and of each length bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_lab.drafter import AnchorBudget
from dflash_lab.target import TargetFeatures, TargetModel
from dflash_lab.training.config import RunConfig
from dflash_lab.training.micro_batch import Drafted, MicroBatch, MicroBatchSums, sums_of


@dataclass(frozen=True, kw_only=True)
class MicroBatchRecord:
    """What one micro-batch did; a list over buckets has an entry a bucket, shortest first.

    Args:
        loss_sum: Sum of weight * loss.
        loss_weight: Sum of the weights.
        num_blocks: Draft blocks.
        num_samples: Samples.
        real_tokens: Tokens without padding.
        padded_tokens: Tokens with padding.
        bucket_loss_sums: `loss_sum` of the samples of each bucket.
        bucket_loss_weights: `loss_weight` of those.
        bucket_num_blocks: Their blocks.
        grad_norm: Norm of the gradient of its mean loss, loss_sum / loss_weight; 0 where nothing is weighed.
    """

    loss_sum: float
    loss_weight: float
    num_blocks: int
    num_samples: int
    real_tokens: int
    padded_tokens: int
    bucket_loss_sums: tuple[float, ...]
    bucket_loss_weights: tuple[float, ...]
    bucket_num_blocks: tuple[int, ...]
    grad_norm: float


class ProbedMicroBatch(MicroBatch):
    """A micro-batch as a run has it, that also keeps what it did.

    Under "micro_batch" it hands its loop a mean and the weight 1, so that the loop's one division by the weights makes
    the mean of means.

    Args:
        drafter: The drafter.
        target: Gives embedding and head.
        config: The run's settings.
        bounds: Bucket bounds in tokens.
        normalisation: "window" or "micro_batch".

    Attributes:
        records: Of the micro-batches since they were last taken.
    """

    def __init__(
        self,
        drafter: torch.nn.Module,
        target: TargetModel,
        config: RunConfig,
        *,
        bounds: Sequence[int],
        normalisation: str,
    ) -> None:
        super().__init__(drafter, target, config)  # type: ignore[arg-type]
        self._bounds, self._normalisation = tuple(bounds), normalisation
        self._parameters = list(drafter.parameters())
        self.records: list[MicroBatchRecord] = []

    def add_gradients(self, features: TargetFeatures, *, noise: float) -> MicroBatchSums:
        """Add the micro-batch's gradient to the drafter's, and keep what it did.

        Args:
            features: Of one batch.
            noise: Amplitude of the noise on them.

        Returns:
            The sums that the loop divides by.
        """
        drafted = self.draft(features, noise=noise)
        sums = sums_of(drafted.loss)
        is_mean = self._normalisation == "micro_batch" and sums.loss_weight > 0
        loss = drafted.loss.loss_sum / sums.loss_weight if is_mean else drafted.loss.loss_sum
        held = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()
        norm = gradient_norm(self._parameters)
        for parameter, before in zip(self._parameters, held, strict=True):
            if before is not None:
                # In this order, as backward itself would have added it.
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
        divisor = 1.0 if is_mean else sums.loss_weight
        self.records.append(_record(features, drafted, sums, self._bounds, norm / divisor if divisor else 0.0))
        if self._normalisation == "window":
            return sums
        shares = (sums.loss_sum / sums.loss_weight, 1.0) if is_mean else (0.0, 0.0)
        return MicroBatchSums(loss_sum=shares[0], loss_weight=shares[1], scores=sums.scores)

    def take_records(self) -> list[MicroBatchRecord]:
        """Give the records and begin anew."""
        records, self.records = self.records, []
        return records


def _record(
    features: TargetFeatures, drafted: Drafted, sums: MicroBatchSums, bounds: tuple[int, ...], grad_norm: float
) -> MicroBatchRecord:
    batch = features.batch
    num_buckets = len(bounds) - 1
    of_block = bucket_of(batch.lengths.numpy(), bounds)[drafted.blocks.documents.cpu().numpy()]  # (N,)
    weights = drafted.loss.weights.detach().cpu().double()
    losses = (drafted.loss.losses.cpu().double() * weights).sum(1).numpy()  # (N,)
    by_block = {"losses": losses, "weights": weights.sum(1).numpy()}
    summed = {
        name: np.bincount(of_block, weights=values, minlength=num_buckets) for name, values in by_block.items()
    }  # (buckets,)
    return MicroBatchRecord(
        loss_sum=sums.loss_sum,
        loss_weight=sums.loss_weight,
        num_blocks=len(drafted.blocks),
        num_samples=batch.num_samples,
        real_tokens=batch.real_tokens,
        padded_tokens=batch.padded_tokens,
        bucket_loss_sums=tuple(summed["losses"].tolist()),
        bucket_loss_weights=tuple(summed["weights"].tolist()),
        bucket_num_blocks=tuple(np.bincount(of_block, minlength=num_buckets).tolist()),
        grad_norm=grad_norm,
    )


def bucket_of(lengths: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
    """Give the bucket of each sample: int64 (n,); lengths past the last bound are in the last one.

    Args:
        lengths: Whole numbers (n,), in tokens, after the cut.
        bounds: Increasing, from 0.
    """
    return np.minimum(np.searchsorted(np.asarray(bounds), lengths, side="right") - 1, len(bounds) - 2)


def flat_gradient(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay all gradients end to end: float32 (weights,), a copy; 0 where a parameter has none."""
    return torch.cat(
        [torch.zeros_like(each).flatten() if each.grad is None else each.grad.flatten() for each in parameters]
    )


def gradient_norm(parameters: Sequence[torch.Tensor]) -> float:
    """Give the Euclidean norm of all gradients, added up in float64."""
    return math.sqrt(sum(float(each.grad.double().square().sum()) for each in parameters if each.grad is not None))


def cosine(first: torch.Tensor, second: torch.Tensor) -> float | None:
    """Give the cosine between two vectors, in float64; None where one is 0.

    Args:
        first: (n,).
        second: (n,).
    """
    one, other = first.double(), second.double()
    norms = float(one.norm()) * float(other.norm())
    return float(one @ other) / norms if norms else None


class StepGradients:
    """Watches an optimizer: the cosine between the gradients of one step and the step before.

    The gradients are taken when the optimizer begins its step, clipped or not; a clip changes no cosine.

    Args:
        optimizer: Steps that it makes are watched until `close`.
        parameters: The drafter's.

    Attributes:
        cosine: Of the last step with the one before; None for the first, and where a gradient is 0.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = list(parameters)
        self._last: torch.Tensor | None = None
        self.cosine: float | None = None
        self._hook = optimizer.register_step_pre_hook(self._look)

    def _look(self, *_: object) -> None:
        now = flat_gradient(self._parameters)
        self.cosine = None if self._last is None else cosine(self._last, now)
        self._last = now

    def close(self) -> None:
        """Stop watching."""
        self._hook.remove()


@dataclass(frozen=True, kw_only=True)
class BucketGradients:
    """Mean gradients of length buckets at one state of the weights, each from two halves of its samples.

    Two halves, since a mean over few blocks is mostly noise: the product of one half with the other has none on
    average, and the product of a half with itself has all of it.

    Args:
        num_blocks: Blocks behind each half: two entries a bucket.
        products: Dot products of all halves' gradients of the mean loss, (2 * buckets) squared, halves of a bucket side
            by side; 0 for a bucket without blocks.
    """

    num_blocks: tuple[tuple[int, int], ...]
    products: tuple[tuple[float, ...], ...]


def bucket_gradients(
    micro_batch: MicroBatch,
    halves: Sequence[tuple[TargetFeatures | None, TargetFeatures | None]],
    *,
    budget: AnchorBudget,
) -> BucketGradients:
    """Measure the mean gradient of each bucket, without moving a weight.

    Args:
        micro_batch: The drafter's.
        halves: Two batches a bucket, of samples of that bucket alone; None where it has no sample.
        budget: Anchors of those.

    Returns:
        The products of the gradients; whatever gradients the drafter had are cleared.
    """
    parameters = list(micro_batch.drafter.parameters())
    gradients, counts = [], []
    for features in (half for pair in halves for half in pair):
        micro_batch.drafter.zero_grad(set_to_none=True)
        weight = 0.0
        if features is not None:
            drafted = micro_batch.draft(features, budget=budget, epoch=0)
            weight = float(drafted.loss.weight_sum)
            drafted.loss.loss_sum.backward()
        counts.append(len(drafted.blocks) if features is not None else 0)
        gradients.append(
            flat_gradient(parameters) / weight if weight else torch.zeros(sum(map(torch.numel, parameters)))
        )
    micro_batch.drafter.zero_grad(set_to_none=True)
    stacked = torch.stack(gradients).double()
    return BucketGradients(
        num_blocks=tuple(zip(counts[::2], counts[1::2], strict=True)),
        products=tuple(tuple(row) for row in (stacked @ stacked.T).tolist()),
    )
