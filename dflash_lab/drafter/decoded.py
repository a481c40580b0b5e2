"""What decoding gives, and what it is called with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from dflash_lab.drafter.verifying import VerifyingTarget


@dataclass(frozen=True, kw_only=True)
class DecodedPrompt:
    """What was decoded behind one prompt, and what it took.

    Args:
        token_ids: New tokens, an end token included.
        acceptance_lengths: Tokens that each verification gave, >= 1: accepted draft tokens and, last, the target's own.
            The first new token comes from reading the prompt and from no verification. The last verification counts
            whole, with what went past `max_new_tokens` or an end token, so that the mean does not depend on where a
            text was cut; so the lengths can add up to more than `len(token_ids) - 1`. Plain decoding has ones.
        num_target_calls: Passes of the target, those that read the prompt included.
        num_drafter_calls: Passes of the drafter.
        ended: Whether the last token is an end token.
        prefill_seconds: Reading the prompt, up to the first new token.
        drafter_seconds: Context, blocks and head, over all calls.
        tree_seconds: Building trees and their masks.
        verify_seconds: Passes of the target behind the prompt, up to their choices.
        total_seconds: All of it.
    """

    token_ids: tuple[int, ...]
    acceptance_lengths: tuple[int, ...]
    num_target_calls: int
    num_drafter_calls: int
    ended: bool
    prefill_seconds: float
    drafter_seconds: float
    tree_seconds: float
    verify_seconds: float
    total_seconds: float

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a verification, the bonus token counted; NaN where nothing was verified."""
        return mean_acceptance_length([self])

    @property
    def seconds_a_verification(self) -> float:
        """Mean of a pass of the target behind the prompt; NaN where there was none."""
        num_calls = len(self.acceptance_lengths)
        return self.verify_seconds / num_calls if num_calls else float("nan")

    @property
    def seconds_a_draft(self) -> float:
        """Mean of a draft; NaN where there was none."""
        return self.drafter_seconds / self.num_drafter_calls if self.num_drafter_calls else float("nan")


def mean_acceptance_length(decoded: Iterable[DecodedPrompt]) -> float:
    """Give the tokens a verification over several prompts, each verification of the same weight.

    Args:
        decoded: From `speculative_decode`.

    Returns:
        Accepted tokens + 1, in [1, block_size]; NaN where nothing was verified.
    """
    lengths = [length for each in decoded for length in each.acceptance_lengths]
    return sum(lengths) / len(lengths) if lengths else float("nan")


def checked_prompts(
    target: VerifyingTarget,
    prompts: Sequence[Sequence[int] | torch.Tensor],
    max_new_tokens: int,
    eos_token_id: int | Collection[int] | None,
) -> tuple[list[torch.Tensor], frozenset[int]]:
    """Check what both ways of decoding are called with.

    Returns:
        The prompts as int64 (n,) tensors, and the end tokens.

    Raises:
        ValueError: If an argument is not legal.
    """
    check_count("max_new_tokens", max_new_tokens, required=True)
    checked = []
    for number, prompt in enumerate(prompts):
        ids = torch.as_tensor(prompt)
        if ids.ndim != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise ValueError(
                f"prompt {number} is {ids.dtype} {tuple(ids.shape)}; legal: a list of token ids, at least one"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size:
            raise ValueError(
                f"prompt {number} has the ids {int(ids.min())} to {int(ids.max())}; legal: [0, {target.vocab_size})"
            )
        checked.append(ids.long())
    ids = () if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id
    if any(isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < target.vocab_size for each in ids):
        raise ValueError(f"eos_token_id is {eos_token_id!r}; legal: ids in [0, {target.vocab_size}), or None")
    return checked, frozenset(ids)


def check_count(name: str, value: int | None, *, required: bool = False) -> None:
    """Refuse what is no whole number >= 1.

    Raises:
        ValueError: Naming it.
    """
    if value is None and not required:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; legal: a whole number >= 1{'' if required else ', or None'}")
