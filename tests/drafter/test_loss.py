import math

import pytest
import torch
from torch.nn import functional

from dflash_lab.drafter import DraftBlocks, block_loss, block_position_weights, drafter_loss
from dflash_lab.drafter import loss as loss_module

VOCAB, WIDTH = 37, 6
WEIGHTS = [1, 0.778801, 0.606531, 0.472367, 0.367879, 0.286505, 0.223130]


def random_blocks(num_blocks=9, block_size=5, *, share=0.8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_blocks, block_size)
    scored = torch.rand(shape, generator=generator) < share
    scored[:, 0] = False
    return DraftBlocks(
        documents=torch.zeros(num_blocks, dtype=torch.int64),
        anchors=torch.arange(num_blocks),
        input_ids=torch.zeros(shape, dtype=torch.int64),
        labels=torch.where(scored, torch.randint(0, VOCAB, shape, generator=generator), 0),
        scored=scored,
    )


def random_hidden(blocks, *, dtype=torch.float32, seed=1):
    shape = (len(blocks), blocks.block_size, WIDTH)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def head_of(dtype=torch.float32):
    weight = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(2), dtype=dtype)
    return lambda states: functional.linear(states, weight)


def teacher_of(blocks):
    return torch.randn(len(blocks), blocks.block_size, VOCAB, generator=torch.Generator().manual_seed(3)) * 3


def test_weights_of_gamma_4_and_block_8():
    weights = block_position_weights(8, 4)
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx([0, *WEIGHTS], abs=1e-6)
    assert float(weights.sum()) == pytest.approx(3.735212, abs=1e-5)


def test_no_decay_has_to_be_asked_for():
    assert block_position_weights(4, None).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("gamma", [0, -1, -0.5, float("nan"), float("inf"), True, "7"])
def test_gammas_that_make_no_sense_are_refused(gamma):
    with pytest.raises(ValueError, match=f"loss_decay_gamma is {gamma!r}; legal: a finite number > 0, or None"):
        block_position_weights(8, gamma)


@pytest.mark.parametrize("block_size", [1, 0, 2.0, True])
def test_blocks_of_one_position_are_refused(block_size):
    with pytest.raises(ValueError, match=f"block_size is {block_size}; legal: a whole number >= 2"):
        block_position_weights(block_size, 4)


def logits_with_losses(losses, labels, vocab=3):
    """Logits of 0 but at the label, so that the cross-entropy is what is asked for."""
    logits = torch.zeros(*labels.shape, vocab, dtype=torch.float64)
    # loss = log(exp(x) + vocab - 1) - x, so exp(x) = (vocab - 1) / (exp(loss) - 1).
    logits.scatter_(-1, labels[..., None], torch.log((vocab - 1) / torch.expm1(losses))[..., None])
    return logits


@pytest.mark.parametrize(
    ("losses", "masked", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7], [], 3.048554),
        ([1, 2, 3, 4, 5, 6, 7], [4], 2.910812),
        ([2, 2, 2, 2, 2, 2, 2], [], 2.0),
    ],
)
def test_the_weighted_mean_divides_by_the_weights_that_count(losses, masked, expected):
    labels = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1]])
    scored = torch.tensor([[slot > 0 and slot not in masked for slot in range(8)]])
    logits = logits_with_losses(torch.tensor([[9.0, *losses]], dtype=torch.float64), labels)
    total, weight = block_loss(logits, labels, torch.where(scored, block_position_weights(8, 4), 0.0))
    assert float(total / weight) == pytest.approx(expected, abs=1e-5)
    # The same through a head that turns states into those logits.
    blocks = DraftBlocks(
        documents=torch.tensor([0]),
        anchors=torch.tensor([3]),
        input_ids=torch.zeros(1, 8, dtype=torch.int64),
        labels=labels,
        scored=scored,
    )
    loss = drafter_loss(logits.float(), blocks, lambda states: states, gamma=4)
    assert float(loss.loss_sum / loss.weight_sum) == pytest.approx(expected, abs=1e-5)
    assert loss.losses[scored].tolist() == pytest.approx([losses[k - 1] for k in range(1, 8) if k not in masked])


