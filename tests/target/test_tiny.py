"""The TinyTarget, trained for a few steps, and what it writes."""

import json
import shutil

import numpy as np
import pytest
import torch

from dflash_lab import data
from dflash_lab.target import AnswerSettings, TinyTarget, TransformersTarget, answer_corpus, tiny_corpus, write_answers
from dflash_lab.target.answers import distinct_share
from dflash_lab.target.muon import Muon, orthogonalised
from dflash_lab.target.tiny_training import TinySettings, held_out, tiny_model, train_tiny

STEPS = 3


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def tiny(cache):
    return TinyTarget.load_or_train(steps=STEPS, cache=cache, progress=False)


@pytest.fixture(scope="module")
def written(tiny, cache):
    settings = AnswerSettings(num_train=9, num_validation=5, max_prompt_tokens=60, max_new_tokens=12, batch_size=4)
    return tiny_corpus(tiny, settings=settings, cache=cache, progress=False)


def test_the_tiny_target_is_what_it_says(tiny):
    config = tiny.model.config
    assert tiny.target_layer_ids == (0, 1, 2)
    assert (tiny.num_layers, tiny.hidden_size, tiny.vocab_size, tiny.rope_theta) == (4, 192, 2_048, 10_000.0)
    assert config.model_type == "qwen3" and config.tie_word_embeddings
    assert tiny.model.lm_head.weight is tiny.model.model.embed_tokens.weight
    # Embedding 2,048 x 192; a layer 2 x 192 x 192 + 2 x 192 x 64 + 3 x 192 x 512 and norms of 2 x 192 + 2 x 32; a norm.
    layer = 2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 512 + 2 * 192 + 2 * 32
    assert tiny.report.num_parameters == 2_048 * 192 + 4 * layer + 192
    assert tiny.report.num_trained_tokens == STEPS * 4 * 256
    assert tiny.name == "TinyTarget-3-0"


def test_it_is_trained_once_and_found_again(tiny, cache, monkeypatch, capsys):
    monkeypatch.setattr("dflash_lab.target.tiny.train_tiny", lambda *_args, **_named: pytest.fail("trained again"))
    again = TinyTarget.load_or_train(steps=STEPS, cache=cache)
    assert again.fingerprint == tiny.fingerprint
    assert again.report == tiny.report
    assert capsys.readouterr().err == ""


def test_a_damaged_cache_is_made_anew_with_the_same_weights(tiny, cache, tmp_path, capsys):
    shutil.copytree(cache / "tiny-target", tmp_path / "tiny-target")
    report = next(tmp_path.rglob("report.json"))
    report.write_text(report.read_text()[:40])
    again = TinyTarget.load_or_train(steps=STEPS, cache=tmp_path, progress=False)
    assert again.fingerprint == tiny.fingerprint
    assert "damaged" in capsys.readouterr().err


def test_weights_follow_from_steps_and_seed_and_no_global_generator_moves():
    corpus = data.PreloadedDataset.from_rows(
        {"input_ids": np.random.default_rng(number).integers(0, 40, 30), "loss_mask": np.arange(30) > 9}
        for number in range(25)
    )
    settings = TinySettings(steps=4, batch_size=2, seq_len=16, hidden_size=64, intermediate_size=32, num_layers=1)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    (first, report), (second, _) = (train_tiny(corpus, settings, vocab_size=40, progress=False) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    changed = tiny_model(TinySettings(steps=4, seed=1), 40), tiny_model(TinySettings(steps=4), 40)
    assert not torch.equal(*(model.model.embed_tokens.weight for model in changed))
    # One conversation of 25 is held out, number 19; its mask covers ids 10..29.
    assert report.num_held_out_tokens == 20
    ids = torch.from_numpy(corpus[19].input_ids)
    with torch.no_grad():
        log_probs = first(ids[None]).logits[0, :-1].log_softmax(-1)
    expected = -log_probs[torch.arange(9, 29), ids[10:]].mean()
    assert report.held_out_loss == pytest.approx(float(expected), rel=1e-5)
    assert report.held_out_top1 == pytest.approx(float((log_probs[9:].argmax(-1) == ids[10:]).float().mean()))


def test_training_learns_what_can_be_learnt():
    """Ids that count on: a model that has learnt it makes no mistake on held-out ones."""
    rows = [{"input_ids": (start + np.arange(40)) % 20, "loss_mask": np.arange(40) > 4} for start in range(40)]
    corpus = data.PreloadedDataset.from_rows(rows)
    settings = TinySettings(steps=40, batch_size=4, seq_len=32, hidden_size=64, intermediate_size=64, num_layers=2)
    _, report = train_tiny(corpus, settings, vocab_size=20, progress=False)
    assert report.held_out_top1 > 0.95
    # A guess among 20 ids costs ln 20 = 3.0.
    assert report.held_out_loss < 1.5


def test_held_out_conversations_are_never_read(monkeypatch):
    """Held-out samples alone hold the id 7: it never comes up in training."""
    rows = [{"input_ids": np.full(20, 7 if number % 20 == 19 else 3), "loss_mask": np.ones(20)} for number in range(40)]
    corpus = data.PreloadedDataset.from_rows(rows)
    read = []
    monkeypatch.setattr(
        "dflash_lab.target.tiny_training._loss",
        lambda model, ids: read.append(ids) or model(ids).logits.sum(),
    )
    train_tiny(corpus, TinySettings(steps=20, batch_size=8, seq_len=16), vocab_size=8, progress=False)
    assert torch.cat(read).unique().tolist() == [3]
    assert np.flatnonzero(held_out(45)).tolist() == [19, 39]


def test_muon_steps_along_the_singular_vectors():
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(6, 10), full_matrices=False)
    for values in (torch.tensor([3.0, 2.0, 1.5, 1.0, 0.8, 0.5]), torch.full((6,), 1e-3)):
        matrix = left @ torch.diag(values) @ right
        for found, vectors in ((orthogonalised(matrix), (left, right)), (orthogonalised(matrix.T), (right.T, left.T))):
            inner = vectors[0].T @ found @ vectors[1].T
            assert inner.diagonal().min() > 0.6 and inner.diagonal().max() < 1.3
            assert (inner - torch.diag(inner.diagonal())).abs().max() < 1e-4


