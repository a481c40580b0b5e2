"""Settings are strict to read and complete when written, and presets say what they stand for."""

import json

import numpy as np
import pytest

from dflash_lab.batching import BatchingConfig
from dflash_lab.training import (
    AnchorSettings,
    CheckpointSettings,
    DrafterSettings,
    LogSettings,
    LossSettings,
    NoiseSettings,
    OptimizerSettings,
    PipelineSettings,
    RunConfig,
    ScheduleConfig,
    ValidationSettings,
    learning_rate,
    noise_amplitude,
)
from dflash_lab.training.config import first_difference
from dflash_lab.training.presets import PRESETS

BATCHING = {"strategy": "sorted", "token_budget": 64, "max_seq_len": 32}


@pytest.mark.parametrize("name", PRESETS)
def test_settings_come_back_from_json(name):
    config = RunConfig.preset(name)
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config


def test_numpy_numbers_become_plain_ones():
    config = RunConfig(batching=BatchingConfig(**BATCHING, bucket_bounds=np.array([0, 8, 32])), seed=np.int64(3))
    assert json.loads(json.dumps(config.to_dict()))["batching"]["bucket_bounds"] == [0, 8, 32]
    assert json.loads(json.dumps(config.to_dict()))["seed"] == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"batching": BATCHING, "epoch": 3},
            r"epoch is not a setting \(the nearest is epochs\); legal: batching, epochs",
        ),
        (
            {"batching": BATCHING, "optimizer": {"learning_rte": 1}},
            r"optimizer.learning_rte is not a setting \(the nearest is learning_rate\)",
        ),
        ({"batching": {**BATCHING, "token_budgets": 1}}, r"batching.token_budgets is not a setting"),
        ({"batching": BATCHING, "zzzzz": 3}, r"zzzzz is not a setting; legal: batching"),
        ({}, "batching is not given, and has no default"),
        ({"batching": {"strategy": "sorted"}}, "batching.token_budget is not given, and has no default"),
        ({"batching": BATCHING, "loss": 3}, "loss is 3; legal: names and values"),
        ({"batching": BATCHING, "loss": {"gamma": 0}}, "loss.gamma is 0; legal: a finite number > 0"),
    ],
)
def test_what_is_not_a_setting_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        RunConfig.from_dict(values)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (LossSettings, {"gamma": float("nan")}, "gamma is nan; legal: a finite number > 0"),
        (LossSettings, {"gamma": -1.0}, "gamma is -1.0"),
        (LossSettings, {"kind": "mse"}, "kind is 'mse'; legal: dflash, dpace, kl"),
        (LossSettings, {"alpha": 1.5}, "alpha is 1.5; legal: a finite number >= 0 and <= 1"),
        (DrafterSettings, {"block_size": 1}, "block_size is 1; legal: a whole number >= 2"),
        (DrafterSettings, {"head_dim": 0}, "head_dim is 0"),
        (AnchorSettings, {"per": "token"}, "per is 'token'; legal: sample, supervised_token, batch"),
        (AnchorSettings, {"per": "supervised_token", "amount": 2}, "amount is 2; legal: a finite number > 0 and <= 1"),
        (AnchorSettings, {"amount": 1.5}, "amount is 1.5; legal: a whole number >= 1"),
        (OptimizerSettings, {"betas": (0.9, 1.0)}, r"betas is 1.0; legal: a finite number >= 0 and < 1"),
        (OptimizerSettings, {"betas": (0.9,)}, r"betas is \(0.9,\); legal: a tuple of two numbers"),
        (OptimizerSettings, {"learning_rate": True}, "learning_rate is True"),
        (OptimizerSettings, {"schedule": "step"}, "schedule is 'step'; legal: cosine, linear, constant"),
        (OptimizerSettings, {"max_grad_norm": 0}, "max_grad_norm is 0"),
        (NoiseSettings, {"amplitude": -0.1}, "amplitude is -0.1"),
        (NoiseSettings, {"is_applied": 1}, "is_applied is 1; legal: True or False"),
        (ValidationSettings, {"share": 0.6}, "share is 0.6"),
        (CheckpointSettings, {"keep": 0}, "keep is 0; legal: a whole number >= 1"),
        (PipelineSettings, {"num_workers": 0}, "num_workers is 0"),
        (LogSettings, {"tracker": "mlflow"}, "tracker is 'mlflow'; legal: tensorboard, wandb"),
    ],
)
def test_what_is_out_of_range_is_refused(kind, values, message):
    with pytest.raises(ValueError, match=message):
        kind(**values)


