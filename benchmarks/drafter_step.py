"""How fast one training step of the drafter is, and how much memory it takes, beside the same step with a dense mask.

A step is forward, loss and backward over the same blocks and weights. The other way is that of public trainers: padded
rows, one dense mask over [context; all blocks], torch's own norms, logits of every slot at once and plain
cross-entropy; context that no block sees is left out of both. Loss and gradients of the two are compared before
anything is timed. Seconds are those that the process computed on one thread; both ways run in each round, and ratios
are those of one round. Memory is measured in a fresh process each: most resident bytes beyond those after a small step.

    python benchmarks/drafter_step.py [--rounds 7] [--only WORD ...] [--json F] [--markdown F]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
from peers.isolated import in_fresh_process, timed
from torch import nn
from torch.nn import functional

from dflash_lab.drafter import (
    AnchorBudget,
    Documents,
    DraftBlocks,
    Drafter,
    DrafterConfig,
    block_position_weights,
    drafter_loss,
    draw_blocks,
)
from dflash_lab.drafter.attention import attend_dense

VOCAB, WIDTH, TAPS = 4096, 256, 3
GAMMA = 7.0
COLUMNS = ("lengths x anchors", "ours, CPU s", "dense, CPU s", "times as fast", "min-max", "target")
COLUMNS += ("ours, MB", "dense, MB", "share", "target")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Samples of one batch, and what is promised for it.

    Args:
        lengths: Tokens of each sample.
        anchors: Anchors of each.
        least_ratio: Times as fast as the dense way.
        most_memory: Bytes of ours over those of the dense way.
    """

    lengths: tuple[int, ...]
    anchors: int
    least_ratio: float
    most_memory: float

    @property
    def name(self) -> str:
        return f"{'/'.join(map(str, self.lengths))} x {self.anchors}"


CASES = (
    Case(lengths=(1024,), anchors=128, least_ratio=2.0, most_memory=1.0),
    Case(lengths=(1024, 700, 400, 200), anchors=128, least_ratio=2.5, most_memory=1.0),
    Case(lengths=(2048,), anchors=256, least_ratio=2.8, most_memory=1.0),
    Case(lengths=(3072,), anchors=512, least_ratio=3.5, most_memory=1.1),
)
SMALL = Case(lengths=(64,), anchors=4, least_ratio=0.0, most_memory=0.0)


class Step:
    """One batch with its drafter and head; `ours` and `dense` each leave the gradients in a drafter of their own."""

    def __init__(self, case: Case) -> None:
        self.drafter = Drafter(
            DrafterConfig(
                hidden_size=WIDTH,
                intermediate_size=768,
                num_hidden_layers=2,
                num_attention_heads=8,
                num_key_value_heads=8,
                head_dim=32,
                rope_theta=10_000.0,
                vocab_size=VOCAB,
                mask_token_id=VOCAB - 1,
                target_layer_ids=(1, 3, 5),
                num_target_layers=8,
            )
        )
        self.plain_drafter = with_plain_norms(self.drafter)
        generator = torch.Generator().manual_seed(1)
        lengths = torch.tensor(case.lengths)
        shape = (len(lengths), int(lengths.max()))
        input_ids = torch.randint(0, VOCAB - 1, shape, generator=generator)
        self.documents = Documents.padded(lengths)
        self.features = torch.randn(*shape, TAPS * WIDTH, generator=generator)
        self.head = torch.randn(VOCAB, WIDTH, generator=generator) * 0.05
        self.blocks: DraftBlocks = draw_blocks(
            input_ids,
            torch.ones(shape, dtype=torch.bool),
            self.documents,
            torch.arange(len(lengths)),
            budget=AnchorBudget(amount=case.anchors),
            block_size=self.drafter.config.block_size,
            mask_token_id=VOCAB - 1,
            seed=0,
            epoch=0,
        )
        self.embeddings = torch.randn(VOCAB, WIDTH, generator=generator)[self.blocks.input_ids]

    def lm_head(self, states: torch.Tensor) -> torch.Tensor:
        return functional.linear(states, self.head)

    def ours(self) -> float:
        """Run the step as the trainer does; gives the mean loss."""
        self.drafter.zero_grad()
        hidden = self.drafter(self.features, self.embeddings, self.blocks, self.documents)
        loss = drafter_loss(hidden, self.blocks, self.lm_head, gamma=GAMMA)
        loss.loss_sum.backward()
        return float(loss.loss_sum.detach() / loss.weight_sum)

    def dense(self) -> float:
        """Run the step with a dense mask and all logits; gives the mean loss."""
        self.plain_drafter.zero_grad()
        hidden = self.plain_drafter(self.features, self.embeddings, self.blocks, self.documents, attend=attend_dense)
        logits = self.lm_head(hidden)  # (N, B, V)
        losses = functional.cross_entropy(logits.flatten(0, 1), self.blocks.labels.flatten(), reduction="none")
        weights = block_position_weights(self.blocks.block_size, GAMMA) * self.blocks.scored
        loss_sum = (losses.view_as(weights) * weights).sum()
        loss_sum.backward()
        return float(loss_sum.detach() / weights.sum())

    def compare(self) -> None:
        """Refuse to time two ways that do not compute the same."""
        found = []
        for way, drafter in ((self.ours, self.drafter), (self.dense, self.plain_drafter)):
            loss = way()
            found.append((torch.tensor(loss), [parameter.grad.clone() for parameter in drafter.parameters()]))
        torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
        for ours, dense in zip(found[0][1], found[1][1], strict=True):
            torch.testing.assert_close(ours, dense, rtol=1e-3, atol=1e-4 * float(dense.abs().max()))


