"""Steps are found in a ledger of any size, of several ranks and with a cut last line."""

import json
import time

import pytest

from dflash_lab.training.ledger import read_ledger, step_ranges


def write(folder, steps, rank=0, **changes):
    folder.mkdir(exist_ok=True)
    lines = [
        {"step": step, "epoch": 0, "rank": rank, "batches": [{"batch_id": step, "sample_ids": [rank]}], **changes}
        for step in steps
    ]
    (folder / "batches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_batches_of_all_ranks_stand_one_after_the_other(tmp_path):
    write(tmp_path, [1, 2])
    for rank in (10, 2):
        write(tmp_path / f"rank-{rank}", [1, 2], rank=rank)
    ledger = read_ledger(tmp_path, {2})
    assert list(ledger.steps) == [2] and list(ledger.numbers) == [1, 2]
    assert [batch["rank"] for batch in ledger.steps[2].batches] == [0, 2, 10]


def test_the_last_writing_of_a_step_counts_and_a_cut_line_does_not(tmp_path):
    write(tmp_path, [1, 2])
    with open(tmp_path / "batches.jsonl", "a") as file:
        file.write(json.dumps({"epoch": 3, "step": 2, "rank": 0, "batches": []}) + "\n\n")
        file.write('{"step": 3, "epoch": 0, "ra')
    ledger = read_ledger(tmp_path, range(1, 9))
    assert list(ledger.numbers) == [1, 2] and ledger.steps[2].epoch == 3 and ledger.steps[2].batches == []


def test_what_is_no_ledger_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="has no batches.jsonl, which says what samples made each step; legal: a run's"
    ):
        read_ledger(tmp_path, {1})
    (tmp_path / "batches.jsonl").write_text('{"step":1,"epoch":0}\n')
    with pytest.raises(ValueError, match=r"batches.jsonl line 1 is no line of a ledger: KeyError\('batches'\)"):
        read_ledger(tmp_path, {1})


def test_one_step_of_many_is_found_without_reading_the_others(tmp_path):
    ids = ",".join(map(str, range(200)))
    line = '{"step":%d,"epoch":0,"rank":0,"batches":[{"sample_ids":[' + ids + "]}]}\n"
    (tmp_path / "batches.jsonl").write_text("".join(line % step for step in range(1, 20_001)))
    begin = time.perf_counter()
    assert len(read_ledger(tmp_path, {19_999}).steps) == 1
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], "no step"),
        ([4], "step 4"),
        ([1, 2, 3], "steps 1 to 3"),
        ([1, 2, 5], "steps 1 to 2 and 5"),
        ([1, 3, 5, 7], "steps 1, 3, 5 and 7"),
        ([1, 3, 5, 7, 9, 11, 13, 15], "steps 1, 3, 5, 7, 9, 11 and 2 more ranges"),
    ],
)
def test_steps_are_named_in_ranges(numbers, words):
    assert step_ranges(numbers) == words
