import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab.drafter import AnchorBudget, Documents, draw_blocks, noisy_features, sample_anchors, valid_anchors

MASK = 99
FIRST_DRAW = [18, 14, 32, 10, 20, 33, 35, 12]
DRAWS_SHA256 = "3bf437a5e307bc335d26b55b252308621a39c980796d9891d2972918892f40f3"


def mask_of(length, first):
    return np.arange(length) >= first


def batch_of(samples, *, form="padded", extra=0):
    """Ids, mask and documents of (ids, mask) samples, with `extra` columns of padding that look supervised."""
    lengths = torch.tensor([len(ids) for ids, _ in samples], dtype=torch.int64)
    if form == "padded":
        documents, shape = Documents.padded(lengths), (len(samples), int(lengths.max()) + extra)
    else:
        documents, shape = Documents.packed(lengths), (1, int(lengths.sum()) + extra)
    # Padding that claims to be supervised must not be read.
    input_ids, loss_mask = torch.full(shape, 77), torch.ones(shape, dtype=torch.bool)
    for place, (ids, mask) in enumerate(samples):
        row, start = int(documents.rows[place]), int(documents.starts[place])
        input_ids[row, start : start + len(ids)] = torch.as_tensor(ids)
        loss_mask[row, start : start + len(ids)] = torch.as_tensor(mask)
    return input_ids, loss_mask, documents


def drawn(samples, sample_ids=None, *, form="padded", extra=0, amount=512, per="sample", block_size=4, seed=0, epoch=0):
    sample_ids = torch.arange(len(samples)) if sample_ids is None else torch.tensor(sample_ids)
    return draw_blocks(
        *batch_of(samples, form=form, extra=extra),
        sample_ids,
        budget=AnchorBudget(per=per, amount=amount),
        block_size=block_size,
        mask_token_id=MASK,
        seed=seed,
        epoch=epoch,
    )


