"""Features against transformers' own run of each sample alone, with the masks that it makes itself."""

import copy
import threading

import pytest
import torch

from dflash_lab.target import TransformersTarget, default_target_layer_ids

LENGTHS = (11, 3, 17, 1, 8)
TAPS = (0, 2, 5)


def alone(target, sample):
    """Outputs of the tapped layers, one sample at a time, read by hooks of the test's own, and the model's logits."""
    found = {}
    handles = [
        layer.register_forward_hook(
            lambda _module, _inputs, output, number=number: found.update(
                {number: output if torch.is_tensor(output) else output[0]}
            )
        )
        for number, layer in enumerate(layers_of(target.model))
        if number in target.target_layer_ids
    ]
    with torch.no_grad():
        logits = target.model(input_ids=sample[None], attention_mask=torch.ones(1, len(sample))).logits
    for handle in handles:
        handle.remove()
    return torch.cat([found[number] for number in target.target_layer_ids], dim=-1)[0], logits[0]


def layers_of(model):
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def pieces(values, batch):
    return [
        values[row, start : start + length]
        for row, start, length in zip(batch.rows, batch.starts, batch.lengths, strict=True)
    ]


def close(ours, theirs):
    # Of numbers up to about 10, as sums of floats in another order.
    return torch.allclose(ours, theirs, atol=1e-5 * max(1.0, float(theirs.abs().max())), rtol=0)


def test_padded_and_packed_features_are_those_of_each_sample_alone(
    family, tiny_model, some_samples, padded_batch, packed_batch
):
    target = TransformersTarget(tiny_model(family), target_layer_ids=TAPS)
    samples = some_samples(LENGTHS)
    expected = [alone(target, sample) for sample in samples]
    for batch in (
        padded_batch(samples),
        padded_batch(samples, width=29),
        packed_batch(samples),
        packed_batch(samples, tail=6),
        packed_batch(samples[::-1]),
    ):
        features = target.features(batch, with_logits=True)
        assert features.hidden.shape == (*batch.input_ids.shape, 3 * 32)
        assert features.logits.shape == (*batch.input_ids.shape, 61)
        backwards = batch.layout == "packed" and batch.lengths[0] != LENGTHS[0]
        for place, (hidden, logits) in enumerate(
            zip(pieces(features.hidden, batch), pieces(features.logits, batch), strict=True)
        ):
            wanted = expected[len(samples) - 1 - place if backwards else place]
            assert close(hidden, wanted[0]), (batch, place)
            assert close(logits, wanted[1]), (batch, place)
        # Without logits the pass ends early, with the same features to the bit.
        assert torch.equal(target.features(batch).hidden, features.hidden)
        assert target.features(batch).logits is None
        assert bool(features.hidden.isfinite().all())


@pytest.mark.parametrize("family", ["mistral_sliding", "gemma2", "gemma3"])
def test_a_sliding_layer_sees_its_window_and_no_more(family, tiny_model, some_samples, packed_batch):
    """The first layer sees 4 tokens, itself included: a token 4 before changes nothing, one 3 before does."""
    target = TransformersTarget(tiny_model(family), target_layer_ids=(0,))
    sample = some_samples([9])[0]
    before = target.features(packed_batch([sample, sample])).hidden[0]
    for distance, is_seen in ((3, True), (4, False)):
        changed = sample.clone()
        changed[8 - distance] = (changed[8 - distance] + 1) % 61
        after = target.features(packed_batch([sample, changed])).hidden[0]
        assert torch.equal(after[:9], before[:9])
        assert torch.equal(after[17], before[17]) is not is_seen


def test_taps_are_the_layers_own_outputs_and_not_what_comes_after_the_final_norm(
    tiny_model, some_samples, padded_batch
):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight.uniform_(0.5, 2.0)
    batch = padded_batch(some_samples([9, 9]))
    with torch.no_grad():
        states = model.eval()(batch.input_ids, output_hidden_states=True).hidden_states
    hidden = TransformersTarget(model, target_layer_ids=(1, 5)).features(batch).hidden
    assert torch.equal(hidden[..., :32], states[2])
    assert not torch.allclose(hidden[..., 32:], states[6], atol=0.1)
    assert torch.allclose(model.model.norm(hidden[..., 32:]), states[6], atol=1e-5)


