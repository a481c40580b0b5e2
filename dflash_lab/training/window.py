"""The features of one optimizer step, handed over one batch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dflash_lab.feed import Batch
from dflash_lab.target import TargetFeatures


class FeatureWindow:
    """One pass over the features of a step; features that were handed over are let go, since they are large.

    Args:
        features: Features in plan order.
        num_batches: Batches of the step, >= 1.
        keep_first: Keep the features of the first batch with a supervised token, for scores that come afterwards.

    Attributes:
        batches: The batches handed over so far.
        kept: What was kept.
        wait_seconds: Time spent waiting for features.
    """

    def __init__(self, features: Iterator[TargetFeatures], num_batches: int, *, keep_first: bool) -> None:
        self._features, self._num_batches, self._keep_first = features, num_batches, keep_first
        self.batches: list[Batch] = []
        self.kept: list[TargetFeatures] = []
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[TargetFeatures]:
        """Hand over the step's features; waits for each."""
        for _ in range(self._num_batches):
            begin = time.perf_counter()
            features = next(self._features, None)
            self.wait_seconds += time.perf_counter() - begin
            assert features is not None, "the plan has fewer batches than the course"
            self.batches.append(features.batch)
            if self._keep_first and not self.kept and features.batch.loss_mask.any():
                self.kept.append(features)
            yield features
            # The generator itself would hold them until the next batch is there.
            del features
