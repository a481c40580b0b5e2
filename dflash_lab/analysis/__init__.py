"""Tables: what lengths, plans and runs look like, as polars tables with the units in the column names.

Everything that a figure shows or a notebook states is counted here, once: sums over batches, epochs or steps, divided
at the very end. The room takes lengths arrays, batch plans and run logs, and gives tables.
"""

from dflash_lab.analysis.anchors import AnchorBudgets, draft_blocks
from dflash_lab.analysis.bounds import bounds_table
from dflash_lab.analysis.buckets import (
    RunSummary,
    bucket_intervals,
    bucket_runs,
    bucket_strip,
    run_length_counts,
    run_summary,
)
from dflash_lab.analysis.comparison import bucket_count_curve, compare_bounds, compare_strategies
from dflash_lab.analysis.costs import PADDED_TOKENS, QUADRATIC_ATTENTION, CostModel
from dflash_lab.analysis.feed import (
    queue_depth_table,
    queue_summary,
    stage_table,
    starvation_table,
    workers_needed_table,
)
from dflash_lab.analysis.front import efficiency_diversity_front
from dflash_lab.analysis.lengths import (
    length_ecdf,
    length_histogram,
    length_summary,
    length_table,
    loss_share_histogram,
)
from dflash_lab.analysis.plans import PairCount, bucket_shares, pairs_together_again, plan_table
from dflash_lab.analysis.quality import (
    length_slices,
    position_table,
    speed_up_table,
    step_table,
    tau_by_slice,
    tree_table,
)
from dflash_lab.analysis.recommendation import Recommendation, choose_plan, recommend
from dflash_lab.analysis.run_log import eta_seconds, read_run, read_runs
from dflash_lab.analysis.runs import LossSpread, loss_by_bucket, loss_spread, ratio_of_sums
from dflash_lab.analysis.shards import shard_table
from dflash_lab.analysis.source_run import reproduce_source_run, source_run_story, source_run_table
from dflash_lab.analysis.windows import (
    WindowMix,
    compare_windows,
    plan_window_mix,
    pure_window_floor,
    shuffle_window_mix,
    window_table,
)

__all__ = [
    "bounds_table",
    "PADDED_TOKENS",
    "QUADRATIC_ATTENTION",
    "AnchorBudgets",
    "CostModel",
    "LossSpread",
    "PairCount",
    "Recommendation",
    "RunSummary",
    "WindowMix",
    "bucket_count_curve",
    "bucket_intervals",
    "bucket_runs",
    "bucket_shares",
    "bucket_strip",
    "choose_plan",
    "compare_bounds",
    "compare_strategies",
    "compare_windows",
    "draft_blocks",
    "efficiency_diversity_front",
    "eta_seconds",
    "length_ecdf",
    "length_histogram",
    "length_slices",
    "length_summary",
    "length_table",
    "loss_by_bucket",
    "loss_share_histogram",
    "loss_spread",
    "pairs_together_again",
    "plan_table",
    "plan_window_mix",
    "position_table",
    "pure_window_floor",
    "queue_depth_table",
    "queue_summary",
    "ratio_of_sums",
    "read_run",
    "read_runs",
    "recommend",
    "reproduce_source_run",
    "run_length_counts",
    "run_summary",
    "shard_table",
    "shuffle_window_mix",
    "source_run_story",
    "source_run_table",
    "speed_up_table",
    "stage_table",
    "starvation_table",
    "step_table",
    "tau_by_slice",
    "tree_table",
    "window_table",
    "workers_needed_table",
]