def test_muon_by_hand():
    """From zero momentum the direction is the gradient's whatever its length, and tall matrices step further."""
    gradient = torch.zeros(8, 2)
    gradient[0, 0], gradient[1, 1] = 5.0, 5.0
    weight = torch.zeros(8, 2, requires_grad=True)
    optimizer = Muon([weight], lr=0.1)
    weight.grad = gradient
    optimizer.step()
    step = orthogonalised(gradient)
    assert torch.allclose(weight.detach(), -0.1 * (8 / 2) ** 0.5 * step, atol=1e-6)
    assert 0.7 < step[0, 0] < 1.2 and step[0, 0] == step[1, 1] and step.abs().sum() == 2 * step[0, 0]


@pytest.mark.parametrize("changes", [{"steps": 0}, {"seed": -1}])
def test_settings_are_checked(changes, cache):
    with pytest.raises(ValueError, match=f"{next(iter(changes))} is {next(iter(changes.values()))}; legal: a whole"):
        TinyTarget.load_or_train(**changes, cache=cache)


def test_answers_are_greedy_decoding_of_each_prompt_alone(tiny):
    rng = np.random.default_rng(4)
    prompts = [rng.integers(0, 2_048, length) for length in (5, 11, 1, 8, 3)]
    written = write_answers(tiny, prompts, max_new_tokens=6, end_ids=(), batch_size=2)
    for prompt, answer in zip(prompts, written.answers, strict=True):
        cache, ids, expected = tiny.new_cache(), torch.from_numpy(prompt)[None], []
        for _ in range(6):
            step = tiny.extend(ids, cache)
            ids = step.logits[:, -1:].argmax(-1)
            expected.append(int(ids))
        assert answer.tolist() == expected
    assert written.num_tokens == 30 and written.num_ended == 0


def test_an_answer_stops_behind_its_end(tiny):
    prompts = [np.array([5, 6, 7]), np.array([9])]
    whole = write_answers(tiny, prompts, max_new_tokens=8, end_ids=()).answers
    end = int(whole[0][2])
    stopped = write_answers(tiny, prompts, max_new_tokens=8, end_ids=(end,))
    first = whole[0].tolist().index(end)
    assert stopped.answers[0].tolist() == whole[0][: first + 1].tolist()
    assert stopped.num_ended == sum(end in answer for answer in whole)


def test_drawn_answers_follow_from_the_seed_and_leave_torchs_generator_alone(tiny):
    prompts = [np.array([5, 6, 7]), np.array([9])]
    settings = {"max_new_tokens": 8, "end_ids": (), "temperature": 0.7}
    state = torch.get_rng_state()
    first, again, other = (
        np.concatenate(write_answers(tiny, prompts, seed=seed, **settings).answers).tolist() for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert first == again != other


def test_the_models_own_way_of_writing_is_set_aside_and_put_back(tiny_model):
    from transformers import GenerationConfig

    target = TransformersTarget(tiny_model("llama"), target_layer_ids=(0, 2))
    plain = write_answers(target, [np.arange(9)], max_new_tokens=5, end_ids=()).answers[0].tolist()
    usual = GenerationConfig(eos_token_id=plain[0], repetition_penalty=5.0, do_sample=True, temperature=3.0)
    target.model.generation_config = usual
    assert write_answers(target, [np.arange(9)], max_new_tokens=5, end_ids=()).answers[0].tolist() == plain
    assert target.model.generation_config is usual


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; legal: a whole number >= 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"temperature": -1.0}, "temperature is -1.0; legal: a finite number >= 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"prompts": [np.array([1]), np.array([], np.int64)]}, "prompt 1 is empty"),
        ({"prompts": [np.array([2_048])]}, "has the id 2048"),
        ({"prompts": [np.ones(32_767, np.int64)]}, "has 32769 positions"),
    ],
)
def test_what_cannot_be_written_is_refused(tiny, changes, message):
    settings = {"prompts": [np.array([1])], "max_new_tokens": 2, "end_ids": ()} | changes
    with pytest.raises(ValueError, match=message):
        write_answers(tiny, settings.pop("prompts"), **settings)


