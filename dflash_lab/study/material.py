"""What all arms of a study share: the target, the samples to train on and those held out."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from dflash_lab.data import PreloadedDataset, builtin_corpus, open_lengths
from dflash_lab.data.folders import key_of
from dflash_lab.drafter.anchors import valid_anchors
from dflash_lab.study.conversations import join_turns
from dflash_lab.study.settings import StudySettings
from dflash_lab.target import AnswerSettings, TargetModel, tiny_corpus
from dflash_lab.target.named import open_target
from dflash_lab.training.assembly import Split, check_ids, split_samples

# As a run of `short_run` asks for, so that both find the same answers in the cache.
_TINY_ANSWERS, _MOST_HELD_OUT = 3_000, 250
# Which samples are chosen does not change with the seeds of arms.
_CHOICE_KEY = 0x57DD


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyMaterial:
    """Target and samples of a study.

    Args:
        name: What the samples are, in words.
        notes: What a reader should know of them.
        train: The data set that is trained on.
        held_out: The data set that is scored.
        train_ids: int64, ascending, samples of `train` that every arm passes over.
        held_out_ids: int64, ascending, samples of `held_out`.
        target: Their target, on the CPU.
        mask_token_id: An id that it leaves unused.
    """

    name: str
    notes: str
    train: PreloadedDataset
    held_out: PreloadedDataset
    train_ids: np.ndarray
    held_out_ids: np.ndarray
    target: TargetModel
    mask_token_id: int

    @property
    def split(self) -> Split:
        """The samples, as a run's scorer takes them."""
        return Split(train_ids=self.train_ids, held_out_ids=self.held_out_ids, held_out=self.held_out)

    @property
    def fingerprint(self) -> str:
        """Names target and samples: another one as soon as any arm could come out differently."""
        digest = blake2b(digest_size=16)
        for ids in (self.train_ids, self.held_out_ids):
            digest.update(np.ascontiguousarray(ids, dtype="<i8").tobytes() + b"|")
        parts = [self.train.fingerprint, self.held_out.fingerprint, self.target.fingerprint, self.mask_token_id]
        return key_of([*parts, digest.hexdigest()])

    @property
    def num_tokens(self) -> int:
        """Real tokens of a pass over the samples."""
        return int(self.train.lengths[self.train_ids].sum(dtype=np.int64))

    def num_valid(self) -> np.ndarray:
        """Count the positions of each sample that can open a block: int64 (num_train,)."""
        masks = (self.train.token_views(number)[1] for number in self.train_ids.tolist())
        return np.array([len(valid_anchors(np.asarray(mask, bool))) for mask in masks], dtype=np.int64)


def open_material(settings: StudySettings) -> StudyMaterial:
    """Open a study's target and samples.

    Args:
        settings: What they are.

    Returns:
        The material. Its samples are chosen by `settings.data_seed` alone, the same for every arm.

    Raises:
        ValueError: As `open_target` and `open_lengths`; or if a target other than "tiny" and "random" has no data.
    """
    named = open_target(settings.target, seed=settings.data_seed)
    found = _samples(settings, named.target)
    return choose_samples(
        settings,
        name=found.name,
        notes=found.notes,
        train=found.train,
        validation=found.validation,
        target=named.target,
        mask_token_id=named.mask_token_id,
    )


def choose_samples(
    settings: StudySettings,
    *,
    name: str,
    notes: str,
    train: PreloadedDataset,
    validation: PreloadedDataset | None,
    target: TargetModel,
    mask_token_id: int,
) -> StudyMaterial:
    """Choose a study's samples out of data sets.

    Args:
        settings: How many.
        name: What they are, in words.
        notes: What a reader should know of them.
        train: Samples to train on, cut to at most `settings.max_seq_len`.
        validation: Samples to hold out; None holds some of `train` out.
        target: Their target.
        mask_token_id: An id that it leaves unused.

    Returns:
        The material. A single sample is trained on and scored, and the notes say so.

    Raises:
        ValueError: If an id is past the target's vocabulary.
    """
    check_ids(train, target)
    if validation is None and len(train) == 1:
        validation = train
        notes += "\nthe only sample is trained on and scored: its figures say nothing of others"
    config = settings.run_config(settings.specs()[0], mask_token_id=mask_token_id, anchors=1)
    config = config.replace({"seed": settings.data_seed})
    split = split_samples(train, validation, config)
    assert split.held_out is not None
    check_ids(split.held_out, target)
    words = np.random.default_rng((settings.data_seed, _CHOICE_KEY)).bit_generator.random_raw(len(split.train_ids))
    shuffled = split.train_ids[np.argsort(words, kind="stable")]
    tokens = np.cumsum(np.minimum(train.lengths[shuffled], settings.max_seq_len), dtype=np.int64)
    count = int(np.searchsorted(tokens, settings.tokens_per_epoch)) + 1
    chosen = np.sort(shuffled[:count])
    return StudyMaterial(
        name=name,
        notes=notes,
        train=train,
        held_out=split.held_out,
        train_ids=chosen,
        held_out_ids=split.held_out_ids,
        target=target,
        mask_token_id=mask_token_id,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Samples:
    name: str
    notes: str
    train: PreloadedDataset
    validation: PreloadedDataset | None


def _samples(settings: StudySettings, target: TargetModel) -> _Samples:
    cut = settings.max_seq_len
    if settings.data_path:
        given = open_lengths(
            settings.data_path, tokenizer=settings.tokenizer, max_seq_len=cut, on_bad_row=settings.on_bad_row
        )
        assert given.dataset is not None
        return _Samples(name=given.name, notes=given.notes, train=given.dataset, validation=None)
    joined = {"most_turns": settings.most_turns, "max_seq_len": cut, "seed": settings.data_seed}
    turns = f"conversations of 1 to {settings.most_turns} turns, cut to {cut:,} tokens"
    if settings.target == "random":
        corpus = join_turns(builtin_corpus(form="single_turn", max_seq_len=cut), **joined)
        notes = f"{turns}; the built-in corpus as it stands: a random target has no answers"
        return _Samples(name="built-in corpus", notes=notes, train=corpus, validation=None)
    if settings.target != "tiny":
        raise ValueError(
            f"target is {settings.target!r} and data_path is empty; legal: data_path names samples in that target's "
            f"tokens, best such as it wrote itself; empty only with the targets tiny and random"
        )
    asked = settings.num_answers or _TINY_ANSWERS
    answers = AnswerSettings(num_train=asked, num_validation=max(1, min(_MOST_HELD_OUT, asked // 4)))
    written = tiny_corpus(target, settings=answers)  # type: ignore[arg-type]
    return _Samples(
        name=f"built-in corpus, answered by {target.name}",
        notes=f"{turns}; each turn a prompt and the target's own answer, {len(written.train):,} of them",
        train=join_turns(written.train, **joined),
        validation=join_turns(written.validation, **joined),
    )
