"""Exports key by key as servers read them, files that others wrote, and what the lint finds."""

import copy
import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dflash_lab.drafter import Drafter, DrafterConfig
from dflash_lab.drafter import export_tensors as export_tensors_module
from dflash_lab.drafter.export import SpeculatorsVerifier, export_drafter, load_drafter, read_export
from dflash_lab.drafter.lint import lint_export

CONFIG = DrafterConfig(
    block_size=6,
    num_hidden_layers=2,
    hidden_size=12,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1_000_000.0,
    vocab_size=40,
    mask_token_id=39,
    target_layer_ids=(1, 4, 7),
    num_target_layers=10,
)
LAYER_SHAPES = {
    "self_attn.q_proj.weight": (32, 12),
    "self_attn.k_proj.weight": (16, 12),
    "self_attn.v_proj.weight": (16, 12),
    "self_attn.o_proj.weight": (12, 32),
    "self_attn.q_norm.weight": (8,),
    "self_attn.k_norm.weight": (8,),
    "mlp.gate_proj.weight": (20, 12),
    "mlp.up_proj.weight": (20, 12),
    "mlp.down_proj.weight": (12, 20),
    "input_layernorm.weight": (12,),
    "post_attention_layernorm.weight": (12,),
}
SHAPES = {
    **{f"layers.{layer}.{name}": shape for layer in range(2) for name, shape in LAYER_SHAPES.items()},
    "fc.weight": (12, 36),
    "hidden_norm.weight": (12,),
    "norm.weight": (12,),
}
# As other writers leave it: one file of transformers 4, one of transformers 5, one of speculators.
DECODER = {
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-05,
    "vocab_size": 40,
}
Z_LAB = {
    **DECODER,
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 6,
    "bos_token_id": 1,
    "dflash_config": {"mask_token_id": 39, "target_layer_ids": [1, 4, 7]},
    "dtype": "float32",
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_target_layers": 10,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.3",
    "use_cache": True,
    "use_sliding_window": False,
}
SPECULATORS = {
    "architectures": ["DFlashDraftModel"],
    "aux_hidden_state_layer_ids": [2, 5, 8],
    "block_size": 6,
    "draft_vocab_size": 40,
    "dtype": "float32",
    "mask_token_id": 39,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1}],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "some/target"},
    },
    "speculators_model_type": "dflash",
    "speculators_version": "0.5.0",
    "transformer_layer_config": {
        **DECODER,
        "model_type": "qwen3",
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "rope_theta": 1000000.0,
    },
}


class PlainTarget:
    """An embedding with a scale, and a head, as a target gives them."""

    hidden_size, num_layers, vocab_size, target_layer_ids = 12, 10, 40, (1, 4, 7)
    rope_theta, name, device, dtype = 1_000_000.0, "some/target", torch.device("cpu"), torch.float32

    def __init__(self, *, bias=0.0, **changes):
        generator = torch.Generator().manual_seed(5)
        self.table = torch.randn(40, 12, generator=generator)
        self.head = torch.randn(40, 12, generator=generator)
        self.bias = bias
        for name, value in changes.items():
            setattr(self, name, value)

    def embed(self, input_ids):
        return self.table[input_ids] * 3.5

    def lm_head(self, hidden):
        return hidden @ self.head.T + self.bias


def make_tensors(seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in {**SHAPES, **more}.items()}


def make_drafter(seed=0):
    drafter = Drafter(CONFIG)
    drafter.load_state_dict(make_tensors(seed))
    return drafter


def make_verifier():
    return SpeculatorsVerifier.from_target(PlainTarget(), architectures=["Qwen3ForCausalLM"])


