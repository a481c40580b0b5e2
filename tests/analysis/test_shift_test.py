"""Shifting tests by hand, by every shift and by simulation."""

import itertools
import math

import numpy as np
import pytest

from dflash_lab.analysis.loss_levels import loss_level_table
from dflash_lab.analysis.shift_power import binomials, detectable_share
from dflash_lab.analysis.shift_test import holm, near_events, score, shift_draws, shift_test, strata_of, stretches_of
from dflash_lab.analysis.suspects import Suspect, extremes


def test_a_beat_has_many_shifts_in_stretches_and_few_in_one() -> None:
    near = near_events(np.arange(2_000) % 10 == 0, first_lag=1, last_lag=1)
    onsets = np.arange(31, 2_000, 40)  # all of them one step behind an event
    rng = np.random.default_rng(0)
    whole = shift_test(near[None], shift_draws([np.arange(2_000)], onsets, num_draws=999, rng=rng))
    cut = shift_test(near[None], shift_draws(stretches_of(2_000, num_events=200), onsets, num_draws=999, rng=rng))
    assert whole.p_value == pytest.approx(0.1, abs=0.03)
    assert cut.p_value == 0.001
    assert cut.expected[0] == pytest.approx(len(onsets) / 10)


def test_near_is_at_the_lags_behind_an_event_and_nowhere_else() -> None:
    rng = np.random.default_rng(1)
    for first, last in itertools.combinations_with_replacement(range(5), 2):
        events = rng.random(60) < 0.1
        by_hand = [any(events[row - lag] for lag in range(first, last + 1) if row >= lag) for row in range(60)]
        assert near_events(events, first_lag=first, last_lag=last).tolist() == by_hand


def test_p_value_against_every_shift_by_hand() -> None:
    rng = np.random.default_rng(2)
    near = rng.random((3, 40)) < np.array([[0.1], [0.3], [0.2]])
    onsets = np.array([3, 11, 12, 30, 37])
    counts = np.array([[near[s][(onsets + shift) % 40].sum() for s in range(3)] for shift in range(40)])
    expected = counts.mean(axis=0)
    best = score(counts, expected[None, :], 5).max(axis=1)
    exact = np.mean(best >= best[0] - 1e-9)
    test = shift_test(near, shift_draws([np.arange(40)], onsets, num_draws=20_000, rng=rng))
    assert test.near.tolist() == counts[0].tolist()
    assert test.expected == pytest.approx(expected)
    assert test.p_value == pytest.approx(exact, abs=0.015)


def test_p_values_are_uniform_where_nothing_is_guilty() -> None:
    # Events in runs and resets in clusters, as real ones are; the largest distance of Kolmogorov and Smirnov by hand.
    num_tests = 400
    p_values = []
    for seed in range(num_tests):
        rng = np.random.default_rng((seed, 3))
        wander = np.convolve(rng.standard_normal(1_508), np.ones(9), mode="valid")
        near = np.array(
            [
                near_events(variant.events, first_lag=0, last_lag=lag)
                for variant in extremes(wander, "wander")
                for lag in (0, 3)
            ]
        )
        onsets = np.flatnonzero(
            near_events(rng.random(1_500) < 0.01, first_lag=0, last_lag=4) & (rng.random(1_500) < 0.6)
        )
        draws = shift_draws(stretches_of(1_500, num_events=100), onsets, num_draws=399, rng=rng)
        p_values.append(shift_test(near, draws).p_value)
    ordered = np.sort(p_values)
    ranks = np.arange(1, num_tests + 1) / num_tests
    distance = np.abs(ordered - ranks)[ordered <= 0.9].max()
    # Passed in one of a hundred runs of uniform values.
    assert distance < 1.63 / math.sqrt(num_tests)


def test_shifts_stay_in_their_stratum() -> None:
    keys = np.random.default_rng(0).integers(0, 3, 900)
    strata = strata_of(keys)
    assert sorted(np.concatenate(strata).tolist()) == list(range(900))
    assert all(len(set(keys[rows])) == 1 for rows in strata)
    near = (keys == 2)[None]
    onsets = np.flatnonzero(keys == 2)[::20]
    test = shift_test(near, shift_draws(strata, onsets, num_draws=99, rng=np.random.default_rng(1)))
    assert (test.p_value, test.expected[0]) == (1.0, len(onsets))


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.5])) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


def test_binomial_by_hand_and_what_would_have_been_seen_by_simulation() -> None:
    found = binomials(5, np.array([0.3, 0.3, 0.0, 1.0]), np.array([5, 3, 4, 2]))
    assert found[0] == pytest.approx([math.comb(5, k) * 0.3**k * 0.7 ** (5 - k) for k in range(6)])
    assert found[1] == pytest.approx([math.comb(3, k) * 0.3**k * 0.7 ** (3 - k) for k in range(4)] + [0, 0])
    assert found[2:].tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]
    num_onsets, chance = 20, 0.15
    rng = np.random.default_rng(0)
    null = score(rng.binomial(num_onsets, chance, 1_999), np.float64(num_onsets * chance), num_onsets)
    share = detectable_share(null, expected=num_onsets * chance, num_onsets=num_onsets, most=num_onsets, error=0.005)
    border = np.sort(null)[::-1][9 - 1]

    def power(brought_share):
        brought = rng.binomial(num_onsets, brought_share, 20_000)
        near = brought + rng.binomial(num_onsets - brought, chance)
        return np.mean(score(near, np.float64(num_onsets * chance), num_onsets) > border + 1e-9)

    assert power(share) > 0.78 and power(share - 0.05) < 0.82
    assert detectable_share(null, expected=3.0, num_onsets=num_onsets, most=1, error=0.005) is None


def test_what_the_level_swings_with() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 2, 4_000).astype(float)
    losses = 5 * np.exp(-np.arange(4_000) / 400) + 0.1 * groups + 0.05 * rng.standard_normal(4_000)
    suspects = [
        Suspect(name="bucket", text="bucket", measure=groups),
        Suspect(name="other", text="other", measure=rng.standard_normal(4_000)),
        Suspect(name="events", text="events only"),
    ]
    table = loss_level_table(losses, np.ones(4_000, bool), suspects, num_draws=199, rng=rng)
    assert table["suspect"].to_list() == ["bucket", "other"]
    first, second = table.to_dicts()
    # Two groups 0.1 apart have variance 0.05 squared, as much as the noise; the trend's median takes little of it.
    assert first["variance_explained"] == pytest.approx(0.5, abs=0.05)
    assert first["difference"] == pytest.approx(0.1, abs=0.01)
    assert (first["p_value"], first["adjusted_p"]) == (0.005, 0.01)
    assert second["variance_explained"] < 0.01 and second["p_value"] > 0.01
    assert second["explained_by_chance"] == pytest.approx(7 / 4_000, rel=0.3)


def test_a_level_that_nothing_drives_is_blamed_on_nothing() -> None:
    low = 0
    for seed in range(100):
        rng = np.random.default_rng((seed, 5))
        wander = np.convolve(rng.standard_normal(809), np.ones(10), mode="valid")
        noise = np.convolve(rng.standard_normal(809), np.ones(10), mode="valid")
        suspect = Suspect(name="wander", text="wander", measure=wander)
        table = loss_level_table(noise, np.ones(800, bool), [suspect], num_draws=99, rng=rng)
        low += table["p_value"][0] <= 0.05
    assert low <= 5 + 2 * math.sqrt(5 * 0.95)
