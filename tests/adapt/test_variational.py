"""Variational inference against dense models in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import variational as dense
from references.jacobian import dense_jacobian
from torch import nn

from dovetail.adapt.laplace import condition_on_labels
from dovetail.adapt.likelihood import Likelihood
from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.variational import variational
from dovetail.core.errors import ContractError, SettingsError, TaskError, TrainingError
from dovetail.linalg.tangent import TangentFeatures


def problem(classes=2, n=40, seed=0):
    """A small network, inputs, labels that depend on them, and the dense Jacobian."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, classes))
    x = torch.randn(n, 3)
    labels = (x[:, 0] + 0.5 * torch.randn(n) > 0).long() + (classes > 2) * (x[:, 1] > 0).long()
    jacobian = dense_jacobian(net, x).reshape(n, classes, -1)
    return LinearModel(net), x, labels, jacobian


def scales_of(model, scale):
    return dict.fromkeys(model.names, scale)


@pytest.mark.parametrize("temper", [1.0, 0.5])
def test_with_gaussian_noise_it_is_the_exact_answer_without_correlations(temper):
    model, x, _, jacobian = problem()
    y, mean = torch.randn(40, 2), torch.randn(40, 2)
    found = variational(
        model,
        x,
        y,
        mean=mean,
        scales=scales_of(model, 0.3),
        noise=0.5,
        steps=300,
        draws=2,
        temper=temper,
    )
    exact = dense.ridge(jacobian, (y - mean).double(), 0.3, 0.5 * temper)
    precision = 1 / 0.3 + jacobian.square().sum((0, 1)) / (0.5 * temper)
    off = (jacobian @ (found.weights - exact)).abs().max()
    assert off < 0.05 * (jacobian @ exact).abs().max()
    torch.testing.assert_close(found.deviations, precision.rsqrt(), rtol=0.3, atol=0)
    ratio = (found.deviations * precision.sqrt()).mean()
    assert abs(ratio - 1) < 0.03


@pytest.mark.parametrize("classes", [2, 3])
def test_the_most_probable_weights_are_newtons(classes):
    model, x, labels, jacobian = problem(classes)
    mean = torch.randn(40, classes).double()
    exact = dense.most_probable(jacobian, labels, mean, 2.0)
    best = dense.log_joint(jacobian, labels, mean, 2.0, exact)
    gaps = []
    for steps in (20, 200):
        found = variational(
            model,
            x,
            labels,
            mean=mean,
            scales=scales_of(model, 2.0),
            steps=steps,
            batch_size=20,
            posterior="map",
        )
        assert not found.deviations.any()
        gaps.append(best - dense.log_joint(jacobian, labels, mean, 2.0, found.weights))
    assert -1e-9 < gaps[1] < 0.02
    assert gaps[1] < gaps[0]
    assert (jacobian @ (found.weights - exact)).abs().max() < 0.1


def centred_problem(classes):
    model, x, labels, jacobian = problem(classes)
    new = torch.randn(9, 3)
    constant = torch.eye(classes).double()
    rows = [
        torch.cat([each - jacobian.mean(0), constant.expand(len(each), -1, -1)], 2)
        for each in (jacobian, dense_jacobian(model.module, new).reshape(9, classes, -1))
    ]
    return model, x, labels, new, *rows


@pytest.mark.parametrize("classes", [2, 3])
def test_a_centred_mode_is_laplaces_mean(classes):
    model, x, labels, new, rows, there = centred_problem(classes)
    mean, scales = torch.randn(40, classes).double(), scales_of(model, 2.0)
    found = variational(
        model, x, labels, mean=mean, scales=scales, centred=True, posterior="map", steps=600
    )
    laplace = condition_on_labels(model.features(x), labels, mean, scales)
    shift = laplace.shift(model.features(new))
    torch.testing.assert_close(found.shift(new), shift, rtol=0, atol=1e-3)
    root = torch.cat([torch.full((model.size,), 2.0**0.5), torch.ones(classes)]).double()
    exact = dense.most_probable(rows * root, labels, mean, 1.0)
    torch.testing.assert_close(found.shift(new), there @ (root * exact), rtol=0, atol=1e-3)
    torch.testing.assert_close(
        model.push(new, found.weights) + found.constant, found.shift(new), rtol=0, atol=1e-9
    )
    assert found.kl == pytest.approx(0.5 * float(exact.square().sum()), rel=1e-3)