def test_another_gamma_gives_another_loss():
    blocks = random_blocks()
    hidden, head = random_hidden(blocks).detach(), head_of()
    found = [drafter_loss(hidden, blocks, head, gamma=gamma) for gamma in (4, 7, None)]
    assert len({round(float(loss.loss_sum / loss.weight_sum), 5) for loss in found}) == 3


def plain_losses(hidden, blocks, head):
    logits = head(hidden)
    return functional.cross_entropy(logits.transpose(1, 2), blocks.labels, reduction="none"), logits


@pytest.mark.parametrize("share", [0.8, 0.1])
def test_everything_equals_cross_entropy_over_all_logits(share):
    blocks = random_blocks(share=share)
    hidden, head = random_hidden(blocks), head_of()
    losses, logits = plain_losses(hidden, blocks, head)
    weights = block_position_weights(5, 3.0) * blocks.scored
    (expected,) = torch.autograd.grad((losses * weights).sum(), hidden)
    loss = drafter_loss(hidden, blocks, head, gamma=3.0)
    (gradient,) = torch.autograd.grad(loss.loss_sum, hidden)
    torch.testing.assert_close(loss.loss_sum, (losses * weights).sum())
    torch.testing.assert_close(loss.losses, (losses * blocks.scored).detach())
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(loss.weights, weights) and float(loss.weight_sum) == pytest.approx(float(weights.sum()))
    assert torch.equal(loss.predicted, logits.argmax(-1) * blocks.scored)
    assert torch.equal(loss.correct, (logits.argmax(-1) == blocks.labels) & blocks.scored)
    assert loss.num_scored == int(blocks.scored.sum())
    assert not loss.losses.requires_grad and not loss.weights.requires_grad


def test_d_pace_weights_by_a_slow_double_loop():
    blocks, alpha = random_blocks(), 0.3
    hidden, head = random_hidden(blocks), head_of()
    losses, _ = plain_losses(hidden, blocks, head)
    expected = torch.zeros(9, 5)
    for block in range(9):
        for slot in range(1, 5):
            if not blocks.scored[block, slot]:
                continue
            for last in range(slot, 5):
                if blocks.scored[block, last]:
                    product = 1.0
                    for k in range(1, last + 1):
                        if blocks.scored[block, k]:
                            product *= (1 - alpha) * math.exp(-float(losses[block, k].detach())) + alpha
                    expected[block, slot] += product
    loss = drafter_loss(hidden, blocks, head, kind="dpace", alpha=alpha)
    torch.testing.assert_close(loss.weights, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.loss_sum, (losses * expected).sum(), rtol=1e-5, atol=1e-5)
    (ours,) = torch.autograd.grad(loss.loss_sum, hidden)
    # No gradient through the weights.
    (plain,) = torch.autograd.grad((losses * expected).sum(), hidden)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_smoothing_outside_of_0_to_1_is_refused(alpha):
    blocks = random_blocks()
    with pytest.raises(ValueError, match=rf"alpha is {alpha}; legal: a number in \[0, 1\]"):
        drafter_loss(random_hidden(blocks), blocks, head_of(), kind="dpace", alpha=alpha)


def test_full_smoothing_weighs_by_the_slots_that_follow():
    blocks = random_blocks(num_blocks=1, share=1.1)
    loss = drafter_loss(random_hidden(blocks), blocks, head_of(), kind="dpace", alpha=1.0)
    assert loss.weights.tolist() == [[0, 4, 3, 2, 1]]


