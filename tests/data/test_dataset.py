"""Every way into a data set, and what it promises afterwards."""

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_lab.batching import BatchingConfig
from dflash_lab.data import PreloadedDataset, write_samples
from dflash_lab.data.folders import cache_folder

ROWS = [
    {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], "source": "chat", "id": "a"},
    {"input_ids": [8], "loss_mask": [1], "source": "code"},
    {"input_ids": [9, 10, 11, 12, 13], "loss_mask": [0, 0, 1, 0, 1], "source": None},
]


def write_lines(path, rows, end="\n"):
    path.write_text("\n".join(json.dumps(row) for row in rows) + end)
    return path


def contents(dataset):
    return [(sample.input_ids.tolist(), sample.loss_mask.tolist()) for sample in dataset]


EXPECTED = [([5, 6, 7], [False, True, True]), ([8], [True]), ([9, 10, 11, 12, 13], [False, False, True, False, True])]

ID_LISTS = {
    "list": pa.list_(pa.int16()),
    "large_list": pa.large_list(pa.uint64()),
    "list_view": pa.list_view(pa.int32()),
    "large_list_view": pa.large_list_view(pa.uint8()),
}
MASK_LISTS = {
    "list": pa.list_(pa.bool_()),
    "large_list": pa.large_list(pa.float32()),
    "list_view": pa.list_view(pa.float64()),
    "large_list_view": pa.large_list_view(pa.int8()),
}


def as_table(rows=ROWS, kind="list"):
    return pa.table(
        {
            "input_ids": pa.array([row["input_ids"] for row in rows], ID_LISTS[kind]),
            "loss_mask": pa.array([row["loss_mask"] for row in rows], pa.list_(pa.int64())).cast(pa.list_(pa.int8()))
            if kind.endswith("view")
            else pa.array([row["loss_mask"] for row in rows], pa.list_(pa.int64())).cast(MASK_LISTS[kind]),
            "source": pa.array([row.get("source") for row in rows]).dictionary_encode(),
            "other": pa.array([{"x": 1}] * len(rows)),
        }
    )


def write_as(form, folder):
    table = as_table()
    if form == "jsonl":
        return write_lines(folder / "x.jsonl", ROWS)
    if form == "jsonl.gz":
        path = folder / "x.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
        return path
    if form == "jsonl.zst":
        path = folder / "x.jsonl.zst"
        path.write_bytes(pa.Codec("zstd").compress("\n".join(map(json.dumps, ROWS)).encode(), asbytes=True))
        return path
    if form == "parquet":
        pq.write_table(table, folder / "x.parquet", row_group_size=1)
        return folder / "x.parquet"
    if form in ("file", "stream", "lz4"):
        options = pa.ipc.IpcWriteOptions(compression="lz4" if form == "lz4" else None)
        new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
        with new(str(folder / "x.arrow"), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2)
        return folder / "x.arrow"
    if form == "store":
        write_samples(folder / "x.arrow", ROWS)
        return folder / "x.arrow"
    assert form == "mixed folder"
    shards = folder / "shards"
    (shards / "sub").mkdir(parents=True)
    write_lines(shards / "a.jsonl", ROWS[:1])
    pq.write_table(as_table(ROWS[1:2], "large_list"), shards / "b.parquet")
    write_samples(shards / "sub" / "c.arrow", ROWS[2:])
    for name in ("_SUCCESS", ".hidden.jsonl", "README.md", "d.jsonl"):
        (shards / name).write_text("")
    return shards


FORMS = ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "file", "stream", "lz4", "store", "mixed folder"]


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_data_set(tmp_path, form):
    path = write_as(form, tmp_path)
    reference = PreloadedDataset.from_rows(ROWS)
    for _ in ("built", "from the index"):
        dataset = PreloadedDataset.open(path)
        assert contents(dataset) == contents(reference) == EXPECTED
        assert dataset.lengths.tolist() == [3, 1, 5]
        assert dataset.loss_tokens.tolist() == [2, 1, 2]
        assert dataset.sources.to_list() == ["chat", "code", None]
        assert dataset.fingerprint == reference.fingerprint
        assert contents(pickle.loads(pickle.dumps(dataset))) == EXPECTED
    if form == "mixed folder":
        assert dataset.report.ignored_files == ("README.md",)


