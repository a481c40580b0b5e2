"""The settings of a plan, each checked where it stands."""

from __future__ import annotations

import operator
from dataclasses import dataclass

STRATEGIES = ("as_given", "sorted", "random", "bucketed", "capacity", "pooled", "packed")
ORDERS = (
    "as_built",
    "random",
    "no_repeat_naive",
    "no_repeat",
    "stride",
    "low_discrepancy",
    "window_strata",
    "window_balanced",
)
ON_OVERSIZE = ("error", "drop")

# Widths and lengths are int32 in a plan.
MAX_TOKENS = 2**31 - 1
# Bucket ids are int16 in a plan.
MAX_BUCKETS = 2**15 - 1


def whole_number(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Give `value` as int, or say what is legal.

    Args:
        name: The setting's name, for the message.
        value: Any integer type (numpy's too); bool, float and text are refused.
        least: Smallest legal value.
        most: Largest legal value, None for no limit.

    Returns:
        The value as a plain int.

    Raises:
        ValueError: If it is not a whole number within the limits.
    """
    legal = f"a whole number >= {least}" if most is None else f"a whole number in [{least}, {most}]"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least or (most is not None and number > most):
        raise ValueError(f"{name} is {value!r}; legal: {legal}")
    return number


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """What a plan is made from, next to the lengths and the epoch.

    Args:
        strategy: Who shares a batch. "as_given" packs in the order of the data; "sorted" from the longest to the
            shortest, the same batches every epoch; the others compose anew every epoch: "random" in a full shuffle,
            "bucketed" in a shuffle of each bucket, "capacity" in a shuffle of the samples of which equally many fit,
            "pooled" sorted inside pools of a shuffle, "packed" in rows without padding.
        token_budget: Most padded tokens in a batch (batch size * longest sample), inclusive.
        max_seq_len: Longer samples are cut to this many tokens before anything else.
        max_batch_size: Most samples in a batch.
        order: When a batch is seen. "as_built" keeps the builder's order; "random" shuffles; "no_repeat" draws at
            random with the fewest and shortest runs of one bucket there can be ("no_repeat_naive" without looking
            ahead); "stride" spreads each bucket evenly; "low_discrepancy" spreads the mean lengths evenly;
            "window_strata" gives every accumulation window one batch of each of `window` length strata, and
            "window_balanced" evens out what that leaves.
        bucket_bounds: Increasing whole numbers starting at 0, in tokens; bucket i is the half-open interval
            [bounds[i], bounds[i + 1]), and the last bucket also takes what is longer. Used by "bucketed"; None there
            means six buckets of equal tokens, and the plan's own config names them.
        num_cuts: For "capacity": length quantiles, shifted every epoch, at which its classes are cut further; more of
            them pad less and shuffle less, 0 cuts nothing.
        pool_size: For "pooled": samples in a pool.
        window: Batches of an accumulation window, for the window orders and for `BatchPlan.shard`.
        longest_first: So many of the batches with most padded tokens come first, to find out at once whether they fit.
        on_oversize: What happens to a sample that alone exceeds the budget: "error", or "drop" with a count in
            `BatchPlan.left_out`.
        seed: With the epoch, the only source of randomness; >= 0.

    Raises:
        ValueError: If a setting is out of range; the message names the setting, its value and what is legal.
    """

    strategy: str
    token_budget: int
    max_seq_len: int
    max_batch_size: int = 64
    order: str = "random"
    bucket_bounds: tuple[int, ...] | None = None
    num_cuts: int = 64
    pool_size: int = 8192
    window: int = 4
    longest_first: int = 0
    on_oversize: str = "error"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, legal in (("strategy", STRATEGIES), ("order", ORDERS), ("on_oversize", ON_OVERSIZE)):
            value = getattr(self, name)
            if value not in legal:
                raise ValueError(f"{name} is {value!r}; legal: {', '.join(legal)}")
        for name, least, most in (
            ("token_budget", 1, None),
            ("max_seq_len", 1, MAX_TOKENS),
            ("max_batch_size", 1, None),
            ("num_cuts", 0, None),
            ("pool_size", 1, None),
            ("window", 1, None),
            ("longest_first", 0, None),
            ("seed", 0, None),
        ):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least, most=most))
        if self.strategy == "packed" and self.token_budget > MAX_TOKENS:
            raise ValueError(f"token_budget is {self.token_budget}; legal for packed rows: at most {MAX_TOKENS}")
        if self.bucket_bounds is not None:
            object.__setattr__(self, "bucket_bounds", check_bounds(self.bucket_bounds))


def check_bounds(bounds: object) -> tuple[int, ...]:
    """Give bucket bounds as a tuple of ints, or say what is legal.

    Args:
        bounds: Any sequence of whole numbers.

    Returns:
        The bounds, increasing and starting at 0, at least two of them.

    Raises:
        ValueError: If they are not.
    """
    legal = f"increasing whole numbers from 0 to at most {MAX_TOKENS + 1}, at least two, such as (0, 1024, 8192)"
    try:
        numbers = tuple(
            whole_number("bucket_bounds", bound, least=0, most=MAX_TOKENS + 1)
            for bound in bounds  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError):
        numbers = ()
    rising = all(low < high for low, high in zip(numbers, numbers[1:], strict=False))
    if len(numbers) < 2 or numbers[0] != 0 or not rising:
        raise ValueError(f"bucket_bounds is {bounds!r}; legal: {legal}")
    if len(numbers) - 1 > MAX_BUCKETS:
        raise ValueError(f"bucket_bounds has {len(numbers) - 1} buckets; legal: at most {MAX_BUCKETS}")
    return numbers
