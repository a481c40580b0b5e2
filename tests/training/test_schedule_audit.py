"""Each fault of a schedule is planted in a log, and named; what is as planned has no finding."""

import hashlib
import json
import math
import shutil

import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_lab.training import RunConfig, ScheduleConfig, audit_schedules
from dflash_lab.training.applied import _largest_ratio

# The source run's plan.
PLAN = ScheduleConfig(total_steps=69_525, warmup_steps=2_781, noise_amplitude=0.1, noise_warmup_steps=4_700)
STEPS = range(1, 12_000, 13)


def planned_rate(done, total=69_525, warmup=2_781):
    """The paper's schedule, written down once more: linear warm-up, then a cosine."""
    if done < warmup:
        return 6e-4 * (done + 1) / warmup
    return 3e-4 * (1 + math.cos(math.pi * (min(done, total - 1) - warmup) / (total - warmup)))


def log(rate=None, noise=None, steps=STEPS):
    """A log as status lines give it: three digits of the rate, four places of the noise."""
    rate = rate or (lambda step: planned_rate(step - 1))
    noise = noise or (lambda step: 0.1 * min(step - 1, 4_700) / 4_700)
    return pl.DataFrame(
        {
            "step": list(steps),
            "learning_rate": [float(f"{rate(step):.2e}") for step in steps],
            "noise": [round(noise(step), 4) for step in steps],
        }
    )


def found(run, where=None, **options):
    findings = audit_schedules(run, **options).findings
    return [each.what for each in findings if each.severity != "not checked" and (where is None or each.where == where)]


def test_a_log_that_follows_its_plan_has_no_finding():
    audit = audit_schedules(log(), expected=PLAN)
    assert [finding.severity for finding in audit.findings] == ["not checked"] * 2
    assert audit.steps["planned_learning_rate"][0] == pytest.approx(6e-4 / 2_781)
    assert audit.steps["planned_noise"][-1] == pytest.approx(0.1)


RATE_FAULTS = {
    "with the micro-batches": (lambda step: planned_rate(4 * (step - 1)), "it moves 4 times a step: with the micro-"),
    "with the micro-batches, the last": (lambda step: planned_rate(4 * step - 1), "it moves 4 times a step: with the"),
    "over micro-batches": (
        lambda step: planned_rate(step - 1, 4 * 69_525, 4 * 2_781),
        "it is planned for 278100 micro-batches and moves with the 69525 steps",
    ),
    "anew": (
        lambda step: planned_rate(step - 1 if step <= 3_003 else step - 3_004),
        "it begins anew at step 3004, as after a resume that forgets it",
    ),
    "no warm-up": (lambda step: planned_rate(step - 1, warmup=0), "it has no warm-up, where 2781 steps are planned"),
    "warm-up in vain": (
        lambda step: planned_rate(max(step - 1, 2_781)),
        "it is 0.0006 throughout the warm-up of 2781 steps, which does nothing",
    ),
    "constant": (lambda step: 6e-4, "it is 0.0006 at every step: a schedule that does nothing"),
    "times 8": (lambda step: 8 * planned_rate(step - 1), "it is 8 times the plan at every step"),
    "linear": (
        lambda step: 6e-4 * min(step / 2_781, 1 - (step - 2_782) / (69_525 - 2_781)),
        'its schedule is "linear", where "cosine" is planned',
    ),
}


@pytest.mark.parametrize(("rate", "words"), RATE_FAULTS.values(), ids=RATE_FAULTS)
def test_a_fault_of_the_learning_rate_is_named(rate, words):
    # Far enough for a straight line and a cosine to part.
    steps = range(1, 60_000, 7) if "linear" in words else STEPS
    (what,) = found(log(rate, steps=steps), "learning_rate", expected=PLAN)
    assert words in what


def test_a_difference_that_no_known_fault_explains_has_its_largest_one():
    table = log(lambda step: planned_rate(step - 1) * (0.5 if step == 4_317 else 1))
    (what,) = found(table, "learning_rate", expected=PLAN)
    assert what == (
        f"1 of {len(table)} steps are not as planned, the first step 4317: 0.0003 and 0.0005992 planned; most at step "
        f"4317: 0.0003 and 0.0005992 planned"
    )


def test_a_first_step_of_0_is_named():
    table = log(lambda step: 6e-4 * (step - 1) / 2_781 if step <= 2_781 else planned_rate(step - 1))
    assert found(table, "learning_rate", expected=PLAN) == ["the first step has a learning rate of 0: it moves nothing"]
    exact = table.with_columns(learning_rate=6e-4 * ((pl.col("step") - 1) / 2_781).clip(0, 1))
    second = found(exact.filter(pl.col("step") <= 2_781), "learning_rate", expected=PLAN, tolerance=1e-6)
    assert second[1].endswith("its warm-up begins at 0, one step late")


