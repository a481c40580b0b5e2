"""Loose samples to tensors: shapes, masks and refusals; and by which way a data set's samples are read."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dflash_lab.batching import BatchingConfig, plan_epoch
from dflash_lab.data import PreloadedDataset, Sample
from dflash_lab.feed import BatchPrefetcher, collate


def sample(ids, mask=None, sample_id=0):
    ids = np.asarray(ids)
    return Sample(ids, np.ones(len(ids), bool) if mask is None else np.asarray(mask), sample_id)


def by_hand(samples, width):
    """Pad token by token."""
    rows = [[0] * width for _ in samples]
    real, loss = ([[False] * width for _ in samples] for _ in range(2))
    for row, one in enumerate(samples):
        for column in range(len(one.input_ids)):
            rows[row][column] = int(one.input_ids[column])
            real[row][column] = True
            loss[row][column] = bool(one.loss_mask[column])
    return rows, real, loss


@pytest.mark.parametrize("multiple", [1, 7, 64])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint64])
def test_random_samples_agree_with_padding_token_by_token(multiple, dtype):
    rng = np.random.default_rng(multiple)
    # Id 0 is a token like any other: masks must not be made of it.
    samples = [
        sample(rng.integers(0, 3, length).astype(dtype), rng.integers(0, 2, length), number)
        for number, length in enumerate(rng.integers(1, 80, 9))
    ]
    longest = max(len(one.input_ids) for one in samples)
    width = next(number for number in range(longest, longest + multiple) if number % multiple == 0)
    batch = collate(samples, pad_to_multiple_of=multiple)
    rows, real, loss = by_hand(samples, width)
    assert batch.input_ids.tolist() == rows and batch.input_ids.dtype == torch.int64
    assert batch.attention_mask.tolist() == real and batch.attention_mask.dtype == torch.bool
    assert batch.loss_mask.tolist() == loss and batch.loss_mask.dtype == torch.bool
    assert batch.padded_tokens == 9 * width and batch.real_tokens == sum(len(one.input_ids) for one in samples)
    assert batch.rows.tolist() == list(range(9)) and batch.starts.tolist() == [0] * 9


def test_a_packed_row_of_one_sample_and_of_many():
    alone = collate([sample([5, 6], [0, 1], 8)], layout="packed")
    assert alone.input_ids.tolist() == [[5, 6]] and alone.document_ids.tolist() == [[0, 0]]
    rng = np.random.default_rng(0)
    samples = [sample(rng.integers(0, 9, length), rng.integers(0, 2, length), length) for length in (3, 1, 40_000, 2)]
    batch = collate(samples, layout="packed", pad_to_multiple_of=64)
    total = 40_006
    width = 40_064
    assert batch.input_ids.shape == (1, width)
    documents = [number for number, one in enumerate(samples) for _ in one.input_ids] + [-1] * (width - total)
    positions = [place for one in samples for place in range(len(one.input_ids))] + [0] * (width - total)
    assert batch.document_ids.tolist() == [documents] and batch.position_ids.tolist() == [positions]
    assert batch.attention_mask.tolist() == [[True] * total + [False] * (width - total)]
    assert batch.input_ids[0, :total].tolist() == np.concatenate([one.input_ids for one in samples]).tolist()
    assert batch.loss_mask[0, :total].tolist() == np.concatenate([one.loss_mask == 1 for one in samples]).tolist()
    assert not batch.input_ids[0, total:].any() and not batch.loss_mask[0, total:].any()
    assert batch.starts.tolist() == [0, 3, 4, 40_004] and batch.rows.tolist() == [0] * 4


def test_numbers_of_the_batch_are_kept():
    batch = collate([sample([1], sample_id=7)], batch_id=3, bucket_id=2, epoch=5)
    assert (batch.batch_id, batch.bucket_id, batch.epoch, batch.sample_ids.tolist()) == (3, 2, 5, [7])
    loose = collate([sample([1])])
    assert (loose.batch_id, loose.bucket_id, loose.epoch, loose.layout) == (-1, -1, 0, "padded")


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_shares_no_memory_with_its_samples(layout):
    # One sample without padding, of the final type: where a view would do as well.
    one = sample(np.arange(6), np.ones(6, bool))
    batch = collate([one], layout=layout)
    batch.input_ids.fill_(-1)
    batch.loss_mask.fill_(False)
    assert one.input_ids.tolist() == list(range(6)) and one.loss_mask.all()
    one.input_ids[:] = 9
    assert not (batch.input_ids == 9).any()


def test_it_serves_a_data_loader():
    dataset = PreloadedDataset.from_rows([{"input_ids": [1] * n, "loss_mask": [1] * n} for n in (2, 5, 3, 4)])
    plan = dataset.build_batches(BatchingConfig(strategy="sorted", token_budget=10, max_seq_len=8), epoch=0)
    batches = list(DataLoader(dataset, batch_sampler=plan, collate_fn=collate))
    assert [batch.sample_ids.tolist() for batch in batches] == list(plan)
    assert [batch.input_ids.shape[1] for batch in batches] == plan.widths.tolist()


def test_the_cut_takes_ids_and_mask_at_the_same_place():
    dataset = PreloadedDataset.from_rows(
        [{"input_ids": list(range(12)), "loss_mask": [0] * 5 + [1] * 7}], max_seq_len=8
    )
    batch = collate([dataset[0]])
    assert batch.input_ids.shape == batch.loss_mask.shape == (1, 8) and int(batch.loss_mask.sum()) == 3


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (sample([], [], 4), r"sample 4 \(number 1 given\) is empty; legal: at least one token"),
        (sample([1, 2, 3], [1, 1], 4), r"sample 4 .* has input_ids \(3,\) and loss_mask \(2,\); legal: both \(L,\)"),
        (sample([[1, 2]], [[1, 1]], 4), r"sample 4 .* has input_ids \(1, 2\)"),
        (sample([1.0, 2.0], [1, 1], 4), "sample 4 .* has input_ids of type float64; legal: whole numbers"),
        (sample(np.array([2**63], np.uint64), [1], 4), "sample 4 .* legal: whole numbers within int64"),
        (sample([True], [1], 4), "sample 4 .* has input_ids of type bool"),
        (sample([1, 2], [1, 2], 4), "sample 4 .* with other values than 0 and 1"),
        (sample([1, 2], [0.5, 1.0], 4), "sample 4 .* with other values than 0 and 1"),
    ],
)
def test_a_sample_that_is_none_is_refused_by_name(one, message):
    with pytest.raises(ValueError, match=message):
        collate([sample([1]), one])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "ragged"}, "layout is 'ragged'; legal: padded, packed"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0; legal: a whole number >= 1"),
        ({"pad_to_multiple_of": 2.0}, "pad_to_multiple_of is 2.0"),
        ({"batch_id": -2}, "batch_id is -2; legal: a whole number >= -1"),
        ({"bucket_id": None}, "bucket_id is None"),
        ({"epoch": -1}, "epoch is -1"),
        ({"pin_memory": 1}, 'pin_memory is 1; legal: True, False, "auto"'),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        collate([sample([1])], **options)


# The way in which a data set is read


class OneByOne:
    """The least that can be read."""

    def __init__(self, lengths=(3, 2, 4)):
        self.samples = [SimpleNamespace(input_ids=[9] * n, loss_mask=[1] * n) for n in lengths]

    def __getitem__(self, sample_id):
        return self.samples[sample_id]


def ids_read(dataset, lengths=(3, 2, 4)):
    config = BatchingConfig(strategy="as_given", order="as_built", token_budget=64, max_seq_len=64)
    plan = plan_epoch(np.array(lengths), config, epoch=0)
    with BatchPrefetcher(dataset, plan, pin_memory=False) as batches:
        return [batch.input_ids[:, 0].tolist() for batch in batches]


def rows_of(first_id):
    return PreloadedDataset.from_rows([{"input_ids": [first_id] * n, "loss_mask": [1] * n} for n in (3, 2, 4)])


def test_anything_with_samples_by_number_can_be_read():
    assert ids_read(OneByOne()) == [[9, 9, 9]]
    assert ids_read([sample([7] * n) for n in (3, 2, 4)]) == [[7, 7, 7]]


def test_what_a_subclass_changes_is_not_read_past():
    class Noisy(PreloadedDataset):
        def __getitem__(self, sample_id):
            one = super().__getitem__(sample_id)
            return Sample(one.input_ids + 1, one.loss_mask, one.sample_id)

    rows = [{"input_ids": [5] * n, "loss_mask": [1] * n} for n in (3, 2, 4)]
    assert ids_read(PreloadedDataset.from_rows(rows)) == [[5, 5, 5]]
    assert ids_read(Noisy.from_rows(rows)) == [[6, 6, 6]]


def test_what_an_object_has_of_its_own_is_not_read_past(monkeypatch):
    dataset = rows_of(5)
    monkeypatch.setattr(dataset, "token_views", lambda i: ([8] * dataset.lengths[i], [1] * dataset.lengths[i]))
    assert ids_read(dataset) == [[8, 8, 8]]


def test_a_wrapper_that_passes_every_name_on_can_be_read():
    class Wrapper:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

    assert ids_read(Wrapper(rows_of(5))) == [[5, 5, 5]]


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="dataset is a object; legal: a data set with one of token_views_of"):
        ids_read(object())


def test_a_sample_shorter_than_planned_is_refused_by_name():
    with pytest.raises(ValueError, match="sample 1 has 2 tokens where the plan has 3; it was made from other data"):
        ids_read(OneByOne(), lengths=(3, 3, 4))
    # A longer one is cut, as plans cut.
    assert ids_read(OneByOne(), lengths=(3, 1, 4)) == [[9, 9, 9]]
