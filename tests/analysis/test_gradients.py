"""Tables of a study: identities, planted causes, hand-worked intervals, and the logs they are read from."""

import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_lab import analysis

BOUNDS = (0, 128, 512)
KEYS = {"strategy": "bucketed", "order": "random", "batching": "bucketed"}


def write_arm(folder, rows, *, seed=0, label="bucketed", anchors_per="sample", normalisation="window", scores=None):
    """Write an arm's folder; a row is a step: its micro-batches as (loss, blocks, bucket, tokens, grad norm)."""
    folder.mkdir(parents=True)
    lines = []
    for step, (micro, grad_norm) in enumerate(rows, 1):
        losses, blocks, buckets, tokens, norms = map(list, zip(*micro, strict=True))
        weights = [float(each) for each in blocks]
        summed = [loss * weight for loss, weight in zip(losses, weights, strict=True)]
        by_bucket = [
            [weight if place == bucket else 0.0 for place in range(2)]
            for weight, bucket in zip(weights, buckets, strict=True)
        ]
        lines.append(
            {
                "step": step, "epoch": 0, "updated": True, "skipped": "", "learning_rate": 0.1,
                "loss_sum": sum(summed), "loss_weight": sum(weights),
                "num_blocks": sum(blocks), "accepted_sum": 0, "grad_norm": grad_norm,
                "cosine_with_last": 0.5 if step > 1 else None, "num_samples": [2] * len(micro), "real_tokens": tokens,
                "padded_tokens": [2 * each for each in tokens], "micro_loss_weight": weights,
                "micro_loss_sum": summed, "micro_num_blocks": blocks,
                "micro_grad_norm": norms, "bucket_loss_weights": by_bucket,
                "bucket_loss_sums": [[w * loss for w in row] for row, loss in zip(by_bucket, losses, strict=True)],
                "bucket_num_blocks": [[int(w) for w in row] for row in by_bucket],
            }
        )  # fmt: skip
    padded = [sum(row["padded_tokens"]) for row in lines]
    real = [sum(row["real_tokens"]) for row in lines]
    if scores is None:
        scores = [(len(lines), sum(padded), 1.5)]
    products = [[4.0, 1.0, 0.5, 0.5], [1.0, 4.0, 0.5, 0.5], [0.5, 0.5, 1.0, 0.25], [0.5, 0.5, 0.25, 1.0]]
    look = {"step": len(lines), "half_num_blocks": [[3, 5], [7, 9]], "products": products}
    files = {
        "metrics.jsonl": lines,
        "scores.jsonl": [
            {"step": step, "real_tokens_trained": sum(real[:step]), "padded_tokens_trained": tokens, "num_samples": 4,
             "num_blocks": 8, "tau": tau, "loss": 1.0}
            for step, tokens, tau in scores
        ],
        "buckets.jsonl": [look],
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    arm = {
        **KEYS, "label": label, "anchors_per": anchors_per, "normalisation": normalisation, "seed": seed,
        "bucket_bounds": BOUNDS, "anchors_amount": 8, "num_steps": len(lines), "num_batches": 2 * len(lines),
        "real_tokens_trained": sum(real), "padded_tokens_trained": sum(padded),
        "blocks_trained": sum(row["num_blocks"] for row in lines), "seconds": 1.0,
    }  # fmt: skip
    (folder / "arm.json").write_text(json.dumps(arm))
    return folder


def steps_of(losses, *, blocks=8, buckets=None, grad_norm=1.0):
    """One micro-batch a step."""
    chosen = [0] * len(losses) if buckets is None else buckets
    counts = [blocks] * len(losses) if isinstance(blocks, int) else blocks
    return [
        ([(float(loss), int(count), int(bucket), 100, 1.0)], grad_norm)
        for loss, count, bucket in zip(losses, counts, chosen, strict=True)
    ]


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(-1, 4)), min_size=1, max_size=40),
)
def test_total_variance_is_between_plus_within(pairs):
    values, groups = np.array([value for value, _ in pairs]), np.array([group for _, group in pairs])
    split = analysis.variance_split(values, groups)
    assert split.total == pytest.approx(values.var(), rel=1e-9, abs=1e-9)
    assert split.between + split.within == pytest.approx(split.total, rel=1e-9, abs=1e-9)
    by_hand = sum(values[groups == group].var() * (groups == group).mean() for group in set(groups.tolist()))
    assert split.within == pytest.approx(by_hand, rel=1e-9, abs=1e-9)


