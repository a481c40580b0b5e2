"""A whole run in one call: target, samples and settings by name, and everything to look at afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dflash_lab.data import (
    PreloadedDataset,
    builtin_corpus,
    open_lengths,
    tokenize_conversations,
    write_builtin_conversations,
)
from dflash_lab.data.folders import cache_folder, key_of, load_or_build
from dflash_lab.data.paths import user_path
from dflash_lab.drafter import Drafter, ExportFinding, export_drafter, lint_export
from dflash_lab.target import AnswerSettings, NamedTarget, TransformersTarget, answer_corpus, open_target, tiny_corpus
from dflash_lab.training.assembly import Split, choose_devices, drafter_config, split_samples
from dflash_lab.training.checkpoint import find_checkpoint, load_weights, read_state
from dflash_lab.training.config import RunConfig
from dflash_lab.training.files import read_json, write_json
from dflash_lab.training.run import train_drafter
from dflash_lab.training.session import RunResult

RUNS, ARGUMENTS, EXPORT = "runs", "short_run.json", "export"
# Prompts that a target answers where the user names no number: a model of many millions takes minutes for 200.
_TINY_ANSWERS, _OTHER_ANSWERS = 3_000, 200
# Every so many-th prompt is for measuring.
_HELD_OUT_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class ShortRunSettings:
    """What a short run is made of: enough to make it again.

    Args:
        target: "tiny", "random", "smollm2" or the folder of a model; see `open_target`.
        data_path: Samples to train on, as for `open_lengths`; empty lets the target answer prompts of the built-in
            corpus itself ("random" takes the corpus as it stands).
        tokenizer: For a chat file: a folder or tokenizer.json; empty takes the built-in one.
        on_bad_row: "error" or "skip".
        num_answers: Prompts that the target answers; 0 takes 3,000 for "tiny" and 200 for others.
        changes: Dotted settings of the preset "tiny" -> values.
        seed: Of first weights, order, anchors, noise, held-out samples, and of the random target; >= 0.
    """

    target: str = "tiny"
    data_path: str = ""
    tokenizer: str = ""
    on_bad_row: str = "error"
    num_answers: int = 0
    changes: Mapping[str, object] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.num_answers, bool) or not isinstance(self.num_answers, int) or self.num_answers < 0:
            raise ValueError(f"num_answers is {self.num_answers!r}; legal: a whole number >= 0")


@dataclass(frozen=True, kw_only=True, eq=False)
class ShortRun:
    """A run with all that belongs to it.

    Args:
        run_dir: Its folder.
        settings: What it is made of.
        config: The run's settings.
        target: The target, where the run computes.
        tokenizer: The target's.
        end_ids: Ids that end the target's text.
        data_name: What the samples are, in words.
        train: Samples to train on.
        split: Which samples are held out: all of them, of which the run itself scores some.
        notes: What a reader should know of the data, in words.
        drafter: The drafter, trained as far as the run is.
        result: Of the session that trained; None where the run was only opened.
    """

    run_dir: Path
    settings: ShortRunSettings
    config: RunConfig
    target: TransformersTarget
    tokenizer: object
    end_ids: tuple[int, ...]
    data_name: str
    train: PreloadedDataset
    split: Split
    notes: str
    drafter: Drafter
    result: RunResult | None = None

    @property
    def held_out(self) -> PreloadedDataset:
        """Where the held-out samples are."""
        assert self.split.held_out is not None
        return self.split.held_out

    @property
    def label(self) -> str:
        """Data and target as part of a file name: letters, digits, "-" and "_"."""
        data = Path(self.settings.data_path).name.removesuffix(".jsonl") or "built-in-corpus"
        parts = [data] if self.settings.target == "tiny" else [Path(self.settings.target).name, data]
        return re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts)).strip("-")

    def prompts(self, count: int) -> list[np.ndarray]:
        """Give prompts of held-out samples: what stands before the first supervised token.

        Args:
            count: Most prompts, >= 1; the first ones, in the order of the samples.

        Returns:
            int64 (n,) each, no longer than max_seq_len. Samples that are supervised from the first token on give that
            one.
        """
        ids = self.split.held_out_ids
        chosen = ids[np.unique(np.linspace(0, len(ids) - 1, min(count, len(ids))).astype(np.int64))]
        prompts = []
        for number in chosen.tolist():
            tokens, mask = self.held_out.token_views(number)
            prompts.append(tokens[: max(1, int(np.argmax(mask)))].astype(np.int64)[: self.config.batching.max_seq_len])
        return prompts

    def pieces(self, token_ids: tuple[int, ...]) -> list[str]:
        """Give the text of each token.

        Args:
            token_ids: Ids of the target.
        """
        return [self.tokenizer.decode([each]) for each in token_ids]  # type: ignore[attr-defined]

    def export(self) -> tuple[Path, tuple[ExportFinding, ...]]:
        """Write the drafter for servers into the run's folder, over an earlier export, and check it.

        Returns:
            The folder (format "z-lab"), and what a server would stumble over.
        """
        folder = export_drafter(self.drafter, self.run_dir / EXPORT, overwrite=True)
        return folder, lint_export(folder, self.target)


def short_run(
    settings: ShortRunSettings,
    *,
    outputs: str | Path = "outputs",
    run_name: str = "",
    device: str = "auto",
    on_status: Callable[[str], None] = print,
) -> ShortRun:
    """Train a drafter, or go on with a run that was stopped, or open one that is done.

    Args:
        settings: What the run is made of.
        outputs: Folder; the run's own is runs/NAME in it.
        run_name: Name of the run; empty names it after the target and all that decides its weights, so that the same
            settings go on with the same run and others begin another.
        device: "auto" or a device of torch, for target and drafter.
        on_status: Called with status lines and notices.

    Returns:
        The run. It may have been stopped by Ctrl-C: see `result.stopped_by`.

    Raises:
        ValueError: As `train_drafter`, `open_target` and `open_lengths`.
    """
    opened = _Opened(settings, device)
    folder = user_path(outputs, name="outputs") / RUNS / (run_name or opened.name)
    result = train_drafter(
        opened.config,
        opened.train,
        opened.target,
        folder,
        validation=opened.validation,
        device=str(opened.target.device),
        on_status=on_status,
    )
    write_json(folder / ARGUMENTS, asdict(settings))
    return opened.run(folder, result.drafter, result)


def open_short_run(run_dir: str | Path, *, device: str = "auto") -> ShortRun:
    """Open a run that `short_run` made, at its newest checkpoint, without training.

    Args:
        run_dir: Its folder.
        device: "auto" or a device of torch.

    Raises:
        ValueError: If the folder holds no such run, or its target or samples are not those any more.
    """
    folder = user_path(run_dir, name="run_dir")
    if not (folder / ARGUMENTS).is_file():
        raise ValueError(f"{folder} has no {ARGUMENTS}; legal: the folder of a run that short_run made")
    settings = ShortRunSettings(**read_json(folder / ARGUMENTS))
    found = find_checkpoint(folder)
    if found is None:
        raise ValueError(f"{folder} holds no complete checkpoint; legal: a run that was saved at least once")
    opened = _Opened(settings, device)
    _, identity = read_state(found.path)
    now = {"target": opened.target.fingerprint, "data": opened.train.fingerprint}
    for name, value in now.items():
        if identity[name] != value:
            raise ValueError(f"the {name} of {folder} is {value} now and was {identity[name]}; train a new run")
    drafter = Drafter(drafter_config(opened.config.drafter, opened.target), seed=opened.config.seed)
    load_weights(found.path, drafter)
    return opened.run(folder, drafter.to(opened.target.device).eval(), None)


def newest_short_run(outputs: str | Path = "outputs") -> Path | None:
    """Find the folder of the run that was written last; None where there is none.

    Args:
        outputs: As for `short_run`.
    """
    found = list((user_path(outputs, name="outputs") / RUNS).glob(f"*/{ARGUMENTS}"))
    return max(found, key=lambda file: (file.stat().st_mtime, str(file))).parent if found else None


class _Opened:
    """A run's target, samples and settings, before anything runs."""

    def __init__(self, settings: ShortRunSettings, device: str) -> None:
        where = choose_devices(device, None, None, num_target_loops=1).drafter
        changes = dict(settings.changes or {})
        mask_token_id = changes.pop("drafter.mask_token_id", None)
        assert mask_token_id is None or isinstance(mask_token_id, int)
        named = open_target(settings.target, mask_token_id=mask_token_id, seed=settings.seed)
        self.settings, self.named = settings, named
        every = {"seed": settings.seed, "batching.seed": settings.seed, "drafter.mask_token_id": named.mask_token_id}
        self.config = RunConfig.preset("tiny", {**every, **changes})
        self.data_name, self.train, self.validation, self.notes = _samples(settings, named, self.config)
        self.target = named.target.to(where)
        if self.validation is None and len(self.train) == 1:
            # Nothing can be held out of one sample.
            self.validation = self.train
            self.notes += "\nthe only sample is trained on and scored: its figures say nothing of others"
        everything = self.config.replace({"validation.max_samples": max(1, len(self.validation or self.train))})
        self.split = split_samples(self.train, self.validation, everything)

    @property
    def name(self) -> str:
        validation = "" if self.validation is None else self.validation.fingerprint
        target = [self.target.fingerprint, list(self.target.target_layer_ids), self.target.settings]
        made_of = [self.config.identity, self.train.fingerprint, validation, target]
        label = Path(self.settings.target).name or "run"
        return f"{label}-{key_of(made_of)[:8]}"

    def run(self, folder: Path, drafter: Drafter, result: RunResult | None) -> ShortRun:
        return ShortRun(
            run_dir=folder,
            settings=self.settings,
            config=self.config,
            target=self.target,
            tokenizer=self.named.tokenizer,
            end_ids=self.named.end_ids,
            data_name=self.data_name,
            train=self.train,
            split=self.split,
            notes=self.notes,
            drafter=drafter,
            result=result,
        )


