import numpy as np
import pytest
import torch

from dflash_lab.drafter import BlockScores, accepted_prefix


def flags(*rows):
    return torch.tensor([[digit == "1" for digit in row] for row in rows])


def random_blocks(seed=0, num_blocks=50, block_size=6):
    generator = torch.Generator().manual_seed(seed)
    scored = torch.rand(num_blocks, block_size, generator=generator) < 0.85
    scored[:, 0] = False
    # As at the end of a sample: everything behind some slot is not scored.
    ends = torch.randint(1, 12, (num_blocks, 1), generator=generator)
    scored &= torch.arange(block_size) < ends
    return (torch.rand(num_blocks, block_size, generator=generator) < 0.7) & scored, scored


def test_only_the_unbroken_prefix_is_accepted():
    accepted = accepted_prefix(flags("1101", "0111", "1111"))
    assert accepted.dtype == torch.int64 and accepted.tolist() == [2, 0, 4]
    assert float(accepted.double().mean()) == 2.0


def test_a_prefix_stops_at_an_unsupervised_slot():
    assert accepted_prefix(flags("1111", "1111", "1011"), flags("1101", "0111", "1111")).tolist() == [2, 0, 1]


def test_no_block_and_no_slot():
    assert accepted_prefix(torch.zeros(0, 4, dtype=torch.bool)).tolist() == []
    assert accepted_prefix(torch.zeros(2, 0, dtype=torch.bool)).tolist() == [0, 0]


def test_the_product_of_accuracies_is_not_the_streak():
    # Right prefixes 3, 2, 1 and 0 of 3, nothing right after the first miss.
    right = flags("0111", "0110", "0100", "0000")
    scores = BlockScores.of(right, flags("0111").expand(4, -1))
    assert scores.streak == 1.5 and scores.tau == 2.5
    assert scores.accuracy_by_position == (0.75, 0.5, 0.25)
    assert scores.survival_by_position == (0.75, 0.5, 0.25)
    products = np.cumprod(scores.accuracy_by_position)
    assert products.sum() == pytest.approx(1.219, abs=1e-3)


def test_right_tokens_behind_a_miss_count_for_accuracy_only():
    scores = BlockScores.of(flags("01101", "00111", "01111"), flags("01111").expand(3, -1))
    assert scores.accepted_sum == 6 and scores.streak == 2.0 and scores.tau == 3.0
    assert scores.accuracy == pytest.approx(10 / 12)
    assert scores.accuracy_by_position == pytest.approx((2 / 3, 1.0, 2 / 3, 1.0))
    assert scores.survival_by_position == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 3))


def test_blocks_at_the_end_of_a_sample_by_hand():
    # Scored: all of the first, one slot of the second, nothing of the third, a gap in the fourth.
    scored = flags("0111", "0100", "0000", "0101")
    right = flags("0110", "0100", "0000", "0101")
    scores = BlockScores.of(right, scored)
    assert scores == BlockScores(
        correct_by_position=(3, 1, 1),
        total_by_position=(3, 1, 2),
        survived_by_position=(3, 1, 0),
        reachable_by_position=(3, 1, 1),
        accepted_sum=4,
        num_blocks=3,
        full_accepted_sum=2,
        num_full_blocks=1,
    )
    assert scores.tau == pytest.approx(1 + 4 / 3) and scores.full_tau == 3.0
    assert scores.survival_by_position == (1.0, 1.0, 0.0)


def test_all_numbers_by_a_plain_walk():
    right, scored = random_blocks()
    scores = BlockScores.of(right, scored)
    streaks, full_streaks, survived, reachable = [], [], [0] * 5, [0] * 5
    for row_right, row_scored in zip(right.tolist(), scored.tolist(), strict=True):
        streak = 0
        while streak < 5 and row_right[streak + 1]:
            streak += 1
        if any(row_scored):
            streaks.append(streak)
        if all(row_scored[1:]):
            full_streaks.append(streak)
        for slot in range(5):
            survived[slot] += all(row_right[1 : slot + 2])
            reachable[slot] += all(row_scored[1 : slot + 2])
    assert 0 < len(full_streaks) < len(streaks) < len(right)
    assert scores.num_blocks == len(streaks) and scores.num_full_blocks == len(full_streaks)
    assert scores.tau == pytest.approx(1 + np.mean(streaks))
    assert scores.full_tau == pytest.approx(1 + np.mean(full_streaks))
    assert scores.survival_by_position == pytest.approx([a / b for a, b in zip(survived, reachable, strict=True)])
    assert scores.accuracy == pytest.approx(int(right.sum()) / int(scored.sum()))


def test_parts_add_up_to_the_whole_and_means_do_not():
    right, scored = random_blocks()
    parts = [BlockScores.of(right[part], scored[part]) for part in (slice(0, 4), slice(4, 5), slice(5, 50))]
    whole = BlockScores.of(right, scored)
    assert BlockScores.none(6) + parts[0] + parts[1] + parts[2] == whole
    assert np.mean([part.tau or 0 for part in parts]) != pytest.approx(whole.tau)


def test_what_is_wrong_or_not_scored_cannot_be_right():
    # `correct` may be given without regard to what is scored.
    right = flags("1111")
    assert BlockScores.of(right, flags("0110")).correct_by_position == (1, 1, 0)


def test_no_block_gives_no_numbers():
    scores = BlockScores.of(torch.zeros(0, 4, dtype=torch.bool), torch.zeros(0, 4, dtype=torch.bool))
    assert scores == BlockScores.none(4)
    assert scores.accuracy is None and scores.streak is None and scores.tau is None and scores.full_tau is None
    assert scores.accuracy_by_position == scores.survival_by_position == (None, None, None)


def test_blocks_of_different_sizes_do_not_add_up():
    with pytest.raises(ValueError):
        BlockScores.none(4) + BlockScores.none(6)