def test_what_groups_at_random_would_have_between_them():
    rng = np.random.default_rng(0)
    shares = [
        analysis.variance_split(rng.standard_normal(30), rng.permutation(np.repeat(np.arange(5), 6))).between_share
        for _ in range(2_000)
    ]
    split = analysis.variance_split(rng.standard_normal(30), np.repeat(np.arange(5), 6))
    assert np.mean(shares) == pytest.approx(split.share_by_chance, abs=0.006)
    assert analysis.variance_split(np.ones(3), np.arange(3)).between_share is None
    with pytest.raises(ValueError, match="there are 2 values and 3 groups; legal: as many, at least one"):
        analysis.variance_split(np.ones(2), np.ones(3))


def test_a_trend_is_taken_out_and_swings_stay():
    steps = np.arange(25, 125)
    swing = 0.3 * (-1.0) ** steps
    falling = 5 - 0.7 * np.log(steps)
    found = analysis.deviations_from_trend(steps, falling + swing)
    assert np.abs(found - swing).max() < 0.06
    assert found.mean() == pytest.approx(0, abs=1e-9)
    assert analysis.lag_correlation(found) == pytest.approx(-0.99, abs=0.02)
    assert analysis.deviations_from_trend(np.arange(1, 4), np.array([3.0, 2.0, 1.0])).tolist() == [1.0, 0.0, -1.0]


def test_spikes_are_counted_against_a_robust_spread():
    rng = np.random.default_rng(1)
    quiet = rng.standard_normal(1_000)
    assert analysis.count_spikes(quiet) <= 1
    # A standard deviation would be blown up by the spikes themselves.
    assert analysis.count_spikes(np.concatenate([quiet, [30.0] * 40])) - analysis.count_spikes(quiet) == 40
    assert analysis.count_spikes(np.zeros(10)) == 0 and analysis.count_spikes(np.empty(0)) == 0


def test_modes_of_planted_mixtures():
    rng = np.random.default_rng(2)
    two = np.concatenate([rng.normal(-2, 0.5, 120), rng.normal(2, 0.5, 80)])
    three = np.concatenate([rng.normal(at, 0.4, 100) for at in (-3, 0, 3)])
    assert analysis.count_modes(two) == 2
    assert analysis.count_modes(three) == 3
    assert analysis.count_modes(np.arange(19.0)) is None and analysis.count_modes(np.ones(50)) is None
    # Under the null, the test finds more than one mode in 5 % at most.
    false_alarms = sum(analysis.count_modes(rng.standard_normal(120), num_draws=60) > 1 for _ in range(60))
    assert false_alarms <= 6


def test_noise_scale_of_a_toy():
    """Gradients are G plus noise of variance S over the size of a batch; a ratio of means finds S / |G|^2."""
    rng = np.random.default_rng(3)
    true, sizes, num_weights, noise = np.full(50, 0.2), (4, 12), 50, 30.0
    small, whole = [], []
    for _ in range(4_000):
        parts = [true + rng.standard_normal(num_weights) * math.sqrt(noise / num_weights / size) for size in sizes]
        small.append([float(np.linalg.norm(part)) for part in parts])
        together = sum(size * part for size, part in zip(sizes, parts, strict=True)) / sum(sizes)
        whole.append(float(np.linalg.norm(together)))
    found = analysis.noise_scale(small, [sizes] * len(small), whole)
    assert found.noise == pytest.approx(noise, rel=0.05)
    assert found.gradient_square == pytest.approx(2.0, rel=0.1)
    assert found.scale == pytest.approx(15, rel=0.12)
    assert found.num_steps == 4_000