def write(folder, fields, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    return folder


def changed(fields, **changes):
    """A deep copy with dotted fields set, or taken out where the value is `...`."""
    copied = copy.deepcopy(fields)
    for dotted, value in changes.items():
        *path, name = dotted.split("__")
        place = copied
        for part in path:
            place = place[part]
        if value is ...:
            del place[name]
        else:
            place[name] = value
    return copied


def errors(path, target=None):
    return [finding.what for finding in lint_export(path, target) if finding.severity == "error"]


def test_z_lab_config_key_by_key(tmp_path):
    export_drafter(make_drafter(), tmp_path / "out", max_position_embeddings=4096)
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 6,
        "dflash_config": {"mask_token_id": 39, "target_layer_ids": [1, 4, 7]},
        "num_target_layers": 10,
        "num_hidden_layers": 2,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "layer_types": ["full_attention", "full_attention"],
        "rope_theta": 1_000_000.0,
        "vocab_size": 40,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        # Said so that no reader falls back on a default of its own.
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 4096,
    }


def test_z_lab_tensors_are_the_drafters_alone(tmp_path):
    drafter = make_drafter()
    for dtype in ("bfloat16", "float32"):
        folder = export_drafter(drafter, tmp_path / dtype, dtype=dtype)
        stored = load_file(folder / "model.safetensors")
        assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == SHAPES
        for name, tensor in make_tensors().items():
            assert torch.equal(stored[name], tensor.to(getattr(torch, dtype)))
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
    assert all(parameter.dtype == torch.float32 for parameter in drafter.parameters())


def test_speculators_config_key_by_key(tmp_path):
    export_drafter(make_drafter(), tmp_path / "out", format="speculators", dtype="float32", verifier=make_verifier())
    fields = json.loads((tmp_path / "out/config.json").read_text())
    decoder = fields.pop("transformer_layer_config")
    assert fields == {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "draft_vocab_size": 40,
        "block_size": 6,
        "aux_hidden_state_layer_ids": [2, 5, 8],
        "mask_token_id": 39,
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "some/target", "architectures": ["Qwen3ForCausalLM"]},
        },
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    assert {name: decoder[name] for name in DECODER} == DECODER
    assert (decoder["model_type"], decoder["rope_theta"]) == ("qwen3", 1_000_000.0)
    stored = load_file(tmp_path / "out/model.safetensors")
    target = PlainTarget()
    assert set(stored) == {*SHAPES, "embed_tokens.weight", "lm_head.weight"}
    # What the drafter was given, with the target's scale.
    assert torch.equal(stored["embed_tokens.weight"], target.table * 3.5)
    assert torch.equal(stored["lm_head.weight"], target.head)


def test_transformers_reads_the_rotary_base_from_both_layouts(tmp_path):
    from transformers import AutoConfig

    export_drafter(make_drafter(), tmp_path / "z")
    config = AutoConfig.from_pretrained(tmp_path / "z")
    theta = config.rope_parameters["rope_theta"] if hasattr(config, "rope_parameters") else config.rope_theta
    assert (type(config).__name__, theta, config.head_dim) == ("Qwen3Config", 1_000_000.0, 8)
    assert (config.num_hidden_layers, config.rms_norm_eps, config.vocab_size) == (2, 1e-5, 40)


@pytest.mark.parametrize("format", ["z-lab", "speculators"])
def test_round_trip(tmp_path, format):
    drafter = make_drafter()
    verifier = make_verifier() if format == "speculators" else None
    folder = export_drafter(drafter, tmp_path / "out", format=format, dtype="float32", verifier=verifier)
    generator = torch.get_rng_state()
    loaded = load_drafter(folder)
    assert torch.equal(torch.get_rng_state(), generator)
    assert loaded.config == CONFIG and not loaded.training
    assert all(torch.equal(value, drafter.state_dict()[name]) for name, value in loaded.state_dict().items())
    features, embeddings = torch.randn(5, 36), torch.randn(1, 6, 12)
    with torch.no_grad():
        drafts = [
            each.draft(embeddings, torch.arange(5, 11), each.context(features, torch.arange(5)))
            for each in (drafter, loaded)
        ]
    assert torch.equal(*drafts)
    assert read_export(folder).unknown_fields == ()
    assert lint_export(folder, PlainTarget()) == ()


