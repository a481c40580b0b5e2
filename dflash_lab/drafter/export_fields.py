"""config.json of an exported drafter, in the two layouts that servers read: written, and read with care."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_lab.drafter.config import DrafterConfig
from dflash_lab.drafter.field_reader import ExportFinding, FieldReader

FORMATS = ("z-lab", "speculators")
ARCHITECTURE = "DFlashDraftModel"
_FULL = "full_attention"

# What other writers add and the drafter's numbers do not depend on.
_HARMLESS = (
    "architectures auto_map bos_token_id eos_token_id pad_token_id attention_dropout initializer_range model_type "
    "max_position_embeddings max_window_layers sliding_window transformers_version dtype torch_dtype use_cache "
    "tie_word_embeddings speculators_version mlp_bias pretraining_tp"
).split()
# Fields that say that the drafter is another kind of model as soon as they have another value.
_FIXED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "causal": (False, None),
    "attention_sink_bias": (False, None),
    "projector_type": ("dflash", None),
    "shift_label": (False, None),
    "sample_from_anchor": (False, None),
}


@dataclass(frozen=True, kw_only=True)
class ExportFields:
    """What a config.json says.

    Args:
        format: "z-lab" or "speculators".
        config: The drafter's, or None where findings stand against it.
        dtype: As named in the file, or None where it is not.
        unknown_fields: Names that are not known here; they are left alone.
        findings: What is missing or not legal.
    """

    format: str
    config: DrafterConfig | None
    dtype: str | None
    unknown_fields: tuple[str, ...]
    findings: tuple[ExportFinding, ...]


def z_lab_fields(config: DrafterConfig, *, dtype: str, max_position_embeddings: int | None) -> dict[str, Any]:
    """Lay a config out as z-lab's and SpecForge's drafters have it.

    Args:
        config: The drafter's.
        dtype: Of the weights, such as "bfloat16".
        max_position_embeddings: The target's, for servers that cap the drafter's length; None leaves it out.
    """
    return {
        "architectures": [ARCHITECTURE],
        **_decoder_fields(config, max_position_embeddings),
        "block_size": config.block_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        "num_target_layers": config.num_target_layers,
        "tie_word_embeddings": False,
        "dtype": dtype,
    }


def speculators_fields(
    config: DrafterConfig,
    *,
    dtype: str,
    max_position_embeddings: int | None,
    verifier_name: str,
    verifier_architectures: Sequence[str],
) -> dict[str, Any]:
    """Lay a config out as the speculators library has it.

    Args:
        config: The drafter's.
        dtype: Of the weights.
        max_position_embeddings: As for `z_lab_fields`.
        verifier_name: Name or path of the target.
        verifier_architectures: Its model classes.
    """
    proposal = {"proposal_type": "greedy", "speculative_tokens": config.block_size - 1}
    return {
        "architectures": [ARCHITECTURE],
        "speculators_model_type": "dflash",
        # The layout has no place for the target's depth; a decoder's config takes any field.
        "transformer_layer_config": {
            **_decoder_fields(config, max_position_embeddings),
            "num_target_layers": config.num_target_layers,
        },
        "draft_vocab_size": config.vocab_size,
        "block_size": config.block_size,
        # Counted from the embedding's output, as transformers counts hidden_states.
        "aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier_name, "architectures": list(verifier_architectures)},
        },
        "tie_word_embeddings": False,
        "dtype": dtype,
    }


def read_fields(fields: dict[str, Any], *, num_target_layers: int | None = None) -> ExportFields:
    """Read a config.json of either layout, also one that somebody else wrote.

    Args:
        fields: The file's object.
        num_target_layers: Depth of the target, for files that do not say it.

    Returns:
        The config, or what stands against it.
    """
    speculators = "speculators_model_type" in fields
    outer = FieldReader(fields)
    for name in _HARMLESS:
        outer.skip(name)
    values = _speculators_values(outer) if speculators else _z_lab_values(outer)
    if values["num_target_layers"] is None:
        if num_target_layers is None:
            outer.find(
                "num_target_layers is missing",
                "the number of the target's layers, in the file or as the argument num_target_layers",
            )
        values["num_target_layers"] = num_target_layers
    config = None
    if not outer.findings:
        try:
            config = DrafterConfig(**values)
        except ValueError as error:
            what, _, legal = str(error).partition("; legal: ")
            outer.find(what, legal or "what DrafterConfig takes")
    dtype = fields.get("dtype", fields.get("torch_dtype"))
    return ExportFields(
        format="speculators" if speculators else "z-lab",
        config=config,
        dtype=dtype if isinstance(dtype, str) else None,
        unknown_fields=tuple(sorted(outer.unread())),
        findings=tuple(outer.findings),
    )


def _decoder_fields(config: DrafterConfig, max_position_embeddings: int | None) -> dict[str, Any]:
    """The fields of a Qwen3 decoder, which both layouts share."""
    length = {} if max_position_embeddings is None else {"max_position_embeddings": max_position_embeddings}
    return {
        "model_type": "qwen3",
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "layer_types": [_FULL] * config.num_hidden_layers,
        # transformers 5 reads the second; a loader that knows only the first would take 10,000 without a word.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "vocab_size": config.vocab_size,
        **length,
    }


def _z_lab_values(outer: FieldReader) -> dict[str, Any]:
    inner = outer.inner("dflash_config")
    values = _decoder_values(outer)
    # Newer files of z-lab keep it inside.
    inside = outer.value("block_size") is None and inner.value("block_size") is not None
    values["block_size"] = (inner if inside else outer).whole_number("block_size", 2)
    if not inside and inner.value("block_size") is not None:
        inner.one_of("block_size", (values["block_size"],))
    values["target_layer_ids"] = inner.whole_numbers("target_layer_ids", 0)
    values["mask_token_id"] = inner.whole_number("mask_token_id", 0)
    values["num_target_layers"] = outer.whole_number("num_target_layers", 1, required=False)
    _check_fixed(inner)
    return values


def _speculators_values(outer: FieldReader) -> dict[str, Any]:
    outer.one_of("speculators_model_type", ("dflash",))
    inner = outer.inner("transformer_layer_config")
    for name in _HARMLESS:
        inner.skip(name)
    values = _decoder_values(inner)
    values["block_size"] = outer.whole_number("block_size", 2)
    ids = outer.whole_numbers("aux_hidden_state_layer_ids", 1)
    values["target_layer_ids"] = None if ids is None else tuple(layer_id - 1 for layer_id in ids)
    values["mask_token_id"] = outer.whole_number("mask_token_id", 0)
    values["num_target_layers"] = inner.whole_number("num_target_layers", 1, required=False)
    # A drafter over part of the vocabulary has a head of its own.
    if values["vocab_size"] is not None:
        outer.one_of("draft_vocab_size", (values["vocab_size"],))
    if values["hidden_size"] is not None:
        outer.one_of("target_hidden_size", (values["hidden_size"], None), required=False)
    outer.skip("speculators_config")
    outer.skip("num_hidden_layers")
    outer.skip("sliding_window_non_causal")
    _check_fixed(outer)
    return values


def _decoder_values(reader: FieldReader) -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    values: dict[str, Any] = {name: reader.whole_number(name, 1) for name in names}
    values["vocab_size"] = reader.whole_number("vocab_size", 1)
    values["head_dim"] = reader.whole_number("head_dim", 1, required=False)
    if values["head_dim"] is None and values["hidden_size"] and values["num_attention_heads"]:
        # As transformers derives it where a config has none.
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
    values["rms_norm_eps"] = reader.number("rms_norm_eps")
    values["rope_theta"] = _rope_theta(reader)
    layer_types = reader.taken("layer_types")
    if layer_types is None:
        reader.one_of("use_sliding_window", (False, None), required=False)
    else:
        reader.skip("use_sliding_window")
        count = values["num_hidden_layers"]
        if layer_types != [_FULL] * (count or 1):
            reader.find(f"{reader.path('layer_types')} is {layer_types!r}", f"{_FULL!r}, once a layer")
    _check_fixed(reader)
    return values


def _rope_theta(reader: FieldReader) -> float | None:
    """Read the rotary base from where either version of transformers keeps it."""
    outside = reader.number("rope_theta", required=False)
    inside = None
    for name in ("rope_parameters", "rope_scaling"):
        parameters = reader.taken(name)
        if parameters is None:
            continue
        if not isinstance(parameters, dict):
            reader.find(f"{reader.path(name)} is {parameters!r}", "an object")
            continue
        part = FieldReader(parameters, reader.path(name), reader.findings)
        if part.taken("rope_type") not in (None, "default") or part.taken("type") not in (None, "default"):
            reader.find(f"{reader.path(name)} is {parameters!r}", "rope_type 'default': scaled positions are not known")
        inside = part.number("rope_theta", required=False) if inside is None else inside
    if outside is None and inside is None:
        reader.find(f"{reader.path('rope_theta')} is missing", "the target's, at top level or in rope_parameters")
    if outside is not None and inside is not None and outside != inside:
        reader.find(
            f"{reader.path('rope_theta')} is {outside} at top level and {inside} in rope_parameters", "the same in both"
        )
    return inside if outside is None else outside


def _check_fixed(reader: FieldReader) -> None:
    for name, legal in _FIXED.items():
        reader.one_of(name, legal, required=False)
