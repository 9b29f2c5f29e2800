"""Stable rank and entropy against dense algebra, scipy and what they must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.weights import root_mean_square, stable_rank, weight_entropy


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 3, 2, 2), (1, 7), (7, 1)])
def test_stable_rank_is_that_of_the_singular_values(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    values = np.linalg.svd(weight.double().numpy().reshape(shape[0], -1), compute_uv=False)
    assert stable_rank(weight) == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-12)


def reference_entropy(values, bits):
    """Bins counted one value at a time; scipy's entropy."""
    low, high = min(values), max(values)
    counts = [0] * 2**bits
    for value in values:
        counts[min(int((value - low) / (high - low) * 2**bits), 2**bits - 1)] += 1
    return scipy.stats.entropy(counts, base=2)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_entropy_is_that_of_the_histogram(bits):
    torch.manual_seed(1)
    weights = torch.randn(40, 25)
    expected = reference_entropy(weights.double().flatten().tolist(), bits)
    assert weight_entropy(weights, bits) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(-30, 30), st.integers(0, 100))
def test_neither_changes_with_scale(exponent, seed):
    torch.manual_seed(seed)
    weight = torch.randn(6, 8, dtype=torch.float64)
    scaled = weight * 2.0**exponent
    assert stable_rank(scaled) == pytest.approx(stable_rank(weight), rel=1e-12)
    assert weight_entropy(scaled) == pytest.approx(weight_entropy(weight), rel=1e-12)


def test_bounds_and_edges():
    assert stable_rank(torch.zeros(3, 3)) == 0
    assert stable_rank(torch.tensor(2.0)) == 1
    assert stable_rank(torch.randn(50)) == 1
    assert stable_rank(torch.full((2, 2), 1e300, dtype=torch.float64)) == 1
    assert weight_entropy(torch.zeros(5)) == weight_entropy(torch.tensor(3.0)) == 0
    assert weight_entropy(torch.tensor([-1e308, 1e308], dtype=torch.float64)) == 1
    assert weight_entropy(torch.arange(1 << 10), bits=10) == 10
    assert root_mean_square(torch.zeros(4)) == 0
    assert root_mean_square(torch.full((4,), 1e200, dtype=torch.float64)) == pytest.approx(1e200)


def test_a_sample_is_near_the_whole_and_repeats():
    torch.manual_seed(2)
    weights = torch.randn(100_000)
    whole, some = weight_entropy(weights), weight_entropy(weights, sample=0.03)
    assert some == pytest.approx(whole, abs=0.1)
    assert some != whole
    assert some == weight_entropy(weights, sample=0.03) != weight_entropy(weights, 4, 0.03, seed=1)


@pytest.mark.parametrize("measure", [stable_rank, weight_entropy, root_mean_square])
@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf"), 1.0]])
def test_what_cannot_be_measured_is_refused(measure, bad):
    with pytest.raises(TaskError):
        measure(torch.tensor(bad))


@pytest.mark.parametrize("how", [{"bits": 0}, {"bits": 17}, {"sample": 0.0}, {"sample": 1.5}])
def test_settings_out_of_range(how):
    with pytest.raises(SettingsError):
        weight_entropy(torch.randn(10), **how)
