"""Training: the loop that takes samples through a target to a drafter, its log, its checkpoints and their replay.

`train_drafter` runs it all from one `RunConfig`. What is trained is a function of settings, seed and data: the same for
any number of threads and any depth of queues, stopped and resumed or not.
"""

from dflash_lab.training.audit import Finding, audit_checkpoint
from dflash_lab.training.checkpoint import FoundCheckpoint, RunState, WeightsNotFinite, find_checkpoint
from dflash_lab.training.compare_runs import RunComparison, compare_runs
from dflash_lab.training.config import RunConfig
from dflash_lab.training.diagnosis import RunDiagnosis, SpikeView, diagnose_run, look_into_step
from dflash_lab.training.explore_step import explore_step
from dflash_lab.training.heaviest import HeaviestBatch
from dflash_lab.training.loop import DrafterTrainLoop, StepOutcome
from dflash_lab.training.position import Course, Position
from dflash_lab.training.presets import PRESETS
from dflash_lab.training.quality import (
    DecodedBothWays,
    DrafterQuality,
    DraftingSpeed,
    decode_both_ways,
    evaluate_drafter,
    measure_drafting_speed,
)
from dflash_lab.training.replay import replay_step
from dflash_lab.training.replayed import StepReplay
from dflash_lab.training.run import train_drafter, try_heaviest_batches
from dflash_lab.training.run_log import RunLog
from dflash_lab.training.schedule_audit import ScheduleAudit, audit_schedules
from dflash_lab.training.schedules import ScheduleConfig, learning_rate, noise_amplitude
from dflash_lab.training.session import RunResult, TooManySkippedSteps
from dflash_lab.training.settings import (
    AnchorSettings,
    CheckpointSettings,
    DrafterSettings,
    LogSettings,
    LossSettings,
    NoiseSettings,
    OptimizerSettings,
    PipelineSettings,
    ValidationSettings,
)
from dflash_lab.training.short_run import ShortRun, ShortRunSettings, newest_short_run, open_short_run, short_run
from dflash_lab.training.step_metrics import StepMetrics
from dflash_lab.training.step_view import StepSample, StepView
from dflash_lab.training.validation import score_drafter, trees_of

__all__ = [
    "PRESETS",
    "AnchorSettings",
    "CheckpointSettings",
    "Course",
    "DecodedBothWays",
    "DrafterQuality",
    "DrafterSettings",
    "DrafterTrainLoop",
    "DraftingSpeed",
    "Finding",
    "FoundCheckpoint",
    "HeaviestBatch",
    "LogSettings",
    "LossSettings",
    "NoiseSettings",
    "OptimizerSettings",
    "PipelineSettings",
    "Position",
    "RunComparison",
    "RunConfig",
    "RunDiagnosis",
    "RunLog",
    "RunResult",
    "RunState",
    "ScheduleAudit",
    "ScheduleConfig",
    "ShortRun",
    "ShortRunSettings",
    "SpikeView",
    "StepMetrics",
    "StepOutcome",
    "StepReplay",
    "StepSample",
    "StepView",
    "TooManySkippedSteps",
    "ValidationSettings",
    "WeightsNotFinite",
    "audit_checkpoint",
    "audit_schedules",
    "compare_runs",
    "decode_both_ways",
    "diagnose_run",
    "evaluate_drafter",
    "explore_step",
    "find_checkpoint",
    "learning_rate",
    "look_into_step",
    "measure_drafting_speed",
    "newest_short_run",
    "noise_amplitude",
    "open_short_run",
    "replay_step",
    "score_drafter",
    "short_run",
    "train_drafter",
    "trees_of",
    "try_heaviest_batches",
]
