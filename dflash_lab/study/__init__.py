"""Study: the same drafter trained in many short runs that differ in one thing each, with their gradients looked at.

`run_study` trains the arms that are missing, in as many processes as there are cores for, and opens the others. What
they say is for `analysis.read_study`.
"""

from dflash_lab.study.arms import ArmLog, train_arm
from dflash_lab.study.budgets import equal_budget
from dflash_lab.study.conversations import join_turns
from dflash_lab.study.features import StoredFeatures, StudyFeatures, load_or_compute_features
from dflash_lab.study.gradients import (
    BucketGradients,
    MicroBatchRecord,
    ProbedMicroBatch,
    StepGradients,
    bucket_gradients,
    bucket_of,
)
from dflash_lab.study.material import StudyMaterial, choose_samples, open_material
from dflash_lab.study.runner import Study, run_study, study_key
from dflash_lab.study.settings import DEFAULT_ARMS, NORMALISATIONS, ArmSpec, StudySettings

__all__ = [
    "DEFAULT_ARMS",
    "NORMALISATIONS",
    "ArmLog",
    "ArmSpec",
    "BucketGradients",
    "MicroBatchRecord",
    "ProbedMicroBatch",
    "StepGradients",
    "StoredFeatures",
    "Study",
    "StudyFeatures",
    "StudyMaterial",
    "StudySettings",
    "bucket_gradients",
    "bucket_of",
    "choose_samples",
    "equal_budget",
    "join_turns",
    "load_or_compute_features",
    "open_material",
    "run_study",
    "study_key",
    "train_arm",
]
