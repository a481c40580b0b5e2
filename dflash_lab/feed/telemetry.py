"""Where the time of a run goes: seconds at each boundary between stages, and which stage bounds the run."""

from __future__ import annotations

from dataclasses import dataclass, fields

STAGES = ("loader", "target", "drafter")


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Seconds of the stages up to a moment; the difference of two is a window. Costs a few additions to take.

    Seconds of several workers or targets are added up; their numbers are given beside them.

    Args:
        num_workers: Threads that read.
        num_targets: Target loops.
        read_seconds: Workers reading and collating.
        room_seconds: Workers waiting for room in a queue.
        batch_seconds: Targets waiting for a batch.
        target_seconds: Targets computing.
        blocked_seconds: Targets with features in hand and no room for them.
        feature_seconds: The drafter waiting for features.
        drafter_seconds: The drafter computing.
    """

    num_workers: int = 1
    num_targets: int = 1
    read_seconds: float = 0.0
    room_seconds: float = 0.0
    batch_seconds: float = 0.0
    target_seconds: float = 0.0
    blocked_seconds: float = 0.0
    feature_seconds: float = 0.0
    drafter_seconds: float = 0.0

    def __sub__(self, earlier: StageTimes) -> StageTimes:
        """Give the seconds since an earlier moment of the same run."""
        if (self.num_workers, self.num_targets) != (earlier.num_workers, earlier.num_targets):
            raise ValueError(
                f"times of {self.num_workers} workers and {self.num_targets} targets less those of "
                f"{earlier.num_workers} and {earlier.num_targets}; legal: two moments of one run"
            )
        spent = {
            entry.name: getattr(self, entry.name) - getattr(earlier, entry.name)
            for entry in fields(self)
            if entry.name.endswith("_seconds")
        }
        return StageTimes(num_workers=self.num_workers, num_targets=self.num_targets, **spent)

    @property
    def busy_shares(self) -> dict[str, float | None]:
        """Share of its own time that each stage works rather than waits; None where it did neither."""
        waits = {
            "loader": (self.read_seconds, self.room_seconds),
            "target": (self.target_seconds, self.batch_seconds + self.blocked_seconds),
            "drafter": (self.drafter_seconds, self.feature_seconds),
        }
        return {name: busy / (busy + wait) if busy + wait else None for name, (busy, wait) in waits.items()}

    @property
    def bound_by(self) -> str | None:
        """The stage that the others wait for: "loader", "target" or "drafter"; None before anything has run.

        A stage that waits for nothing bounds the run. Where several are near that, the last of them in the flow does:
        the ones before it only fill queues that are not yet full.
        """
        shares = {name: share for name, share in self.busy_shares.items() if share is not None}
        if not shares:
            return None
        busiest = max(shares.values())
        return [name for name in STAGES if name in shares and shares[name] >= busiest - 0.02][-1]
