"""Speculative decoding: the same tokens as plain decoding, whatever the drafter; lengths counted by hand."""

import functools
import math
import time

import numpy as np
import pytest
import torch

from dflash_lab.drafter import Documents, DraftBlocks, Drafter, DrafterConfig
from dflash_lab.drafter import decode as decode_module
from dflash_lab.drafter.decode import greedy_decode, speculative_decode
from dflash_lab.drafter.decode_speed import ForwardSeconds, measure_forward_seconds, predicted_speed_up
from dflash_lab.drafter.decoded import mean_acceptance_length
from dflash_lab.target import TransformersTarget

VOCAB = 61
MASK_ID = 60
SHAPE = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, initializer_range=0.3)
QWEN3 = dict(SHAPE, intermediate_size=48, num_key_value_heads=2, head_dim=8, max_position_embeddings=256)
FAMILIES = {
    "qwen3": ("Qwen3Config", dict(QWEN3, rope_theta=5000.0)),
    "gpt2": ("GPT2Config", dict(SHAPE, max_position_embeddings=256)),
    # A window of 4 tokens: a draft lies out of it in part.
    "mistral_sliding": ("MistralConfig", dict(QWEN3, sliding_window=4)),
    "gemma2": (
        "Gemma2Config",
        dict(QWEN3, sliding_window=4, final_logit_softcapping=3.0, query_pre_attn_scalar=8),
    ),
}


@functools.cache
def make_target(family="qwen3", *, seed=0, dtype=torch.float32, **changes):
    import transformers

    name, settings = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, name)(**{**settings, **changes})
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return TransformersTarget(model, target_layer_ids=(0, 1, 3))


def make_config(target, **changes):
    settings = dict(
        hidden_size=target.hidden_size,
        intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=target.rope_theta,
        vocab_size=target.vocab_size,
        mask_token_id=MASK_ID,
        target_layer_ids=target.target_layer_ids,
        num_target_layers=target.num_layers,
        block_size=8,
        num_hidden_layers=2,
    )
    return DrafterConfig(**{**settings, **changes})


