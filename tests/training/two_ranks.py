"""One of two ranks: `python two_ranks.py RANK MEETING_FILE steps|run FOLDER [STOP_AT]`; prints JSON at the end."""

import dataclasses
import importlib.util
import json
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import save_file

from dflash_lab.drafter import Drafter
from dflash_lab.feed import collate
from dflash_lab.training import DrafterTrainLoop, ScheduleConfig, train_drafter
from dflash_lab.training.assembly import drafter_config, make_optimizer

# Sample numbers of each rank in each step, negative ones without supervised tokens.
WINDOWS = {0: [(1, 2), (3,), (-8,), (4, 5)], 1: [(6,), (-7,), (-9,), (10, 11, 12)]}


def windows_of(rank):
    return WINDOWS[rank]


def make_loop(tiny_run, target):
    config = tiny_run.make_config(**{"noise.amplitude": 0.0})
    drafter = Drafter(drafter_config(config.drafter, target), seed=1)
    schedule = ScheduleConfig(total_steps=4, learning_rate=1e-2)
    return DrafterTrainLoop(drafter, make_optimizer(drafter, config), target, config, schedule)


def features_of(tiny_run, target, *sample_ids):
    dataset = tiny_run.make_dataset()
    batch = collate([dataset[abs(sample_id)] for sample_id in sample_ids])
    if min(sample_ids) < 0:
        batch = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    return target.features(batch)


def steps(tiny_run, rank, folder):
    target = tiny_run.RandomTarget()
    loop = make_loop(tiny_run, target)
    outcomes = [loop.train_window([features_of(tiny_run, target, *ids)]) for ids in windows_of(rank)]
    save_file(loop.drafter.state_dict(), folder / f"rank-{rank}.safetensors")
    return [
        {
            "skipped": outcome.skipped,
            "loss_sum": outcome.sums.loss_sum,
            "loss_weight": outcome.sums.loss_weight,
            "num_blocks": outcome.sums.scores.num_blocks,
        }
        for outcome in outcomes
    ]


def run(tiny_run, rank, folder, stop_at):
    def stop(metrics):
        if rank == 1 and metrics.step == stop_at:
            signal.raise_signal(signal.SIGTERM)

    result = train_drafter(
        tiny_run.make_config(),
        tiny_run.make_dataset(),
        tiny_run.RandomTarget(),
        folder,
        device="cpu",
        on_step=stop,
        on_status=lambda line: None,
    )
    return {"step": result.state.step, "total": result.total_steps, "complete": result.complete}


def main():
    torch.set_num_threads(1)
    rank, meeting, task, folder, *more = sys.argv[1:]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2, timeout=timedelta(seconds=60)
    )
    spec = importlib.util.spec_from_file_location("tiny_run", Path(__file__).with_name("tiny_run.py"))
    tiny_run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny_run)
    tasks = {"steps": steps, "run": run}
    print(json.dumps(tasks[task](tiny_run, int(rank), Path(folder), *map(int, more))), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
