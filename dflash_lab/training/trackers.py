"""Run logs where people already look: TensorBoard and Weights & Biases, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from dflash_lab.training.config import RunConfig
from dflash_lab.training.step_metrics import StepMetrics


class Tracker(Protocol):
    """Takes what the run's own log takes, too."""

    def add_step(self, metrics: StepMetrics) -> None:
        """Show a step."""
        ...

    def add_scores(self, scores: Mapping[str, object]) -> None:
        """Show scores of held-out samples."""
        ...


@contextmanager
def open_tracker(name: str | None, run_dir: Path, config: RunConfig, *, after_step: int = 0) -> Iterator[Tracker]:
    """Open a tracker for a run, and close it at the end.

    Args:
        name: "tensorboard", "wandb" or None; what they write lies in the run's folder. wandb works offline with
            WANDB_MODE=offline.
        run_dir: The run's folder.
        config: The run's settings, shown beside it.
        after_step: Steps that stand; TensorBoard shows nothing of later ones that an earlier session wrote.

    Raises:
        ValueError: If the tracker's package is not installed.
    """
    if name is None:
        yield _NoTracker()
    elif name == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing(name, error) from None
        run_dir.mkdir(parents=True, exist_ok=True)
        with SummaryWriter(str(run_dir / "tensorboard"), purge_step=after_step + 1 if after_step else None) as writer:
            writer.add_text("config", f"```\n{config.to_dict()}\n```")
            yield _TensorBoard(writer)
    else:
        try:
            import wandb
        except ImportError as error:
            raise _missing(name, error) from None
        # wandb writes elsewhere where the folder is not there.
        run_dir.mkdir(parents=True, exist_ok=True)
        with wandb.init(project="dflash_lab", name=run_dir.name, dir=str(run_dir), config=config.to_dict()) as session:
            yield _Wandb(session)


def scalars(metrics: StepMetrics) -> dict[str, float]:
    """Give a step's curves by name, without those that have no value at this step."""
    tau = None if metrics.streak is None else metrics.streak + 1
    trees = {
        f"tree_tau/{budget}": 1 + accepted / metrics.num_tree_blocks
        for budget, accepted in zip(metrics.tree_budgets, metrics.tree_accepted_sum, strict=True)
        if metrics.num_tree_blocks
    }
    values = {
        "loss": metrics.loss,
        "accuracy": metrics.accuracy,
        "streak": metrics.streak,
        "tau": tau,
        "grad_norm": metrics.grad_norm,
        "learning_rate": metrics.learning_rate,
        "noise": metrics.noise,
        "epoch": metrics.progress,
        "real_tokens_per_second": sum(metrics.real_tokens) / max(metrics.step_seconds, 1e-9),
        "wait_seconds": metrics.wait_seconds,
        "q_pre/min": min(metrics.q_pre),
        "q_pre/max": max(metrics.q_pre),
        "q_hs": sum(metrics.q_hs),
        **trees,
    }
    return {name: float(value) for name, value in values.items() if value is not None}


class _NoTracker:
    def add_step(self, metrics: StepMetrics) -> None:
        pass

    def add_scores(self, scores: Mapping[str, object]) -> None:
        pass


class _TensorBoard:
    def __init__(self, writer: object) -> None:
        self.writer = writer

    def add_step(self, metrics: StepMetrics) -> None:
        for name, value in scalars(metrics).items():
            self.writer.add_scalar(f"train/{name}", value, metrics.step)  # type: ignore[attr-defined]

    def add_scores(self, scores: Mapping[str, object]) -> None:
        for name, value in _numbers(scores).items():
            self.writer.add_scalar(f"held_out/{name}", value, scores["step"])  # type: ignore[attr-defined]


class _Wandb:
    def __init__(self, session: object) -> None:
        self.session = session

    def add_step(self, metrics: StepMetrics) -> None:
        named = {f"train/{name}": value for name, value in scalars(metrics).items()}
        self.session.log(named, step=metrics.step)  # type: ignore[attr-defined]

    def add_scores(self, scores: Mapping[str, object]) -> None:
        named = {f"held_out/{name}": value for name, value in _numbers(scores).items()}
        self.session.log(named, step=scores["step"])  # type: ignore[attr-defined]


def _numbers(scores: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in scores.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
    }


def _missing(name: str, error: ImportError) -> ValueError:
    return ValueError(
        f'the tracker "{name}" needs a package that is not installed ({error}); install the extra: pip install '
        f'"dflash-lab[trackers]", or set log.tracker to None'
    )
