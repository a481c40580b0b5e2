"""A study of seconds on random data and a random target; other processes find its openers by this module's name."""

import dataclasses
import importlib.util
import os
from pathlib import Path

from dflash_lab import study

_SPEC = importlib.util.spec_from_file_location("tiny_run", Path(__file__).parents[1] / "training" / "tiny_run.py")
tiny_run = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny_run)

MASK_TOKEN_ID = 63
PARENT = "TINY_STUDY_PARENT"
CHANGES = {
    "token_budget": 256,
    "max_seq_len": 64,
    "bucket_bounds": (0, 20, 40, 64),
    "tokens_per_epoch": 800,
    "epochs": 2,
    "anchors_per_sample": 4,
    "intermediate_size": 32,
    "num_held_out": 4,
    "held_out_anchors": 4,
    "num_scores": 2,
    "arms": ("bucketed", "packed"),
    "anchor_budgets": ("batch",),
    "seeds": (0,),
}


def make_settings(**changes):
    return study.StudySettings(**{**CHANGES, **changes})


def open_tiny(settings):
    return study.choose_samples(
        settings,
        name="random samples",
        notes="random",
        train=tiny_run.make_dataset(),
        validation=None,
        target=tiny_run.RandomTarget(),
        mask_token_id=MASK_TOKEN_ID,
    )


def _is_child():
    return os.environ[PARENT] != str(os.getpid())


class FailingTarget(tiny_run.RandomTarget):
    """Gives features and has no head for the drafter's steps."""

    def lm_head(self, hidden):
        raise ZeroDivisionError("the head is broken")


def open_failing(settings):
    return dataclasses.replace(open_tiny(settings), target=FailingTarget())


def open_dying(settings):
    if _is_child():
        os._exit(3)
    return open_tiny(settings)


def open_other_samples(settings):
    return open_tiny(make_settings(data_seed=1) if _is_child() else settings)