def test_kl_equals_the_one_of_torch_on_all_logits():
    blocks = random_blocks()
    hidden, head, teacher = random_hidden(blocks), head_of(), teacher_of(blocks)
    # What is not scored may hold anything.
    teacher[~blocks.scored] = float("nan")
    loss = drafter_loss(hidden, blocks, head, kind="kl", gamma=3.0, target_logits=teacher)
    expected = functional.kl_div(
        head(hidden).log_softmax(-1)[blocks.scored], teacher.softmax(-1)[blocks.scored], reduction="none"
    ).sum(-1)
    weights = (block_position_weights(5, 3.0) * blocks.scored)[blocks.scored]
    torch.testing.assert_close(loss.losses[blocks.scored], expected.detach(), rtol=1e-5, atol=1e-6)
    (ours,) = torch.autograd.grad(loss.loss_sum, hidden)
    (plain,) = torch.autograd.grad((expected * weights).sum(), hidden)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_kl_of_the_targets_own_distribution_is_zero():
    blocks = random_blocks()
    hidden, head = random_hidden(blocks), head_of()
    loss = drafter_loss(hidden, blocks, head, kind="kl", target_logits=head(hidden).detach() + 5.0)
    assert float(loss.loss_sum.detach()) == pytest.approx(0, abs=1e-5)
    (gradient,) = torch.autograd.grad(loss.loss_sum, hidden)
    assert float(gradient.abs().max()) < 1e-5


@pytest.mark.parametrize("kind", loss_module.LOSSES)
@pytest.mark.parametrize("chunk_logits", [1, VOCAB * 3, VOCAB * 7 + 5])
def test_chunks_change_nothing(kind, chunk_logits, monkeypatch):
    blocks = random_blocks(num_blocks=40)
    hidden, head = random_hidden(blocks), head_of()
    teacher = teacher_of(blocks) if kind == "kl" else None
    found = []
    for size in (2**24, chunk_logits):
        monkeypatch.setattr(loss_module, "CHUNK_LOGITS", size)
        sizes = []

        def watched(states, sizes=sizes):
            sizes.append(len(states))
            return head(states)

        loss = drafter_loss(hidden, blocks, watched, kind=kind, target_logits=teacher)
        (gradient,) = torch.autograd.grad(loss.loss_sum, hidden)
        found.append((loss.loss_sum.detach(), loss.losses, loss.weights, loss.predicted, gradient))
    # The first chunk of a pass finds out how large the vocabulary is.
    assert max(size for size in sizes if size != 64) <= max(1, chunk_logits // VOCAB) and sum(sizes) >= loss.num_scored
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-6, atol=1e-6)


def test_the_head_sees_scored_slots_only():
    blocks = random_blocks(share=0.4)
    seen = []

    def head(states):
        seen.append(states.detach().clone())
        return head_of()(states)

    hidden = random_hidden(blocks)
    drafter_loss(hidden, blocks, head)
    assert torch.equal(torch.cat(seen), hidden.detach()[blocks.scored])


def test_the_gradient_goes_through_any_head():
    # A head with soft-capped logits, as some targets have; and one with a bias.
    blocks = random_blocks()
    hidden, linear = random_hidden(blocks), head_of()
    for head in (lambda states: 3 * torch.tanh(linear(states) / 3), lambda states: linear(states) + torch.arange(37.0)):
        losses, _ = plain_losses(hidden, blocks, head)
        weights = block_position_weights(5, 7.0) * blocks.scored
        (expected,) = torch.autograd.grad((losses * weights).sum(), hidden)
        (gradient,) = torch.autograd.grad(drafter_loss(hidden, blocks, head).loss_sum, hidden)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_heads_own_logits_are_not_written_to():
    # A head may hand out a tensor that it keeps.
    blocks = random_blocks()
    kept = torch.randn(int(blocks.scored.sum()), VOCAB, generator=torch.Generator().manual_seed(4))
    before = kept.clone()
    loss = drafter_loss(random_hidden(blocks), blocks, lambda states: kept + 0 * states.sum())
    expected = functional.cross_entropy(before, blocks.labels[blocks.scored], reduction="none")
    torch.testing.assert_close(loss.losses[blocks.scored], expected)
    assert torch.equal(kept, before)


