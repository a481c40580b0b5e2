"""Numbers as far as rounded figures determine them: intervals, and arithmetic on them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number, and the least and the largest that it can be.

    Both ends belong to it. A sum, difference, product or quotient holds every result that numbers out of the two
    intervals can have.

    Args:
        value: The best guess, in [low, high].
        low: Least it can be.
        high: Largest it can be; infinite where nothing bounds it.

    Raises:
        ValueError: If low <= value <= high does not hold.
    """

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"low, value, high are {self.low}, {self.value}, {self.high}; legal: in ascending order")

    def __add__(self, other: Interval | float) -> Interval:
        other = interval(other)
        return Interval(value=self.value + other.value, low=self.low + other.low, high=self.high + other.high)

    def __sub__(self, other: Interval | float) -> Interval:
        other = interval(other)
        return Interval(value=self.value - other.value, low=self.low - other.high, high=self.high - other.low)

    def __mul__(self, other: Interval | float) -> Interval:
        other = interval(other)
        ends = [_product(mine, its) for mine in (self.low, self.high) for its in (other.low, other.high)]
        return Interval(value=self.value * other.value, low=min(ends), high=max(ends))

    def __truediv__(self, other: Interval | float) -> Interval:
        other = interval(other)
        if other.low < 0 or not other.value > 0:
            raise ValueError(f"divisor is {other}; legal: above zero")
        over = Interval(value=1 / other.value, low=1 / other.high, high=1 / other.low if other.low else math.inf)
        return self * over

    def at_least(self, least: float) -> Interval:
        """Cut off what is below a bound that holds for certain."""
        return Interval(value=max(self.value, least), low=max(self.low, least), high=max(self.high, least))

    def meets(self, other: Interval | float) -> bool:
        """Say whether the two have a number in common; a part in 10^12 is what float64 arithmetic may lose."""
        other = interval(other)
        slack = 1e-12 * max(
            1.0, *(abs(end) for end in (self.low, other.high, self.high, other.low) if math.isfinite(end))
        )
        return self.low <= other.high + slack and other.low <= self.high + slack

    def hull(self, other: Interval | float) -> Interval:
        """The smallest interval around both, with the value of the first."""
        other = interval(other)
        return Interval(value=self.value, low=min(self.low, other.low), high=max(self.high, other.high))

    def stretched(self, factor: float) -> Interval:
        """Allow for a factor up or down; for intervals of numbers >= 0.

        Args:
            factor: >= 1.
        """
        return Interval(value=self.value, low=self.low / factor, high=self.high * factor)

    def whole_numbers(self, *, least: int = 1, most: int = 100_000) -> list[int]:
        """The whole numbers in it, ascending.

        Args:
            least: Least that counts.
            most: Largest that counts.
        """
        slack = 1e-9 * max(1.0, abs(self.low))
        low, high = max(self.low - slack, least), min(self.high + slack, most)
        return list(range(math.ceil(low), math.floor(high) + 1)) if low <= high else []


def interval(number: Interval | float) -> Interval:
    """Take a number for the interval that holds it alone; an interval stays what it is."""
    return number if isinstance(number, Interval) else Interval(value=number, low=number, high=number)


def rounded(value: float, within: float) -> Interval:
    """The interval of a figure that may have been moved by rounding.

    Args:
        value: As shown.
        within: How far it may be from the true one, >= 0: 0.005 for a figure with two decimals.
    """
    return Interval(value=value, low=value - within, high=value + within)


def _product(one: float, other: float) -> float:
    # Infinity stands for "nothing bounds it", and none of it is none.
    return 0.0 if 0.0 in (one, other) else one * other