def test_bfloat16_comes_back_in_the_dtype_asked_for(tmp_path):
    folder = export_drafter(make_drafter(), tmp_path / "out")
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load_drafter(folder, dtype=dtype)
        for name, tensor in make_tensors().items():
            assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().to(dtype))
    assert read_export(folder).dtype == "bfloat16"


@pytest.mark.parametrize(
    "fields",
    [
        Z_LAB,
        # transformers 5 drops the field at top level; z-lab's newer files put the block size inside.
        changed(
            Z_LAB,
            rope_theta=...,
            rope_scaling=...,
            rope_parameters={"rope_theta": 1000000, "rope_type": "default"},
            block_size=...,
            dflash_config__block_size=6,
        ),
        changed(Z_LAB, layer_types=..., torch_dtype="float32", dtype=..., tie_word_embeddings=True),
        changed(SPECULATORS, transformer_layer_config__num_target_layers=10),
    ],
)
def test_files_of_other_writers_load(tmp_path, fields):
    tensors = make_tensors()
    if "speculators_model_type" in fields:
        tensors = make_tensors(**{"embed_tokens.weight": (40, 12), "lm_head.weight": (40, 12)})
    folder = write(tmp_path / "theirs", fields, tensors)
    loaded = load_drafter(folder)
    assert loaded.config == CONFIG
    assert all(torch.equal(value, tensors[name]) for name, value in loaded.state_dict().items())
    found = read_export(folder)
    assert found.unknown_fields == () and found.dtype == "float32"
    assert found.unused_tensors == tuple(sorted(set(tensors) - set(SHAPES)))


def test_a_missing_head_dim_is_derived_as_transformers_does(tmp_path):
    shapes = {
        name: tuple({32: 12, 16: 6, 8: 3}.get(size, size) if "self_attn" in name else size for size in shape)
        for name, shape in SHAPES.items()
    }
    fields = changed(Z_LAB, head_dim=..., num_attention_heads=2, num_key_value_heads=1)
    shapes = {name: tuple(6 if size == 3 else size for size in shape) for name, shape in shapes.items()}
    folder = write(tmp_path / "theirs", fields, {name: torch.ones(shape) for name, shape in shapes.items()})
    assert load_drafter(folder).config.head_dim == 6


def test_depth_of_the_target_is_asked_for_where_a_file_does_not_say_it(tmp_path):
    folder = write(tmp_path / "theirs", SPECULATORS, make_tensors())
    with pytest.raises(ValueError, match="num_target_layers is missing; legal: the number of the target's layers"):
        load_drafter(folder)
    assert load_drafter(folder, num_target_layers=10).config == CONFIG


