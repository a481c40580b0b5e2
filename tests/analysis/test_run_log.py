"""Logs of runs as tables: each step once, sums divided at the very end."""

import json
from pathlib import Path

import pytest

from dflash_lab import analysis, figures

OVERLAP = Path(__file__).parents[1] / "cases" / "metrics" / "resume_overlap.jsonl"


def write(path, rows, *, tail=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_the_time_left_is_at_the_rate_of_this_session():
    assert analysis.eta_seconds(910, 1_000, done_at_start=900, elapsed_seconds=20.0) == pytest.approx(180.0)
    assert analysis.eta_seconds(900, 1_000, done_at_start=900, elapsed_seconds=0.0) is None
    assert analysis.eta_seconds(1_000, 1_000, done_at_start=1_000, elapsed_seconds=0.0) == 0.0
    # Epoch 0.41 of 6 at 0.65 batches a second: 4.6 days.
    done = 19_000
    seconds = analysis.eta_seconds(done, 278_100, done_at_start=0, elapsed_seconds=done / 0.65)
    assert seconds / 86_400 == pytest.approx(4.6, abs=0.05)


@pytest.mark.parametrize("numbers", [(899, 900, 1_000, 1.0), (1_001, 900, 1_000, 1.0), (950, 900, 1_000, -1.0)])
def test_numbers_that_do_not_fit_are_refused(numbers):
    done, start, total, seconds = numbers
    with pytest.raises(ValueError, match="legal: 0 <= done_at_start <= done <= total, and seconds >= 0"):
        analysis.eta_seconds(done, total, done_at_start=start, elapsed_seconds=seconds)


def test_after_a_resume_each_step_counts_once():
    table = analysis.read_run(OVERLAP)
    assert len(OVERLAP.read_text().splitlines()) == 22
    assert table["step"].to_list() == list(range(1, 21))
    losses = dict(zip(table["step"], table["loss"], strict=True))
    assert (losses[10], losses[11], losses[12]) == (2.5, 2.451, 2.401)


def test_what_was_taken_back_and_not_made_again_is_gone(tmp_path):
    file = write(tmp_path / "log.jsonl", [{"step": step, "loss": 1.0} for step in (1, 2, 3, 4, 5, 3)])
    assert analysis.read_run(file)["step"].to_list() == [1, 2, 3]


def test_a_half_last_line_is_left_out_and_a_broken_one_before_it_is_named(tmp_path):
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}]
    assert len(analysis.read_run(write(tmp_path / "half.jsonl", rows, tail='{"step": 3, "lo'))) == 2
    for number, (line, message) in enumerate(
        [
            ('{"step": 3, "loss": NaN}', "line 3 is no strict JSON: NaN is not JSON"),
            ('{"step": 3, "lo', "line 3 is no strict JSON"),
            ('{"loss": 3}', "line 3 has no step; legal: an object with a whole number step"),
            ("[3]", "line 3 has no step"),
            ('{"step": true}', "line 3 has no step"),
        ]
    ):
        file = write(tmp_path / f"{number}.jsonl", rows, tail=line + "\n" + '{"step": 4, "loss": 1.0}\n')
        with pytest.raises(ValueError, match=f"{number}.jsonl {message}"):
            analysis.read_run(file)


def test_an_empty_log_and_none(tmp_path):
    with pytest.raises(ValueError, match="holds no step yet"):
        analysis.read_run(write(tmp_path / "log.jsonl", []))
    with pytest.raises(FileNotFoundError):
        analysis.read_run(tmp_path / "nothing")


def run_rows():
    return [
        {
            "step": step,
            "loss_sum": 2.0 * step if step != 2 else None,
            "loss_weight": 4.0,
            "correct_by_position": [9, 10],
            "total_by_position": [10, 90],
            "accepted_sum": 8,
            "num_blocks": 10 if step != 3 else 0,
            "tree_accepted_sum": [8.0, 15.0] if step == 1 else [],
            "chain_accepted_sum": 7.0 if step == 1 else 0.0,
            "num_tree_blocks": 10 if step == 1 else 0,
            "q_pre": [3, 5, 4],
            "q_hs": [1, 2],
        }
        for step in (1, 2, 3)
    ]


def test_ratios_are_taken_of_sums(tmp_path):
    table = analysis.read_run(write(tmp_path / "log.jsonl", run_rows()))
    assert table["loss"].to_list() == [0.5, None, 1.5]
    assert table["accuracy"].to_list() == [0.19] * 3
    assert table["streak"].to_list() == [0.8, 0.8, None]
    assert table["tau"].to_list() == [1.8, 1.8, None]
    assert table["tree_tau"].to_list() == [2.5, None, None]
    assert table["tree_gain"].to_list() == [0.8, None, None]


def test_held_out_scores_and_depths_stand_at_their_steps(tmp_path):
    write(tmp_path / "run" / "metrics.jsonl", run_rows())
    scores = [{"step": 2, "loss": 3.0, "accuracy": 0.1, "streak": 0.5, "tau": 1.5}]
    # The score of step 3 was taken back.
    write(tmp_path / "run" / "validation.jsonl", [{"step": 3, "tau": 9.0}, *scores])
    table = analysis.step_table(tmp_path / "run")
    assert table["held_out_tau"].to_list() == [None, 1.5, None]
    assert table["held_out_streak"].to_list() == [None, 0.5, None]
    assert table["step"].to_list() == [1, 2, 3]
    assert table["q_pre_min"].to_list() == [3] * 3 and table["q_pre_max"].to_list() == [5] * 3
    assert table["q_hs"].to_list() == [3] * 3
    assert figures.plot_run(table).axes and figures.plot_queue_history(table).axes


def test_several_runs_in_one_table(tmp_path):
    write(tmp_path / "one" / "metrics.jsonl", run_rows())
    write(tmp_path / "two" / "metrics.jsonl", [{"step": 1, "loss": 3.0, "extra": "x"}])
    table = analysis.read_runs([tmp_path / "one", tmp_path / "two"])
    assert table["run"].to_list() == ["one"] * 3 + ["two"]
    assert table["extra"].to_list() == [None] * 3 + ["x"]
    with pytest.raises(ValueError, match="two runs are named one"):
        analysis.read_runs([tmp_path / "one", tmp_path / "one"])
    with pytest.raises(ValueError, match="paths is empty"):
        analysis.read_runs([])