def test_a_centred_gaussian_is_near_the_best_of_all_without_correlations():
    model, x, labels, new, rows, there = centred_problem(2)
    mean = torch.zeros(40, 2).double()
    middle, deviations = dense.best_of_two(rows, labels, mean, 1.0)
    found = variational(
        model, x, labels, mean=mean, scales={}, centred=True, steps=400, batch_size=20, draws=2
    )
    own = torch.cat([found.weights, found.centre.mean])
    spread = torch.cat([found.deviations, found.centre.deviations])
    best, got = (
        float(dense.elbo_of_two(rows, labels, mean, 1.0, *each))
        for each in ((middle, deviations), (own, spread))
    )
    assert best - 0.3 < got < best + 1e-6
    laplace = condition_on_labels(model.features(x), labels, mean, {})
    off = found.shift(new) - laplace.shift(model.features(new))
    wide = laplace.variance(model.features(new)).diagonal(dim1=1, dim2=2).sqrt()
    assert float((off / wide).abs().mean()) < 0.3
    variance = found.variance(TangentFeatures(model.module, new))
    torch.testing.assert_close(variance, (there * spread.square()) @ there.mT, rtol=1e-4, atol=1e-5)
    draws = found.samples(new, torch.zeros(9, 2), 800, seed=1)
    torch.testing.assert_close(draws.mean(0), found.shift(new), rtol=0, atol=1e-9)
    seen = torch.einsum("sno,snq->noq", draws - draws.mean(0), draws - draws.mean(0)) / len(draws)
    assert (seen - variance).norm() < 0.15 * variance.norm()


def test_a_centre_over_a_sample_is_nearly_that_of_all(monkeypatch):
    model, x, labels, new, *_ = centred_problem(2)
    given_ = {"mean": torch.zeros(40, 2), "scales": {}, "centred": True, "posterior": "map"}
    whole = variational(model, x, labels, steps=300, **given_)
    monkeypatch.setattr("dovetail.adapt.variational.ROWS", 60)
    some = variational(model, x, labels, steps=300, **given_)
    assert not torch.equal(whole.centre.features, some.centre.features)
    assert float((whole.shift(new) - some.shift(new)).abs().max()) < 0.2


def test_the_bound_is_near_the_best_of_all_gaussians_without_correlations():
    model, x, labels, jacobian = problem()
    mean = torch.zeros(40, 2).double()
    middle, deviations = dense.best_of_two(jacobian, labels, mean, 1.0)
    best = float(dense.elbo_of_two(jacobian, labels, mean, 1.0, middle, deviations))
    found = variational(model, x, labels, mean=mean, scales={}, steps=400, batch_size=20, draws=2)
    got = float(dense.elbo_of_two(jacobian, labels, mean, 1.0, found.weights, found.deviations))
    assert best - 0.3 < got < best + 1e-6
    assert (found.deviations / deviations).log().abs().mean() < 0.03
    assert abs(found.bound(x, labels, mean, count=400) - got) < 1.0


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 50), scale=st.floats(0.1, 10.0))
def test_the_bound_is_below_the_evidence(seed, scale):
    torch.manual_seed(seed)
    net = nn.Linear(1, 2, bias=False)
    weight = nn.Sequential(nn.Linear(1, 1, bias=False), net)
    x, labels = torch.randn(8, 1), torch.randint(0, 2, (8,))
    model, mean = LinearModel(weight, "0.weight"), torch.zeros(8, 2).double()
    found = variational(model, x, labels, mean=mean, scales={"0.weight": scale}, steps=60, draws=2)
    jacobian = dense_jacobian(weight, x, ["0.weight"]).reshape(8, 2, 1)
    evidence = dense.log_evidence_of_one_weight(jacobian, labels, mean, scale)
    exact = dense.elbo_of_two(jacobian, labels, mean, scale, found.weights, found.deviations)
    assert float(exact) <= evidence + 1e-9
    assert float(exact) > evidence - 1.0
    assert abs(found.bound(x, labels, mean, count=500) - float(exact)) < 0.3


