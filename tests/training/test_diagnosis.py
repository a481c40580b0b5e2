"""What a log, or a run's folder, can tell, put together: no fault in a healthy run, the cause in one that has one."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_lab import analysis, training
from dflash_lab.batching import BatchingConfig, plan_epoch
from dflash_lab.data import source_run_lengths

LINE = (
    "[478m] step=4690 loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s "
    "(26.2Ktok/s) | q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
)


def verdicts(found):
    return dict(found.attribution.table.select("suspect", "verdict").iter_rows())


@pytest.fixture(scope="module")
def run_dir(tiny_run, target, dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis") / "run"
    # By its share the warm-up would be of one step, which is none, and is found.
    config = tiny_run.make_config(**{"optimizer.warmup_steps": 3})
    training.train_drafter(config, dataset, target, folder, device="cpu", on_status=lambda line: None)
    return folder


def test_a_healthy_run_of_ours_has_no_fault(run_dir):
    found = training.diagnose_run(run_dir)
    assert found.log.kind == "run folder" and found.run_dir == run_dir and found.notes == ()
    assert found.maths.findings == () and len(found.resets.table) == 0
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert found.maths.figure("steps in all").value == manifest["total_steps"]
    assert found.maths.figure("steps done").value == found.log.table["step"].max() == manifest["total_steps"]
    assert [each for each in found.schedule.findings if each.severity != "not checked"] == []
    assert found.num_checkpoints >= 1 and len(found.checkpoints) == 0
    assert "nothing differs from what was planned" in found.answer()
    assert found.answer().startswith(f"**run** ({Path(manifest['data']['name']).name}). At step ")


def test_saves_are_those_of_the_run(run_dir):
    lines = [json.loads(line)["step"] for line in (run_dir / "saves.jsonl").read_text().splitlines()]
    config = json.loads((run_dir / "config.json").read_text())
    every, total = config["checkpoints"]["every_steps"], training.diagnose_run(run_dir).log.table["step"].max()
    assert lines == sorted(set(lines))
    # Others are of new best scores.
    assert set(range(every, total + 1, every)) | {total} <= set(lines)


def test_a_save_is_told_from_the_cause_of_the_resets():
    found = training.diagnose_run("example")
    assert verdicts(found)["bucket_runs"] == "guilty" and verdicts(found)["checkpoint"] == "cleared"
    assert "bucket_runs" in found.answer() and found.run_dir is None and found.schedule is None
    assert found.spike_step in found.resets.table["peak_step"]
    looked = training.look_into_step(found, found.spike_step)
    assert looked.view is None and looked.notes == ("a log alone does not say which samples made a step",)


def test_the_source_runs_line():
    found = training.diagnose_run(LINE, total_steps=69_525, epochs=6)
    assert found.name == "pasted lines" and found.label == "pasted-lines"
    figures = found.maths.figure
    assert figures("micro-batches a step").value == 4 and figures("batches an epoch").value == 46_350
    assert round(figures("epochs trained").value, 3) == 0.405 and round(figures("ETA").value, 1) == 4.6
    assert found.maths.findings == () and verdicts(found)["bucket"] == "not tested"


def test_plans_say_which_buckets_the_steps_of_a_pasted_log_had(tmp_path):
    config = BatchingConfig(
        strategy="bucketed",
        order="random",
        bucket_bounds=(0, 770, 1216, 1728, 2432, 3296, 8192),
        token_budget=49_152,
        max_seq_len=8_192,
    )
    plan = plan_epoch(source_run_lengths(120_000), config, epoch=0)
    plan.save(tmp_path / "plan.parquet")
    # Steps whose four batches are all of the last bucket make the loss jump, and it comes back over 20 steps.
    steps = len(plan) // 4
    long = (plan.bucket_ids[: 4 * steps].reshape(-1, 4) == 5).all(axis=1)
    rng = np.random.default_rng(0)
    losses, extra = 1.0 + 0.02 * rng.standard_normal(steps), 0.0
    for step in range(steps):
        extra = 6.0 if long[step] and extra < 0.1 and step > 150 else extra * 0.8
        losses[step] += extra
    lines = "\n".join(
        f"[{step // 10}m] step={step + 1} loss={losses[step]:.4f} acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | "
        f"tgt=0.65b/s dft=0.65b/s (26.2Ktok/s) | q_pre=[43, 50] q_hs=[2] | epoch~0.10 ETA=4.6d"
        for step in range(steps)
    )
    blind = training.diagnose_run(lines)
    assert len(blind.resets.table) > 20 and verdicts(blind)["bucket"] == "not tested"
    found = training.diagnose_run(lines, plans=[tmp_path / "plan.parquet"], accumulation=4)
    named = {name for name, verdict in verdicts(found).items() if verdict in ("guilty", "inseparable")}
    assert named & {"bucket", "bucket_runs"}, verdicts(found)
    table = analysis.loss_and_bucket(found.log.table)
    assert (table["bucket"].to_numpy()[long] == 5).all()
    with pytest.raises(ValueError, match="accumulation is not given, and the log leaves"):
        training.diagnose_run(lines.replace("[", "(").split("\n")[0] + "\n", plans=[tmp_path / "plan.parquet"])
