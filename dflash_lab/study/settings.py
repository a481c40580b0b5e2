"""What a study is made of: the arms, what they have in common, and the settings of each one's run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash_lab.batching.config import ORDERS, STRATEGIES, check_bounds, whole_number
from dflash_lab.training import RunConfig
from dflash_lab.training.settings import ANCHOR_BUDGETS, number

# "window": gradients are added up over the accumulation window and divided once by its weight, as a run does it.
# "micro_batch": each micro-batch is divided by its own weight before it is added, which weighs a block of a batch with
# few blocks more than one of a batch with many. A fault that many trainers have; a run cannot be set to it.
NORMALISATIONS = ("window", "micro_batch")
DEFAULT_ARMS = (
    ("sorted", "random"),
    ("random", "random"),
    ("bucketed", "random"),
    ("bucketed", "stride"),
    ("capacity", "stride"),
    ("packed", "random"),
)
_BUDGET_NAMES = {"sample": "per sample", "supervised_token": "per supervised token", "batch": "per batch"}


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """One run of a study.

    Args:
        strategy: Who shares a batch.
        order: When a batch is seen.
        anchors_per: What the anchor budget is per: "sample", "supervised_token" or "batch".
        normalisation: "window" or "micro_batch"; see `NORMALISATIONS`.
        seed: Of first weights, plans, anchors and noise, >= 0.

    Raises:
        ValueError: If a value is not legal.
    """

    strategy: str
    order: str
    anchors_per: str = "sample"
    normalisation: str = "window"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, legal in (
            ("strategy", STRATEGIES),
            ("order", ORDERS),
            ("anchors_per", ANCHOR_BUDGETS),
            ("normalisation", NORMALISATIONS),
        ):
            value = getattr(self, name)
            if value not in legal:
                raise ValueError(f"{name} is {value!r}; legal: {', '.join(legal)}")
        whole_number("seed", self.seed, least=0)

    @property
    def batching(self) -> str:
        """The batching in words: "bucketed" in random order, "bucketed, stride"."""
        return self.strategy if self.order == "random" else f"{self.strategy}, {self.order}"

    @property
    def label(self) -> str:
        """The arm in words, without its seed."""
        label = self.batching
        if self.anchors_per != "sample":
            label += f", anchors {_BUDGET_NAMES[self.anchors_per]}"
        return label + (", divided per micro-batch" if self.normalisation == "micro_batch" else "")

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.strategy}-{self.order}-{self.anchors_per}-{self.normalisation}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """A study: the same drafter, samples and tokens in every arm, and a few seeds of each.

    Every arm passes over the same samples the same number of times, so that all have seen the same real tokens. The
    defaults are for two CPU cores: an arm takes about 10 s of one core and reaches a held-out tau of about 1.6.

    Args:
        target: "tiny", "random" or another name of `open_target`.
        data_path: Samples, as for `open_lengths`; empty takes what the target itself writes ("random": the built-in
            corpus).
        tokenizer: For a chat file: a folder or tokenizer.json; empty takes the built-in one.
        on_bad_row: "error" or "skip".
        num_answers: Prompts that the target answers where no data is named; 0 takes 3,000.
        most_turns: Where no data is named: so many single turns at most make one conversation, >= 1. A single answer is
            short, and batches of short samples alone have no buckets to swing between.
        arms: (strategy, order) of each batching to compare; "bucketed/stride" will do, and "bucketed" for random order.
        probed: (strategy, order) of the batching that the others are compared with, always one of the arms, and whose
            anchor budgets and normalisations are compared.
        anchor_budgets: Further budgets for `probed`, of "supervised_token" and "batch"; every batching has "sample".
        normalisations: Further ones for `probed`: "micro_batch".
        seeds: Different whole numbers >= 0.
        tokens_per_epoch: Real tokens of the samples that are trained on, >= 1: so many samples are drawn that they
            have them.
        epochs: Passes over those, >= 1.
        token_budget: Most padded tokens in a micro-batch.
        max_seq_len: Longer samples are cut to this many tokens.
        max_batch_size: Most samples in a micro-batch.
        bucket_bounds: Half-open buckets in tokens; every arm's losses are split by these.
        accumulation: Micro-batches of a step, >= 1.
        anchors_per_sample: Anchors of each sample, >= 1. The other budgets are set to as many blocks an epoch.
        block_size: Positions of a block, the anchor included.
        num_hidden_layers: Layers of the drafter.
        intermediate_size: Width inside its MLP.
        learning_rate: Its peak.
        num_scores: Times that held-out samples are scored, evenly over an arm, the last at its end; >= 1.
        num_held_out: Held-out samples, >= 1.
        held_out_anchors: Anchors of each.
        data_seed: Of the conversations, of the choice of samples, and of the weights of a random target; >= 0.
        most_feature_bytes: Most bytes of target features on the disk.

    Raises:
        ValueError: If a value is out of range.
    """

    target: str = "tiny"
    data_path: str = ""
    tokenizer: str = ""
    on_bad_row: str = "error"
    num_answers: int = 0
    most_turns: int = 5
    arms: tuple[tuple[str, str], ...] = DEFAULT_ARMS
    probed: tuple[str, str] = ("bucketed", "random")
    anchor_budgets: tuple[str, ...] = ("supervised_token", "batch")
    normalisations: tuple[str, ...] = ("micro_batch",)
    seeds: tuple[int, ...] = (0, 1, 2)
    tokens_per_epoch: int = 60_000
    epochs: int = 3
    token_budget: int = 1_024
    max_seq_len: int = 512
    max_batch_size: int = 64
    bucket_bounds: tuple[int, ...] = (0, 128, 256, 384, 512)
    accumulation: int = 2
    anchors_per_sample: int = 8
    block_size: int = 4
    num_hidden_layers: int = 1
    intermediate_size: int | None = 384
    learning_rate: float = 3e-3
    num_scores: int = 4
    num_held_out: int = 48
    held_out_anchors: int = 16
    data_seed: int = 0
    most_feature_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        for name, least in (
            ("num_answers", 0),
            ("most_turns", 1),
            ("tokens_per_epoch", 1),
            ("epochs", 1),
            ("accumulation", 1),
            ("anchors_per_sample", 1),
            ("num_scores", 1),
            ("num_held_out", 1),
            ("held_out_anchors", 1),
            ("data_seed", 0),
            ("most_feature_bytes", 1),
        ):
            whole_number(name, getattr(self, name), least=least)
        number("learning_rate", self.learning_rate, above=0)
        # Lists are what a notebook's parameters are.
        object.__setattr__(self, "arms", tuple(_pair("arms", arm) for arm in self.arms))
        object.__setattr__(self, "probed", _pair("probed", self.probed))
        object.__setattr__(self, "bucket_bounds", check_bounds(self.bucket_bounds))
        for name in ("anchor_budgets", "normalisations"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        # Plain numbers: numpy's cannot be written as JSON.
        object.__setattr__(self, "seeds", tuple(whole_number("seeds", seed, least=0) for seed in self.seeds))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {self.seeds!r}; legal: different whole numbers >= 0, at least one")
        # Refused now and not after minutes.
        self.run_config(self.specs()[0], mask_token_id=None, anchors=1)

    @property
    def reference(self) -> str:
        """The arm that others are compared with, in words: `probed` with anchors per sample."""
        return ArmSpec(strategy=self.probed[0], order=self.probed[1]).label

    @property
    def normalisation_labels(self) -> tuple[str, ...]:
        """The arms of `normalisations`, in words."""
        strategy, order = self.probed
        specs = (ArmSpec(strategy=strategy, order=order, normalisation=name) for name in self.normalisations)
        return tuple(spec.label for spec in specs)

    def specs(self) -> tuple[ArmSpec, ...]:
        """List the arms, one seed of all before the next seed, so that a study that is stopped can be looked at."""
        return tuple(dict.fromkeys(spec for seed in self.seeds for spec in self._of_seed(seed)))

    def _of_seed(self, seed: int) -> Iterator[ArmSpec]:
        for strategy, order in self.arms:
            yield ArmSpec(strategy=strategy, order=order, seed=seed)
        strategy, order = self.probed
        yield ArmSpec(strategy=strategy, order=order, seed=seed)
        for budget in self.anchor_budgets:
            yield ArmSpec(strategy=strategy, order=order, anchors_per=budget, seed=seed)
        for normalisation in self.normalisations:
            yield ArmSpec(strategy=strategy, order=order, normalisation=normalisation, seed=seed)

    def run_config(self, spec: ArmSpec, *, mask_token_id: int | None, anchors: float) -> RunConfig:
        """Give the settings of an arm's run.

        Args:
            spec: The arm.
            mask_token_id: The target's.
            anchors: Amount of its anchor budget.
        """
        return RunConfig.preset(
            "tiny",
            {
                "batching.strategy": spec.strategy,
                "batching.order": spec.order,
                "batching.token_budget": self.token_budget,
                "batching.max_seq_len": self.max_seq_len,
                "batching.max_batch_size": self.max_batch_size,
                "batching.bucket_bounds": self.bucket_bounds if spec.strategy == "bucketed" else None,
                "batching.window": self.accumulation,
                "batching.seed": spec.seed,
                "seed": spec.seed,
                "epochs": self.epochs,
                "anchors.per": spec.anchors_per,
                "anchors.amount": anchors,
                "drafter.block_size": self.block_size,
                "drafter.num_hidden_layers": self.num_hidden_layers,
                "drafter.intermediate_size": self.intermediate_size,
                "drafter.mask_token_id": mask_token_id,
                "optimizer.learning_rate": self.learning_rate,
                "validation.max_samples": self.num_held_out,
                "validation.anchors_per_sample": self.held_out_anchors,
            },
        )


def _pair(name: str, value: object) -> tuple[str, str]:
    if isinstance(value, str):
        strategy, _, order = value.partition("/")
        value = (strategy, order or "random")
    parts = tuple(value) if isinstance(value, list | tuple) else ()
    if len(parts) != 2:
        raise ValueError(f"{name} holds {value!r}; legal: a strategy and an order, as a pair or as 'bucketed/stride'")
    ArmSpec(strategy=parts[0], order=parts[1])
    return parts
