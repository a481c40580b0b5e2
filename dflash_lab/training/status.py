"""The status line of a run, in the fields of the source run's."""

from __future__ import annotations

from collections import deque

from dflash_lab.analysis import eta_seconds
from dflash_lab.training.step_metrics import StepMetrics

# Rates are those of so many seconds: shorter ones jump, longer ones hide that something has changed.
RATE_SECONDS = 60.0


class StatusLine:
    """Writes the status of a run, with rates over the last minute.

    Args:
        total_batches: Batches of the whole run.
        done_at_start: Batches that earlier sessions have trained.
    """

    def __init__(self, *, total_batches: int, done_at_start: int) -> None:
        self._total, self._done_at_start = total_batches, done_at_start
        self._done = done_at_start
        self._recent: deque[tuple[float, int, int, int]] = deque([(0.0, 0, 0, 0)])

    def add(self, metrics: StepMetrics, *, produced: int) -> None:
        """Take note of a step.

        Args:
            metrics: The step.
            produced: Batches that the targets have been through with in this session.
        """
        _, _, batches, tokens = self._recent[-1]
        self._done += len(metrics.batch_ids)
        self._recent.append(
            (
                metrics.elapsed_seconds,
                produced,
                batches + len(metrics.batch_ids),
                tokens + sum(metrics.real_tokens),
            )
        )
        while len(self._recent) > 2 and self._recent[-1][0] - self._recent[1][0] >= RATE_SECONDS:
            self._recent.popleft()

    def text(self, metrics: StepMetrics) -> str:
        """Write the line of the step that was added last.

        Args:
            metrics: The step.

        Returns:
            One line: minutes, step, loss, accuracy, streak, learning rate and noise as applied, batches a second of
            targets and drafter, real tokens a second, queue depths, epochs trained, time left.
        """
        (begin, targets_then, batches_then, tokens_then), (end, targets, batches, tokens) = (
            self._recent[0],
            self._recent[-1],
        )
        seconds = max(end - begin, 1e-9)
        eta = eta_seconds(
            self._done, self._total, done_at_start=self._done_at_start, elapsed_seconds=metrics.elapsed_seconds
        )
        return (
            f"[{metrics.elapsed_seconds / 60:.0f}m] step={metrics.step} loss={_shown(metrics.loss, '.4f')} "
            f"acc={_shown(metrics.accuracy, '.3f')} streak={_shown(metrics.streak, '.2f')} "
            f"lr={metrics.learning_rate:.2e} noise={metrics.noise:.4f} | "
            f"tgt={(targets - targets_then) / seconds:.2f}b/s "
            f"dft={(batches - batches_then) / seconds:.2f}b/s ({(tokens - tokens_then) / seconds / 1e3:.1f}Ktok/s) | "
            f"q_pre={metrics.q_pre} q_hs={metrics.q_hs} | epoch~{metrics.progress:.2f} ETA={duration(eta)}"
        )


def duration(seconds: float | None) -> str:
    """Write a time for a reader: 12s, 3.4m, 1.9h, 4.6d; ? where it is not known."""
    if seconds is None:
        return "?"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


def _shown(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
