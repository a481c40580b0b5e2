"""Single rows and lines: what is a bad row, and with which words."""

import gzip
import json
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_lab.data import PreloadedDataset
from dflash_lab.data.lines import iter_json_lines

ROW = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}


def objects(*items):
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", objects(1.5, 2, 3), r"input_ids\[0\] is 1\.5; legal: whole numbers"),
        ("input_ids", objects(True, 2, 3), r"input_ids\[0\] is True"),
        ("input_ids", objects(1, None, 3), r"input_ids\[1\] is None"),
        ("input_ids", objects("5", 2, 3), r"input_ids\[0\] is '5'"),
        ("input_ids", objects([1], [2], [3]), "input_ids is nested, a list of 3 lists"),
        ("input_ids", deque([True, 2, 3]), r"input_ids\[0\] is True"),
        ("input_ids", [1, 2**63, -3], r"input_ids\[1\] is 9223372036854775808"),
        ("input_ids", [10**399, 2, 3], r"input_ids\[0\] is 1000\d{53}\.\.\.; legal"),
        ("input_ids", [10**5000, 2, 3], r"input_ids\[0\] is a int that is too long to print"),
        ("input_ids", np.ma.masked_array([1, 2, 3], [False, True, False]), "an array with masked values"),
        ("input_ids", np.array(5), r"input_ids is array\(5\); legal: a list"),
        ("input_ids", {1, 2, 3}, r"input_ids is \{1, 2, 3\}; legal: a list"),
        ("input_ids", np.array(["2020-01-01"], dtype="M8[D]"), r"input_ids has dtype datetime64\[D\]"),
        ("loss_mask", objects(True, None, 1), r"loss_mask\[1\] is None; legal: 0 or 1"),
        ("loss_mask", [0, 1, 1 + 0j], r"loss_mask\[2\] is \(1\+0j\); legal: 0 or 1"),
        ("loss_mask", np.array([0, 1, 1 + 2j]), "loss_mask has dtype complex128; legal: 0 or 1"),
        ("loss_mask", np.array(["0", "1", "1"]), r"loss_mask has dtype <U1; legal: 0 or 1"),
        ("length", np.array([3, 3]), r"length is array\(\[3, 3\]\) but input_ids has 3 entries"),
        ("length", float("nan"), "length is nan but input_ids has 3 entries"),
        ("source", "a\ud800", r"source is 'a\\ud800', with half a surrogate pair; legal: Unicode"),
        ("id", "\udfff", r"id is '\\udfff', with half a surrogate pair; legal: Unicode"),
    ],
)
def test_values_that_numpy_would_take_in_silence_are_refused(field, value, message):
    with pytest.raises(ValueError, match=f"the given rows, row 1: .*{message}"):
        PreloadedDataset.from_rows([ROW, {**ROW, field: value}])
    dataset = PreloadedDataset.from_rows([ROW, {**ROW, field: value}], on_bad_row="skip")
    assert len(dataset) == 1 and sum(map(len, dataset.report.left_out.values())) == 1


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        (objects(1, 2, 3), objects(False, 1.0, np.int8(1))),
        ((1, np.uint8(2), np.int64(3)), (np.bool_(False), np.float32(1), 1)),
        (range(1, 4), deque([0, 1, 1])),
        (np.array([1, 2, 3], np.uint16), np.array([0, 1, 1], np.float16)),
        (pa.array([1, 2, 3]), pa.array([False, True, True])),
    ],
)
def test_every_kind_of_list_is_read(ids, mask):
    sample = PreloadedDataset.from_rows([{"input_ids": ids, "loss_mask": mask}])[0]
    assert sample.input_ids.tolist() == [1, 2, 3] and sample.loss_mask.tolist() == [False, True, True]


def test_a_tensor_that_numpy_cannot_read_is_named():
    torch = pytest.importorskip("torch")
    assert len(PreloadedDataset.from_rows([{key: torch.tensor(value) for key, value in ROW.items()}])) == 1
    rows = [{**ROW, "loss_mask": torch.tensor([0, 1, 1], dtype=torch.bfloat16)}]
    with pytest.raises(ValueError, match=r"loss_mask is a Tensor that numpy cannot read \(.*BFloat16\); legal: a list"):
        PreloadedDataset.from_rows(rows)


