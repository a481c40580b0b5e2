"""Conversations whose assistant is the target itself, as a token store that is kept."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dflash_lab.data.corpus import TURN_END, builtin_corpus, builtin_tokenizer
from dflash_lab.data.dataset import PreloadedDataset
from dflash_lab.data.folders import cache_folder, key_of, load_or_build
from dflash_lab.data.paths import user_path
from dflash_lab.data.store import write_samples
from dflash_lab.target.answers import WrittenAnswers, write_answers
from dflash_lab.target.hf import TransformersTarget
from dflash_lab.target.tiny_training import held_out

SPLITS = ("train", "validation")
FIGURES_NAME = "figures.json"
# Changes whenever the same settings give other answers.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """Which prompts are answered, and how.

    Args:
        num_train: Most prompts to train on, >= 1; drawn by the seed where there are more.
        num_validation: Most prompts of the split for measuring, >= 1.
        max_prompt_tokens: Longer prompts are not taken; >= 1.
        max_new_tokens: Most tokens of an answer, >= 1.
        temperature: 0 takes the first guess always; above, tokens are drawn.
        seed: Of the draws, >= 0.
        batch_size: Prompts that are answered at once, >= 1. Another one may change an answer by rounding.
    """

    num_train: int = 3_000
    num_validation: int = 250
    max_prompt_tokens: int = 128
    max_new_tokens: int = 80
    temperature: float = 0.0
    seed: int = 0
    batch_size: int = 128

    def __post_init__(self) -> None:
        for name in ("num_train", "num_validation", "max_prompt_tokens", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; legal: a whole number >= 1")


@dataclass(frozen=True, kw_only=True)
class AnswerFigures:
    """What was written for one split.

    Args:
        num_answers: Answers, one a prompt.
        num_prompt_tokens: Tokens of the prompts.
        num_answer_tokens: Tokens of the answers, all of them supervised.
        num_ended: Answers that came to their end, and not only to the limit.
        num_looping: Answers that repeat themselves: fewer than half of their runs of 4 tokens are different ones.
        seconds: Of the writing, by the clock.
    """

    num_answers: int
    num_prompt_tokens: int
    num_answer_tokens: int
    num_ended: int
    num_looping: int
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerCorpus:
    """Prompts with a target's own answers.

    Args:
        train: Samples to train on; `sources` are those of the prompts.
        validation: Samples to measure on; no prompt is in both.
        figures: Split -> what was written.
        folder: Where the stores are; `PreloadedDataset.open(folder, split="train")` opens one.
    """

    train: PreloadedDataset
    validation: PreloadedDataset
    figures: dict[str, AnswerFigures]
    folder: Path


def answer_corpus(
    conversations: PreloadedDataset,
    target: TransformersTarget,
    *,
    is_validation: np.ndarray,
    end_ids: tuple[int, ...],
    settings: AnswerSettings | None = None,
    cache: str | Path | None = None,
    progress: bool = True,
) -> AnswerCorpus:
    """Let a target answer the prompts of conversations in its own words, once, and keep that.

    A prompt is what stands before the first supervised token. Equal prompts are answered once, and those that stand in
    both splits are taken for validation only.

    Args:
        conversations: Samples of the target's own tokenizer.
        target: Writes the answers.
        is_validation: bool (len(conversations),), prompts that are not trained on.
        end_ids: Ids that end an answer.
        settings: Which prompts, and how; None takes the defaults.
        cache: Folder to keep it in; None takes DFLASH_LAB_CACHE or the user's cache folder.
        progress: Say on standard error how far it is.

    Returns:
        Both splits.

    Raises:
        ValueError: If no prompt is left in a split, or as `write_answers`.
    """
    settings = settings or AnswerSettings()
    if np.shape(is_validation) != (len(conversations),):
        raise ValueError(f"is_validation has the shape {np.shape(is_validation)}; legal: ({len(conversations)},)")
    split_key = np.flatnonzero(is_validation).tolist()
    asked = key_of([_FORMAT, asdict(settings), list(end_ids), conversations.fingerprint, split_key])
    base = (cache_folder() if cache is None else user_path(cache, name="cache")) / "answers"

    def build(folder: Path) -> None:
        figures = {}
        for split, numbers in _chosen(conversations, np.asarray(is_validation, bool), settings).items():
            prompts = [_prompt(conversations, number) for number in numbers]
            written = write_answers(
                target,
                prompts,
                max_new_tokens=settings.max_new_tokens,
                end_ids=end_ids,
                batch_size=settings.batch_size,
                temperature=settings.temperature,
                seed=settings.seed,
                progress=progress,
            )
            _save(folder / f"{split}.arrow", conversations, numbers, prompts, written)
            figures[split] = asdict(_figures(prompts, written))
        text = json.dumps({"settings": asdict(settings), "figures": figures}, indent=1)
        (folder / FIGURES_NAME).write_text(text + "\n", encoding="utf-8")

    # A target of the same name and other weights is a later state of it, whose answers replace these.
    place = base / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', target.name)[-60:]}-{asked}" / target.fingerprint[:16]
    return load_or_build([place], _load, build, label=f"answers of {target.name}")


def tiny_corpus(
    target: TransformersTarget,
    *,
    settings: AnswerSettings | None = None,
    cache: str | Path | None = None,
    progress: bool = True,
) -> AnswerCorpus:
    """Let the TinyTarget write the functions of the built-in corpus that it is asked for, in its own words.

    Its validation prompts are those that the TinyTarget itself was never trained on.

    Args:
        target: The TinyTarget, or another target with the built-in tokenizer.
        settings: Which prompts, and how; None takes the defaults.
        cache: Folder to keep it in; None takes DFLASH_LAB_CACHE or the user's cache folder.
        progress: Say on standard error how far it is.

    Returns:
        Both splits.

    Raises:
        ValueError: As `answer_corpus`.
    """
    conversations = builtin_corpus(form="single_turn")
    return answer_corpus(
        conversations,
        target,
        is_validation=held_out(len(conversations)),
        end_ids=(builtin_tokenizer().convert_tokens_to_ids(TURN_END),),
        settings=settings,
        cache=cache,
        progress=progress,
    )


def _chosen(
    conversations: PreloadedDataset, is_validation: np.ndarray, settings: AnswerSettings
) -> dict[str, list[int]]:
    """Give the conversations of each split whose prompts are answered, in their order."""
    seen: set[bytes] = set()
    chosen: dict[str, list[int]] = {}
    # Validation first: a prompt of both is not trained on.
    for split, wanted, most in (
        ("validation", is_validation, settings.num_validation),
        ("train", ~is_validation, settings.num_train),
    ):
        fitting = []
        for number in np.flatnonzero(wanted).tolist():
            prompt = _prompt(conversations, number)
            if 0 < len(prompt) <= settings.max_prompt_tokens and prompt.tobytes() not in seen:
                seen.add(prompt.tobytes())
                fitting.append(number)
        if not fitting:
            raise ValueError(
                f"no prompt of {settings.max_prompt_tokens} tokens or fewer is in the {split} split; legal: a larger "
                f"max_prompt_tokens"
            )
        drawn = np.random.default_rng((settings.seed, 0)).permutation(len(fitting))[:most]
        chosen[split] = [fitting[place] for place in np.sort(drawn)]
    return chosen


def _prompt(conversations: PreloadedDataset, number: int) -> np.ndarray:
    """Give what stands before the first supervised token: int64 (L,)."""
    ids, mask = conversations.token_views(number)
    supervised = np.flatnonzero(mask)
    return ids[: supervised[0] if supervised.size else 0].astype(np.int64)


def _save(
    path: Path, conversations: PreloadedDataset, numbers: list[int], prompts: list[np.ndarray], written: WrittenAnswers
) -> None:
    sources = conversations.sources
    write_samples(
        path,
        (
            {
                "input_ids": np.concatenate([prompt, answer]),
                "loss_mask": np.arange(len(prompt) + len(answer)) >= len(prompt),
                "source": None if sources is None else sources[number],
            }
            for number, prompt, answer in zip(numbers, prompts, written.answers, strict=True)
        ),
    )


def _figures(prompts: list[np.ndarray], written: WrittenAnswers) -> AnswerFigures:
    return AnswerFigures(
        num_answers=len(prompts),
        num_prompt_tokens=sum(map(len, prompts)),
        num_answer_tokens=written.num_tokens,
        num_ended=written.num_ended,
        num_looping=written.num_looping,
        seconds=written.seconds,
    )


def _load(folder: Path) -> AnswerCorpus:
    figures = json.loads((folder / FIGURES_NAME).read_text(encoding="utf-8"))["figures"]
    return AnswerCorpus(
        **{split: PreloadedDataset.open(folder / f"{split}.arrow") for split in SPLITS},
        figures={split: AnswerFigures(**figures[split]) for split in SPLITS},
        folder=folder,
    )
