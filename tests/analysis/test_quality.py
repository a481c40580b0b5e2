"""Tables of a drafter's quality, against numbers worked by hand."""

import numpy as np
import pytest

from dflash_lab import analysis, figures


def test_positions_are_shares_of_what_was_scored():
    table = analysis.position_table([9, 4, 0, 0], [10, 8, 5, 0], [9, 3, 0, 0], [10, 6, 2, 0])
    assert table.rows() == [(1, 0.9, 0.9, 10, 10), (2, 0.5, 0.5, 8, 6), (3, 0.0, 0.0, 5, 2)]
    assert figures.plot_accuracy_by_position(table).axes
    with pytest.raises(ValueError, match=r"the counts are of \[2, 1, 1, 1\] positions; legal: the same number"):
        analysis.position_table([1, 2], [1], [1], [1])


def test_tau_of_each_slice_and_of_the_rest():
    accepted = np.array([3, 1, 0, 0, 2, 5])
    samples = np.array([0, 0, 1, 1, 2, 3])
    table = analysis.tau_by_slice(accepted, samples, ["a", "a", "b", "b", "a", None], most_slices=2, num_draws=200)
    assert table["slice"].to_list() == ["all", "a", "b", "the rest (1)"]
    assert table["tau"].to_list() == pytest.approx([1 + 11 / 6, 3.0, 1.0, 6.0])
    assert table["num_samples"].to_list() == [4, 2, 1, 1]
    assert table["num_blocks"].to_list() == [6, 3, 2, 1]
    # Of one sample every resampling is that sample.
    assert table.row(2)[2:4] == (1.0, 1.0)
    low, high = table["tau_low"].to_list(), table["tau_high"].to_list()
    assert all(one <= tau <= two for one, tau, two in zip(low, table["tau"], high, strict=True))
    assert figures.plot_tau_by_slice(table).axes


def test_slices_stand_in_the_order_that_is_asked_for():
    table = analysis.tau_by_slice(np.arange(4), np.arange(4), ["x", "x", "x", "y"], order=["z", "y", "x"], num_draws=5)
    assert table["slice"].to_list() == ["all", "y", "x"]


def test_the_interval_is_over_samples_and_not_over_blocks():
    # 16 samples of 50 equal blocks: what is independent are 16 values, half 0 and half 2, with a standard error of 1/4.
    accepted = np.repeat([0, 2] * 8, 50)
    table = analysis.tau_by_slice(accepted, np.repeat(np.arange(16), 50), ["a"] * 800, num_draws=4_000)
    low, high = table.row(0, named=True)["tau_low"], table.row(0, named=True)["tau_high"]
    assert low == pytest.approx(2 - 1.96 / 4, abs=0.07) and high == pytest.approx(2 + 1.96 / 4, abs=0.07)


def test_the_same_seed_gives_the_same_interval():
    blocks = np.arange(30) % 7, np.arange(30) // 3, ["a"] * 30
    tables = [analysis.tau_by_slice(*blocks, seed=seed, num_draws=50) for seed in (1, 1, 2)]
    assert tables[0].equals(tables[1]) and not tables[0].equals(tables[2])


def test_blocks_that_do_not_fit_one_another_are_refused():
    message = (
        "there are 2 blocks, 1 sample ids and 2 slices; legal: one of each for every block, and at least one block"
    )
    with pytest.raises(ValueError, match=message):
        analysis.tau_by_slice(np.arange(2), np.arange(1), ["a", "a"])
    with pytest.raises(ValueError, match="there are 0 blocks"):
        analysis.tau_by_slice(np.arange(0), np.arange(0), [])


def test_lengths_fall_into_half_open_buckets():
    names, order = analysis.length_slices(np.array([1, 127, 128, 255, 256, 9_000]), [0, 128, 256, 512])
    assert order == ["[0, 128) tokens", "[128, 256) tokens", "[256, ∞) tokens"]
    assert names == [order[0], order[0], order[1], order[1], order[2], order[2]]


def test_trees_beside_the_chain():
    table = analysis.tree_table([7, 32], [12, 20], [15.0, 18.0], chain_accepted_sum=10, num_blocks=10)
    assert table.select("node_budget", "chain_tau", "tree_tau", "expected_tree_tau").rows() == [
        (7, 2.0, 2.2, 2.5),
        (32, 2.0, 3.0, 2.8),
    ]
    assert table["gain_over_chain"].to_list() == pytest.approx([0.2, 1.0])
    assert table["calibration_gap"].to_list() == pytest.approx([0.3, -0.2])
    assert figures.plot_tree_gain(table).axes
    with pytest.raises(ValueError, match="num_blocks is 0; legal: at least one block"):
        analysis.tree_table([7], [0], [0.0], chain_accepted_sum=0, num_blocks=0)


def test_speeds_are_ordered_and_in_milliseconds():
    seconds = {"target_seconds": 0.004, "verify_seconds": 0.005, "drafter_seconds": 0.003}
    rows = [
        {"kind": "tree", "node_budget": 64, "tau": 2.5, "speed_up": 1.25, **seconds},
        {"kind": "tree", "node_budget": 7, "tau": 2.0, "speed_up": 1.0, "measured_speed_up": 0.9, **seconds},
        {"kind": "chain", "node_budget": 7, "tau": 1.8, "speed_up": 0.9, "is_equal": True, **seconds},
    ]
    table = analysis.speed_up_table(rows)
    assert table.select("kind", "node_budget").rows() == [("chain", 7), ("tree", 7), ("tree", 64)]
    assert table["verify_ms"].to_list() == [5.0] * 3
    assert table["measured_speed_up"].to_list() == [None, 0.9, None]
    assert figures.plot_speed_up(table).axes
    with pytest.raises(ValueError, match=r"the kinds are \['bush'\]; legal: at least one, chain or tree"):
        analysis.speed_up_table([{**rows[0], "kind": "bush"}])