@pytest.mark.parametrize("rows", [None, 5, "abc", ROW])
def test_what_is_no_list_of_rows_is_refused(rows):
    with pytest.raises(ValueError, match="rows is a .*; legal: mappings, such as a list of dicts"):
        PreloadedDataset.from_rows(rows)


@pytest.mark.parametrize("field", ["source", "id", "\ud800"])
def test_half_a_surrogate_in_a_file_is_a_bad_row(tmp_path, field):
    path = tmp_path / "x.jsonl"
    bad = {**ROW, field: "a\ud800"} if field != "\ud800" else {field: 1}
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(bad)}\n")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2: "):
        PreloadedDataset.open(path)
    dataset = PreloadedDataset.open(path, on_bad_row="skip")
    assert dataset.row_numbers.tolist() == [0] and r"\ud800" in str(dataset.report)


def test_every_beginning_of_a_row_is_cut_off(tmp_path):
    text = '{"a": "x\\u00e9\\n é", "b": [true, false, null, -2.5e-3, 1.5], "c": {}}'.encode()
    path = tmp_path / "x.jsonl"
    for end in range(1, len(text)):
        path.write_bytes(b'{"a": 1}\n' + text[:end])
        *_, last = iter_json_lines(path)
        assert last.reason == "cut_off", text[:end]
    path.write_bytes(text)
    assert [line.reason for line in iter_json_lines(path)] == [None]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": NaN}', "not JSON: NaN is not JSON"),
        (b'{"a": 1}{"a": 1}', "not JSON: Extra data at column 9"),
        (b'{"a": 1}\r{"a": 1}', "not JSON: Extra data at column 10; lines end in a line feed"),
        (b'{"a": "\xe9"}', "not JSON: byte 8 of the line is 0xe9, invalid continuation byte; legal: UTF-8"),
        (b'{"a": 1,}', "not JSON: Expecting property name enclosed in double quotes at column 9"),
        (b'{"a": %s}' % (b"1" * 5_000), "not JSON: a number has too many digits"),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_broken_line_is_not_called_cut_off(tmp_path, line, message, end):
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n' + line + end)
    last = list(iter_json_lines(tmp_path / "x.jsonl"))[-1]
    assert (last.line_number, last.reason, last.problem) == (2, "not_json", message)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(tmp_path, encoding):
    (tmp_path / "x.jsonl").write_text(json.dumps(ROW), encoding=encoding)
    with pytest.raises(ValueError, match=r"x\.jsonl is not JSON lines but text in UTF-(16|32).*; legal: UTF-8"):
        PreloadedDataset.open(tmp_path / "x.jsonl", on_bad_row="skip")


def test_the_ending_is_read_in_any_case(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(json.dumps(ROW).encode()))
    assert len(PreloadedDataset.open(tmp_path / "A.JSONL.GZ")) == 1


def test_lines_are_put_together_from_any_pieces(tmp_path):
    text = "".join(f'{{"a": "{"x" * (i % 40)}"}}\n' for i in range(200))
    (tmp_path / "x.jsonl").write_text(text)
    for chunk_bytes in (1, 7, 64, 1 << 20):
        lines = list(iter_json_lines(tmp_path / "x.jsonl", chunk_bytes=chunk_bytes))
        assert [len(line.value["a"]) for line in lines] == [i % 40 for i in range(200)]


@pytest.mark.parametrize("field", ["length", "source"])
def test_a_column_given_by_name_must_be_there(tmp_path, field):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROW))
    message = f"no row of .* has the field nope, which columns gives for {field}; legal: a name in the data, or None"
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "x.parquet")
    for place in (path, tmp_path / "x.parquet"):
        for _ in ("first", "again"):
            with pytest.raises(ValueError, match=message):
                PreloadedDataset.open(place, columns={field: "nope"})
    with pytest.raises(ValueError, match=message):
        PreloadedDataset.from_rows([ROW], columns={field: "nope"})
    with pytest.raises(ValueError, match=message):
        PreloadedDataset.from_arrow(pa.Table.from_pylist([ROW]), columns={field: "nope"})
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "nope": 3}))
    assert len(PreloadedDataset.open(path, columns={field: "nope"})) == 2
    assert len(PreloadedDataset.open(path, columns={field: None})) == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["ids"], r"columns is \['ids'\]; legal: a mapping of input_ids"),
        ({"a": "input_ids", "b": "input_ids"}, "names one of ours twice"),
        ({"source": ""}, "columns has 'source': ''; legal"),
        ({"input_ids": None}, "columns has 'input_ids': None; legal"),
    ],
)
def test_columns_that_are_no_mapping_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        PreloadedDataset.from_rows([ROW], columns=columns)


