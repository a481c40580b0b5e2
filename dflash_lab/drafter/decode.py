"""Greedy decoding, plain and with a drafter: the same tokens, in fewer passes of the target."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dflash_lab.drafter.decoded import DecodedPrompt, check_count, checked_prompts
from dflash_lab.drafter.model import DraftContext, Drafter
from dflash_lab.drafter.tree import DraftTree, draft_chain, draft_tree, ranked
from dflash_lab.drafter.verifying import VerifyingTarget, disagreements

# Prompt tokens a pass: the target gives logits for each, and those of a long prompt at once would not fit.
_PREFILL_TOKENS = 1024


def speculative_decode(
    target: VerifyingTarget,
    drafter: Drafter,
    prompts: Sequence[Sequence[int] | torch.Tensor],
    max_new_tokens: int,
    *,
    tree_budget: int | None = None,
    eos_token_id: int | Collection[int] | None = None,
    max_positions: int | None = None,
) -> tuple[DecodedPrompt, ...]:
    """Decode greedily with drafts: token for token what `greedy_decode` gives.

    The target reads the prompt and gives a first token, the bonus. Then, over and over: the drafter sees the features
    of all tokens before the bonus token and fills a block behind it; one pass of the target verifies the block; the
    drafts that it would have chosen itself are accepted, with its own next token as the new bonus. With a tree budget
    the pass verifies the likeliest paths through the block at once, each node seeing its ancestors only.

    Equal means equal up to the target's arithmetic: a pass of 16 tokens rounds otherwise than 16 passes of one, so two
    logits that are next to equal can change places; in bfloat16 that happens, in float32 hardly ever.

    Prompts are decoded one after the other. The drafter is in eval mode meanwhile; afterwards both models are as they
    were. They may differ in device and dtype.

    Args:
        target: The target.
        drafter: A drafter for it.
        prompts: int64 (n,) each, at least one token.
        max_new_tokens: Tokens a prompt, >= 1, fewer where an end token comes first.
        tree_budget: Nodes of the tree that is verified, the anchor not counted; None verifies the plain block.
        eos_token_id: One or more tokens that end a text; None never ends it early.
        max_positions: Positions that the target has; None takes what it says of itself. A block behind the last tokens
            reaches up to block_size - 2 past what plain decoding needs, and is cut there.

    Returns:
        One result a prompt, in order.

    Raises:
        ValueError: If an argument is not legal, or the drafter is one for another target.

    Source: DFlash, arXiv 2602.06036; trees: DDTree, arXiv 2604.12989.
    """
    wrong = disagreements(drafter.config, target)
    if wrong:
        what = "; ".join(f"{name} is {own}; legal: {legal}" for name, (own, legal) in wrong.items())
        raise ValueError(f"the drafter is not one for {target.name}: {what}")
    check_count("tree_budget", tree_budget)
    check_count("max_positions", max_positions)
    checked, end_ids = checked_prompts(target, prompts, max_new_tokens, eos_token_id)
    with torch.no_grad(), _in_eval_mode(drafter):
        return tuple(
            _Speculation(target, drafter, tree_budget, max_positions).decode(prompt, max_new_tokens, end_ids)
            for prompt in checked
        )


def greedy_decode(
    target: VerifyingTarget,
    prompts: Sequence[Sequence[int] | torch.Tensor],
    max_new_tokens: int,
    *,
    eos_token_id: int | Collection[int] | None = None,
) -> tuple[DecodedPrompt, ...]:
    """Decode greedily, one pass of the target a token: the baseline, and what speculative decoding has to equal.

    Args:
        target: The target.
        prompts: int64 (n,) each, at least one token; decoded one after the other.
        max_new_tokens: Tokens a prompt, >= 1, fewer where an end token comes first.
        eos_token_id: One or more tokens that end a text; None never ends it early.

    Returns:
        One result a prompt, in order.

    Raises:
        ValueError: If an argument is not legal.
    """
    checked, end_ids = checked_prompts(target, prompts, max_new_tokens, eos_token_id)
    with torch.no_grad():
        return tuple(_greedy(target, prompt, max_new_tokens, end_ids) for prompt in checked)


def _greedy(
    target: VerifyingTarget, prompt: torch.Tensor, max_new_tokens: int, end_ids: frozenset[int]
) -> DecodedPrompt:
    begin = time.perf_counter()
    cache = target.new_cache()
    logits, _, num_calls = _prefill(target, prompt, cache)
    token_ids = [int(logits.argmax())]
    prefilled = time.perf_counter()
    while len(token_ids) < max_new_tokens and token_ids[-1] not in end_ids:
        step = target.extend(torch.tensor([token_ids[-1:]], device=target.device), cache)
        token_ids.append(int(step.logits[0, -1].argmax()))
    end = time.perf_counter()
    return DecodedPrompt(
        token_ids=tuple(token_ids),
        acceptance_lengths=(1,) * (len(token_ids) - 1),
        num_target_calls=num_calls + len(token_ids) - 1,
        num_drafter_calls=0,
        ended=token_ids[-1] in end_ids,
        prefill_seconds=prefilled - begin,
        drafter_seconds=0.0,
        tree_seconds=0.0,
        verify_seconds=end - prefilled,
        total_seconds=end - begin,
    )


class _Speculation:
    """One prompt on its way: both caches, and the clock of each stage.

    Every stage ends in numbers on the CPU, so that an accelerator's work is counted where it belongs.
    """

    def __init__(
        self, target: VerifyingTarget, drafter: Drafter, tree_budget: int | None, max_positions: int | None
    ) -> None:
        self.target, self.drafter = target, drafter
        self.tree_budget = tree_budget
        self.max_positions = target.max_positions if max_positions is None else max_positions
        self.drafter_device = next(drafter.parameters()).device
        self.cache = target.new_cache()
        self.context: DraftContext | None = None
        self.num_drafter_calls = 0
        self.seconds = dict.fromkeys(("prefill", "drafter", "tree", "verify"), 0.0)

    def decode(self, prompt: torch.Tensor, max_new_tokens: int, end_ids: frozenset[int]) -> DecodedPrompt:
        begin = time.perf_counter()
        with self._timed("prefill"):
            logits, features, num_prefills = _prefill(self.target, prompt, self.cache)
            token_ids = [int(logits.argmax())]
        acceptance_lengths = []
        while len(token_ids) < max_new_tokens and token_ids[-1] not in end_ids:
            tree = self._draft(token_ids[-1], features)
            accepted, features = self._verify(token_ids[-1], tree)
            acceptance_lengths.append(len(accepted))
            token_ids += _until_end(accepted, end_ids)
        token_ids = token_ids[:max_new_tokens]
        return DecodedPrompt(
            token_ids=tuple(token_ids),
            acceptance_lengths=tuple(acceptance_lengths),
            num_target_calls=num_prefills + len(acceptance_lengths),
            num_drafter_calls=self.num_drafter_calls,
            ended=token_ids[-1] in end_ids,
            prefill_seconds=self.seconds["prefill"],
            drafter_seconds=self.seconds["drafter"],
            tree_seconds=self.seconds["tree"],
            verify_seconds=self.seconds["verify"],
            total_seconds=time.perf_counter() - begin,
        )

    def _draft(self, bonus: int, features: torch.Tensor) -> DraftTree | None:
        """Draft behind the bonus token, whose position is the cache's length; None where there is no room.

        Args:
            bonus: The newest token, not yet seen by the target.
            features: (n, K * H) of the tokens before it that are new since the last draft.
        """
        config, start = self.drafter.config, self.cache.length
        num_slots = config.block_size - 1
        if self.max_positions is not None:
            num_slots = min(num_slots, self.max_positions - 1 - start)
            if num_slots < 1:
                return None
        with self._timed("drafter"):
            positions = torch.arange(start - len(features), start, device=self.drafter_device)
            newest = self.drafter.context(features.to(self.drafter_device), positions)
            self.context = newest if self.context is None else self.context.extended(newest)
            block = torch.full((1, config.block_size), config.mask_token_id, device=self.target.device)  # (1, B)
            block[0, 0] = bonus
            embeddings = self.target.embed(block).to(self.drafter_device)  # (1, B, H)
            slots = torch.arange(start, start + config.block_size, device=self.drafter_device)
            hidden = self.drafter.draft(embeddings, slots, self.context)  # (1, B, H)
            logits = self.target.lm_head(hidden[0, 1 : num_slots + 1].to(self.target.device))  # (S, V)
            log_probs = logits.float().log_softmax(-1)
            self.num_drafter_calls += 1
            # Only the best are looked at: they cross to the CPU, the vocabulary stays.
            values, token_ids = ranked(log_probs, self.tree_budget or 1, None)  # (S, K)
        with self._timed("tree"):
            if self.tree_budget is None:
                return draft_chain(values, token_ids=token_ids)
            return draft_tree(values, self.tree_budget, token_ids=token_ids)

    def _verify(self, bonus: int, tree: DraftTree | None) -> tuple[list[int], torch.Tensor]:
        """Verify a draft in one pass; what was not accepted leaves the cache.

        Returns:
            The accepted tokens with the new bonus token last, and the features (n, K * H) of the tokens before it.
        """
        start = self.cache.length
        if tree is None or self.tree_budget is None:
            drafted = [] if tree is None else tree.tokens.tolist()
            mask = positions = None
        else:
            with self._timed("tree"):
                drafted = tree.tokens.tolist()
                mask = tree.tree_mask().to(self.target.device)  # (n + 1, n + 1)
                positions = tree.position_ids(start)[None].to(self.target.device)  # (1, n + 1)
        with self._timed("verify"):
            input_ids = torch.tensor([[bonus, *drafted]], device=self.target.device)  # (1, n + 1)
            step = self.target.extend(input_ids, self.cache, position_ids=positions, tree_mask=mask)
            choices = step.logits[0].argmax(-1).tolist()
        path = [] if tree is None else tree.longest_path(choices)
        kept = [0, *(node + 1 for node in path)]
        self.cache.keep(start, torch.tensor(kept, device=self.target.device))
        features = step.hidden[0, torch.tensor(kept, device=step.hidden.device)]
        return [*(drafted[node] for node in path), choices[kept[-1]]], features

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - begin


def _prefill(target: VerifyingTarget, prompt: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Read a prompt (n,): logits (V,) behind its last token, features (n, K * H), and the passes that it took."""
    parts = prompt.to(target.device).split(_PREFILL_TOKENS)
    features = []
    for part in parts:
        step = target.extend(part[None], cache)
        features.append(step.hidden[0])
    return step.logits[0, -1], torch.cat(features), len(parts)


def _until_end(tokens: list[int], end_ids: frozenset[int]) -> list[int]:
    for number, token in enumerate(tokens):
        if token in end_ids:
            return tokens[: number + 1]
    return tokens


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a model into eval mode for a while; parts may have stood in different modes."""
    modes = {each: each.training for each in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for each, training in modes.items():
            each.training = training
