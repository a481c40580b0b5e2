"""One optimizer step: sums over the window, divided once; nothing moves where there is nothing to learn from."""

import dataclasses

import pytest
import torch

from dflash_lab.drafter import BlockScores, Drafter
from dflash_lab.feed import collate
from dflash_lab.target import TargetFeatures
from dflash_lab.training import DrafterTrainLoop, ScheduleConfig
from dflash_lab.training.assembly import drafter_config, make_optimizer
from dflash_lab.training.micro_batch import MicroBatchSums


@pytest.fixture
def make_loop(tiny_run, target):
    def make(*, step=0, dtype=torch.float32, schedule=None, **changes):
        config = tiny_run.make_config(**{"noise.amplitude": 0.0, **changes})
        drafter = Drafter(drafter_config(config.drafter, target), seed=1).to(dtype)
        schedule = schedule or ScheduleConfig(total_steps=100, learning_rate=1e-3)
        return DrafterTrainLoop(drafter, make_optimizer(drafter, config), target, config, schedule, step=step)

    return make


@pytest.fixture
def features_of(dataset, target):
    def make(*sample_ids, supervised=True, dtype=torch.float32):
        batch = collate([dataset[sample_id] for sample_id in sample_ids])
        if not supervised:
            batch = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
        features = target.features(batch, with_logits=True)
        return TargetFeatures(hidden=features.hidden.to(dtype), batch=features.batch, logits=features.logits)

    return make


@pytest.fixture
def gradients_of(monkeypatch):
    """gradients_of(loop, window) -> the gradients that the step would have used, before the clip, and its outcome."""

    def find(loop, window):
        held = {}

        def keep(self, rate, grad_norm):
            held.update({name: weight.grad.clone() for name, weight in self.drafter.named_parameters()})

        monkeypatch.setattr(DrafterTrainLoop, "_update", keep)
        outcome = loop.train_window(window)
        monkeypatch.undo()
        return held, outcome

    return find


def sums(loss_sum, loss_weight):
    return MicroBatchSums(loss_sum=loss_sum, loss_weight=loss_weight, scores=BlockScores.none(6))


@pytest.mark.parametrize(
    ("batches", "loss"),
    [([(4 * 3.0, 4), (12 * 1.0, 12)], 1.5), ([(2.0 * 10, 10), (1.0 * 30, 30)], 1.25), ([(30, 30), (40, 10)], 1.75)],
)
def test_a_window_is_the_sum_over_the_sum(make_loop, features_of, gradients_of, batches, loss):
    left = [sums(*batch) for batch in batches]

    def add(self, features, *, noise):
        batch = left.pop(0)
        for parameter in self.drafter.parameters():
            before = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = before + batch.loss_sum
        return batch

    loop = make_loop()
    loop.micro_batch.add_gradients = add.__get__(loop.micro_batch)
    gradients, outcome = gradients_of(loop, [features_of(0), features_of(1)])
    assert outcome.sums.loss_sum / outcome.sums.loss_weight == loss
    # The gradient is divided by the same, once.
    assert all((gradient == loss).all() for gradient in gradients.values())


@pytest.mark.parametrize("kind", ["dflash", "dpace", "kl"])
def test_gradients_of_a_window_are_those_of_one_large_batch(make_loop, features_of, gradients_of, kind):
    """Batches of 1, 4 and 2 samples against all seven in one: a mean of means would weigh the first one too high."""
    options = {"dtype": torch.float64, "loss.kind": kind}
    parts = [(0,), (1, 2, 3, 4), (5, 6)]
    window = [features_of(*part, dtype=torch.float64) for part in parts]
    whole = [features_of(*range(7), dtype=torch.float64)]
    several, outcome = gradients_of(make_loop(**options), window)
    one, expected = gradients_of(make_loop(**options), whole)
    assert outcome.sums.scores == expected.sums.scores and outcome.sums.scores.num_blocks > 20
    assert outcome.sums.loss_weight == pytest.approx(expected.sums.loss_weight, rel=1e-7)
    assert outcome.sums.loss_sum == pytest.approx(expected.sums.loss_sum, rel=1e-6)
    for name, gradient in several.items():
        assert gradient.dtype == torch.float64
        # The head's losses are float32 in both: each slot's gradient is the same number, however it is batched.
        torch.testing.assert_close(gradient, one[name], rtol=1e-12, atol=1e-12, msg=name)
    # A mean of the three batches' means is another gradient.
    means = [gradients_of(make_loop(**options), [batch])[0] for batch in window]
    name = "fc.weight"
    mean_of_means = sum(mean[name] for mean in means) / 3
    assert (mean_of_means - one[name]).abs().max() > 1e-3 * one[name].abs().max()


def test_a_batch_without_anchors_changes_nothing_in_its_window(make_loop, features_of, gradients_of):
    plain, _ = gradients_of(make_loop(), [features_of(0, 1)])
    beside, outcome = gradients_of(make_loop(), [features_of(2, supervised=False), features_of(0, 1)])
    assert outcome.skipped == ""
    for name in plain:
        assert torch.equal(plain[name], beside[name])


def test_an_empty_window_updates_nothing_and_moves_the_schedule(make_loop, features_of):
    loop = make_loop(schedule=ScheduleConfig(total_steps=4, warmup_steps=4, learning_rate=1.0))
    before = {name: tensor.clone() for name, tensor in loop.drafter.state_dict().items()}
    outcome = loop.train_window([features_of(0, supervised=False)])
    assert (outcome.skipped, outcome.updated, outcome.learning_rate, loop.step) == ("no anchors", False, 0.25, 1)
    for name, tensor in loop.drafter.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not loop.optimizer.state
    assert all(parameter.grad is None for parameter in loop.drafter.parameters())
    # The next step has the second rate, and begins with gradients of 0.
    outcome = loop.train_window([features_of(0)])
    assert (outcome.updated, outcome.learning_rate, loop.step) == (True, 0.5, 2)


