"""Whole runs: what is trained, and what the log says of it."""

import json

import numpy as np
import pytest
import torch

from dflash_lab import analysis, data, training
from dflash_lab.drafter import Drafter
from dflash_lab.training.assembly import drafter_config
from dflash_lab.training.checkpoint import find_checkpoint


def identity_of(run_dir):
    return json.loads((run_dir / "manifest.json").read_text())["identity"]


def ledger_of(run_dir):
    return [json.loads(line) for line in (run_dir / "batches.jsonl").read_text().splitlines()]


def test_a_run_moves_every_weight_and_says_what_it_did(reference, target, tiny_run):
    assert reference.complete and reference.state.epoch == 2 and reference.state.batch == 0
    assert not reference.drafter.training
    table = analysis.read_run(reference.run_dir)
    assert table["step"].to_list() == list(range(1, reference.total_steps + 1))
    assert table["loss"].is_finite().all()
    assert (table["train_seconds"] > 0).all() and table["target_seconds"].sum() > 0 and table["read_seconds"].sum() > 0
    first = Drafter(drafter_config(tiny_run.make_config().drafter, target), seed=3).state_dict()
    still = [name for name, tensor in reference.drafter.state_dict().items() if torch.equal(tensor, first[name])]
    assert still == []


def test_the_log_adds_up_to_the_plans(reference, dataset):
    table = analysis.read_run(reference.run_dir)
    sizes = identity_of(reference.run_dir)["batches_per_epoch"]
    assert len(sizes) == 2
    for epoch, size in enumerate(sizes):
        steps = table.filter(table["epoch"] == epoch)
        ids = [batch_id for step in steps["batch_ids"].to_list() for batch_id in step]
        assert ids == list(range(size))
        assert steps["position"].to_list()[-1] == size
    assert reference.total_steps == sum(-(-size // 2) for size in sizes) == len(table)
    assert table["progress"].to_list()[-1] == 2.0


def test_the_ledger_names_every_sample_once_an_epoch_and_never_a_held_out_one(reference, dataset):
    seen = {0: [], 1: []}
    for row in ledger_of(reference.run_dir):
        assert row["rank"] == 0
        for batch in row["batches"]:
            assert batch["lengths"] == dataset.lengths[batch["sample_ids"]].tolist()
            assert batch["width"] == batch["length_max"] == max(batch["lengths"])
            assert batch["length_min"] == min(batch["lengths"])
            assert batch["real_tokens"] == sum(batch["lengths"])
            assert batch["padded_tokens"] == batch["width"] * len(batch["lengths"]) <= 256
            seen[row["epoch"]] += batch["sample_ids"]
    assert len(seen[0]) == len(set(seen[0])) == len(dataset) - 4
    assert sorted(seen[0]) == sorted(seen[1]) and seen[0] != seen[1]


def test_the_schedule_moves_once_a_step_and_the_noise_is_the_one_used(reference):
    table = analysis.read_run(reference.run_dir)
    peak, total, warmup = 2e-3, reference.total_steps, round(0.04 * reference.total_steps)
    rates = [peak * (step + 1) / warmup for step in range(warmup)]
    rates += [peak * (1 + np.cos(np.pi * (step - warmup) / (total - warmup))) / 2 for step in range(warmup, total)]
    assert table["learning_rate"].to_list() == pytest.approx(rates)
    assert table["noise"].to_list() == pytest.approx([0.05 * min(step, 6) / 6 for step in range(total)])


def test_settings_and_machine_are_written_before_the_first_step(train, tiny_run, tmp_path):
    def look(metrics):
        assert json.loads((tmp_path / "run" / "config.json").read_text()) == tiny_run.make_config(epochs=1).to_dict()
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        (session,) = manifest["sessions"]
        assert session["versions"]["torch"] == torch.__version__ and session["device"] == "cpu"
        assert session["from_step"] == 0
        assert manifest["data"] == {"name": "the given rows", "num_samples": 80, "num_train": 76, "num_held_out": 4}

    train(tmp_path / "run", epochs=1, on_step=look)


def test_held_out_scores_come_when_asked_for_and_at_the_end(reference):
    lines = [json.loads(line) for line in (reference.run_dir / "validation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, reference.total_steps]
    assert reference.held_out["tau"] == lines[-1]["tau"] >= 1
    assert len({line["num_blocks"] for line in lines}) == 1
    best = max(lines, key=lambda line: line["tau"])
    assert reference.state.best_tau == best["tau"] and reference.state.best_step == best["step"]
    kept = {folder.name for folder in (reference.run_dir / "checkpoints").iterdir()}
    assert f"step-{best['step']:08d}" in kept and len(kept) <= 3


def test_trees_are_scored_at_their_steps_alone_and_never_below_the_chain(reference):
    table = analysis.read_run(reference.run_dir)
    scored = table.filter(table["num_tree_blocks"] > 0)
    assert scored["step"].to_list() == [1, *range(7, reference.total_steps + 1, 7)]
    for row in scored.to_dicts():
        # The smallest tree has as many nodes as the chain, and need not hold it; a larger tree holds the smaller ones.
        assert row["tree_accepted_sum"] == sorted(row["tree_accepted_sum"])
        assert 0 <= row["chain_accepted_sum"] <= row["num_tree_blocks"] * 5
    assert scored["tree_tau"].is_finite().all() and table["tree_tau"].null_count() == len(table) - len(scored)


def test_losses_of_every_kind_train(train, tmp_path):
    for kind in ("dpace", "kl"):
        result = train(tmp_path / kind, epochs=1, **{"loss.kind": kind})
        assert analysis.read_run(tmp_path / kind)["loss"].is_finite().all() and result.complete


def test_packed_rows_train(train, tmp_path):
    result = train(tmp_path / "run", epochs=1, **{"batching.strategy": "packed"})
    assert result.complete
    assert set(analysis.read_run(tmp_path / "run")["padded_tokens"].explode().to_list()) == {256}


@pytest.mark.parametrize("budget", [("supervised_token", 0.5), ("batch", 7)])
def test_anchor_budgets(train, tmp_path, budget):
    per, amount = budget
    train(tmp_path / "run", epochs=1, **{"anchors.per": per, "anchors.amount": amount})
    table = analysis.read_run(tmp_path / "run")
    if per == "batch":
        batches = table["batch_ids"].list.len().to_list()
        assert table["num_blocks"].to_list() == [7 * count for count in batches]
    else:
        assert (table["num_blocks"] > table["num_samples"].list.sum()).all()


def test_a_target_that_repeats_itself_is_learned(train, tmp_path):
    rows = [{"input_ids": [5 + (n + at) % 3 for at in range(30)], "loss_mask": [1] * 30} for n in range(40)]
    dataset = data.PreloadedDataset.from_rows(rows)
    # Without waits for the disk.
    changes = {"optimizer.learning_rate": 1e-2, "checkpoints.every_steps": None, "validation.every_steps": None}
    result = train(tmp_path / "run", dataset=dataset, epochs=20, **changes)
    table = analysis.read_run(tmp_path / "run")
    assert table["loss"][-1] < 0.5 < 2.0 < table["loss"][0]
    assert result.held_out["tau"] > 3


def test_a_validation_set_is_scored_and_never_trained_on(train, tiny_run, tmp_path):
    result = train(tmp_path / "run", epochs=1, validation=tiny_run.make_dataset(10))
    assert result.held_out["num_samples"] == 4
    trained = {
        sample for row in ledger_of(tmp_path / "run") for batch in row["batches"] for sample in batch["sample_ids"]
    }
    assert trained == set(range(80))


def test_no_held_out_samples_no_scores(train, tmp_path):
    result = train(tmp_path / "run", epochs=1, **{"validation.share": 0.0})
    assert result.held_out is None and (tmp_path / "run" / "validation.jsonl").read_text() == ""


def test_a_limit_of_steps_ends_the_run_and_its_schedule(train, tmp_path):
    result = train(tmp_path / "run", max_steps=6, **{"optimizer.schedule": "linear", "optimizer.warmup_steps": 2})
    assert result.complete and result.state.step == result.total_steps == 6
    rates = analysis.read_run(tmp_path / "run")["learning_rate"].to_list()
    assert rates == pytest.approx([1e-3, 2e-3, 2e-3, 1.5e-3, 1e-3, 0.5e-3])


def test_a_broken_noise_ramp_is_logged_as_it_was_applied(train, tmp_path):
    train(tmp_path / "off", epochs=1, **{"noise.is_applied": False})
    train(tmp_path / "none", epochs=1, **{"noise.amplitude": 0.0, "noise.warmup_steps": 0})
    off, none = (analysis.read_run(tmp_path / name) for name in ("off", "none"))
    assert off["noise"].to_list() == [0.0] * len(off)
    assert off["loss"].to_list() == none["loss"].to_list()


def test_status_lines_come_by_time_and_at_the_end(train, tmp_path):
    lines = []
    train(tmp_path / "run", epochs=1, on_status=lines.append, **{"log.status_every_seconds": 1e-9})
    assert len(lines) == len(analysis.read_run(tmp_path / "run"))
    assert lines[-1].startswith("[0m] step=") and lines[-1].endswith("| epoch~1.00 ETA=0s")


def test_ids_that_the_target_does_not_know_are_refused(train, target, tmp_path):
    rows = [{"input_ids": [1, 2, 64], "loss_mask": [1, 1, 1]}] * 4
    message = r"have the id 64, and the target .* knows ids in \[0, 64\)"
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", dataset=data.PreloadedDataset.from_rows(rows))
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", validation=data.PreloadedDataset.from_rows(rows))
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_is_refused_before_anything_is_written(train, tmp_path):
    for changes, message in (
        ({"drafter.mask_token_id": None}, "drafter.mask_token_id is not set; legal: an unused id"),
        ({"drafter.mask_token_id": 64}, r"mask_token_id is 64; legal: in \[0, 64\)"),
        ({"optimizer.warmup_steps": 1000}, "warmup_steps is 1000 in a run of"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used"),
        ({"target_devices": []}, "target_devices is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            train(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_the_heaviest_batches_are_tried_without_a_trace(train, reference, assert_same, tmp_path):
    lines = []
    result = train(tmp_path / "run", try_heaviest_first=True, on_status=lines.append)
    assert lines[0].startswith("most padded tokens: batch ") and " GiB on cpu" in lines[0]
    assert_same(result.drafter.state_dict(), reference.drafter.state_dict())


def test_the_heaviest_batches_are_those_of_the_plans(tiny_run, dataset, target, reference):
    config = tiny_run.make_config()
    tried = training.try_heaviest_batches(config, dataset, target, device="cpu")
    table = analysis.read_run(reference.run_dir)
    assert tried[0].padded_tokens == max(tokens for step in table["padded_tokens"].to_list() for tokens in step)
    for batch in tried:
        assert batch.peak_bytes["cpu"] > 2**20 and batch.seconds > 0
        # All batches are named in the ledger: the tried one is what the run really had.
        (row,) = [
            held
            for line in ledger_of(reference.run_dir)
            if line["epoch"] == batch.epoch
            for held in line["batches"]
            if held["batch_id"] == batch.batch_id
        ]
        assert (len(row["sample_ids"]), row["padded_tokens"]) == (batch.num_samples, batch.padded_tokens)
    # Six anchors a sample, and samples long enough for six: most blocks are where most samples are.
    most = max(count for step in table["num_samples"].to_list() for count in step)
    assert max(batch.num_blocks for batch in tried) == pytest.approx(6 * most, abs=6)


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted(train, tmp_path, monkeypatch):
    from dflash_lab.training import micro_batch

    honest, calls, held = micro_batch.MicroBatch.add_gradients, [], {}

    def poisoned(self, features, *, noise):
        sums = honest(self, features, noise=noise)
        calls.append(features.batch.batch_id)
        if len(calls) == 9:
            next(self.drafter.parameters()).grad[0, 0] = float("nan")
        held[(len(calls) + 1) // 2] = next(self.drafter.parameters()).detach().clone()
        return sums

    monkeypatch.setattr(micro_batch.MicroBatch, "add_gradients", poisoned)
    result = train(tmp_path / "run", epochs=1)
    table = {row["step"]: row for row in analysis.read_run(tmp_path / "run").to_dicts()}
    assert table[5]["skipped"] == "non-finite gradient" and not table[5]["updated"] and table[5]["grad_norm"] is None
    assert table[6]["updated"] and table[6]["skipped"] == ""
    # What step 6 began with is what step 5 began with.
    assert torch.equal(held[5], held[6]) and not torch.equal(held[6], held[7])
    assert result.state.skipped_steps == 1 and result.state.skipped_in_a_row == 0
    assert all(torch.isfinite(tensor).all() for tensor in result.drafter.state_dict().values())


def test_too_many_in_a_row_end_the_run_and_keep_the_last_good_checkpoint(train, tmp_path, monkeypatch):
    from dflash_lab.training import micro_batch

    honest, calls = micro_batch.MicroBatch.add_gradients, []

    def poisoned(self, features, *, noise):
        calls.append(1)
        sums = honest(self, features, noise=noise)
        if len(calls) > 8:
            next(self.drafter.parameters()).grad.fill_(float("inf"))
        return sums

    monkeypatch.setattr(micro_batch.MicroBatch, "add_gradients", poisoned)
    with pytest.raises(
        training.TooManySkippedSteps, match="non-finite gradient in 3 steps in a row, the last one step 7"
    ):
        train(tmp_path / "run", **{"optimizer.max_skipped_in_a_row": 3})
    assert find_checkpoint(tmp_path / "run").step <= 5
    assert analysis.read_run(tmp_path / "run")["skipped"].to_list()[4:] == ["non-finite gradient"] * 3


def test_a_loss_that_is_not_finite_is_null_in_the_log(train, tmp_path, monkeypatch):
    from dflash_lab.training import loop

    honest = loop.MicroBatch.add_gradients

    def poisoned(self, features, *, noise):
        sums = honest(self, features, noise=noise)
        return type(sums)(loss_sum=float("nan"), loss_weight=sums.loss_weight, scores=sums.scores)

    monkeypatch.setattr(loop.MicroBatch, "add_gradients", poisoned)
    with pytest.raises(training.TooManySkippedSteps, match="non-finite loss in 2 steps in a row"):
        train(tmp_path / "run", **{"optimizer.max_skipped_in_a_row": 2})
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line, parse_constant=lambda name: pytest.fail(name))
        assert row["loss_sum"] is None and row["skipped"] == "non-finite loss" and not row["updated"]


def test_features_that_are_not_finite_are_skipped_where_trees_would_be_scored(train, target, tmp_path):
    class Broken(type(target)):
        def features(self, batch, *, with_logits=False):
            features = super().features(batch, with_logits=with_logits)
            if batch.batch_id in (0, 1):
                features.hidden.fill_(float("nan"))
            return features

    result = train(tmp_path / "run", target=Broken(), epochs=1, **{"log.tree_every_steps": 1})
    table = analysis.read_run(tmp_path / "run")
    assert table["skipped"].to_list()[:2] == ["non-finite loss", ""] and result.state.skipped_steps == 1
    scores = [json.loads(line) for line in (tmp_path / "run" / "validation.jsonl").read_text().splitlines()]
    # Held-out batches have these numbers as well.
    assert scores and all(line["loss"] is None and line["tau"] >= 1 for line in scores)
    assert [len(budgets) > 0 for budgets in table["tree_budgets"].to_list()] == [False] + [True] * (len(table) - 1)


@pytest.mark.parametrize("change", [{"target_layer_ids": (0, 1, 3)}, {"settings": {"rms_norm_eps": 0.1}}])
def test_a_run_does_not_go_on_with_a_target_that_computes_otherwise(train, target, dataset, tmp_path, change):
    train(tmp_path / "run", max_steps=3)
    other = type("Other", (type(target),), change)()
    with pytest.raises(ValueError, match=f"holds another run: now target_{next(iter(change)).removeprefix('target_')}"):
        train(tmp_path / "run", target=other, max_steps=3)
    with pytest.raises(ValueError, match="the target is not that of"):
        training.replay_step(tmp_path / "run", 2, dataset, other, device="cpu")


def test_samples_past_the_targets_positions_stop_a_run_before_its_first_step(train, target, tmp_path):
    short = type("Short", (type(target),), {"max_positions": 40})()
    with pytest.raises(
        ValueError, match=r"has \d+ tokens, and random has 40 positions; legal: batching.max_seq_len of"
    ):
        train(tmp_path / "run", target=short)
    assert not (tmp_path / "run").exists()


def test_samples_in_which_no_block_opens_are_refused_or_counted(train, tmp_path):
    barren = [{"input_ids": list(range(1, 13)), "loss_mask": [0] * 11 + [1]}] * 20
    with pytest.raises(ValueError, match=r"none of the \d+ samples of .* has two supervised tokens"):
        train(tmp_path / "run", dataset=data.PreloadedDataset.from_rows(barren), **{"validation.share": 0.1})
    fruitful = [{"input_ids": list(range(1, 13)), "loss_mask": [0] * 4 + [1] * 8}] * 20
    said = []
    mixed = data.PreloadedDataset.from_rows(barren + fruitful)
    train(tmp_path / "run", dataset=mixed, on_status=said.append, epochs=1)
    assert any("have fewer than two supervised tokens: no block opens in them" in line for line in said)


def test_numpy_numbers_and_a_caller_without_gradients_do_no_harm(train, tiny_run, dataset, target, tmp_path):
    plain = train(tmp_path / "plain", max_steps=2)
    numbers = {"drafter.block_size": np.int64(tiny_run.make_config().drafter.block_size), "max_steps": np.int32(2)}
    with torch.no_grad():
        result = train(tmp_path / "numpy", **numbers)
    for name, tensor in plain.drafter.state_dict().items():
        assert torch.equal(tensor, result.drafter.state_dict()[name])


def test_a_step_that_diverges_ends_the_run_by_its_loss_not_by_its_trees(train, tmp_path):
    wild = {"optimizer.learning_rate": 1e20, "optimizer.max_grad_norm": None, "log.tree_every_steps": 1}
    with pytest.raises((training.TooManySkippedSteps, training.WeightsNotFinite)):
        train(tmp_path / "run", **wild, **{"validation.every_steps": None})
