"""A step of a run looked up in its ledger, data and log: what was trained there, and what stands before and after."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from dflash_lab.data import PreloadedDataset, TextSpan, TokenText
from dflash_lab.training.ledger import LedgerStep, read_ledger, step_ranges
from dflash_lab.training.replayed import StepReplay
from dflash_lab.training.run_log import MANIFEST, METRICS, read_lines
from dflash_lab.training.step_view import StepSample, StepView

# Most tokens that are decoded of one stretch, half of them from each end, and most stretches of a sample.
MAX_SPAN_TOKENS = 160
MAX_SPANS = 16
# Most letters of a decoded stretch: single tokens may be long.
MAX_SPAN_CHARACTERS = 800


def explore_step(
    run_dir: str | Path,
    step: int,
    dataset: PreloadedDataset,
    tokenizer: Any | None = None,
    *,
    replayed: StepReplay | None = None,
    neighbours: int = 3,
    max_texts: int = 6,
) -> StepView:
    """Look up what made a step of a run; no target, no checkpoint and no log are needed, only the ledger.

    Args:
        run_dir: The run's folder; only read.
        step: One that is in its ledger.
        dataset: The run's samples.
        tokenizer: Theirs, of `tokenizers` or `transformers`; None shows ids.
        replayed: The step as `replay_step` made it: samples then carry their losses, and those of the highest loss come
            first.
        neighbours: Steps of the log to show before and behind it, >= 0.
        max_texts: Samples whose text is decoded, >= 0: the first ones where the step was replayed, else one of each
            batch in turn.

    Returns:
        The step; texts are shortened, and the notes say what is left out.

    Raises:
        ValueError: If there is no ledger or no such step in it, or data or tokenizer are not the run's.
    """
    for name, value in (("neighbours", neighbours), ("max_texts", max_texts)):
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} is {value!r}; legal: a whole number >= 0")
    run_dir = Path(run_dir)
    ledger = read_ledger(run_dir, {step})
    if step not in ledger.steps:
        raise ValueError(
            f"step is {step!r}; legal: one in the ledger of {run_dir}, which has {step_ranges(ledger.numbers)}"
        )
    if replayed is not None and replayed.step != step:
        raise ValueError(f"replayed is step {replayed.step}; legal: the replay of step {step}")
    record = ledger.steps[step]
    notes = [*_check_data(run_dir, record, dataset)]
    samples = _samples(record, dataset, replayed)
    chosen = _chosen(samples, max_texts, by_loss=replayed is not None)
    text = _token_text(tokenizer, dataset)
    shown = tuple(_with_spans(sample, dataset, text) if at in chosen else sample for at, sample in enumerate(samples))
    if len(chosen) < len(samples):
        notes.append(f"the text of {len(chosen)} of {len(samples)} samples is shown")
    if tokenizer is None:
        notes.append("no tokenizer was given: ids stand for text")
    logged = {line["step"]: line for line in read_lines(run_dir / METRICS)}
    if step not in logged:
        notes.append(f"the log has no step {step}")
    order = sorted(logged)
    around = [number for number in order if number < step][-neighbours:] if neighbours else []
    around += [step] if step in logged else []
    around += [number for number in order if number > step][:neighbours]
    return StepView(
        run_dir=run_dir,
        step=step,
        epoch=record.epoch,
        batches=tuple(map(_batch, record.batches)),
        samples=shown,
        logged=logged.get(step),
        neighbours=tuple(logged[number] for number in around),
        notes=tuple(notes),
    )


def _check_data(run_dir: Path, record: LedgerStep, dataset: PreloadedDataset) -> Iterator[str]:
    """Refuse data that cannot be the run's; yields what could not be checked."""
    manifest = run_dir / MANIFEST
    if manifest.is_file():
        made_of = json.loads(manifest.read_text(encoding="utf-8"))["identity"]["data"]
        if made_of != dataset.fingerprint:
            raise ValueError(f"the data has the fingerprint {dataset.fingerprint}, and that of {run_dir} has {made_of}")
    else:
        yield f"{run_dir} has no {MANIFEST}: whether the data is the run's was checked by lengths alone"
    for batch in record.batches:
        for sample_id, length in zip(batch["sample_ids"], batch["lengths"], strict=True):
            if not 0 <= sample_id < len(dataset):
                raise ValueError(f"the ledger names sample {sample_id}, and the data has {len(dataset):,} samples")
            if length > dataset.lengths[sample_id]:
                raise ValueError(
                    f"sample {sample_id} has {dataset.lengths[sample_id]:,} tokens, and {length:,} in the ledger: the "
                    f"data is not the run's, or is cut shorter"
                )


