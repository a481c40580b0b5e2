"""How many draft tokens would be accepted: sums and counts that add up over batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch


def accepted_prefix(correct: torch.Tensor, supervised: torch.Tensor | None = None) -> torch.Tensor:
    """Count the right tokens of each block before its first wrong or unsupervised one.

    Args:
        correct: bool (N, K), slots 1..K of a block, the anchor left out.
        supervised: bool (N, K); None takes all slots as supervised.

    Returns:
        int64 (N,), without the bonus token: [1, 1, 0, 1] is 2.
    """
    right = correct if supervised is None else correct & supervised
    return right.long().cumprod(dim=1).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class BlockScores:
    """Sums and counts over blocks; two add up, and ratios are taken at the very end.

    Args:
        correct_by_position: Right tokens at slots 1..block_size - 1.
        total_by_position: Scored tokens there.
        survived_by_position: Blocks that are right from slot 1 through this one.
        reachable_by_position: Blocks whose slots from 1 through this one are all scored.
        accepted_sum: Accepted draft tokens, without bonus tokens.
        num_blocks: Blocks with a scored slot.
        full_accepted_sum: Accepted draft tokens of blocks whose slots are all scored.
        num_full_blocks: Those blocks.
    """

    correct_by_position: tuple[int, ...]
    total_by_position: tuple[int, ...]
    survived_by_position: tuple[int, ...]
    reachable_by_position: tuple[int, ...]
    accepted_sum: int
    num_blocks: int
    full_accepted_sum: int
    num_full_blocks: int

    @classmethod
    def of(cls, correct: torch.Tensor, scored: torch.Tensor) -> BlockScores:
        """Count blocks.

        Args:
            correct: bool (N, block_size), right and scored; slot 0 is the anchor.
            scored: bool (N, block_size).
        """
        right, counted = correct[:, 1:] & scored[:, 1:], scored[:, 1:]
        has_any, is_full = counted.any(dim=1), counted.all(dim=1)
        accepted = accepted_prefix(right)
        numbers = torch.stack(
            [
                right.sum(dim=0),
                counted.sum(dim=0),
                right.long().cumprod(dim=1).sum(dim=0),
                counted.long().cumprod(dim=1).sum(dim=0),
            ]
        ).tolist()
        return cls(
            correct_by_position=tuple(numbers[0]),
            total_by_position=tuple(numbers[1]),
            survived_by_position=tuple(numbers[2]),
            reachable_by_position=tuple(numbers[3]),
            accepted_sum=int(accepted.sum()),
            num_blocks=int(has_any.sum()),
            full_accepted_sum=int(accepted[is_full].sum()),
            num_full_blocks=int(is_full.sum()),
        )

    @classmethod
    def none(cls, block_size: int) -> BlockScores:
        """Give the scores of no block."""
        zeros = (0,) * (block_size - 1)
        return cls(
            correct_by_position=zeros,
            total_by_position=zeros,
            survived_by_position=zeros,
            reachable_by_position=zeros,
            accepted_sum=0,
            num_blocks=0,
            full_accepted_sum=0,
            num_full_blocks=0,
        )

    def __add__(self, other: BlockScores) -> BlockScores:
        """Add the counts of other blocks of the same size."""
        return BlockScores(
            **{entry.name: _added(getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self)}
        )

    @property
    def accuracy(self) -> float | None:
        """Right tokens among the scored ones; None without any."""
        return _ratio(sum(self.correct_by_position), sum(self.total_by_position))

    @property
    def accuracy_by_position(self) -> tuple[float | None, ...]:
        """The same for each of slots 1..block_size - 1."""
        return tuple(map(_ratio, self.correct_by_position, self.total_by_position))

    @property
    def survival_by_position(self) -> tuple[float | None, ...]:
        """Of blocks that are scored through a slot, those that are right through it."""
        return tuple(map(_ratio, self.survived_by_position, self.reachable_by_position))

    @property
    def streak(self) -> float | None:
        """Accepted draft tokens a block."""
        return _ratio(self.accepted_sum, self.num_blocks)

    @property
    def tau(self) -> float | None:
        """Acceptance length: streak + 1."""
        return None if self.streak is None else self.streak + 1

    @property
    def full_tau(self) -> float | None:
        """Acceptance length over the blocks whose slots are all scored."""
        streak = _ratio(self.full_accepted_sum, self.num_full_blocks)
        return None if streak is None else streak + 1


def _ratio(top: int, below: int) -> float | None:
    return top / below if below else None


def _added(one: int | tuple[int, ...], other: int | tuple[int, ...]) -> int | tuple[int, ...]:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return tuple(a + b for a, b in zip(one, other, strict=True))
    return one + other  # type: ignore[operator]
