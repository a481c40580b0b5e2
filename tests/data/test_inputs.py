"""What a notebook's parameters open, and samples back as text."""

import json

import numpy as np
import pytest

from dflash_lab import data
from dflash_lab.data.inputs import is_chat_file

ROWS = [{"input_ids": [5, 6, 7, 8], "loss_mask": [0, 1, 1, 0]}, {"input_ids": [9, 3], "loss_mask": [0, 1]}]
CHATS = [
    {"messages": [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"It is {n}."}]}
    for n in range(5)
]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tokens_are_opened_as_they_are(tmp_path):
    path = write_lines(tmp_path / "my samples.v2.jsonl", ROWS)
    samples = data.open_lengths(str(path))
    assert (samples.name, samples.label) == ("my samples.v2.jsonl", "my-samples-v2")
    assert samples.lengths.tolist() == [4, 2] and samples.loss_tokens.tolist() == [2, 1]
    assert samples.fingerprint == data.PreloadedDataset.open(path).fingerprint
    assert "2 samples of 2 rows" in samples.notes
    assert data.save_prepared(samples, tmp_path / "out") == path
    assert not (tmp_path / "out").exists()


def test_chats_are_tokenised_once_and_again_when_they_change(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "chats.jsonl", CHATS)
    samples = data.open_lengths(str(path))
    assert len(samples.dataset) == 5 and samples.chats == path
    assert "5 of 5 conversations" in samples.notes
    store = data.save_prepared(samples, tmp_path / "out")
    assert store == tmp_path / "out" / "data" / "chats.arrow"
    assert data.PreloadedDataset.open(store).fingerprint == samples.fingerprint
    with monkeypatch.context() as patched:
        patched.setattr("dflash_lab.data.chat_store.tokenize_conversations", None)
        assert data.open_lengths(str(path)).fingerprint == samples.fingerprint
    write_lines(path, CHATS[:3])
    assert len(data.open_lengths(str(path)).dataset) == 3
    last = data.open_lengths(str(path), turns="last", max_seq_len=20)
    assert last.lengths.max() <= 20


def test_bad_conversations_are_counted_where_they_are_skipped(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", [*CHATS, {"messages": [{"role": "user", "content": "?"}]}])
    with pytest.raises(ValueError, match=r"chats\.jsonl, line 6"):
        data.open_lengths(str(path))
    samples = data.open_lengths(str(path), on_bad_row="skip")
    assert len(samples.dataset) == 5 and "left out" in samples.notes and "(5)" in samples.notes
    assert samples.num_left_out == 1 and samples.dataset.report.num_left_out == 0


@pytest.mark.parametrize(
    ("first", "chat"),
    [(CHATS[0], True), ({"conversations": []}, True), (ROWS[0], False), ({**ROWS[0], "messages": []}, False)],
)
def test_a_chat_file_is_known_by_its_first_line(tmp_path, first, chat):
    path = tmp_path / "x.jsonl"
    path.write_text("\n" + json.dumps(first) + "\nnot json\n")
    assert is_chat_file(path) is chat
    assert not is_chat_file(tmp_path)


def test_a_profile_needs_no_data():
    samples = data.open_lengths(lengths="source_run", num_samples=1_000, seed=3, max_seq_len=4_096)
    assert len(samples.lengths) == 1_000 and samples.lengths.max() == 4_096
    assert samples.dataset is samples.loss_tokens is samples.sources is None
    assert samples.fingerprint != data.open_lengths(lengths="source_run", num_samples=1_000, seed=4).fingerprint


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ValueError, match="lengths is 'sorted'; legal: 'source_run', or empty"):
        data.open_lengths(lengths="sorted")
    with pytest.raises(ValueError, match="lengths is 'source_run' and data_path is 'x'; name only one"):
        data.open_lengths("x", lengths="source_run")
    with pytest.raises(FileNotFoundError, match="/nonexistent does not exist"):
        data.open_lengths("/nonexistent")


def test_the_builtin_corpus_is_the_default():
    samples = data.open_lengths(max_seq_len=1_000)
    assert samples.name == "built-in corpus" and samples.lengths.max() == 1_000
    text = data.TokenText.of(samples)
    spans = text.spans(samples.dataset[0])
    assert sum(span.num_tokens for span in spans) == samples.lengths[0]
    assert not spans[0].supervised and spans[0].text.startswith("<|im_start|>user\n")
    assert spans[1].supervised and spans[1].text.startswith("```python\n")
    edges = text.mask_edges(samples.dataset, num_samples=50)
    last = edges.filter(edges["edge"] == "last")
    assert last["token"][0] == "'<|im_end|>'" and last["share_of_spans"].sum() == pytest.approx(1)


