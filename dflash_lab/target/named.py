"""Targets by name, each with what else a run needs to know of it: tokenizer, end of text, and an unused id."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.data.corpus import VOCAB_SIZE, builtin_tokenizer
from dflash_lab.data.paths import user_path
from dflash_lab.target.hf import TransformersTarget
from dflash_lab.target.smollm2 import smollm2_target, smollm2_tokenizer
from dflash_lab.target.tiny import TARGET_LAYER_IDS, TinyTarget
from dflash_lab.target.tiny_training import TinySettings, tiny_model

NAMES = ("tiny", "random", "smollm2")


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedTarget:
    """A target with its tokenizer.

    Args:
        target: The target, on the CPU.
        tokenizer: Its fast Hugging Face tokenizer.
        end_ids: Ids that end its text; none where the tokenizer names none.
        mask_token_id: An id that no text holds, for the drafter's mask.
    """

    target: TransformersTarget
    tokenizer: Any
    end_ids: tuple[int, ...]
    mask_token_id: int


def open_target(name: str, *, mask_token_id: int | None = None, seed: int = 0) -> NamedTarget:
    """Open a target by its name.

    Args:
        name: "tiny" (the TinyTarget, trained first where it has not been), "random" (its shape with random weights:
            nothing to learn from, but data and settings can be tried in seconds), "smollm2" (SmolLM2-135M-Instruct,
            from an optional package), or the folder of a causal LM of transformers with its tokenizer.
        mask_token_id: None takes the tokenizer's own mask token, else an id that the tokenizer leaves unused, else its
            last control token that means neither padding, begin, end, unknown nor a turn's limits.
        seed: Of the random weights, >= 0; the others have their own.

    Raises:
        ImportError: If "smollm2" is asked for and its packages are missing.
        ValueError: If there is no such target, or no id is unused.
    """
    target: TransformersTarget
    if name == "tiny":
        target, tokenizer = TinyTarget.load_or_train(), builtin_tokenizer()
    elif name == "random":
        model = tiny_model(TinySettings(steps=1, seed=seed), VOCAB_SIZE)
        target = TransformersTarget(model, target_layer_ids=TARGET_LAYER_IDS, name=f"random-{seed}")
        tokenizer = builtin_tokenizer()
    elif name == "smollm2":
        target, tokenizer = smollm2_target(), smollm2_tokenizer()
    else:
        target, tokenizer = _from_folder(name)
    end_ids = _end_ids(target.model, tokenizer)
    if mask_token_id is None:
        mask_token_id = unused_id(tokenizer, target.vocab_size, end_ids)
    return NamedTarget(target=target, tokenizer=tokenizer, end_ids=end_ids, mask_token_id=mask_token_id)


def unused_id(tokenizer: Any, vocab_size: int, taken_ids: Collection[int] = ()) -> int:
    """Find an id for the drafter's mask.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        vocab_size: Rows of the target's embedding.
        taken_ids: Ids that mean something, beside those that the tokenizer names.

    Raises:
        ValueError: If every id means something.
    """
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    if len(tokenizer) < vocab_size:
        return len(tokenizer)
    named = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    template = str(tokenizer.chat_template or "")
    control = [
        number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special and number not in named | set(taken_ids) and token.content not in template
    ]
    if not control:
        raise ValueError(
            f"every one of the {vocab_size} ids of the tokenizer means something; legal: name mask_token_id, an id "
            f"that your texts do not hold"
        )
    return max(control)


def _from_folder(name: str) -> tuple[TransformersTarget, Any]:
    folder: Path = user_path(name, name="target")
    if not (folder / "config.json").is_file():
        raise ValueError(f"target is {name!r}; legal: {', '.join(NAMES)}, or the folder of a model (with config.json)")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
    return TransformersTarget(model), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Give the model's own end ids and the tokenizer's; a model may have several."""
    own = model.generation_config.eos_token_id if model.can_generate() else None
    ids = [own] if isinstance(own, int) else list(own or [])
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return tuple(sorted({int(each) for each in ids}))
