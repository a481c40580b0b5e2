"""The arms of a study as tables: one row an arm, a step, a micro-batch, a scoring or a look at the buckets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

_ARM, _METRICS, _SCORES, _BUCKETS = "arm.json", "metrics.jsonl", "scores.jsonl", "buckets.jsonl"
_KEYS = ("label", "batching", "strategy", "order", "anchors_per", "normalisation", "seed")
_MICRO = ("micro_loss_sum", "micro_loss_weight", "micro_num_blocks", "micro_grad_norm")
_OF_BATCH = ("num_samples", "real_tokens", "padded_tokens")
_BY_BUCKET = ("bucket_loss_sums", "bucket_loss_weights", "bucket_num_blocks")


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyLog:
    """What the arms of a study did. All tables have label, batching, strategy, order, anchors_per, normalisation, seed.

    Args:
        arms: One row an arm and seed: anchors_amount, num_steps, num_batches, real_tokens_trained,
            padded_tokens_trained, blocks_trained, seconds.
        steps: One row an optimizer step: step, epoch, loss (null where it is not finite or nothing was weighed),
            loss_weight, num_blocks, num_samples, real_tokens, padded_tokens, mean_length (tokens a sample), grad_norm,
            cosine_with_last, bucket_id (the bucket with most loss weight, the shortest among equals; -1 without any).
        micro: One row a micro-batch: step, micro_id, loss, num_blocks, num_samples, grad_norm (of its own mean loss),
            bucket_id.
        scores: One row a scoring of held-out samples: step, real_tokens_trained, padded_tokens_trained, tau, loss.
        looks: One row a look at the buckets' gradients: step, half_num_blocks, products.
        bucket_bounds: In tokens.
    """

    arms: pl.DataFrame
    steps: pl.DataFrame
    micro: pl.DataFrame
    scores: pl.DataFrame
    looks: pl.DataFrame
    bucket_bounds: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """The arms in words, in the order of the study."""
        return self.arms["label"].unique(maintain_order=True).to_list()


def read_study(arm_folders: Iterable[str | Path]) -> StudyLog:
    """Read the logs of a study's arms.

    Args:
        arm_folders: A folder an arm.

    Returns:
        Their tables, arms in the order given.

    Raises:
        ValueError: If there is no arm, a folder holds none or lacks lines of it, or arms have different buckets.
    """
    arms, steps, micro, scores, looks = [], [], [], [], []
    bounds: set[tuple[int, ...]] = set()
    for folder in map(Path, arm_folders):
        if not (folder / _ARM).is_file():
            raise ValueError(f"{folder} has no {_ARM}; legal: the folder of an arm that has come to its end")
        arm = json.loads((folder / _ARM).read_text(encoding="utf-8"))
        bounds.add(tuple(arm.pop("bucket_bounds")))
        key = {name: arm[name] for name in _KEYS}
        arms.append({**key, **{name: value for name, value in arm.items() if name not in key}})
        rows = _lines(folder / _METRICS)
        if len(rows) != arm["num_steps"]:
            raise ValueError(
                f"{folder / _METRICS} has {len(rows)} steps of {arm['num_steps']}; remove its folder, and the arm is "
                f"trained again"
            )
        steps += [{**key, **_step(row)} for row in rows]
        micro += [{**key, **each} for row in rows for each in _micro(row)]
        scores += [{**key, **_score(row)} for row in _lines(folder / _SCORES)]
        looks += [{**key, **row} for row in _lines(folder / _BUCKETS)]
    if not arms:
        raise ValueError("arm_folders is empty; legal: at least one arm")
    if len(bounds) > 1:
        raise ValueError(f"the arms have the bucket bounds {sorted(bounds)}; legal: the same in every arm")
    tables = [pl.DataFrame(rows, infer_schema_length=None) for rows in (arms, steps, micro, scores, looks)]
    floats = ("loss", "grad_norm", "cosine_with_last", "tau")
    cast = [table.cast({name: pl.Float64 for name in floats if name in table.columns}) for table in tables]
    return StudyLog(
        **dict(zip(("arms", "steps", "micro", "scores", "looks"), cast, strict=True)), bucket_bounds=bounds.pop()
    )


def _lines(file: Path) -> list[dict]:
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read ({error}); remove its folder, and the arm is trained again") from None
    if not rows:
        raise ValueError(f"{file} is empty; remove its folder, and the arm is trained again")
    return rows


def _step(row: dict) -> dict[str, object]:
    totals = {name: sum(row[name]) for name in _OF_BATCH}
    kept = {
        name: row[name]
        for name in ("step", "epoch", "loss_weight", "num_blocks", "grad_norm", "cosine_with_last", "updated")
    }
    return {
        **kept,
        **totals,
        "loss": _ratio(row["loss_sum"], row["loss_weight"]),
        "mean_length": totals["real_tokens"] / totals["num_samples"],
        "bucket_id": _main_bucket(np.sum(row["bucket_loss_weights"], axis=0)),
        "bucket_loss_weights": np.sum(row["bucket_loss_weights"], axis=0).tolist(),
    }


def _micro(row: dict) -> list[dict[str, object]]:
    columns = [row[name] for name in (*_MICRO, "num_samples", "real_tokens", "bucket_loss_weights")]
    return [
        {
            "step": row["step"],
            "micro_id": number,
            "loss": _ratio(loss_sum, weight),
            "loss_weight": weight,
            "num_blocks": blocks,
            "num_samples": samples,
            "mean_length": tokens / samples,
            "grad_norm": norm,
            "bucket_id": _main_bucket(np.asarray(weights)),
        }
        for number, (loss_sum, weight, blocks, norm, samples, tokens, weights) in enumerate(zip(*columns, strict=True))
    ]


def _score(row: dict) -> dict[str, object]:
    names = ("step", "real_tokens_trained", "padded_tokens_trained", "num_samples", "num_blocks", "tau", "loss")
    return {name: row[name] for name in names}


def _ratio(top: float | None, below: float | None) -> float | None:
    return top / below if top is not None and below else None


def _main_bucket(weights: np.ndarray) -> int:
    return int(np.argmax(weights)) if weights.any() else -1