def test_features_can_be_saved_for_backward(tiny_model, some_samples, padded_batch):
    target = TransformersTarget(tiny_model("qwen3"), target_layer_ids=TAPS)
    features = target.features(padded_batch(some_samples([5, 7])), with_logits=True)
    weight = torch.ones(96, 1, requires_grad=True)
    ((features.hidden @ weight).mean() * features.logits.log_softmax(-1).mean()).backward()
    assert weight.grad.abs().sum() > 0
    assert not features.hidden.is_inference() and not features.logits.is_inference()


def test_the_model_is_as_before_after_a_pass_that_ended_early(tiny_model, some_samples, padded_batch, packed_batch):
    target = TransformersTarget(tiny_model("gemma2"), target_layer_ids=(0, 1))
    samples = some_samples([6, 6])
    batch = padded_batch(samples)
    with torch.no_grad():
        before = target.model(batch.input_ids).logits
    target.features(batch)
    target.features(packed_batch(samples))
    with pytest.raises(ValueError, match="has the id 61"):
        target.features(padded_batch([torch.tensor([61])]))
    for module in target.model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    with torch.no_grad():
        assert torch.equal(target.model(batch.input_ids).logits, before)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_a_pass_ends_at_the_last_tap(tiny_model, some_samples, padded_batch):
    target = TransformersTarget(tiny_model("llama"), target_layer_ids=(0, 2))
    called = []
    for number, layer in enumerate(target.model.model.layers):
        layer.register_forward_pre_hook(lambda _module, _inputs, number=number: called.append(number))
    target.features(padded_batch(some_samples([4])))
    assert called == [0, 1, 2]
    target.features(padded_batch(some_samples([4])), with_logits=True)
    assert called == [0, 1, 2, 0, 1, 2, 3, 4, 5]


def test_a_failure_inside_the_model_leaves_no_hook(tiny_model, some_samples, padded_batch):
    target = TransformersTarget(tiny_model("llama"), target_layer_ids=(0, 2))
    handle = target.model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        target.features(padded_batch(some_samples([4])))
    handle.remove()
    assert not any(module._forward_hooks for module in target.model.modules())


def test_embeddings_and_logits_are_those_the_model_makes(family, tiny_model, some_samples, padded_batch):
    target = TransformersTarget(tiny_model(family), target_layer_ids=TAPS)
    model = target.model
    batch = padded_batch(some_samples([5, 5]))
    seen = {}
    hooks = [
        layers_of(model)[0].register_forward_pre_hook(
            lambda _module, inputs, named: seen.update(first=inputs[0] if inputs else named["hidden_states"]),
            with_kwargs=True,
        ),
        model.get_output_embeddings().register_forward_pre_hook(lambda _module, inputs: seen.update(last=inputs[0])),
    ]
    with torch.no_grad():
        logits = model(batch.input_ids).logits
    for hook in hooks:
        hook.remove()
    expected = seen["first"]
    if family == "gpt2":
        expected = expected - model.transformer.wpe.weight[:5]
    assert torch.allclose(target.embed(batch.input_ids), expected, atol=1e-5)
    assert torch.allclose(target.lm_head(seen["last"]), logits, atol=1e-6)
    if family == "gemma2":
        # Soft-capped: no logit is past the cap, and some would be without it.
        assert logits.abs().max() < 3.0 < model.get_output_embeddings()(seen["last"]).abs().max()
    if family.startswith("gemma"):
        assert torch.allclose(expected, model.get_input_embeddings().weight[batch.input_ids] * 32**0.5, atol=1e-5)


def test_gradients_pass_through_the_frozen_head(tiny_model):
    target = TransformersTarget(tiny_model("gemma2"), target_layer_ids=TAPS)
    hidden = torch.randn(2, 32, requires_grad=True)
    target.lm_head(hidden).sum().backward()
    assert hidden.grad.abs().sum() > 0
    assert all(not parameter.requires_grad and parameter.grad is None for parameter in target.model.parameters())
    assert not target.model.training


