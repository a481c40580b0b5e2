"""Steps, batches, epochs, time left: right on the source run's line, silent on runs in order, each fault named."""

import dataclasses
import functools
import json
import math

import numpy as np
import polars as pl
import pytest

from dflash_lab import analysis
from dflash_lab.analysis import epoch_checks as kinds
from dflash_lab.analysis.rounding import Interval, rounded

LINE = (
    "[478m] step=4690 loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt=0.65b/s dft=0.65b/s (26.2Ktok/s) "
    "| q_pre=[43, 50, 28, 31, 25, 38] q_hs=[2] | epoch~0.41 ETA=4.6d"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A simulated run: its log, and what is true of it."""

    text: str
    accumulation: int
    batches: int
    epochs: int
    steps: int
    minutes: float
    rate: float
    num_lines: int

    def given(self, *names):
        known = {
            "total_steps": self.steps,
            "epochs": self.epochs,
            "accumulation": self.accumulation,
            "batches_per_epoch": self.batches,
        }
        return {name: known[name] for name in names}


def duration(seconds):
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


def simulate(seed, fault=""):
    """Step by step: seconds of each, and every line's figures rounded as the source run rounds them."""
    rng = np.random.default_rng((seed, *fault.encode()))
    accumulation, batches = int(rng.integers(2 if fault else 1, 17)), int(10 ** rng.uniform(2.3, 4.7))
    epochs = int(rng.integers(2 if fault else 1, 8))
    if fault == "indivisible":
        accumulation = int(rng.choice([3, 4, 6, 8]))
        batches += 1 - batches % accumulation
    # Windows go on across the end of an epoch, or end with it.
    across, per_epoch = rng.random() < 0.5, math.ceil(batches / accumulation)
    steps = math.ceil(epochs * batches / accumulation) if across else epochs * per_epoch
    rate = 10 ** rng.uniform(-1, 1.2)
    wander = np.repeat(np.cumsum(rng.normal(0, 0.02, steps // 50 + 1)), 50)[:steps]
    each = accumulation / (rate * np.exp(np.clip(wander - wander.mean(), -0.12, 0.12)))
    each *= np.exp(rng.normal(0, rng.choice([0.0, 0.05, 0.2]), steps))
    last = int(steps * rng.uniform(0.3, 0.95))
    resumed = rng.random() < 0.4 or fault == "eta of a session"
    first = int(last * rng.uniform(0.35, 0.8)) if resumed else 0
    many, every = int(rng.choice([1, 12, 40])), max(1, round(rng.choice([60, 60, 600]) * rate / accumulation))
    shown = sorted(range(last, first, -every))[-many:]
    # Seconds of this session at which step first + i was done.
    times = np.concatenate([[0.0], np.cumsum(each[first:])]) + rng.uniform(0, 40)
    targets, depth, drafters = int(rng.integers(1, 7)), int(rng.integers(5, 51)), int(rng.integers(1, 3))
    counts_queued, by_mean, cut_minutes = rng.random(3) < 0.5
    tokens, lines = rng.uniform(500, 45_000), []
    for step in shown:
        seconds = times[step - first]
        back = min(max(int(np.searchsorted(times, seconds - 60, "right")) - 1, 0), step - first - 1)
        drafter = accumulation * (step - first - back) / (seconds - times[back])
        q_pre, q_hs = rng.integers(0, depth + 1, targets).tolist(), rng.integers(0, 5, drafters).tolist()
        trained = (
            step * accumulation
            if across
            else step // per_epoch * batches + min(step % per_epoch * accumulation, batches)
        )
        flying = sum(q_pre) + sum(q_hs) + int(rng.integers(0, targets + 1)) if counts_queued else 0
        left, epoch = steps - step, (trained + flying) / batches
        eta = seconds * left / (step - first) if by_mean else left * accumulation / drafter
        target, dft = max(0.0, drafter + rng.uniform(-0.5, 0.5) * sum(q_hs) / 60), drafter
        match fault:
            case "stuck":
                epoch = 0.0
            case "epoch of steps":
                epoch = step / batches
            case "epoch over steps":
                epoch = step * accumulation / (batches / accumulation)
            case "eta of steps":
                eta = left / drafter
            case "eta at steps a second":
                eta = left * accumulation**2 / drafter
            case "eta in minutes":
                eta = left * accumulation / drafter * 60
            case "eta of a session":
                eta = seconds * left / step
            case "eta of the whole":
                eta = steps * accumulation / drafter
            case "drafter in steps":
                dft = drafter / accumulation
        minutes = int(seconds // 60) if cut_minutes else round(seconds / 60)
        lines.append(
            f"[{minutes}m] step={step} loss=1.0072 acc=0.154 streak=0.8 lr=5.99e-04 noise=0.0998 | tgt={target:.2f}b/s "
            f"dft={dft:.2f}b/s ({tokens * drafter / 1e3:.1f}Ktok/s) | q_pre={q_pre} q_hs={q_hs} | epoch~{epoch:.2f} "
            f"ETA={duration(eta)}"
        )
    return Run(
        text="\n".join(lines) + "\n",
        accumulation=accumulation,
        batches=batches,
        epochs=epochs,
        steps=steps,
        minutes=times[last - first] / 60,
        rate=rate,
        num_lines=len(lines),
    )


def found(run, *names, **more):
    maths = analysis.epoch_maths(run.text, **(run.given(*names) | more))
    return [finding.kind for finding in maths.findings]


ALL = ("total_steps", "epochs", "accumulation", "batches_per_epoch")
KNOWLEDGE = ((), ("total_steps", "epochs"), ("batches_per_epoch", "epochs"), ALL[:3], ALL)


def test_the_source_runs_line():
    maths = analysis.epoch_maths(LINE, total_steps=69_525, epochs=6)
    assert maths.accumulations == (4,)
    for name, value in {
        "micro-batches a step": 4,
        "batches trained": 4_690 * 4,
        "batches queued": 217,
        "batches an epoch": 46_350,
        "steps an epoch": 11_587.5,
        "batches in all": 278_100,
        "batches left": 278_100 - 18_760,
        "epochs trained": 18_760 / 46_350,
        "epochs trained or queued": (18_760 + 217) / 46_350,
    }.items():
        held = maths.figure(name)
        # Nothing of these is rounded.
        assert (held.value, held.low, held.high) == pytest.approx((value,) * 3), name
    assert f"{maths.figure('epochs trained').value:.3f}" == "0.405"
    eta, batch = maths.figure("ETA"), maths.figure("real tokens a batch")
    assert (eta.value, eta.low, eta.high) == pytest.approx(
        tuple(259_340 / rate / 86_400 for rate in (0.65, 0.655, 0.645))
    )
    assert f"{eta.value:.1f}" == "4.6"
    assert (batch.value, batch.low, batch.high) == pytest.approx((26_200 / 0.65, 26_150 / 0.655, 26_250 / 0.645))
    assert maths.findings == ()
    shown = maths.checks.filter(pl.col("pair").str.starts_with("epoch shown")).row(0, named=True)
    assert (shown["agree"], shown["note"]) == (True, "trained and queued")
    assert "0.405 epochs are trained at 46,350 batches an epoch, 4 micro-batches a step" in maths.answer
    assert "What is left takes 4.6 days" in maths.answer and "counts what was still queued" in maths.answer


def test_the_same_by_the_table_the_log_and_the_text():
    log = analysis.read_status_lines(LINE)
    tables = [analysis.epoch_maths(held, total_steps=69_525, epochs=6).table for held in (LINE, log, log.table)]
    assert tables[0].equals(tables[1]) and tables[0].equals(tables[2])


def test_what_is_not_given_follows_from_the_line():
    maths = analysis.epoch_maths(LINE)
    assert maths.accumulations == (4,) and maths.findings == ()
    batches, total = maths.figure("batches an epoch"), maths.figure("steps in all by the ETA")
    assert batches.low < 46_350 < batches.high and batches.high / batches.low < 1.05
    assert total.low < 69_525 < total.high
    with pytest.raises(ValueError, match="there is no figure epochs in all; there are steps done, "):
        maths.figure("epochs in all")


@pytest.mark.parametrize(
    "old, new, kind, words",
    [
        ("epoch~0.41", "epoch~0.00", kinds.STUCK, "the epoch shown is 0, while 0.405 epochs are trained"),
        ("epoch~0.41", "epoch~0.10", kinds.STEPS_AGAINST_BATCHES, "takes steps for batches, a factor of 4"),
        ("epoch~0.41", "epoch~1.62", kinds.STEPS_AGAINST_BATCHES, "divides batches by steps an epoch"),
        ("epoch~0.41", "epoch~0.55", kinds.EPOCH_OFF, "the epoch shown is 0.55"),
        # 64,835 steps / 0.65 = 1.15 days; 278,100 - 4,690 batches / 0.65 = 4.87 days.
        ("ETA=4.6d", "ETA=1.2d", kinds.ETA_UNIT, "it divides steps left by batches a second, 4 times too little"),
        ("ETA=4.6d", "ETA=18.5d", kinds.ETA_UNIT, "it divides batches left by steps a second, 4 times too much"),
        ("ETA=4.6d", "ETA=4.9d", kinds.ETA_UNIT, "it takes steps done from batches in all"),
        ("ETA=4.6d", "ETA=1.9h", kinds.ETA_UNIT, "it is 60 times too small, as with another unit of time"),
        ("dft=0.65b/s", "dft=0.16b/s", kinds.RATES, "the queue between them cannot hold the difference"),
    ],
)
def test_a_wrong_figure_in_the_source_runs_line_is_named(old, new, kind, words):
    maths = analysis.epoch_maths(LINE.replace(old, new), total_steps=69_525, epochs=6, accumulation=4)
    told = {finding.kind: finding.sentence for finding in maths.findings}
    assert words in told[kind]
    assert told[kind] in maths.answer and not maths.checks["agree"].all()


def test_a_resumed_line_whose_eta_takes_all_steps_for_the_sessions():
    # 100 minutes since the resume: 69,525 - 4,690 steps at 4,690 a 100 minutes would be 23.0 hours.
    line = LINE.replace("[478m]", "[100m]").replace("ETA=4.6d", "ETA=23.0h")
    maths = analysis.epoch_maths(line, total_steps=69_525, epochs=6, accumulation=4)
    assert [finding.kind for finding in maths.findings] == [kinds.ETA_SESSION]
    assert "steps, those of earlier sessions included, for done in this session's time" in maths.findings[0].sentence
    right = analysis.epoch_maths(LINE.replace("[478m]", "[100m]"), total_steps=69_525, epochs=6, accumulation=4)
    assert right.findings == ()


@functools.cache
def in_order(seed):
    run = simulate(seed)
    return run, analysis.read_status_lines(run.text)


@pytest.mark.parametrize("knowledge", KNOWLEDGE, ids=lambda names: ",".join(names) or "nothing")
def test_runs_in_order_have_no_finding(knowledge):
    for seed in range(200):
        run, log = in_order(seed)
        assert analysis.epoch_maths(log, **run.given(*knowledge)).findings == (), seed


FAULTS = {
    "stuck": (kinds.STUCK, "the epoch shown is 0"),
    "epoch of steps": (kinds.STEPS_AGAINST_BATCHES, "takes steps for batches"),
    "epoch over steps": (kinds.STEPS_AGAINST_BATCHES, "divides batches by steps an epoch"),
    "eta of steps": (kinds.ETA_UNIT, "divides steps left by batches a second"),
    "eta at steps a second": (kinds.ETA_UNIT, "divides batches left by steps a second"),
    "eta in minutes": (kinds.ETA_UNIT, "60 times too large"),
    "eta of a session": (kinds.ETA_SESSION, "done in this session's time"),
    "eta of the whole": (kinds.ETA_NEVER_FALLS, "the time of the whole run"),
}


@pytest.mark.parametrize("knowledge", [ALL[:3], ALL], ids=["without batches", "all"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_the_one_that_is_named(fault, knowledge):
    named = right = 0
    for seed in range(32):
        run = simulate(seed, fault)
        # Start-up and whole minutes hide an ETA's fault in the first minutes of a session, and nothing after them.
        if run.minutes > 20:
            named += 1
            findings = analysis.epoch_maths(run.text, **run.given(*knowledge)).findings
            kind, words = FAULTS[fault]
            assert len(findings) == 1, seed
            # Where two mistakes come to the same figure, the sentence has both.
            assert findings[0].kind == kind or words in findings[0].sentence, seed
            right += findings[0].kind == kind
    assert named > 15 and right >= 0.9 * named


def test_a_drafters_rate_in_steps_is_named_over_a_session():
    named = 0
    for seed in range(60):
        run = simulate(seed, "drafter in steps")
        if run.num_lines >= 12 and run.minutes > 20:
            named += 1
            assert kinds.RATES in found(run, *ALL), seed
    assert named > 15


def test_totals_that_leave_batches_out_or_count_batches_are_named():
    for seed in range(32):
        run = simulate(seed, "indivisible")
        floors = run.epochs * (run.batches // run.accumulation)
        if floors < run.epochs * run.batches // run.accumulation:
            assert kinds.INDIVISIBLE in found(run, *ALL, total_steps=floors), seed
        assert kinds.STEPS_AGAINST_BATCHES in found(run, *ALL, total_steps=run.epochs * run.batches), seed
    maths = analysis.epoch_maths(LINE, total_steps=69_525, epochs=6, accumulation=3, batches_per_epoch=46_350)
    assert "69,525 total steps against 6 epochs of 46,350 batches at 3 a step, which are 92,700" in maths.answer


def test_accumulation_is_found_or_all_that_fit_are_said():
    sure = 0
    for seed in range(120):
        run, log = in_order(seed)
        if run.num_lines < 12 or run.minutes < 60:
            continue
        fitting = analysis.epoch_maths(log, **run.given("total_steps", "epochs")).accumulations
        assert run.accumulation in fitting, seed
        sure += fitting == (run.accumulation,)
    assert sure > 4
    several = analysis.epoch_maths(LINE.replace("step=4690", "step=1172"))
    assert set(several.accumulations) > {15, 16, 17}
    assert "15, 16, 17" in several.answer and "micro-batches a step fit, all of them" in several.answer


def test_a_counter_that_stops_along_a_log_is_named():
    lines = [LINE.replace("[478m]", f"[{n // 10}m]").replace("4690", str(n)) for n in range(1_000, 9_000, 1_000)]
    maths = analysis.epoch_maths("\n".join(lines), total_steps=69_525, epochs=6, accumulation=4)
    assert kinds.STUCK in [finding.kind for finding in maths.findings]


def test_a_step_past_the_end_is_named():
    maths = analysis.epoch_maths(LINE, total_steps=4_000, epochs=6)
    assert "step 4,690 is past the 4,000 steps of the whole run" in maths.answer


def test_a_batch_over_its_budget_is_named():
    assert analysis.epoch_maths(LINE, token_budget=49_152).findings == ()
    assert analysis.epoch_maths(LINE, token_budget=49_152).figure("budget use").value == pytest.approx(0.82, abs=0.002)
    maths = analysis.epoch_maths(LINE, token_budget=32_768)
    assert [finding.kind for finding in maths.findings] == [kinds.BUDGET]


def run_folder(tmp_path, *, stuck=False):
    """Two epochs of 11 and 10 batches, 4 a step, a batch a second."""
    rows, step, plans = [], 0, (11, 10)
    for epoch, batches in enumerate(plans):
        for begin in range(0, batches, 4):
            ids = list(range(begin, min(begin + 4, batches)))
            step += 1
            done = ids[-1] + 1
            row = {
                "step": step,
                "epoch": epoch,
                "position": done,
                "progress": 0.0 if stuck else epoch + done / batches,
                "batch_ids": ids,
                "real_tokens": [100] * len(ids),
                "elapsed_seconds": float(sum(plans[:epoch]) + done),
                "session": 0,
                "q_pre": [1],
                "q_hs": [0],
                "loss_sum": 1.0,
                "loss_weight": 1.0,
            }
            rows.append(row)
    tmp_path.joinpath("metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return analysis.read_run(tmp_path)


def test_a_run_of_ours_is_worked_out_from_its_metrics(tmp_path):
    maths = analysis.epoch_maths(run_folder(tmp_path), total_steps=6, epochs=2)
    assert maths.accumulations == (4,) and maths.findings == ()
    assert maths.figure("batches trained").value == 21
    assert maths.figure("batches an epoch").value == 10
    assert maths.figure("epochs trained").value == 2.0
    assert maths.figure("batches a second").value == pytest.approx(1.0)
    assert maths.figure("real tokens a batch").value == pytest.approx(100.0)


def test_progress_that_stays_0_in_a_run_of_ours_is_named(tmp_path):
    maths = analysis.epoch_maths(run_folder(tmp_path, stuck=True), total_steps=6, epochs=2)
    assert [finding.kind for finding in maths.findings] == [kinds.STUCK]


def test_what_is_not_legal_is_refused():
    with pytest.raises(ValueError, match="epochs is 0; legal: a whole number >= 1"):
        analysis.epoch_maths(LINE, epochs=0)
    with pytest.raises(ValueError, match="accumulation is 1.5; legal"):
        analysis.epoch_maths(LINE, accumulation=1.5)
    with pytest.raises(ValueError, match="legal: at least one row with a whole number step"):
        analysis.epoch_maths(pl.DataFrame({"loss": [1.0]}))


def test_totals_that_are_no_totals_are_named_and_not_divided_by():
    maths = analysis.epoch_maths(LINE, total_steps=1, epochs=5, accumulation=2)
    assert "step 4,690 is past the 1 steps of the whole run" in maths.answer


def test_intervals_hold_every_result():
    rng = np.random.default_rng(0)
    for _ in range(300):
        one, other = (rounded(float(rng.normal()), float(rng.random())) for _ in range(2))
        above = rounded(float(rng.uniform(1, 3)), float(rng.random()))
        a, b, c = (rng.uniform(held.low, held.high) for held in (one, other, above))
        for held, number in ((one + other, a + b), (one - other, a - b), (one * other, a * b), (one / above, a / c)):
            assert held.low - 1e-12 <= number <= held.high + 1e-12
    assert Interval(value=4.0, low=3.94, high=4.01).whole_numbers() == [4]
    assert rounded(0.65, 0.005).meets(0.655) and not rounded(0.65, 0.005).meets(0.656)
    with pytest.raises(ValueError, match="legal: in ascending order"):
        Interval(value=1.0, low=2.0, high=3.0)
    with pytest.raises(ValueError, match="legal: above zero"):
        rounded(1.0, 0.1) / rounded(0.0, 1.0)
