"""Tables: what lengths, plans and runs look like, as polars tables with the units in the column names.

Everything that a figure shows or a notebook states is counted here, once: sums over batches, epochs or steps, divided
at the very end. The room takes lengths arrays, batch plans and run logs, and gives tables.
"""

from dflash_lab.analysis.anchors import AnchorBudgets, draft_blocks
from dflash_lab.analysis.anchors_claim import AnchorsClaim, SwingRatio, anchors_claim, budget_table
from dflash_lab.analysis.any_log import LoadedRun, read_any_run, read_loss_log
from dflash_lab.analysis.bounds import bounds_table
from dflash_lab.analysis.bucket_gradients import bucket_gradient_table, bucket_norm_table
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
from dflash_lab.analysis.epoch_checks import Finding
from dflash_lab.analysis.epoch_maths import EpochMaths, epoch_maths
from dflash_lab.analysis.feed import (
    queue_depth_table,
    queue_summary,
    stage_table,
    starvation_table,
    workers_needed_table,
)
from dflash_lab.analysis.front import efficiency_diversity_front
from dflash_lab.analysis.gradients import (
    NoiseScale,
    compare_arms,
    deviation_table,
    noise_scale,
    seed_table,
    study_table,
    tau_curve,
)
from dflash_lab.analysis.lengths import (
    length_ecdf,
    length_histogram,
    length_summary,
    length_table,
    loss_share_histogram,
)
from dflash_lab.analysis.loss_resets import LossResets, loss_resets
from dflash_lab.analysis.planned_steps import add_planned_batches
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
from dflash_lab.analysis.records import record_table
from dflash_lab.analysis.rounding import Interval
from dflash_lab.analysis.run_log import eta_seconds, loss_and_bucket, read_run, read_runs
from dflash_lab.analysis.runs import LossSpread, loss_by_bucket, loss_spread, ratio_of_sums
from dflash_lab.analysis.seeds import PairedInterval, paired_interval
from dflash_lab.analysis.shards import shard_table
from dflash_lab.analysis.source_run import reproduce_source_run, source_run_story, source_run_table
from dflash_lab.analysis.spikes import Attribution, attribute_spikes
from dflash_lab.analysis.status_lines import StatusLog, read_status_lines
from dflash_lab.analysis.study_log import StudyLog, read_study
from dflash_lab.analysis.study_words import batching_labels, comparison_text, study_conditions
from dflash_lab.analysis.swings import (
    VarianceSplit,
    count_modes,
    count_spikes,
    deviations_from_trend,
    lag_correlation,
    variance_split,
)
from dflash_lab.analysis.synthetic_runs import RUN_KINDS, synthetic_run
from dflash_lab.analysis.windows import (
    WindowMix,
    compare_windows,
    plan_window_mix,
    pure_window_floor,
    shuffle_window_mix,
    window_table,
)

__all__ = [
    "AnchorsClaim",
    "SwingRatio",
    "anchors_claim",
    "budget_table",
    "bucket_gradient_table",
    "bucket_norm_table",
    "NoiseScale",
    "compare_arms",
    "deviation_table",
    "noise_scale",
    "seed_table",
    "study_table",
    "tau_curve",
    "PairedInterval",
    "paired_interval",
    "StudyLog",
    "read_study",
    "batching_labels",
    "comparison_text",
    "study_conditions",
    "VarianceSplit",
    "count_modes",
    "count_spikes",
    "deviations_from_trend",
    "lag_correlation",
    "variance_split",
    "PADDED_TOKENS",
    "QUADRATIC_ATTENTION",
    "RUN_KINDS",
    "AnchorBudgets",
    "Attribution",
    "CostModel",
    "EpochMaths",
    "Finding",
    "Interval",
    "LoadedRun",
    "LossResets",
    "LossSpread",
    "PairCount",
    "Recommendation",
    "RunSummary",
    "StatusLog",
    "WindowMix",
    "add_planned_batches",
    "attribute_spikes",
    "bounds_table",
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
    "epoch_maths",
    "eta_seconds",
    "length_ecdf",
    "length_histogram",
    "length_slices",
    "length_summary",
    "length_table",
    "loss_and_bucket",
    "loss_by_bucket",
    "loss_resets",
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
    "read_any_run",
    "read_loss_log",
    "read_run",
    "read_runs",
    "read_status_lines",
    "recommend",
    "record_table",
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
    "synthetic_run",
    "tau_by_slice",
    "tree_table",
    "window_table",
    "workers_needed_table",
]