def test_tokens_without_a_tokenizer_are_shown_as_ids(tmp_path):
    samples = data.open_lengths(str(write_lines(tmp_path / "x.jsonl", ROWS)))
    text = data.TokenText.of(samples)
    spans = [(span.text, span.supervised, span.num_tokens) for span in text.spans(samples.dataset[0])]
    assert spans == [("5", False, 1), ("6 7", True, 2), ("8", False, 1)]
    assert text.decode(range(40)).endswith("... (40 ids)")
    edges = text.mask_edges(samples.dataset)
    assert edges.select("edge", "token_id", "num_spans").rows() == [
        ("before", 5, 1), ("before", 9, 1), ("last", 7, 1), ("last", 3, 1),
    ]  # fmt: skip


def test_a_mask_from_the_first_token_on_has_no_token_before():
    dataset = data.PreloadedDataset.from_rows([{"input_ids": [1, 2], "loss_mask": [1, 1]}])
    edges = data.TokenText(None).mask_edges(dataset)
    assert edges.rows() == [("before", None, "start of sample", 1, 1.0), ("last", 2, "'2'", 1, 1.0)]


def test_a_tokenizer_that_is_too_small_is_refused(tmp_path):
    rows = [{"input_ids": [5_000], "loss_mask": [1]}]
    samples = data.open_lengths(str(write_lines(tmp_path / "x.jsonl", rows)))
    data.builtin_tokenizer().save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match="x.jsonl has the id 5000, past the 2048 entries of tokenizer"):
        data.TokenText.of(samples, str(tmp_path / "tokenizer"))


def test_saved_samples_keep_cut_and_sources(tmp_path):
    rows = [{"input_ids": list(range(9)), "loss_mask": [1] * 9, "source": "a"}, ROWS[0]]
    dataset = data.PreloadedDataset.from_rows(rows, max_seq_len=6)
    dataset.save(tmp_path / "x.parquet")
    again = data.PreloadedDataset.open(tmp_path / "x.parquet")
    assert again.lengths.tolist() == [6, 4] and again.sources.to_list() == ["a", None]
    assert [s.input_ids.tolist() for s in again] == [s.input_ids.tolist() for s in dataset]


def test_samples_that_a_cut_leaves_bare_are_found():
    rows = [{"input_ids": [1] * 4, "loss_mask": mask} for mask in ([0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0])]
    dataset = data.PreloadedDataset.from_rows(rows)
    assert dataset.bare_after_cut(1).tolist() == [0, 2]
    assert dataset.bare_after_cut(3).tolist() == [0]
    assert dataset.bare_after_cut(4).tolist() == []
    assert np.array_equal(data.PreloadedDataset.from_rows(rows, max_seq_len=3).bare_after_cut(3), [])


@pytest.fixture
def own_tokenizer(tmp_path):
    folder = tmp_path / "tokenizer"
    data.builtin_tokenizer().save_pretrained(folder)
    return folder


