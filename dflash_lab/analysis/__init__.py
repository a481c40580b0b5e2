"""Tables: what lengths, plans and runs look like, as polars tables with the units in the column names.

Everything that a figure shows or a notebook states is counted here, once: sums over batches, epochs or steps, divided
at the very end. The room takes lengths arrays, batch plans and run logs, and gives tables.
"""

from dflash_lab.analysis.buckets import (
    RunSummary,
    bucket_intervals,
    bucket_runs,
    bucket_strip,
    run_length_counts,
    run_summary,
)
from dflash_lab.analysis.comparison import bucket_count_curve, compare_bounds, compare_strategies
from dflash_lab.analysis.lengths import (
    length_ecdf,
    length_histogram,
    length_summary,
    length_table,
    loss_share_histogram,
)
from dflash_lab.analysis.plans import PairCount, bucket_shares, pairs_together_again, plan_table
from dflash_lab.analysis.runs import LossSpread, loss_by_bucket, loss_spread, ratio_of_sums
from dflash_lab.analysis.source_run import reproduce_source_run, source_run_story, source_run_table

__all__ = [
    "LossSpread",
    "PairCount",
    "RunSummary",
    "bucket_count_curve",
    "bucket_intervals",
    "bucket_runs",
    "bucket_shares",
    "bucket_strip",
    "compare_bounds",
    "compare_strategies",
    "length_ecdf",
    "length_histogram",
    "length_summary",
    "length_table",
    "loss_by_bucket",
    "loss_share_histogram",
    "loss_spread",
    "pairs_together_again",
    "plan_table",
    "ratio_of_sums",
    "reproduce_source_run",
    "run_length_counts",
    "run_summary",
    "source_run_story",
    "source_run_table",
]