def test_unknown_fields_are_listed_and_left_alone(tmp_path):
    fields = changed(Z_LAB, use_q_head=True, dflash_config__sampler="greedy")
    folder = write(tmp_path / "theirs", fields, make_tensors())
    assert load_drafter(folder).config == CONFIG
    assert read_export(folder).unknown_fields == ("dflash_config.sampler", "use_q_head")
    notes = [finding.what for finding in lint_export(folder) if finding.severity == "note"]
    assert [what.split()[0] for what in notes] == ["dflash_config.sampler", "use_q_head"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {name: ...},
            f"{name} is missing",
        )
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "num_hidden_layers",
            "vocab_size",
            "rms_norm_eps",
            "rope_theta",
            "block_size",
            "num_target_layers",
            "dflash_config",
        )
    ]
    + [
        ({"dflash_config__mask_token_id": ...}, "dflash_config.mask_token_id is missing; legal: a whole number >= 0"),
        ({"dflash_config__mask_token_id": None}, "dflash_config.mask_token_id is None"),
        ({"dflash_config__mask_token_id": 40}, r"mask_token_id is 40; legal: in \[0, 40\)"),
        ({"dflash_config__target_layer_ids": [1, 4, 10]}, r"target_layer_ids is \[1, 4, 10\]; legal: different whole"),
        ({"dflash_config__target_layer_ids": []}, r"target_layer_ids is \[\]; legal: a list of whole numbers >= 0"),
        ({"dflash_config__causal": True}, "dflash_config.causal is True; legal: False"),
        ({"dflash_config__block_size": 8}, "dflash_config.block_size is 8; legal: 6"),
        ({"block_size": 1}, "block_size is 1; legal: a whole number >= 2"),
        ({"hidden_size": 12.0}, "hidden_size is 12.0; legal: a whole number >= 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; legal: 'silu'"),
        ({"attention_bias": True}, "attention_bias is True; legal: False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is .*sliding_attention.*legal: 'full"),
        ({"layer_types": ["full_attention"]}, "legal: 'full_attention', once a layer"),
        ({"layer_types": ..., "use_sliding_window": True}, "use_sliding_window is True; legal: False"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling is .*yarn.*legal: rope_type 'default'"),
        ({"rope_parameters": {"rope_theta": 10000.0}}, "rope_theta is 1000000.0 at top level and 10000.0 in rope_par"),
        ({"rope_theta": 0}, "rope_theta is 0; legal: a number > 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; legal: a divisor of num_attention_heads 4"),
    ],
)
def test_fields_that_are_missing_or_wrong_are_named(tmp_path, changes, message):
    folder = write(tmp_path / "theirs", changed(Z_LAB, **changes), make_tensors())
    with pytest.raises(ValueError, match=f"config.json: .*{message}"):
        load_drafter(folder)
    assert errors(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type is 'eagle3'; legal: 'dflash'"),
        ({"draft_vocab_size": 32}, "draft_vocab_size is 32; legal: 40"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is None; legal: a list of whole numbers"),
        ({"aux_hidden_state_layer_ids": [0, 3]}, r"aux_hidden_state_layer_ids is \[0, 3\]"),
        ({"mask_token_id": ...}, "mask_token_id is missing"),
        ({"projector_type": "domino"}, "projector_type is 'domino'; legal: 'dflash'"),
        ({"sample_from_anchor": True}, "sample_from_anchor is True; legal: False"),
        ({"target_hidden_size": 24}, "target_hidden_size is 24; legal: 12"),
        ({"transformer_layer_config": ...}, "transformer_layer_config is missing; legal: an object"),
        ({"transformer_layer_config__rope_theta": 1.0}, "transformer_layer_config.rope_theta is 1.0 at top level and"),
        ({"transformer_layer_config__vocab_size": ...}, "transformer_layer_config.vocab_size is missing"),
    ],
)
def test_speculators_fields_that_are_missing_or_wrong_are_named(tmp_path, changes, message):
    folder = write(tmp_path / "theirs", changed(SPECULATORS, **changes), make_tensors())
    with pytest.raises(ValueError, match=message):
        load_drafter(folder, num_target_layers=10)


