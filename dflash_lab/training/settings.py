"""The parts of a run's settings: frozen, keyword-only, checked when they are made."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, fields

from dflash_lab.batching.config import whole_number

LOSSES = ("dflash", "dpace", "kl")
SCHEDULES = ("cosine", "linear", "constant")
ANCHOR_BUDGETS = ("sample", "supervised_token", "batch")
TRACKERS = ("tensorboard", "wandb")


@dataclass(frozen=True, kw_only=True)
class DrafterSettings:
    """Shape of the drafter, as far as the target does not decide it.

    Args:
        block_size: Positions of a block, the anchor included; >= 2.
        num_hidden_layers: Layers, >= 1.
        intermediate_size: Width inside the MLP; None takes three times the target's hidden size.
        num_attention_heads: Query heads; None takes hidden size / head_dim, at least 1.
        num_key_value_heads: Key and value heads; None takes as many as query heads.
        head_dim: Width of a head, even; None takes 128, or 32 where the hidden size is below 1,024.
        mask_token_id: Unused id of the target's vocabulary that stands for a position to predict, never that of
            padding, end or unknown; None is refused when a run begins.
        rms_norm_eps: Added to the mean square in every norm, > 0.
    """

    block_size: int = 16
    num_hidden_layers: int = 5
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    mask_token_id: int | None = None
    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        whole_number("block_size", self.block_size, least=2)
        whole_number("num_hidden_layers", self.num_hidden_layers, least=1)
        for name in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
            _optional_count(name, getattr(self, name), least=1)
        _optional_count("mask_token_id", self.mask_token_id, least=0)
        number("rms_norm_eps", self.rms_norm_eps, above=0)


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is minimised.

    Args:
        kind: "dflash" (cross-entropy with position weights), "dpace" (weights by the drafter's own confidence) or "kl"
            (to the target's logits, with position weights).
        gamma: Decay of the position weights in positions, > 0; larger decays slower. None asks for no decay. The paper
            has 7 / 5 / 4 for block sizes 16 / 10 / 8.
        alpha: Smoothing of "dpace", in [0, 1].
    """

    kind: str = "dflash"
    gamma: float | None = 7.0
    alpha: float = 0.5

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, LOSSES)
        if self.gamma is not None:
            number("gamma", self.gamma, above=0)
        number("alpha", self.alpha, least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class AnchorSettings:
    """How many anchors are drawn.

    Args:
        per: "sample", "supervised_token" or "batch".
        amount: Anchors of each sample, for each supervised token, or of each batch; > 0, and whole but for
            "supervised_token", where it is in (0, 1].
    """

    per: str = "sample"
    amount: float = 512

    def __post_init__(self) -> None:
        _one_of("per", self.per, ANCHOR_BUDGETS)
        if self.per == "supervised_token":
            number("amount", self.amount, above=0, most=1)
        else:
            whole_number("amount", self.amount, least=1)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW, its clip, and its learning rate over the optimizer steps.

    Args:
        learning_rate: Peak, > 0.
        schedule: "cosine" or "linear" down to 0, or "constant", after the warm-up.
        warmup_steps: Steps of the linear warm-up, >= 0; None takes `warmup_share` of all steps, rounded.
        warmup_share: In [0, 1].
        betas: Both in [0, 1). The paper names none.
        eps: > 0.
        weight_decay: Of matrices; norms are never decayed; >= 0. The paper names none.
        max_grad_norm: Clip of the gradient's norm, > 0; None does not clip.
        max_skipped_in_a_row: So many steps in a row with a non-finite loss or gradient end the run, >= 1.
    """

    learning_rate: float = 6e-4
    schedule: str = "cosine"
    warmup_steps: int | None = None
    warmup_share: float = 0.04
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    max_skipped_in_a_row: int = 10

    def __post_init__(self) -> None:
        number("learning_rate", self.learning_rate, above=0)
        _one_of("schedule", self.schedule, SCHEDULES)
        _optional_count("warmup_steps", self.warmup_steps, least=0)
        number("warmup_share", self.warmup_share, least=0, most=1)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise ValueError(f"betas is {self.betas!r}; legal: a tuple of two numbers in [0, 1)")
        for beta in self.betas:
            number("betas", beta, least=0, below=1)
        number("eps", self.eps, above=0)
        number("weight_decay", self.weight_decay, least=0)
        if self.max_grad_norm is not None:
            number("max_grad_norm", self.max_grad_norm, above=0)
        whole_number("max_skipped_in_a_row", self.max_skipped_in_a_row, least=1)


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """Uniform noise on the target features, in training only.

    Args:
        amplitude: Noise is drawn from [-amplitude, amplitude]; 0 is off. The paper has none.
        warmup_steps: Optimizer steps until the amplitude is reached, >= 0.
        is_applied: False plans the ramp and never touches the features: a fault of the source run, kept to show it. The
            log has the amplitude that was applied, 0 then.
    """

    amplitude: float = 0.0
    warmup_steps: int = 0
    is_applied: bool = True

    def __post_init__(self) -> None:
        number("amplitude", self.amplitude, least=0)
        whole_number("warmup_steps", self.warmup_steps, least=0)
        if not isinstance(self.is_applied, bool):
            raise ValueError(f"is_applied is {self.is_applied!r}; legal: True or False")


@dataclass(frozen=True, kw_only=True)
class ValidationSettings:
    """Scores on samples that are never trained on.

    Args:
        share: Share of the samples that is held out where no validation data set is given, in [0, 0.5].
        max_samples: Most held-out samples that are scored, >= 1.
        anchors_per_sample: Anchors of each, the same ones every time; >= 1.
        every_steps: Steps between two scores, >= 1; None scores at the end alone.
    """

    share: float = 0.05
    max_samples: int = 64
    anchors_per_sample: int = 32
    every_steps: int | None = 100

    def __post_init__(self) -> None:
        number("share", self.share, least=0, most=0.5)
        whole_number("max_samples", self.max_samples, least=1)
        whole_number("anchors_per_sample", self.anchors_per_sample, least=1)
        _optional_count("every_steps", self.every_steps, least=1)


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When a run is saved; it is saved at its end and when it is stopped, too.

    Args:
        every_steps: Steps between two, >= 1; None does not count steps.
        every_minutes: Minutes between two, > 0; None does not count minutes.
        keep: Newest ones that stay, >= 1; the best by held-out tau stays beside them.
    """

    every_steps: int | None = 500
    every_minutes: float | None = 10.0
    keep: int = 2

    def __post_init__(self) -> None:
        _optional_count("every_steps", self.every_steps, least=1)
        if self.every_minutes is not None:
            number("every_minutes", self.every_minutes, above=0)
        whole_number("keep", self.keep, least=1)


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Threads and queues; none of these changes what is trained.

    Args:
        num_workers: Threads that read, >= 1.
        num_target_loops: Loops that run the target, >= 1; where target devices are given, one for each of those.
        prefetch_depth: Most batches in the queue before each loop, >= 1.
        feature_depth: Most batches of features behind each loop, >= 1.
    """

    num_workers: int = 2
    num_target_loops: int = 1
    prefetch_depth: int = 50
    feature_depth: int = 2

    def __post_init__(self) -> None:
        for entry in fields(self):
            whole_number(entry.name, getattr(self, entry.name), least=1)


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What a run tells while it goes on; none of these changes what is trained.

    Args:
        status_every_seconds: Seconds between two status lines, > 0.
        tree_every_steps: Steps between two scores of draft trees on the step's own blocks, >= 1; None scores none.
        tree_blocks: Most blocks of such a score, >= 1.
        tracker: "tensorboard" or "wandb", of the extra `trackers`; None for none.
    """

    status_every_seconds: float = 10.0
    tree_every_steps: int | None = 20
    tree_blocks: int = 128
    tracker: str | None = None

    def __post_init__(self) -> None:
        number("status_every_seconds", self.status_every_seconds, above=0)
        _optional_count("tree_every_steps", self.tree_every_steps, least=1)
        whole_number("tree_blocks", self.tree_blocks, least=1)
        if self.tracker is not None:
            _one_of("tracker", self.tracker, TRACKERS)


def number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse what is no finite number or out of range.

    Raises:
        ValueError: Naming the value and what is legal.
    """
    limits = [
        (least, ">=", float.__ge__),
        (above, ">", float.__gt__),
        (most, "<=", float.__le__),
        (below, "<", float.__lt__),
    ]
    set_limits = [(limit, sign, holds) for limit, sign, holds in limits if limit is not None]
    # numpy's numbers are real ones, too.
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        held = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:
        # A whole number that no float can hold.
        held = math.inf
    if not math.isfinite(held) or not all(holds(held, float(limit)) for limit, _, holds in set_limits):
        legal = " and ".join(f"{sign} {limit:g}" for limit, sign, _ in set_limits)
        raise ValueError(f"{name} is {value!r}; legal: a finite number {legal}")


def _optional_count(name: str, value: int | None, *, least: int) -> None:
    if value is not None:
        whole_number(name, value, least=least)


def _one_of(name: str, value: object, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f"{name} is {value!r}; legal: {', '.join(legal)}")
