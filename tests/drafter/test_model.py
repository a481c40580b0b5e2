import math

import pytest
import torch
from torch.nn import functional

from dflash_lab.drafter import AnchorBudget, Documents, Drafter, DrafterConfig, drafter_loss, draw_blocks, model
from dflash_lab.drafter.attention import attend_dense, attend_grouped
from dflash_lab.drafter.flex_attention import attend_flex, is_flex_available
from dflash_lab.drafter.layers import RMSNorm, Rotation
from dflash_lab.drafter.merged_attention import attend_merged
from dflash_lab.drafter.model import fastest_attend

VOCAB, WIDTH, TAPS, BLOCK_SIZE = 50, 16, 2, 4
LENGTHS = (14, 9, 3)
FORMS = pytest.mark.parametrize("attend", [attend_dense, attend_grouped, attend_merged])


def config_of(**changes):
    values = dict(
        block_size=BLOCK_SIZE,
        num_hidden_layers=2,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rope_theta=10_000.0,
        vocab_size=VOCAB,
        mask_token_id=49,
        target_layer_ids=(0, 2),
        num_target_layers=4,
    )
    return DrafterConfig(**{**values, **changes})


def batch_of(lengths=LENGTHS, *, form="padded", amount=4, seed=0):
    """Features, embeddings, blocks and documents; a sample's values are the same in both forms."""
    samples = []
    for number, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(100 + number)
        ids = torch.randint(0, 49, (length,), generator=generator)
        samples.append((ids, torch.randn(length, TAPS * WIDTH, generator=generator)))
    tensor = torch.tensor(lengths)
    if form == "padded":
        documents, shape = Documents.padded(tensor), (len(lengths), max(lengths) + 2)
    else:
        documents, shape = Documents.packed(tensor), (1, sum(lengths) + 2)
    ids, features = torch.zeros(shape, dtype=torch.int64), torch.zeros(*shape, TAPS * WIDTH)
    mask = torch.zeros(shape, dtype=torch.bool)
    for place, (own_ids, own_features) in enumerate(samples):
        span = slice(int(documents.starts[place]), int(documents.starts[place]) + len(own_ids))
        row = int(documents.rows[place])
        ids[row, span], features[row, span] = own_ids, own_features
        mask[row, span.start + 1 : span.stop] = True
    blocks = draw_blocks(
        ids,
        mask,
        documents,
        torch.arange(len(lengths)),
        budget=AnchorBudget(amount=amount),
        block_size=BLOCK_SIZE,
        mask_token_id=49,
        seed=seed,
        epoch=0,
    )
    return features, embedding()[blocks.input_ids], blocks, documents


def embedding():
    return torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(9))


def lively_drafter(**changes):
    """A drafter whose weights are large enough that every input matters."""
    drafter = Drafter(config_of(**changes))
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
    return drafter


def test_parameters_are_the_names_that_servers_load_and_nothing_else():
    names = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    for layer in range(3):
        names |= {f"layers.{layer}.self_attn.{kind}_proj.weight" for kind in "qkvo"}
        names |= {f"layers.{layer}.self_attn.{kind}_norm.weight" for kind in "qk"}
        names |= {f"layers.{layer}.mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")}
        names |= {f"layers.{layer}.{kind}_layernorm.weight" for kind in ("input", "post_attention")}
    drafter = Drafter(config_of(num_hidden_layers=3))
    assert set(drafter.state_dict()) == {name for name, _ in drafter.named_parameters()} == names
    shapes = {name: tuple(value.shape) for name, value in drafter.state_dict().items()}
    assert shapes["fc.weight"] == (WIDTH, TAPS * WIDTH)
    assert shapes["layers.2.self_attn.q_proj.weight"] == (24, WIDTH)
    assert shapes["layers.2.self_attn.k_proj.weight"] == (12, WIDTH)
    assert shapes["layers.2.self_attn.o_proj.weight"] == (WIDTH, 24)
    assert shapes["layers.2.self_attn.k_norm.weight"] == (6,)
    assert all(parameter.requires_grad for parameter in drafter.parameters())


