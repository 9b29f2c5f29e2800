"""Prior scale and noise by marginal likelihood, against scipy's density and a search over both."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from dovetail.adapt.evidence import Problem, best_on_a_line, tune, tune_layers
from dovetail.core.errors import SettingsError, TaskError


def drawn(n=30, scale=2.0, noise=0.1, seed=0, rank=5):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, rank))
    kernel = features @ features.T
    target = features @ rng.normal(size=rank) * math.sqrt(scale) + rng.normal(size=n) * noise**0.5
    return torch.from_numpy(kernel), torch.from_numpy(target)


def density(kernels, scales, noise, target, relative=None):
    n = len(target)
    spread = np.eye(n) if relative is None else np.diag(relative)
    total = sum(s * k.numpy() for s, k in zip(scales, kernels, strict=True)) + noise * spread
    return multivariate_normal(np.zeros(n), total).logpdf(target.numpy())


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10), noise=st.floats(0.01, 1))
@settings(max_examples=10, deadline=None)
def test_no_nearby_scale_and_noise_are_better(seed, scale, noise):
    kernel, target = drawn(seed=seed, scale=scale, noise=noise)
    found = tune([Problem((kernel,), target)])
    at = density([kernel], found.scales, found.noise, target)
    assert found.log_evidence == pytest.approx(at, rel=1e-8)
    for a, b in ((1.1, 1.0), (0.9, 1.0), (1.0, 1.1), (1.0, 0.9)):
        other = density([kernel], [a * found.scales[0]], b * found.noise, target)
        assert other <= at + 1e-4


def test_it_is_what_a_search_over_both_finds():
    kernel, target = drawn(n=40)
    found = tune([Problem((kernel,), target)])
    search = minimize(
        lambda z: -density([kernel], [math.exp(z[0])], math.exp(z[1]), target),
        [0.0, 0.0],
        method="Nelder-Mead",
    )
    assert found.log_evidence >= -search.fun - 1e-6


def test_known_halves_are_kept():
    kernel, target = drawn()
    assert tune([Problem((kernel,), target)], noise=0.3).noise == 0.3
    assert tune([Problem((kernel,), target)], scale=0.7).scales == (0.7,)
    both = tune([Problem((kernel,), target)], scale=0.7, noise=0.3)
    assert both.log_evidence == pytest.approx(density([kernel], [0.7], 0.3, target))


def test_two_tasks_share_by_adding_up():
    one, other = drawn(seed=1), drawn(seed=2, n=20)
    problems = [Problem((k,), t) for k, t in (one, other)]
    found = tune(problems)
    added = sum(density([k], found.scales, found.noise, t) for k, t in (one, other))
    assert found.log_evidence == pytest.approx(added)
    alone = tune(problems[:1])
    assert (
        density([one[0]], alone.scales, alone.noise, one[1])
        + density([other[0]], alone.scales, alone.noise, other[1])
        <= added + 1e-6
    )


def test_rows_of_known_different_noise():
    kernel, target = drawn()
    relative = torch.linspace(0.5, 4.0, 30).double()
    found = tune([Problem((kernel,), target, relative)])
    at = density([kernel], found.scales, found.noise, target, relative.numpy())
    assert found.log_evidence == pytest.approx(at)


def test_a_free_constant_is_neither_explained_nor_charged():
    kernel, target = drawn(n=12)
    ones = torch.ones(12, 1).double()
    plain = tune([Problem((kernel,), target, free=ones)])
    # Neither a shift of the targets nor of the kernel says anything about the prior.
    shifted = tune([Problem((kernel + 1e4,), target + 50, free=ones)])
    assert shifted.scales[0] == pytest.approx(plain.scales[0], rel=1e-3)
    assert shifted.noise == pytest.approx(plain.noise, rel=1e-2)
    contrast = torch.linalg.qr(ones, mode="complete").Q[:, 1:]
    at = density([contrast.T @ kernel @ contrast], plain.scales, plain.noise, contrast.T @ target)
    assert plain.log_evidence == pytest.approx(at)
    relative = torch.linspace(0.5, 4.0, 12).double()
    known = tune([Problem((kernel,), target, relative, ones)])
    moved = tune([Problem((kernel + 1e4,), target + 50, relative, ones)])
    assert moved.scales[0] == pytest.approx(known.scales[0], rel=1e-3)


def test_a_scale_for_each_layer_is_no_worse_and_finds_the_useless_one():
    kernel, target = drawn(n=50, seed=3)
    useless, _ = drawn(n=50, seed=4)
    problem = Problem((kernel, useless), target)
    common, layers = tune([problem]), tune_layers([problem])
    at = density([kernel, useless], layers.scales, layers.noise, target)
    assert layers.log_evidence == pytest.approx(at, rel=1e-6)
    assert layers.log_evidence > common.log_evidence + 1
    assert layers.scales[1] < 0.05 * layers.scales[0]


def test_nothing_to_explain_is_no_error():
    kernel, target = drawn()
    for zero in (
        tune([Problem((kernel,), 0 * target)]),
        tune_layers([Problem((kernel,) * 2, 0 * target)]),
    ):
        assert 0 < zero.noise < 1e-3
        assert math.isfinite(zero.log_evidence)


def test_what_does_not_belong_together_is_refused():
    kernel, target = drawn()
    with pytest.raises(SettingsError, match="no task"):
        tune([])
    with pytest.raises(SettingsError, match="does not belong"):
        tune([Problem((kernel,), target[:3])])
    with pytest.raises(SettingsError, match="same layers"):
        tune([Problem((kernel,), target), Problem((kernel, kernel), target)])
    with pytest.raises(TaskError, match="no density"):
        best_on_a_line(lambda at: math.nan, 0.0, 1.0, points=3)