def test_a_noise_ramp_that_does_nothing_is_named():
    (what,) = found(log(noise=lambda step: 0.0998), "noise", expected=PLAN)
    assert what.endswith("0.0998 and 0 planned; it is 0.0998 at every step: a ramp that does nothing")
    short = found(log(noise=lambda step: 0.0998, steps=range(5_000, 5_100)), "noise", expected=PLAN)
    assert short == []


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"total_steps": 10, "warmup_steps": 0}, "the warm-up is 0 of 10 steps and does nothing: there is none"),
        (
            {"total_steps": 9, "warmup_steps": 1},
            "is 1 of 9 steps and does nothing: the first step has the peak already",
        ),
        ({"total_steps": 9, "warmup_steps": 9}, "the warm-up takes all 9 steps: the peak is reached at the last one"),
    ],
)
def test_a_warm_up_of_no_use_is_named(plan, words):
    config = ScheduleConfig(**plan)
    table = pl.DataFrame({"step": [1], "learning_rate": [6e-4 / max(1, config.warmup_steps)]})
    assert words in found(table, "optimizer.warmup_steps", expected=config)[0]


def test_a_table_that_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected is None; legal: the ScheduleConfig to compare a table with"):
        audit_schedules(log())
    with pytest.raises(ValueError, match="the table has no column learning_rate; it has step"):
        audit_schedules(pl.DataFrame({"step": [1]}), expected=PLAN)
    with pytest.raises(ValueError, match="column step has 1 in row 1; legal: whole numbers >= 1 that ascend"):
        audit_schedules(pl.DataFrame({"step": [1, 1], "learning_rate": [1.0, 1.0]}), expected=PLAN)
    for options, words in (({"tolerance": 0}, "tolerance is 0; legal"), ({"accumulation": 0}, "accumulation is 0; ")):
        with pytest.raises(ValueError, match=words):
            audit_schedules(log(), expected=PLAN, **options)
    with pytest.raises(ValueError, match="holds no run: there is no config.json"):
        audit_schedules(tmp_path, expected=PLAN)


def test_a_file_of_another_trainer_and_steps_without_a_rate(tmp_path):
    rows = [{"step": step, "learning_rate": planned_rate(step - 1)} for step in range(1, 50)]
    rows[7]["learning_rate"] = None
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    findings = audit_schedules(tmp_path / "log.jsonl", expected=PLAN).findings
    assert [(each.severity, each.where) for each in findings] == [
        ("not checked", "learning_rate"), ("not checked", "noise"), ("not checked", "settings"),
    ]  # fmt: skip
    assert findings[0].what == "1 of 49 steps have no learning rate"


@pytest.fixture
def run_dir(reference, tmp_path):
    return shutil.copytree(reference.run_dir, tmp_path / "run")


def change(run_dir, part, **values):
    """Change settings in every file that holds them, as if the run had been made so."""
    for file in [run_dir / "config.json", run_dir / "manifest.json", *run_dir.glob("checkpoints/*/state.json")]:
        held = json.loads(file.read_text())
        config = held if file.name == "config.json" else held["identity"]["config"]
        config[part].update(values)
        file.write_text(json.dumps(held))


def test_a_good_run_has_its_clip_unchecked_and_nothing_else(run_dir):
    audit = audit_schedules(run_dir)
    # 14 steps and a share of 0.04 are a warm-up of one step.
    assert [(each.severity, each.where) for each in audit.findings] == [
        ("warning", "optimizer.warmup_share"), ("not checked", "optimizer"),
    ]  # fmt: skip
    rows = {row["setting"]: row for row in audit.settings.iter_rows(named=True)}
    assert rows["loss.gamma"]["applied"] == "4" and rows["loss.gamma"]["how"] == "the weights of 14 steps"
    assert rows["optimizer.betas"]["configured"] == "0.9/0.95" and rows["optimizer.max_grad_norm"]["paper"] == "1"
    assert rows["optimizer.learning_rate"]["applied"] == "0.002"
    steps = audit.steps
    assert (steps["learning_rate"] == steps["planned_learning_rate"]).all()
    assert (steps["noise"] == steps["planned_noise"]).all() and steps["noise"].max() > 0


def test_settings_that_were_edited_afterwards(run_dir):
    config = json.loads((run_dir / "config.json").read_text())
    config["optimizer"]["weight_decay"] = 0.1
    (run_dir / "config.json").write_text(json.dumps(config))
    whats = found(run_dir)
    assert "is not what the run was made with: optimizer.weight_decay is 0.1 and was 0.0" in whats
    assert "is of other settings: now optimizer.weight_decay is 0.1 and was 0.0" in whats


def test_noise_that_is_planned_and_never_applied(train, tmp_path):
    train(tmp_path / "run", max_steps=4, **{"noise.is_applied": False, "noise.amplitude": 0.1, "noise.warmup_steps": 8})
    (what,) = found(tmp_path / "run", "noise.is_applied")
    assert what == (
        "noise up to 0.1 in 8 steps is configured and never applied: the model saw 0 at every step. A log of the "
        "schedule would say 0.0375 at step 4"
    )
    # The ramp is longer than the run, too; that the log has 0 is no finding of its own.
    assert found(tmp_path / "run", "noise") == []
    assert found(tmp_path / "run", "noise.warmup_steps") == [
        "the ramp has 8 steps and the run 4: it ends at 0.0375 of 0.1"
    ]


