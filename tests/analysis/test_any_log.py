"""Steps and losses out of the logs that trainers write; what does not fit is named by file, row and value."""

import json

import pytest

from dflash_lab import analysis

LINE = (
    "[478m] step=4690 loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s (26.2Ktok/s) "
    "| q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
)


def write(path, text):
    path.write_text(text)
    return path


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("step", ["step", "global_step", "iteration", "_step", "Step", "trainer/global_step"])
@pytest.mark.parametrize("loss", ["loss", "train_loss", "train/loss", "Loss/train"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv"])
def test_columns_are_found_by_their_usual_names(tmp_path, kind, step, loss):
    if kind == "jsonl":
        text = lines([{step: 10, loss: 2.5, "lr": 0.1}, {step: 20, loss: 2.25, "lr": 0.2}])
    else:
        mark = "," if kind == "csv" else "\t"
        text = "\n".join(mark.join(row) for row in ((step, loss, "lr"), ("10", "2.5", "0.1"), ("20.0", "2.25", "0.2")))
    table = analysis.read_loss_log(write(tmp_path / f"log.{kind}", text))
    assert table["step"].to_list() == [10, 20] and table["loss"].to_list() == [2.5, 2.25]
    assert table["lr"].to_list() == [0.1, 0.2] and table.columns[:3] == ["step", "loss", "non_finite"]


def test_a_tensorboard_export_and_one_of_weights_and_biases(tmp_path):
    board = write(tmp_path / "run.csv", "Wall time,Step,Value\n1714.5,0,3.25\n1715.5,50,3.0\n")
    assert analysis.read_loss_log(board).select("step", "loss").rows() == [(0, 3.25), (50, 3.0)]
    wandb = write(tmp_path / "wandb.csv", '"Step","run-1 - train/loss","run-1 - train/loss__MIN"\n"5","1.5","1.5"\n')
    assert analysis.read_loss_log(wandb).select("step", "loss").rows() == [(5, 1.5)]


def test_trainer_state_has_losses_and_scores_at_one_step(tmp_path):
    history = [
        {"step": 10, "loss": 2.0, "epoch": 0.1, "grad_norm": 1.5},
        {"step": 10, "eval_loss": 1.9, "epoch": 0.1},
        {"step": 20, "loss": 1.5, "epoch": 0.2, "grad_norm": float("nan")},
        {"step": 20, "train_loss": 1.75, "train_runtime": 12.0},
    ]
    file = write(tmp_path / "trainer_state.json", json.dumps({"global_step": 20, "log_history": history}))
    for path in (file, tmp_path):
        run = analysis.read_any_run(path)
        assert run.kind == "json"
        assert run.table.select("step", "loss").rows() == [(10, 2.0), (20, 1.5)]
        assert run.table["grad_norm"].to_list() == [1.5, None]
        assert "2 of 4 rows have no loss, and are left out" in run.notes


def test_losses_that_are_not_finite_are_null_and_counted(tmp_path):
    losses = ("NaN", "1.5", "-Infinity", "null")
    text = "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in enumerate(losses, start=1))
    run = analysis.read_any_run(write(tmp_path / "log.jsonl", text))
    assert run.table["loss"].to_list() == [None, 1.5, None, None]
    assert run.table["non_finite"].to_list() == [True, False, True, False]
    assert "2 losses are NaN or infinite, and null" in run.notes
    table = analysis.read_loss_log(write(tmp_path / "log.csv", "step,loss\n1,nan\n2,inf\n3,1.0\n"))
    assert table["non_finite"].sum() == 2


def test_the_last_writing_of_a_step_counts(tmp_path):
    text = lines([{"step": step, "loss": loss} for step, loss in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 9.0))])
    run = analysis.read_any_run(write(tmp_path / "log.jsonl", text))
    assert run.table.select("step", "loss").rows() == [(1, 1.0), (2, 9.0)]
    assert "2 of 4 rows count no longer: a step stands there again behind them" in run.notes


