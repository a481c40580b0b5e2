"""One optimizer step after the other: features in, weights moved, sums and counts out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dflash_lab.drafter import Drafter
from dflash_lab.target import TargetFeatures, TargetModel
from dflash_lab.training.config import RunConfig
from dflash_lab.training.distributed import sum_gradients, sum_numbers
from dflash_lab.training.micro_batch import MicroBatch, MicroBatchSums
from dflash_lab.training.schedules import ScheduleConfig, learning_rate, noise_amplitude


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a step did; sums are over the window and all ranks.

    Args:
        sums: Sums and counts of the scored slots.
        grad_norm: Norm of the gradient before the clip; NaN or infinite where the gradient was.
        learning_rate: As applied.
        noise: Amplitude of the noise as applied.
        updated: Whether the weights moved.
        skipped: Why they did not; "" where they did.
    """

    sums: MicroBatchSums
    grad_norm: float
    learning_rate: float
    noise: float
    updated: bool
    skipped: str = ""


class DrafterTrainLoop:
    """Trains a drafter on windows of target features.

    A window's loss is the sum of its weighted losses over the sum of their weights, over all its batches and all ranks:
    gradients are added up and divided once. Schedules move by one a step, also where nothing is updated.

    Args:
        drafter: Trained in place.
        optimizer: Over its weights.
        target: Gives embedding and head; on the drafter's device.
        config: The run's settings.
        schedule: Its schedules.
        step: Optimizer steps that are done.

    Attributes:
        step: Optimizer steps that are done, skipped ones included.
        is_at_rest: Whether the weights are those of `step`, rather than between two steps.
    """

    def __init__(
        self,
        drafter: Drafter,
        optimizer: torch.optim.Optimizer,
        target: TargetModel,
        config: RunConfig,
        schedule: ScheduleConfig,
        *,
        step: int = 0,
    ) -> None:
        self.drafter, self.optimizer, self.target = drafter, optimizer, target
        self.config, self.schedule = config, schedule
        self.step = step
        # False while weights are being moved: what is half moved must not be saved.
        self.is_at_rest = True
        self.micro_batch = MicroBatch(drafter, target, config)
        self._parameters = list(drafter.parameters())

    @property
    def device(self) -> torch.device:
        """Where the drafter is."""
        return self._parameters[0].device

    @property
    def noise(self) -> float:
        """Amplitude of the noise that the next step applies."""
        return noise_amplitude(self.step, self.schedule) if self.config.noise.is_applied else 0.0

    def train_window(self, window: Iterable[TargetFeatures]) -> StepOutcome:
        """Make one optimizer step.

        Args:
            window: Features of the step's batches, on any device; taken one at a time, so that an iterator need not
                hold more than one.

        Returns:
            What it did.
        """
        self.drafter.train()
        self.optimizer.zero_grad(set_to_none=True)
        noise = self.noise
        sums = MicroBatchSums.none(self.config.drafter.block_size)
        for features in window:
            sums = sums + self.micro_batch.add_gradients(features, noise=noise)
            # Not kept until the next ones are there: they are large.
            del features
        sums = MicroBatchSums.of_numbers(sum_numbers(sums.numbers(), self.device))
        sum_gradients(self._parameters)
        rate = learning_rate(self.step, self.schedule)
        grad_norm, skipped = self._gradient_norm(sums)
        self.is_at_rest = False
        if not skipped:
            self._update(rate, grad_norm)
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.is_at_rest = True
        return StepOutcome(
            sums=sums, grad_norm=grad_norm, learning_rate=rate, noise=noise, updated=not skipped, skipped=skipped
        )

    def _gradient_norm(self, sums: MicroBatchSums) -> tuple[float, str]:
        """Divide the summed gradients once, and say why they must not be used, if so."""
        if not sums.loss_weight:
            return 0.0, "no anchors"
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_div_(gradients, sums.loss_weight)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not _is_finite(sums.loss_sum):
            return norm, "non-finite loss"
        return norm, "" if _is_finite(norm) else "non-finite gradient"

    def _update(self, rate: float, grad_norm: float) -> None:
        most = self.config.optimizer.max_grad_norm
        if most is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, most, torch.tensor(grad_norm, device=self.device))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()


def _is_finite(value: float) -> bool:
    return value - value == 0
