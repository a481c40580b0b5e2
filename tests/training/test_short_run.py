"""One call makes a run, the same call opens it again, and other settings make another."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dflash_lab import data, training
from dflash_lab.target.named import open_target, unused_id
from dflash_lab.target.tiny_training import TinySettings, tiny_model

CHANGES = {
    "max_steps": 3,
    "batching.token_budget": 512,
    "batching.max_seq_len": 96,
    "drafter.num_hidden_layers": 1,
    "anchors.amount": 2,
    "log.tree_every_steps": None,
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A file of random samples."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 90, 60)
    rows = [{"input_ids": rng.integers(5, 2_000, n).tolist(), "loss_mask": [0] * 3 + [1] * (n - 3)} for n in lengths]
    path = tmp_path_factory.mktemp("samples") / "mine.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def begin(samples):
    """begin(outputs, run_name, **changes) -> ShortRun of a random target on the samples."""

    def run(outputs, run_name="", **changes):
        changes = {name.replace("__", "."): value for name, value in changes.items()}
        settings = training.ShortRunSettings(target="random", data_path=str(samples), changes={**CHANGES, **changes})
        return training.short_run(
            settings, outputs=outputs, run_name=run_name, device="cpu", on_status=lambda line: None
        )

    return run


@pytest.fixture(scope="module")
def finished(begin, tmp_path_factory):
    outputs = tmp_path_factory.mktemp("outputs")
    return outputs, begin(outputs)


def test_a_run_has_what_a_notebook_shows(finished):
    outputs, run = finished
    assert run.result.complete and run.result.state.step == 3
    assert run.run_dir.parent == outputs / "runs" and run.run_dir.name.startswith("random-")
    assert run.data_name == "mine.parquet" and run.label == "random-mine-parquet"
    assert run.config.drafter.mask_token_id == data.builtin_tokenizer().mask_token_id
    assert run.end_ids == (data.builtin_tokenizer().eos_token_id,)
    # A twentieth of 60.
    assert len(run.split.held_out_ids) == 3
    assert np.intersect1d(run.split.held_out_ids, run.split.train_ids).size == 0


def test_prompts_are_what_stands_before_the_first_supervised_token(finished):
    _, run = finished
    prompts = run.prompts(2)
    first, last = run.split.held_out_ids[[0, -1]]
    assert [prompt.tolist() for prompt in prompts] == [
        run.held_out.token_views(int(number))[0][:3].tolist() for number in (first, last)
    ]
    assert len(run.prompts(99)) == 3


def test_pieces_make_up_the_text(finished):
    _, run = finished
    ids = tuple(run.tokenizer.encode("def f(x):\n    return x"))
    assert "".join(run.pieces(ids)) == "def f(x):\n    return x"


def test_an_export_is_fit_to_serve(finished):
    _, run = finished
    folder, findings = run.export()
    assert (folder / "config.json").is_file()
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert run.export()[0] == folder


def test_the_same_settings_open_the_run_and_train_no_more(finished, begin):
    outputs, run = finished
    log = (run.run_dir / "metrics.jsonl").read_bytes()
    again = begin(outputs)
    assert again.run_dir == run.run_dir
    assert (run.run_dir / "metrics.jsonl").read_bytes() == log
    for name, weights in again.drafter.state_dict().items():
        assert torch.equal(weights, run.drafter.state_dict()[name]), name


def test_what_does_not_decide_the_weights_makes_no_other_run(finished, begin):
    outputs, run = finished
    assert begin(outputs, log__status_every_seconds=99.0).run_dir == run.run_dir


def test_other_settings_make_another_run_and_a_name_is_kept(finished, begin, tmp_path):
    _, run = finished
    other = begin(tmp_path, seed=1)
    assert other.run_dir.name != run.run_dir.name
    named = begin(tmp_path, run_name="mine")
    assert named.run_dir == tmp_path / "runs" / "mine"
    with pytest.raises(ValueError, match="max_steps is 2 and was 3"):
        begin(tmp_path, run_name="mine", max_steps=2)
    assert training.newest_short_run(tmp_path) == named.run_dir


def test_a_run_is_opened_without_training(finished):
    outputs, run = finished
    assert training.newest_short_run(outputs) == run.run_dir
    opened = training.open_short_run(run.run_dir, device="cpu")
    assert opened.result is None and opened.config.identity == run.config.identity
    assert opened.settings.data_path == run.settings.data_path
    assert opened.split.held_out_ids.tolist() == run.split.held_out_ids.tolist()
    for name, weights in opened.drafter.state_dict().items():
        assert torch.equal(weights, run.drafter.state_dict()[name]), name
    assert not opened.drafter.training


def test_a_folder_without_a_run_and_other_samples_are_refused(finished, tmp_path):
    _, run = finished
    assert training.newest_short_run(tmp_path) is None
    with pytest.raises(ValueError, match="has no short_run.json; legal: the folder of a run that short_run made"):
        training.open_short_run(tmp_path)
    written = run.run_dir / "short_run.json"
    before = written.read_text()
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"input_ids": [[5, 6, 7, 8]] * 30, "loss_mask": [[0, 1, 1, 1]] * 30}), other)
    written.write_text(json.dumps({**json.loads(before), "data_path": str(other)}))
    try:
        with pytest.raises(ValueError, match="the data of .* is .* now and was .*; train a new run"):
            training.open_short_run(run.run_dir, device="cpu")
    finally:
        written.write_text(before)


def test_a_single_sample_is_trained_on_and_scored_and_says_so(tmp_path):
    pq.write_table(pa.table({"input_ids": [[9, 8, 7, 6]], "loss_mask": [[0, 1, 1, 1]]}), tmp_path / "one.parquet")
    settings = training.ShortRunSettings(
        target="random", data_path=str(tmp_path / "one.parquet"), changes={**CHANGES, "max_steps": 1}
    )
    run = training.short_run(settings, outputs=tmp_path, device="cpu", on_status=lambda line: None)
    assert "the only sample is trained on and scored" in run.notes
    assert run.split.held_out_ids.tolist() == [0]


def test_a_target_from_a_folder(tmp_path, samples):
    model = tiny_model(TinySettings(steps=1, hidden_size=64, intermediate_size=64, num_layers=6), 2_048)
    folder = tmp_path / "my model"
    model.save_pretrained(folder)
    data.builtin_tokenizer().save_pretrained(folder)
    settings = training.ShortRunSettings(
        target=str(folder), data_path=str(samples), changes={**CHANGES, "max_steps": 1}
    )
    run = training.short_run(settings, outputs=tmp_path, device="cpu", on_status=lambda line: None)
    assert run.target.hidden_size == 64 and run.run_dir.name.startswith("my model-")
    assert run.config.drafter.mask_token_id == 1
    assert run.label == "my-model-mine-parquet"


def test_targets_that_are_none_and_mask_ids():
    with pytest.raises(ValueError, match="target is 'huge'; legal: tiny, random, smollm2, or the folder of a model"):
        open_target("huge")
    assert open_target("random", mask_token_id=7).mask_token_id == 7
    tokenizer = data.builtin_tokenizer()
    tokenizer.mask_token = None
    # An embedding with more rows than the tokenizer has entries: the first row that stands for nothing.
    assert unused_id(tokenizer, len(tokenizer) + 3) == len(tokenizer)
    with pytest.raises(ValueError, match="every one of the 2048 ids of the tokenizer means something"):
        unused_id(tokenizer, len(tokenizer), taken_ids=range(5))


@pytest.mark.parametrize("number", [-1, True, 2.5])
def test_an_illegal_number_of_answers(number):
    with pytest.raises(ValueError, match=f"num_answers is {number!r}; legal: a whole number >= 0"):
        training.ShortRunSettings(num_answers=number)
