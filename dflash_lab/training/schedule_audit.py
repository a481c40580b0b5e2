"""Learning rate, noise, gamma, betas, weight decay and clip as they were applied, against what was planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_lab.analysis import read_run
from dflash_lab.analysis.records import record_table
from dflash_lab.training.applied import Applied, applied_gamma, betas_refuted, read_applied
from dflash_lab.training.audit import NOT_CHECKED, Finding
from dflash_lab.training.checkpoint import find_checkpoint, read_state
from dflash_lab.training.checkpoint_files import read_content
from dflash_lab.training.config import RunConfig, first_difference
from dflash_lab.training.files import read_json
from dflash_lab.training.presets import PRESETS
from dflash_lab.training.run_log import CONFIG, MANIFEST, METRICS
from dflash_lab.training.schedule_faults import Curve, curve_findings
from dflash_lab.training.schedules import ScheduleConfig, learning_rate, noise_amplitude

# The paper's gamma by block size.
_PAPER_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}
# Of the peak: our log keeps every digit, status lines have three of a learning rate and four places of noise.
_OWN_TOLERANCE, _OTHER_TOLERANCE = 1e-9, 5e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleAudit:
    """What was applied, beside what was planned.

    Args:
        steps: polars table, one row a logged step: step, learning_rate, planned_learning_rate, noise, planned_noise;
            null where one is not known. `figures.plot_schedule` draws it.
        settings: polars table, one row a setting: setting, configured, applied, how (where "applied" is from), paper
            (its preset's), all text; null where not known.
        findings: What is wrong, and what could not be checked.
    """

    steps: Any
    settings: Any
    findings: tuple[Finding, ...]


def audit_schedules(
    run: Any,
    *,
    expected: ScheduleConfig | None = None,
    accumulation: int | None = None,
    tolerance: float | None = None,
) -> ScheduleAudit:
    """Compare the schedules and optimizer settings that a run applied with those that were planned.

    Args:
        run: A run's folder; or a file or polars table with the columns step (optimizer steps, from 1), learning_rate
            and, where it was logged, noise, of any trainer.
        expected: The plan; None takes that of the run's settings, and a table must have it.
        accumulation: Micro-batches of a step, >= 1, to recognise a schedule that moves with those; None takes the run's
            own, or tries the usual ones.
        tolerance: Largest difference from the plan that is none, as a share of the peak, > 0; None takes 1e-9 for a
            run's folder, and 0.005 for others, whose logs are rounded.

    Returns:
        Tables and findings: a warm-up or a ramp that does nothing, a first step of 0, schedules that move with
        micro-batches, begin anew after a resume, or differ otherwise; gamma that is not the paper's for the block size;
        settings that checkpoints have otherwise.

    Raises:
        ValueError: If the folder holds no run, the table lacks a column, or there is no plan to compare with.
    """
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance!r}; legal: a number > 0")
    if accumulation is not None and (not isinstance(accumulation, int) or accumulation < 1):
        raise ValueError(f"accumulation is {accumulation!r}; legal: a whole number >= 1")
    if isinstance(run, str | Path) and Path(run).is_dir():
        return _audit_folder(Path(run), expected, accumulation, tolerance or _OWN_TOLERANCE)
    applied = read_applied(read_run(run) if isinstance(run, str | Path) else run)
    if expected is None:
        raise ValueError("expected is None; legal: the ScheduleConfig to compare a table with, which has no settings")
    findings = [*_table_notes(applied), *_warmup_findings(expected, "warmup_steps")]
    findings += _curves(applied, expected, expected.noise_amplitude > 0, accumulation, tolerance or _OTHER_TOLERANCE)
    if applied.noise and any(value for value in applied.noise if value):
        what = "whether the model saw the noise of the log: a log of the schedule reads the same"
        findings.append(Finding(severity=NOT_CHECKED, where="noise", what=what))
    what = "gamma, betas, weight decay and clip: a table of steps does not have them"
    findings.append(Finding(severity=NOT_CHECKED, where="settings", what=what))
    return ScheduleAudit(steps=_step_table(applied, expected, True), settings=_no_settings(), findings=tuple(findings))


def _audit_folder(run_dir: Path, expected: ScheduleConfig | None, accumulation: int | None, tolerance: float) -> Any:
    for name in (CONFIG, MANIFEST, METRICS):
        if not (run_dir / name).is_file():
            raise ValueError(f"{run_dir} holds no run: there is no {name}")
    config = RunConfig.from_dict(read_json(run_dir / CONFIG))
    manifest = read_json(run_dir / MANIFEST)
    table = read_run(run_dir)
    applied = read_applied(table)
    findings = list(_identity_findings(run_dir, config, manifest))
    plan = expected
    if plan is None:
        try:
            plan = ScheduleConfig.of(config.optimizer, config.noise, int(manifest["total_steps"]))
        except ValueError as error:
            findings.append(Finding(severity="error", where="optimizer.warmup_steps", what=str(error)))
    if plan is not None:
        asked = "warmup_share" if config.optimizer.warmup_steps is None else "warmup_steps"
        is_asked = expected is not None or asked == "warmup_steps" or config.optimizer.warmup_share > 0
        findings += _warmup_findings(plan, asked) if is_asked else []
        begins = tuple(int(session["from_step"]) for session in manifest["sessions"])
        applied = dataclasses.replace(applied, begins=tuple(sorted({*applied.begins, *begins} - {0})))
        findings += _ramp_findings(config, plan, applied)
        findings += _curves(applied, plan, config.noise.is_applied, accumulation or config.accumulation, tolerance)
    rows = [*_curve_rows(config, applied), *_setting_rows(run_dir, config, table, findings)]
    steps = _step_table(applied, plan, config.noise.is_applied)
    return ScheduleAudit(steps=steps, settings=record_table(rows, _SETTING_COLUMNS), findings=tuple(findings))


_SETTING_COLUMNS = ("setting", "configured", "applied", "how", "paper")


def _no_settings() -> Any:
    return record_table([], _SETTING_COLUMNS)


def _table_notes(applied: Applied) -> Iterator[Finding]:
    if applied.without_rate:
        what = f"{applied.without_rate} of {len(applied.steps)} steps have no learning rate"
        yield Finding(severity=NOT_CHECKED, where="learning_rate", what=what)
    if applied.noise is None:
        yield Finding(severity=NOT_CHECKED, where="noise", what="the log has no noise")


def _curves(
    applied: Applied, plan: ScheduleConfig, is_noisy: bool, accumulation: int | None, tolerance: float
) -> Iterator[Finding]:
    yield from curve_findings(
        Curve(name="learning_rate", peak=plan.learning_rate, warmup=plan.warmup_steps, at=learning_rate),
        applied.steps, applied.learning_rate, plan, applied.begins, accumulation, tolerance,
    )  # fmt: skip
    if applied.noise is not None and is_noisy:
        yield from curve_findings(
            Curve(name="noise", peak=plan.noise_amplitude, warmup=plan.noise_warmup_steps, at=noise_amplitude),
            applied.steps, applied.noise, plan, applied.begins, accumulation, tolerance,
        )  # fmt: skip


def _warmup_findings(plan: ScheduleConfig, asked: str) -> Iterator[Finding]:
    where, warmup, total = f"optimizer.{asked}", plan.warmup_steps, plan.total_steps
    if warmup <= 1:
        why = "the first step has the peak already" if warmup else "there is none"
        what = f"the warm-up is {warmup} of {total} steps and does nothing: {why}"
        yield Finding(severity="warning", where=where, what=what)
    elif warmup == total:
        what = f"the warm-up takes all {total} steps: the peak is reached at the last one alone"
        yield Finding(severity="warning", where=where, what=what)


def _ramp_findings(config: RunConfig, plan: ScheduleConfig, applied: Applied) -> Iterator[Finding]:
    noise, ramp = plan.noise_amplitude, plan.noise_warmup_steps
    if not noise and ramp:
        what = f"a ramp of {ramp} steps is configured, and the amplitude is 0: it does nothing"
        yield Finding(severity="warning", where="noise.warmup_steps", what=what)
    if noise and ramp > plan.total_steps:
        end = noise_amplitude(plan.total_steps - 1, plan)
        what = f"the ramp has {ramp} steps and the run {plan.total_steps}: it ends at {end:.4g} of {noise:.4g}"
        yield Finding(severity="warning", where="noise.warmup_steps", what=what)
    if noise and not config.noise.is_applied and applied.steps:
        last = applied.steps[-1]
        seen = "0 at every step"
        others = [(step, value) for step, value in zip(applied.steps, applied.noise or (), strict=False) if value]
        if others:
            seen = f"0, though the log says {others[0][1]:.4g} at step {others[0][0]}"
        yield Finding(
            severity="error",
            where="noise.is_applied",
            what=(
                f"noise up to {noise:.4g} in {ramp} steps is configured and never applied: the model saw {seen}. A log "
                f"of the schedule would say {noise_amplitude(last - 1, plan):.4g} at step {last}"
            ),
        )


def _identity_findings(run_dir: Path, config: RunConfig, manifest: Mapping[str, Any]) -> Iterator[Finding]:
    difference = first_difference(config.identity, manifest["identity"]["config"])
    if difference is not None:
        yield Finding(severity="error", where=CONFIG, what=f"is not what the run was made with: {difference}")
    found = find_checkpoint(run_dir)
    if found is None:
        yield Finding(severity=NOT_CHECKED, where="optimizer", what="the run has no complete checkpoint")
        return
    _, identity = read_state(found.path)
    difference = first_difference(config.identity, identity["config"])  # type: ignore[arg-type]
    if difference is not None:
        yield Finding(severity="error", where=found.path.name, what=f"is of other settings: now {difference}")


def _curve_rows(config: RunConfig, applied: Applied) -> Iterator[dict[str, str | None]]:
    paper = PRESETS["paper"]
    logged = f"largest of {len(applied.steps)} logged steps"
    peaks = {"learning_rate": _largest(applied.learning_rate), "amplitude": _largest(applied.noise or ())}
    for name in ("learning_rate", "schedule", "warmup_steps", "warmup_share"):
        how = logged if name in peaks else "see the steps"
        mine, theirs = getattr(config.optimizer, name), getattr(paper.optimizer, name)
        yield _row(f"optimizer.{name}", mine, peaks.get(name), how, theirs)
    for name in ("amplitude", "warmup_steps", "is_applied"):
        how = logged if name in peaks else "see the steps"
        yield _row(f"noise.{name}", getattr(config.noise, name), peaks.get(name), how, getattr(paper.noise, name))


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _setting_rows(
    run_dir: Path, config: RunConfig, table: Any, findings: list[Finding]
) -> Iterator[dict[str, str | None]]:
    """Give one row a setting, and add what is wrong with it to the findings."""
    paper = PRESETS["paper"]
    optimizer, papers = config.optimizer, paper.optimizer
    yield _gamma_row(config, table, findings)
    found = find_checkpoint(run_dir)
    content = None if found is None else read_content(found.path)
    groups = () if content is None else content.param_groups
    for name in ("betas", "eps", "weight_decay"):
        mine = getattr(optimizer, name)
        held = [group[name] for group in groups if name in group]
        applied, how = None, "no file of the run says"
        if held:
            applied, how = held[0], "the optimizer's groups in the checkpoint"
            # Norms are never decayed: their group has 0.
            wrong = [
                value for value in held if _plain(value) != _plain(mine) and not (name == "weight_decay" and not value)
            ]
            if wrong:
                what = f"{name} is {_text(mine)} in the settings and {_text(wrong[0])} in the optimizer"
                findings.append(Finding(severity="error", where=f"optimizer.{name}", what=what))
                applied = wrong[0]
        elif name == "betas" and content is not None and content.moments:
            refuted = betas_refuted(content, optimizer.betas)
            how = "its moments are possible with these betas" if refuted is None else "its moments"
            if refuted is not None:
                findings.append(Finding(severity="error", where="optimizer.betas", what=refuted))
                applied = "others"
        yield _row(f"optimizer.{name}", mine, applied, how, getattr(papers, name))
    if optimizer.betas != papers.betas:
        what = f"betas are {_text(optimizer.betas)}; the preset paper has {_text(papers.betas)}, and the paper none"
        findings.append(Finding(severity="warning", where="optimizer.betas", what=what))
    yield _row(
        "optimizer.max_grad_norm", optimizer.max_grad_norm, None, "no log has it: replay a step", papers.max_grad_norm
    )
    what = (
        "the clip, eps and weight decay as applied: no log has them; a replayed step that matches its checkpoint does"
    )
    findings.append(Finding(severity=NOT_CHECKED, where="optimizer", what=what))


def _gamma_row(config: RunConfig, table: Any, findings: list[Finding]) -> dict[str, str | None]:
    gamma, size = config.loss.gamma, config.drafter.block_size
    if config.loss.kind == "dpace":
        return _row("loss.gamma", gamma, "not used", 'loss.kind is "dpace"', PRESETS["paper"].loss.gamma)
    papers = _PAPER_GAMMA.get(size)
    if papers is not None and gamma != papers:
        what = f"gamma is {_text(gamma)} with block size {size}; the paper has {papers:g}"
        findings.append(Finding(severity="warning", where="loss.gamma", what=what))
    found = applied_gamma(table, gamma)
    if found is None:
        return _row("loss.gamma", gamma, None, "no step has weights to tell it by", papers)
    if not found.is_configured:
        what = (
            f"gamma is {_text(gamma)} in the settings, and the weights of {found.num_steps} steps are of {found.words}"
        )
        findings.append(Finding(severity="error", where="loss.gamma", what=what))
    return _row("loss.gamma", gamma, found.words, f"the weights of {found.num_steps} steps", papers)


def _row(setting: str, configured: object, applied: object, how: str, paper: object) -> dict[str, str | None]:
    return {
        "setting": setting,
        "configured": _text(configured),
        "applied": None if applied is None else _text(applied),
        "how": how,
        "paper": _text(paper),
    }


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return "/".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else value


def _step_table(applied: Applied, plan: ScheduleConfig | None, is_noisy: bool) -> Any:
    noises = applied.noise or [None] * len(applied.steps)
    rows = (
        {
            "step": step,
            "learning_rate": rate,
            "planned_learning_rate": None if plan is None else learning_rate(step - 1, plan),
            "noise": noise,
            "planned_noise": None if plan is None else noise_amplitude(step - 1, plan),
        }
        for step, rate, noise in zip(applied.steps, applied.learning_rate, noises, strict=True)
    )
    return record_table(rows, ("step", "learning_rate", "planned_learning_rate", "noise", "planned_noise"))
