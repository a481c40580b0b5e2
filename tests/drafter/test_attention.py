import pytest
import torch
from torch.nn.attention import flex_attention as flex

from dflash_lab.drafter import Documents, DraftBlocks
from dflash_lab.drafter.attention import attend_dense, attend_grouped, context_layout, dense_mask
from dflash_lab.drafter.flex_attention import TILE, attend_flex, key_query_places, mask_mod_of, tiles
from dflash_lab.drafter.merged_attention import attend_merged

BLOCK_SIZE = 4
# Lengths and anchors of each document. More than 16 blocks of one document, so that groups follow one another.
CASES = {
    "one block": ([9], [[5]]),
    "anchor 0": ([6], [[0]]),
    "anchor 0 and more": ([6, 7], [[0, 1, 5], [0]]),
    "close anchors": ([12], [[3, 4, 5, 6, 10]]),
    "many blocks": ([40, 5], [list(range(2, 39)), [1, 3]]),
    "a document without blocks": ([8, 5, 9], [[2, 6], [], [4, 8]]),
    "first and last without blocks": ([3, 8, 2], [[], [7], []]),
}
LAYOUTS = {"padded": Documents.padded, "packed": Documents.packed}


def blocks_at(anchors, block_size=BLOCK_SIZE):
    """Blocks with the given anchors of each document; tokens and labels play no part in attention."""
    places = [(document, anchor) for document, own in enumerate(anchors) for anchor in own]
    shape = (len(places), block_size)
    return DraftBlocks(
        documents=torch.tensor([document for document, _ in places], dtype=torch.int64),
        anchors=torch.tensor([anchor for _, anchor in places], dtype=torch.int64),
        input_ids=torch.zeros(shape, dtype=torch.int64),
        labels=torch.zeros(shape, dtype=torch.int64),
        scored=torch.zeros(shape, dtype=torch.bool),
    )


def layout_of(case, form="padded", block_size=BLOCK_SIZE):
    lengths, anchors = CASES[case]
    documents = LAYOUTS[form](torch.tensor(lengths))
    return context_layout(blocks_at(anchors, block_size), documents, max(lengths) if form == "padded" else sum(lengths))


