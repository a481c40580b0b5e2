"""What a Hugging Face causal LM is made of: its decoder layers, which of them look back how far, its rotary base."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DEFAULT_NUM_TAPS = 5
DEFAULT_ROPE_THETA = 10_000.0
# Where a sliding layer sees `sliding_window` tokens, itself included.
_SLIDING = "sliding_attention"
_FULL = "full_attention"


def default_target_layer_ids(num_layers: int, num_taps: int | None = None) -> tuple[int, ...]:
    """Choose the layers to tap: evenly from the second to the fourth last.

    Args:
        num_layers: Layers of the target.
        num_taps: How many, >= 1; None takes 5, or as many fewer as give different layers.

    Returns:
        Layer numbers from 0, increasing; 36 layers and 5 taps give 1, 9, 17, 25, 33.

    Raises:
        ValueError: If the layers would repeat, as they do in a target of 4 layers or fewer.

    Source: DFlash, arXiv 2602.06036, and its published code.
    """
    if num_taps is not None and num_taps < 1:
        raise ValueError(f"num_taps is {num_taps}; legal: a whole number >= 1")
    for number in range(DEFAULT_NUM_TAPS, 1, -1) if num_taps is None else (num_taps,):
        if number == 1:
            ids = (num_layers // 2,)
        else:
            ids = tuple(round(1 + i * (num_layers - 4) / (number - 1)) for i in range(number))
        if len(set(ids)) == number and 0 <= min(ids) and max(ids) < num_layers:
            return ids
    wanted = "" if num_taps is None else f" with {num_taps} taps"
    raise ValueError(
        f"a target of {num_layers} layers has no target_layer_ids by default{wanted}, since they would repeat; legal: "
        f"name them, such as {tuple(range(min(num_layers, 3)))}"
    )


def checked_target_layer_ids(ids: tuple[int, ...] | list[int], num_layers: int) -> tuple[int, ...]:
    """Check layers to tap.

    Raises:
        ValueError: If they are not increasing numbers of layers.
    """
    found = tuple(int(number) for number in ids)
    increasing = all(a < b for a, b in zip(found, found[1:], strict=False))
    if not found or not increasing or found[0] < 0 or found[-1] >= num_layers:
        raise ValueError(f"target_layer_ids is {list(ids)}; legal: different layers in [0, {num_layers}), increasing")
    return found


def text_config(model: nn.Module) -> Any:
    """Give the configuration of the model's text decoder."""
    return model.config.get_text_config(decoder=True)


def decoder_of(model: nn.Module) -> nn.Module:
    """Give the module that turns ids into states, without the head.

    Raises:
        ValueError: If it has none that takes part in a causal LM.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config") or model.get_output_embeddings() is None:
        raise ValueError(f"model is a {type(model).__name__}; legal: a transformers causal LM with its head")
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return model.base_model if decoder is None or decoder is model else decoder


def layers_of(decoder: nn.Module, num_layers: int) -> nn.ModuleList:
    """Find the decoder's layers.

    Raises:
        ValueError: If it does not hold exactly one list of that many layers.
    """
    lists = {name: child for name, child in decoder.named_children() if isinstance(child, nn.ModuleList)}
    fitting = [child for child in lists.values() if len(child) == num_layers]
    if len(fitting) != 1:
        found = ", ".join(f"{name}: {len(child)}" for name, child in lists.items()) or "none"
        raise ValueError(
            f"{type(decoder).__name__} holds the lists of modules {found}; legal: exactly one of its {num_layers} "
            f"layers"
        )
    return fitting[0]


def windows_of(config: Any) -> tuple[int | None, ...]:
    """Tell how far back each layer looks.

    Args:
        config: Of the text decoder.

    Returns:
        One entry a layer: tokens seen, itself included, or None where it sees all.

    Raises:
        ValueError: If a layer is neither full nor sliding attention.
    """
    window = config.sliding_window if hasattr(config, "sliding_window") else None
    kinds = config.layer_types if hasattr(config, "layer_types") else None
    if kinds is None:
        # Mistral: all layers slide. Other models without the list keep the window of a sibling and switch it off.
        off = hasattr(config, "use_sliding_window") and not config.use_sliding_window
        return (None if off else window,) * config.num_hidden_layers
    strange = sorted(set(kinds) - {_FULL, _SLIDING})
    if strange:
        raise ValueError(f"layers of kind {', '.join(strange)} are not supported; legal: {_FULL}, {_SLIDING}")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def rope_theta_of(config: Any) -> float:
    """Read the base of the rotary positions.

    transformers 5 keeps it in `rope_parameters`, 4.x in `rope_theta`. Where layers have bases of their own (Gemma 3)
    this is the one of the layers that see everything. Scaling of long contexts is not part of it.

    Args:
        config: Of the text decoder.

    Returns:
        The base; 10,000 where the model has no rotary positions.
    """
    parameters = config.rope_parameters if hasattr(config, "rope_parameters") else None
    if isinstance(parameters, dict) and parameters:
        if _FULL in parameters:
            parameters = parameters[_FULL]
        if parameters.get("rope_theta") is not None:
            return float(parameters["rope_theta"])
    theta = config.rope_theta if hasattr(config, "rope_theta") else None
    return DEFAULT_ROPE_THETA if theta is None else float(theta)


def embedding_scale_of(model: nn.Module, config: Any) -> float:
    """Tell what the decoder multiplies embeddings by after its embedding module."""
    if hasattr(config, "embedding_multiplier"):
        return float(config.embedding_multiplier)
    # Gemma 1 and 2 scaled in the decoder before transformers 5, and in the embedding since.
    if config.model_type in ("gemma", "gemma2") and not hasattr(model.get_input_embeddings(), "embed_scale"):
        return float(config.hidden_size**0.5)
    return 1.0


def transformed_logits(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Apply what the model does to the head's product: Gemma 2's soft cap, Granite's and Cohere's scale."""
    if hasattr(config, "logits_scaling"):
        logits = logits / config.logits_scaling
    if hasattr(config, "logit_scale") and config.logit_scale is not None:
        logits = logits * config.logit_scale
    cap = config.final_logit_softcapping if hasattr(config, "final_logit_softcapping") else None
    return logits if cap is None else torch.tanh(logits / cap) * cap


def control_ids_of(model: nn.Module, config: Any) -> tuple[int, ...]:
    """Give the ids that mean padding, begin or end to a model, as its settings name them.

    Args:
        model: The model; one that generates has settings of its own for that.
        config: Its text config.

    Returns:
        Different ids, increasing.
    """
    sources = [config] + ([model.generation_config] if model.can_generate() else [])
    named = [vars(source).get(name) for source in sources for name in ("pad_token_id", "bos_token_id", "eos_token_id")]
    found = [each for held in named for each in (held if isinstance(held, list | tuple) else [held])]
    return tuple(sorted({int(each) for each in found if each is not None}))


# Of many families; each has some of them.
_DECIDING = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "attention_multiplier",
    "residual_multiplier",
    "embedding_multiplier",
    "num_experts_per_tok",
)


def settings_of(config: Any) -> dict[str, object]:
    """Give the settings of a model that decide what it computes and are no weights, as plain data.

    Args:
        config: The model's text config.
    """
    held = config.to_dict()
    return {name: _plain(held[name]) for name in _DECIDING if held.get(name) is not None}


def max_positions_of(config: Any) -> int | None:
    """Give the number of positions that a model has; None where its config does not say."""
    return int(config.max_position_embeddings) if hasattr(config, "max_position_embeddings") else None


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _plain(held) for name, held in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