def _samples(record: LedgerStep, dataset: PreloadedDataset, replayed: StepReplay | None) -> list[StepSample]:
    rows = []
    for batch in record.batches:
        for sample_id, length in zip(batch["sample_ids"], batch["lengths"], strict=True):
            is_cut = length < dataset.lengths[sample_id]
            mask = dataset[sample_id].loss_mask[:length] if is_cut else None
            rows.append(
                StepSample(
                    sample_id=sample_id,
                    batch_id=batch["batch_id"],
                    bucket_id=batch["bucket_id"],
                    rank=batch["rank"],
                    source=None if dataset.sources is None else dataset.sources[sample_id],
                    length=length,
                    loss_tokens=int(dataset.loss_tokens[sample_id] if mask is None else mask.sum()),
                    padding_share=1 - length / batch["width"] if batch["layout"] == "padded" else None,
                    loss=None,
                    num_blocks=None,
                )
            )
    return rows if replayed is None else _with_losses(rows, replayed)


def _with_losses(samples: Sequence[StepSample], replayed: StepReplay) -> list[StepSample]:
    if [sample.sample_id for sample in samples] != replayed.sample_ids.tolist():
        raise ValueError(f"replayed is of other samples than the ledger's of step {replayed.step}")
    made = [
        dataclasses.replace(
            sample,
            loss=float(replayed.sample_loss_sum[at] / weight) if weight else None,
            num_blocks=int(replayed.sample_blocks[at]),
        )
        for at, (sample, weight) in enumerate(zip(samples, replayed.sample_loss_weight.tolist(), strict=True))
    ]
    # NaN first: that is what one looks for.
    return sorted(made, key=lambda sample: _sort_key(sample.loss))


def _sort_key(loss: float | None) -> tuple[int, float]:
    if loss is None:
        return 2, 0.0
    return (0, 0.0) if np.isnan(loss) else (1, -loss)


def _chosen(samples: Sequence[StepSample], most: int, *, by_loss: bool) -> set[int]:
    """Places of the samples whose text is shown: the first ones, or one of each batch in turn."""
    if by_loss:
        return set(range(min(most, len(samples))))
    by_batch: dict[tuple[int, int], list[int]] = {}
    for at, sample in enumerate(samples):
        by_batch.setdefault((sample.rank, sample.batch_id), []).append(at)
    turns = (at for turn in zip_longest(*by_batch.values()) for at in turn if at is not None)
    return {at for at, _ in zip(turns, range(most), strict=False)}


def _token_text(tokenizer: Any | None, dataset: PreloadedDataset) -> TokenText:
    # A tokenizer of transformers holds one of tokenizers.
    plain = tokenizer.backend_tokenizer if hasattr(tokenizer, "backend_tokenizer") else tokenizer
    if plain is not None and not hasattr(plain, "get_vocab_size"):
        raise ValueError(f"tokenizer is a {type(plain).__name__}; legal: one of tokenizers or transformers, or None")
    text = TokenText(plain)
    if text.vocab_size is not None and dataset.max_id >= text.vocab_size:
        raise ValueError(
            f"the data has the id {dataset.max_id}, and the tokenizer {text.vocab_size} entries; legal: the tokenizer "
            f"that the samples were made with, or None"
        )
    return text


def _with_spans(sample: StepSample, dataset: PreloadedDataset, text: TokenText) -> StepSample:
    whole = dataset[sample.sample_id]
    ids, mask = whole.input_ids[: sample.length], whole.loss_mask[: sample.length]
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
    stretches = list(zip(edges, edges[1:], strict=False))
    # Both ends: the first turns and the last answer say most about a sample.
    head = stretches[: MAX_SPANS // 2]
    tail = stretches[len(head) :][-(MAX_SPANS - len(head)) :]
    left_out = len(stretches) - len(head) - len(tail)
    spans = [_span(ids, bool(mask[begin]), begin, end, text) for begin, end in head]
    if left_out:
        begin, end = head[-1][1], tail[0][0]
        spans.append(TextSpan(f"\n[... {left_out:,} more stretches ...]\n", False, end - begin))
    spans += [_span(ids, bool(mask[begin]), begin, end, text) for begin, end in tail]
    return dataclasses.replace(sample, spans=tuple(spans), num_spans=len(stretches))


def _span(ids: np.ndarray, supervised: bool, begin: int, end: int, text: TokenText) -> TextSpan:
    count, half = end - begin, MAX_SPAN_TOKENS // 2
    edge = MAX_SPAN_CHARACTERS // 2
    if count <= MAX_SPAN_TOKENS:
        shown = text.decode(ids[begin:end])
        if len(shown) > MAX_SPAN_CHARACTERS:
            shown = f"{shown[:edge]}\n[... {len(shown) - 2 * edge:,} letters ...]\n{shown[-edge:]}"
    else:
        first, last = text.decode(ids[begin : begin + half]), text.decode(ids[end - half : end])
        shown = f"{first[:edge]}\n[... {count - 2 * half:,} tokens ...]\n{last[-edge:]}"
    return TextSpan(shown, supervised, count)


def _batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "batch_id": batch["batch_id"],
        "bucket_id": batch["bucket_id"],
        "rank": batch["rank"],
        "layout": batch["layout"],
        "num_samples": len(batch["sample_ids"]),
        "width": batch["width"],
        "real_tokens": batch["real_tokens"],
        "padded_tokens": batch["padded_tokens"],
        "padding_efficiency": batch["real_tokens"] / batch["padded_tokens"],
        "length_min": batch["length_min"],
        "length_max": batch["length_max"],
    }