def leaves(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("name", list(leaves(RunConfig.preset("tiny").to_dict())))
def test_values_of_no_legal_kind_are_refused_by_dotted_name(name):
    config = RunConfig.preset("tiny")
    values = ["3", float("nan"), float("inf"), [], {}, [1], b"3", -1]
    if name != "noise.is_applied":
        values.append(True)
    for value in values:
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            config.replace({name: value})


def test_numpy_numbers_are_numbers_and_huge_ones_are_refused():
    for value in (np.float32(0.25), np.float64(0.25)):
        config = RunConfig.preset("tiny", {"optimizer.learning_rate": value})
        assert json.loads(json.dumps(config.to_dict()))["optimizer"]["learning_rate"] == 0.25
    assert OptimizerSettings(learning_rate=np.int64(1)).learning_rate == 1
    with pytest.raises(ValueError, match="optimizer.learning_rate is 1000.* a finite number > 0"):
        RunConfig.preset("tiny", {"optimizer.learning_rate": 10**400})
    with pytest.raises(ValueError, match="learning_rate is .*True.*; legal: a finite number"):
        OptimizerSettings(learning_rate=np.bool_(True))


def test_changes_by_dotted_name():
    config = RunConfig.preset("tiny", {"optimizer.betas": [0.8, 0.9], "epochs": 5, "batching.seed": 7})
    assert config.optimizer.betas == (0.8, 0.9) and config.epochs == 5 and config.batching.seed == 7
    for name, message in (
        ("optimizer.beta", r"optimizer.beta is not a setting \(the nearest is betas\)"),
        ("optimiser.betas", r"optimiser is not a setting \(the nearest is optimizer\)"),
        ("epochs.betas", "epochs is not a setting"),
    ):
        with pytest.raises(ValueError, match=message):
            config.replace({name: 1})
    with pytest.raises(ValueError, match="preset is 'huge'; legal: paper, source_run_buggy, tiny"):
        RunConfig.preset("huge")


def test_what_a_default_decided_is_listed():
    given = {"batching": BATCHING, "epochs": 2, "optimizer": {"learning_rate": 1e-3}}
    unset = RunConfig.from_dict(given).unset_values(given)
    assert "optimizer.betas" in unset and "seed" in unset and "batching.window" in unset and "loss" in unset
    assert not {"epochs", "optimizer.learning_rate", "batching.strategy", "optimizer", "batching"} & set(unset)


def test_the_identity_leaves_out_what_changes_no_weights():
    config = RunConfig.preset("tiny")
    harmless = {"pipeline.num_workers": 9, "log.tracker": "wandb", "checkpoints.keep": 7}
    assert config.replace(harmless).identity == config.identity
    assert config.replace(harmless) != config
    for name in ("seed", "epochs", "batching.token_budget", "loss.gamma", "noise.amplitude", "validation.share"):
        value = {"validation.share": 0.2}.get(name, 9)
        assert first_difference(config.replace({name: value}).identity, config.identity).startswith(
            f"{name} is {value}"
        )


def test_the_paper():
    config = RunConfig.preset("paper")
    assert (config.drafter.block_size, config.drafter.num_hidden_layers, config.loss.gamma) == (16, 5, 7.0)
    assert (config.epochs, config.anchors.per, config.anchors.amount) == (6, "sample", 512)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.warmup_share) == (6e-4, "cosine", 0.04)
    assert optimizer.max_grad_norm == 1.0 and config.noise.amplitude == 0.0
    schedule = ScheduleConfig.of(optimizer, config.noise, 1_000)
    assert schedule.warmup_steps == 40 and learning_rate(0, schedule) == pytest.approx(1.5e-5)


def test_the_source_run_with_its_faults():
    faulty, paper = RunConfig.preset("source_run_buggy"), RunConfig.preset("paper")
    assert (faulty.loss.gamma, faulty.drafter.block_size) == (4.0, 16)
    assert faulty.optimizer.betas == (0.9, 0.999) != paper.optimizer.betas
    assert faulty.batching.bucket_bounds == (0, 770, 1216, 1728, 2432, 3296, 8192)
    assert (faulty.epochs, faulty.accumulation, faulty.batching.token_budget) == (6, 4, 49_152)
    # The ramp is planned, and near its end at step 4,690, where the status line says 0.0998; none of it is applied.
    assert noise_amplitude(4_690, ScheduleConfig.of(faulty.optimizer, faulty.noise, 69_525)) == pytest.approx(
        0.0998, abs=5e-5
    )
    assert not faulty.noise.is_applied


def test_a_part_given_as_a_mapping_keeps_what_it_does_not_name():
    config = RunConfig.preset("tiny", {"loss.gamma": 3.0, "drafter.mask_token_id": 5})
    changed = config.replace({"loss": {"kind": "dpace"}})
    assert changed == config.replace({"loss.kind": "dpace"}) and changed.loss.gamma == 3.0
    with pytest.raises(ValueError, match="loss.gama is not a setting"):
        config.replace({"loss": {"gama": 3.0}})


def test_a_part_and_a_value_of_it_at_once_are_refused():
    for changes in ({"loss": {"gamma": 3.0}, "loss.gamma": 4.0}, {"loss.gamma": 4.0, "loss": {"gamma": 3.0}}):
        with pytest.raises(ValueError, match="changes has loss as a whole and loss.gamma; legal: one of the two"):
            RunConfig.preset("tiny", changes)
