"""Which files of a path are read, and which paths are refused with which words."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_lab import data
from dflash_lab.data import PreloadedDataset
from dflash_lab.data.paths import user_path

ROW = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}


def write_lines(path, num_rows, row=ROW):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(num_rows)))
    return path


def write_parquet(path, num_rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([ROW] * num_rows), path)
    return path


def test_shards_behind_a_linked_folder_are_read(tmp_path):
    write_lines(tmp_path / "shards" / "a.jsonl", 3)
    write_lines(tmp_path / "elsewhere" / "z.jsonl", 4)
    (tmp_path / "shards" / "more").symlink_to(tmp_path / "elsewhere")
    assert len(PreloadedDataset.open(tmp_path / "shards")) == 7


def test_a_link_to_a_folder_above_is_no_endless_loop(tmp_path):
    write_lines(tmp_path / "shards" / "a.jsonl", 3)
    (tmp_path / "shards" / "loop").symlink_to(tmp_path / "shards")
    dataset = PreloadedDataset.open(tmp_path / "shards")
    assert len(dataset) == 3 and dataset.report.ignored_files == ("loop",)
    assert "not read: loop (1 in the folder)" in str(dataset.report)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("/nonexistent/b.jsonl"), r"b\.jsonl is a link to /nonexistent/b\.jsonl, which"),
        (os.mkfifo, r"b\.jsonl is not a regular file"),
    ],
)
def test_a_shard_that_is_no_file_is_an_error(tmp_path, make, message):
    write_lines(tmp_path / "a.jsonl", 3)
    make(tmp_path / "b.jsonl")
    with pytest.raises(ValueError, match=message):
        PreloadedDataset.open(tmp_path, on_bad_row="skip")


def test_what_may_not_be_read_is_named(tmp_path, monkeypatch):
    """Stands in for permissions, which root does not feel."""
    write_lines(tmp_path / "a.jsonl", 3)
    write_lines(tmp_path / "sub" / "b.jsonl", 3)
    scandir = os.scandir

    def refused(folder):
        if str(folder).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused)
        with pytest.raises(ValueError, match=r"sub cannot be read: Permission denied"):
            PreloadedDataset.open(tmp_path)
    opened = type(tmp_path).open

    def closed(path, *arguments, **keywords):
        if path.name == "b.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **keywords)

    monkeypatch.setattr(type(tmp_path), "open", closed)
    with pytest.raises(ValueError, match=r"b\.jsonl cannot be read: Permission denied"):
        PreloadedDataset.open(tmp_path)


def save_dict(folder):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([ROW] * 5)
    datasets.DatasetDict(train=rows, validation=rows.select([0, 1])).save_to_disk(folder)
    return folder


def test_saved_data_sets_in_a_folder_are_not_mixed(tmp_path):
    saved = save_dict(tmp_path / "my" / "deep" / "both")
    with pytest.raises(ValueError, match=rf"my holds saved data sets; open one of them: {saved} \(a DatasetDict, with"):
        PreloadedDataset.open(tmp_path / "my", on_bad_row="skip")
    with pytest.raises(ValueError, match=rf"split is None; legal: one of 'train', 'validation'; {saved}/train can be"):
        PreloadedDataset.open(saved)
    assert len(PreloadedDataset.open(saved / "train")) == 5
    (saved / "dataset_dict.json").unlink()
    with pytest.raises(ValueError, match=rf"open one of them: {saved}/train, {saved}/validation"):
        PreloadedDataset.open(tmp_path / "my", on_bad_row="skip")


@pytest.mark.parametrize("entry", [{"x": 1}, {"filename": "../a.arrow"}, {"filename": 3}, "data.arrow"])
def test_an_odd_state_of_a_saved_data_set_is_named(tmp_path, entry):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [entry]}))
    with pytest.raises(ValueError, match=r"state\.json lists .* in _data_files; legal: \{\"filename\": \"NAME.arrow\""):
        PreloadedDataset.open(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train/0.parquet", "test/0.parquet"),
        ("Train.parquet", "test_a.parquet"),
    ],
)
def test_splits_told_by_names_are_not_mixed(tmp_path, names):
    for number, name in enumerate(names):
        write_parquet(tmp_path / name, number + 1)
    write_parquet(tmp_path / "trainers.parquet", 4)
    with pytest.raises(ValueError, match=r"files of the splits .*'train' \(1 files\).* split is None; legal: one of"):
        PreloadedDataset.open(tmp_path)
    with pytest.raises(ValueError, match=r"split is 'valid'; legal: one of their names"):
        PreloadedDataset.open(tmp_path, split="valid")
    train = PreloadedDataset.open(tmp_path, split="train")
    assert len(train) == 1 and set(train.report.ignored_files) == {names[1], "trainers.parquet"}
    assert len(PreloadedDataset.open(tmp_path, split="test")) == 2


def test_one_split_told_by_names_is_opened(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", 1)
    write_parquet(tmp_path / "train-1.parquet", 2)
    assert len(PreloadedDataset.open(tmp_path)) == len(PreloadedDataset.open(tmp_path, split="train")) == 3
    (tmp_path / "plain").mkdir()
    shutil.copy(tmp_path / "train-0.parquet", tmp_path / "plain" / "x.parquet")
    with pytest.raises(ValueError, match="split is 'train', but .* no name in it begins with a split"):
        PreloadedDataset.open(tmp_path / "plain", split="train")


def test_json_files_about_the_data_are_not_data(tmp_path):
    write_lines(tmp_path / "a.jsonl", 3)
    write_lines(tmp_path / "b.json", 2)
    (tmp_path / "meta.json").write_text('{\n "a": 1\n}')
    (tmp_path / "stats.json").write_text('{"rows": 5}')
    (tmp_path / "dataset_info.json").write_text(json.dumps(ROW))
    dataset = PreloadedDataset.open(tmp_path)
    assert len(dataset) == 5
    assert dataset.report.ignored_files == ("dataset_info.json", "meta.json", "stats.json")
    renamed = {"tokens": [1], "mask": [1]}
    write_lines(tmp_path / "other" / "c.json", 2, renamed)
    columns = {"input_ids": "tokens", "loss_mask": "mask"}
    assert len(PreloadedDataset.open(tmp_path / "other", columns=columns)) == 2
    with pytest.raises(ValueError, match=r"\.json files are read where their first line is an object with input_ids"):
        PreloadedDataset.open(tmp_path / "other")
    with pytest.raises(ValueError, match=r"c\.json, line 1: no field input_ids; found: tokens, mask"):
        PreloadedDataset.open(tmp_path / "other" / "c.json")


@pytest.mark.parametrize("path", ["", None, 3, b"/tmp"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match=r"path is .*; legal: the path of a file or folder"):
        PreloadedDataset.open(path)


def test_the_home_of_nobody_is_refused():
    with pytest.raises(ValueError, match=r"path is '~no_such_user/x.jsonl', and ~no_such_user is no user's home"):
        PreloadedDataset.open("~no_such_user/x.jsonl")


def test_paths_are_made_absolute(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/a") == user_path("a") == user_path("a/b/..") == user_path("link/..") == tmp_path / "a"


def test_a_long_name_is_opened_and_saved(tmp_path):
    path = write_lines(tmp_path / ("x" * 249 + ".jsonl"), 3)
    for _ in ("built", "from the index"):
        assert len(PreloadedDataset.open(path)) == 3
    PreloadedDataset.open(path).save(tmp_path / ("y" * 249 + ".arrow"))
    assert len(PreloadedDataset.open(tmp_path / ("y" * 249 + ".arrow"))) == 3


def test_a_name_that_is_not_utf_8_is_named(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.jsonl")
    with open(path, "w") as file:
        file.write(json.dumps(ROW))
    for place in (path, tmp_path):
        with pytest.raises(ValueError, match=r"a\\xff\.jsonl has a name that is not UTF-8; legal: UTF-8; rename it"):
            PreloadedDataset.open(place)
    with pytest.raises(ValueError, match="has a name that is not UTF-8"):
        data.write_samples(path.replace(".jsonl", ".arrow"), [ROW])
    os.rename(path, path.replace(".jsonl", ".md"))
    write_lines(tmp_path / "b.jsonl", 1)
    assert PreloadedDataset.open(tmp_path).report.ignored_files == ("a\\xff.md",)


def test_a_home_folder_is_expanded_where_stores_are_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    dataset = PreloadedDataset.from_rows([ROW])
    dataset.save("~/a.arrow")
    assert data.write_samples("~/b.parquet", [ROW]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arrow", "b.parquet"]
