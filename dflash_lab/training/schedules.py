"""Learning rate and noise, as functions of the optimizer step alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_lab.batching.config import whole_number
from dflash_lab.training.settings import SCHEDULES, NoiseSettings, OptimizerSettings, number


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """What the two schedules need to know.

    Args:
        total_steps: Optimizer steps of the run, T; >= 1.
        warmup_steps: Steps of the linear warm-up, W; in [0, T].
        learning_rate: Peak, > 0.
        schedule: "cosine" or "linear" down to 0, or "constant".
        noise_amplitude: Amplitude that the ramp ends at, >= 0.
        noise_warmup_steps: Steps of the ramp, >= 0.

    Raises:
        ValueError: If a value is out of range; a warm-up longer than the run would never reach the peak.
    """

    total_steps: int
    warmup_steps: int = 0
    learning_rate: float = 6e-4
    schedule: str = "cosine"
    noise_amplitude: float = 0.0
    noise_warmup_steps: int = 0

    def __post_init__(self) -> None:
        whole_number("total_steps", self.total_steps, least=1)
        whole_number("warmup_steps", self.warmup_steps, least=0)
        if self.warmup_steps > self.total_steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps} in a run of {self.total_steps} steps; legal: in "
                f"[0, {self.total_steps}], else the peak is never reached"
            )
        number("learning_rate", self.learning_rate, above=0)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; legal: {', '.join(SCHEDULES)}")
        number("noise_amplitude", self.noise_amplitude, least=0)
        whole_number("noise_warmup_steps", self.noise_warmup_steps, least=0)

    @classmethod
    def of(cls, optimizer: OptimizerSettings, noise: NoiseSettings, total_steps: int) -> ScheduleConfig:
        """Settle a run's schedules once its number of steps is known.

        Args:
            optimizer: Its optimizer's settings.
            noise: Its noise.
            total_steps: Its optimizer steps, >= 1.
        """
        warmup = optimizer.warmup_steps
        return cls(
            total_steps=total_steps,
            warmup_steps=round(optimizer.warmup_share * total_steps) if warmup is None else warmup,
            learning_rate=optimizer.learning_rate,
            schedule=optimizer.schedule,
            noise_amplitude=noise.amplitude,
            noise_warmup_steps=noise.warmup_steps,
        )


def learning_rate(step: int, config: ScheduleConfig) -> float:
    """Give the learning rate that a step uses.

    Warm-up is `peak * (s + 1) / W`, so that the first step is never 0; then, with `x = (s - W) / (T - W)`, cosine
    `peak * (1 + cos(pi x)) / 2` or linear `peak * (1 - x)`.

    Args:
        step: Optimizer steps before this one, s >= 0. At and past T the last step's rate holds.
        config: The schedules.

    Returns:
        In (0, peak].

    Source: DFlash, arXiv 2602.06036, appendix A.1 (cosine with 4 % linear warm-up).
    """
    step = min(whole_number("step", step, least=0), config.total_steps - 1)
    peak, warmup = config.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule == "constant":
        return peak
    done = (step - warmup) / (config.total_steps - warmup)
    return peak * (1 - done) if config.schedule == "linear" else peak * (1 + math.cos(math.pi * done)) / 2


def noise_amplitude(step: int, config: ScheduleConfig) -> float:
    """Give the amplitude of the noise on the target features at a step: `a * s / W` up to a.

    Args:
        step: Optimizer steps before this one, s >= 0.
        config: The schedules.

    Returns:
        In [0, a].
    """
    step = whole_number("step", step, least=0)
    ramp = config.noise_warmup_steps
    return config.noise_amplitude * (min(step, ramp) / ramp if ramp else 1.0)