def test_a_misspelt_tokenizer_is_not_another_one(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", CHATS)
    data.open_lengths(str(path))
    for _ in ("first", "again"):
        with pytest.raises(ValueError, match="tokenizer /nope/tok does not exist; legal: a folder or a tokenizer.json"):
            data.open_lengths(str(path), tokenizer="/nope/tok")


def test_the_store_follows_every_file_that_the_tokenizer_is_read_from(tmp_path, own_tokenizer):
    path = write_lines(tmp_path / "chats.jsonl", CHATS)
    before = data.open_lengths(str(path), tokenizer=str(own_tokenizer / "tokenizer.json")).lengths
    template = own_tokenizer / "chat_template.jinja"
    template.write_text('{{ "More words before. " }}' + template.read_text())
    for tokenizer in (own_tokenizer / "tokenizer.json", own_tokenizer):
        after = data.open_lengths(str(path), tokenizer=str(tokenizer)).lengths
        assert (after > before).all()


@pytest.mark.parametrize("name", ["samples.arrow", "report.txt"])
def test_a_damaged_store_of_chats_is_made_anew(tmp_path, capsys, name):
    path = write_lines(tmp_path / "chats.jsonl", CHATS)
    fingerprint = data.open_lengths(str(path)).fingerprint
    (file,) = tmp_path.glob(f".dflash_lab/chats.jsonl-*/*/{name}")
    file.unlink()
    assert data.open_lengths(str(path)).fingerprint == fingerprint
    assert capsys.readouterr().err.count("is damaged and is made anew") == 1


def test_stores_of_earlier_states_of_a_chat_file_are_removed(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", CHATS)
    data.open_lengths(str(path))
    write_lines(path, CHATS[:2])
    data.open_lengths(str(path))
    assert len(list(tmp_path.glob(".dflash_lab/chats.jsonl-*/*/samples.arrow"))) == 1


def test_splits_of_what_has_none_are_refused(tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", CHATS)
    for arguments, what in (
        ({"data_path": str(path)}, r"the chat file .*chats\.jsonl"),
        ({"lengths": "source_run", "num_samples": 10}, "a length profile"),
        ({}, "the built-in corpus"),
    ):
        with pytest.raises(ValueError, match=f"split is 'train', but {what} has no splits; leave split empty"):
            data.open_lengths(**arguments, split="train")


def test_the_cut_of_a_profile_is_checked():
    with pytest.raises(ValueError, match="max_seq_len is 0; legal: a whole number >= 1 or None"):
        data.open_lengths(lengths="source_run", num_samples=10, max_seq_len=0)
    assert len(data.open_lengths(lengths="source_run", num_samples=10, max_seq_len=10**30).lengths) == 10


def test_the_folder_that_one_stands_in_has_a_name(tmp_path, monkeypatch):
    (tmp_path / "mine" / "sub").mkdir(parents=True)
    write_lines(tmp_path / "mine" / "x.jsonl", ROWS)
    monkeypatch.chdir(tmp_path / "mine" / "sub")
    assert data.open_lengths("..").name == "mine"
    monkeypatch.chdir(tmp_path / "mine")
    assert data.open_lengths(".").name == "mine"


def test_a_folder_of_chat_files_is_refused_with_what_to_do(tmp_path):
    write_lines(tmp_path / "a.jsonl", CHATS)
    write_lines(tmp_path / "b.jsonl", CHATS)
    with pytest.raises(ValueError, match=r"holds chat files \(a\.jsonl, b\.jsonl; 2 of 2 files\); legal: .* name one"):
        data.open_lengths(str(tmp_path))


@pytest.mark.parametrize("field", ["source", "id", "system"])
def test_half_a_surrogate_in_a_chat_is_a_bad_row(tmp_path, field):
    path = write_lines(tmp_path / "chats.jsonl", [CHATS[0], {**CHATS[1], field: "a\ud800"}])
    with pytest.raises(ValueError, match=rf"chats\.jsonl, line 2: {field} holds half a surrogate pair; legal: Unicode"):
        data.open_lengths(str(path))
    assert len(data.open_lengths(str(path), on_bad_row="skip").dataset) == 1


def test_a_home_folder_is_expanded_around_chats(tmp_path, monkeypatch):
    write_lines(tmp_path / "chats.jsonl", CHATS)
    tokenizer = data.builtin_tokenizer()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    report = data.tokenize_conversations("~/chats.jsonl", tokenizer, "~/out.arrow")
    assert report.out == tmp_path / "out.arrow" and report.out.is_file() and not (tmp_path / "~").exists()
    assert data.open_lengths("~/chats.jsonl").name == "chats.jsonl" and is_chat_file("~/chats.jsonl")
    samples = data.open_lengths("~/chats.jsonl")
    assert data.save_prepared(samples, "~/prepared") == tmp_path / "prepared" / "data" / "chats.arrow"


def test_a_split_of_a_folder_of_shards_is_named_by_the_path(tmp_path):
    for name, rows in (("train-0", ROWS), ("train-1", ROWS[:1]), ("test-0", ROWS[1:])):
        write_lines(tmp_path / f"{name}.jsonl", rows)
    with pytest.raises(ValueError, match=rf"splits 'test' .*'train' .*in a notebook {tmp_path}/test as data_path"):
        data.open_lengths(str(tmp_path))
    assert len(data.open_lengths(str(tmp_path / "train")).dataset) == 3
    assert len(data.open_lengths(str(tmp_path), split="test").dataset) == 1
    with pytest.raises(FileNotFoundError, match="dev does not exist"):
        data.open_lengths(str(tmp_path / "nowhere" / "dev"))