@pytest.mark.parametrize("noise", [None, 0.5])
def test_slopes_are_autograds_and_drawn_ones_have_the_curvature(noise):
    targets = torch.tensor([2, 0]) if noise is None else torch.randn(2, 3).double()
    likelihood = Likelihood(targets, noise)
    g = torch.randn(1, 2, 3).double().requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.log_density(g, slice(None)).sum(), g)
    torch.testing.assert_close(likelihood.slope(g.detach(), slice(None)), slope)

    def density(one):
        return likelihood.log_density(one[None, None], slice(0, 1)).sum()

    curvature = -torch.func.hessian(density)(g[0, 0].detach())
    draw = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [likelihood.drawn_slope(g.detach(), slice(None), draw)[0] for _ in range(4000)]
    )
    torch.testing.assert_close(drawn.mT @ drawn / len(drawn), curvature, atol=0.1, rtol=0)


def test_products_are_the_dense_jacobians_and_pulls_squared_its_diagonal_curvature():
    model, x, labels, jacobian = problem(3, n=6)
    tangents = model.tangents().at(x)
    w, u = torch.randn(model.size).double(), torch.randn(6, 3).double()
    torch.testing.assert_close(tangents.push(w), jacobian @ w, rtol=1e-4, atol=1e-4)
    expected = torch.einsum("nop,no->p", jacobian, u)
    torch.testing.assert_close(tangents.pull(u), expected, rtol=1e-4, atol=1e-4)
    g, likelihood = (jacobian @ w)[None], Likelihood(labels, None)
    draw = torch.Generator().manual_seed(0)
    pulls = [
        tangents.pull(likelihood.drawn_slope(g, slice(None), draw)).square() for _ in range(1000)
    ]
    p = g[0].softmax(1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    diagonal = torch.einsum("nop,noq,nqp->p", jacobian, curvature, jacobian)
    got = torch.stack(pulls).mean(0)
    assert (got - diagonal).norm() < 0.1 * diagonal.norm()


def test_draws_are_around_the_mean_with_the_variance_it_says():
    model, x, labels, jacobian = problem()
    mean = torch.randn(40, 2)
    found = variational(model, x, labels, mean=mean, scales={}, steps=30)
    draws = found.samples(x, mean, 600, seed=1)
    torch.testing.assert_close(draws.mean(0), mean.double() + found.shift(x))
    variance = found.variance(TangentFeatures(model.module, x))
    exact = (jacobian * found.deviations.square()) @ jacobian.mT
    torch.testing.assert_close(variance, exact, rtol=1e-4, atol=1e-5)
    off = draws - draws.mean(0)
    seen = torch.einsum("sno,snq->noq", off, off) / len(off)
    assert (seen - exact).norm() < 0.15 * exact.norm()
    torch.testing.assert_close(found.samples(x, mean, 3, seed=1), draws[:3])
    some = found.samples(x[5:7], mean[5:7], 3, seed=1)
    torch.testing.assert_close(some, draws[:3, 5:7], rtol=1e-5, atol=1e-5)


def test_a_seed_repeats_a_run_and_nothing_else_is_touched():
    model, x, labels, _ = problem()
    model.module.train()
    before = copy.deepcopy(model.module.state_dict())
    options = {"mean": torch.zeros(40, 2), "scales": {}, "steps": 40, "batch_size": 7}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = variational(model, x, labels, seed=3, **options)
    assert torch.rand(1) == expected
    two = variational(model, x, labels, seed=3, **options)
    other = variational(model, x, labels, seed=4, **options)
    assert torch.equal(one.weights, two.weights)
    assert torch.equal(one.deviations, two.deviations)
    assert one.elbo == two.elbo
    assert not torch.equal(one.weights, other.weights)
    assert model.module.training
    assert all(torch.equal(before[k], v) for k, v in model.module.state_dict().items())
    assert all(p.grad is None for p in model.module.parameters())


def test_it_tells_of_every_step_and_stops_where_the_bound_does():
    model, x, labels, _ = problem(n=10)
    told = []
    found = variational(
        model,
        x,
        labels,
        mean=torch.zeros(10, 2),
        scales=scales_of(model, 1e-6),  # nothing to be learnt: the bound is flat
        steps=200,
        progress=lambda step, bound: told.append((step, bound)),
    )
    assert [step for step, _ in told] == list(range(1, len(told) + 1))
    assert tuple(bound for _, bound in told) == found.elbo
    assert found.diagnostics["stopped early"]
    assert len(told) == found.diagnostics["steps"] < 200


def test_only_the_chosen_parameters_move():
    model, x, labels, _ = problem()
    head = LinearModel(model.module, "2")
    found = variational(head, x, labels, mean=torch.zeros(40, 2), scales={}, steps=20)
    jacobian = dense_jacobian(model.module, x, ["2.weight", "2.bias"]).reshape(40, 2, -1)
    assert len(found.weights) == head.size == jacobian.shape[2]
    torch.testing.assert_close(found.shift(x), jacobian @ found.weights, rtol=1e-4, atol=1e-4)


class Doubled(torch.autograd.Function):
    """An operation that knows its gradient, but no forward derivative."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Opaque(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


def test_an_operation_without_a_forward_derivative_is_gone_around():
    net = nn.Sequential(nn.Linear(3, 2), Opaque())
    plain = nn.Sequential(nn.Linear(3, 2))
    plain.load_state_dict(net.state_dict())
    x, w = torch.randn(4, 3), torch.randn(8).double()
    pushed = LinearModel(net).push(x, w)
    twice = 2 * LinearModel(plain).push(x, w)
    torch.testing.assert_close(pushed, twice, rtol=1e-5, atol=1e-5)


def test_one_input_of_one_class_is_enough():
    model, x, _, _ = problem()
    found = variational(
        model, x[:1], torch.tensor([1]), mean=torch.zeros(1, 2), scales={}, steps=50
    )
    assert found.weights.isfinite().all()
    assert (found.deviations > 0).all()
    assert found.shift(x[:1]).argmax() == 1


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"x": torch.zeros(0, 3)}, TaskError, "no inputs"),
        ({"x": torch.full((40, 3), torch.nan)}, TaskError, "inputs hold numbers"),
        ({"x": torch.zeros(40, 5)}, ContractError, "does not take inputs"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, TaskError, "3 labels"),
        ({"labels": torch.full((40,), 2)}, TaskError, "there is 2"),
        ({"labels": torch.full((40,), -1)}, TaskError, "there is -1"),
        ({"labels": torch.zeros(40)}, TaskError, "whole numbers"),
        ({"mean": torch.zeros(40, 3)}, ContractError, "network gives"),
        ({"mean": torch.zeros(40)}, TaskError, "mean"),
        ({"mean": torch.full((40, 2), torch.inf)}, TaskError, "mean hold"),
        ({"noise": 1.0}, TaskError, "targets"),
        ({"noise": 0.0}, SettingsError, "noise"),
        ({"scales": {"3.weight": 1.0}}, SettingsError, "3.weight"),
        ({"scales": {"2.weight": 0.0}}, SettingsError, "variance"),
        ({"posterior": "laplace"}, SettingsError, "posterior"),
        ({"steps": 0}, SettingsError, "steps"),
        ({"draws": True}, SettingsError, "draws"),
        ({"temper": 0.0}, SettingsError, "temper"),
        ({"learning_rate": float("nan")}, SettingsError, "learning_rate"),
    ],
)
def test_what_cannot_be_is_refused(changes, error, says):
    model, x, labels, _ = problem()
    given_ = {"x": x, "labels": labels, "mean": torch.zeros(40, 2), "scales": {}, "steps": 2}
    with pytest.raises(error, match=says):
        variational(model, **{**given_, **changes})


def test_a_bound_that_is_no_number_is_told():
    model, x, _, _ = problem()
    with pytest.raises(TrainingError, match="lower learning_rate"):
        variational(
            model,
            x,
            torch.full((40, 2), 1e30),
            mean=torch.zeros(40, 2),
            scales={},
            noise=1e-300,
            steps=3,
        )


def test_draws_are_counted():
    model, x, labels, _ = problem()
    found = variational(model, x, labels, mean=torch.zeros(40, 2), scales={}, steps=2)
    with pytest.raises(SettingsError, match="count"):
        found.samples(x, torch.zeros(40, 2), 0)
