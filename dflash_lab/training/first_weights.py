"""The weights that a run began with, made again from its settings and the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dflash_lab.drafter import Drafter, DrafterConfig


def first_weights(config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Make a run's first weights, without its target.

    Args:
        config: The run's settings, as `RunConfig.to_dict` gives them.
        shapes: Shapes of its drafter's tensors by name; some may be missing.

    Returns:
        Tensors by name, float32; their names are those that the drafter has.

    Raises:
        ValueError: If the shapes that are there do not say how wide the drafter is.
    """
    settings, seed = config["drafter"], config["seed"]
    assert isinstance(settings, Mapping) and isinstance(seed, int)
    width = _size(shapes, "norm.weight", 0)
    head_dim = _size(shapes, "self_attn.q_norm.weight", 0)
    shape = DrafterConfig(
        block_size=int(settings["block_size"]),
        num_hidden_layers=int(settings["num_hidden_layers"]),
        hidden_size=width,
        intermediate_size=_size(shapes, "mlp.gate_proj.weight", 0),
        num_attention_heads=_size(shapes, "self_attn.q_proj.weight", 0) // head_dim,
        num_key_value_heads=_size(shapes, "self_attn.k_proj.weight", 0) // head_dim,
        head_dim=head_dim,
        # Neither rotations nor ids nor which layers are tapped have a say in the first weights.
        rope_theta=10_000.0,
        vocab_size=2,
        mask_token_id=1,
        target_layer_ids=tuple(range(_size(shapes, "fc.weight", 1) // width)),
        num_target_layers=_size(shapes, "fc.weight", 1) // width,
    )
    return dict(Drafter(shape, seed=seed).state_dict())


def _size(shapes: Mapping[str, tuple[int, ...]], ending: str, axis: int) -> int:
    """Size of a tensor, or of the same one in any layer."""
    for name, shape in shapes.items():
        if (name == ending or name.endswith(f".{ending}") and name.startswith("layers.")) and len(shape) > axis:
            return shape[axis]
    raise ValueError(f"no tensor {ending} says how wide the drafter is")
