"""Gradients of micro-batches, steps and buckets, each derived another way."""

import numpy as np
import pytest
import torch

from dflash_lab import study
from dflash_lab.drafter import AnchorBudget, Drafter
from dflash_lab.feed import collate
from dflash_lab.study.gradients import cosine
from dflash_lab.training import DrafterTrainLoop, ScheduleConfig
from dflash_lab.training.assembly import drafter_config, make_optimizer


@pytest.fixture
def make_loop(settings, material):
    """make_loop(normalisation or None for a plain loop) -> loop without a clip."""

    def make(normalisation):
        config = settings.run_config(settings.specs()[0], mask_token_id=material.mask_token_id, anchors=4)
        config = config.replace({"optimizer.max_grad_norm": None})
        drafter = Drafter(drafter_config(config.drafter, material.target), seed=0)
        optimizer = make_optimizer(drafter, config)
        schedule = ScheduleConfig.of(config.optimizer, config.noise, 5)
        loop = DrafterTrainLoop(drafter, optimizer, material.target, config, schedule)
        if normalisation:
            bounds = settings.bucket_bounds
            loop.micro_batch = study.ProbedMicroBatch(
                drafter, material.target, config, bounds=bounds, normalisation=normalisation
            )
        return loop

    return make


@pytest.fixture
def window(material, features):
    """Two micro-batches: five samples and one."""
    numbers = [int(number) for number in material.train_ids[:6]]
    return [
        features.train.features(collate([material.train[number] for number in part]))
        for part in (numbers[:5], numbers[5:])
    ]


def explicit(loop, features):
    """Gradient of a micro-batch's weighted sum of losses, by autograd on the sum itself, and its weight."""
    loss = loop.micro_batch.draft(features).loss
    parameters = list(loop.drafter.parameters())
    gradients = torch.autograd.grad(loss.loss_sum, parameters, allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return torch.cat([each.flatten() for each in flat]), float(loss.weight_sum)


def applied(loop, window):
    """The gradient that the optimizer gets in the next step."""
    seen = []

    def look(*_):
        seen.append(torch.cat([parameter.grad.flatten() for parameter in loop.drafter.parameters()]))

    hook = loop.optimizer.register_step_pre_hook(look)
    outcome = loop.train_window(window)
    hook.remove()
    return seen[0], outcome


def test_a_probed_run_has_the_weights_of_a_plain_one(make_loop, window):
    plain, probed = make_loop(None), make_loop("window")
    for _ in range(3):
        first, second = plain.train_window(window), probed.train_window(window)
        assert first == second
    for one, other in zip(plain.drafter.parameters(), probed.drafter.parameters(), strict=True):
        assert torch.equal(one, other)


def test_window_divides_once_and_micro_batch_each_by_itself(make_loop, window):
    loop = make_loop(None)
    (first, first_weight), (second, second_weight) = (explicit(loop, features) for features in window)
    assert first_weight > 2 * second_weight
    right, _ = applied(make_loop("window"), window)
    torch.testing.assert_close(right, (first + second) / (first_weight + second_weight))
    wrong, outcome = applied(make_loop("micro_batch"), window)
    torch.testing.assert_close(wrong, (first / first_weight + second / second_weight) / 2)
    # What is wrong: each mean gets one half instead of its share of the weight.
    share = first_weight / (first_weight + second_weight)
    torch.testing.assert_close(
        wrong - right, (0.5 - share) * (first / first_weight - second / second_weight), atol=1e-6, rtol=1e-4
    )
    assert outcome.grad_norm == pytest.approx(float(wrong.norm()), rel=1e-5)


@pytest.mark.parametrize("normalisation", study.NORMALISATIONS)
def test_micro_batches_tell_their_own_norms_and_sums(make_loop, window, settings, normalisation):
    loop = make_loop(normalisation)
    expected = [explicit(loop, features) for features in window]
    outcome = loop.train_window(window)
    records = loop.micro_batch.take_records()
    assert loop.micro_batch.take_records() == []
    for record, (gradient, weight), features in zip(records, expected, window, strict=True):
        assert record.grad_norm == pytest.approx(float((gradient / weight).norm()), rel=1e-5)
        assert record.loss_weight == pytest.approx(weight, rel=1e-6)
        assert record.real_tokens == features.batch.real_tokens
        assert sum(record.bucket_loss_sums) == pytest.approx(record.loss_sum, rel=1e-9)
        assert sum(record.bucket_loss_weights) == pytest.approx(record.loss_weight, rel=1e-9)
        assert sum(record.bucket_num_blocks) == record.num_blocks
        present = {int(np.digitize(length, settings.bucket_bounds[1:-1])) for length in features.batch.lengths}
        assert {bucket for bucket, blocks in enumerate(record.bucket_num_blocks) if blocks} <= present
    assert sum(record.num_blocks for record in records) == outcome.sums.scores.num_blocks


def test_bucket_bounds_are_half_open_and_the_last_takes_the_rest():
    assert study.bucket_of(np.array([1, 19, 20, 39, 40, 64, 99]), (0, 20, 40, 64)).tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_cosine_of_steps_on_a_toy():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    watching = study.StepGradients(optimizer, [weight])
    found = []
    for gradient in ([1.0, 0.0], [3.0, 4.0], [-6.0, -8.0], [0.0, 0.0], [1.0, 1.0]):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        found.append(watching.cosine)
    assert found == [None, pytest.approx(0.6), pytest.approx(-1.0), None, None]
    watching.close()
    weight.grad = torch.tensor([1.0, 1.0])
    optimizer.step()
    assert watching.cosine is None
    assert cosine(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])) == pytest.approx(2**-0.5)


def test_bucket_gradients_are_products_of_mean_gradients(make_loop, window):
    loop = make_loop("window")
    before = [parameter.clone() for parameter in loop.drafter.parameters()]
    budget = AnchorBudget(per="sample", amount=4)
    found = study.bucket_gradients(loop.micro_batch, [(window[0], window[1]), (None, None)], budget=budget)
    (first, one), (second, other) = (explicit(loop, features) for features in window)
    means = [first / one, second / other]
    for row in range(2):
        for column in range(2):
            assert found.products[row][column] == pytest.approx(float(means[row] @ means[column]), rel=1e-4)
    assert all(value == 0 for row in found.products[2:] for value in row)
    assert found.num_blocks[1] == (0, 0) and min(found.num_blocks[0]) > 0
    for parameter, kept in zip(loop.drafter.parameters(), before, strict=True):
        assert torch.equal(parameter, kept) and parameter.grad is None
