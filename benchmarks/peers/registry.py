"""How a peer is named, found and called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata

import numpy as np

Batches = Iterable[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another planner.

    Args:
        name: What the table calls it.
        package: Its distribution on PyPI, with the release that was tried where not every one will do.
        prepare: Takes lengths, budget, cap and seed; imports the peer, builds its input, and gives a function that
            plans one epoch when called. Only that call is timed.
        packed: Whether it packs rows without padding.
        ranks: Ranks that it plans for; the batches are those of the first.
        slow: Whether an epoch of the source run's size takes over half a minute.
        remark: What a reader of its row must know.
    """

    name: str
    package: str
    prepare: Callable[[np.ndarray, int, int, int], Callable[[], Batches]]
    packed: bool = False
    ranks: int = 1
    slow: bool = False
    remark: str = ""

    @property
    def version(self) -> str:
        """The installed version, "" where it is not installed."""
        try:
            return metadata.version(self.package.split("==")[0])
        except metadata.PackageNotFoundError:
            return ""
