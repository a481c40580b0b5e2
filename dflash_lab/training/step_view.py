"""A step of a run as it is looked at: tables, text with the loss mask, and a piece of a page."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dflash_lab.analysis.records import record_table
from dflash_lab.data import TextSpan

# Rows of a table that are shown.
MAX_ROWS = 60
_BOX = "white-space: pre-wrap; max-height: 24em; overflow: auto; padding: 0.6em; border: 1px solid rgba(127, 127, 127)"
# Pale fills and a strong line: readable on light and dark pages, and in print without colours.
_SUPERVISED = "background: rgba(0, 158, 115, 0.25); border-bottom: 2px solid rgb(0, 158, 115)"
_UNSUPERVISED = "opacity: 0.65"
_THIS_STEP = "font-weight: bold; background: rgba(230, 159, 0, 0.25)"


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """A sample of a step.

    Args:
        sample_id: Its number in the data set.
        batch_id: Batch of the epoch's plan that it was in.
        bucket_id: Bucket of that batch, -1 for none.
        rank: Process that trained it.
        source: Where it is from; None where the data says nothing.
        length: Tokens, after the cut.
        loss_tokens: Supervised tokens among them.
        padding_share: Padding in its row, as a share of the row, in [0, 1); None in a packed batch, whose rows hold
            several samples.
        loss: Loss over its blocks; None where the step was not replayed, or nothing of it was scored.
        num_blocks: Its draft blocks; None where the step was not replayed.
        spans: Its text cut where the mask changes, long stretches shortened in their middle; empty where it was not
            asked for.
        num_spans: Stretches that it has, those that `spans` leaves out included; None where it was not asked for.
    """

    sample_id: int
    batch_id: int
    bucket_id: int
    rank: int
    source: str | None
    length: int
    loss_tokens: int
    padding_share: float | None
    loss: float | None
    num_blocks: int | None
    spans: tuple[TextSpan, ...] = ()
    num_spans: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepView:
    """A step, looked up; as the last value of a notebook cell it shows itself.

    Args:
        run_dir: The run's folder.
        step: The step.
        epoch: Its epoch.
        batches: One mapping a batch: batch_id, bucket_id, rank, layout, num_samples, width, real_tokens, padded_tokens,
            padding_efficiency, length_min, length_max.
        samples: Its samples, batch after batch; those of the highest loss first where the step was replayed.
        logged: What the log says of it; None where the log has no such step.
        neighbours: Lines of the log around it, its own among them, ascending.
        notes: What could not be checked or is not shown, in words.
    """

    run_dir: Path
    step: int
    epoch: int
    batches: tuple[Mapping[str, Any], ...]
    samples: tuple[StepSample, ...]
    logged: Mapping[str, Any] | None
    neighbours: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    def batch_table(self) -> Any:
        """Give the batches as a polars table, one row each."""
        return record_table(self.batches)

    def sample_table(self) -> Any:
        """Give the samples as a polars table, one row each, without their text."""
        return record_table(_facts(sample) for sample in self.samples)

    def neighbour_table(self) -> Any:
        """Give the log around the step as a polars table: one row a step."""
        return record_table(_neighbour(line) for line in self.neighbours)

    def html(self) -> str:
        """Give the step as a piece of a page: escaped, bounded as its samples' text is, readable in light and dark."""
        parts = [f"<p>{html.escape(self._title())}</p>"]
        if self.neighbours:
            marked = [line["step"] == self.step for line in self.neighbours]
            parts.append(_html_table([_neighbour(line) for line in self.neighbours], marked))
        parts.append(_html_table(list(self.batches[:MAX_ROWS])))
        parts.append(_html_table([_facts(sample) for sample in self.samples[:MAX_ROWS]]))
        key = f'<span style="{_SUPERVISED}">supervised</span> <span style="{_UNSUPERVISED}">not supervised</span>'
        for sample in self._with_text():
            parts.append(f"<p>{html.escape(_caption(sample))} {key}</p>")
            parts.append(f'<pre style="{_BOX}">{"".join(map(_html_span, sample.spans))}{_more_spans(sample)}</pre>')
        parts += [f"<p>{html.escape(note)}</p>" for note in self._all_notes()]
        return "\n".join(parts)

    def text(self) -> str:
        """Give the step as plain text, supervised parts in ⟦ ⟧."""
        parts = [self._title()]
        parts += [_plain_row(_neighbour(line)) for line in self.neighbours]
        parts += [_plain_row(batch) for batch in self.batches[:MAX_ROWS]]
        parts += [_plain_row(_facts(sample)) for sample in self.samples[:MAX_ROWS]]
        for sample in self._with_text():
            spans = (f"⟦{span.text}⟧" if span.supervised else span.text for span in sample.spans)
            parts.append(f"{_caption(sample)}\n{''.join(spans)}{_more_spans(sample)}")
        return "\n".join([*parts, *self._all_notes()])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.text()}

    def _title(self) -> str:
        tokens = sum(batch["real_tokens"] for batch in self.batches)
        return (
            f"Step {self.step:,} of {self.run_dir.name}, epoch {self.epoch}: {len(self.batches)} batches, "
            f"{len(self.samples)} samples, {tokens:,} tokens"
        )

    def _with_text(self) -> Iterator[StepSample]:
        return (sample for sample in self.samples if sample.spans)

    def _all_notes(self) -> list[str]:
        rows = {"batches": len(self.batches), "samples": len(self.samples)}
        hidden = [f"{count - MAX_ROWS:,} more {name} are not shown" for name, count in rows.items() if count > MAX_ROWS]
        return [*self.notes, *hidden]