def test_noise_scale_by_hand():
    # McCandlish et al., A.1, B_small = 2, B_big = 4: S = (9 - 5) / (1/2 - 1/4) = 16, |G|^2 = (4 * 5 - 2 * 9) / 2 = 1.
    found = analysis.noise_scale([[3.0, 3.0]], [[2, 2]], [math.sqrt(5)])
    assert (found.noise, found.gradient_square, found.scale) == pytest.approx((16, 1, 16))
    # A lone micro-batch, and one without blocks, say nothing.
    assert analysis.noise_scale([[3.0], [3.0, 0.0]], [[2], [2, 0]], [3.0, 3.0]).num_steps == 0
    hidden = analysis.noise_scale([[3.0, 3.0]], [[2, 2]], [2.0])
    assert hidden.scale is None and hidden.gradient_square < 0


def test_intervals_of_few_pairs_are_students():
    # Mean 2, standard deviation 1, 3 pairs: 2 +- 4.303 / sqrt(3).
    found = analysis.paired_interval([1.0, 2.0, 3.0])
    assert (found.low, found.high) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)
    assert found.method == "Student's t" and not found.excludes_zero
    assert analysis.paired_interval([1.9, 2.0, 2.1]).excludes_zero
    alone = analysis.paired_interval([5.0])
    assert alone.low is None and alone.method == "one pair" and not alone.excludes_zero
    with pytest.raises(ValueError, match="differences is .*legal: finite numbers"):
        analysis.paired_interval([float("nan")])


def test_intervals_of_many_pairs_are_bootstrapped_and_hold_the_mean():
    rng = np.random.default_rng(4)
    held = []
    for number in range(200):
        found = analysis.paired_interval(rng.normal(1.0, 2.0, 12).tolist(), num_draws=400, seed=number)
        assert found.method == "bootstrap"
        held.append(found.low <= 1.0 <= found.high)
    # The percentile bootstrap of 12 is a little too narrow: about 91 %.
    assert 0.85 <= np.mean(held) <= 0.98
    assert analysis.paired_interval(list(range(9))) == analysis.paired_interval(list(range(9)))


def test_a_study_is_read_with_its_sums_divided(tmp_path):
    rows = [([(2.0, 10, 0, 100, 1.0), (4.0, 30, 1, 900, 2.0)], 1.5), ([(1.0, 0, 0, 100, 0.0)], None)]
    log = analysis.read_study([write_arm(tmp_path / "a", rows)])
    assert log.steps["loss"].to_list() == [3.5, None]
    assert log.steps["bucket_id"].to_list() == [1, -1]
    assert log.steps["mean_length"].to_list() == [250.0, 50.0]
    assert log.micro.filter(pl.col("step") == 1)["loss"].to_list() == [2.0, 4.0]
    assert log.micro["bucket_id"].to_list() == [0, 1, -1]
    assert log.bucket_bounds == BOUNDS and log.labels == ["bucketed"]
    assert analysis.study_conditions(log, hardware="here") == "1 seed an arm, each of 1,100 real tokens; here"
    with pytest.raises(ValueError, match="has no arm.json; legal: the folder of an arm"):
        analysis.read_study([tmp_path])
    with pytest.raises(ValueError, match="arm_folders is empty"):
        analysis.read_study([])