def test_a_last_row_that_is_cut_off_is_set_apart(tmp_path):
    for name, text in (
        ("log.jsonl", '{"step": 1, "loss": 1.0}\n{"step": 2, "lo'),
        ("log.csv", "step,loss,lr\n1,1.0,0.1\n2,1."),
    ):
        run = analysis.read_any_run(write(tmp_path / name, text))
        assert run.table.height == 1 and any("is cut off, and set apart" in note for note in run.notes)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.csv", "step,loss\n1,1.0\n2,low\n", r"a.csv row 3 has loss 'low'; legal: a number, or none"),
        ("a.csv", "step,loss\n1,1.0\n2.5,1.0\n", r"a.csv row 3 has step 2.5; legal: a whole number >= 0"),
        ("a.csv", "step,loss\n1,1.0,7\n2,1.0\n", r"a.csv row 2 has 3 values; legal: 2, as the header has"),
        ("a.csv", "time,loss\n1,1.0\n", r"a.csv has no column of steps; it has time, loss; legal: one named step, "),
        ("a.csv", "step,lr\n1,1.0\n", r"a.csv has no column of losses; it has step, lr; legal: one named loss, "),
        ("a.csv", "step,loss,loss\n1,1.0,1.0\n", "names a column twice"),
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "step,loss\n1,\n", "a.csv holds no row with a loss"),
        ("a.jsonl", '{"step": 1, "loss": 1.0}\n{oops}\n{"step": 2}\n', "a.jsonl line 2 is no JSON"),
        ("a.jsonl", '{"step": 1, "loss": [1.0]}\n', r"a.jsonl line 1 has loss \[1.0\]; legal: a number, or none"),
        ("a.jsonl", '{"step": -1, "loss": 1.0}\n', "a.jsonl line 1 has step -1; legal"),
        ("a.jsonl", '{"step": true, "loss": 1.0}\n', "a.jsonl line 1 has step True; legal"),
        ("a.jsonl", "[1]\n", r"a.jsonl line 1 is \[1\]; legal: an object"),
        ("a.json", '{"steps": 3}', "a.json has no column of losses|holds no list of entries"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        analysis.read_loss_log(write(tmp_path / name, text))


def test_any_run_tells_what_it_is(tmp_path):
    ours = tmp_path / "run"
    ours.mkdir()
    rows = [{"step": step, "loss_sum": 2.0 * step, "loss_weight": 2.0} for step in (1, 2, 3, 2)]
    write(ours / "metrics.jsonl", lines(rows))
    for path, kind in ((ours, "run folder"), (ours / "metrics.jsonl", "jsonl")):
        run = analysis.read_any_run(path)
        assert (run.kind, run.table["loss"].to_list(), run.status) == (kind, [1.0, 2.0], None)
        assert run.notes == ("2 of 4 lines count no longer: taken back by a resume, or cut off",)
    console = write(tmp_path / "console.log", f"starting\n{LINE}\n")
    for source in (console, str(console), f"starting\n{LINE}\n"):
        run = analysis.read_any_run(source)
        assert (run.kind, run.table["step"].to_list(), run.notes) == ("status lines", [4690], ("other lines: 1",))
        assert run.status.num_complete == 1
    assert analysis.read_any_run(write(tmp_path / "plain.txt", "step,loss\n1,1.5\n")).kind == "csv"
    assert analysis.read_any_run(write(tmp_path / "plain.log", '{"step": 1, "loss": 1.5}\n')).kind == "jsonl"


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is a folder without metrics.jsonl or trainer_state.json"):
        analysis.read_any_run(tmp_path)
    with pytest.raises(ValueError, match="letter.txt holds no status line"):
        analysis.read_any_run(write(tmp_path / "letter.txt", "Dear all,\nnothing here.\n"))
    with pytest.raises(FileNotFoundError):
        analysis.read_any_run(tmp_path / "none.csv")


def test_a_table_of_any_run_can_be_worked_out(tmp_path):
    run = analysis.read_any_run(write(tmp_path / "console.log", LINE))
    assert analysis.epoch_maths(run.table, total_steps=69_525, epochs=6).accumulations == (4,)
    bare = analysis.read_any_run(write(tmp_path / "log.csv", "step,loss\n5,1.0\n10,1.0\n"))
    maths = analysis.epoch_maths(bare.table, total_steps=100, epochs=2)
    assert maths.figure("epochs trained").value == pytest.approx(0.2)
