"""Runs beside one another: what differs is there once, with where each value is from."""

import json
import shutil

import pytest

from dflash_lab.training import RunConfig, compare_runs
from dflash_lab.training.setting_sources import flat


def write_run(folder, config, **files):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config if isinstance(config, dict) else config.to_dict()))
    for name, text in files.items():
        (folder / f"{name}.json").write_text(json.dumps(text))
    return folder


def rows_of(table, key):
    return {row[key]: row for row in table.iter_rows(named=True)}


def test_what_differs_between_runs_comes_first_and_only_what_differs_is_there(tmp_path):
    one = write_run(tmp_path / "one", RunConfig.preset("paper"))
    other = write_run(tmp_path / "other", RunConfig.preset("paper", {"epochs": 3, "loss.gamma": 4.0}))
    settings = compare_runs([one, other], presets=["paper"]).settings
    assert settings["setting"].to_list() == ["epochs", "loss.gamma"] and settings["runs_differ"].all()
    assert settings.row(0, named=True) == {
        "setting": "epochs", "runs_differ": True, "one": "6", "source of one": "default", "other": "3",
        "source of other": "given", "preset paper": "6", "source of preset paper": "default",
    }  # fmt: skip
    every = compare_runs([one, other])
    assert every.settings["runs_differ"].to_list()[:3] == [True, True, False]
    assert "preset tiny" in every.settings.columns and "preset source_run_buggy" in every.settings.columns
    # What is the same everywhere is left out: of the presets all have one drafter.rms_norm_eps.
    assert "drafter.rms_norm_eps" not in every.settings["setting"].to_list()


@pytest.mark.parametrize("name", ["paper", "source_run_buggy", "tiny"])
def test_the_preset_of_a_run_is_found_and_its_values_named(tmp_path, name):
    run = write_run(tmp_path / "run", RunConfig.preset(name, {"seed": 5, "drafter.mask_token_id": 7}))
    comparison = compare_runs([run])
    assert comparison.bases.row(0, named=True) == {
        "run": "run", "base": name, "how": "derived", "num_given": 2, "config": "",
    }  # fmt: skip
    rows = rows_of(comparison.settings, "setting")
    for setting, row in rows.items():
        if setting in ("seed", "drafter.mask_token_id"):
            assert row["source of run"] == "given"
        else:
            assert row["run"] == row[f"preset {name}"] and row["source of run"] == row[f"source of preset {name}"]
    # A value that no default has is the preset's own; one without a value is unset.
    assert rows["batching.token_budget"]["source of run"] == f"preset {name}"
    assert rows["batching.bucket_bounds"]["source of preset tiny"] == "unset"
    assert rows["optimizer.betas"]["preset source_run_buggy"] == "0.9, 0.999"
    assert rows["noise.is_applied"]["source of preset source_run_buggy"] == "preset source_run_buggy"


def test_a_run_that_is_near_no_preset_began_with_defaults(tmp_path):
    values = {"batching": {"strategy": "random", "token_budget": 100, "max_seq_len": 50, "order": "random"}}
    run = write_run(tmp_path / "run", RunConfig.from_dict(values))
    comparison = compare_runs([run], presets=["tiny"])
    assert comparison.bases["base"].to_list() == ["defaults"] and comparison.bases["num_given"].to_list() == [3]
    rows = rows_of(comparison.settings, "setting")
    assert rows["batching.token_budget"]["source of run"] == "given"
    assert (
        rows["batching.window"]["source of run"] == "default" and rows["drafter.head_dim"]["source of run"] == "unset"
    )


def test_what_a_short_run_wrote_down_counts(tmp_path):
    # Given, though it is what the preset has; no derivation would know.
    changes = {"optimizer.learning_rate": 2e-3, "epochs": 9}
    config = RunConfig.preset("tiny", {**changes, "drafter.mask_token_id": 1})
    run = write_run(tmp_path / "run", config, short_run={"changes": changes, "seed": 0})
    comparison = compare_runs([run])
    assert comparison.bases["how"].to_list() == ["recorded"]
    sources = {name: row["source of run"] for name, row in rows_of(comparison.settings, "setting").items()}
    assert sources["optimizer.learning_rate"] == "given" and sources["drafter.mask_token_id"] == "given"
    assert sources["batching.window"] == "preset tiny"


