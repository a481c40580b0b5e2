"""The walk along the losses that finds resets: a level from the past, frozen while a reset lasts."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

import numpy as np

RECOVERED, NEXT_RESET, END_OF_LOG, NEW_LEVEL = "recovered", "next reset", "end of log", "new level"
# Losses that a level needs. A spread that comes out too small at the beginning takes every higher loss for a reset, so
# that none of them ever widens it: long logs wait for 50, of short ones two fifths must do, but 12 at least.
_LEAST_HISTORY, _ENOUGH_HISTORY = 12, 50
# A normal deviation is the distance of the quartiles over the first, and of the upper tenth from the median over the
# second. The larger counts: of a loss with a mode for each bucket, the quartiles may both lie in one mode.
_QUARTILES, _UPPER_TENTH = 1.349, 1.2816
# Losses whose median must be back, so that one lucky step is not taken for the recovery.
_BACK_FOR = 5
# Losses of the recovery that a further jump is measured against.
_RECENT, _LEAST_RECENT = 20, 10
# Steps that an onset is moved back along a rise that is already half as high.
_MOST_BACK = 10


@dataclass(kw_only=True)
class Reset:
    """A reset, in rows of the table.

    Attributes:
        onset: Row it begins at.
        level: Level of the loss before it.
        spread: Spread of the loss before it.
        end: First row that no longer belongs to it.
        ending: "recovered" | "next reset" | "end of log" | "new level".
    """

    onset: int
    level: float
    spread: float
    end: int = 0
    ending: str = END_OF_LOG


class Window:
    """The last values of a series, in order of size.

    Args:
        most: Values that are kept.

    Attributes:
        most: Values that are kept.
        ordered: Those there are, ascending.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.ordered: list[float] = []
        self._arrived: deque[float] = deque()

    def take(self, value: float) -> None:
        """Add a value; the oldest leaves when there are too many."""
        self._arrived.append(value)
        insort(self.ordered, value)
        if len(self._arrived) > self.most:
            del self.ordered[bisect_left(self.ordered, self._arrived.popleft())]

    def clear(self) -> None:
        """Forget all values."""
        self._arrived.clear()
        self.ordered.clear()


