import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import calibration as slow
from scipy import stats

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.intervals import (
    LEVELS,
    coverage,
    coverage_curve,
    crps,
    gaussian_nll,
    interval_width,
    share_interval,
)

seeds = st.integers(0, 2**31)


def predictions(seed, *shape, spread=1.0):
    """Means, deviations and observations; honest when the spread is one."""
    draw = torch.Generator().manual_seed(seed)
    mean = torch.randn(*shape, generator=draw, dtype=torch.float64)
    std = 0.2 + torch.rand(*shape, generator=draw, dtype=torch.float64)
    noise = torch.randn(*shape, generator=draw, dtype=torch.float64)
    return mean, std, mean + spread * std * noise


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 50), st.floats(0.05, 0.99))
def test_coverage_and_likelihood_agree_with_scipy(seed, n, level):
    mean, std, y = (each.numpy() for each in predictions(seed, n))
    low, high = stats.norm.interval(level, mean, std)
    assert coverage(mean, std, y, level) == np.mean((low <= y) & (y <= high))
    assert interval_width(std, level) == pytest.approx(np.mean(high - low))
    expected = -np.mean(stats.norm.logpdf(y, mean, std))
    assert gaussian_nll(mean, std, y) == pytest.approx(expected)


def test_crps_is_the_area_between_the_distribution_functions():
    mean, std, y = (each.tolist() for each in predictions(0, 6, spread=2.0))
    assert crps(mean, std, y) == pytest.approx(slow.crps(mean, std, y), rel=1e-3)


def test_honest_bars_hold_what_they_claim():
    for found in coverage_curve(*predictions(0, 20_000)):
        assert found.share == pytest.approx(found.level, abs=0.01)
    narrow = coverage_curve(*predictions(0, 20_000, spread=2.0))
    assert all(found.share < found.level and not found.consistent for found in narrow)


def test_the_true_deviation_has_the_best_scores():
    mean, std, y = predictions(1, 4000)
    for score in (gaussian_nll, crps):
        assert score(mean, std, y) < min(score(mean, 0.7 * std, y), score(mean, 1.4 * std, y))


def test_the_curve_is_the_coverage_at_each_level():
    mean, std, y = predictions(2, 40, 3)
    curve = coverage_curve(mean, std, y)
    assert tuple(found.level for found in curve) == LEVELS
    for found in curve:
        assert found.share == coverage(mean, std, y, found.level)
        assert found.width == pytest.approx(interval_width(std, found.level))
        assert found.low <= found.share <= found.high
    shares = [found.share for found in curve]
    assert shares == sorted(shares)


def test_a_column_is_a_row_and_nothing_is_broadcast():
    mean, std, y = predictions(3, 7)
    expected = gaussian_nll(mean, std, y)
    assert gaussian_nll(mean[:, None], std, y[:, None].float().double()) == pytest.approx(expected)
    with pytest.raises(TaskError, match="alike"):
        gaussian_nll(mean[:1], std, y)
    with pytest.raises(TaskError, match="alike"):
        coverage(mean[None], std[:, None], y)


@pytest.mark.parametrize("measure", [coverage, coverage_curve, gaussian_nll, crps])
@pytest.mark.parametrize(
    ("mean", "std", "y", "said"),
    [
        ([], [], [], "no predictions"),
        ([0.0], [0.0], [0.0], "above zero"),
        ([0.0], [-1.0], [0.0], "above zero"),
        ([0.0], [math.nan], [0.0], "finite"),
        ([math.nan], [1.0], [0.0], "NaN"),
        ([0.0], [1.0], [math.inf], "infinite"),
        ([0.0, 1.0], [1.0], [0.0], "alike"),
        (0.0, 1.0, 0.0, "alike"),
        (["a"], [1.0], [0.0], "numbers"),
    ],
)
def test_what_is_no_prediction(measure, mean, std, y, said):
    with pytest.raises(TaskError, match=said):
        measure(mean, std, y)


@pytest.mark.parametrize("level", [0.0, 1.0, 90, math.nan])
def test_levels_that_cannot_be(level):
    with pytest.raises(SettingsError, match="level"):
        coverage([0.0], [1.0], [0.0], level)
    with pytest.raises(SettingsError, match="level"):
        interval_width([1.0], level)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_interval_of_a_share_agrees_with_scipy(n, share, confidence):
    k = round(share * n)
    theirs = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
    assert share_interval(k, n, confidence=confidence) == pytest.approx(tuple(theirs))


def test_shares_that_cannot_be():
    for successes, trials in ((-1, 3), (4, 3), (0, 0)):
        with pytest.raises(TaskError, match="cannot be"):
            share_interval(successes, trials)
    with pytest.raises(SettingsError, match="confidence"):
        share_interval(1, 2, confidence=1.0)
