"""The log of a training run as a table: each step once, whatever was stopped, killed and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import polars as pl

METRICS_NAME = "metrics.jsonl"


def eta_seconds(done: int, total: int, *, done_at_start: int, elapsed_seconds: float) -> float | None:
    """Say how long the rest takes, at the rate of this session alone.

    Args:
        done: What is done, earlier sessions included; in [done_at_start, total].
        total: What there is to do.
        done_at_start: What earlier sessions had done when this one began.
        elapsed_seconds: Of this session, >= 0.

    Returns:
        Seconds; None before this session has done anything. 900 of 1,000 at the start and 10 more in 20 s: 180 s.

    Raises:
        ValueError: If the numbers do not fit one another.
    """
    if not 0 <= done_at_start <= done <= total or not elapsed_seconds >= 0:
        raise ValueError(
            f"done is {done} of {total}, {done_at_start} at the start, in {elapsed_seconds} s; legal: "
            f"0 <= done_at_start <= done <= total, and seconds >= 0"
        )
    if done == total:
        return 0.0
    here = done - done_at_start
    return elapsed_seconds * (total - done) / here if here else None


def read_run(path: str | Path) -> pl.DataFrame:
    """Read the metrics of a run.

    Args:
        path: The run's folder, or a file of JSON lines with a step on each.

    Returns:
        One row an optimizer step, in order. Where a step stands there a second time, the run went back to a checkpoint:
        its last writing counts, and what stood behind it no longer does. Names of the log's fields are the columns.
        Divided here, where their sums are there: loss, accuracy, streak, tau, and tree_tau and tree_gain of the largest
        tree. `step_table` adds held-out scores and depths of queues.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line other than a cut-off last one is no JSON object with a step, naming file and line; or if
            there is no line.
    """
    path = Path(path)
    file = path / METRICS_NAME if path.is_dir() else path
    rows = _last_attempt(file)
    if not rows:
        raise ValueError(f"{file} holds no step yet")
    table = pl.DataFrame(list(rows.values()), infer_schema_length=None)
    return table.with_columns(_ratios(table))


def read_runs(paths: Iterable[str | Path]) -> pl.DataFrame:
    """Read several runs into one table.

    Args:
        paths: Folders or files, as for `read_run`.

    Returns:
        The rows of all, with a column run: the folder's name; columns that a run lacks are null there.

    Raises:
        ValueError: As `read_run`; or if two have one name, or there is none.
    """
    tables: dict[str, pl.DataFrame] = {}
    for path in map(Path, paths):
        name = path.name if path.is_dir() else path.stem
        if name in tables:
            raise ValueError(f"two runs are named {name}; legal: folders with different names")
        tables[name] = read_run(path).with_columns(pl.lit(name).alias("run"))
    if not tables:
        raise ValueError("paths is empty; legal: at least one run")
    return pl.concat(tables.values(), how="diagonal_relaxed")


def loss_and_bucket(table: pl.DataFrame) -> pl.DataFrame:
    """Give the loss of each step, and the bucket that most of its batches are of.

    Args:
        table: As `read_run` gives it: step, loss and, where batches have buckets, bucket_ids (a list a step).

    Returns:
        One row a step: step, loss; and bucket (the smallest of several that are as frequent, -1 for none), where the
        log has them.
    """
    if "bucket_ids" not in table.columns:
        return table.select("step", "loss")
    most_frequent = pl.col("bucket_ids").list.eval(pl.element().mode().min()).list.first()
    return table.select("step", "loss", most_frequent.alias("bucket"))


def _last_attempt(file: Path) -> dict[int, dict[str, object]]:
    """Read the rows that count by their step, ascending; a smaller step than the one before takes back what follows."""
    rows: dict[int, dict[str, object]] = {}
    last = None
    for row in _objects(file):
        step: int = row["step"]  # type: ignore[assignment]
        if last is not None and step <= last:
            rows = {kept: held for kept, held in rows.items() if kept < step}
        rows[step] = row
        last = step
    return rows


def _objects(file: Path) -> Iterable[dict[str, object]]:
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            if number == len(lines):
                # Without a line end behind it, it is being written, or its writer was killed.
                return
            raise ValueError(f"{file} line {number} is no strict JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int) or isinstance(row["step"], bool):
            raise ValueError(f"{file} line {number} has no step; legal: an object with a whole number step")
        yield row


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _ratios(table: pl.DataFrame) -> list[pl.Expr]:
    columns = set(table.columns)
    ratios = []

    def add(name: str, needs: set[str], top: pl.Expr, below: pl.Expr) -> None:
        if needs <= columns and name not in columns:
            ratios.append(pl.when(below != 0).then(top / below).alias(name))

    add("loss", {"loss_sum", "loss_weight"}, pl.col("loss_sum"), pl.col("loss_weight"))
    by_position = pl.col("correct_by_position"), pl.col("total_by_position")
    add("accuracy", {"correct_by_position", "total_by_position"}, *(column.list.sum() for column in by_position))
    add("streak", {"accepted_sum", "num_blocks"}, pl.col("accepted_sum"), pl.col("num_blocks"))
    blocks = pl.col("num_blocks")
    add("tau", {"accepted_sum", "num_blocks"}, pl.col("accepted_sum") + blocks, blocks)
    tree = pl.col("tree_accepted_sum").list.last()
    trees = {"tree_accepted_sum", "chain_accepted_sum", "num_tree_blocks"}
    add("tree_tau", trees, tree + pl.col("num_tree_blocks"), pl.col("num_tree_blocks"))
    add("tree_gain", trees, tree - pl.col("chain_accepted_sum"), pl.col("num_tree_blocks"))
    return ratios