class ResetScan:
    """One pass over the losses, each judged by those before it.

    Args:
        losses: float64 (n,), NaN where there is none.
        steps: int64 (n,), increasing.
        threshold: Height above the level, in spreads, that begins a reset.
        window: Losses that make a level.
        most_recovery: Steps after which a loss that stays up has a new level.
        floor: Least spread.

    Attributes:
        level: float64 (n,), NaN where there are too few losses before a step.
        spread: The same for the spread.
        resets: Those found, in order.
    """

    def __init__(
        self,
        losses: np.ndarray,
        steps: np.ndarray,
        *,
        threshold: float,
        window: int,
        most_recovery: int,
        floor: float,
    ) -> None:
        self._losses: list[float] = losses.tolist()
        self._steps, self._threshold, self._floor = steps, threshold, floor
        self._least_history = min(window, _ENOUGH_HISTORY, max(_LEAST_HISTORY, 2 * len(losses) // 5))
        self._most_recovery = most_recovery
        self.level = np.full(len(losses), np.nan)
        self.spread = np.full(len(losses), np.nan)
        self.resets: list[Reset] = []
        self._losses_before = Window(window)
        # Spreads are of the losses around their own levels: those of a falling loss are far apart by the fall alone.
        self._heights_before = Window(window)
        row = 0
        while row < len(losses):
            row = self._step(row)

    def scores(self) -> np.ndarray:
        """Heights above the level in spreads, of the steps outside resets and of the onsets."""
        inside = np.zeros(len(self._losses), bool)
        for reset in self.resets:
            inside[reset.onset + 1 : reset.end] = True
        scores = (np.asarray(self._losses) - self.level) / self.spread
        return scores[~inside & np.isfinite(scores)]

    def _step(self, row: int) -> int:
        """Take one loss in, or a whole reset; give the row that comes next."""
        loss = self._losses[row]
        if math.isnan(loss):
            return row + 1
        losses, heights = self._losses_before, self._heights_before
        if len(losses.ordered) >= _LEAST_HISTORY:
            level = _level(losses.ordered)
            if len(losses.ordered) >= self._least_history:
                spread = _spread((heights if len(heights.ordered) >= _LEAST_HISTORY else losses).ordered)
                spread = max(spread, self._floor)
                self.level[row], self.spread[row] = level, spread
                if loss - level > self._threshold * spread:
                    return self._reset(row, level, spread)
            heights.take(loss - level)
        losses.take(loss)
        return row + 1

    def _reset(self, row: int, level: float, spread: float) -> int:
        """Follow a reset, and those that begin before it is over, to the row where the loss is back."""
        reset = Reset(onset=self._risen_from(row), level=level, spread=spread)
        self.resets.append(reset)
        back, began = level + spread, int(self._steps[row])
        recent: deque[float] = deque(maxlen=_RECENT)
        place, ending = row + 1, END_OF_LOG
        recent.append(self._losses[row])
        while place < len(self._losses):
            loss = self._losses[place]
            if not math.isnan(loss):
                if loss <= back and self._stays(place, back):
                    ending = RECOVERED
                    break
                if self._steps[place] - began >= self._most_recovery:
                    ending = NEW_LEVEL
                    break
                if len(recent) >= _LEAST_RECENT and loss - back > self._threshold * spread:
                    ordered = sorted(recent)
                    high = _level(ordered)
                    # Noise grows with the loss; a few smooth steps must not make the next one look like a jump.
                    wide = max(_spread(ordered), spread * max(1.0, high / level if level > 0 else 1.0))
                    if loss - high > self._threshold * wide:
                        reset.end, reset.ending = place, NEXT_RESET
                        reset = Reset(onset=place, level=high, spread=wide)
                        self.resets.append(reset)
                        recent.clear()
                        began = int(self._steps[place])
                recent.append(loss)
            place += 1
        reset.end, reset.ending = place, ending
        self.level[row:place], self.spread[row:place] = level, spread
        if ending == NEW_LEVEL:
            self._losses_before.clear()
            for loss in self._losses[max(row, place - self._losses_before.most) : place]:
                if not math.isnan(loss):
                    self._losses_before.take(loss)
        return place

    def _risen_from(self, row: int) -> int:
        """The first row of the unbroken rise to this one: above half the threshold."""
        onset = row
        while row - onset < _MOST_BACK and onset > 0:
            before = self._losses[onset - 1]
            if not before - self.level[onset - 1] > self._threshold / 2 * self.spread[onset - 1]:
                break
            if self.resets and onset - 1 < self.resets[-1].end:
                break
            onset -= 1
        return onset

    def _stays(self, place: int, back: float) -> bool:
        ahead = [loss for loss in self._losses[place : place + 2 * _BACK_FOR] if not math.isnan(loss)][:_BACK_FOR]
        return 2 * sum(loss <= back for loss in ahead) > len(ahead)


def _level(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def _spread(ordered: list[float]) -> float:
    last = len(ordered) - 1
    # The nearest rank each: between two ranks would cost a second for 100,000 steps and change nothing.
    quarters = ordered[(3 * last + 2) // 4] - ordered[(last + 2) // 4]
    upper = ordered[(9 * last + 5) // 10] - ordered[(last + 1) // 2]
    return max(quarters / _QUARTILES, upper / _UPPER_TENTH)


def least_spread(losses: np.ndarray) -> float:
    """Give the spread that a level has at least: of rounded losses the quartiles may be equal.

    Args:
        losses: float64 (n,), finite.

    Returns:
        Six tenths of the change from step to step that a tenth of the changes are below, so that two units of a rounded
        loss are less than four spreads; a millionth of the loss if nine of ten steps change nothing.
    """
    least = max(1e-6 * float(np.median(np.abs(losses))), 1e-12) if len(losses) else 1e-12
    changes = np.abs(np.diff(losses))
    changes = changes[changes > 0]
    if len(changes) < 0.1 * len(losses) or not len(changes):
        return least
    return max(least, 0.6 * float(np.quantile(changes, 0.1)))
