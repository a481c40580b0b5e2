"""A batch that does not fit is named, with its shape and what to lower; nothing of a try stays."""

import gc

import numpy as np
import pytest
import torch

from dflash_lab import training
from dflash_lab.training.micro_batch import MicroBatch


def refuse(error):
    def fail(self, features, *, noise):
        raise error

    return fail


def cpu_error():
    # More than any machine has: the words are torch's own.
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.\nmore"), "CUDA out of memory. Tried"),
        (cpu_error(), ""),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(tiny_run, dataset, target, monkeypatch, error, words):
    config = tiny_run.make_config()
    heaviest, *_ = training.try_heaviest_batches(config, dataset, target, device="cpu")
    monkeypatch.setattr(MicroBatch, "add_gradients", refuse(error))
    with pytest.raises(MemoryError) as caught:
        training.try_heaviest_batches(config, dataset, target, device="cpu")
    message = str(caught.value)
    assert message.startswith(
        f"batch {heaviest.batch_id} of epoch {heaviest.epoch} (most padded tokens) does not fit into memory: "
        f"{heaviest.num_samples} samples in {heaviest.num_samples} rows of "
        f"{heaviest.padded_tokens // heaviest.num_samples} tokens; lower batching.token_budget (256), "
        f"batching.max_seq_len (64) or anchors.amount (6 per sample): {words}"
    )
    assert "\n" not in message and caught.value.__cause__ is error


def test_other_errors_are_their_own(tiny_run, dataset, target, monkeypatch):
    monkeypatch.setattr(MicroBatch, "add_gradients", refuse(RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="^shapes do not match$"):
        training.try_heaviest_batches(tiny_run.make_config(), dataset, target, device="cpu")


def test_a_run_does_not_begin_where_a_batch_does_not_fit(train, tmp_path, monkeypatch):
    monkeypatch.setattr(MicroBatch, "add_gradients", refuse(torch.OutOfMemoryError("out of memory")))
    with pytest.raises(MemoryError, match="does not fit into memory"):
        train(tmp_path / "run", try_heaviest_first=True)
    assert not (tmp_path / "run").exists()


def test_the_drafter_is_not_moved(tiny_run, dataset, target, monkeypatch):
    seen, honest = [], MicroBatch.add_gradients

    def watched(self, features, *, noise):
        before = {name: tensor.clone() for name, tensor in self.drafter.state_dict().items()}
        sums = honest(self, features, noise=noise)
        same = all(torch.equal(tensor, before[name]) for name, tensor in self.drafter.state_dict().items())
        seen.append((same, sums.scores.num_blocks, any(weight.grad.any() for weight in self.drafter.parameters())))
        return sums

    monkeypatch.setattr(MicroBatch, "add_gradients", watched)
    tried = training.try_heaviest_batches(tiny_run.make_config(), dataset, target, device="cpu")
    assert seen == [(True, batch.num_blocks, True) for batch in tried]


@pytest.mark.parametrize(("per", "amount"), [("sample", 4), ("supervised_token", 0.5), ("batch", 40)])
def test_no_batch_of_the_run_has_more_blocks_or_tokens(tiny_run, dataset, target, train, tmp_path, per, amount):
    changes = {"anchors.per": per, "anchors.amount": amount, "batching.window": 1, "validation.every_steps": None}
    tried = training.try_heaviest_batches(tiny_run.make_config(**changes), dataset, target, device="cpu")
    steps = []
    train(tmp_path / "run", on_step=steps.append, **changes)
    # A block needs a scored slot to be counted; the samples' masks are one stretch, so that all blocks have one.
    assert max(batch.num_blocks for batch in tried) == max(step.num_blocks for step in steps)
    assert tried[0].padded_tokens == np.max([step.padded_tokens for step in steps])


def test_full_queues_are_held_beside_the_batch(tiny_run, dataset, target, monkeypatch):
    held, honest = [], MicroBatch.add_gradients

    def watched(self, features, *, noise):
        alive = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        held.append(sum(each.shape == features.hidden.shape and each.dtype == features.hidden.dtype for each in alive))
        return honest(self, features, noise=noise)

    monkeypatch.setattr(MicroBatch, "add_gradients", watched)
    for depth in (1, 4):
        config = tiny_run.make_config(**{"pipeline.feature_depth": depth, "noise.amplitude": 0.0})
        training.try_heaviest_batches(config, dataset, target, device="cpu")
    half = len(held) // 2
    assert [deep - flat for flat, deep in zip(held[:half], held[half:], strict=True)] == [3] * half