def test_the_study_table_splits_what_was_planted(tmp_path):
    rng = np.random.default_rng(5)
    folders = []
    for seed in range(3):
        buckets = rng.integers(0, 2, 200)
        losses = 5 - 0.5 * np.log(np.arange(1, 201)) + np.where(buckets, 0.4, -0.4) + rng.normal(0, 0.2, 200)
        folders.append(write_arm(tmp_path / f"swings{seed}", steps_of(losses, buckets=buckets), seed=seed))
        calm = 5 - 0.5 * np.log(np.arange(1, 201)) + rng.normal(0, 0.2, 200)
        folders.append(write_arm(tmp_path / f"calm{seed}", steps_of(calm, buckets=buckets), seed=seed, label="random"))
    table = analysis.study_table(analysis.read_study(folders))
    swings, calm = (table.row(place, named=True) for place in range(2))
    assert swings["between_share"] == pytest.approx(0.16 / 0.2, abs=0.05)
    assert swings["micro_between_share"] == pytest.approx(swings["between_share"], abs=0.01)
    assert swings["loss_modes"] == 2 and calm["loss_modes"] == 1
    assert calm["between_share"] < 0.03 and calm["between_share_by_chance"] == pytest.approx(1 / 479)
    assert swings["loss_spread"] == pytest.approx(math.sqrt(0.2), rel=0.1)
    assert calm["loss_spread_sd"] < 0.03 and (swings["num_seeds"], swings["num_steps"]) == (3, 600)
    assert abs(calm["lag_correlation"]) < 0.1 and swings["noise_scale_blocks"] is None
    seeds = analysis.seed_table(analysis.read_study(folders))
    [row] = analysis.compare_arms(seeds, "loss_spread", reference="random").to_dicts()
    assert row["seen"] == "higher" and row["num_pairs"] == 3 and row["low"] > 0
    text = analysis.comparison_text(seeds, "tau", reference="random", labels=["bucketed", "random"])
    assert "no difference seen for bucketed (+0.00; +0.00 to +0.00)" in text
    text = analysis.comparison_text(seeds, "loss_spread", reference="random", labels=["bucketed"])
    assert "paired over 3 seeds (Student's t): bucketed higher by 0.2" in text
    alone = analysis.comparison_text(
        seeds.filter(pl.col("seed") == 0), "loss_spread", reference="random", labels=["bucketed"]
    )
    assert alone.endswith("with one seed no difference can be told from chance")
    with pytest.raises(ValueError, match="reference is 'none'; legal: bucketed, random"):
        analysis.compare_arms(seeds, "tau", reference="none")
    with pytest.raises(ValueError, match="measure is 'none'; legal: label"):
        analysis.compare_arms(seeds, "none", reference="random")


def test_tau_at_equal_padded_tokens_lies_on_a_straight_line(tmp_path):
    short = write_arm(tmp_path / "short", steps_of([3.0] * 3), scores=[(1, 200, 1.1), (3, 600, 1.5)])
    # Twice as many padded tokens, scored at 400 and at 1,200: 600 is a quarter of the way.
    long = write_arm(tmp_path / "long", steps_of([3.0] * 6), label="random", scores=[(2, 400, 1.2), (6, 1_200, 2.0)])
    log = analysis.read_study([short, long])
    seeds = analysis.seed_table(log)
    assert seeds["equal_padded_tokens"].to_list() == [600, 600]
    assert seeds["tau_at_equal_padded"].to_list() == pytest.approx([1.5, 1.4])
    assert seeds["tau"].to_list() == [1.5, 2.0]
    curve = analysis.tau_curve(log, labels=["random"])
    assert curve["padded_tokens"].to_list() == [400.0, 1_200.0] and set(curve["label"]) == {"random"}
    late = write_arm(tmp_path / "late", steps_of([3.0] * 6), label="packed", scores=[(6, 1_200, 2.0)])
    assert analysis.seed_table(analysis.read_study([short, late]))["tau_at_equal_padded"].to_list()[1] is None


def test_cosines_between_buckets_by_hand(tmp_path):
    log = analysis.read_study([write_arm(tmp_path / str(seed), steps_of([3.0]), seed=seed) for seed in range(2)])
    table = analysis.bucket_gradient_table(log, label="bucketed")
    first, across, _, last = table.to_dicts()
    assert (first["cosine"], first["half_cosine"]) == pytest.approx((1.0, 0.25))
    # Products across buckets 0.5, of a bucket's two halves 1 and 0.25, of a half with itself 4 and 1.
    assert across["cosine"] == pytest.approx(0.5 / math.sqrt(1 * 0.25))
    assert across["plain_cosine"] == pytest.approx(2.0 / math.sqrt(10 * 2.5))
    assert (first["grad_norm"], last["grad_norm"]) == pytest.approx((1.0, 0.5))
    assert (first["num_blocks"], first["num_seeds"]) == (16, 2)
    assert analysis.bucket_norm_table(table)["grad_norm"].to_list() == pytest.approx([1.0, 0.5])
    with pytest.raises(ValueError, match="label is 'none'; legal: bucketed"):
        analysis.bucket_gradient_table(log, label="none")


