"""What a shifting test would have seen: without that, nobody is cleared by it."""

from __future__ import annotations

import numpy as np

from dflash_lab.analysis.shift_test import score

POWER = 0.8
_SHARES = np.arange(1, 21) / 20


def detectable_share(
    null_scores: np.ndarray, *, expected: float, num_onsets: int, most: int, error: float
) -> float | None:
    """Find the least share of resets brought by a suspect that its test sees in 80 of 100 runs.

    Args:
        null_scores: float64 (num_draws,), best scores of the shifts.
        expected: Onsets near an event by chance, in [0, num_onsets].
        num_onsets: All onsets, >= 1.
        most: Onsets that the suspect could have brought at most: no more than it has events.
        error: Largest p value that counts.

    Returns:
        A share of `most` in steps of a twentieth; None where not even all of them would be seen.
    """
    ordered = np.sort(null_scores)[::-1]
    # The p value counts the run itself: fewer shifts than this may reach the score.
    allowed = int(np.floor(error * (len(ordered) + 1))) - 1
    if allowed < 0:
        return None
    scores = score(np.arange(num_onsets + 1), np.float64(expected), num_onsets)
    passed = np.flatnonzero(scores > ordered[allowed] + 1e-9)
    if not passed.size:
        return None
    needed = int(passed[0])
    # Chance that the onsets it did not bring fill up what is still needed, by how many it brought.
    by_chance = binomials(num_onsets, np.full(num_onsets + 1, expected / num_onsets), np.arange(num_onsets + 1))
    at_least = np.cumsum(by_chance[:, ::-1], axis=1)[:, ::-1]  # (onsets left, hits)
    brought = np.arange(most + 1)
    filled = at_least[num_onsets - brought, np.maximum(needed - brought, 0)]
    powers = binomials(most, _SHARES, np.full(len(_SHARES), most)) @ filled
    seen = np.flatnonzero(powers >= POWER)
    return float(_SHARES[seen[0]]) if seen.size else None


def binomials(most: int, chances: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Give the chances of 0, 1, ..., `most` hits of several binomial distributions.

    Args:
        most: Largest number of hits, >= 0.
        chances: float64 (n,), chance of a hit, in [0, 1].
        trials: int (n,), in [0, most].

    Returns:
        float64 (n, most + 1), rows with sum 1; 0 for more hits than trials.
    """
    hits = np.arange(most + 1)[None, :]
    trials, chances = trials[:, None], chances[:, None]
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
    misses = trials - hits
    possible = misses >= 0
    misses = np.maximum(misses, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = np.where(hits > 0, hits * np.log(chances), 0.0)
        miss = np.where(misses > 0, misses * np.log1p(-chances), 0.0)
    return np.where(possible, np.exp(logs[trials] - logs[hits] - logs[misses] + hit + miss), 0.0)