def write_shards(folder, **weight_map):
    tensors = make_tensors()
    write(folder, Z_LAB, tensors)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for file, of_file in parts.items():
        save_file({name: tensors[name] for name in of_file}, folder / file)
    full_map = {name: file for file, of_file in parts.items() for name in of_file}
    index = {"metadata": {"total_size": 1}, "weight_map": {**full_map, **weight_map}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


def test_shards_load_by_their_index(tmp_path):
    tensors = write_shards(tmp_path / "theirs")
    loaded = load_drafter(tmp_path / "theirs")
    assert all(torch.equal(value, tensors[name]) for name, value in loaded.state_dict().items())
    assert lint_export(tmp_path / "theirs", PlainTarget()) == ()


def test_broken_shards_are_named(tmp_path):
    folder = tmp_path / "theirs"
    write_shards(folder, **{"norm.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(ValueError, match="model-00001-of-00002.safetensors lacks norm.weight"):
        load_drafter(folder)
    write_shards(folder, **{"norm.weight": "../elsewhere.safetensors"})
    with pytest.raises(ValueError, match="puts norm.weight in '../elsewhere.safetensors'; legal: a file name"):
        load_drafter(folder)
    write_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00002.safetensors is missing"):
        load_drafter(folder)
    assert errors(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="has no weight_map"):
        load_drafter(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tensors: tensors.pop("layers.1.mlp.up_proj.weight"), "lacks 1 tensors: layers.1.mlp.up_proj.weight"),
        (lambda tensors: tensors.update({"d2t": torch.ones(3)}), "tensors that a drafter does not have: d2t"),
        (
            lambda tensors: tensors.update({"layers.2.input_layernorm.weight": torch.ones(12)}),
            "does not have: layers.2.input_layernorm.weight",
        ),
        (
            lambda tensors: tensors.update({"fc.weight": torch.ones(12, 24)}),
            r"fc.weight has the shape \(12, 24\); legal: \(12, 36\)",
        ),
        (
            lambda tensors: tensors["norm.weight"].fill_(float("inf")),
            "NaN or infinite weights in norm.weight; legal: finite numbers",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, spoil, message):
    tensors = make_tensors()
    spoil(tensors)
    folder = write(tmp_path / "theirs", Z_LAB, tensors)
    with pytest.raises(ValueError, match=message):
        load_drafter(folder)
    assert len(errors(folder)) == 1


def test_damaged_files_are_named(tmp_path):
    folder = write(tmp_path / "theirs", Z_LAB, make_tensors())
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match="model.safetensors cannot be read"):
        load_drafter(folder)
    assert len(errors(folder)) == 1
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="model.safetensors is missing"):
        load_drafter(folder)
    for text, message in (("{", "is no JSON"), ("[1]", "holds a list; legal: a JSON object")):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=f"config.json {message}"):
            load_drafter(folder)
        assert len(errors(folder)) == 1
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="config.json is missing"):
        load_drafter(folder)
    with pytest.raises(ValueError, match="is no folder"):
        lint_export(folder / "nothing")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_never_written(tmp_path, bad):
    drafter = make_drafter()
    good = export_drafter(drafter, tmp_path / "out")
    before = (good / "model.safetensors").read_bytes()
    with torch.no_grad():
        drafter.layers[1].mlp.up_proj.weight[3, 4] = bad
    with pytest.raises(ValueError, match="NaN or infinite weights in layers.1.mlp.up_proj.weight"):
        export_drafter(drafter, good, overwrite=True)
    assert (good / "model.safetensors").read_bytes() == before
    assert os.listdir(tmp_path) == ["out"]


def test_numbers_that_overflow_in_the_exports_dtype_are_refused(tmp_path):
    drafter = make_drafter()
    with torch.no_grad():
        drafter.norm.weight[0] = torch.finfo(torch.float32).max
    export_drafter(drafter, tmp_path / "float32", dtype="float32")
    with pytest.raises(ValueError, match="NaN or infinite weights in norm.weight"):
        export_drafter(drafter, tmp_path / "bfloat16")
    assert os.listdir(tmp_path) == ["float32"]