def random_samples(count=6, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 60, count)
    return [(generator.integers(0, 70, length), generator.random(length) < 0.7) for length in lengths]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [4, 5, 6, 7, 8]),
        ([0, 1, 1], [1]),
        ([0, 0, 1], []),
        ([0, 1, 0, 1, 1, 0, 1], [3]),
        ([1], []),
        ([], []),
    ],
)
def test_an_anchor_is_supervised_with_a_supervised_token_behind_it(mask, expected):
    assert valid_anchors(np.array(mask, dtype=bool)).tolist() == expected


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 50), st.integers(0, 5))
def test_a_draw_is_of_valid_positions_without_repeats(mask, num_anchors, sample_id):
    found = sample_anchors(mask, num_anchors, seed=1, epoch=2, sample_id=sample_id).tolist()
    valid = [at for at in range(len(mask) - 1) if mask[at] and mask[at + 1]]
    assert len(found) == min(num_anchors, len(valid)) == len(set(found))
    assert set(found) <= set(valid)
    fewer = sample_anchors(mask, num_anchors // 2, seed=1, epoch=2, sample_id=sample_id).tolist()
    assert fewer == found[: len(fewer)]


def test_with_enough_asked_for_all_are_used_once_and_a_short_sample_stops_nothing():
    long, short = (np.arange(10), mask_of(10, 4)), (np.arange(3), mask_of(3, 2))
    blocks = drawn([long, short])
    assert blocks.anchors.tolist() == [4, 5, 6, 7, 8]
    assert blocks.documents.tolist() == [0] * 5
    blocks = drawn([(np.arange(3), mask_of(3, 1)), long, (np.arange(1), mask_of(1, 0))])
    assert blocks.anchors.tolist() == [1, 4, 5, 6, 7, 8]
    assert blocks.documents.tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("extra", [0, 2, 30])
def test_labels_end_with_the_sample_also_after_padding(extra):
    blocks = drawn([([11, 12, 13, 21, 22, 23], mask_of(6, 3))], extra=extra, block_size=3)
    assert blocks.anchors.tolist() == [3, 4]
    assert blocks.input_ids.tolist() == [[21, MASK, MASK], [22, MASK, MASK]]
    assert blocks.labels.tolist() == [[0, 22, 23], [0, 23, 0]]
    assert blocks.scored.tolist() == [[False, True, True], [False, True, False]]
    assert blocks.positions.tolist() == [[3, 4, 5], [4, 5, 6]]


def test_unsupervised_tokens_inside_a_block_are_not_scored():
    blocks = drawn([([1, 2, 3, 4, 5, 6], np.array([1, 1, 0, 1, 0, 0], dtype=bool))], block_size=5)
    assert blocks.anchors.tolist() == [0]
    assert blocks.labels.tolist() == [[0, 2, 0, 4, 0]]
    assert blocks.scored.tolist() == [[False, True, False, True, False]]


def blocks_by_sample(blocks, sample_ids):
    """Everything of each sample's blocks, as plain lists."""
    found = {int(sample_id): [] for sample_id in sample_ids}
    rows = zip(blocks.documents, blocks.anchors, blocks.input_ids, blocks.labels, blocks.scored, strict=True)
    for document, *values in rows:
        found[int(sample_ids[document])].append([value.tolist() for value in values])
    return found


def test_a_samples_blocks_do_not_depend_on_its_batch():
    samples, sample_ids = random_samples(), [5, 40, 2, 7, 1_000_000, 0]
    whole = blocks_by_sample(drawn(samples, sample_ids, amount=5), sample_ids)
    assert sum(map(len, whole.values())) > 15
    order = [3, 5, 0, 2, 4, 1]
    shuffled, shuffled_ids = [samples[at] for at in order], [sample_ids[at] for at in order]
    for form, extra in (("padded", 0), ("padded", 17), ("packed", 0), ("packed", 9)):
        blocks = drawn(shuffled, shuffled_ids, amount=5, form=form, extra=extra)
        assert blocks_by_sample(blocks, shuffled_ids) == whole
    for sample, sample_id in zip(samples, sample_ids, strict=True):
        assert blocks_by_sample(drawn([sample], [sample_id], amount=5), [sample_id]) == {sample_id: whole[sample_id]}


def test_seed_epoch_and_sample_each_change_the_draw():
    def of(**changes):
        key = {"seed": 3, "epoch": 1, "sample_id": 8, **changes}
        return sample_anchors(mask_of(200, 20), 30, **key).tolist()

    assert of() == of()
    others = [of(seed=4), of(epoch=2), of(sample_id=9), of(seed=1, epoch=3), of(epoch=8, sample_id=1)]
    assert all(of() != other for other in others)
    assert len({tuple(other) for other in others}) == len(others)


def test_global_generators_neither_move_nor_matter():
    np.random.seed(1)
    torch.manual_seed(1)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = drawn(random_samples(), amount=3)
    assert np.array_equal(before[0], np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(drawn(random_samples(), amount=3).anchors, first.anchors)


def test_positions_are_drawn_evenly():
    # 4,000 samples, 5 of 20 positions each: a count has mean 1,000; chi-square of 19 degrees is below 43.8 in 99.9 %.
    counts = np.zeros(20)
    for sample_id in range(4000):
        counts[sample_anchors(mask_of(21, 0), 5, seed=0, epoch=0, sample_id=sample_id)] += 1
    assert counts.sum() == 20_000
    # Drawing without replacement makes the spread smaller by (20 - 5) / 19.
    assert 4 < ((counts - 1000) ** 2 / 1000).sum() * 19 / 15 < 43.8


def test_epochs_draw_evenly_too():
    counts = np.zeros(20)
    for epoch in range(4000):
        counts[sample_anchors(mask_of(21, 0), 1, seed=0, epoch=epoch, sample_id=3)] += 1
    assert 4 < ((counts - 200) ** 2 / 200).sum() < 43.8


def test_draws_are_these_ones_for_ever():
    # A change here changes every run that is resumed or replayed.
    assert sample_anchors(mask_of(40, 10), 8, seed=0, epoch=0, sample_id=0).tolist() == FIRST_DRAW
    digest = hashlib.sha256()
    for seed, epoch, sample_id in ((0, 0, 0), (1, 0, 0), (0, 5, 12), (2**40, 3, 902_086)):
        found = sample_anchors(mask_of(3000, 100), 512, seed=seed, epoch=epoch, sample_id=sample_id)
        digest.update(found.astype("<i8").tobytes())
    assert digest.hexdigest() == DRAWS_SHA256


def test_budget_of_a_sample():
    counts = AnchorBudget(per="sample", amount=4).counts(np.array([0, 3, 4, 100]))
    assert counts.tolist() == [0, 3, 4, 4]


def test_budget_of_a_supervised_token():
    # A tenth of 0, 1, 10, 11, 25, rounded up.
    counts = AnchorBudget(per="supervised_token", amount=0.1).counts(np.array([0, 1, 10, 11, 25]))
    assert counts.tolist() == [0, 1, 1, 2, 3]
    # 0.07 * 100 is above 7 in floating point.
    assert AnchorBudget(per="supervised_token", amount=0.07).counts(np.array([100, 101])).tolist() == [7, 8]
    assert AnchorBudget(per="supervised_token", amount=1).counts(np.array([0, 7])).tolist() == [0, 7]


def test_budget_of_a_batch():
    # 10 of 16 in proportion: 0.625, 6.25 and 3.125 give 0, 6 and 3; the one left goes to the largest remainder.
    assert AnchorBudget(per="batch", amount=10).counts(np.array([1, 10, 5])).tolist() == [1, 6, 3]
    # Equal remainders: the first ones.
    assert AnchorBudget(per="batch", amount=5).counts(np.array([3, 3, 3])).tolist() == [2, 2, 1]
    assert AnchorBudget(per="batch", amount=10).counts(np.array([2, 0, 3])).tolist() == [2, 0, 3]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=70), st.integers(1, 40_000))
