"""What a run's log and its optimizer's moments say of the settings that were applied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_lab.training.checkpoint_files import CheckpointContent, opened

# Weights are float32, and their sum over thousands of slots is exact to some 1e-7.
_WEIGHT_TOLERANCE = 1e-5
# Squares of gradients below 1e-10 are too near the end of float32 to be divided by.
_LEAST_SQUARE = 1e-20
# Rounding of two float32 averages.
_MOMENT_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Applied:
    """Learning rate and noise of a log.

    Args:
        steps: Optimizer steps, from 1, ascending.
        learning_rate: Of each; None where it is not known.
        noise: Of each; None as a whole where the log has none.
        begins: Steps after which another session began, where the log knows its sessions.
        without_rate: Steps whose learning rate is not known.
    """

    steps: Sequence[int]
    learning_rate: Sequence[float | None]
    noise: Sequence[float | None] | None
    begins: tuple[int, ...] = ()
    without_rate: int = 0


def read_applied(table: Any) -> Applied:
    """Take learning rate and noise from a table.

    Args:
        table: polars, with the columns step and learning_rate; noise and session where there are any.

    Raises:
        ValueError: If a column is missing, or steps are no whole numbers from 1 that ascend.
    """
    columns = list(table.columns)
    for name in ("step", "learning_rate"):
        if name not in columns:
            raise ValueError(f"the table has no column {name}; it has {', '.join(columns) or 'none'}")
    steps = table["step"].to_list()
    last = 0
    for row, step in enumerate(steps):
        if not isinstance(step, int) or isinstance(step, bool) or step <= last:
            raise ValueError(f"column step has {step!r} in row {row}; legal: whole numbers >= 1 that ascend")
        last = step
    rates = _numbers(table, "learning_rate")
    begins: list[int] = []
    if "session" in columns:
        sessions = table["session"].to_list()
        begins = [before for before, one, other in zip(steps, sessions, sessions[1:], strict=False) if one != other]
    return Applied(
        steps=steps,
        learning_rate=rates,
        noise=_numbers(table, "noise") if "noise" in columns else None,
        begins=tuple(begins),
        without_rate=sum(rate is None for rate in rates),
    )


def _numbers(table: Any, name: str) -> list[float | None]:
    values = []
    for row, value in enumerate(table[name].to_list()):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"column {name} has {value!r} in row {row}; legal: numbers")
        values.append(None if value is None or math.isnan(value) else float(value))
    return values


@dataclass(frozen=True, kw_only=True)
class AppliedGamma:
    """The gamma that a log's weights are of.

    Args:
        words: The gamma, in words.
        is_configured: Whether it is the configured one.
        num_steps: Steps whose weights were looked at.
    """

    words: str
    is_configured: bool
    num_steps: int


def applied_gamma(table: Any, gamma: float | None) -> AppliedGamma | None:
    """Find the gamma by which a run's losses were weighed: their weights are sums of exp(-(k - 1) / gamma).

    Args:
        table: polars, as `read_run` gives it: total_by_position and loss_weight.
        gamma: The configured one; None for no decay.

    Returns:
        What was found; None where no step has weights.
    """
    if not {"total_by_position", "loss_weight"} <= set(table.columns):
        return None
    pairs = [
        (totals, weight)
        for totals, weight in zip(table["total_by_position"].to_list(), table["loss_weight"].to_list(), strict=True)
        if totals is not None and weight
    ]
    if not pairs:
        return None
    if all(_is_near(_weight(totals, gamma), weight) for totals, weight in pairs):
        words = "no decay" if gamma is None else f"{gamma:g}"
        return AppliedGamma(words=words, is_configured=True, num_steps=len(pairs))
    fitted = [_fitted_gamma(totals, weight) for totals, weight in pairs]
    low, high = min(fitted), max(fitted)
    if math.isinf(low):
        words = "no decay"
    else:
        words = f"{low:.4g}" if high - low <= 1e-3 * low else f"{low:.4g} to {high:.4g}"
    return AppliedGamma(words=words, is_configured=False, num_steps=len(pairs))


def _weight(totals: Sequence[int], gamma: float | None) -> float:
    return sum(total * (1.0 if gamma is None else math.exp(-at / gamma)) for at, total in enumerate(totals))


def _fitted_gamma(totals: Sequence[int], weight: float) -> float:
    """Bisect: the sum of weights grows with gamma."""
    if _is_near(sum(totals), weight) or weight > sum(totals):
        return math.inf
    low, high = 1e-3, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _weight(totals, middle) < weight else (low, middle)
    return low


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _WEIGHT_TOLERANCE * abs(other)


def betas_refuted(content: CheckpointContent, betas: Sequence[float]) -> str | None:
    """Say why an optimizer's moments cannot have been made with some betas; None where they can.

    The averages m of the gradients and v of their squares are sums with weights (1 - b1) b1^j and (1 - b2) b2^j over
    the same gradients, so that Cauchy and Schwarz bound m^2 / v by (1 - b1)^2 / (1 - b2) times the sum of
    (b1^2 / b2)^j. One value above that is a proof; none above it is no proof of the contrary.

    Args:
        content: Of a checkpoint.
        betas: The configured ones, both in [0, 1).
    """
    first, second = betas
    with opened() as read:
        for name, place in content.moments.items():
            owner, _, kind = name.rpartition(".")
            others = (f"{owner}.exp_avg_sq", f"{owner}.step")
            if kind != "exp_avg" or not all(other in content.moments for other in others):
                continue
            mean, square, steps = read(place), *(read(content.moments[other]) for other in others)
            most = _largest_ratio(first, second, int(steps))
            counted = square.double() > _LEAST_SQUARE
            ratios = mean.double()[counted].square() / square.double()[counted]
            if ratios.numel() and float(ratios.max()) > most * (1 + _MOMENT_TOLERANCE):
                return (
                    f"betas are {first:g}/{second:g} in the settings, and the moments of {owner} were made with "
                    f"others: a squared mean is {float(ratios.max()):.3g} times the mean square, and these betas allow "
                    f"{most:.3g}"
                )
    return None


def _largest_ratio(first: float, second: float, steps: int) -> float:
    if second == 0:
        # Of the last gradient alone; the mean may still hold earlier ones.
        return 1.0 if first == 0 else math.inf
    ratio = first**2 / second
    total = float(steps) if ratio == 1 else (1 - ratio**steps) / (1 - ratio)
    return (1 - first) ** 2 / (1 - second) * total