def test_a_folder_is_replaced_whole_and_only_if_asked(tmp_path):
    folder = export_drafter(make_drafter(), tmp_path / "deep/out", dtype="float32")
    with pytest.raises(ValueError, match="exists; legal: a new path, or overwrite=True"):
        export_drafter(make_drafter(1), folder)
    (folder / "notes.txt").write_text("x")
    with pytest.raises(
        ValueError, match="out holds notes.txt as well; legal: only a drafter's folder, and nothing beside"
    ):
        export_drafter(make_drafter(1), folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "x"
    (folder / "notes.txt").unlink()
    export_drafter(make_drafter(1), folder, dtype="float32", overwrite=True)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    assert torch.equal(load_drafter(folder).state_dict()["fc.weight"], make_tensors(1)["fc.weight"])
    assert os.listdir(folder.parent) == ["out"]
    other = tmp_path / "photos"
    other.mkdir()
    with pytest.raises(ValueError, match="is no folder with config.json"):
        export_drafter(make_drafter(), other, overwrite=True)
    # A run's folder and a target's have settings of that name, too.
    (other / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="config.json is of no drafter"):
        export_drafter(make_drafter(), other, overwrite=True)


@pytest.mark.parametrize("step", ["save_file", "_make_durable"])
def test_what_stands_there_survives_a_write_that_fails(tmp_path, monkeypatch, step):
    folder = export_drafter(make_drafter(), tmp_path / "out")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_tensors_module, step, full)
    for path in (folder, tmp_path / "new"):
        with pytest.raises(OSError, match="No space left"):
            export_drafter(make_drafter(1), path, overwrite=True)
    assert os.listdir(tmp_path) == ["out"]
    assert lint_export(folder, PlainTarget()) == ()


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    folder = export_drafter(make_drafter(), tmp_path / "out", dtype="float32")
    rename = os.rename

    def refusing(source, destination):
        if os.path.basename(source) == "new":
            raise OSError(5, "Input/output error")
        rename(source, destination)

    monkeypatch.setattr(export_tensors_module.os, "rename", refusing)
    with pytest.raises(OSError, match="Input/output error"):
        export_drafter(make_drafter(1), folder, dtype="float32", overwrite=True)
    assert torch.equal(load_drafter(folder).state_dict()["fc.weight"], make_tensors()["fc.weight"])
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "gguf"}, "format is 'gguf'; legal: 'z-lab', 'speculators'"),
        ({"dtype": "float16"}, "dtype is 'float16'; legal: 'float32', 'bfloat16'"),
        ({"format": "speculators"}, "the format 'speculators' needs verifier"),
        ({"verifier": make_verifier()}, "the format 'z-lab' takes no verifier"),
        (
            {
                "format": "speculators",
                "verifier": SpeculatorsVerifier(
                    name_or_path="x",
                    architectures=("Y",),
                    embed_tokens=torch.zeros(41, 12),
                    lm_head=torch.zeros(40, 12),
                ),
            },
            r"embed_tokens has the shape \(41, 12\); legal: \(40, 12\)",
        ),
        (
            {
                "format": "speculators",
                "verifier": SpeculatorsVerifier(
                    name_or_path="x", architectures=(), embed_tokens=torch.zeros(40, 12), lm_head=torch.zeros(40, 12)
                ),
            },
            "legal: a name, and one or more model classes",
        ),
    ],
)
def test_exports_that_cannot_be_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        export_drafter(make_drafter(), tmp_path / "out", **changes)
    assert os.listdir(tmp_path) == []


def test_a_head_that_is_no_matrix_has_no_place_in_speculators_files():
    with pytest.raises(ValueError, match=r"some/target is not linear \(a bias or a soft cap\)"):
        SpeculatorsVerifier.from_target(PlainTarget(bias=0.5), architectures=["X"])


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (changed(Z_LAB, architectures=["Qwen3ForCausalLM"]), "architectures is ['Qwen3ForCausalLM']"),
        (changed(Z_LAB, model_type="llama"), "model_type is 'llama'"),
        (
            changed(Z_LAB, rope_theta=..., rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
            "rope_theta is missing at top level",
        ),
        (changed(Z_LAB, dtype="bfloat16"), "dtype is 'bfloat16', and the weights are of float32"),
        (changed(Z_LAB, eos_token_id=[2, 39]), "mask_token_id is 39, the eos_token_id"),
        (changed(Z_LAB, pad_token_id=39), "mask_token_id is 39, the pad_token_id"),
    ],
)
def test_lint_finds_what_loads_and_serves_wrong(tmp_path, fields, what):
    folder = write(tmp_path / "theirs", fields, make_tensors())
    load_drafter(folder)
    assert errors(folder) == [what]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"speculators_config__algorithm": "eagle3"}, "speculators_config.algorithm is 'eagle3'"),
        (
            {"speculators_config__proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 6}]},
            "speculative_tokens is 6",
        ),
        ({"speculators_config__default_proposal_method": "sample"}, "default_proposal_method is 'sample'"),
        ({"speculators_config__verifier": {"name_or_path": "x"}}, "verifier is {'name_or_path': 'x'}"),
        ({"speculators_config": ...}, "speculators_config is missing"),
        ({"transformer_layer_config__rope_theta": ...}, "transformer_layer_config.rope_theta is missing at top level"),
    ],
)
def test_lint_checks_what_speculators_adds(tmp_path, changes, what):
    target = PlainTarget()
    tensors = {**make_tensors(), "embed_tokens.weight": target.table * 3.5, "lm_head.weight": target.head}
    folder = write(tmp_path / "theirs", SPECULATORS, tensors)
    assert lint_export(folder, target) == ()
    write(folder, changed(SPECULATORS, **changes), tensors)
    assert errors(folder, target) == errors(folder) == [what]


