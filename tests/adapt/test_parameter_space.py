"""The posterior in parameter space against dense Bayesian linear regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.linear_posterior import Dense
from torch import nn

from dovetail.adapt.parameter_space import condition_in_parameters, scatter
from dovetail.adapt.posterior import condition_on_functions
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.linalg.tangent import TangentFeatures

SCALES = {"0.weight": 0.3, "0.bias": 2.0, "2.weight": 0.05}


def network(outputs=2, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def data(n=9, outputs=2, seed=1):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    residual = torch.randn(n, outputs, generator=draw, dtype=torch.float64)
    noise = 0.05 + torch.rand(n, outputs, generator=draw, dtype=torch.float64)
    return x, residual, noise


def close(found, wanted, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("n", [1, 9, 60])
def test_it_is_bayesian_linear_regression(outputs, n):
    model = network(outputs)
    x, residual, noise = data(n, outputs)
    new = torch.randn(5, 3, dtype=torch.float64)
    truth = Dense(model, x, residual, noise, SCALES)
    found = condition_in_parameters(TangentFeatures(model, x, block=4), residual, noise, SCALES)
    features = TangentFeatures(model, new, block=2)
    close(found.weights, truth.weights)
    close(found.log_evidence, truth.log_evidence)
    close(found.variance(features), truth.variance(new))
    close(found.covariance(features), truth.covariance(new))
    close(found.shift(features).flatten(), truth.rows(new) @ truth.weights)
    assert found.diagnostics["method"] == "parameter"
    assert found.diagnostics["rows"] == n * outputs


def test_it_is_the_posterior_in_function_space():
    model = network()
    x, residual, noise = data()
    features, new = (TangentFeatures(model, some) for some in (x, torch.randn(4, 3).double()))
    here = condition_in_parameters(features, residual, noise, SCALES)
    there = condition_on_functions(features, residual, noise, SCALES)
    close(here.weights, there.weights)
    close(here.log_evidence, there.log_evidence)
    close(here.variance(new), there.variance(new))


@given(first=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_more_data_later_is_all_data_at_once(first, seed):
    model = network()
    x, residual, noise = data(9, seed=seed)
    whole = condition_in_parameters(TangentFeatures(model, x), residual, noise, SCALES)
    some, rest = (TangentFeatures(model, part) for part in (x[:first], x[first:]))
    begun = condition_in_parameters(some, residual[:first], noise[:first], SCALES)
    grown = begun.updated(rest, residual[first:], noise[first:])
    close(grown.weights, whole.weights, 1e-8)
    close(grown.log_evidence, whole.log_evidence, 1e-8)
    close(grown.variance(rest), whole.variance(rest), 1e-8)
    assert grown.diagnostics["rows"] == whole.diagnostics["rows"]


def test_sites_of_full_matrices_add_up():
    model = network()
    x, _, _ = data(6)
    features = TangentFeatures(model, x)
    root = torch.randn(6, 2, 2, dtype=torch.float64)
    j = torch.cat(list(features.rows()))
    counts = [shape.numel() for shape in features.shapes.values()]
    values = [SCALES.get(name, 1.0) ** 0.5 for name in features.names]
    deviations = torch.repeat_interleave(
        torch.tensor(values, dtype=torch.float64), torch.tensor(counts)
    )
    wanted = sum(j[i].T @ root[i] @ root[i].T @ j[i] for i in range(6))
    close(scatter(features, root, SCALES), deviations[:, None] * wanted * deviations)
    diagonal = torch.rand(6, 2).double()
    close(
        scatter(features, diagonal, SCALES),
        scatter(features, torch.diag_embed(diagonal), SCALES),
    )


def test_a_parameter_without_variance_does_not_move():
    model = network()
    x, residual, noise = data()
    fit = condition_in_parameters(TangentFeatures(model, x), residual, noise, {"0.weight": 0.0})
    assert not fit.weights[:12].any()
    assert fit.weights[12:].all()


def test_what_it_refuses():
    model = network()
    x, residual, noise = data()
    features = TangentFeatures(model, x)
    broken = residual.clone()
    broken[3, 1] = float("nan")
    with pytest.raises(TaskError, match="nan or inf"):
        condition_in_parameters(features, broken, noise, {})
    with pytest.raises(TaskError, match=r"residual has shape \[9\]"):
        condition_in_parameters(features, residual[:, 0], noise, {})
    with pytest.raises(TaskError, match=r"noise has shape \[8, 2\]"):
        condition_in_parameters(features, residual, noise[:8], {})
    with pytest.raises(SettingsError, match="above 0"):
        condition_in_parameters(features, residual, -noise, {})
    with pytest.raises(SettingsError, match="at least 0"):
        condition_in_parameters(features, residual, noise, {"0.bias": -1.0})
    with pytest.raises(SettingsError, match="did you mean"):
        condition_in_parameters(features, residual, noise, {"0.weigt": 1.0})
    with pytest.raises(TaskError, match="root has shape"):
        scatter(features, noise[:8], {})
    fit = condition_in_parameters(features, residual, noise, {})
    with pytest.raises(ContractError, match="the posterior of 26"):
        fit.variance(TangentFeatures(model, x, params="2"))
