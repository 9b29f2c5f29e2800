"""The winner's curse: equal candidates, one clear best, and what is claimed of either."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from dovetail.core.errors import SettingsError, TaskError
from dovetail.ranking.expected import wilson
from dovetail.ranking.winner import beats, honest_intervals, honest_winner


def verdicts(seed, shares, n, alike=0.5):
    """Right or wrong ``[m, n]``; ``alike`` is how much candidates find the same examples hard."""
    rng = np.random.default_rng(seed)
    hard = np.sqrt(alike) * rng.normal(size=n)
    own = np.sqrt(1 - alike) * rng.normal(size=(len(shares), n))
    places = [NormalDist().inv_cdf(share) for share in shares]
    return (hard + own < np.array(places)[:, None]).astype(float)


@pytest.mark.parametrize("n", [100, 400])
def test_the_best_of_equals_is_no_better(n):
    honest, naive, values, widths = [], [], [], []
    for seed in range(80):
        seen = verdicts(seed, [0.85] * 40, n)
        found = honest_winner(seen, seed=seed, resamples=200)
        honest.append(found.low <= 0.85 <= found.high)
        values.append(found.value)
        widths.append(found.high - found.low)
        low, high = wilson(seen.mean(1).max(), n, 1.645)
        naive.append(low <= 0.85 <= high)
    assert np.mean(naive) < 0.7
    low, high = wilson(0.85, n, 1.645)
    assert np.mean(honest) >= 0.88
    assert np.mean(widths) < 1.5 * (high - low)  # and it is no wider than it need be
    assert abs(np.mean(values) - 0.85) < 0.015


def test_a_clear_winner_is_hardly_corrected():
    seen = verdicts(0, [0.95] + [0.7] * 39, 400)
    found, alone = honest_winner(seen), honest_winner(seen[:1])
    assert found.value == pytest.approx(alone.value, abs=2e-3)
    assert found.low == pytest.approx(alone.low, abs=4e-3)
    assert found.high == pytest.approx(alone.high, abs=4e-3)


def test_candidates_that_differ_are_held_as_well():
    held = []
    for seed in range(80):
        shares = np.random.default_rng(1000 + seed).normal(0.85, 0.03, 20).clip(0.5, 0.98)
        seen = verdicts(seed, shares, 300)
        found = honest_winner(seen, resamples=200)
        held.append(found.low <= shares[seen.mean(1).argmax()] <= found.high)
    assert np.mean(held) >= 0.8


def test_the_resampling_is_a_loop_over_resamples():
    seen = verdicts(1, [0.8, 0.82, 0.79], 60)
    rng, scores = np.random.default_rng(0), []
    for _ in range(4000):
        picked = rng.integers(60, size=60)
        left = np.setdiff1d(np.arange(60), picked)
        inside = seen[:, picked].mean(1)
        winner = rng.choice(np.flatnonzero(inside == inside.max()))
        scores.append(seen[winner, left].mean())
    found = honest_winner(seen, resamples=4000)
    assert found.value == pytest.approx(np.mean(scores), abs=0.005)


def test_one_candidate_has_its_own_interval():
    seen = verdicts(2, [0.9], 200)
    expected = wilson(seen.mean(), 200, 1.6448536)
    assert honest_winner(seen) == pytest.approx((seen.mean(), *expected))
    assert honest_intervals(seen)[0] == pytest.approx((seen.mean(), *expected))


def test_examples_worth_less_widen():
    seen = verdicts(3, [0.9, 0.9], 200)
    plain, dear = honest_winner(seen), honest_winner(seen, worth=[100.0, 100.0])
    assert dear.high - dear.low > 1.2 * (plain.high - plain.low)
    every = honest_intervals(seen, worth=[100.0, 200.0])
    assert every[0].high - every[0].low > every[1].high - every[1].low


def test_intervals_hold_for_all_at_once():
    held, narrow = [], []
    for seed in range(80):
        seen = verdicts(seed, [0.85] * 20, 200)
        found = honest_intervals(seen, seed=seed, resamples=200)
        held.append(all(each.low <= 0.85 <= each.high for each in found))
        alone = [wilson(share, 200, 1.645) for share in seen.mean(1)]
        narrow.append(all(low <= 0.85 <= high for low, high in alone))
    assert np.mean(narrow) < 0.65
    assert 0.78 <= np.mean(held) <= 0.99


def test_contributions_beyond_one_are_means_too():
    rng = np.random.default_rng(0)
    seen = 1 - rng.exponential(0.5, size=(3, 400))
    found = honest_winner(seen)
    assert found.low < 0.5 < found.high
    assert found.high - found.low == pytest.approx(2 * 1.645 * 0.5 / 20, rel=0.4)


def test_all_right_is_not_certainty():
    found = honest_winner(np.ones((5, 50)))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(wilson(1.0, 50, 1.645)[0], abs=1e-3)


def test_seeds_repeat_and_differ():
    seen = verdicts(4, [0.8] * 10, 50)
    assert honest_winner(seen, seed=1) == honest_winner(torch.tensor(seen), seed=1)
    assert honest_winner(seen, seed=1) != honest_winner(seen, seed=2)


def test_beating_is_paired():
    assert beats([1, 0, 1, 1], [1, 0, 1, 1]) == 0.5
    hard = np.arange(100) % 2
    better = hard.copy()
    better[:20:2] = 1  # ten more, and never one fewer
    assert beats(better, hard) > 0.99
    assert beats(better, hard) + beats(hard, better) == pytest.approx(1)
    shuffled = np.random.default_rng(0).permutation(better)
    assert beats(shuffled, hard) < 0.95


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (np.ones(5), "candidates, examples"),
        (np.ones((2, 1)), "two examples"),
        ([[np.nan, 1]], "finite"),
    ],
)
def test_verdicts_are_judged(seen, says):
    with pytest.raises(TaskError, match=says):
        honest_winner(seen)


def test_settings_are_judged():
    seen = np.eye(4)
    for options in ({"confidence": 2.0}, {"resamples": 1}, {"worth": [1.0]}):
        with pytest.raises(SettingsError):
            honest_winner(seen, **options)
