"""How the TinyTarget is trained: a language model of two million parameters, on the built-in corpus, in two minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from dflash_lab.data.dataset import PreloadedDataset
from dflash_lab.target.muon import Muon
from dflash_lab.target.progress import MakingProgress

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

# Every so many-th conversation is never trained on.
HELD_OUT_EVERY = 20
# Of so many held-out conversations at most so many tokens are looked at: about 10,000 of the assistant's, in 2 seconds.
_MEASURED = 100
_MEASURED_TOKENS = 384
_WARM_UP_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class TinySettings:
    """Everything that the TinyTarget's weights follow from, beside the corpus.

    It trains in float32: a step in bfloat16 took 7 times as long on a processor without bfloat16 instructions. After
    250 steps of 4 x 256 tokens AdamW alone had a held-out loss of 4.78 (105 CPU-seconds, `other_lr` 0.003). Muon had
    4.14, 4.05, 3.87 and 3.85 (98 to 120 CPU-seconds) with `other_lr` of 0.006, 0.012, 0.025 and 0.05: one run each.

    Args:
        steps: Optimizer steps, >= 1.
        seed: Of first weights and of what is read, >= 0.
        batch_size: Stretches of text a step, >= 1.
        seq_len: Tokens of a stretch, >= 2.
        matrix_lr: Muon's learning rate, for the layers' matrices; > 0.
        other_lr: AdamW's, for embeddings and norms; > 0.
        hidden_size: Width.
        intermediate_size: Width inside the feed-forward parts.
        num_layers: Layers.
    """

    steps: int
    seed: int = 0
    batch_size: int = 4
    seq_len: int = 256
    matrix_lr: float = 0.02
    other_lr: float = 3e-2
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 4

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("seed", 0), ("batch_size", 1), ("seq_len", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; legal: a whole number >= {least}")


@dataclass(frozen=True, kw_only=True)
class TinyReport:
    """How the training went.

    Args:
        steps: Optimizer steps.
        seed: Seed.
        num_parameters: Of the model.
        num_trained_tokens: Tokens that were read, repeated ones as often as they were.
        seconds: Of the training, by the clock.
        num_threads: torch's threads.
        held_out_loss: Mean cross-entropy in nats, on the assistant's tokens of conversations that were never trained
            on.
        held_out_top1: Share of those tokens that were the model's first guess.
        num_held_out_tokens: How many they were.
        corpus: Fingerprint of the corpus.
    """

    steps: int
    seed: int
    num_parameters: int
    num_trained_tokens: int
    seconds: float
    num_threads: int
    held_out_loss: float
    held_out_top1: float
    num_held_out_tokens: int
    corpus: str


def held_out(num_samples: int) -> np.ndarray:
    """Tell which conversations are never trained on: bool (num_samples,)."""
    return np.arange(num_samples) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def tiny_model(settings: TinySettings, vocab_size: int) -> Qwen3ForCausalLM:
    """Make the model with its first weights; torch's own generator stays as it is."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.hidden_size // 32,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return Qwen3ForCausalLM(config)


def train_tiny(
    corpus: PreloadedDataset, settings: TinySettings, *, vocab_size: int, progress: bool
) -> tuple[Qwen3ForCausalLM, TinyReport]:
    """Train on the conversations that are not held out, and measure on those that are.

    Args:
        corpus: Conversations as tokens.
        settings: What the weights follow from.
        vocab_size: Number of token ids.
        progress: Say on standard error how far it is.

    Returns:
        The model and how it went.
    """
    model = tiny_model(settings, vocab_size).train()
    text = np.concatenate([corpus.token_views(number)[0] for number in np.flatnonzero(~held_out(len(corpus)))])
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    known = set(map(id, matrices))
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    optimizers = (
        Muon(matrices, lr=settings.matrix_lr),
        torch.optim.AdamW(others, lr=settings.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    )
    rates = torch.optim.lr_scheduler.LambdaLR
    schedules = [rates(optimizer, lambda step: _rate(step, settings.steps)) for optimizer in optimizers]
    rng = np.random.default_rng((settings.seed, 0))
    saying = MakingProgress("training the TinyTarget", quiet=not progress)
    begin = time.monotonic()
    for step in range(settings.steps):
        loss = _loss(model, _stretches(text, rng, settings))
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        saying.update((step + 1) / settings.steps, f"loss {float(loss.detach()):.2f}")
    seconds = time.monotonic() - begin
    loss_sum, num_right, num_tokens = _measured(model.eval(), corpus)
    return model, TinyReport(
        steps=settings.steps,
        seed=settings.seed,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_trained_tokens=settings.steps * settings.batch_size * settings.seq_len,
        seconds=seconds,
        num_threads=torch.get_num_threads(),
        held_out_loss=loss_sum / num_tokens,
        held_out_top1=num_right / num_tokens,
        num_held_out_tokens=num_tokens,
        corpus=corpus.fingerprint,
    )


def _rate(step: int, steps: int) -> float:
    """Up in a few steps, then straight down to 0."""
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (1 - step / steps)


def _stretches(text: np.ndarray, rng: np.random.Generator, settings: TinySettings) -> torch.Tensor:
    """Cut stretches out of the text, from anywhere: int64 (batch_size, seq_len + 1)."""
    length = min(settings.seq_len + 1, len(text))
    starts = rng.integers(0, len(text) - length + 1, settings.batch_size)
    return torch.from_numpy(np.stack([text[start : start + length] for start in starts]).astype(np.int64))


def _loss(model: Qwen3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    states = model.model(ids[:, :-1], use_cache=False).last_hidden_state  # (B, T, H)
    return functional.cross_entropy(model.lm_head(states).flatten(0, 1), ids[:, 1:].flatten())


@torch.inference_mode()
def _measured(model: Qwen3ForCausalLM, corpus: PreloadedDataset) -> tuple[float, int, int]:
    """Sum loss, right guesses and tokens over the assistant's turns of held-out conversations."""
    loss_sum, num_right, num_tokens = 0.0, 0, 0
    numbers = np.flatnonzero(held_out(len(corpus)))
    for number in numbers[:: -(-len(numbers) // _MEASURED)].tolist():
        sample = corpus[number]
        ids = torch.from_numpy(sample.input_ids[:_MEASURED_TOKENS])
        is_scored = torch.from_numpy(sample.loss_mask[1:_MEASURED_TOKENS])
        states = model.model(ids[None, :-1], use_cache=False).last_hidden_state[0]  # (T, H)
        logits, labels = model.lm_head(states[is_scored]), ids[1:][is_scored]
        loss_sum += float(functional.cross_entropy(logits, labels, reduction="sum"))
        num_right += int((logits.argmax(-1) == labels).sum())
        num_tokens += len(labels)
    return loss_sum, num_right, num_tokens
