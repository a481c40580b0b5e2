"""Where a run stands: counted in batches that were trained, over epochs whose plans differ in size."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_lab.batching.config import whole_number


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place between two batches.

    Args:
        epoch: Epoch of the next batch; the number of epochs at the end of the run.
        batch: Batches of that epoch that are trained, less than it has: position n of n is position 0 of the next.
    """

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Course:
    """The batches of every epoch, and the optimizer steps that they make.

    Windows do not cross epochs: an epoch's last window may be smaller than the others.

    Args:
        batches_per_epoch: Whole numbers >= 1, one an epoch.
        accumulation: Batches of a window, >= 1.
        max_steps: Steps after which the course ends, >= 1; None for none.

    Raises:
        ValueError: If a value is out of range.
    """

    batches_per_epoch: tuple[int, ...]
    accumulation: int
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if not self.batches_per_epoch:
            raise ValueError("batches_per_epoch is empty; legal: at least one epoch")
        for epoch, count in enumerate(self.batches_per_epoch):
            whole_number(f"batches_per_epoch[{epoch}]", count, least=1)
        whole_number("accumulation", self.accumulation, least=1)
        if self.max_steps is not None:
            whole_number("max_steps", self.max_steps, least=1)

    @property
    def steps_per_epoch(self) -> tuple[int, ...]:
        """Optimizer steps of each epoch, its tail window included."""
        return tuple(-(-count // self.accumulation) for count in self.batches_per_epoch)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        steps = sum(self.steps_per_epoch)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    @property
    def total_batches(self) -> int:
        """Batches that are trained until the last step."""
        return self.batches_before(self.position_of_step(self.total_steps))

    def position(self, num_trained: int) -> Position:
        """Find where so many trained batches lead to.

        Args:
            num_trained: In [0, batches of all epochs].
        """
        left = whole_number("num_trained", num_trained, least=0, most=sum(self.batches_per_epoch))
        for epoch, count in enumerate(self.batches_per_epoch):
            if left < count:
                return Position(epoch=epoch, batch=left)
            left -= count
        return Position(epoch=len(self.batches_per_epoch), batch=0)

    def batches_before(self, position: Position) -> int:
        """Count the batches trained up to a position."""
        return sum(self.batches_per_epoch[: position.epoch]) + position.batch

    def position_of_step(self, step: int) -> Position:
        """Find where a step begins.

        Args:
            step: Steps that are done, in [0, steps of all epochs].
        """
        left = whole_number("step", step, least=0, most=sum(self.steps_per_epoch))
        for epoch, steps in enumerate(self.steps_per_epoch):
            if left < steps:
                return Position(epoch=epoch, batch=left * self.accumulation)
            left -= steps
        return Position(epoch=len(self.batches_per_epoch), batch=0)

    def progress(self, position: Position) -> float:
        """Give the epochs trained, as a fraction of the epoch's own plan: 150 of 97 + 101 batches are 1.5248."""
        if position.epoch >= len(self.batches_per_epoch):
            return float(len(self.batches_per_epoch))
        return position.epoch + position.batch / self.batches_per_epoch[position.epoch]

    def window(self, position: Position) -> int:
        """Batches of the window that begins at a position."""
        return min(self.accumulation, self.batches_per_epoch[position.epoch] - position.batch)