@pytest.mark.parametrize("kind", ID_LISTS)
def test_every_list_kind_reads_alike_however_chunked(kind, tmp_path):
    table = as_table(kind=kind)
    chunked = pa.concat_tables([table[:1], table[1:1], table[1:]])
    assert contents(PreloadedDataset.from_arrow(chunked)) == EXPECTED
    assert contents(PreloadedDataset.from_arrow(chunked[1:])) == EXPECTED[1:]
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(chunked)
    assert contents(PreloadedDataset.open(tmp_path / "x.arrow")) == EXPECTED


def test_a_selection_of_a_hugging_face_data_set_is_respected(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"input_ids": [n * 10 + i for i in range(n)], "loss_mask": [1] * n} for n in (1, 2, 3, 4)]
    whole = datasets.Dataset.from_list(rows)
    assert PreloadedDataset.from_hf(whole.select([3, 1])).lengths.tolist() == [4, 2]
    assert PreloadedDataset.from_hf(whole.select([3, 1]))[0].input_ids.tolist() == [40, 41, 42, 43]
    whole.select([3, 1]).save_to_disk(tmp_path / "saved")
    assert PreloadedDataset.open(tmp_path / "saved").lengths.tolist() == [4, 2]
    both = datasets.DatasetDict(train=whole, test=whole.select([0]))
    assert len(PreloadedDataset.from_hf(both, split="test")) == 1
    with pytest.raises(ValueError, match="has the splits 'train', 'test'; name one"):
        PreloadedDataset.from_hf(both)
    with pytest.raises(ValueError, match="split is 'train', but the given data set is one split"):
        PreloadedDataset.from_hf(whole, split="train")


@pytest.mark.parametrize(
    "columns", [{"input_ids": "tokens", "loss_mask": "mask"}, {"tokens": "input_ids", "mask": "loss_mask"}]
)
def test_other_column_names(tmp_path, columns):
    rows = [{"tokens": [1, 2], "mask": [0, 1], "length": 2}]
    assert len(PreloadedDataset.open(write_lines(tmp_path / "x.jsonl", rows), columns=columns)) == 1
    with pytest.raises(ValueError, match=r"columns has 'ids': 'tokens'; legal: a mapping of input_ids"):
        PreloadedDataset.from_rows(rows, columns={"ids": "tokens"})