def test_a_batchs_budget_is_used_up_and_never_above_what_is_valid(num_valid, amount):
    counts = AnchorBudget(per="batch", amount=amount).counts(np.array(num_valid))
    assert counts.sum() == min(amount, sum(num_valid))
    share = min(1.0, amount / max(1, sum(num_valid)))
    for count, valid in zip(counts.tolist(), num_valid, strict=True):
        assert 0 <= count <= valid
        assert abs(count - share * valid) < 1 + 1e-9


def test_a_batchs_budget_makes_so_many_blocks():
    samples = random_samples(6, seed=4)
    assert sum(len(valid_anchors(mask)) for _, mask in samples) > 40
    assert len(drawn(samples, per="batch", amount=40)) == 40


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per": "token"}, "per is 'token'; legal: sample, supervised_token, batch"),
        ({"amount": 0}, "amount is 0; legal: a whole number >= 1"),
        ({"amount": 1.5}, "amount is 1.5; legal: a whole number >= 1"),
        ({"per": "batch", "amount": True}, "amount is True"),
        (
            {"per": "supervised_token", "amount": 1.5},
            r"amount is 1.5; legal for supervised_token: a number in \(0, 1\]",
        ),
        ({"per": "supervised_token", "amount": 0}, "amount is 0; legal: a finite number > 0"),
        ({"per": "supervised_token", "amount": float("nan")}, "amount is nan"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        AnchorBudget(**values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_anchors": -1}, "num_anchors is -1; legal: a whole number >= 0"),
        ({"seed": -1}, "seed is -1; legal: a whole number >= 0"),
        ({"epoch": 0.5}, "epoch is 0.5; legal: a whole number >= 0"),
        ({"loss_mask": [[True]]}, r"loss_mask has the shape \(1, 1\); legal: \(L,\)"),
    ],
)
def test_draws_that_make_no_sense_are_refused(changes, message):
    arguments = {"loss_mask": [True] * 4, "num_anchors": 2, "seed": 0, "epoch": 0, "sample_id": 0, **changes}
    mask, num_anchors = arguments.pop("loss_mask"), arguments.pop("num_anchors")
    with pytest.raises(ValueError, match=message):
        sample_anchors(mask, num_anchors, **arguments)


def noise_of(lengths, sample_ids, *, form="padded", amplitude=0.25, seed=0, epoch=0, dtype=torch.float32):
    """The noise alone, and the documents; features are zero."""
    tensor = torch.tensor(lengths)
    documents = Documents.padded(tensor) if form == "padded" else Documents.packed(tensor)
    shape = (len(lengths), max(lengths) + 3, 8) if form == "padded" else (1, sum(lengths) + 3, 8)
    features = torch.zeros(shape, dtype=dtype)
    ids = torch.tensor(sample_ids)
    noisy = noisy_features(features, documents, ids, amplitude=amplitude, seed=seed, epoch=epoch)
    assert not features.any()
    return noisy, documents


def test_noise_is_uniform_within_its_bounds_and_leaves_padding():
    noisy, documents = noise_of([500, 300], [3, 4])
    real = torch.cat([noisy[0, :500], noisy[1, :300]])
    assert not noisy[0, 500:].any() and not noisy[1, 300:].any()
    assert float(real.abs().max()) <= 0.25
    # Uniform in [-a, a]: variance a * a / 3, and every tenth of the range holds a tenth of 6,400 values (sd 24).
    assert float(real.var()) == pytest.approx(0.25**2 / 3, rel=0.05)
    counts = torch.histc(real, bins=10, min=-0.25, max=0.25)
    assert ((counts - 640).abs() < 110).all()


def test_a_samples_noise_does_not_depend_on_its_batch():
    noisy, _ = noise_of([7, 12], [3, 40])
    other, _ = noise_of([20, 12, 7], [9, 40, 3])
    packed, documents = noise_of([12, 7], [40, 3], form="packed")
    assert torch.equal(other[1, :12], noisy[1, :12]) and torch.equal(other[2, :7], noisy[0, :7])
    assert torch.equal(packed[0, :12], noisy[1, :12]) and torch.equal(packed[0, 12:19], noisy[0, :7])
    assert not packed[0, 19:].any()


def test_noise_changes_with_seed_epoch_and_sample_and_keeps_the_dtype():
    plain = noise_of([6], [3])[0]
    for changed in (noise_of([6], [4])[0], noise_of([6], [3], seed=1)[0], noise_of([6], [3], epoch=1)[0]):
        assert not torch.equal(changed, plain)
    assert torch.equal(noise_of([6], [3], amplitude=0.5)[0], plain * 2)
    half = noise_of([6], [3], dtype=torch.bfloat16)[0]
    assert torch.equal(half, plain.to(torch.bfloat16))


def test_without_amplitude_features_are_given_back():
    features = torch.ones(1, 3, 2)
    documents = Documents.padded(torch.tensor([3]))
    assert noisy_features(features, documents, torch.tensor([0]), amplitude=0.0, seed=0, epoch=0) is features
    for amplitude in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"amplitude is {amplitude}; legal: a finite number >= 0"):
            noisy_features(features, documents, torch.tensor([0]), amplitude=amplitude, seed=0, epoch=0)