def random_inputs(layout, *, heads=4, key_heads=2, dim=6, block_size=BLOCK_SIZE, dtype=torch.float32, seed=0):
    num_blocks = sum(len(span.anchors) for span in layout.spans)
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_blocks, block_size, heads, dim), *[(num_blocks, block_size, key_heads, dim)] * 2]
    shapes += [(len(layout.token_ids), key_heads, dim)] * 2
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def plain_attention(query, block_key, block_value, context_key, context_value, layout):
    """Softmax written out, one query of one head after the other, from the definition alone."""
    share = query.shape[2] // block_key.shape[2]
    out = torch.zeros_like(query)
    for span in layout.spans:
        for place, anchor in enumerate(span.anchors):
            block = span.first_block + place
            tokens = slice(span.first_token, span.first_token + anchor)
            for head in range(query.shape[2]):
                keys = torch.cat([context_key[tokens, head // share], block_key[block, :, head // share]])
                values = torch.cat([context_value[tokens, head // share], block_value[block, :, head // share]])
                scores = query[block, :, head] @ keys.T / query.shape[-1] ** 0.5
                out[block, :, head] = scores.exp() / scores.exp().sum(-1, keepdim=True) @ values
    return out


def results(attend, inputs, layout):
    """Output, and gradients of all inputs for a random gradient of the output."""
    out = attend(*inputs, layout)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
    return out, *torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("attend", [attend_dense, attend_grouped, attend_merged])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_every_form_is_the_definition(case, key_heads, attend):
    layout = layout_of(case)
    inputs = random_inputs(layout, key_heads=key_heads)
    with torch.no_grad():
        expected = plain_attention(*inputs, layout)
        torch.testing.assert_close(attend(*inputs, layout), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attend", [attend_grouped, attend_merged])
@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_dense_mask(case, key_heads, form, attend):
    layout = layout_of(case, form)
    inputs = random_inputs(layout, key_heads=key_heads)
    for ours, dense in zip(results(attend, inputs, layout), results(attend_dense, inputs, layout), strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cached_scores", [1, 2 * 4 * 4 * 6])
@pytest.mark.parametrize("case", ["close anchors", "many blocks"])
def test_heads_one_by_one_or_some_at_a_time_change_nothing(case, cached_scores, monkeypatch):
    layout = layout_of(case)
    inputs = random_inputs(layout, key_heads=4)
    together = results(attend_merged, inputs, layout)
    monkeypatch.setattr("dflash_lab.drafter.merged_attention.CACHED_SCORES", cached_scores)
    for ours, other in zip(results(attend_merged, inputs, layout), together, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attend", [attend_dense, attend_grouped, attend_merged])
def test_no_blocks_give_an_empty_result(attend):
    layout = context_layout(blocks_at([[], []]), Documents.padded(torch.tensor([4, 3])), 4)
    assert layout.spans == () and layout.token_ids.shape == (0,)
    inputs = random_inputs(layout)
    out = attend(*inputs, layout)
    assert out.shape == (0, BLOCK_SIZE, 4, 6)
    out.sum().backward()


@pytest.mark.parametrize("case", ["anchor 0 and more", "close anchors", "many blocks"])
def test_the_written_out_backward_is_the_numeric_one(case):
    layout = layout_of(case, block_size=2)
    inputs = random_inputs(layout, heads=2, key_heads=1, dim=2, block_size=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *tensors: attend_merged(*tensors, layout), inputs, fast_mode=True)
    if case != "many blocks":
        assert torch.autograd.gradcheck(lambda *tensors: attend_merged(*tensors, layout), inputs)


@pytest.mark.parametrize("attend", [attend_dense, attend_grouped, attend_merged])
def test_large_scores_do_not_overflow(attend):
    layout = layout_of("close anchors")
    inputs = random_inputs(layout, dtype=torch.float64)
    with torch.no_grad():
        inputs[0].mul_(300)
    exact = attend_dense(*inputs, layout)
    ours = attend(*[tensor.float() for tensor in inputs], layout)
    assert ours.isfinite().all()
    torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3)


def test_the_mask_of_a_hand_worked_row():
    # Anchors 1 and 3 of 4 tokens, blocks of 2; then a block that only fills up.
    mask = dense_mask(torch.tensor([[1, 3, 0]]), 4, 2)
    first, second, filling = "1000 110000", "1110 001100", "0000 000011"
    expected = [[digit == "1" for digit in row if digit != " "] for row in (first, first, second, second)]
    expected += [[digit == "1" for digit in row if digit != " "] for row in (filling, filling)]
    assert mask.tolist() == [expected]


def test_the_context_is_what_lies_before_each_last_anchor():
    lengths, anchors = [5, 3, 6], [[1, 3], [], [0, 2]]
    padded = context_layout(blocks_at(anchors), Documents.padded(torch.tensor(lengths)), 10)
    assert padded.token_ids.tolist() == [0, 1, 2, 20, 21]
    assert padded.positions.tolist() == [0, 1, 2, 0, 1]
    packed = context_layout(blocks_at(anchors), Documents.packed(torch.tensor(lengths)), 14)
    assert packed.token_ids.tolist() == [0, 1, 2, 8, 9]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1]
    assert [(span.first_block, span.anchors, span.first_token) for span in packed.spans] == [
        (0, (1, 3), 0),
        (2, (0, 2), 3),
    ]


@pytest.mark.parametrize(
    ("documents", "anchors", "message"),
    [
        ([0, 0], [3, 2], "blocks are not in order; legal: by document, anchors increasing within one"),
        ([0, 0], [2, 2], "blocks are not in order"),
        ([1, 0], [1, 2], "blocks are not in order"),
        ([0, 0], [2, 4], r"document 0 has anchors 2 to 4; legal: in \[0, 4\)"),
        ([0, 0], [-1, 2], r"document 0 has anchors -1 to 2"),
        ([0, 2], [1, 1], r"a block is of document 2; legal: in \[0, 2\)"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(documents, anchors, message):
    blocks = blocks_at([[1, 2]])
    blocks = DraftBlocks(
        documents=torch.tensor(documents),
        anchors=torch.tensor(anchors),
        input_ids=blocks.input_ids,
        labels=blocks.labels,
        scored=blocks.scored,
    )
    with pytest.raises(ValueError, match=message):
        context_layout(blocks, Documents.padded(torch.tensor([4, 3])), 4)


def allowed_by_definition(layout, block_size):
    """Who sees whom, with all context first and then all slots: one comparison after the other."""
    num_tokens, num_blocks = len(layout.token_ids), sum(len(span.anchors) for span in layout.spans)
    allowed = torch.zeros(num_blocks * block_size, num_tokens + num_blocks * block_size, dtype=torch.bool)
    for span in layout.spans:
        for place, anchor in enumerate(span.anchors):
            block = span.first_block + place
            slots = slice(block * block_size, (block + 1) * block_size)
            allowed[slots, span.first_token : span.first_token + anchor] = True
            allowed[slots, num_tokens + slots.start : num_tokens + slots.stop] = True
    return allowed


LARGE = {
    "long documents": ([700, 300, 500], [list(range(5, 690, 9)), [], list(range(40, 499, 3))]),
    "short documents": ([40] * 20, [list(range(1, 39, 4))] * 20),
    "whole tiles": ([520], [list(range(256, 272)) + list(range(384, 400))]),
}


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("case", [*CASES, *LARGE])
def test_the_rule_for_flex_is_the_definition_and_no_tile_is_missed(case, block_size):
    lengths, anchors = {**CASES, **LARGE}[case]
    layout = context_layout(blocks_at(anchors, block_size), Documents.padded(torch.tensor(lengths)), max(lengths))
    places = key_query_places(layout, block_size, "cpu")
    num_queries, num_keys = len(places.query_blocks), len(places.key_blocks)
    assert num_queries % TILE == 0 and num_keys % TILE == 0
    mask = flex.create_mask(mask_mod_of(places), 1, 1, num_queries, num_keys, device="cpu")[0, 0]
    expected = allowed_by_definition(layout, block_size)
    assert torch.equal(mask[: expected.shape[0], : expected.shape[1]], expected)
    assert not mask[:, expected.shape[1] :].any()
    assert mask.any(1).all()
    in_tiles = mask.unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE)).transpose(1, 2)  # (q, k, TILE, TILE)
    some, whole = tiles(places)
    sees_some, sees_all = in_tiles.any(-1).any(-1), in_tiles.all(-1).all(-1)
    assert not (sees_some & ~some).any() and not (whole & ~sees_all).any() and not (whole & ~some).any()
    if case == "long documents":
        # Skipped: what is empty; without a mask: most of what is full.
        assert int(some.sum()) <= 1.3 * int(sees_some.sum()) < 0.7 * some.numel()
    if case == "whole tiles" and block_size == 16:
        # 16 blocks of 16 slots see tokens 0 to 255 and more: two tiles without a mask for each two tiles of queries.
        assert whole.tolist() == sees_all.tolist() and whole[:, :2].all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize("case", [*CASES, "short documents"])
def test_flex_is_the_definition_when_it_is_not_compiled(case, key_heads, monkeypatch):
    monkeypatch.setattr("dflash_lab.drafter.flex_attention._compiled", lambda: flex.flex_attention)
    lengths, anchors = {**CASES, **LARGE}[case]
    layout = context_layout(blocks_at(anchors), Documents.padded(torch.tensor(lengths)), max(lengths))
    inputs = random_inputs(layout, key_heads=key_heads)
    with torch.no_grad():
        torch.testing.assert_close(attend_flex(*inputs, layout), attend_dense(*inputs, layout), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize("case", [*CASES, *LARGE])
def test_the_kernel_is_the_dense_mask(case, key_heads):
    lengths, anchors = {**CASES, **LARGE}[case]
    blocks, documents = blocks_at(anchors, 16).to("cuda"), Documents.padded(torch.tensor(lengths)).to("cuda")
    layout = context_layout(blocks, documents, max(lengths))
    inputs = [
        tensor.detach().cuda().requires_grad_()
        for tensor in random_inputs(layout, key_heads=key_heads, dim=32, block_size=16)
    ]
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(7)).cuda()
    found = []
    for attend in (attend_flex, attend_dense):
        out = attend(*inputs, layout)
        found.append((out, *torch.autograd.grad((out * weight).sum(), inputs)))
    for ours, dense in zip(*found, strict=True):
        # Both may use TF32, whose products have 10 bits.
        torch.testing.assert_close(ours, dense, rtol=1e-2, atol=1e-2 * float(dense.abs().amax().clamp(min=1)))
