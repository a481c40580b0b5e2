"""Two processes train like one: gradients and weights are summed over ranks, and nobody waits for ever."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash_lab.training.checkpoint import WEIGHTS, find_checkpoint

SCRIPT = Path(__file__).with_name("two_ranks.py")


def run_ranks(tmp_path, *arguments):
    """Run the script as two ranks, and give what each printed as its last line."""
    meeting = tmp_path / f"meeting-{len(list(tmp_path.iterdir()))}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(meeting), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], printed
    return [json.loads(text.splitlines()[-1]) for text in printed]


@pytest.mark.slow
def test_two_ranks_step_like_one_process_and_none_waits_for_anchors(tmp_path, tiny_run, two_ranks, target):
    first, second = run_ranks(tmp_path, "steps", tmp_path)
    assert first == second
    # The same windows in one process: both ranks' batches in each.
    loop = two_ranks.make_loop(tiny_run, target)
    for step, (mine, other) in enumerate(zip(*map(two_ranks.windows_of, (0, 1)), strict=True)):
        window = [two_ranks.features_of(tiny_run, target, *samples) for samples in (mine, other)]
        outcome = loop.train_window(window)
        assert first[step]["skipped"] == outcome.skipped
        assert first[step]["loss_sum"] == pytest.approx(outcome.sums.loss_sum, rel=1e-6)
        assert first[step]["loss_weight"] == pytest.approx(outcome.sums.loss_weight, rel=1e-12)
        assert first[step]["num_blocks"] == outcome.sums.scores.num_blocks
    assert [step["skipped"] for step in first] == ["", "", "no anchors", ""]
    saved = [load_file(tmp_path / f"rank-{rank}.safetensors") for rank in range(2)]
    for name, tensor in loop.drafter.state_dict().items():
        assert torch.equal(saved[0][name], saved[1][name])
        torch.testing.assert_close(saved[0][name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_run_of_two_ranks_is_stopped_and_resumed_the_same(tmp_path):
    whole = run_ranks(tmp_path, "run", tmp_path / "whole", 0)
    assert whole[0]["step"] == whole[1]["step"] == whole[0]["total"]
    stopped = run_ranks(tmp_path, "run", tmp_path / "stopped", 3)
    # The signal went to rank 1 alone, and both stopped.
    assert [(rank["step"], rank["complete"]) for rank in stopped] == [(3, False)] * 2
    resumed = run_ranks(tmp_path, "run", tmp_path / "stopped", 0)
    assert resumed == whole
    mine, wanted = (load_file(find_checkpoint(tmp_path / name).path / WEIGHTS) for name in ("stopped", "whole"))
    for name in wanted:
        assert torch.equal(mine[name], wanted[name])
    # Each rank's ledger has its own batches: together every sample at most once an epoch.
    seen = []
    for folder in (tmp_path / "whole", tmp_path / "whole" / "rank-1"):
        for line in (folder / "batches.jsonl").read_text().splitlines():
            row = json.loads(line)
            if row["epoch"] == 0:
                seen += [sample for batch in row["batches"] for sample in batch["sample_ids"]]
    assert len(seen) == len(set(seen)) > 60