def _samples(
    settings: ShortRunSettings, named: NamedTarget, config: RunConfig
) -> tuple[str, PreloadedDataset, PreloadedDataset | None, str]:
    """Give name, training samples, held-out samples or None, and what to know of them."""
    max_seq_len = config.batching.max_seq_len
    if settings.data_path:
        samples = open_lengths(
            settings.data_path,
            tokenizer=settings.tokenizer,
            max_seq_len=max_seq_len,
            on_bad_row=settings.on_bad_row,
        )
        assert samples.dataset is not None
        return samples.name, samples.dataset, None, samples.notes
    if settings.target == "random":
        corpus = builtin_corpus(form="single_turn", max_seq_len=max_seq_len)
        return "built-in corpus", corpus, None, "the built-in corpus as it stands: a random target has no answers"
    asked = settings.num_answers or (_TINY_ANSWERS if settings.target == "tiny" else _OTHER_ANSWERS)
    answers = AnswerSettings(num_train=asked, num_validation=max(1, min(250, asked // 4)))
    if settings.target == "tiny":
        corpus = tiny_corpus(named.target, settings=answers)
    else:
        conversations = _conversations(named)
        corpus = answer_corpus(
            conversations,
            named.target,
            is_validation=np.arange(len(conversations)) % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1,
            end_ids=named.end_ids,
            settings=answers,
        )
    figures = corpus.figures["train"]
    notes = (
        f"{figures.num_answers:,} answers of {named.target.name} to train on, {figures.num_answer_tokens:,} tokens; "
        f"{figures.num_ended:,} came to their end, {figures.num_looping:,} repeat themselves"
    )
    return f"built-in corpus, answered by {named.target.name}", corpus.train, corpus.validation, notes


def _conversations(named: NamedTarget) -> PreloadedDataset:
    """Give the built-in conversations in the tokens of a target, kept in the cache."""
    tokenizer = named.tokenizer
    asked = key_of([named.target.name, named.target.fingerprint, len(tokenizer), str(tokenizer.chat_template)])
    place = cache_folder() / "conversations" / asked / builtin_corpus(form="single_turn").fingerprint[:16]

    def build(folder: Path) -> None:
        write_builtin_conversations(folder / "chats.jsonl", form="single_turn")
        # Python's sources hold names that are control tokens to some tokenizers, such as <filename>.
        tokenize_conversations(folder / "chats.jsonl", tokenizer, folder / "samples.arrow", on_bad_row="skip")

    return load_or_build(
        [place], lambda folder: PreloadedDataset.open(folder / "samples.arrow"), build, label="built-in conversations"
    )
