"""The posterior by conjugate gradients against dense Bayesian linear regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.linear_posterior import Dense
from torch import nn

from dovetail.adapt.iterative import condition_iteratively, rank_for
from dovetail.adapt.posterior import condition_on_functions
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.linalg.conjugate_gradients import ConvergenceError
from dovetail.linalg.tangent import TangentFeatures

SCALES = {"0.weight": 0.3, "0.bias": 2.0, "2.weight": 0.05}


def network(outputs=2, wide=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, wide), nn.Tanh(), nn.Linear(wide, outputs)).double()


def data(n=30, outputs=2, seed=1):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    residual = torch.randn(n, outputs, generator=draw, dtype=torch.float64)
    noise = 0.05 + torch.rand(n, outputs, generator=draw, dtype=torch.float64)
    return x, residual, noise


def close(found, wanted, tolerance):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("rank", ["auto", 3])
@pytest.mark.parametrize("n", [1, 30])
def test_it_is_bayesian_linear_regression(outputs, rank, n):
    model = network(outputs)
    x, residual, noise = data(n, outputs)
    new = torch.randn(4, 3, dtype=torch.float64)
    truth = Dense(model, x, residual, noise, SCALES)
    found = condition_iteratively(
        TangentFeatures(model, x, block=7), residual, noise, SCALES, tolerance=1e-10, rank=rank
    )
    features = TangentFeatures(model, new)
    close(found.weights, truth.weights, 1e-7)
    close(found.shift(features).flatten(), truth.rows(new) @ truth.weights, 1e-7)
    close(found.variance(features), truth.variance(new), 1e-7)
    close(found.covariance(features), truth.covariance(new), 1e-7)
    off = abs(found.log_evidence - truth.log_evidence)
    assert off <= 5 * found.log_evidence_error + 1e-6 * abs(truth.log_evidence)
    assert found.diagnostics["residual"] <= 1e-10


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", [8, 60])
def test_the_evidence_is_that_of_a_dense_factor(seed, rank):
    model = network(wide=60)
    x, residual, noise = data(100, seed=seed)
    features = TangentFeatures(model, x)
    exact = condition_on_functions(features, residual, 0.1 * noise, SCALES).log_evidence
    fit = condition_iteratively(features, residual, 0.1 * noise, SCALES, rank=rank, seed=seed)
    assert abs(fit.log_evidence - exact) < 4 * fit.log_evidence_error + 1e-4 * abs(exact)
    assert fit.log_evidence == pytest.approx(exact, rel=0.02)
    again = condition_iteratively(features, residual, 0.1 * noise, SCALES, rank=rank, seed=seed)
    assert again.log_evidence == pytest.approx(fit.log_evidence, rel=1e-9)


def test_a_better_preconditioner_makes_the_evidence_surer():
    model = network(wide=60)
    x, residual, noise = data(100)
    errors = [
        condition_iteratively(
            TangentFeatures(model, x), residual, 0.01 * noise, SCALES, rank=rank
        ).log_evidence_error
        for rank in (2, 120)
    ]
    assert errors[1] < errors[0] / 2


def test_inputs_like_those_before_need_no_solution(monkeypatch):
    model = network()
    x, residual, noise = data(60)
    fit = condition_iteratively(
        TangentFeatures(model, x), residual, noise, SCALES, tolerance=1e-3, rank=8
    )
    truth = Dense(model, x, residual, noise, SCALES)
    source = torch.Generator().manual_seed(5)
    first, later = torch.randn(2, 40, 3, generator=source, dtype=torch.float64)
    close(fit.variance(TangentFeatures(model, first)), truth.variance(first), 1e-3)
    assert fit.solutions.rank < 50  # of 80 outputs

    def stopped(*_):
        raise AssertionError("a product with the data's features")

    monkeypatch.setattr(TangentFeatures, "push", stopped)
    monkeypatch.setattr(TangentFeatures, "pull", stopped)
    new = TangentFeatures(model, later)
    found = fit.variance(new)
    close(found, truth.variance(later), 1e-3)
    assert (
        float(torch.linalg.eigvalsh(found - torch.from_numpy(truth.variance(later))).min()) > -1e-9
    )
    close(fit.covariance(new), truth.covariance(later), 1e-3)


def test_the_residual_it_reports_is_the_true_one():
    model = network()
    x, residual, noise = data()
    features = TangentFeatures(model, x)
    fit = condition_iteratively(features, residual, noise, SCALES, tolerance=0.05, rank=4)
    kernel = features.gram(scales=SCALES).reshape(60, 60)
    left = residual.flatten() - (kernel + noise.flatten().diag()) @ fit.dual.flatten()
    root = noise.flatten().rsqrt()
    true = float((root * left).norm() / (root * residual.flatten()).norm())
    assert true <= 0.05
    assert fit.diagnostics["residual"] == pytest.approx(true, rel=1e-3)


@given(seed=st.integers(0, 99), tolerance=st.sampled_from([0.3, 0.03]), rank=st.integers(1, 20))
@settings(max_examples=12, deadline=None)
def test_variances_are_never_too_small(seed, tolerance, rank):
    """Neither the inexact solution's nor the landmarks', as matrices, not only each number."""
    model = network()
    x, residual, noise = data(20, seed=seed)
    new = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fit = condition_iteratively(
        TangentFeatures(model, x), residual, noise, {}, tolerance=tolerance, rank=rank
    )
    features = TangentFeatures(model, new)
    truth = Dense(model, x, residual, noise, {}).variance(new)
    for found in (fit.variance(features), fit.variance(features, exact=False)):
        excess = torch.linalg.eigvalsh(found - torch.from_numpy(truth))
        assert float(excess.min()) > -1e-9
    prior = features.own().diagonal(dim1=1, dim2=2)
    assert bool((fit.variance(features, exact=False).diagonal(dim1=1, dim2=2) <= prior).all())


def test_all_rows_as_landmarks_are_the_exact_posterior():
    model = network()
    x, residual, noise = data(12)
    features, new = TangentFeatures(model, x), TangentFeatures(model, torch.ones(1, 3).double())
    fit = condition_iteratively(features, residual, noise, SCALES, rank=24)
    exact = condition_on_functions(features, residual, noise, SCALES)
    close(fit.variance(new, exact=False), exact.variance(new), 1e-9)


@given(first=st.integers(1, 15), seed=st.integers(0, 99))
@settings(max_examples=4, deadline=None)
def test_more_data_later_is_all_data_at_once(first, seed):
    model = network()
    x, residual, noise = data(16, seed=seed)
    how = {"tolerance": 1e-11, "rank": 20}
    whole = condition_iteratively(TangentFeatures(model, x), residual, noise, SCALES, **how)
    some, rest = (TangentFeatures(model, part) for part in (x[:first], x[first:]))
    begun = condition_iteratively(some, residual[:first], noise[:first], SCALES, **how)
    grown = begun.updated(rest, residual[first:], noise[first:])
    close(grown.weights, whole.weights, 1e-8)
    close(grown.variance(rest), whole.variance(rest), 1e-8)
    assert grown.diagnostics["residual"] <= 1e-11


def test_an_update_begins_where_it_stopped():
    """Data that the mean already explains take no iteration."""
    model = network()
    x, residual, noise = data(30)
    fit = condition_iteratively(TangentFeatures(model, x), residual, noise, {}, tolerance=1e-6)
    more = TangentFeatures(model, torch.randn(2, 3, dtype=torch.float64))
    grown = fit.updated(more, fit.shift(more), torch.full((2, 2), 1e6).double())
    assert grown.diagnostics["iterations"] == 0
    assert grown.diagnostics["residual"] <= 1e-6
    close(grown.weights, fit.weights, 1e-6)


def test_products_in_float32_reach_a_coarse_tolerance():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 1))
    x = torch.randn(300, 3)
    target, noise = x[:, :1].sin().double(), torch.full((300, 1), 0.01).double()
    features = TangentFeatures(model, x)
    said = []
    fit = condition_iteratively(features, target, noise, {}, progress=said.append)
    assert fit.diagnostics["residual"] <= 1e-2
    assert fit.how.dtype == torch.float32
    assert said[0] == "product 1"
    exact = condition_on_functions(features, target, noise, {})
    moved = float((fit.shift(features) - exact.shift(features)).norm() / target.norm())
    assert moved < 1e-2


def test_targets_of_zero_need_no_solution():
    model = network()
    x, residual, noise = data()
    fit = condition_iteratively(TangentFeatures(model, x), 0 * residual, noise, {})
    assert not fit.weights.any()
    assert fit.diagnostics["iterations"] == 0


def test_a_landmark_chosen_by_the_seed():
    model = network()
    x, residual, noise = data()
    fits = [
        condition_iteratively(TangentFeatures(model, x), residual, noise, {}, rank=6, seed=seed)
        for seed in (0, 0, 1)
    ]
    assert fits[0].landmarks.tolist() == fits[1].landmarks.tolist() != fits[2].landmarks.tolist()
    assert len(fits[0].landmarks) == 3  # with two outputs each


def test_what_it_refuses():
    model = network()
    x, residual, noise = data()
    features = TangentFeatures(model, x)
    with pytest.raises(TaskError, match="nan or inf"):
        condition_iteratively(features, residual / 0, noise, {})
    with pytest.raises(SettingsError, match="above 0"):
        condition_iteratively(features, residual, 0 * noise, {})
    with pytest.raises(SettingsError, match="rank"):
        condition_iteratively(features, residual, noise, {}, rank=0)
    with pytest.raises(SettingsError, match="tolerance"):
        condition_iteratively(features, residual, noise, {}, tolerance=2.0)
    with pytest.raises(SettingsError, match="float32 or float64"):
        condition_iteratively(features, residual, noise, {}, dtype=torch.float16)
    with pytest.raises(ConvergenceError, match="preconditioner of higher rank"):
        condition_iteratively(
            features, residual, noise * 1e-9, {}, rank=1, tolerance=1e-12, max_iterations=3
        )
    fit = condition_iteratively(features, residual, noise, {})
    with pytest.raises(ContractError, match="same network"):
        fit.variance(TangentFeatures(model, x, params="2"))
    with pytest.raises(ContractError, match="same network"):
        fit.updated(TangentFeatures(network(), x, params="2"), residual, noise)
    with pytest.raises(SettingsError, match="rank"):
        rank_for(10, 10, True)