def randomise(drafter, seed=0):
    """Weights large enough for every input to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1))
    return drafter


def make_prompts(lengths=(1, 7, 20), seed=3):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB - 1, length).tolist() for length in lengths]


@functools.cache
def continued(target, prompt, max_new_tokens):
    ids = list(prompt)
    for _ in range(max_new_tokens):
        with torch.no_grad():
            ids.append(int(target.model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


def plain_greedy(target, prompt, max_new_tokens):
    """The whole text through the model at every step, without any cache."""
    return continued(target, tuple(prompt), max_new_tokens)


class GuessingTarget:
    """A target whose head reads guesses that a drafter wrote into its states: best guess, second guess."""

    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        return getattr(self._target, name)

    def lm_head(self, hidden):
        logits = torch.zeros(*hidden.shape[:-1], VOCAB)
        logits.scatter_(-1, hidden[..., 1:2].long(), 19.0)
        return logits.scatter_(-1, hidden[..., :1].long(), 20.0)


class GuessingDrafter(Drafter):
    """Guesses by position, from lists."""

    def guess(self, first, second):
        self.first, self.second = first, second
        return self

    def draft(self, block_embeddings, positions, context):
        assert len(context) == positions[0]
        hidden = torch.zeros(1, len(positions), self.config.hidden_size)
        for place, guesses in enumerate((self.first, self.second)):
            padded = torch.tensor([*guesses, *[0] * 2 * len(positions)])
            hidden[0, :, place] = padded[positions]
        return hidden


def guessing(prompt, *, seed=0, block_size=4, num_tokens=40, wrong_at=lambda position: False, second_right=True):
    """A target, a drafter that guesses its own continuation but for some positions, and that continuation."""
    target = make_target(seed=seed)
    text = [*prompt, *plain_greedy(target, prompt, num_tokens)]
    first = [(token + 1) % VOCAB if wrong_at(position) else token for position, token in enumerate(text)]
    second = [
        token if wrong_at(position) and second_right else (token + 2) % VOCAB for position, token in enumerate(text)
    ]
    drafter = GuessingDrafter(make_config(target, block_size=block_size)).guess(first, second)
    return GuessingTarget(target), drafter, tuple(text[len(prompt) :])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tree_budget", [None, 8, 32, 64])
def test_random_drafters_change_no_token(family, tree_budget):
    prompts = make_prompts()
    for seed in range(2):
        target = make_target(family, seed=seed)
        drafter = randomise(Drafter(make_config(target)), seed)
        expected = [plain_greedy(target, prompt, 16) for prompt in prompts]
        decoded = speculative_decode(target, drafter, prompts, 16, tree_budget=tree_budget)
        assert [each.token_ids for each in decoded] == expected
        if tree_budget is None:
            assert [each.token_ids for each in greedy_decode(target, prompts, 16)] == expected


@pytest.mark.parametrize("tree_budget", [None, 1, 5, 14, 40])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_that_are_right_in_part_change_no_token(seed, tree_budget):
    # Right drafts of every length, and trees whose accepted path leaves the first branch.
    wrong = np.random.default_rng(seed).random(100) < 0.4
    prompt = make_prompts((6,), seed)[0]
    target, drafter, text = guessing(prompt, seed=seed, wrong_at=lambda position: wrong[position])
    [decoded] = speculative_decode(target, drafter, [prompt], 40, tree_budget=tree_budget)
    assert decoded.token_ids == text
    assert len(set(decoded.acceptance_lengths)) > 1 or tree_budget in (1, 14, 40)


def test_a_perfect_drafter_is_accepted_whole_and_the_cut_verification_counts_whole():
    prompt = make_prompts((5,))[0]
    target, drafter, text = guessing(prompt)
    [decoded] = speculative_decode(target, drafter, [prompt], 10)
    # One token from the prompt, then 4 + 4 + 1 of 4.
    assert decoded.token_ids == text[:10]
    assert decoded.acceptance_lengths == (4, 4, 4)
    assert decoded.acceptance_length == 4.0
    assert decoded.num_target_calls == 4 and decoded.num_drafter_calls == 3
    assert not decoded.ended


@pytest.mark.parametrize("tree_budget", [None, 12])
def test_a_drafter_that_is_always_wrong_gives_one_token_a_verification(tree_budget):
    prompt = make_prompts((5,))[0]
    target, drafter, text = guessing(prompt, wrong_at=lambda position: True, second_right=False)
    [decoded] = speculative_decode(target, drafter, [prompt], 10, tree_budget=tree_budget)
    assert decoded.token_ids == text[:10]
    assert decoded.acceptance_lengths == (1,) * 9
    assert decoded.acceptance_length == 1.0


def test_acceptance_lengths_follow_from_where_the_drafter_is_wrong():
    # Prompt at positions 0..4, bonus at 5; wrong at 8 and 15. A block of 4 has the slots bonus + 1..3.
    prompt = make_prompts((5,))[0]
    target, drafter, text = guessing(prompt, wrong_at=lambda position: position in (8, 15))
    [chain] = speculative_decode(target, drafter, [prompt], 20)
    # Bonus at 5: 6, 7 right, 8 wrong -> 3 tokens, bonus 8; 9, 10, 11 -> 4, bonus 12; 13, 14 right, 15 wrong -> 3,
    # bonus 15; 16, 17, 18 -> 4, bonus 19; 20, 21, 22 -> 4, bonus 23; the text ends at 24, one token further.
    assert chain.acceptance_lengths == (3, 4, 3, 4, 4, 4)
    [tree] = speculative_decode(target, drafter, [prompt], 20, tree_budget=14)
    # Second guesses are right there, and 14 nodes hold two guesses of three slots in all ways.
    assert tree.acceptance_lengths == (4, 4, 4, 4, 4)
    assert tree.token_ids == chain.token_ids == text[:20]
    assert mean_acceptance_length([chain, tree]) == pytest.approx((22 + 20) / 11)


@pytest.mark.parametrize("tree_budget", [None, 20])
@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma2"])
def test_cached_drafts_equal_the_training_pass_on_the_same_anchors(family, tree_budget):
    drafts = []

    class RecordingDrafter(Drafter):
        def draft(self, block_embeddings, positions, context):
            hidden = super().draft(block_embeddings, positions, context)
            drafts.append((int(positions[0]), hidden[0]))
            return hidden

    target = make_target(family)
    drafter = randomise(RecordingDrafter(make_config(target)))
    prompt = make_prompts((7,))[0]
    [decoded] = speculative_decode(target, drafter, [prompt], 24, tree_budget=tree_budget)
    text = torch.tensor([[*prompt, *decoded.token_ids]])
    with torch.no_grad():
        features = target.extend(text, target.new_cache()).hidden  # (1, T, K * H)
    anchors = torch.tensor([anchor for anchor, _ in drafts])
    assert len(anchors) == len(decoded.acceptance_lengths) > 10
    assert anchors.tolist() == [7 + sum(decoded.acceptance_lengths[:number]) for number in range(len(anchors))]

    def training_pass(features, shift=0):
        input_ids = torch.full((len(anchors), 8), MASK_ID)
        input_ids[:, 0] = text[0, anchors]
        blocks = DraftBlocks(
            documents=torch.zeros_like(anchors),
            anchors=anchors + shift,
            input_ids=input_ids,
            labels=torch.zeros_like(input_ids),
            scored=torch.zeros_like(input_ids, dtype=torch.bool),
        )
        documents = Documents.padded(torch.tensor([features.shape[1]]))
        with torch.no_grad():
            return drafter(features, target.embed(input_ids), blocks, documents)  # (N, B, H)

    cached = torch.stack([hidden for _, hidden in drafts])
    assert (cached - training_pass(features)).abs().max() < 1e-4
    # Nothing at or behind the anchor is seen, and one position off would be.
    spoilt = features.clone()
    spoilt[:, int(anchors[-1]) :] = 100.0
    assert (cached - training_pass(spoilt)).abs().max() < 1e-4
    longer = torch.cat([features, features[:, -1:]], dim=1)
    assert (cached - training_pass(longer, shift=-1)).abs().amax(dim=(1, 2)).min() > 1e-2
    assert (cached - training_pass(longer, shift=1)).abs().amax(dim=(1, 2)).min() > 1e-2


def test_a_drafter_fitted_to_a_few_texts_is_accepted_whole():
    # Trained by the training pass, on the target's own continuations, and then judged by decoding alone.
    target = make_target()
    prompts, block_size = make_prompts((4, 6, 9)), 5
    texts = [torch.tensor([[*prompt, *plain_greedy(target, prompt, 25)]]) for prompt in prompts]
    drafter = Drafter(make_config(target, block_size=block_size))
    batches = []
    for prompt, text in zip(prompts, texts, strict=True):
        anchors = torch.arange(len(prompt), text.shape[1] - block_size + 1)
        windows = text[0].unfold(0, block_size, 1)[len(prompt) :]  # (N, B)
        input_ids = torch.full_like(windows, MASK_ID)
        input_ids[:, 0] = windows[:, 0]
        scored = torch.ones_like(windows, dtype=torch.bool)
        scored[:, 0] = False
        blocks = DraftBlocks(
            documents=torch.zeros_like(anchors), anchors=anchors, input_ids=input_ids, labels=windows, scored=scored
        )
        features = target.extend(text, target.new_cache()).hidden
        batches.append((features, blocks, Documents.padded(torch.tensor([text.shape[1]]))))
    [before] = speculative_decode(target, drafter, prompts[:1], 21)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    for _ in range(110):
        optimizer.zero_grad()
        for features, blocks, documents in batches:
            hidden = drafter(features, target.embed(blocks.input_ids), blocks, documents)
            torch.nn.functional.cross_entropy(
                target.lm_head(hidden)[blocks.scored], blocks.labels[blocks.scored]
            ).backward()
        optimizer.step()
    decoded = speculative_decode(target, drafter, prompts, 21)
    assert before.acceptance_length < 2
    assert [each.acceptance_lengths for each in decoded] == [(5, 5, 5, 5)] * 3


@pytest.mark.parametrize("tree_budget", [None, 14])
def test_an_end_token_ends_the_text_where_plain_decoding_ends_it(tree_budget):
    prompt = make_prompts((5,))[0]
    target, drafter, text = guessing(prompt, num_tokens=30)
    for token in dict.fromkeys(text[:12]):
        stop = text.index(token) + 1
        [decoded] = speculative_decode(target, drafter, [prompt], 30, tree_budget=tree_budget, eos_token_id=token)
        [greedy] = greedy_decode(target, [prompt], 30, eos_token_id=token)
        assert decoded.token_ids == greedy.token_ids == text[:stop]
        assert decoded.ended and greedy.ended
        # The verification with the end token counts whole.
        assert decoded.acceptance_lengths == (4,) * math.ceil((stop - 1) / 4)
    several = sorted({text[3], text[9]})
    [decoded] = speculative_decode(target, drafter, [prompt], 30, tree_budget=tree_budget, eos_token_id=several)
    assert decoded.token_ids == text[: min(text.index(token) for token in several) + 1]


def test_one_new_token_needs_no_draft():
    target = make_target()
    drafter = Drafter(make_config(target))
    [decoded] = speculative_decode(target, drafter, [[5]], 1)
    assert decoded.token_ids == plain_greedy(target, [5], 1)
    assert (decoded.num_target_calls, decoded.num_drafter_calls, decoded.acceptance_lengths) == (1, 0, ())
    assert math.isnan(decoded.acceptance_length)
    assert speculative_decode(target, drafter, [], 4) == ()


def test_every_length_is_kept_exactly():
    prompt = make_prompts((3,))[0]
    target, drafter, text = guessing(prompt)
    for max_new_tokens in range(1, 15):
        [decoded] = speculative_decode(target, drafter, [prompt], max_new_tokens)
        assert decoded.token_ids == text[:max_new_tokens]


def test_prompts_may_be_tensors_and_are_independent():
    target = make_target()
    drafter = randomise(Drafter(make_config(target)))
    prompts = make_prompts((4, 9, 2))
    together = speculative_decode(target, drafter, [torch.tensor(prompt) for prompt in prompts], 12, tree_budget=16)
    for prompt, each in zip(prompts, together, strict=True):
        [alone] = speculative_decode(target, drafter, [np.asarray(prompt)], 12, tree_budget=16)
        assert alone.token_ids == each.token_ids
        assert alone.acceptance_lengths == each.acceptance_lengths


def test_drafter_in_another_dtype_changes_no_token():
    target = make_target()
    drafter = randomise(Drafter(make_config(target))).to(torch.bfloat16)
    prompts = make_prompts()
    expected = [each.token_ids for each in greedy_decode(target, prompts, 20)]
    for tree_budget in (None, 16):
        decoded = speculative_decode(target, drafter, prompts, 20, tree_budget=tree_budget)
        assert [each.token_ids for each in decoded] == expected


def test_a_long_prompt_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(decode_module, "_PREFILL_TOKENS", 4)
    prompt = make_prompts((11,))[0]
    target, drafter, text = guessing(prompt)
    [decoded] = speculative_decode(target, drafter, [prompt], 9)
    assert decoded.token_ids == text[:9]
    assert decoded.num_target_calls == 3 + 2


def test_the_targets_last_position_is_reached_and_not_passed():
    target = make_target("gpt2", max_position_embeddings=24)
    drafter = randomise(Drafter(make_config(target)))
    prompt = make_prompts((5,))[0]
    [expected] = greedy_decode(target, [prompt], 20)
    with pytest.raises(ValueError, match="positions"):
        speculative_decode(target, drafter, [prompt], 20, max_positions=99)
    for tree_budget in (None, 32):
        # What the target says of itself.
        [decoded] = speculative_decode(target, drafter, [prompt], 20, tree_budget=tree_budget)
        assert decoded.token_ids == expected.token_ids
    target, drafter, text = guessing(prompt)
    [decoded] = speculative_decode(target, drafter, [prompt], 8, max_positions=12)
    # The bonus token at 5 has room for all three slots; that at 9 for two, at 10 and 11.
    assert decoded.token_ids == text[:8]
    assert decoded.acceptance_lengths == (4, 3)
    [decoded] = speculative_decode(target, drafter, [prompt], 8, max_positions=10)
    assert decoded.token_ids == text[:8]
    assert (decoded.acceptance_lengths, decoded.num_drafter_calls) == ((4, 1, 1, 1), 1)


def test_models_and_generators_are_left_as_they_were():
    target = make_target()
    drafter = randomise(Drafter(make_config(target)))
    drafter.train()
    drafter.layers[1].eval()
    drafter.fc.weight.requires_grad_(False)
    drafter.norm.weight.grad = torch.ones_like(drafter.norm.weight)
    modes = [module.training for module in drafter.modules()]
    weights = {name: value.clone() for name, value in drafter.state_dict().items()}
    generator = torch.get_rng_state()
    speculative_decode(target, drafter, make_prompts(), 8, tree_budget=8)
    assert [module.training for module in drafter.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(drafter.norm.weight.grad, torch.ones_like(drafter.norm.weight))
    assert not drafter.fc.weight.requires_grad and drafter.norm.weight.requires_grad
    assert all(torch.equal(value, weights[name]) for name, value in drafter.state_dict().items())
    assert torch.is_grad_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in target.model.modules())


def test_modes_come_back_after_an_error():
    target = make_target()

    class FailingDrafter(Drafter):
        def draft(self, block_embeddings, positions, context):
            assert not self.training
            raise RuntimeError("out of memory")

    drafter = FailingDrafter(make_config(target)).train()
    with pytest.raises(RuntimeError, match="out of memory"):
        speculative_decode(target, drafter, [[1, 2]], 8)
    assert all(module.training for module in drafter.modules())


def test_stages_add_up_to_no_more_than_the_whole():
    target = make_target()
    drafter = randomise(Drafter(make_config(target)))
    start = time.perf_counter()
    [decoded] = speculative_decode(target, drafter, [[1, 2, 3]], 16, tree_budget=16)
    seconds = time.perf_counter() - start
    stages = (decoded.prefill_seconds, decoded.drafter_seconds, decoded.tree_seconds, decoded.verify_seconds)
    assert all(stage > 0 for stage in stages)
    assert decoded.seconds_a_verification * len(decoded.acceptance_lengths) == pytest.approx(decoded.verify_seconds)
    assert decoded.seconds_a_draft * decoded.num_drafter_calls == pytest.approx(decoded.drafter_seconds)
    [greedy] = greedy_decode(target, [[1, 2, 3]], 16)
    assert greedy.seconds_a_verification == pytest.approx(greedy.verify_seconds / 15)
    assert math.isnan(greedy.seconds_a_draft)
    assert 0.5 * decoded.total_seconds < sum(stages) <= decoded.total_seconds <= seconds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; legal: a whole number >= 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"tree_budget": 0}, "tree_budget is 0; legal: a whole number >= 1, or None"),
        ({"max_positions": -1}, "max_positions is -1"),
        ({"prompts": [[1], []]}, r"prompt 1 is torch.float32 \(0,\); legal: a list of token ids, at least one"),
        ({"prompts": [[[1]]]}, r"prompt 0 is torch.int64 \(1, 1\)"),
        ({"prompts": [[1, 61]]}, r"prompt 0 has the ids 1 to 61; legal: \[0, 61\)"),
        ({"eos_token_id": 61}, r"eos_token_id is 61; legal: ids in \[0, 61\), or None"),
        ({"eos_token_id": [3, True]}, r"eos_token_id is \[3, True\]"),
    ],
)
def test_what_cannot_be_decoded_is_refused(changes, message):
    target = make_target()
    arguments = {"prompts": [[1]], "max_new_tokens": 4, **changes}
    with pytest.raises(ValueError, match=message):
        speculative_decode(target, Drafter(make_config(target)), **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 10_000.0}, "rope_theta is 10000.0; legal: 5000.0"),
        ({"target_layer_ids": (0, 2, 3)}, r"target_layer_ids is \(0, 2, 3\); legal: \(0, 1, 3\)"),
        ({"num_target_layers": 6}, "num_target_layers is 6; legal: 4"),
        ({"vocab_size": 70}, "vocab_size is 70; legal: 61"),
        ({"hidden_size": 16}, "hidden_size is 16; legal: 32"),
    ],
)
def test_a_drafter_of_another_target_is_refused(changes, message):
    target = make_target()
    with pytest.raises(ValueError, match=f"not one for {target.name}: {message}"):
        speculative_decode(target, Drafter(make_config(target, **changes)), [[1]], 4)


def test_speed_up_by_hand():
    # 6 tokens for 12 + 3 ms instead of 6 times 10 ms.
    assert predicted_speed_up(6.0, 0.010, 0.012, 0.003) == pytest.approx(4.0)
    # A drafter that nothing comes of costs its own time.
    assert predicted_speed_up(1.0, 0.010, 0.010, 0.010) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="acceptance_length is 0.5; legal: a number >= 1"):
        predicted_speed_up(0.5, 1, 1, 1)
    with pytest.raises(ValueError, match="verify_seconds is 0; legal: a number > 0"):
        predicted_speed_up(2, 1, 0, 1)
    with pytest.raises(ValueError, match="drafter_seconds is -1; legal: a number >= 0"):
        predicted_speed_up(2, 1, 1, -1)


def test_passes_are_measured_at_every_width_behind_the_context():
    target = make_target()
    lengths = []

    class WatchedTarget(GuessingTarget):
        def extend(self, input_ids, cache, **arguments):
            lengths.append((cache.length, input_ids.shape[1]))
            return self._target.extend(input_ids, cache, **arguments)

        def lm_head(self, hidden):
            return self._target.lm_head(hidden)

    drafter = Drafter(make_config(target)).train()
    measured = measure_forward_seconds(WatchedTarget(target), drafter, context_length=30, widths=[1, 8, 33], repeats=3)
    assert lengths == [(0, 30), *[(30, 1)] * 5, *[(30, 8)] * 5, *[(30, 33)] * 5]
    assert drafter.training
    assert [len(samples) for samples in measured.target_samples.values()] == [3, 3, 3]
    assert sorted(measured.target_seconds) == [1, 8, 33]
    assert all(seconds > 0 for seconds in (*measured.target_seconds.values(), measured.drafter_seconds))
    odd = ForwardSeconds(context_length=1, target_samples={1: (3.0, 1.0, 9.0)}, drafter_samples=(2.0, 8.0, 4.0))
    assert odd.target_seconds == {1: 3.0} and odd.drafter_seconds == 4.0
    with pytest.raises(ValueError, match=r"widths is \[0\]; legal: whole numbers >= 1"):
        measure_forward_seconds(target, drafter, context_length=3, widths=[0])