def test_distinct_share_by_hand():
    # Runs of 4: 1212 and 2121 take turns, 2 different ones of 7.
    assert distinct_share(np.array([1, 2] * 5)) == pytest.approx(2 / 7)
    assert distinct_share(np.arange(10)) == 1.0
    assert distinct_share(np.array([3, 3])) == 1.0


def test_a_corpus_of_own_answers(tiny, written):
    conversations = data.builtin_corpus(form="single_turn")
    end_id = data.builtin_tokenizer().convert_tokens_to_ids("<|im_end|>")
    prompts = {"train": set(), "validation": set()}
    known = {}
    for number, sample in enumerate(conversations):
        prompt = sample.input_ids[: sample.loss_mask.argmax()].tobytes()
        known.setdefault(prompt, []).append(number)
    for split, dataset in (("train", written.train), ("validation", written.validation)):
        figures = written.figures[split]
        for number, sample in enumerate(dataset):
            begin = int(sample.loss_mask.argmax())
            prompt, answer = sample.input_ids[:begin], sample.input_ids[begin:]
            assert sample.loss_mask[begin:].all() and len(prompt) <= 60 and 1 <= len(answer) <= 12
            numbers = known[prompt.tobytes()]
            assert any((number % 20 == 19) == (split == "validation") for number in numbers)
            assert dataset.sources[number] == conversations.sources[numbers[0]]
            alone = write_answers(tiny, [prompt], max_new_tokens=12, end_ids=(end_id,))
            assert alone.answers[0].tolist() == answer.tolist()
            prompts[split].add(prompt.tobytes())
        assert figures.num_answers == len(dataset) == len(prompts[split]) == {"train": 9, "validation": 5}[split]
        assert figures.num_answer_tokens == int(dataset.loss_tokens.sum())
        assert figures.num_prompt_tokens + figures.num_answer_tokens == int(dataset.lengths.sum())
    assert not prompts["train"] & prompts["validation"]
    stored = json.loads((written.folder / "figures.json").read_text())
    assert stored["figures"]["train"]["num_answers"] == 9
    assert stored["settings"]["max_new_tokens"] == 12
    opened = data.PreloadedDataset.open(written.folder, split="validation")
    assert opened.fingerprint == written.validation.fingerprint


def test_own_answers_are_written_once(tiny, written, cache, monkeypatch):
    monkeypatch.setattr("dflash_lab.target.answer_store.write_answers", lambda *_args, **_named: pytest.fail("again"))
    settings = AnswerSettings(num_train=9, num_validation=5, max_prompt_tokens=60, max_new_tokens=12, batch_size=4)
    again = tiny_corpus(tiny, settings=settings, cache=cache)
    assert again.train.fingerprint == written.train.fingerprint
    assert again.figures == written.figures


def test_a_prompt_of_both_splits_is_kept_for_validation(tiny, tmp_path):
    def row(*prompt):
        return {"input_ids": [*prompt, 40, 41], "loss_mask": [0] * len(prompt) + [1, 1], "source": "here"}

    conversations = data.PreloadedDataset.from_rows([row(5, 6), row(8), row(8), row(5, 6), row(9, 9, 9, 9)])
    found = answer_corpus(
        conversations,
        tiny,
        is_validation=np.array([0, 0, 0, 1, 0], bool),
        end_ids=(),
        settings=AnswerSettings(max_prompt_tokens=3, max_new_tokens=2),
        cache=tmp_path,
        progress=False,
    )
    assert [sample.input_ids[:-2].tolist() for sample in found.train] == [[8]]
    assert [sample.input_ids[:-2].tolist() for sample in found.validation] == [[5, 6]]
    with pytest.raises(ValueError, match="no prompt of 1 tokens or fewer is in the validation split"):
        answer_corpus(
            conversations,
            tiny,
            is_validation=np.array([0, 0, 0, 1, 0], bool),
            end_ids=(),
            settings=AnswerSettings(max_prompt_tokens=1),
            cache=tmp_path,
        )
    with pytest.raises(ValueError, match=r"is_validation has the shape \(2,\); legal: \(5,\)"):
        answer_corpus(conversations, tiny, is_validation=np.zeros(2, bool), end_ids=(), cache=tmp_path)
    with pytest.raises(ValueError, match="num_train is 0; legal: a whole number >= 1"):
        AnswerSettings(num_train=0)
