"""Which arms a study has, and what it refuses."""

import numpy as np
import pytest

from dflash_lab import study
from dflash_lab.drafter import AnchorBudget


def test_the_default_has_every_arm_of_every_seed_once():
    specs = study.StudySettings().specs()
    assert len(specs) == len(set(specs)) == 3 * (6 + 2 + 1)
    assert {spec.label for spec in specs} == {
        "sorted",
        "random",
        "bucketed",
        "bucketed, stride",
        "capacity, stride",
        "packed",
        "bucketed, anchors per supervised token",
        "bucketed, anchors per batch",
        "bucketed, divided per micro-batch",
    }
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs)
    assert len({spec.folder for spec in specs}) == len(specs)


def test_names_stand_for_pairs_and_the_probed_arm_is_always_there():
    settings = study.StudySettings(arms=["sorted", "capacity/stride"], probed="bucketed/stride", seeds=range(4, 5))
    assert settings.arms == (("sorted", "random"), ("capacity", "stride"))
    assert settings.reference == "bucketed, stride"
    assert settings.reference in {spec.label for spec in settings.specs()}
    assert settings.normalisation_labels == ("bucketed, stride, divided per micro-batch",)
    assert {spec.seed for spec in settings.specs()} == {4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ["sorted/never"]}, "order is 'never'; legal: as_built"),
        ({"arms": [3]}, "arms holds 3; legal: a strategy and an order"),
        ({"probed": "neat"}, "strategy is 'neat'; legal: as_given"),
        ({"seeds": ()}, r"seeds is \(\); legal: different whole numbers >= 0"),
        ({"seeds": (1, 1)}, r"seeds is \(1, 1\); legal: different"),
        ({"seeds": (-1,)}, "seeds is -1; legal: a whole number >= 0"),
        ({"normalisations": ("batch",)}, "normalisation is 'batch'; legal: window, micro_batch"),
        ({"anchor_budgets": ("token",)}, "anchors_per is 'token'; legal: sample"),
        ({"tokens_per_epoch": 0}, "tokens_per_epoch is 0; legal: a whole number >= 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; legal"),
        ({"block_size": 1}, "block_size is 1; legal"),
        ({"bucket_bounds": (1, 2)}, r"bucket_bounds is \(1, 2\); legal"),
    ],
)
def test_what_is_not_legal_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        study.StudySettings(**changes)


@pytest.mark.parametrize("seed", range(5))
def test_budgets_open_as_many_blocks_as_anchors_per_sample(seed):
    rng = np.random.default_rng(seed)
    valid = rng.integers(0, 300, 40)
    wanted = np.minimum(valid, 8).sum()
    given = {"anchors_per_sample": 8, "num_valid": valid, "num_batches": 7}
    assert study.equal_budget("sample", **given) == AnchorBudget(per="sample", amount=8)
    share = study.equal_budget("supervised_token", **given)
    # The smallest share of four digits that opens enough.
    brute = next(s / 10_000 for s in range(1, 10_001) if np.ceil(np.round(s / 10_000 * valid, 8)).sum() >= wanted)
    assert share.amount == brute
    assert 7 * study.equal_budget("batch", **given).amount == pytest.approx(wanted, abs=3.5)


def test_a_study_without_blocks_still_has_budgets():
    given = {"anchors_per_sample": 8, "num_valid": np.zeros(3, np.int64), "num_batches": 2}
    assert study.equal_budget("batch", **given).amount == 1
    assert study.equal_budget("supervised_token", **given).amount == 0.0001
