"""Features from a file are those of the target, for any batching."""

import numpy as np
import pytest
import torch

from dflash_lab import data, study
from dflash_lab.feed import collate


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_stored_features_are_the_targets(material, features, layout):
    chosen = material.train_ids[[3, 0, 7]]
    batch = collate([material.train[int(number)] for number in chosen], layout=layout, pad_to_multiple_of=16)
    stored, fresh = features.train.features(batch), material.target.features(batch)
    for row, start, length in zip(batch.rows, batch.starts, batch.lengths, strict=True):
        span = row, slice(start, start + length)
        torch.testing.assert_close(stored.hidden[span], fresh.hidden[span], atol=1e-6, rtol=1e-5)
    assert (stored.hidden[~batch.attention_mask] == 0).all()
    assert stored.batch is batch


def test_what_is_not_kept_is_refused(material, features):
    unknown = int(np.setdiff1d(np.arange(len(material.train)), material.train_ids)[0])
    with pytest.raises(ValueError, match=rf"sample {unknown} with \d+ tokens is not among the \d+ samples"):
        features.train.features(collate([material.train[unknown]]))
    known = material.train[int(material.train_ids[0])]
    longer = data.Sample(np.tile(known.input_ids, 3), np.tile(known.loss_mask, 3), known.sample_id)
    with pytest.raises(ValueError, match="is not among"):
        features.train.features(collate([longer]))
    with pytest.raises(ValueError, match="logits are not kept"):
        features.train.features(collate([known]), with_logits=True)


def test_too_many_bytes_are_refused_before_anything_is_computed(tiny_study, material):
    with pytest.raises(ValueError, match=r"take [\d,]+ bytes, and most_feature_bytes is 1,000; legal: a larger one"):
        study.load_or_compute_features(tiny_study.make_settings(most_feature_bytes=1_000), material)


def test_a_damaged_file_is_made_anew(settings, material, features, capsys):
    file = features.folder / "train-features.npy"
    before = file.read_bytes()
    file.write_bytes(before[:-4_000] + bytes(4_000))
    again = study.load_or_compute_features(settings, material)
    assert "is damaged and is made anew: train-features.npy does not hold what" in capsys.readouterr().err
    assert (again.folder / "train-features.npy").read_bytes() == before


def test_samples_are_chosen_by_tokens_and_never_held_out(tiny_study, settings, material):
    lengths = material.train.lengths[material.train_ids]
    assert lengths.sum() >= settings.tokens_per_epoch > lengths.sum() - lengths.max()
    assert not np.intersect1d(material.train_ids, material.held_out_ids).size
    assert material.fingerprint == tiny_study.open_tiny(settings).fingerprint
    assert material.fingerprint != tiny_study.open_tiny(tiny_study.make_settings(data_seed=1)).fingerprint


def test_joined_turns_are_whole_turns_each_once():
    rng = np.random.default_rng(0)
    turns = data.PreloadedDataset.from_rows(
        [
            {"input_ids": [number, *rng.integers(100, 200, 4).tolist()], "loss_mask": [0, 1, 1, 1, 1]}
            for number in range(60)
        ]
    )
    joined = study.join_turns(turns, most_turns=3, max_seq_len=15, seed=0)
    ids = np.concatenate([sample.input_ids for sample in joined])
    assert sorted(ids[ids < 100].tolist()) == list(range(60))
    assert set((joined.lengths // 5).tolist()) == {1, 2, 3} and (joined.lengths % 5 == 0).all()
    for sample in joined:
        for begin in range(0, len(sample.input_ids), 5):
            turn = turns[int(sample.input_ids[begin])]
            assert np.array_equal(sample.input_ids[begin : begin + 5], turn.input_ids)
            assert np.array_equal(sample.loss_mask[begin : begin + 5], turn.loss_mask)
    alone = study.join_turns(turns, most_turns=1, max_seq_len=15, seed=0)
    assert len(alone) == 60
