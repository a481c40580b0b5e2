"""Many samples at once: the same tokens as one by one, from every kind of store, and nothing past the end."""

import pickle
import threading

import numpy as np
import pyarrow as pa
import pytest

from dflash_lab.data import PreloadedDataset, write_samples

RNG = np.random.default_rng(4)
LENGTHS = RNG.integers(1, 30, 200).tolist()
# The last token is supervised, so that no sample is left out; numbered through, so that no two samples are alike.
ROWS = [
    {
        "input_ids": list(range(number * 40, number * 40 + length)),
        "loss_mask": [*RNG.integers(0, 2, length - 1).tolist(), 1],
    }
    for number, length in enumerate(LENGTHS)
]
IDS = {
    "list": pa.list_(pa.int32()),
    "large_list": pa.large_list(pa.int64()),
    "narrow": pa.list_(pa.int16()),
}
MASKS = {
    "bits": pa.list_(pa.bool_()),
    "bytes": pa.list_(pa.uint8()),
    "signed": pa.large_list(pa.int8()),
    "wide": pa.list_(pa.int64()),
    "float": pa.list_(pa.float32()),
}


def write_stream(path, ids, masks, *, rows_a_batch=64):
    schema = pa.schema({"input_ids": ids, "loss_mask": masks})
    with pa.ipc.new_stream(str(path), schema) as writer:
        for begin in range(0, len(ROWS), rows_a_batch):
            part = ROWS[begin : begin + rows_a_batch]
            columns = [
                pa.array([row["input_ids"] for row in part], ids),
                pa.array([row["loss_mask"] for row in part], pa.list_(pa.int64())).cast(masks),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return path


def assert_same(dataset, sample_ids, lengths):
    views = dataset.token_views_of(np.asarray(sample_ids), np.asarray(lengths))
    assert len(views.input_ids) == len(views.loss_masks) == len(sample_ids)
    for ids, mask, sample_id, length in zip(views.input_ids, views.loss_masks, sample_ids, lengths, strict=True):
        row = ROWS[dataset.row_numbers[sample_id]]
        assert ids.dtype.kind in "iu" and ids.tolist() == row["input_ids"][:length]
        assert mask.dtype == bool and mask.tolist() == [flag == 1 for flag in row["loss_mask"][:length]]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("ids", IDS)
def test_every_kind_of_column_gives_the_rows_that_were_written(tmp_path, ids, masks):
    dataset = PreloadedDataset.open(write_stream(tmp_path / "samples.arrow", IDS[ids], MASKS[masks]))
    order = np.random.default_rng(0).permutation(len(dataset))
    assert_same(dataset, order, dataset.lengths[order])


def test_our_own_store_is_read_in_place(tmp_path):
    write_samples(tmp_path / "samples.arrow", ROWS)
    dataset = PreloadedDataset.open(tmp_path / "samples.arrow")
    assert_same(dataset, range(len(dataset)), dataset.lengths)
    views = dataset.token_views_of(np.array([3, 3]), np.array([1, 1]))
    for part in (views.input_ids, views.loss_masks):
        assert np.shares_memory(part[0], part[1]) and not part[0].flags.writeable


def test_several_files_cuts_and_left_out_rows(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    write_samples(folder / "a.arrow", ROWS[:70])
    write_samples(folder / "b.arrow", ROWS[70:])
    dataset = PreloadedDataset.open(folder, max_seq_len=9, min_loss_tokens=2)
    # The cut leaves some rows with too few loss tokens, so that sample numbers are not row numbers.
    kept = [row for row in ROWS if sum(row["loss_mask"][:9]) >= 2]
    assert 0 < len(kept) < len(ROWS) and len(dataset) == len(kept)
    order = np.arange(len(dataset))[::-1]
    assert_same(dataset, order, dataset.lengths[order])


def test_fewer_tokens_than_there_are():
    dataset = PreloadedDataset.from_rows(ROWS)
    assert_same(dataset, [5, 0, 5], [1, 1, min(2, LENGTHS[5])])


def test_a_pickled_data_set_reads_the_same(tmp_path):
    write_samples(tmp_path / "samples.arrow", ROWS)
    dataset = PreloadedDataset.open(tmp_path / "samples.arrow")
    assert_same(dataset, [7], dataset.lengths[[7]])
    assert_same(pickle.loads(pickle.dumps(dataset)), [199, 0], dataset.lengths[[199, 0]])


def test_threads_that_read_first_at_the_same_moment():
    dataset = PreloadedDataset.from_rows(ROWS)
    together, errors = threading.Barrier(4), []

    def read():
        together.wait(20)
        try:
            assert_same(dataset, range(len(dataset)), dataset.lengths)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []


@pytest.mark.parametrize(
    ("sample_ids", "lengths", "message"),
    [
        ([0, 200], [1, 1], r"1 tokens of sample 200; legal: samples in \[0, 200\)"),
        ([-1], [1], "1 tokens of sample -1"),
        ([4, 9], [1, 31], "31 tokens of sample 9; legal: .* up to the tokens that `lengths` gives"),
    ],
)
def test_what_is_not_there_is_refused(sample_ids, lengths, message):
    dataset = PreloadedDataset.from_rows(ROWS)
    with pytest.raises(ValueError, match=message):
        dataset.token_views_of(np.array(sample_ids), np.array(lengths))