@pytest.mark.parametrize("kind", ["dflash", "kl"])
def test_a_window_of_two_batches_has_the_gradient_of_one_merged_batch(kind):
    one, other = random_blocks(3, seed=5, share=0.3), random_blocks(11, seed=6)
    merged = DraftBlocks(
        documents=torch.cat([one.documents, other.documents + 1]),
        **{
            name: torch.cat([getattr(one, name), getattr(other, name)])
            for name in ("anchors", "input_ids", "labels", "scored")
        },
    )
    states = random_hidden(merged, dtype=torch.float64).detach()
    head = head_of(torch.float64)
    projection = torch.eye(WIDTH, dtype=torch.float64).requires_grad_()

    def sums(blocks, part):
        teacher = teacher_of(merged)[part].double() if kind == "kl" else None
        loss = drafter_loss(states[part] @ projection, blocks, head, kind=kind, target_logits=teacher)
        loss.loss_sum.backward()
        return float(loss.loss_sum.detach()), float(loss.weights.double().sum())

    parts = [sums(one, slice(0, 3)), sums(other, slice(3, 14))]
    window = projection.grad / sum(weight for _, weight in parts)
    projection.grad = None
    loss_sum, weight_sum = sums(merged, slice(0, 14))
    torch.testing.assert_close(window, projection.grad / weight_sum, rtol=1e-12, atol=1e-12)
    assert sum(part for part, _ in parts) == pytest.approx(loss_sum, rel=1e-12)
    assert sum(weight for _, weight in parts) == pytest.approx(weight_sum, rel=1e-12)
    # The mean of the two means is something else.
    assert sum(part / weight for part, weight in parts) / 2 != pytest.approx(loss_sum / weight_sum, rel=1e-3)


@pytest.mark.parametrize("kind", loss_module.LOSSES)
def test_nothing_scored_gives_a_zero_that_takes_part_in_backward(kind):
    for blocks in (random_blocks(share=-1.0), random_blocks(num_blocks=0)):
        hidden = random_hidden(blocks)
        teacher = teacher_of(blocks) if kind == "kl" else None
        loss = drafter_loss(hidden, blocks, head_of(), kind=kind, target_logits=teacher)
        assert float(loss.loss_sum.detach()) == 0 and float(loss.weight_sum) == 0 and loss.num_scored == 0
        loss.loss_sum.backward()
        assert hidden.grad is not None and not hidden.grad.any()


def test_states_that_are_not_scored_have_no_say():
    blocks = random_blocks()
    hidden = random_hidden(blocks).detach()
    plain = drafter_loss(hidden, blocks, head_of()).loss_sum
    hidden[~blocks.scored] = float("nan")
    assert torch.equal(drafter_loss(hidden, blocks, head_of()).loss_sum, plain)


def test_states_of_half_precision_give_a_loss_of_full_precision():
    blocks = random_blocks()
    hidden = random_hidden(blocks).detach().bfloat16().requires_grad_()
    head = head_of(torch.bfloat16)
    loss = drafter_loss(hidden, blocks, head)
    assert loss.loss_sum.dtype == loss.losses.dtype == torch.float32
    losses = functional.cross_entropy(head(hidden).float().transpose(1, 2), blocks.labels, reduction="none")
    torch.testing.assert_close(loss.losses, (losses * blocks.scored).detach())
    loss.loss_sum.backward()
    assert hidden.grad.dtype == torch.bfloat16 and hidden.grad[blocks.scored].any()


def test_losses_that_do_not_exist_are_refused():
    blocks = random_blocks()
    hidden, head, teacher = random_hidden(blocks), head_of(), teacher_of(blocks)
    with pytest.raises(ValueError, match="kind is 'ce'; legal: dflash, dpace, kl"):
        drafter_loss(hidden, blocks, head, kind="ce")
    with pytest.raises(ValueError, match="kind is 'kl' and no target_logits are given"):
        drafter_loss(hidden, blocks, head, kind="kl")
    with pytest.raises(ValueError, match="kind is 'dflash' and target_logits are given"):
        drafter_loss(hidden, blocks, head, target_logits=teacher)
    with pytest.raises(ValueError, match="loss_decay_gamma is 0"):
        drafter_loss(hidden, blocks, head, gamma=0)
