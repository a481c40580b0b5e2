"""A step is looked up in the ledger, with the text of its samples, bounded and escaped."""

import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dflash_lab import data
from dflash_lab.training import explore_step, replay_step
from dflash_lab.training.explore_step import MAX_SPAN_CHARACTERS, MAX_SPANS


@pytest.fixture(scope="module")
def tokenizer():
    """Every id is a word of its own, one of them a piece of a page."""
    words = {f"w{number}": number for number in range(60)} | {"<b>&": 60}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def ledger_of(run_dir, step):
    lines = map(json.loads, (run_dir / "batches.jsonl").read_text().splitlines())
    return next(line for line in lines if line["step"] == step)


def test_batches_and_samples_are_those_of_the_ledger(reference, dataset):
    view = explore_step(reference.run_dir, 3, dataset)
    held = ledger_of(reference.run_dir, 3)
    assert [batch["batch_id"] for batch in view.batches] == [batch["batch_id"] for batch in held["batches"]]
    ids = [sample for batch in held["batches"] for sample in batch["sample_ids"]]
    assert [sample.sample_id for sample in view.samples] == ids
    for sample in view.samples:
        own = dataset[sample.sample_id]
        width = next(batch["width"] for batch in held["batches"] if batch["batch_id"] == sample.batch_id)
        assert sample.length == len(own.input_ids) and sample.loss_tokens == own.loss_mask.sum()
        assert sample.source == ("odd" if sample.sample_id % 2 else "even")
        assert sample.padding_share == 1 - sample.length / width and sample.loss is None
    assert view.epoch == held["epoch"] and view.logged["step"] == 3
    assert [line["step"] for line in view.neighbours] == [1, 2, 3, 4, 5, 6]
    assert view.neighbour_table()["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert len(view.sample_table()) == len(ids) and len(view.batch_table()) == len(held["batches"])
    loss = view.logged["loss_sum"] / view.logged["loss_weight"]
    assert view.neighbour_table()["loss"][2] == loss


def test_text_is_cut_where_the_mask_changes(reference, dataset, tokenizer):
    view = explore_step(reference.run_dir, 2, dataset, tokenizer, max_texts=99)
    for sample in view.samples:
        own = dataset[sample.sample_id]
        assert [span.supervised for span in sample.spans] == [False, True]
        begin = int(np.argmax(own.loss_mask))
        assert sample.spans[0].num_tokens == begin
        assert sample.spans[0].text == tokenizer.decode(own.input_ids[:begin].tolist())
        assert sample.spans[1].text == tokenizer.decode(own.input_ids[begin:].tolist())


def test_each_batch_has_a_text_and_the_rest_is_counted(reference, dataset, tokenizer):
    view = explore_step(reference.run_dir, 2, dataset, tokenizer, max_texts=2)
    shown = [sample for sample in view.samples if sample.spans]
    assert len(shown) == 2 and len({sample.batch_id for sample in shown}) == 2
    assert f"the text of 2 of {len(view.samples)} samples is shown" in view.notes
    assert explore_step(reference.run_dir, 2, dataset, max_texts=0).samples[0].spans == ()


def test_a_replayed_step_shows_its_dearest_samples_first(reference, dataset, target, tokenizer):
    replayed = replay_step(reference.run_dir, 3, dataset, target, device="cpu")
    view = explore_step(reference.run_dir, 3, dataset, tokenizer, replayed=replayed, max_texts=2)
    losses = [sample.loss for sample in view.samples]
    assert losses == sorted(losses, reverse=True)
    assert [bool(sample.spans) for sample in view.samples[:3]] == [True, True, False]
    at = replayed.sample_ids.tolist().index(view.samples[0].sample_id)
    assert losses[0] == replayed.sample_loss_sum[at] / replayed.sample_loss_weight[at]
    assert sum(sample.num_blocks for sample in view.samples) == replayed.logged["num_blocks"]
    with pytest.raises(ValueError, match="replayed is step 3; legal: the replay of step 4"):
        explore_step(reference.run_dir, 4, dataset, replayed=replayed)


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def hand_made(folder, rows, layout="padded"):
    """A run's folder with a ledger alone, whose one step has all samples."""
    dataset = data.PreloadedDataset.from_rows(rows)
    lengths = dataset.lengths.tolist()
    batch = {
        "batch_id": 0, "bucket_id": 2, "layout": layout, "width": max(lengths), "real_tokens": sum(lengths),
        "padded_tokens": max(lengths) * len(lengths), "length_min": min(lengths), "length_max": max(lengths),
        "sample_ids": list(range(len(rows))), "lengths": lengths,
    }  # fmt: skip
    folder.mkdir()
    (folder / "batches.jsonl").write_text(json.dumps({"step": 7, "epoch": 1, "rank": 0, "batches": [batch]}) + "\n")
    return dataset


def test_the_page_is_escaped_bounded_and_whole(tmp_path, tokenizer):
    # Long samples with many stretches, of tokens that are pieces of a page; many samples.
    rows = [{"input_ids": [60] * 6_000, "loss_mask": [at // 9 % 2 for at in range(6_000)]} for _ in range(3)]
    rows += [{"input_ids": [60] * 8_000, "loss_mask": [0] * 10 + [1] * 7_990}]
    rows += [{"input_ids": [1, 2], "loss_mask": [0, 1], "source": "<script>alert(1)</script>"} for _ in range(200)]
    dataset = hand_made(tmp_path / "run<i>", rows)
    view = explore_step(tmp_path / "run<i>", 7, dataset, tokenizer, max_texts=4)
    page = view.html()
    reader = Reader()
    reader.feed(page)
    assert reader.open == [] and not {"b", "script", "i"} & set(reader.tags)
    assert len(page) < 300_000 and len(view.text()) < 100_000
    first = view.samples[0]
    assert first.num_spans == 667 and len(first.spans) == MAX_SPANS + 1
    assert any("more stretches" in span.text for span in first.spans)
    assert sum(span.num_tokens for span in first.spans) == 6_000
    long = view.samples[3].spans[1]
    assert long.num_tokens == 7_990 and "[... 7,830 tokens ...]" in long.text
    assert len(long.text) <= MAX_SPAN_CHARACTERS + 60
    assert "144 more samples are not shown" in page and "color: " not in page.replace("background-color", "")
    assert set(view._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_a_ledger_alone_is_enough(tmp_path):
    dataset = hand_made(tmp_path / "run", [{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}])
    view = explore_step(tmp_path / "run", 7, dataset)
    assert view.logged is None and view.neighbours == () and view.samples[0].bucket_id == 2
    assert view.samples[0].spans[1].text == "2 3"
    assert "no tokenizer was given: ids stand for text" in view.notes and "the log has no step 7" in view.notes
    assert any(re.search("has no manifest.json: whether the data is the run's", note) for note in view.notes)


def test_packed_rows_have_no_padding_share_of_a_sample(tmp_path):
    dataset = hand_made(tmp_path / "run", [{"input_ids": [1, 2], "loss_mask": [0, 1]}] * 2, layout="packed")
    assert [sample.padding_share for sample in explore_step(tmp_path / "run", 7, dataset).samples] == [None, None]


def test_a_sample_that_the_run_cut_is_shown_as_it_was_trained(tmp_path):
    whole = [{"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 1]}]
    hand_made(tmp_path / "run", [{"input_ids": [1, 2], "loss_mask": [0, 1]}])
    view = explore_step(tmp_path / "run", 7, data.PreloadedDataset.from_rows(whole))
    assert (view.samples[0].length, view.samples[0].loss_tokens) == (2, 1)
    assert [span.text for span in view.samples[0].spans] == ["1", "2"]


def test_what_cannot_be_looked_up_is_refused(reference, dataset, tiny_run, tmp_path):
    last = reference.total_steps
    for step in (0, last + 1):
        with pytest.raises(
            ValueError, match=f"step is {step}; legal: one in the ledger of .*, which has steps 1 to {last}"
        ):
            explore_step(reference.run_dir, step, dataset)
    with pytest.raises(ValueError, match="the data has the fingerprint .*, and that of .* has"):
        explore_step(reference.run_dir, 1, tiny_run.make_dataset(79))
    with pytest.raises(ValueError, match="has no batches.jsonl"):
        explore_step(tmp_path, 1, dataset)
    with pytest.raises(ValueError, match="max_texts is -1; legal: a whole number >= 0"):
        explore_step(reference.run_dir, 1, dataset, max_texts=-1)
    with pytest.raises(
        ValueError, match="the data has the id 59, and the tokenizer 2 entries; legal: the tokenizer that"
    ):
        explore_step(reference.run_dir, 1, dataset, Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    with pytest.raises(ValueError, match="tokenizer is a str; legal: one of tokenizers or transformers, or None"):
        explore_step(reference.run_dir, 1, dataset, "gpt2")
    shutil.copytree(reference.run_dir, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(ValueError, match="the ledger names sample .*, and the data has 2 samples"):
        explore_step(tmp_path / "run", 1, tiny_run.make_dataset(2))
    short = data.PreloadedDataset.from_rows([{"input_ids": [1, 2], "loss_mask": [0, 1]}] * 80)
    with pytest.raises(ValueError, match="sample .* has 2 tokens, and .* in the ledger: the data is not the run's"):
        explore_step(tmp_path / "run", 1, short)