@pytest.mark.parametrize("name", ["input_ids", "loss_mask", "length", "source", "id"])
@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_two_columns_of_one_name_are_refused(tmp_path, form, name):
    values = {"input_ids": [[1, 2]], "loss_mask": [[0, 1]], "length": [2], "source": ["a"], "id": ["b"]}
    names = [*values, name]
    table = pa.Table.from_arrays([pa.array(values[column]) for column in names], names=names)
    path = tmp_path / ("x.parquet" if form == "parquet" else "x.arrow")
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(ValueError, match=rf"x\.\w+ has more than one column {name}; columns found: input_ids"):
        PreloadedDataset.open(path)
    with pytest.raises(ValueError, match=f"the given table has more than one column {name}"):
        PreloadedDataset.from_arrow(table)


@pytest.mark.parametrize("form", ["file", "stream", "parquet", "lz4"])
def test_flipped_bits_are_an_error_that_names_the_file_or_change_no_more_than_values(tmp_path, form):
    rows = [{"input_ids": list(range(n)), "loss_mask": [1] * n, "source": "é" * n} for n in range(1, 9)] * 10
    table = pa.Table.from_pylist(rows)
    path = tmp_path / ("x.parquet" if form == "parquet" else "x.arrow")
    if form == "parquet":
        pq.write_table(table, path)
    else:
        options = pa.ipc.IpcWriteOptions(compression="lz4" if form == "lz4" else None)
        with (pa.ipc.new_stream if form == "stream" else pa.ipc.new_file)(
            str(path), table.schema, options=options
        ) as writer:
            writer.write_table(table, max_chunksize=40)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 150).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(bytes(flipped))
        try:
            PreloadedDataset.open(path)
        except ValueError as error:
            assert path.name in str(error)


def test_offsets_that_go_back_are_damage(tmp_path):
    ids = pa.ListArray.from_arrays(pa.array([0, 2, 1], pa.int32()), pa.array([1, 2, 3], pa.int32()))
    table = pa.table({"input_ids": ids, "loss_mask": ids})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    for open_it in (lambda: PreloadedDataset.open(tmp_path / "x.arrow"), lambda: PreloadedDataset.from_arrow(table)):
        with pytest.raises(ValueError, match=r"(x\.arrow|the given table) is cut off or is not .*: "):
            open_it()


@pytest.mark.parametrize("cut", [2**31, 10**30, np.int64(2**40)])
def test_a_cut_past_every_length_cuts_nothing(cut):
    dataset = PreloadedDataset.from_rows([ROW], max_seq_len=cut)
    assert dataset.lengths.tolist() == [3] and dataset[0].input_ids.tolist() == [1, 2, 3]


def test_the_first_id_past_the_vocabulary_is_named():
    rows = [ROW, {"tokens": [1, 9, 30], "loss_mask": [1, 1, 1]}][1:]
    with pytest.raises(ValueError, match=r"the given rows, row 0: tokens\[1\] is 9; legal: below vocab_size 9"):
        PreloadedDataset.from_rows(rows, columns={"input_ids": "tokens"}, vocab_size=9)


@pytest.mark.parametrize("wrong", [slice(0, 2), [0], "0", 1.0, None])
def test_samples_are_asked_for_one_at_a_time(wrong):
    with pytest.raises(TypeError, match="sample_id is .*; legal: a single whole number, no slice or list"):
        PreloadedDataset.from_rows([ROW])[wrong]


def test_a_transform_of_hugging_face_rows_is_refused():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([ROW])
    other = rows.with_transform(lambda batch: {key: [[7]] * len(batch["input_ids"]) for key in ROW})
    with pytest.raises(ValueError, match=r"has a transform .* legal: .* call map .* or with_format\(None\)"):
        PreloadedDataset.from_hf(other)
    assert len(PreloadedDataset.from_hf(other.with_format(None))) == 1
