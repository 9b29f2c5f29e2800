"""The posterior in function space against dense float64 matrices."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from references.gram import jacobian
from references.linear_posterior import Dense
from torch import nn

from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.posterior import centred, condition_on_functions
from dovetail.core.errors import ContractError, SettingsError
from dovetail.linalg.tangent import TangentFeatures

SCALES = {"0.weight": 0.5, "2.bias": 3.0}


def problem(n=12, outputs=2):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    x = torch.randn(n, 3).double()
    return net, x, torch.randn(n, outputs).double(), torch.rand(n, outputs).double() + 0.1


def test_everything_is_what_dense_matrices_say():
    net, x, residual, noise = problem()
    new = torch.randn(4, 3).double()
    found = condition_on_functions(TangentFeatures(net, x), residual, noise, SCALES)
    exact = Dense(net, x, residual, noise, SCALES)
    features = TangentFeatures(net, new)
    np.testing.assert_allclose(found.weights, exact.weights, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        found.shift(features).flatten(), exact.rows(new) @ exact.weights, rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(found.variance(features), exact.variance(new), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        found.covariance(features), exact.covariance(new), rtol=1e-8, atol=1e-10
    )
    assert found.log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)
    assert bool((found.constant == 0).all())


def test_more_data_later_is_all_data_at_once():
    net, x, residual, noise = problem(20)
    once = condition_on_functions(TangentFeatures(net, x), residual, noise, SCALES)
    later = condition_on_functions(TangentFeatures(net, x[:7]), residual[:7], noise[:7], SCALES)
    for some in (slice(7, 8), slice(8, 20)):
        later = later.updated(TangentFeatures(net, x[some]), residual[some], noise[some])
    new = TangentFeatures(net, torch.randn(5, 3).double())
    torch.testing.assert_close(later.shift(new), once.shift(new), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(later.variance(new), once.variance(new), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(later.weights, once.weights, rtol=1e-8, atol=1e-8)
    assert later.log_evidence == pytest.approx(once.log_evidence, rel=1e-10)


def test_duplicate_rows_and_tiny_noise_leave_no_negative_variance():
    net, x, residual, _ = problem(8)
    x, residual = x.repeat(10, 1), residual.repeat(10, 1)
    noise = torch.full_like(residual, 1e-9)
    found = condition_on_functions(TangentFeatures(net, x), residual, noise, {})
    variance = found.variance(TangentFeatures(net, x)).diagonal(dim1=1, dim2=2)
    assert bool((variance >= 0).all())
    assert float(variance.max()) < 1e-6


def test_float32_features_are_good_for_five_digits_with_two_thousand_rows():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 40), nn.ELU(), nn.Linear(40, 60), nn.ELU(), nn.Linear(60, 1))
    x, new = torch.randn(2000, 5), torch.randn(100, 5)
    y = (torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]).double()
    noise = torch.full_like(y, 0.01)
    found = condition_on_functions(TangentFeatures(net, x), y, noise, {})
    wide = copy.deepcopy(net).double()
    j, k = (jacobian(wide, each.double())[:, 0] for each in (x, new))
    kernel = j @ j.T + 0.01 * torch.eye(2000).double()
    across = k @ j.T
    exact_mean = across @ torch.linalg.solve(kernel, y)
    exact_variance = (k @ k.T - across @ torch.linalg.solve(kernel, across.T)).diagonal()
    features = TangentFeatures(net, new)
    mean, variance = found.shift(features), found.variance(features)[:, 0, 0]
    assert float((mean - exact_mean).norm() / exact_mean.norm()) < 1e-5
    assert float((variance - exact_variance).norm() / exact_variance.norm()) < 1e-5
    by_weights = LinearModel(net).push(new, found.weights)
    assert float((by_weights - exact_mean).norm() / exact_mean.norm()) < 1e-5


def test_centred_is_features_less_their_mean_and_a_constant():
    net, x, _, _ = problem(6)
    j = jacobian(net, x)
    apart = j - j.mean(0)
    exact = torch.einsum("icp,jdp->icjd", apart, apart) + torch.eye(2).double()[:, None, :]
    kernel = TangentFeatures(net, x).gram().reshape(12, 12)
    torch.testing.assert_close(centred(kernel, 2), exact.reshape(12, 12), rtol=1e-10, atol=1e-10)


def test_a_linear_model_moves_as_its_jacobian_says():
    net, x, residual, _ = problem()
    model = LinearModel(net, ["2", "0.bias"], batch_size=5)
    j = jacobian(net, x, names=set(model.names))
    w = torch.randn(model.size).double()
    torch.testing.assert_close(model.push(x, w), j @ w, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        model.pull(x, residual), torch.einsum("no,nop->p", residual, j), rtol=1e-10, atol=1e-10
    )
    torch.testing.assert_close(model.outputs(x), net(x).detach())
    assert list(model.groups) == ["0", "2"]
    with pytest.raises(ContractError, match="does not take inputs"):
        model.outputs(torch.randn(2, 9).double())
    with pytest.raises(ContractError, match="flattens its outputs"):
        LinearModel(nn.Conv2d(1, 1, 1)).outputs(torch.randn(2, 1, 2, 2))
    with pytest.raises(SettingsError, match="batch_size"):
        LinearModel(net, batch_size=0)


class NoForwardMode(torch.autograd.Function):
    """An operation with a gradient and no forward derivative."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * x.cos()


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, x):
        return NoForwardMode.apply(self.inner(x))


def test_an_operation_without_forward_mode_takes_the_other_way():
    torch.manual_seed(0)
    net, x = Odd().double(), torch.randn(5, 3).double()
    model = LinearModel(net)
    w = torch.randn(model.size).double()
    torch.testing.assert_close(model.push(x, w), jacobian(net, x) @ w, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_eight_thousand_rows_leave_no_negative_variance():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 200), nn.ELU(), nn.Linear(200, 2000), nn.ELU()]
    net = nn.Sequential(*layers, nn.Linear(2000, 200), nn.ELU(), nn.Linear(200, 1))
    x, new = torch.randn(8000, 5), torch.randn(300, 5)
    y = (torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]).double()
    found = condition_on_functions(TangentFeatures(net, x), y, torch.full_like(y, 0.01), {})
    features = TangentFeatures(net, new)
    prior = features.own()[:, 0, 0]
    explained = prior - found.variance(features)[:, 0, 0]
    assert float((prior - explained).min()) > 1e-6 * float(prior.mean())
    near = found.variance(TangentFeatures(net, x[:300]))[:, 0, 0]
    assert float(near.min()) > 0
    assert float(near.max()) < 0.011
