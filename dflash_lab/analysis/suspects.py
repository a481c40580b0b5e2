"""What may have made the loss jump: the events of a run, taken out of its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

# Shares of steps that a measure's extremes are: a cause may need a high value or a very high one.
TAIL_SHARES = (0.05, 0.02, 0.01)
# A change of a schedule counts where it is this share of the largest value and this many times its neighbours' change.
_JUMP_SHARE, _JUMP_TIMES = 0.05, 5.0


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way of saying when a suspect acts.

    Attributes:
        text: What the events are, for a sentence: "steps with ...".
        events: bool (num_steps,).
    """

    text: str
    events: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A thing that may bring resets.

    Attributes:
        name: Its name in tables.
        text: Its name in sentences.
        first_lag: Steps from an event to the first loss it can touch: 0 for what the step's own loss is made of, 1
            for what comes after it (an update, a save).
        variants: Ways of saying when it acts, at least one; none where it cannot be tested.
        measure: float64 (num_steps,), what the loss level is compared with; None for mere events.
        reason: Why it cannot be tested; "" where it can.
    """

    name: str
    text: str
    first_lag: int = 0
    variants: tuple[Variant, ...] = ()
    measure: np.ndarray | None = None
    reason: str = ""


def suspects_of(table: pl.DataFrame, *, checkpoints: Sequence[int] | None = None) -> list[Suspect]:
    """Take every suspect out of a run's table.

    Args:
        table: One row an optimizer step, as `read_run` gives it; columns may be missing.
        checkpoints: Steps at which checkpoints were saved; None to take the column checkpoint (bool).

    Returns:
        All suspects, those that cannot be tested with the reason.

    Raises:
        ValueError: If a column has a dtype that is none of the run log's.
    """
    found = [
        *_of_buckets(table),
        _measured(table, "num_blocks", "draft blocks", _number(table, "num_blocks")),
        _measured(table, "num_samples", "samples", _total(table, "num_samples")),
        _measured(table, "length_max", "longest length", _number(table, "length_max")),
        _measured(table, "padding_share", "padding share", _padding(table)),
        _checkpoints(table, checkpoints),
        _schedule(table, "learning_rate", "learning-rate events", first_lag=1),
        _schedule(table, "noise", "noise events", first_lag=0),
        _skipped(table),
        _stalls(table),
        _changes(table, "epoch", "epoch borders"),
        _changes(table, "session", "resumes"),
    ]
    return found


def extremes(measure: np.ndarray, text: str, *, low: bool = True) -> tuple[Variant, ...]:
    """List the steps with the highest and the lowest values of a measure.

    Args:
        measure: float64 (num_steps,), NaN where there is none.
        text: Name of the measure, for sentences.
        low: Whether the lowest values are listed too.

    Returns:
        A variant for each share of `TAIL_SHARES` and side that at most twice that share of the steps has; values that
        are alike are never split.
    """
    known = measure[np.isfinite(measure)]
    found: dict[bytes, Variant] = {}
    for side, sign in (("highest", 1.0), ("lowest", -1.0))[: 2 if low else 1]:
        ordered = np.sort(sign * known)
        for share in TAIL_SHARES:
            if len(known) * share < 1 or ordered[0] == ordered[-1]:
                continue
            border = ordered[len(ordered) - max(1, round(share * len(ordered)))]
            with np.errstate(invalid="ignore"):
                events = sign * measure >= border
                if events.sum() > 2 * share * len(known):
                    # More steps share the border's value than the variant is about: only what lies beyond it.
                    events = sign * measure > border
            if events.any():
                percent = f"{events.sum() / len(known):.1%}"
                variant = Variant(text=f"the {percent} of steps with the {side} {text}", events=events)
                found.setdefault(events.tobytes(), variant)
    return tuple(found.values())


def _of_buckets(table: pl.DataFrame) -> list[Suspect]:
    names = (
        ("bucket_change", "bucket changes"),
        ("bucket_runs", "long runs of one bucket"),
        ("bucket", "the bucket itself"),
    )
    if (reason := _missing(table, "bucket_ids")) is not None:
        return [Suspect(name=name, text=text, reason=reason) for name, text in names]
    column = table["bucket_ids"]
    lists = column if column.dtype == pl.List or isinstance(column.dtype, pl.Array) else column.reshape((-1, 1))
    rows = pl.DataFrame({"row": np.arange(table.height), "id": lists.cast(pl.List(pl.Int64))}).explode("id")
    rows = rows.drop_nulls("id")
    if rows.is_empty() or int(rows["id"].min()) < 0:
        reason = "its batches are of no bucket"
        return [Suspect(name=name, text=text, reason=reason) for name, text in names]
    ids, places = rows["id"].to_numpy(), rows["row"].to_numpy()
    if (ids == ids[0]).all():
        return [Suspect(name=name, text=text, reason="all batches are of one bucket") for name, text in names]
    counts = np.bincount(places, minlength=table.height).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(places, weights=ids, minlength=table.height) / counts
    change = np.abs(np.diff(mean, prepend=np.nan))
    starts = np.concatenate([[True], ids[1:] != ids[:-1]])
    since = np.arange(len(ids)) - np.maximum.accumulate(np.where(starts, np.arange(len(ids)), 0)) + 1
    longest = np.full(table.height, np.nan)
    np.fmax.at(longest, places, since.astype(float))
    changed = Variant(text="steps whose mean bucket differs from the step before", events=change > 0)
    return [
        Suspect(
            name="bucket_change",
            text="bucket changes",
            variants=(changed, *extremes(change, "change of the mean bucket from the step before", low=False)),
            measure=change,
        ),
        Suspect(
            name="bucket_runs",
            text="long runs of one bucket",
            variants=extremes(longest, "number of batches of one bucket in a row", low=False),
            measure=longest,
        ),
        Suspect(name="bucket", text="the bucket itself", variants=_each_bucket(ids, places, mean), measure=mean),
    ]


def _each_bucket(ids: np.ndarray, places: np.ndarray, mean: np.ndarray) -> tuple[Variant, ...]:
    """Steps with a batch of each bucket; of a bucket that most steps have, those with no other."""
    variants = []
    counts = np.bincount(places, minlength=len(mean))
    for bucket in np.unique(ids).tolist():
        here = np.bincount(places, weights=ids == bucket, minlength=len(mean))
        some, all_of = here > 0, (here == counts) & (counts > 0)
        if some.mean() <= 0.5:
            variants.append(Variant(text=f"steps with a batch of bucket {bucket}", events=some))
        elif all_of.any():
            variants.append(Variant(text=f"steps of bucket {bucket} alone", events=all_of))
    return (*variants, *extremes(mean, "mean bucket"))


def _measured(table: pl.DataFrame, name: str, text: str, measure: np.ndarray | str) -> Suspect:
    if isinstance(measure, str):
        return Suspect(name=name, text=text, reason=measure)
    variants = extremes(measure, text)
    reason = "" if variants else f"its {text} hardly vary"
    return Suspect(name=name, text=text, variants=variants, measure=measure if variants else None, reason=reason)


def _checkpoints(table: pl.DataFrame, steps: Sequence[int] | None) -> Suspect:
    name, text = "checkpoint", "checkpoint saves"
    if steps is not None:
        return _saves(table["step"].to_numpy(), np.unique(np.asarray(list(steps), np.int64)), name, text)
    if "checkpoint" in table.columns:
        events = table["checkpoint"].cast(pl.Boolean).fill_null(False).to_numpy()
        return _events(name, text, text, events, first_lag=1)
    return Suspect(name=name, text=text, reason="no checkpoint steps were given, and there is no column checkpoint")


def _saves(steps: np.ndarray, saved: np.ndarray, name: str, text: str) -> Suspect:
    """Put each save at the last step of the log that is not behind it; those outside the log are counted."""
    inside = saved[(saved >= steps[0]) & (saved <= steps[-1])]
    events = np.zeros(len(steps), bool)
    events[np.searchsorted(steps, inside, side="right") - 1] = True
    others = len(saved) - len(inside)
    outside = f" ({others} more outside the log)" if others else ""
    return _events(name, text, f"{text}{outside}", events, first_lag=1)


def _schedule(table: pl.DataFrame, name: str, text: str, *, first_lag: int) -> Suspect:
    values = _number(table, name)
    if isinstance(values, str):
        return Suspect(name=name, text=text, reason=values)
    known = np.isfinite(values)
    if known.sum() < 3:
        return Suspect(name=name, text=text, reason=f"column {name} has fewer than three values")
    filled = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])
    change = np.diff(filled, prepend=filled[0])
    largest = float(np.abs(filled).max())
    # The usual change around each step: a warm-up is steep everywhere, a restart is steep once.
    usual = pl.Series(np.abs(change)).rolling_median(21, center=True, min_samples=1).to_numpy()
    jumps = (np.abs(change) > _JUMP_SHARE * largest) & (np.abs(change) > _JUMP_TIMES * usual)
    events = jumps.copy()
    top = int(np.argmax(filled))
    # The end of a warm-up: the first step at the highest value, when the way there was long.
    if top > 2 and not jumps[: top + 1].any() and filled[0] < 0.9 * largest:
        events[top] = True
    return _events(name, text, f"{text} (jumps, and the end of a warm-up)", events, first_lag=first_lag)


def _skipped(table: pl.DataFrame) -> Suspect:
    name, text = "non_finite", "non-finite and skipped steps"
    without = ~np.isfinite(table["loss"].cast(pl.Float64).fill_null(float("nan")).to_numpy())
    if "skipped" in table.columns:
        without |= (table["skipped"].cast(pl.String).fill_null("") != "").to_numpy()
    if "updated" in table.columns:
        without |= ~table["updated"].cast(pl.Boolean).fill_null(True).to_numpy()
    return _events(name, text, text, without, first_lag=1)


def _stalls(table: pl.DataFrame) -> Suspect:
    name, text = "queue_stall", "queue stalls"
    variants: list[Variant] = []
    seen = []
    wait = _number(table, "wait_seconds")
    if not isinstance(wait, str):
        seen.append(wait)
        variants += extremes(wait, "wait for features", low=False)
    for column, title in (("q_pre", "before a target"), ("q_hs", "before the drafter")):
        if _missing(table, column) is None:
            depths = table[column]
            least = depths.list.min() if depths.dtype == pl.List else depths
            empty = (least == 0).fill_null(False).to_numpy()
            seen.append(empty)
            if 0 < empty.mean() <= 0.5:
                variants.append(Variant(text=f"steps with an empty queue {title}", events=empty))
    if not seen:
        return Suspect(name=name, text=text, reason="there is no column wait_seconds, q_pre or q_hs")
    return Suspect(name=name, text=text, variants=tuple(variants), reason="" if variants else "there is no stall")


def _changes(table: pl.DataFrame, column: str, text: str) -> Suspect:
    name = {"epoch": "epoch_border", "session": "resume"}[column]
    values = _number(table, column)
    if isinstance(values, str):
        return Suspect(name=name, text=text, reason=values)
    # Of what the log leaves open, the value before still holds.
    known = pl.Series(values).fill_nan(None).forward_fill().backward_fill().to_numpy()
    return _events(name, text, text, np.diff(known, prepend=known[0]) != 0, first_lag=0)


def _events(name: str, text: str, variant: str, events: np.ndarray, *, first_lag: int) -> Suspect:
    if not events.any():
        return Suspect(name=name, text=text, first_lag=first_lag, reason=f"there are no {text} in the log")
    return Suspect(name=name, text=text, first_lag=first_lag, variants=(Variant(text=variant, events=events),))


def _missing(table: pl.DataFrame, column: str) -> str | None:
    if column not in table.columns:
        return f"there is no column {column}"
    if table[column].null_count() == table.height:
        return f"column {column} is empty"
    return None


def _number(table: pl.DataFrame, column: str) -> np.ndarray | str:
    """A column as float64 with NaN for nulls, or why there is none."""
    if (reason := _missing(table, column)) is not None:
        return reason
    if not table[column].dtype.is_numeric():
        raise ValueError(f"column {column} has dtype {table[column].dtype}; legal: numbers")
    return table[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _total(table: pl.DataFrame, column: str) -> np.ndarray | str:
    """The sum of a step's batches, where a column has one number a batch."""
    if (reason := _missing(table, column)) is not None:
        return reason
    if table[column].dtype != pl.List:
        return _number(table, column)
    return table[column].list.sum().cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _padding(table: pl.DataFrame) -> np.ndarray | str:
    real, padded = _total(table, "real_tokens"), _total(table, "padded_tokens")
    for total in (real, padded):
        if isinstance(total, str):
            return total
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(padded > 0, 1 - real / padded, np.nan)