def test_a_half_precision_target_takes_and_gives_its_own_dtype(tiny_model, some_samples, padded_batch):
    target = TransformersTarget(tiny_model("gemma", dtype=torch.bfloat16), target_layer_ids=TAPS)
    features = target.features(padded_batch(some_samples([5])), with_logits=True)
    assert features.hidden.dtype == features.logits.dtype == target.dtype == torch.bfloat16
    assert target.lm_head(torch.zeros(2, 32)).dtype == torch.bfloat16
    # sqrt(32) is rounded to bfloat16 before it multiplies, as in the model.
    ids = torch.arange(61)
    rounded = target.model.get_input_embeddings().weight * torch.tensor(32**0.5, dtype=torch.bfloat16)
    assert torch.equal(target.embed(ids), rounded)


@pytest.mark.parametrize("family", ["llama", "mistral_sliding", "gemma3"])
def test_eager_and_fused_attention_agree(family, tiny_model, some_samples, packed_batch):
    batch = packed_batch(some_samples(LENGTHS), tail=2)
    eager, fused = (
        TransformersTarget(tiny_model(family, attn_implementation=kind), target_layer_ids=TAPS)
        for kind in ("eager", "sdpa")
    )
    assert close(eager.features(batch).hidden[:, :-2], fused.features(batch).hidden[:, :-2])


def test_rope_theta(tiny_model):
    assert TransformersTarget(tiny_model("gpt2"), target_layer_ids=TAPS).rope_theta == 10_000.0
    changed = tiny_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert TransformersTarget(changed, target_layer_ids=TAPS).rope_theta == 5e5
    gemma3 = tiny_model(
        "gemma3",
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    )
    assert TransformersTarget(gemma3, target_layer_ids=TAPS).rope_theta == 1e6


def test_rope_theta_of_transformers_4():
    from dflash_lab.target.architecture import rope_theta_of

    class Config:
        rope_theta = 1_000_000.0

    assert rope_theta_of(Config()) == 1e6


@pytest.mark.parametrize(
    ("num_layers", "ids"),
    # By hand: 1 + i * 32 / 4; 1 + i * 24 / 4; of 8 layers 1 + i; of 6 layers 1 + i * 2 / 2; of 5 layers 1 + i.
    [(36, (1, 9, 17, 25, 33)), (28, (1, 7, 13, 19, 25)), (8, (1, 2, 3, 4, 5)), (6, (1, 2, 3)), (5, (1, 2))],
)
def test_default_taps(num_layers, ids):
    assert default_target_layer_ids(num_layers) == ids


def test_taps_that_would_repeat_are_refused():
    assert default_target_layer_ids(4, 1) == (2,)
    with pytest.raises(
        ValueError, match=r"4 layers has no target_layer_ids by default.*name them, such as \(0, 1, 2\)"
    ):
        default_target_layer_ids(4)
    with pytest.raises(ValueError, match="with 5 taps"):
        default_target_layer_ids(6, 5)


@pytest.mark.parametrize("ids", [(), (1, 1), (2, 1), (0, 6), (-1, 2)])
def test_taps_have_to_be_layers(ids, tiny_model):
    with pytest.raises(ValueError, match=r"target_layer_ids is .*legal: different layers in \[0, 6\), increasing"):
        TransformersTarget(tiny_model("llama"), target_layer_ids=ids)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_batch_wider_than_the_models_positions_is_refused(
    family, tiny_model, some_samples, padded_batch, packed_batch
):
    target = TransformersTarget(tiny_model(family), target_layer_ids=TAPS, name="small one")
    target.features(padded_batch(some_samples([64])))
    target.features(packed_batch(some_samples([64, 40])))
    for batch in (padded_batch(some_samples([65])), packed_batch(some_samples([3, 65]))):
        with pytest.raises(ValueError, match="the batch has 65 positions, and small one has 64; legal: max_seq_len"):
            target.features(batch)


