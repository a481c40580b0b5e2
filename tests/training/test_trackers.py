"""Trackers get what the log has; without their package a run says what to install, before its first step."""

import importlib.util
import json
import sys
import types

import pytest

from dflash_lab import analysis, training


class Curves:
    """What a tracker was told: name -> {step: value}."""

    def __init__(self):
        self.held, self.is_closed, self.opened_with = {}, False, None

    def add(self, name, value, step):
        self.held.setdefault(name, {})[step] = value


def compare(curves, run_dir):
    table = analysis.read_run(run_dir)
    for name, column in (("loss", "loss"), ("accuracy", "accuracy"), ("learning_rate", "learning_rate")):
        assert curves.held[f"train/{name}"] == dict(zip(table["step"], table[column], strict=True))
    assert set(curves.held["train/tree_tau/5"]) == {1, 7, 14}
    scores = [json.loads(line) for line in (run_dir / "validation.jsonl").read_text().splitlines()]
    assert curves.held["held_out/tau"] == {line["step"]: line["tau"] for line in scores}
    assert curves.is_closed


@pytest.fixture
def tensorboard(monkeypatch):
    curves = Curves()

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            curves.opened_with, curves.purged_from = folder, purge_step

        def add_text(self, name, text):
            assert name == "config" and "token_budget" in text

        def add_scalar(self, name, value, step):
            assert type(value) is float
            curves.add(name, value, step)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            curves.is_closed = True

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return curves


@pytest.fixture
def wandb(monkeypatch):
    curves = Curves()

    class Run:
        def log(self, named, *, step):
            for name, value in named.items():
                curves.add(name, value, step)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            curves.is_closed = True

    def init(**options):
        curves.opened_with = options
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return curves


def test_tensorboard(train, tensorboard, tmp_path):
    train(tmp_path / "run", **{"log.tracker": "tensorboard"})
    assert tensorboard.opened_with == str(tmp_path / "run" / "tensorboard")
    assert tensorboard.purged_from is None
    compare(tensorboard, tmp_path / "run")


def test_tensorboard_drops_what_a_killed_session_wrote_past_its_checkpoint(train, tensorboard, tmp_path):
    class Killed(Exception):
        pass

    def kill(metrics):
        if metrics.step == 7:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "run", on_step=kill, **{"log.tracker": "tensorboard"})
    newest = training.find_checkpoint(tmp_path / "run").step
    train(tmp_path / "run", **{"log.tracker": "tensorboard"})
    assert tensorboard.purged_from == newest + 1


def test_wandb(train, wandb, tmp_path, tiny_run):
    train(tmp_path / "run", **{"log.tracker": "wandb"})
    assert wandb.opened_with["dir"] == str(tmp_path / "run")
    assert wandb.opened_with["config"] == tiny_run.make_config(**{"log.tracker": "wandb"}).to_dict()
    compare(wandb, tmp_path / "run")


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed(train, monkeypatch, tmp_path, name):
    module = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}[name]
    monkeypatch.setitem(sys.modules, module, None)
    message = rf'the tracker "{name}" needs a package that is not installed \(.*\); install the extra: pip install '
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", on_step=lambda metrics: pytest.fail("trained"), **{"log.tracker": name})
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the package tensorboard")
def test_the_real_tensorboard(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path / "run", **{"log.tracker": "tensorboard"})
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    table = analysis.read_run(tmp_path / "run")
    read = {event.step: event.value for event in events.Scalars("train/loss")}
    assert read == pytest.approx(dict(zip(table["step"], table["loss"], strict=True)), rel=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the package wandb")
def test_the_real_wandb_without_a_network(train, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(tmp_path / "run", epochs=1, **{"log.tracker": "wandb"})
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