BAD_ROWS = [
    ({"input_ids": [1, -7], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[1\] is -7"),
    ({"input_ids": [1, 2**31], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[1\] is 2147483648"),
    ({"input_ids": [1, 2**70], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[1\] is 1180591620717411303424"),
    ({"input_ids": [1, 2.5], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[1\] is 2\.5"),
    ({"input_ids": [1, None], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[1\] is None"),
    ({"input_ids": [1, True], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[1\] is True"),
    ({"input_ids": ["1", 2], "loss_mask": [1, 1]}, "bad_id", r"input_ids\[0\] is '1'"),
    ({"input_ids": "12", "loss_mask": [1, 1]}, "not_a_list", r"input_ids is '12'; legal: a list"),
    ({"input_ids": 12, "loss_mask": [1, 1]}, "not_a_list", r"input_ids is 12; legal: a list"),
    ({"input_ids": None, "loss_mask": [1, 1]}, "missing_field", r"input_ids is null"),
    ({"input_ids": [[1, 2]], "loss_mask": [[1, 1]]}, "nested", r"input_ids is nested, a list of 1 lists"),
    ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "bad_mask", r"loss_mask\[1\] is 2"),
    ({"input_ids": [1, 2], "loss_mask": [1, 0.5]}, "bad_mask", r"loss_mask\[1\] is 0\.5"),
    ({"input_ids": [1, 2], "loss_mask": [1, None]}, "bad_mask", r"loss_mask\[1\] is None"),
    ({"input_ids": [1, 2], "loss_mask": [1, -1]}, "bad_mask", r"loss_mask\[1\] is -1"),
    ({"input_ids": [1, 2], "loss_mask": ["1", "0"]}, "bad_mask", r"loss_mask\[0\] is '1'"),
    ({"input_ids": [1, 2], "loss_mask": [1]}, "length_mismatch", r"input_ids has 2 entries, loss_mask has 1"),
    ({"input_ids": [1, 2], "loss_mask": []}, "length_mismatch", r"input_ids has 2 entries, loss_mask has 0"),
    ({"input_ids": [1, 2]}, "missing_field", r"no field loss_mask; found: input_ids"),
    ({"input_ids": [1, 2], "loss_mask": [1, 1], "length": 3}, "declared_length", r"length is 3 but input_ids has 2"),
    ({"input_ids": [1, 2], "loss_mask": [1, 1], "seq_len": 1}, "declared_length", r"seq_len is 1 but input_ids has 2"),
    ({"input_ids": [1, 2], "loss_mask": [1, 1], "source": {}}, "bad_text", r"source is {}; legal: text"),
]


@pytest.mark.parametrize(("row", "reason", "message"), BAD_ROWS)
def test_bad_rows_are_named_and_counted(tmp_path, row, reason, message):
    path = write_lines(tmp_path / "x.jsonl", [ROWS[0], row, ROWS[1]])
    with pytest.raises(ValueError, match=rf"x\.jsonl, line 2: {message}.*on_bad_row"):
        PreloadedDataset.open(path)
    assert not list(tmp_path.glob(".dflash_lab/*/*")), "nothing is left of a failed open"
    with pytest.raises(ValueError, match=f"the given rows, row 1: {message}"):
        PreloadedDataset.from_rows([ROWS[0], row, ROWS[1]])
    dataset = PreloadedDataset.open(path, on_bad_row="skip")
    assert dataset.report.left_out == {reason: [1]}
    assert dataset.row_numbers.tolist() == [0, 2]
    assert contents(dataset) == EXPECTED[:2]
    assert "line 2" in dataset.report.examples[reason]


ARROW_BAD = [
    ("input_ids", pa.array([[1], [2, -1]], pa.list_(pa.int64())), "bad_id", r"input_ids\[1\] is -1"),
    ("input_ids", pa.array([[1], [2, 2**32]], pa.list_(pa.uint64())), "bad_id", r"input_ids\[1\] is 4294967296"),
    ("input_ids", pa.array([[1], [None, 2]], pa.list_(pa.int64())), "bad_id", r"input_ids\[0\] is None"),
    ("input_ids", pa.array([[1], None], pa.list_(pa.int64())), "missing_field", r"input_ids is null"),
    ("loss_mask", pa.array([[1], [1, 2]], pa.list_(pa.int64())), "bad_mask", r"loss_mask\[1\] is 2"),
    ("loss_mask", pa.array([[1], [1, float("nan")]], pa.list_(pa.float64())), "bad_mask", r"loss_mask\[1\] is nan"),
    ("loss_mask", pa.array([[True], [None, True]], pa.list_(pa.bool_())), "bad_mask", r"loss_mask\[0\] is None"),
    (
        "loss_mask",
        pa.array([[1], [1]], pa.list_(pa.int64())),
        "length_mismatch",
        r"input_ids has 2 entries, loss_mask has 1",
    ),
    ("length", pa.array([1, 7]), "declared_length", r"length is 7 but input_ids has 2 entries"),
]


@pytest.mark.parametrize(("column", "values", "reason", "message"), ARROW_BAD)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_bad_arrow_rows_are_named_and_counted(tmp_path, form, column, values, reason, message):
    columns = {"input_ids": pa.array([[1], [2, 3]]), "loss_mask": pa.array([[1], [1, 0]]), column: values}
    table = pa.table(columns)
    path = tmp_path / f"x.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(ValueError, match=rf"x\.{form}, row 1: {message}"):
        PreloadedDataset.open(path)
    dataset = PreloadedDataset.open(path, on_bad_row="skip")
    assert contents(dataset) == [([1], [True])]
    assert dataset.report.left_out == {reason: [1]}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("input_ids", pa.array([[1.0]]), r"column input_ids has type list<.*double>; legal: one flat list"),
        ("input_ids", pa.array(["12"]), r"column input_ids has type string"),
        ("loss_mask", pa.array([["1"]]), r"column loss_mask has type list<.*string>"),
        ("loss_mask", pa.array([[[1]]]), r"column loss_mask is nested"),
        ("source", pa.array([1.5]), r"column source has type double; legal: text or whole numbers"),
    ],
)
def test_columns_of_wrong_types_are_refused(tmp_path, column, values, message):
    table = pa.table({"input_ids": pa.array([[1]]), "loss_mask": pa.array([[1]]), column: values})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"x\.parquet.*{message}"):
        PreloadedDataset.open(tmp_path / "x.parquet", on_bad_row="skip")


def test_ids_past_the_vocabulary(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [ROWS[0], {}, ROWS[2]][::2])
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2: input_ids\[4\] is 13; legal: below vocab_size 13"):
        PreloadedDataset.open(path, vocab_size=13)
    dataset = PreloadedDataset.open(path, vocab_size=13, on_bad_row="skip")
    assert dataset.report.left_out == {"id_past_vocab_size": [1]}
    assert len(PreloadedDataset.open(path, vocab_size=14)) == 2


def test_empty_samples_are_left_out_and_counted():
    rows = [{"input_ids": [], "loss_mask": []}, *ROWS]
    dataset = PreloadedDataset.from_rows(rows)
    assert dataset.report.left_out == {"empty": [0]}
    assert contents(dataset) == EXPECTED
    with pytest.raises(ValueError, match="holds no samples: all 1 rows are left out"):
        PreloadedDataset.from_rows(rows[:1])
    with pytest.raises(ValueError, match="the given rows holds no samples: no rows"):
        PreloadedDataset.from_rows([])


def test_a_last_line_that_was_cut_off_is_bad(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", ROWS, end="")
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ValueError, match=r"x\.jsonl, line 3: the last line is cut off"):
        PreloadedDataset.open(path)
    assert PreloadedDataset.open(path, on_bad_row="skip").report.left_out == {"cut_off": [2]}


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_cut_compressed_lines_are_an_error_and_never_a_short_read(tmp_path, suffix):
    text = "".join(json.dumps(ROWS[i % 3]) + "\n" for i in range(20_000)).encode()
    whole = gzip.compress(text) if suffix == "gz" else pa.Codec("zstd").compress(text, asbytes=True)
    path = tmp_path / f"x.jsonl.{suffix}"
    for cut in (len(whole) // 2, len(whole) - 3, 10):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=rf"x\.jsonl\.{suffix} is cut off or is not JSON lines compressed"):
            PreloadedDataset.open(path, on_bad_row="skip")
    path.write_bytes(whole)
    assert len(PreloadedDataset.open(path)) == 20_000


@pytest.mark.parametrize(
    ("start", "what"),
    [(b"PAR1", "a Parquet file"), (b"\x1f\x8b", "compressed by gzip; name it .gz"), (b"[\n{}", "JSON array")],
)
def test_foreign_files_under_the_name_jsonl(tmp_path, start, what):
    (tmp_path / "x.jsonl").write_bytes(start + b" and more")
    with pytest.raises(ValueError, match=rf"x\.jsonl .*{what}"):
        PreloadedDataset.open(tmp_path / "x.jsonl", on_bad_row="skip")


def test_a_stream_cut_between_two_messages_is_an_error(tmp_path):
    table = as_table()
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    whole = (tmp_path / "x.arrow").read_bytes()
    for cut, message in ((8, "has no end mark"), (40, "is cut off")):
        (tmp_path / "x.arrow").write_bytes(whole[:-cut])
        with pytest.raises(ValueError, match=rf"x\.arrow.*{message}"):
            PreloadedDataset.open(tmp_path / "x.arrow")
    (tmp_path / "x.arrow").write_bytes(whole + whole)
    with pytest.raises(ValueError, match=r"x\.arrow goes on for \d+ bytes behind the end"):
        PreloadedDataset.open(tmp_path / "x.arrow")


def test_paths_that_hold_nothing_to_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; legal: a file"):
        PreloadedDataset.open(tmp_path / "nowhere")
    (tmp_path / "x.txt").write_text("{}")
    with pytest.raises(ValueError, match=r"x\.txt has no known file name ending; legal: \.jsonl"):
        PreloadedDataset.open(tmp_path / "x.txt")
    with pytest.raises(ValueError, match=r"holds no samples: no file in it ends in"):
        PreloadedDataset.open(tmp_path)
    path = write_lines(tmp_path / "x.jsonl", ROWS)
    with pytest.raises(ValueError, match="split is 'train', but .* is not a saved DatasetDict"):
        PreloadedDataset.open(path, split="train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_len": 0}, "max_seq_len is 0; legal: a whole number >= 1 or None"),
        ({"vocab_size": 2.5}, "vocab_size is 2.5; legal"),
        ({"min_loss_tokens": -1}, "min_loss_tokens is -1; legal: a whole number >= 0"),
        ({"on_bad_row": "ignore"}, "on_bad_row is 'ignore'; legal: error, skip"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PreloadedDataset.from_rows(ROWS, **options)


@pytest.mark.parametrize("form", ["jsonl", "parquet", "file"])
def test_a_changed_source_is_noticed(tmp_path, form):
    path = write_as(form, tmp_path)
    before = PreloadedDataset.open(path)
    status = path.stat()
    for changed in ([ROWS[0]], [{**ROWS[0], "input_ids": [5, 6, 8]}]):
        if form == "jsonl":
            write_lines(path, changed)
        elif form == "parquet":
            pq.write_table(as_table(changed), path)
        else:
            path.unlink()
            with pa.ipc.new_file(str(path), as_table().schema) as writer:
                writer.write_table(as_table(changed))
        # An editor or a copy may put the old time back.
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        after = PreloadedDataset.open(path)
        assert [sample.input_ids.tolist() for sample in after] == [row["input_ids"] for row in changed]
        assert after.fingerprint != before.fingerprint
    states = [state for source in (tmp_path / ".dflash_lab").iterdir() for state in source.iterdir()]
    assert len(states) == 1, "what was made from earlier states is removed"


def test_the_index_goes_where_it_can_be_written(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "x.jsonl", ROWS)
    monkeypatch.setenv("DFLASH_LAB_CACHE", str(tmp_path / "cache"))
    PreloadedDataset.open(path)
    assert not (tmp_path / ".dflash_lab").exists()
    assert list((tmp_path / "cache").glob("x.jsonl-*/*/rows.arrow"))
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DFLASH_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    # A file where the folder should be stands for a place that cannot be written, also for root.
    (tmp_path / ".dflash_lab").write_text("")
    assert contents(PreloadedDataset.open(path)) == EXPECTED
    assert list((tmp_path / "xdg" / "dflash_lab").glob("x.jsonl-*/*/rows.arrow"))


def test_opening_at_the_same_time_in_two_processes(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", ROWS * 2_000)
    code = "import sys; from dflash_lab.data import PreloadedDataset as P; print(P.open(sys.argv[1]).fingerprint)"
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, cwd=root)
        for _ in range(2)
    ]
    results = {process.communicate(timeout=60)[0] for process in processes}
    assert results == {PreloadedDataset.open(path).fingerprint + "\n"}
    assert not list(tmp_path.rglob("*.partial"))


def test_later_opens_and_single_reads_leave_the_rest_alone(tmp_path, monkeypatch):
    rows = [{"input_ids": [i] * (i % 7 + 1), "loss_mask": [1] * (i % 7 + 1)} for i in range(5_000)]
    path = write_lines(tmp_path / "x.jsonl", rows)
    PreloadedDataset.open(path, max_seq_len=4)

    def never(*_, **__):
        raise AssertionError("a later open read the source again")

    monkeypatch.setattr("dflash_lab.data.index.read_blocks", never)
    monkeypatch.setattr("dflash_lab.data.mapped.MappedTokens.row", never)
    dataset = PreloadedDataset.open(path, max_seq_len=4)
    assert dataset.lengths.tolist() == [min(i % 7 + 1, 4) for i in range(5_000)]
    assert dataset.loss_tokens.tolist() == dataset.lengths.tolist()
    monkeypatch.undo()
    assert dataset[4_321].input_ids.tolist() == [4_321] * 3


def test_samples_are_copies_and_views_are_read_only(tmp_path):
    dataset = PreloadedDataset.open(write_as("store", tmp_path))
    sample = dataset[0]
    sample.input_ids[:] = 0
    sample.loss_mask[:] = False
    assert contents(dataset) == EXPECTED
    ids, mask = dataset.token_views(2)
    assert not ids.flags.writeable and not mask.flags.writeable
    assert dataset[-1].sample_id == 2
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            dataset[wrong]
    with pytest.raises(ValueError, match="read-only"):
        dataset.lengths[0] = 1


def test_the_fingerprint_names_the_content_and_the_cut():
    one = PreloadedDataset.from_rows(ROWS)
    assert one.fingerprint == PreloadedDataset.from_arrow(as_table(kind="large_list")).fingerprint
    others = [
        PreloadedDataset.from_rows(ROWS, max_seq_len=4),
        PreloadedDataset.from_rows(ROWS[::-1]),
        PreloadedDataset.from_rows([*ROWS[:2], {**ROWS[2], "loss_mask": [0, 0, 1, 1, 0]}]),
        PreloadedDataset.from_rows([*ROWS[:2], {**ROWS[2], "input_ids": [9, 10, 11, 12, 14]}]),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_build_batches_refuses_a_cut_that_leaves_a_sample_bare():
    rows = [{"input_ids": [1] * 9, "loss_mask": [0] * 8 + [1]}, {"input_ids": [1] * 4, "loss_mask": [1] * 4}]
    dataset = PreloadedDataset.from_rows(rows)
    config = BatchingConfig(strategy="sorted", token_budget=18, max_seq_len=9)
    assert sorted(sum(dataset.build_batches(config, epoch=0), [])) == [0, 1]
    config = BatchingConfig(strategy="sorted", token_budget=18, max_seq_len=8)
    with pytest.raises(ValueError, match="sample 0 has no loss token left after the cut to the config's max_seq_len 8"):
        dataset.build_batches(config, epoch=0)
    cut = PreloadedDataset.from_rows(rows, max_seq_len=8)
    assert [batch for batch in cut.build_batches(config, epoch=0)] == [[0]]


def test_write_samples_refuses_a_bad_row_and_leaves_nothing(tmp_path):
    rows = [ROWS[0], {"input_ids": [1], "loss_mask": [3]}]
    with pytest.raises(ValueError, match=r"x\.arrow, row 1: loss_mask\[0\] is 3; legal: 0 or 1"):
        write_samples(tmp_path / "x.arrow", rows)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"x\.csv ends in '\.csv'; legal: \.arrow, \.parquet"):
        write_samples(tmp_path / "x.csv", ROWS)
    assert write_samples(tmp_path / "x.parquet", iter(ROWS)) == 3
    assert contents(PreloadedDataset.open(tmp_path / "x.parquet")) == EXPECTED


def test_memory_stays_flat_while_a_source_is_read(tmp_path):
    """A source of 80 MB of tokens is indexed in far less memory of its own."""
    code = """
import sys, numpy as np, pyarrow as pa
from dflash_lab.data import PreloadedDataset
def own_memory():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon"))
schema = pa.schema({"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.int32())})
rows, length = 1_000, 1_000
with pa.ipc.new_stream(sys.argv[1], schema) as writer:
    for _ in range(10):
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * length)
        ones = pa.array(np.ones(rows * length, np.int32))
        writer.write_batch(pa.record_batch([pa.ListArray.from_arrays(offsets, ones)] * 2, schema=schema))
del offsets, ones
PreloadedDataset.from_rows([{"input_ids": [1], "loss_mask": [1]}])
pa.default_memory_pool().release_unused()
before = own_memory()
dataset = PreloadedDataset.open(sys.argv[1])
dataset[9_999]
pa.default_memory_pool().release_unused()
print(own_memory() - before)
"""
    root = Path(__file__).parents[2]
    run = [sys.executable, "-c", code, str(tmp_path / "x.arrow")]
    grown = float(subprocess.run(run, capture_output=True, text=True, check=True, cwd=root).stdout)
    assert grown < 40, f"{grown:.0f} MB more for a source of 80 MB"