def with_plain_norms(drafter: Drafter) -> Drafter:
    """Give a copy whose norms are torch's own."""
    plain = Drafter(drafter.config)
    for module in list(plain.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.RMSNorm):
                setattr(module, name, nn.RMSNorm(child.normalized_shape, eps=child.eps))
    plain.load_state_dict(drafter.state_dict())
    return plain


WAYS: dict[str, Callable[[Step], float]] = {"ours": Step.ours, "dense": Step.dense}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose names hold one of the words")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.only or any(word in case.name for word in options.only)]
    result = {
        "environment": environment(),
        "rounds": options.rounds,
        "rows": [measure(case, options.rounds) for case in cases],
    }
    text = as_markdown(result)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(text + "\n")


def environment() -> dict:
    """Hardware and versions."""
    cpu, told = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    for line in told.read_text().splitlines() if told.exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dflash-lab": metadata.version("dflash-lab"),
    }


def measure(case: Case, rounds: int) -> dict:
    """Time both ways in a fresh process, and take the memory of each in another."""
    print(f"{case.name} ...", file=sys.stderr)
    row = {"case": case.name, "least_ratio": case.least_ratio, "most_memory": case.most_memory}
    row |= in_fresh_process(measure_time, case, rounds)
    for way in WAYS:
        row[f"{way}_memory"] = in_fresh_process(measure_memory, case, way)
    return row


def measure_time(case: Case, rounds: int) -> dict:
    """Time both ways, round after round: {way: seconds of each round}."""
    torch.set_num_threads(1)
    step = Step(case)
    step.compare()
    seconds: dict[str, list[dict]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, run in WAYS.items():
            seconds[way].append(vars(timed(partial(run, step))[0]))
    return seconds


def measure_memory(case: Case, way: str) -> dict:
    """Give the most resident bytes of steps beyond what is there after the batch is made and a small step was run."""
    torch.set_num_threads(1)
    run = WAYS[way]
    run(Step(SMALL))
    step = Step(case)
    before = peak_bytes()
    for _ in range(2):
        run(step)
    return {"bytes": peak_bytes() - before}


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others kilobytes.
    return peak if sys.platform == "darwin" else peak * 1024


def as_markdown(result: dict) -> str:
    about = ", ".join(f"{name} {value}" for name, value in result["environment"].items())
    lines = [
        f"One step in float32, hidden {WIDTH}, 2 layers, 8 heads of 32, intermediate 768, block 16, vocabulary "
        f"{VOCAB:,}, one thread, medians of {result['rounds']} rounds; {about}.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- " * len(COLUMNS) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in result["rows"]),
    ]
    return "\n".join(lines)


def cells(row: dict) -> list[str]:
    if "error" in row:
        return [row["case"], row["error"], *[""] * (len(COLUMNS) - 2)]
    ours, dense = ([taken["cpu"] for taken in row[way]] for way in ("ours", "dense"))
    ratios = [other / own for own, other in zip(ours, dense, strict=True)]
    ratio = statistics.median(ratios)
    found = [
        row["case"],
        f"{statistics.median(ours):.3f}",
        f"{statistics.median(dense):.3f}",
        f"{ratio:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        target(f"{row['least_ratio']:.1f}x", ratio >= row["least_ratio"]),
    ]
    memories = [row[f"{way}_memory"] for way in WAYS]
    if errors := [memory["error"] for memory in memories if "error" in memory]:
        return [*found, errors[0], "", "", ""]
    own, other = (memory["bytes"] for memory in memories)
    share = own / other
    found += [f"{own / 1e6:.0f}", f"{other / 1e6:.0f}", f"{share:.2f}"]
    return [*found, target(f"at most {row['most_memory']:.1f}", share <= row["most_memory"])]


def target(text: str, is_met: bool) -> str:
    return f"{text}: {'met' if is_met else 'NOT met'}"


if __name__ == "__main__":
    main()
