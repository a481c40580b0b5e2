"""Small files as people have them: what is read, and what is refused with which words."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dflash_lab.data import PreloadedDataset

CASES = Path(__file__).parents[1] / "cases"
TRUTH = json.loads((CASES / "truth.json").read_text())
READABLE = [name for name, truth in TRUTH.items() if truth.get("ok", True) and truth.get("n") and name[:7] != "metrics"]


@pytest.fixture
def case(tmp_path):
    """A copy of a case file or folder, so that nothing is written beside the original."""

    def copy(name):
        source, target = CASES / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        return target

    return copy


@pytest.mark.parametrize("name", READABLE)
def test_readable_files_have_their_rows(case, name):
    truth = TRUTH[name]
    path = case(name)
    for _ in ("converted or indexed", "from the index"):
        dataset = PreloadedDataset.open(path, min_loss_tokens=0)
        samples = [dataset[i] for i in reversed(range(len(dataset)))][::-1]
        assert len(dataset) == truth["n"]
        assert [len(sample.input_ids) for sample in samples] == dataset.lengths.tolist()
        assert [sample.loss_mask.sum() for sample in samples] == dataset.loss_tokens.tolist()
        assert all(s.input_ids.dtype == np.int64 and s.loss_mask.dtype == bool for s in samples)
        for key, values in {
            "lengths": dataset.lengths.tolist(),
            "loss_tokens": dataset.loss_tokens.tolist(),
            "ids_sum": sum(int(sample.input_ids.sum()) for sample in samples),
            "row_sums": [int(sample.input_ids.sum()) for sample in samples],
            "total": int(dataset.lengths.sum()),
            "distinct": dataset.report.num_distinct,
            "duplicates": dataset.report.num_repeats,
        }.items():
            assert key not in truth or values == truth[key], key
        for key in truth:
            if key.startswith("row") and key[3:].isdigit():
                assert samples[int(key[3:])].input_ids.tolist() == truth[key]
        if "source_counts" in truth:
            assert dict(dataset.sources.value_counts().iter_rows()) == truth["source_counts"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jsonl/bad_line_5.jsonl", r"bad_line_5\.jsonl, line 5: not JSON"),
        ("jsonl/non_object_row.jsonl", r"non_object_row\.jsonl, line 2: the line is a list; legal: one JSON object"),
        ("jsonl/dup_keys.jsonl", r"dup_keys\.jsonl, line 1: the key 'input_ids' stands twice"),
        ("jsonl/mask_len_mismatch.jsonl", r"line 2: input_ids has 6 entries, loss_mask has 5"),
        ("jsonl/missing_mask_row.jsonl", r"line 2: no field loss_mask; found: input_ids"),
        ("jsonl/array_not_lines.jsonl", r"array_not_lines\.jsonl begins with a JSON array"),
        ("jsonl/empty.jsonl", r"empty\.jsonl holds no samples"),
        ("jsonl/only_blank.jsonl", r"only_blank\.jsonl holds no samples"),
        ("parquet/zero_rows.parquet", r"zero_rows\.parquet holds no samples"),
        ("parquet/truncated.parquet", r"truncated\.parquet is cut off or is not a Parquet file"),
        ("parquet/text_named.parquet", r"text_named\.parquet is cut off or is not a Parquet file"),
        ("parquet/nested_1xL.parquet", r"nested_1xL\.parquet: column input_ids is nested"),
        ("parquet/wrong_column_names.parquet", r"has no column input_ids; columns found: tokens"),
        ("arrow/truncated_file.arrow", r"truncated_file\.arrow is cut off or is not an Arrow IPC file"),
        ("arrow/truncated_stream.arrow", r"truncated_stream\.arrow is cut off or is not an Arrow IPC file"),
        ("hf/missing_shard", r"data-00001-of-00002\.arrow is missing"),
        ("hf/dict_two_splits", r"split is None; legal: one of 'train', 'validation'"),
    ],
)
def test_refused_files_are_named(case, name, message):
    path = case(name)
    for _ in ("first", "again"):
        with pytest.raises(ValueError, match=message):
            PreloadedDataset.open(path)


def test_every_case_file_is_tried():
    (refused,) = test_refused_files_are_named.pytestmark
    tried = {*READABLE, *(name for name, _ in refused.args[1])}
    special = {"jsonl/mask_all_zero.jsonl", "hf/dict_two_splits", "metrics/resume_overlap.jsonl"}
    assert set(TRUTH) - tried - special == set()


def test_skipped_bad_lines_are_counted_with_their_row_numbers(case):
    dataset = PreloadedDataset.open(case("jsonl/bad_line_5.jsonl"), on_bad_row="skip")
    assert len(dataset) == 3
    assert {reason: len(rows) for reason, rows in dataset.report.left_out.items()} == {"not_json": 1}
    assert "line 5" in dataset.report.examples["not_json"]
    assert len(PreloadedDataset.open(case("jsonl/non_object_row.jsonl"), on_bad_row="skip")) == 2


def test_skipping_first_does_not_hide_bad_rows_later(case):
    path = case("jsonl/bad_line_5.jsonl")
    PreloadedDataset.open(path, on_bad_row="skip")
    with pytest.raises(ValueError, match=r"bad_line_5\.jsonl, line 5"):
        PreloadedDataset.open(path)


def test_rows_without_loss_tokens_are_reported(case):
    path = case("jsonl/mask_all_zero.jsonl")
    dataset = PreloadedDataset.open(path)
    report = dataset.report
    assert (report.num_rows, report.num_zero_loss_rows, report.zero_loss_share) == (5, 2, 0.4)
    assert (report.num_loss_tokens, report.num_tokens) == (4, 12)
    assert report.loss_token_share == pytest.approx(0.3333, abs=1e-4)
    assert report.left_out == {"too_few_loss_tokens": [0, 2]}
    assert dataset.row_numbers.tolist() == [1, 3, 4]
    bare = [json.loads(line) for i, line in enumerate(path.read_text().splitlines()) if i in (0, 2)]
    with pytest.raises(ValueError, match=r"no samples: all 2 rows are left out \(too_few_loss_tokens: 2\)"):
        PreloadedDataset.from_rows(bare)


def test_a_split_is_chosen_by_name(case):
    path = case("hf/dict_two_splits")
    assert len(PreloadedDataset.open(path, split="train")) == 5
    assert len(PreloadedDataset.open(path, split="validation")) == 2
    with pytest.raises(ValueError, match=r"split is 'test'; legal: one of 'train', 'validation'"):
        PreloadedDataset.open(path, split="test")


def test_ids_and_mask_are_cut_at_the_same_place():
    row = {"input_ids": list(range(12)), "loss_mask": [0] * 5 + [1] * 7}
    dataset = PreloadedDataset.from_rows([row], max_seq_len=8)
    assert dataset[0].input_ids.tolist() == list(range(8))
    assert dataset[0].loss_mask.tolist() == [False] * 5 + [True] * 3
    assert dataset.loss_tokens.tolist() == [3]
    assert dataset.report.num_cut == 1


@pytest.mark.parametrize(("least", "kept"), [(0, [0, 1, 2, 3]), (1, [0, 2]), (2, [0])])
def test_samples_whose_answer_was_cut_away_are_left_out(least, kept):
    pairs = [(3, 4), (10, 4), (7, 2), (8, 1)]
    rows = [{"input_ids": [1] * (p + r), "loss_mask": [0] * p + [1] * r} for p, r in pairs]
    dataset = PreloadedDataset.from_rows(rows, max_seq_len=8, min_loss_tokens=least)
    assert dataset.row_numbers.tolist() == kept
    assert dataset.loss_tokens.tolist() == [[4, 0, 1, 0][row] for row in kept]
    left_out = [row for row in range(4) if row not in kept]
    assert dataset.report.left_out == ({"too_few_loss_tokens": left_out} if left_out else {})


def test_lengths_come_from_the_ids_where_no_column_has_them():
    rows = [{"input_ids": [1] * n, "loss_mask": [1] * n} for n in (9, 2, 9, 2)]
    assert PreloadedDataset.from_rows(rows).lengths.tolist() == [9, 2, 9, 2]
