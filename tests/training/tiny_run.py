"""A run of seconds on random data and a random target; `python tiny_run.py RUN_DIR [name=value ...]` runs it alone."""

import json
import sys

import numpy as np
import torch

from dflash_lab import data, training
from dflash_lab.target import TargetFeatures

CHANGES = {
    "batching.token_budget": 256,
    "batching.max_seq_len": 64,
    "drafter.mask_token_id": 63,
    "drafter.head_dim": 16,
    "drafter.block_size": 6,
    "anchors.amount": 6,
    "epochs": 2,
    "seed": 3,
    "validation.every_steps": 5,
    "validation.max_samples": 4,
    "checkpoints.every_steps": 4,
    "checkpoints.every_minutes": None,
    "checkpoints.keep": 2,
    "log.tree_every_steps": 7,
    "noise.amplitude": 0.05,
    "noise.warmup_steps": 6,
}


class RandomTarget:
    """A target without transformers, which takes seconds to import: a token is mixed with the mean of those before.

    A token's features depend on its own sample's tokens up to it, in rows and in packed rows alike.
    """

    hidden_size, num_layers, vocab_size, rope_theta = 32, 4, 64, 10_000.0
    target_layer_ids = (0, 1, 2)
    control_ids = (0,)
    max_positions, settings = None, {}
    dtype = torch.float32

    def __init__(self, seed=0, device="cpu"):
        self.name, self.fingerprint, self.seed = "random", f"random {seed}", seed
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        width, taps = self.hidden_size, len(self.target_layer_ids)
        self.embedding = (0.3 * torch.randn(self.vocab_size, width, generator=generator)).to(device)
        self.mixing = (0.3 * torch.randn(width, taps * width, generator=generator)).to(device)

    def features(self, batch, *, with_logits=False):
        batch = batch.to(self.device)
        embedded = self.embed(batch.input_ids)  # (R, T, H)
        states = torch.zeros_like(embedded)
        for row, start, length in zip(batch.rows.tolist(), batch.starts.tolist(), batch.lengths.tolist(), strict=True):
            own = embedded[row, start : start + length]
            means = own.cumsum(0) / torch.arange(1, length + 1, device=own.device)[:, None]
            states[row, start : start + length] = own + means
        logits = self.lm_head(states) if with_logits else None
        return TargetFeatures(hidden=torch.tanh(states @ self.mixing), batch=batch, logits=logits)

    def embed(self, input_ids):
        return self.embedding[input_ids]

    def lm_head(self, hidden):
        return hidden.to(self.dtype) @ self.embedding.T

    def to(self, device):
        wanted = torch.empty(0, device=device).device
        return self if wanted == self.device else RandomTarget(self.seed, device)


def make_dataset(num_samples=80):
    rng = np.random.default_rng(0)
    rows = []
    for number in range(num_samples):
        length = int(rng.integers(8, 60))
        mask = np.arange(length) >= length // 3
        rows.append(
            {
                "input_ids": rng.integers(1, 60, length).tolist(),
                "loss_mask": mask.tolist(),
                "source": "even" if number % 2 == 0 else "odd",
            }
        )
    return data.PreloadedDataset.from_rows(rows)


def make_config(**changes):
    return training.RunConfig.preset("tiny", {**CHANGES, **changes})


def main():
    torch.set_num_threads(1)
    run_dir, *settings = sys.argv[1:]
    changes = {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in settings)}
    dataset = make_dataset(changes.pop("num_samples", 80))
    result = training.train_drafter(
        make_config(**changes),
        dataset,
        RandomTarget(),
        run_dir,
        device="cpu",
        on_step=lambda metrics: print(f"step {metrics.step}", flush=True),
        on_status=lambda line: print(line, flush=True),
    )
    print(f"ended at {result.state.step} of {result.total_steps}", flush=True)


if __name__ == "__main__":
    main()