def test_a_config_of_another_version(tmp_path):
    values = RunConfig.preset("paper").to_dict()
    values["optimizer"]["momentum"] = 0.9
    del values["loss"]["alpha"]
    one = write_run(tmp_path / "one", values)
    comparison = compare_runs([one, write_run(tmp_path / "two", RunConfig.preset("paper"))], presets=["paper"])
    rows = rows_of(comparison.settings, "setting")
    assert rows["optimizer.momentum"]["source of one"] == "given" and rows["optimizer.momentum"]["two"] is None
    assert rows["optimizer.momentum"]["source of two"] == "not in config.json"
    assert rows["loss.alpha"]["one"] is None and rows["loss.alpha"]["source of one"] == "not in config.json"
    assert comparison.bases["config"].to_list() == ["optimizer.momentum", ""]


def test_circumstances_and_outcomes(reference, tmp_path):
    again = shutil.copytree(reference.run_dir, tmp_path / "again")
    manifest = json.loads((again / "manifest.json").read_text())
    manifest["sessions"].append({**manifest["sessions"][0], "threads": 8, "versions": {"torch": "9.9"}})
    (again / "manifest.json").write_text(json.dumps(manifest))
    lines = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    (again / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:10]))
    (again / "validation.jsonl").unlink()
    comparison = compare_runs([reference.run_dir, again, write_run(tmp_path / "bare", RunConfig.preset("paper"))])
    facts = rows_of(comparison.circumstances, "fact")
    name = reference.run_dir.name
    threads = str(manifest["sessions"][0]["threads"])
    assert facts["threads"] == {
        "fact": "threads", "differs": True, name: threads, "again": f"{threads} -> 8", "bare": None,
    }  # fmt: skip
    assert facts["version of torch"]["again"].endswith("-> 9.9")
    assert facts["data fingerprint"][name] == facts["data fingerprint"]["again"] == manifest["identity"]["data"]
    whole, cut, bare = comparison.outcomes.iter_rows(named=True)
    scores = [json.loads(line) for line in (reference.run_dir / "validation.jsonl").read_text().splitlines()]
    best = max(scores, key=lambda line: line["tau"])
    assert (whole["steps_done"], whole["total_steps"]) == (14, 14)
    assert (whole["best_held_out_tau"], whole["best_step"]) == (best["tau"], best["step"])
    assert whole["last_held_out_tau"] == scores[-1]["tau"]
    assert whole["last_loss"] == lines[-1]["loss_sum"] / lines[-1]["loss_weight"]
    assert whole["session_seconds"] == lines[-1]["elapsed_seconds"]
    assert cut["steps_done"] == 10 and cut["best_held_out_tau"] is None
    assert cut["last_tenth_loss"] == lines[9]["loss_sum"] / lines[9]["loss_weight"]
    assert bare["steps_done"] == 0 and bare["last_loss"] is None and bare["total_steps"] is None


def test_what_cannot_be_compared_is_refused(tmp_path):
    one = write_run(tmp_path / "one", RunConfig.preset("paper"))
    with pytest.raises(ValueError, match="run_dirs is empty; legal: at least one run's folder"):
        compare_runs([])
    with pytest.raises(ValueError, match="two runs are named one; legal: folders with different names"):
        compare_runs([one, write_run(tmp_path / "sub" / "one", RunConfig.preset("paper"))])
    with pytest.raises(ValueError, match="a run is named 'fact', which is a column of the tables; legal: another name"):
        compare_runs([write_run(tmp_path / "fact", RunConfig.preset("paper"))])
    with pytest.raises(ValueError, match="preset is 'large'; legal: paper, source_run_buggy, tiny"):
        compare_runs([one], presets=["large"])
    with pytest.raises(ValueError, match="holds no run: there is no config.json"):
        compare_runs([tmp_path])
    (one / "config.json").write_text("[")
    with pytest.raises(ValueError, match="config.json is no JSON"):
        compare_runs([one])
    (one / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="config.json holds list; legal: a JSON object"):
        compare_runs([one])


def test_settings_are_flattened():
    assert flat({"a": 1, "b": {"c": [2], "d": {"e": None}}}) == {"a": 1, "b.c": [2], "b.d.e": None}