def planted_study(tmp_path, *, noise_of_blocks, num_seeds=6, num_steps=120):
    """Per-sample budgets with blocks 4 to 100, others with 30; the noise of a loss is noise_of_blocks(blocks)."""
    rng = np.random.default_rng(6)
    folders = []
    for seed in range(num_seeds):
        uneven = rng.choice([4, 10, 30, 100], num_steps)
        for per, blocks in (
            ("sample", uneven),
            ("supervised_token", np.full(num_steps, 30)),
            ("batch", np.full(num_steps, 30)),
        ):
            losses = (
                4 - 0.3 * np.log(np.arange(1, num_steps + 1)) + rng.standard_normal(num_steps) * noise_of_blocks(blocks)
            )
            label = "bucketed" if per == "sample" else f"bucketed, {per}"
            rows = [
                ([(float(loss), int(count), 0, int(tokens), 1.0)], 1.0)
                for loss, count, tokens in zip(losses, blocks, rng.integers(50, 900, num_steps), strict=True)
            ]
            folders.append(write_arm(tmp_path / f"{per}{seed}", rows, seed=seed, label=label, anchors_per=per))
    return analysis.read_study(folders)


def test_the_claim_is_confirmed_where_blocks_make_the_noise(tmp_path):
    claim = analysis.anchors_claim(
        planted_study(tmp_path, noise_of_blocks=lambda blocks: 2 / np.sqrt(blocks)), num_draws=200
    )
    assert claim.verdict == "confirmed"
    # Variances 4 * mean(1 / blocks) against 4 / 30.
    expected = math.sqrt(np.mean([1 / 4, 1 / 10, 1 / 30, 1 / 100]) * 30)
    assert [each.ratio for each in claim.ratios] == pytest.approx([expected] * 2, rel=0.12)
    assert claim.size_by_blocks_high < 0 and claim.size_by_length_low < 0 < claim.size_by_length_high
    assert "with anchors per sample the loss spreads 1.7" in claim.text and "6 seeds" in claim.text
    table = analysis.budget_table(claim)
    assert table["budget"].to_list() == ["per sample", "per supervised token", "per batch"]
    assert table["blocks_cv"][0] > 1 and table["blocks_cv"][1] == 0


def test_the_claim_is_refuted_where_blocks_do_nothing(tmp_path):
    log = planted_study(tmp_path, noise_of_blocks=lambda blocks: np.full(len(blocks), 0.4), num_seeds=12)
    claim = analysis.anchors_claim(log, num_draws=200)
    assert claim.verdict == "refuted"
    assert all(each.low < 1 < each.high < 1.1 for each in claim.ratios)
    assert claim.size_by_blocks_low < 0 < claim.size_by_blocks_high


def test_the_claim_is_not_decided_by_one_seed_or_one_budget(tmp_path):
    one = planted_study(tmp_path / "one", noise_of_blocks=lambda blocks: 2 / np.sqrt(blocks), num_seeds=1)
    claim = analysis.anchors_claim(one, num_draws=50)
    assert claim.verdict == "not decided" and "one seed, no interval" in claim.text
    alone = analysis.read_study([write_arm(tmp_path / "alone", steps_of([3.0, 2.0]))])
    claim = analysis.anchors_claim(alone)
    assert claim.verdict == "not decided" and claim.ratios == () and claim.size_by_blocks is None
    assert claim.text.startswith("there are no arms with other budgets")
    others = write_arm(tmp_path / "others", steps_of([3.0, 2.0]), label="bucketed, batch", anchors_per="batch")
    with pytest.raises(ValueError, match="bucketed has no arm with anchors per sample; legal: one to compare"):
        analysis.anchors_claim(analysis.read_study([others]))
