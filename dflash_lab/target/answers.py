"""Answers that a target writes itself: what a drafter for it has to learn from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dflash_lab.target.hf import TransformersTarget
from dflash_lab.target.locks import model_lock
from dflash_lab.target.progress import MakingProgress

# An answer loops when fewer than half of its runs of so many tokens are different ones.
_RUN_TOKENS = 4
_LEAST_DISTINCT = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class WrittenAnswers:
    """What a target wrote.

    Args:
        answers: int64 (L,) each, in the order of the prompts, with the id that ended it if one did.
        num_ended: Answers that came to their end, and not only to the limit.
        seconds: By the clock.
    """

    answers: list[np.ndarray]
    num_ended: int
    seconds: float

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers))

    @property
    def num_looping(self) -> int:
        """Answers that repeat themselves: fewer than half of their runs of 4 tokens are different ones.

        Any drafter copies a loop, so that acceptance measured on them says little.
        """
        return sum(distinct_share(answer) < _LEAST_DISTINCT for answer in self.answers)


def write_answers(
    target: TransformersTarget,
    prompts: Sequence[np.ndarray],
    *,
    max_new_tokens: int,
    end_ids: Sequence[int],
    batch_size: int = 32,
    temperature: float = 0.0,
    seed: int = 0,
    progress: bool = False,
) -> WrittenAnswers:
    """Let a target answer prompts, many at once.

    Prompts of like length share a batch, and are padded on the left. torch's own generator stays as it is.

    Args:
        target: Writes the answers.
        prompts: int64 (L,) each, up to where the answer begins.
        max_new_tokens: Most tokens of an answer, >= 1.
        end_ids: Ids that end an answer; may be empty.
        batch_size: Prompts at a time, >= 1.
        temperature: 0 takes the first guess always; above, tokens are drawn from the whole vocabulary.
        seed: For the draws, >= 0.
        progress: Say on standard error how far it is.

    Returns:
        The answers.

    Raises:
        ValueError: If an argument is out of range, or a prompt is empty, has an id past the vocabulary, or leaves too
            few positions for its answer.
    """
    for name, value, least in (("max_new_tokens", max_new_tokens, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}; legal: a whole number >= {least}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; legal: a finite number >= 0")
    ends = list(end_ids)
    order = sorted(range(len(prompts)), key=lambda number: (len(prompts[number]), number))
    if order and not len(prompts[order[0]]):
        raise ValueError(f"prompt {order[0]} is empty; legal: at least one token")
    answers: list[np.ndarray] = [np.empty(0, np.int64)] * len(prompts)
    num_ended = num_tokens = 0
    saying = MakingProgress(f"{target.name} is writing answers", quiet=not progress)
    begin = time.monotonic()
    for first in range(0, len(order), batch_size):
        numbers = order[first : first + batch_size]
        chosen = [np.asarray(prompts[number], np.int64) for number in numbers]
        new = _written(target, chosen, max_new_tokens, ends, temperature, (seed, first))
        for number, row in zip(numbers, new, strict=True):
            stops = np.flatnonzero(np.isin(row, ends))
            answers[number] = row[: stops[0] + 1] if stops.size else row
            num_ended += bool(stops.size)
            num_tokens += len(answers[number])
        saying.update((first + len(numbers)) / len(order), f"{num_tokens:,} tokens")
    return WrittenAnswers(answers=answers, num_ended=num_ended, seconds=time.monotonic() - begin)


def distinct_share(ids: np.ndarray) -> float:
    """Tell how much of a text is new: different runs of 4 tokens over all of them; 1 where there is none.

    Args:
        ids: int64 (L,).

    Returns:
        In (0, 1].
    """
    if len(ids) < _RUN_TOKENS:
        return 1.0
    runs = np.lib.stride_tricks.sliding_window_view(ids, _RUN_TOKENS)  # (L - 3, 4)
    return len(np.unique(runs, axis=0)) / len(runs)


def _written(
    target: TransformersTarget,
    prompts: list[np.ndarray],
    max_new_tokens: int,
    ends: list[int],
    temperature: float,
    seed: tuple[int, int],
) -> np.ndarray:
    """Give the new tokens, int64 (B, n); behind an end stands whatever."""
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    input_ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        input_ids[row, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, width - len(prompt) :] = 1
    target.check_fits(input_ids, num_positions=width + max_new_tokens)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=temperature > 0,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        **({"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}),
    )
    devices = [target.device] if target.device.type == "cuda" else []
    with model_lock(target.model), _without_defaults(target.model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(np.random.default_rng(seed).integers(2**62)))
        written = target.model.generate(
            input_ids.to(target.device), attention_mask=mask.to(target.device), generation_config=settings
        )
    return written[:, width:].cpu().numpy()


@contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """Set the model's own way of writing aside: whatever we do not name, transformers takes from there."""
    from transformers import GenerationConfig

    usual = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = usual