def test_ids_past_the_vocabulary_are_refused(tiny_model, padded_batch):
    target = TransformersTarget(tiny_model("llama"), target_layer_ids=TAPS)
    for number in (61, -1):
        with pytest.raises(ValueError, match=f"has the id {number}, and LlamaForCausalLM has a vocabulary of 61"):
            target.features(padded_batch([torch.tensor([5, number])]))


def test_what_is_no_causal_lm_is_refused(tiny_model):
    with pytest.raises(ValueError, match="model is a LlamaModel; legal: a transformers causal LM with its head"):
        TransformersTarget(tiny_model("llama").model)


def test_a_model_that_does_more_to_its_embeddings_or_logits_is_refused(tiny_model):
    scaled = tiny_model("granite")
    # What the model does by itself is no longer what its configuration says.
    scaled.config.embedding_multiplier = 1.0
    with pytest.raises(ValueError, match="does something to its embeddings that is not known"):
        TransformersTarget(scaled, target_layer_ids=TAPS)
    doubled = tiny_model("llama")
    doubled.register_forward_hook(lambda _module, _inputs, outputs: type(outputs)(logits=outputs.logits * 2))
    with pytest.raises(ValueError, match="does something to its logits that is not known"):
        TransformersTarget(doubled, target_layer_ids=TAPS)


def test_a_kernel_without_masks_refuses_packed_rows(tiny_model, some_samples, padded_batch, packed_batch):
    target = TransformersTarget(tiny_model("llama"), target_layer_ids=TAPS)
    batch = padded_batch(some_samples([5]))
    target.features(batch)
    target.model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        ValueError, match="'flash_attention_2' takes no masks.*legal: load it with attn_implementation="
    ):
        target.features(packed_batch(some_samples([5])))


def test_fingerprint_names_the_weights(tiny_model):
    first, second = tiny_model("llama"), tiny_model("llama")
    target = TransformersTarget(first, target_layer_ids=TAPS)
    assert target.fingerprint == TransformersTarget(second, target_layer_ids=(0,)).fingerprint
    with torch.no_grad():
        second.model.norm.weight[3] += 1
    assert target.fingerprint != TransformersTarget(second, target_layer_ids=TAPS).fingerprint


def test_to_gives_itself_or_a_copy_of_equal_weights(tiny_model):
    target = TransformersTarget(tiny_model("gemma2"), target_layer_ids=TAPS)
    assert target.to("cpu") is target
    moved = target.to("meta")
    assert moved.device.type == "meta" and target.device.type == "cpu"
    assert {parameter.device.type for parameter in moved.model.parameters()} == {"meta"}
    # Gemma ties its head to its embedding.
    assert moved.model.get_output_embeddings().weight is moved.model.get_input_embeddings().weight


def test_threads_that_share_a_model_get_their_own_features(tiny_model, some_samples, padded_batch):
    model = tiny_model("qwen3")
    targets = [TransformersTarget(model, target_layer_ids=(0, 3)), TransformersTarget(model, target_layer_ids=(1, 5))]
    batches = [padded_batch(some_samples([7, 5], seed=seed)) for seed in range(12)]
    expected = [[copy.copy(target).features(batch).hidden for batch in batches] for target in targets]
    found = [[], []]

    def work(number):
        for batch in batches:
            found[number].append(targets[number].features(batch).hidden)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.gpu
def test_copies_on_two_devices_agree(tiny_model, some_samples, packed_batch):
    target = TransformersTarget(tiny_model("gemma2"), target_layer_ids=TAPS)
    moved = target.to("cuda")
    batch = packed_batch(some_samples(LENGTHS), tail=3)
    features = moved.features(batch, with_logits=True)
    assert features.batch.input_ids.is_cuda and features.hidden.is_cuda
    assert torch.allclose(features.hidden.cpu(), target.features(batch).hidden, atol=1e-3)


def test_control_ids_are_those_of_both_settings(tiny_model):
    model = tiny_model("llama", pad_token_id=3, bos_token_id=1, eos_token_id=[2, 7])
    model.generation_config.eos_token_id = [7, 9]
    assert TransformersTarget(model, target_layer_ids=TAPS).control_ids == (1, 2, 3, 7, 9)
