"""Target features of chosen samples, computed once and read by every arm in every process from one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from dflash_lab.batching import BatchingConfig
from dflash_lab.data import PreloadedDataset
from dflash_lab.data.folders import cache_folder, key_of, load_or_build
from dflash_lab.feed import Batch, BatchPrefetcher
from dflash_lab.study.material import StudyMaterial
from dflash_lab.study.settings import StudySettings
from dflash_lab.target import TargetFeatures, TargetModel
from dflash_lab.training.assembly import plan_samples

# Changes whenever the same samples give other files.
_FORMAT = 1
_INDEX, _ROWS = "index.json", "features.npy"
_SPLITS = ("train", "held_out")
# Rows that are read to tell a damaged file; all of them would take as long as an arm.
_PROBED_ROWS = 256


class StoredFeatures:
    """Gives batches the features of their samples, from a map of a file; stands where a target's `features` is called.

    A sample's features do not depend on what else is in its batch, nor on padding, so one file serves all batchings.

    Args:
        rows: float32 (tokens, num_taps * hidden_size), sample after sample.
        sample_ids: int64 (n,), ascending.
        lengths: int64 (n,), tokens of each.
        dtype: Of the target; its numbers are the same in float32.
    """

    def __init__(self, rows: np.ndarray, sample_ids: np.ndarray, lengths: np.ndarray, dtype: torch.dtype) -> None:
        self._rows, self._sample_ids, self._lengths, self._dtype = rows, sample_ids, lengths, dtype
        self._starts = np.cumsum(lengths) - lengths

    def features(self, batch: Batch, *, with_logits: bool = False) -> TargetFeatures:
        """Put a batch's features together; 0 at padding.

        Args:
            batch: Padded or packed, of samples that are in the file, on the CPU.
            with_logits: Must be False: no logits are kept.

        Raises:
            ValueError: If a sample is not in the file, is longer than there, or logits are asked for.
        """
        if with_logits:
            raise ValueError('logits are not kept; legal: a loss of kind "dflash" or "dpace"')
        hidden = torch.zeros(*batch.input_ids.shape, self._rows.shape[1])  # (R, T, F)
        places = zip(
            batch.rows.tolist(), batch.starts.tolist(), batch.lengths.tolist(), batch.sample_ids.tolist(), strict=True
        )
        for row, start, length, sample_id in places:
            hidden[row, start : start + length] = torch.from_numpy(self._of_sample(sample_id, length))
        return TargetFeatures(hidden=hidden.to(self._dtype), batch=batch)

    def _of_sample(self, sample_id: int, length: int) -> np.ndarray:
        place = int(np.searchsorted(self._sample_ids, sample_id))
        if place == len(self._sample_ids) or self._sample_ids[place] != sample_id or self._lengths[place] < length:
            raise ValueError(
                f"sample {sample_id} with {length} tokens is not among the {len(self._sample_ids)} samples whose "
                f"features are kept"
            )
        begin = self._starts[place]
        # A copy: torch wants memory that may be written.
        return np.array(self._rows[begin : begin + length])


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyFeatures:
    """Features of a study's samples.

    Args:
        train: Of those that are trained on.
        held_out: Of those that are scored.
        folder: Where the files are.
        num_bytes: Of both files.
    """

    train: StoredFeatures
    held_out: StoredFeatures
    folder: Path
    num_bytes: int


def load_or_compute_features(settings: StudySettings, material: StudyMaterial) -> StudyFeatures:
    """Give the features of a study's samples, from the cache, or computed and kept there.

    They are kept in float32: half of that saves disk, but no arm would train faster for it. What another choice of
    samples has left in the cache, with the same target, is removed.

    Args:
        settings: The cut, and the most bytes.
        material: Target and samples.

    Returns:
        The features; arms in other processes map the same files.

    Raises:
        ValueError: If they would take more than `settings.most_feature_bytes`.
    """
    target = material.target
    width = len(target.target_layer_ids) * target.hidden_size
    parts = {
        "train": _Part(material.train, material.train_ids, settings.max_seq_len),
        "held_out": _Part(material.held_out, material.held_out_ids, settings.max_seq_len),
    }
    num_tokens = sum(int(part.lengths.sum()) for part in parts.values())
    num_bytes = 4 * width * num_tokens
    if num_bytes > settings.most_feature_bytes:
        raise ValueError(
            f"the features of {num_tokens:,} tokens take {num_bytes:,} bytes, and most_feature_bytes is "
            f"{settings.most_feature_bytes:,}; legal: a larger one, or a smaller tokens_per_epoch, now "
            f"{settings.tokens_per_epoch:,}, or num_held_out, now {settings.num_held_out:,}"
        )
    identity = {
        "format": _FORMAT,
        "material": material.fingerprint,
        "max_seq_len": settings.max_seq_len,
        "width": width,
        "num_tokens": {name: int(part.lengths.sum()) for name, part in parts.items()},
    }
    place = cache_folder() / "study-features" / key_of(target.name) / key_of(identity)

    def build(folder: Path) -> None:
        digests = {name: _write_rows(folder / f"{name}-{_ROWS}", target, parts[name], width) for name in _SPLITS}
        (folder / _INDEX).write_text(json.dumps({**identity, "digests": digests}, indent=1) + "\n", encoding="utf-8")

    def load(folder: Path) -> StudyFeatures:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        if {name: index[name] for name in identity} != identity:
            raise ValueError(f"{_INDEX} is of other samples")
        stored = {}
        for name, part in parts.items():
            rows = np.load(folder / f"{name}-{_ROWS}", mmap_mode="r")
            if rows.shape != (int(part.lengths.sum()), width) or _digest(rows) != index["digests"][name]:
                raise ValueError(f"{name}-{_ROWS} does not hold what {_INDEX} says")
            stored[name] = StoredFeatures(rows, part.sample_ids, part.lengths, target.dtype)
        return StudyFeatures(train=stored["train"], held_out=stored["held_out"], folder=folder, num_bytes=num_bytes)

    return load_or_build([place], load, build, label="target features of a study")


class _Part:
    """Samples of one data set, cut."""

    def __init__(self, dataset: PreloadedDataset, sample_ids: np.ndarray, max_seq_len: int) -> None:
        self.dataset, self.sample_ids, self.max_seq_len = dataset, sample_ids, max_seq_len
        self.lengths = np.minimum(dataset.lengths[sample_ids], max_seq_len).astype(np.int64)


def _write_rows(path: Path, target: TargetModel, part: _Part, width: int) -> str:
    longest = int(part.lengths.max())
    config = BatchingConfig(
        strategy="sorted", order="as_built", token_budget=max(4_096, longest), max_seq_len=part.max_seq_len
    )
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(int(part.lengths.sum()), width))
    starts = np.cumsum(part.lengths) - part.lengths
    plan = plan_samples(part.dataset, part.sample_ids, config, epoch=0)
    with BatchPrefetcher(part.dataset, plan, num_workers=1, depth=2, pin_memory=False) as batches:
        for batch in batches:
            hidden = target.features(batch).hidden.float().cpu().numpy()  # (R, T, F)
            numbers = zip(batch.sample_ids.tolist(), batch.lengths.tolist(), strict=True)
            for row, (sample_id, length) in enumerate(numbers):
                begin = starts[np.searchsorted(part.sample_ids, sample_id)]
                rows[begin : begin + length] = hidden[row, :length]
    rows.flush()
    return _digest(rows)


def _digest(rows: np.ndarray) -> str:
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _PROBED_ROWS)).astype(np.int64))
    return blake2b(np.ascontiguousarray(rows[chosen]).tobytes(), digest_size=16).hexdigest()
