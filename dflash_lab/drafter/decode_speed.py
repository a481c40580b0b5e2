"""What speculative decoding gains: from the seconds of single passes, measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dflash_lab.drafter.model import Drafter
from dflash_lab.drafter.verifying import VerifyingTarget

# Passes before the clock runs: the first ones load kernels and grow memory.
_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class ForwardSeconds:
    """Seconds of single passes behind a context.

    Args:
        context_length: Tokens in both caches.
        target_samples: By number of new tokens in the pass: the seconds of each repeat.
        drafter_samples: The same of one draft, with the features of a whole block joining the context, and the head.
    """

    context_length: int
    target_samples: dict[int, tuple[float, ...]]
    drafter_samples: tuple[float, ...]

    @property
    def target_seconds(self) -> dict[int, float]:
        """Median of the target's passes by number of new tokens."""
        return {width: statistics.median(samples) for width, samples in self.target_samples.items()}

    @property
    def drafter_seconds(self) -> float:
        """Median of a draft."""
        return statistics.median(self.drafter_samples)


def predicted_speed_up(
    acceptance_length: float, target_seconds: float, verify_seconds: float, drafter_seconds: float
) -> float:
    """Tell how many times faster than plain decoding a drafter makes a target.

    Plain decoding takes one pass a token; speculative decoding takes one draft and one wider pass for every
    `acceptance_length` tokens. Building trees and reading the prompt are left out.

    Args:
        acceptance_length: Tokens a verification, the bonus token counted, >= 1.
        target_seconds: A pass of the target over one token.
        verify_seconds: A pass of the target over a block, or over a tree and its anchor.
        drafter_seconds: A draft, >= 0.

    Returns:
        Above 1 where drafting pays.

    Raises:
        ValueError: If a number is out of range.

    Source: DFlash, arXiv 2602.06036, section 3.
    """
    if not acceptance_length >= 1:
        raise ValueError(f"acceptance_length is {acceptance_length}; legal: a number >= 1, the bonus token counted")
    for name, value in (("target_seconds", target_seconds), ("verify_seconds", verify_seconds)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value}; legal: a number > 0")
    if not 0 <= drafter_seconds < float("inf"):
        raise ValueError(f"drafter_seconds is {drafter_seconds}; legal: a number >= 0")
    return acceptance_length * target_seconds / (verify_seconds + drafter_seconds)


def measure_forward_seconds(
    target: VerifyingTarget,
    drafter: Drafter,
    *,
    context_length: int,
    widths: Sequence[int],
    repeats: int = 5,
    seed: int = 0,
) -> ForwardSeconds:
    """Measure single passes of a target and a drafter behind random tokens.

    Args:
        target: The target.
        drafter: A drafter for it; its mode does not matter and stays.
        context_length: Tokens before the pass, >= 1.
        widths: New tokens of a pass, each >= 1: 1 for plain decoding, block_size for a block, the node budget + 1 for a
            tree.
        repeats: Measured passes of each width, >= 1; two more come before them.
        seed: Of the tokens.

    Returns:
        Every repeat's seconds.

    Raises:
        ValueError: If a number is out of range.
    """
    for name, values in (("context_length", [context_length]), ("widths", widths), ("repeats", [repeats])):
        if not len(values) or any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in values):
            raise ValueError(f"{name} is {values}; legal: whole numbers >= 1")
    generator = torch.Generator().manual_seed(seed)
    config = drafter.config
    device = next(drafter.parameters()).device

    def random_ids(count: int) -> torch.Tensor:
        return torch.randint(0, target.vocab_size, (1, count), generator=generator).to(target.device)

    with torch.no_grad():
        cache = target.new_cache()
        features = target.extend(random_ids(context_length), cache).hidden[0].to(device)  # (C, K * H)
        context = drafter.context(features, torch.arange(context_length, device=device))
        nothing = torch.empty(0, dtype=torch.int64)
        newest = features[-config.block_size :]

        def target_pass(width: int) -> None:
            target.extend(random_ids(width), cache).logits.argmax(-1).cpu()
            cache.keep(context_length, nothing)

        def draft() -> None:
            positions = torch.arange(context_length - len(newest), context_length, device=device)
            grown = context.extended(drafter.context(newest, positions))
            embeddings = target.embed(random_ids(config.block_size)).to(device)
            slots = torch.arange(context_length, context_length + config.block_size, device=device)
            hidden = drafter.draft(embeddings, slots, grown)[0, 1:]
            target.lm_head(hidden.to(target.device)).argmax(-1).cpu()

        return ForwardSeconds(
            context_length=context_length,
            target_samples={width: _timed(lambda width=width: target_pass(width), repeats) for width in widths},
            drafter_samples=_timed(draft, repeats),
        )


def _timed(call: Callable[[], None], repeats: int) -> tuple[float, ...]:
    """Seconds of each call; they end in numbers on the CPU, so an accelerator has finished."""
    samples = []
    for _ in range(_WARM_UP + repeats):
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return tuple(samples[_WARM_UP:])
