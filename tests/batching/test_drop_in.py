"""Plans in other people's loops: a DataLoader, accelerate, and a Hugging Face Trainer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dflash_lab.batching import BatchingConfig, EpochBatchSampler, plan_epoch

ROOT = Path(__file__).parents[2]
LENGTHS = np.random.default_rng(0).integers(5, 50, 120)
CONFIG = BatchingConfig(strategy="capacity", order="window_strata", token_budget=400, max_seq_len=64)
EXPECTED = [list(plan_epoch(LENGTHS, CONFIG, epoch=epoch)) for epoch in range(2)]

# torch and transformers take seconds and much memory to import, so each loop runs in a process of its own.
PREAMBLE = """
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
from dflash_lab.batching import BatchingConfig, EpochBatchSampler, plan_epoch
torch.set_num_threads(1)
lengths = np.random.default_rng(0).integers(5, 50, 120)
config = BatchingConfig(strategy="capacity", order="window_strata", token_budget=400, max_seq_len=64)

class Samples(Dataset):
    def __len__(self):
        return len(lengths)
    def __getitem__(self, sample_id):
        return sample_id, torch.full((int(lengths[sample_id]),), sample_id % 50)

def collate(samples):
    ids = torch.nn.utils.rnn.pad_sequence([tokens for _, tokens in samples], batch_first=True)
    return {"input_ids": ids, "labels": ids, "sample_ids": torch.tensor([number for number, _ in samples])}

expected = [list(plan_epoch(lengths, config, epoch=epoch)) for epoch in range(2)]
sampler = EpochBatchSampler(lengths, config)
"""

LOADER = """
for num_workers in (0, 2):
    loader = DataLoader(Samples(), batch_sampler=sampler, collate_fn=collate, num_workers=num_workers)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert len(loader) == len(expected[epoch])
        assert [batch["sample_ids"].tolist() for batch in loader] == expected[epoch]
plan = plan_epoch(lengths, config, epoch=1)
loader = DataLoader(Samples(), batch_sampler=plan, collate_fn=collate)
assert [batch["sample_ids"].tolist() for batch in loader] == expected[1]
"""

ACCELERATE = """
from accelerate import Accelerator
loader = Accelerator(cpu=True).prepare(DataLoader(Samples(), batch_sampler=sampler, collate_fn=collate))
for epoch in range(2):
    loader.set_epoch(epoch)
    assert [batch["sample_ids"].tolist() for batch in loader] == expected[epoch]
"""

TRAINER = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
seen = []

class PlannedTrainer(Trainer):
    def get_train_dataloader(self):
        loader = DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)
    def compute_loss(self, model, inputs, **more):
        seen.append(inputs.pop("sample_ids").tolist())
        return super().compute_loss(model, inputs, **more)

model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=64, n_positions=64))
arguments = TrainingArguments(
    output_dir=sys.argv[1], num_train_epochs=2, report_to=[], use_cpu=True, save_strategy="no",
    remove_unused_columns=False, disable_tqdm=True,
)
PlannedTrainer(model=model, args=arguments, train_dataset=Samples(), data_collator=collate).train()
assert seen == expected[0] + expected[1]
"""


@pytest.mark.parametrize(
    ("needs", "code"),
    [("torch", LOADER), ("accelerate", ACCELERATE), ("accelerate", TRAINER)],
    ids=["DataLoader", "accelerate", "Trainer"],
)
def test_a_sampler_serves_as_batch_sampler(needs, code, tmp_path):
    if needs == "accelerate":
        pytest.importorskip("accelerate", reason="needs accelerate, of the extra dev")
    run = [sys.executable, "-c", PREAMBLE + code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr


def test_ranks_share_an_epoch():
    samplers = [EpochBatchSampler(LENGTHS, CONFIG, rank=rank, world_size=2) for rank in range(2)]
    for sampler in samplers:
        sampler.set_epoch(1)
    batches = [tuple(batch) for sampler in samplers for batch in sampler]
    assert len(set(batches)) == len(batches) and set(batches) <= set(map(tuple, EXPECTED[1]))