def test_the_seed_decides_the_weights_and_the_global_generator_stays():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, again, other = (Drafter(config_of(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for name in one:
        assert torch.equal(one[name], again[name])
        assert torch.equal(one[name], other[name]) == name.endswith("norm.weight"), name
    torch.manual_seed(6)
    assert torch.equal(Drafter(config_of(), seed=1).fc.weight, one["fc.weight"])


def test_weights_are_float32_with_the_spread_that_is_said():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        drafter = Drafter(config_of(hidden_size=256))
    finally:
        torch.set_default_dtype(before)
    assert {parameter.dtype for parameter in drafter.parameters()} == {torch.float32}
    assert float(drafter.fc.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert all(bool((value == 1).all()) for name, value in drafter.state_dict().items() if name.endswith("norm.weight"))


@pytest.mark.parametrize("attend", [attend_grouped, attend_merged])
def test_forms_agree_in_values_and_gradients(attend):
    drafter, batch = lively_drafter(), batch_of()
    found = []
    for form in (attend, attend_dense):
        drafter.zero_grad()
        hidden = drafter(*batch, attend=form)
        weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
        (hidden * weight).sum().backward()
        found.append((hidden, [parameter.grad.clone() for parameter in drafter.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    for ours, dense in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-5, atol=1e-5 * float(dense.abs().max()))


def test_the_default_form_is_the_reference():
    assert fastest_attend(torch.device("cpu")) is attend_merged
    assert fastest_attend(torch.device("cuda", 0)) is (attend_flex if is_flex_available() else attend_grouped)
    assert fastest_attend(torch.device("mps")) is attend_grouped
    drafter, batch = lively_drafter(), batch_of()
    torch.testing.assert_close(drafter(*batch), drafter(*batch, attend=attend_dense), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", ["nothing", "a mask slot", "a first slot"])
def test_mask_slots_that_are_alike_are_computed_once_and_come_out_the_same(monkeypatch, changed):
    features, embeddings, blocks, documents = batch_of()
    embeddings = embeddings.clone()
    if changed == "a mask slot":
        embeddings[-1, -1, 0] += 1e-3
    if changed == "a first slot":
        embeddings[-1, 0, 0] += 1.0
    found = []
    for judge in (model._slots_are_alike, lambda hidden: False):
        monkeypatch.setattr(model, "_slots_are_alike", judge)
        drafter = Drafter(config_of(), seed=3)
        hidden = drafter(features, embeddings, blocks, documents)
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        found.append([hidden.detach(), *(parameter.grad for parameter in drafter.parameters())])
    monkeypatch.undo()
    assert model._slots_are_alike(embeddings) is (changed != "a mask slot")
    for once, each in zip(*found, strict=True):
        torch.testing.assert_close(once, each, rtol=1e-5, atol=1e-6)


def test_padded_and_packed_batches_and_single_samples_give_the_same():
    drafter = lively_drafter()
    padded, packed = drafter(*batch_of()), drafter(*batch_of(form="packed"))
    torch.testing.assert_close(padded, packed, rtol=1e-5, atol=1e-5)
    features, embeddings, blocks, _ = batch_of()
    of_first = blocks.documents == 0
    alone = batch_of(LENGTHS[:1])
    assert torch.equal(alone[2].anchors, blocks.anchors[of_first])
    torch.testing.assert_close(drafter(*alone), padded[of_first], rtol=1e-5, atol=1e-5)


@FORMS
@pytest.mark.parametrize("form", ["padded", "packed"])
def test_a_block_sees_its_document_before_its_anchor_and_nothing_else(form, attend):
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of(form=form, amount=5)
    # Neighbouring anchors are closer than a block, so comparing block numbers would leak.
    assert bool((blocks.anchors.diff()[blocks.documents.diff() == 0] < BLOCK_SIZE).any())
    with torch.no_grad():
        plain = drafter(features, embeddings, blocks, documents, attend=attend)
        real = torch.zeros(features.shape[:2], dtype=torch.bool)
        for row, start, length in zip(documents.rows, documents.starts, documents.lengths, strict=True):
            real[row, start : start + length] = True
        for document in range(len(documents)):
            row, start = int(documents.rows[document]), int(documents.starts[document])
            for position in range(int(documents.lengths[document])):
                changed = features.clone()
                changed[row, start + position] += 1.0
                hidden = drafter(changed, embeddings, blocks, documents, attend=attend)
                moved = (hidden - plain).abs().amax((1, 2)) > 1e-4
                sees = (blocks.documents == document) & (blocks.anchors > position)
                assert torch.equal(moved, sees), (document, position)
                assert torch.equal(hidden[~sees], plain[~sees]) or attend is attend_dense
        poisoned = torch.where(real[..., None], features, float("nan"))
        assert torch.equal(drafter(poisoned, embeddings, blocks, documents, attend=attend), plain)


@FORMS
def test_features_from_the_last_anchor_on_may_be_anything(attend):
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of()
    poisoned = features.clone()
    for document in range(len(documents)):
        own = blocks.anchors[blocks.documents == document]
        poisoned[document, int(own.max()) if len(own) else 0 :] = float("nan")
    with torch.no_grad():
        hidden = drafter(poisoned, embeddings, blocks, documents, attend=attend)
        assert torch.equal(hidden, drafter(features, embeddings, blocks, documents, attend=attend))


@FORMS
def test_slots_see_both_ways_inside_their_block_and_no_other_block(attend):
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of(amount=5)
    with torch.no_grad():
        plain = drafter(features, embeddings, blocks, documents, attend=attend)
        for block in range(len(blocks)):
            for slot in range(BLOCK_SIZE):
                changed = embeddings.clone()
                changed[block, slot] += torch.linspace(-1, 1, WIDTH)
                hidden = drafter(features, changed, blocks, documents, attend=attend)
                moved = (hidden - plain).abs().amax(2) > 1e-5  # (N, B)
                assert moved[block].all(), (block, slot)
                assert moved.any(1).nonzero().flatten().tolist() == [block]


def test_the_slots_of_a_block_differ_by_their_positions():
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of()
    hidden = drafter(features, embeddings, blocks, documents).detach()
    # Slots 1.. all hold the mask token: only rotary positions tell them apart.
    assert torch.equal(embeddings[0, 1], embeddings[0, 2])
    assert float((hidden[0, 1] - hidden[0, 2]).abs().max()) > 1e-3


@pytest.mark.parametrize("attend", [attend_grouped, attend_merged])
def test_drafts_are_what_training_computed_for_the_same_anchor(attend):
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of(form="packed")
    hidden = drafter(features, embeddings, blocks, documents, attend=attend)
    for block in range(len(blocks)):
        start, anchor = int(documents.starts[blocks.documents[block]]), int(blocks.anchors[block])
        context = drafter.context(features[0, start : start + anchor], torch.arange(anchor))
        assert len(context) == anchor
        drafted = drafter.draft(embeddings[block : block + 1], anchor + torch.arange(BLOCK_SIZE), context)
        torch.testing.assert_close(drafted[0], hidden[block], rtol=1e-5, atol=1e-5)
    half = anchor // 2
    parts = [
        drafter.context(features[0, start + at : start + end], torch.arange(at, end))
        for at, end in ((0, half), (half, anchor))
    ]
    grown = drafter.draft(embeddings[block : block + 1], anchor + torch.arange(BLOCK_SIZE), parts[0].extended(parts[1]))
    torch.testing.assert_close(grown, drafted, rtol=1e-5, atol=1e-5)


def test_rotary_positions_are_exact_far_out():
    drafter = Drafter(config_of(rope_theta=1_000_000.0))
    position = 120_001
    rotation = drafter._rotation(torch.tensor([position]))
    angles = [position / 1_000_000.0 ** (2 * pair / 6) for pair in range(3)]
    assert rotation.cos[0, 0].tolist() == pytest.approx([math.cos(angle) for angle in angles * 2], abs=1e-6)
    assert rotation.sin[0, 0].tolist() == pytest.approx([math.sin(angle) for angle in angles * 2], abs=1e-6)
    heads = torch.arange(6.0)[None, None]
    first, second = heads[0, 0, :3], heads[0, 0, 3:]
    cos, sin = torch.tensor(angles).cos(), torch.tensor(angles).sin()
    expected = torch.cat([first * cos - second * sin, second * cos + first * sin])
    # The angles of the far position are rounded to float32 here, so that this one is rough.
    torch.testing.assert_close(rotation(heads)[0, 0], expected, rtol=0, atol=0.05)


def test_norms_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64).requires_grad_()
    ours, plain = RMSNorm(6, eps=0.1, dtype=torch.float64), torch.nn.RMSNorm(6, eps=0.1, dtype=torch.float64)
    found = []
    for norm in (ours, plain):
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 2, 6))
        weight = torch.linspace(0, 1, 72).reshape(3, 4, 6)
        out = norm(states)
        found.append((out, *torch.autograd.grad((out * weight).sum(), (states, norm.weight))))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(ours, states)
    with torch.autocast("cpu", torch.bfloat16):
        half, expected = RMSNorm(6, eps=1e-6)(states.float()), torch.nn.RMSNorm(6, eps=1e-6)(states.float())
    assert torch.equal(half, expected) and half.dtype == expected.dtype
    assert RMSNorm(6, eps=1e-6)(torch.zeros(2, 0, 6)).shape == (2, 0, 6)


def test_turning_has_its_numeric_gradient():
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(3, 2, 6, generator=generator, dtype=torch.float64).requires_grad_()
    angles = torch.randn(3, 1, 3, generator=generator, dtype=torch.float64).repeat(1, 1, 2)
    rotation = Rotation(cos=angles.cos(), sin=angles.sin())
    assert torch.autograd.gradcheck(rotation, heads)
    torch.testing.assert_close(rotation(heads).norm(dim=-1), heads.norm(dim=-1))


@FORMS
def test_a_batch_without_anchors_gives_zero_gradients_to_all_parameters(attend):
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of((1, 1))
    assert len(blocks) == 0
    head = embedding()
    hidden = drafter(features, embeddings, blocks, documents, attend=attend)
    loss = drafter_loss(hidden, blocks, lambda states: functional.linear(states, head))
    loss.loss_sum.backward()
    assert float(loss.loss_sum.detach()) == 0 and float(loss.weight_sum) == 0
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@FORMS
def test_a_block_at_anchor_0_gives_a_gradient_to_all_parameters(attend):
    # It sees no feature: those that only read features have a gradient of zero, not none.
    drafter = lively_drafter()
    features, embeddings, blocks, documents = batch_of((2,))
    blocks = type(blocks)(
        documents=torch.tensor([0]),
        anchors=torch.tensor([0]),
        input_ids=torch.full((1, BLOCK_SIZE), 49),
        labels=torch.tensor([[0, 3, 0, 0]]),
        scored=torch.tensor([[False, True, False, False]]),
    )
    hidden = drafter(features, embedding()[blocks.input_ids], blocks, documents, attend=attend)
    assert hidden.isfinite().all()
    drafter_loss(hidden, blocks, lambda states: states @ embedding().T).loss_sum.backward()
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()) != (name in ("fc.weight", "hidden_norm.weight")), name


def test_training_learns_what_only_the_features_tell():
    # The label of a slot is told by the feature before the anchor alone: a drafter blind to it stays at log 4.
    drafter = Drafter(config_of(), seed=3)
    generator = torch.Generator().manual_seed(0)
    head = embedding()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    documents = Documents.padded(torch.full((32,), 5))
    features, _, blocks, _ = batch_of((5,) * 32, amount=1)
    blocks = type(blocks)(
        documents=torch.arange(32),
        anchors=torch.full((32,), 1),
        input_ids=torch.full((32, BLOCK_SIZE), 49),
        labels=torch.zeros(32, BLOCK_SIZE, dtype=torch.int64),
        scored=torch.tensor([False, True, True, True]).expand(32, -1).contiguous(),
    )
    for _ in range(60):
        told = torch.randint(0, 4, (32,), generator=generator)
        features = torch.zeros(32, 5, TAPS * WIDTH)
        features[torch.arange(32), 0, told] = 4.0
        blocks.labels[:, 1:] = told[:, None]
        hidden = drafter(features, embedding()[blocks.input_ids], blocks, documents)
        loss = drafter_loss(hidden, blocks, lambda states: states @ head.T, gamma=None)
        optimizer.zero_grad()
        (loss.loss_sum / loss.weight_sum).backward()
        optimizer.step()
    assert float(loss.loss_sum.detach() / loss.weight_sum) < 0.3 < math.log(4)