def test_lint_compares_the_embedding_with_what_the_target_embeds(tmp_path):
    target = PlainTarget()
    tensors = {**make_tensors(), "embed_tokens.weight": target.table, "lm_head.weight": target.head}
    folder = write(tmp_path / "theirs", SPECULATORS, tensors)
    assert errors(folder, target) == ["embed_tokens.weight differs from some/target's embedding"]
    del tensors["lm_head.weight"]
    write(folder, SPECULATORS, tensors)
    assert "lm_head.weight is missing" in errors(folder, target)


@pytest.mark.parametrize(
    ("changes", "what", "legal"),
    [
        ({"rope_theta": 10_000.0}, "rope_theta is 1000000.0", "10000.0, as in some/target"),
        ({"num_layers": 12}, "num_target_layers is 10", "12, as in some/target"),
        ({"vocab_size": 41}, "vocab_size is 40", "41, as in some/target"),
        ({"hidden_size": 24}, "hidden_size is 12", "24, as in some/target"),
        ({"target_layer_ids": (2, 5, 8)}, "target_layer_ids is (1, 4, 7)", "(2, 5, 8), as in some/target"),
    ],
)
def test_lint_compares_with_the_target(tmp_path, changes, what, legal):
    folder = write(tmp_path / "theirs", Z_LAB, make_tensors())
    assert lint_export(folder) == ()
    [finding] = lint_export(folder, PlainTarget(**changes))
    assert (finding.severity, finding.what, finding.legal) == ("error", what, legal)


def test_depth_of_the_target_is_part_of_one_layout_only(tmp_path):
    folder = write(tmp_path / "theirs", changed(Z_LAB, num_target_layers=...), make_tensors())
    assert errors(folder) == errors(folder, PlainTarget()) == ["num_target_layers is missing"]


def test_lint_finds_norms_that_never_left_one_and_weights_of_several_dtypes(tmp_path):
    tensors = {name: torch.ones_like(each) if "norm" in name else each for name, each in make_tensors().items()}
    folder = write(tmp_path / "theirs", Z_LAB, tensors)
    # Four a layer, and two around the layers.
    assert errors(folder) == ["all 10 norms are exactly 1.0"]
    tensors["layers.0.self_attn.k_norm.weight"][2] += 2**-10
    write(folder, Z_LAB, tensors)
    assert errors(folder) == []
    tensors["norm.weight"] = tensors["norm.weight"].half()
    write(folder, Z_LAB, tensors)
    assert errors(folder) == [
        "weights are of float16, float32",
        "dtype is 'float32', and the weights are of float16, float32",
    ]


def test_findings_come_errors_first_and_read_as_sentences(tmp_path):
    fields = changed(Z_LAB, tie_word_embeddings=True, extra=1, architectures=["X"])
    folder = write(tmp_path / "theirs", fields, make_tensors())
    found = lint_export(folder)
    assert [finding.severity for finding in found] == ["error", "warning", "note"]
    assert str(found[0]) == "architectures is ['X']; legal: ['DFlashDraftModel']"
