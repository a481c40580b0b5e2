"""What is kept beside a source: found again, made anew where it is damaged, and never in the way."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dflash_lab.data import PreloadedDataset, write_samples
from dflash_lab.data.folders import aside_prefix, build_folder, key_of

ROWS = [{"input_ids": [i] * (i % 5 + 2), "loss_mask": [0] + [1] * (i % 5 + 1)} for i in range(100)]
ROOT = Path(__file__).parents[2]


def write_lines(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_arrow(path, first=0):
    rows = [{"input_ids": [first + i] * 3, "loss_mask": [0, 1, 1]} for i in range(100)]
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def run(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


DAMAGE = {
    "deleted": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(b"x" * file.stat().st_size),
}


@pytest.mark.parametrize("name", ["meta.json", "rows.arrow", "bad.arrow", "store.arrow"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_index_is_made_anew_once(tmp_path, capsys, name, how):
    path = write_lines(tmp_path / "x.jsonl")
    fingerprint = PreloadedDataset.open(path).fingerprint
    (file,) = tmp_path.glob(f".dflash_lab/*/*/{name}")
    DAMAGE[how](file)
    assert PreloadedDataset.open(path).fingerprint == fingerprint
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and f"{file.parent} is damaged and is made anew" in said[0]
    assert PreloadedDataset.open(path).fingerprint == fingerprint
    assert capsys.readouterr().err == ""


def test_an_index_of_other_tokens_is_made_anew(tmp_path):
    path = write_lines(tmp_path / "x.jsonl")
    PreloadedDataset.open(path)
    (store,) = tmp_path.glob(".dflash_lab/*/*/store.arrow")
    write_samples(store, ROWS[:50])
    assert PreloadedDataset.open(path)[99].input_ids.tolist() == ROWS[99]["input_ids"]


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_damaged_counts_of_a_cut_are_made_anew(tmp_path, content):
    path = write_lines(tmp_path / "x.jsonl")
    right = PreloadedDataset.open(path, max_seq_len=3).loss_tokens.tolist()
    (kept,) = tmp_path.glob(".dflash_lab/*/*/cut-3.npy")
    if content is None:
        np.save(kept, np.zeros(1, np.int32))
    else:
        kept.write_bytes(content)
    assert PreloadedDataset.open(path, max_seq_len=3).loss_tokens.tolist() == right
    assert len(np.load(kept)) > 1


def test_another_users_index_is_left_alone(tmp_path, monkeypatch):
    """Stands in for permissions, which root does not feel."""
    path = write_lines(tmp_path / "x.jsonl")
    PreloadedDataset.open(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    beside = str(tmp_path / ".dflash_lab")
    kinds = {"is_dir": Path.is_dir, "mkdir": Path.mkdir}

    def closed(kind):
        def call(folder, *arguments, **keywords):
            if str(folder).startswith(beside):
                raise PermissionError(errno.EACCES, "Permission denied", str(folder))
            return kinds[kind](folder, *arguments, **keywords)

        return call

    for kind in kinds:
        monkeypatch.setattr(Path, kind, closed(kind))
    for _ in ("built", "from the index"):
        assert len(PreloadedDataset.open(path)) == 100
    assert list((tmp_path / "cache" / "dflash_lab").glob("x.jsonl-*/*/rows.arrow"))


def test_a_folder_of_the_source_that_cannot_be_written_sends_the_index_to_the_cache(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "x.jsonl")
    PreloadedDataset.open(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (of_source,) = (tmp_path / ".dflash_lab").iterdir()
    shutil.rmtree(of_source)
    # A file where the folder should be stands for one that cannot be written, also for root.
    of_source.write_text("")
    assert len(PreloadedDataset.open(path)) == 100
    assert list((tmp_path / "cache" / "dflash_lab").glob("x.jsonl-*/*/rows.arrow"))


def test_what_killed_processes_left_behind_is_removed(tmp_path):
    path = write_lines(tmp_path / "x.jsonl")
    PreloadedDataset.open(path)
    (of_source,) = (tmp_path / ".dflash_lab").iterdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours = aside_prefix("abc")
    old = time.time() - 2 * 86_400
    for name, age, stays in (
        (ours.replace(str(os.getpid()), str(gone.pid)) + "1.partial", None, False),
        (ours + "2.partial", None, True),
        (ours + "3.partial", old, False),
        (f".abc.{key_of('another machine')[:8]}-{gone.pid}.4.partial", None, True),
    ):
        (of_source / name).mkdir()
        (of_source / name / f"{stays}").write_text("")
        for place in (of_source / name / f"{stays}", of_source / name):
            os.utime(place, None if age is None else (age, age))
    write_lines(path, ROWS[:50])
    assert len(PreloadedDataset.open(path)) == 50
    left = [file.name for file in of_source.glob("*.partial/*")]
    assert left == ["True", "True"]


def test_a_killed_save_is_cleared_away_by_the_next(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in ("x.arrow", "other.arrow"):
        (tmp_path / (aside_prefix(name).replace(str(os.getpid()), str(gone.pid)) + "1.partial")).write_text("")
    write_samples(tmp_path / "x.arrow", ROWS)
    assert sorted(file.name[:6] for file in tmp_path.iterdir()) == [".other", "x.arro"]


NO_ROOM = """
import resource, signal, sys
from dflash_lab.data import PreloadedDataset, write_samples
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
rows = ({"input_ids": [i] * 500, "loss_mask": [1] * 500} for i in range(3_000))
"""


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path):
    """A limit on the size of files stands for the full disk."""
    path = write_lines(tmp_path / "x.jsonl", [{"input_ids": [1] * 500, "loss_mask": [1] * 500}] * 3_000)
    failed = run(NO_ROOM + "PreloadedDataset.open(sys.argv[1])", path)
    assert "no room left for generated data" in failed.stderr and "DFLASH_LAB_CACHE" in failed.stderr
    assert str(tmp_path / ".dflash_lab") in failed.stderr
    failed = run(NO_ROOM + "PreloadedDataset.from_rows(rows)")
    assert "or name another folder in TMPDIR" in failed.stderr
    failed = run(NO_ROOM + "write_samples(sys.argv[1], rows)", tmp_path / "s.arrow")
    assert f"cannot be written, File too large: '{tmp_path / 's.arrow'}'" in failed.stderr
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["x.jsonl"]


def test_no_room_is_told_from_other_errors(tmp_path):
    def build(_):
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        build_folder(tmp_path / "x", build)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["replaced", "removed", "cut"])
def test_a_pickle_of_a_source_that_has_changed_is_refused(tmp_path, change):
    path = write_arrow(tmp_path / "x.arrow")
    pickled = pickle.dumps(PreloadedDataset.open(path))
    assert pickle.loads(pickled)[7].input_ids.tolist() == [7] * 3
    path.unlink()
    if change == "replaced":
        write_arrow(path, first=1_000)
    elif change == "cut":
        path.write_bytes(b"")
    message = "is gone: it was removed" if change == "removed" else "has changed since the data set was opened"
    with pytest.raises(ValueError, match=rf"x\.arrow {message}.*open .*the data set again"):
        pickle.loads(pickled)


def test_a_source_that_is_replaced_between_index_and_map_is_noticed(tmp_path, monkeypatch):
    path = write_arrow(tmp_path / "x.arrow")
    PreloadedDataset.open(path)
    import dflash_lab.data.index as index

    load = index.load_index

    def replaced_first(*arguments):
        path.unlink()
        write_arrow(path, first=1_000)
        return load(*arguments)

    monkeypatch.setattr(index, "load_index", replaced_first)
    with pytest.raises(ValueError, match=r"x\.arrow changed while it was read"):
        PreloadedDataset.open(path)


def test_a_pickle_outlives_no_temporary_store():
    dataset = PreloadedDataset.from_rows(ROWS)
    pickled = pickle.dumps(dataset)
    assert pickle.loads(pickled)[3].input_ids.tolist() == ROWS[3]["input_ids"]
    del dataset
    with pytest.raises(ValueError, match="is gone: .*belonged to a data set made by from_rows, from_arrow or from_hf"):
        pickle.loads(pickled)


def test_a_forked_process_leaves_the_temporary_store_alone():
    code = """
import os, sys
from dflash_lab.data import PreloadedDataset
dataset = PreloadedDataset.from_rows([{"input_ids": [1], "loss_mask": [1]}])
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(dataset._index.folder.exists())
"""
    assert run(code).stdout == "True\n"


@pytest.mark.parametrize("batches", [0, 2])
def test_an_arrow_file_without_rows_holds_no_samples(tmp_path, batches):
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.int8())})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), schema) as writer:
        for _ in range(batches):
            writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
    for _ in ("built", "from the index"):
        with pytest.raises(ValueError, match=r"x\.arrow holds no samples: no rows"):
            PreloadedDataset.open(tmp_path / "x.arrow")