def test_the_source_runs_faults_are_named(run_dir):
    buggy = RunConfig.preset("source_run_buggy").to_dict()
    change(run_dir, "drafter", block_size=16)
    change(run_dir, "optimizer", betas=buggy["optimizer"]["betas"])
    assert "gamma is 4 with block size 16; the paper has 7" in found(run_dir, "loss.gamma")
    assert "betas are 0.9/0.999; the preset paper has 0.9/0.95, and the paper none" in found(run_dir, "optimizer.betas")


def test_gamma_that_was_not_the_configured_one(run_dir):
    change(run_dir, "loss", gamma=7.0)
    whats = found(run_dir, "loss.gamma")
    assert whats == ["gamma is 7 in the settings, and the weights of 14 steps are of 4"]
    change(run_dir, "loss", gamma=None)
    assert "gamma is none in the settings, and the weights of 14 steps are of 4" in found(run_dir, "loss.gamma")


def test_a_ramp_without_an_amplitude(run_dir):
    change(run_dir, "noise", amplitude=0.0, warmup_steps=5)
    assert found(run_dir, "noise.warmup_steps") == [
        "a ramp of 5 steps is configured, and the amplitude is 0: it does nothing"
    ]


def test_a_warm_up_that_exceeds_the_run(run_dir):
    change(run_dir, "optimizer", warmup_steps=15)
    (what,) = found(run_dir, "optimizer.warmup_steps")
    assert what.startswith("warmup_steps is 15 in a run of 14 steps; legal: in [0, 14]")


def test_a_schedule_that_began_anew_at_a_resume(train, tmp_path):
    changes = {"optimizer.warmup_steps": 4, "validation.every_steps": None}
    train(tmp_path / "run", max_steps=12, **changes)
    assert found(tmp_path / "run") == []
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for line in lines[8:]:
        line |= {"session": 1, "learning_rate": lines[line["step"] - 9]["learning_rate"]}
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (what,) = found(tmp_path / "run", "learning_rate")
    assert what.startswith("4 of 12 steps are not as planned, the first step 9: 0.0005 and ")
    assert what.endswith("it begins anew at step 9, as after a resume that forgets it")


def test_betas_that_the_moments_refute(run_dir):
    checkpoint = max((run_dir / "checkpoints").iterdir())
    moments = load_file(checkpoint / "optimizer.safetensors")
    # One step of 0.9/0.999 on any gradient: m = 0.1 g and v = 0.001 g^2, where 0.9/0.95 allow m^2 / v of 0.2.
    gradient = torch.linspace(0.1, 2.0, moments["norm.weight.exp_avg"].numel())
    moments |= {
        "norm.weight.exp_avg": 0.1 * gradient, "norm.weight.exp_avg_sq": 0.001 * gradient**2,
        "norm.weight.step": torch.tensor(1.0),
    }  # fmt: skip
    save_file(moments, checkpoint / "optimizer.safetensors")
    state = json.loads((checkpoint / "state.json").read_text())
    written = (checkpoint / "optimizer.safetensors").read_bytes()
    state["files"]["optimizer.safetensors"] = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    (checkpoint / "state.json").write_text(json.dumps(state))
    (what,) = found(run_dir, "optimizer.betas")
    assert what == (
        "betas are 0.9/0.95 in the settings, and the moments of norm.weight were made with others: a squared mean is "
        "10 times the mean square, and these betas allow 0.2"
    )


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999), (0.0, 0.5), (0.95, 0.9), (0.9, 0.81)])
def test_no_gradients_pass_the_bound_of_their_own_betas(betas):
    generator = torch.Generator().manual_seed(0)
    first, second = betas
    mean = square = torch.zeros(500, dtype=torch.float64)
    for step in range(1, 40):
        # The worst case is a gradient that grows as (b1 / b2)^-j; others stay below.
        worst = torch.full((1,), (second / max(first, 0.1)) ** step, dtype=torch.float64)
        others = torch.randn(499, generator=generator, dtype=torch.float64) * 10 ** (step % 5)
        gradient = torch.cat([worst, others])
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        assert float((mean**2 / square).max()) <= _largest_ratio(first, second, step) * (1 + 1e-9)


def test_settings_of_an_optimizer_that_was_pickled(run_dir):
    checkpoint = max((run_dir / "checkpoints").iterdir())
    groups = [{"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": decay, "params": [0]} for decay in (0.01, 0.0)]
    torch.save({"state": {}, "param_groups": groups}, checkpoint / "other.pt")
    assert "betas is 0.9/0.95 in the settings and 0.9/0.999 in the optimizer" in found(run_dir, "optimizer.betas")
    assert found(run_dir, "optimizer.weight_decay") == ["weight_decay is 0 in the settings and 0.01 in the optimizer"]
    assert found(run_dir, "optimizer.eps") == []
