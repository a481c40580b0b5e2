"""Tiny models of many families with random weights large enough for attention to matter, and batches by hand."""

import pytest
import torch

from dflash_lab.feed import Batch

VOCAB = 61
SHAPE = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=6, num_attention_heads=4, initializer_range=0.3)
LLAMA = dict(SHAPE, intermediate_size=48, num_key_value_heads=2, max_position_embeddings=64)
QWEN3 = dict(LLAMA, head_dim=8)
GEMMA = dict(QWEN3, hidden_activation="gelu_pytorch_tanh")
# A window of 4 tokens: most tokens of the samples lie out of it.
FAMILIES = {
    "llama": ("LlamaConfig", LLAMA),
    "qwen2": ("Qwen2Config", LLAMA),
    "qwen2_sliding": ("Qwen2Config", dict(LLAMA, use_sliding_window=True, sliding_window=4, max_window_layers=3)),
    "qwen3": ("Qwen3Config", QWEN3),
    "gpt2": ("GPT2Config", dict(SHAPE, max_position_embeddings=64)),
    "mistral_sliding": ("MistralConfig", dict(LLAMA, sliding_window=4)),
    "mistral": ("MistralConfig", dict(LLAMA, sliding_window=None)),
    "gemma": ("GemmaConfig", GEMMA),
    "gemma2": ("Gemma2Config", dict(GEMMA, sliding_window=4, final_logit_softcapping=3.0, query_pre_attn_scalar=8)),
    "gemma3": ("Gemma3TextConfig", dict(GEMMA, sliding_window=4, query_pre_attn_scalar=8)),
    "granite": ("GraniteConfig", dict(LLAMA, embedding_multiplier=3.0, logits_scaling=2.5)),
}


def make_model(family, *, dtype=torch.float32, **changes):
    import transformers

    name, settings = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, name)(**{**settings, **changes})
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


def make_samples(lengths, *, vocab_size=VOCAB, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (length,), generator=generator) for length in lengths]


def make_padded(samples, *, width=None, batch_id=0):
    lengths = torch.tensor([len(sample) for sample in samples])
    width = width or int(lengths.max())
    input_ids = torch.zeros(len(samples), width, dtype=torch.int64)
    for row, sample in enumerate(samples):
        input_ids[row, : len(sample)] = sample
    mask = torch.arange(width) < lengths[:, None]
    numbers = torch.arange(len(samples))
    return Batch(
        input_ids=input_ids,
        attention_mask=mask,
        loss_mask=mask,
        lengths=lengths,
        sample_ids=numbers,
        rows=numbers,
        starts=torch.zeros_like(numbers),
        batch_id=batch_id,
    )


def make_packed(samples, *, tail=0):
    lengths = torch.tensor([len(sample) for sample in samples])
    nothing = torch.zeros(tail, dtype=torch.int64)
    documents = torch.repeat_interleave(torch.arange(len(samples)), lengths)
    real = torch.cat([torch.ones(int(lengths.sum())), nothing])[None].bool()
    return Batch(
        input_ids=torch.cat([*samples, nothing])[None],
        attention_mask=real,
        loss_mask=real,
        lengths=lengths,
        sample_ids=torch.arange(len(samples)),
        rows=torch.zeros(len(samples), dtype=torch.int64),
        starts=lengths.cumsum(0) - lengths,
        layout="packed",
        position_ids=torch.cat([*(torch.arange(len(sample)) for sample in samples), nothing])[None],
        document_ids=torch.cat([documents, nothing - 1])[None],
    )


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="session")
def tiny_model():
    """make_model(family, *, dtype, **changes of its config)."""
    return make_model


@pytest.fixture(scope="session")
def some_samples():
    """make_samples(lengths, *, vocab_size, seed) -> int64 tensors."""
    return make_samples


@pytest.fixture(scope="session")
def padded_batch():
    """make_padded(samples, *, width, batch_id) -> Batch."""
    return make_padded


@pytest.fixture(scope="session")
def packed_batch():
    """make_packed(samples, *, tail) -> Batch."""
    return make_packed