def test_the_clip_is_on_the_divided_gradient(make_loop, features_of):
    """AdamW's first step moves every weight by lr * sign(gradient), so SGD shows the length of the step."""
    loop = make_loop(**{"optimizer.max_grad_norm": 0.01})
    loop.optimizer = torch.optim.SGD(loop.drafter.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in loop.drafter.parameters()]
    outcome = loop.train_window([features_of(0, 1), features_of(2)])
    moved = torch.cat(
        [(now - then).detach().flatten() for now, then in zip(loop.drafter.parameters(), before, strict=True)]
    )
    assert outcome.grad_norm > 0.01
    # The rate is the schedule's, the length of the gradient the clip's.
    assert float(moved.norm()) == pytest.approx(0.01 * outcome.learning_rate, rel=1e-3)


def test_without_a_clip_the_gradient_stays(make_loop, features_of):
    loop = make_loop(**{"optimizer.max_grad_norm": None})
    loop.optimizer = torch.optim.SGD(loop.drafter.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in loop.drafter.parameters()]
    outcome = loop.train_window([features_of(0, 1)])
    moved = torch.cat(
        [(now - then).detach().flatten() for now, then in zip(loop.drafter.parameters(), before, strict=True)]
    )
    assert float(moved.norm()) == pytest.approx(outcome.grad_norm * outcome.learning_rate, rel=1e-3)


def test_matrices_decay_and_norms_do_not(make_loop):
    loop = make_loop(**{"optimizer.weight_decay": 0.1, "optimizer.betas": [0.8, 0.9]})
    decay = {id(weight): group["weight_decay"] for group in loop.optimizer.param_groups for weight in group["params"]}
    for name, parameter in loop.drafter.named_parameters():
        assert decay[id(parameter)] == (0.0 if "norm" in name else 0.1), name
    assert {group["betas"] for group in loop.optimizer.param_groups} == {(0.8, 0.9)}


def test_features_are_taken_one_at_a_time(make_loop, features_of):
    events = []

    def window():
        for sample_id in range(3):
            events.append(f"give {sample_id}")
            yield features_of(sample_id)

    loop = make_loop()
    honest = loop.micro_batch.add_gradients

    def trained(features, *, noise):
        events.append(f"train {features.batch.sample_ids.tolist()[0]}")
        return honest(features, noise=noise)

    loop.micro_batch.add_gradients = trained
    loop.train_window(window())
    assert events == ["give 0", "train 0", "give 1", "train 1", "give 2", "train 2"]


def test_noise_reaches_features_and_neither_labels_nor_scores_without_it(make_loop, features_of):
    ramp = ScheduleConfig(total_steps=100, noise_amplitude=0.4, noise_warmup_steps=10)
    quiet, noisy = make_loop(schedule=ramp, step=0), make_loop(schedule=ramp, step=5)
    features = features_of(0, 1, 2)
    assert (quiet.noise, noisy.noise) == (0.0, pytest.approx(0.2))
    plain, other = quiet.micro_batch.draft(features), noisy.micro_batch.draft(features, noise=noisy.noise)
    assert torch.equal(plain.blocks.labels, other.blocks.labels)
    assert torch.equal(plain.blocks.anchors, other.blocks.anchors)
    assert not torch.equal(plain.hidden, other.hidden)
    assert torch.equal(plain.hidden, noisy.micro_batch.draft(features).hidden)
    assert noisy.train_window([features]).noise == pytest.approx(0.2)


def test_the_gamma_of_the_settings_is_the_one_in_use(make_loop, features_of):
    from dflash_lab.drafter import block_position_weights

    features = features_of(0, 1)
    weights = {}
    for gamma in (4.0, 7.0, None):
        drafted = make_loop(**{"loss.gamma": gamma}).micro_batch.draft(features)
        expected = block_position_weights(6, gamma)
        assert torch.equal(drafted.loss.weights, torch.where(drafted.blocks.scored, expected, 0.0))
        weights[gamma] = float(drafted.loss.weight_sum)
    assert len(set(weights.values())) == 3


def test_kl_reads_the_targets_logits_at_the_token_before(make_loop, features_of, target, dataset):
    """Against a loop over blocks and slots that indexes the sample itself."""
    loop = make_loop(**{"loss.kind": "kl", "loss.gamma": 4.0})
    features = features_of(3, 4)
    drafted = loop.micro_batch.draft(features)
    logits = target.lm_head(drafted.hidden.detach())
    expected = 0.0
    for block in range(len(drafted.blocks)):
        document, anchor = int(drafted.blocks.documents[block]), int(drafted.blocks.anchors[block])
        for slot in range(1, 6):
            if drafted.blocks.scored[block, slot]:
                wanted = features.logits[document, anchor + slot - 1].log_softmax(-1)
                given = logits[block, slot].log_softmax(-1)
                expected += float(torch.exp(torch.tensor(-(slot - 1) / 4.0)) * (wanted.exp() * (wanted - given)).sum())
    assert float(drafted.loss.loss_sum.detach()) == pytest.approx(expected, rel=1e-4)


def test_numbers_of_a_batch_survive_the_way_over_ranks(make_loop, features_of):
    outcome = make_loop().train_window([features_of(0, 1, 2)])
    assert MicroBatchSums.of_numbers(outcome.sums.numbers()) == outcome.sums