def _facts(sample: StepSample) -> dict[str, object]:
    return {name: value for name, value in vars(sample).items() if name not in ("spans", "num_spans")}


def _neighbour(line: Mapping[str, Any]) -> dict[str, object]:
    """What a reader compares between steps; ratios are made here, of the line's sums. What a log lacks is None."""

    def total(name: str) -> Any:
        return None if line.get(name) is None else sum(line[name])

    return {
        "step": line["step"],
        "loss": _ratio(line.get("loss_sum"), line.get("loss_weight")),
        "accuracy": _ratio(total("correct_by_position"), total("total_by_position")),
        "streak": _ratio(line.get("accepted_sum"), line.get("num_blocks")),
        "grad_norm": line.get("grad_norm"),
        "learning_rate": line.get("learning_rate"),
        "noise": line.get("noise"),
        "skipped": line.get("skipped"),
        "bucket_ids": ", ".join(map(str, line.get("bucket_ids") or [])),
        "num_samples": total("num_samples"),
        "real_tokens": total("real_tokens"),
        "length_min": line.get("length_min"),
        "length_max": line.get("length_max"),
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _caption(sample: StepSample) -> str:
    loss = "" if sample.loss is None else f", loss {sample.loss:.3f} over {sample.num_blocks} blocks"
    source = "" if sample.source is None else f" from {sample.source}"
    return (
        f"Sample {sample.sample_id}{source}: {sample.length:,} tokens, {sample.loss_tokens:,} supervised, batch "
        f"{sample.batch_id}{loss}"
    )


def _more_spans(sample: StepSample) -> str:
    hidden = (sample.num_spans or 0) - len(sample.spans)
    return f"\n({sample.num_spans:,} stretches in all)" if hidden > 0 else ""


def _html_span(span: TextSpan) -> str:
    said = "supervised" if span.supervised else "not supervised"
    style = _SUPERVISED if span.supervised else _UNSUPERVISED
    return f'<span title="{span.num_tokens:,} tokens, {said}" style="{style}">{html.escape(span.text)}</span>'


def _html_table(rows: Sequence[Mapping[str, object]], marked: Sequence[bool] = ()) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = []
    for row, is_marked in zip_longest(rows, marked, fillvalue=False):
        style = f' style="{_THIS_STEP}"' if is_marked else ""
        cells = "".join(f"<td>{html.escape(_shown(value))}</td>" for value in row.values())  # type: ignore[union-attr]
        body.append(f"<tr{style}>{cells}</tr>")
    drawn = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div style="overflow-x: auto">{drawn}</div>'


def _plain_row(row: Mapping[str, object]) -> str:
    return " | ".join(f"{name} {_shown(value)}" for name, value in row.items())


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:40]}…{text[-39:]}"
