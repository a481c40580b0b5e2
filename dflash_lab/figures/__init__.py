"""Figures: a table in, a `matplotlib.figure.Figure` with an alt text out; `save_figure` puts it on disk.

The room knows tables by their columns and nothing of what made them. It never touches pyplot, so no figure stays
behind, and it draws with its own settings whatever the caller's are. Figures are as wide as half a printed page.
"""

from dflash_lab.figures.bounds import plot_bounds
from dflash_lab.figures.diagnosis import plot_attribution, plot_loss_resets
from dflash_lab.figures.diversity import plot_efficiency_vs_diversity, plot_recomposition
from dflash_lab.figures.epoch_maths import plot_epoch_maths
from dflash_lab.figures.feed import plot_queue_depths, plot_workers_needed
from dflash_lab.figures.gradients import (
    plot_arm_measures,
    plot_blocks_per_step,
    plot_bucket_cosines,
    plot_loss_histograms,
    plot_tau_curves,
    plot_variance_split,
)
from dflash_lab.figures.lengths import (
    plot_bucket_shares,
    plot_length_distribution,
    plot_length_ecdf,
    plot_lengths_by_source,
)
from dflash_lab.figures.order import plot_bucket_strip, plot_run_lengths
from dflash_lab.figures.quality import (
    plot_accuracy_by_position,
    plot_speed_up,
    plot_tau_by_slice,
    plot_tree_gain,
)
from dflash_lab.figures.save import SavedFigure, save_figure
from dflash_lab.figures.schedule import plot_replayed_positions, plot_schedule
from dflash_lab.figures.story import plot_story
from dflash_lab.figures.strategies import plot_bucket_count_curve, plot_strategies
from dflash_lab.figures.style import figure_alt_text, set_alt_text
from dflash_lab.figures.supervision import plot_loss_share
from dflash_lab.figures.training import plot_queue_history, plot_run
from dflash_lab.figures.windows import plot_window_mix

__all__ = [
    "plot_arm_measures",
    "plot_blocks_per_step",
    "plot_bucket_cosines",
    "plot_loss_histograms",
    "plot_tau_curves",
    "plot_variance_split",
    "plot_run",
    "plot_queue_history",
    "plot_tree_gain",
    "plot_tau_by_slice",
    "plot_speed_up",
    "plot_accuracy_by_position",
    "plot_attribution",
    "plot_epoch_maths",
    "plot_loss_resets",
    "plot_replayed_positions",
    "plot_schedule",
    "plot_bounds",
    "SavedFigure",
    "figure_alt_text",
    "plot_bucket_count_curve",
    "plot_bucket_shares",
    "plot_bucket_strip",
    "plot_efficiency_vs_diversity",
    "plot_length_distribution",
    "plot_length_ecdf",
    "plot_lengths_by_source",
    "plot_loss_share",
    "plot_queue_depths",
    "plot_recomposition",
    "plot_run_lengths",
    "plot_story",
    "plot_strategies",
    "plot_window_mix",
    "plot_workers_needed",
    "save_figure",
    "set_alt_text",
]
