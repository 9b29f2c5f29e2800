"""Laplace's approximation in function space against one over the weights, by other means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.classification_posterior import Dense
from references.gram import jacobian
from torch import nn

from dovetail.adapt.evidence import label_evidence, tune_label_layers, tune_label_scale
from dovetail.adapt.laplace import (
    condition_on_labels,
    mode_of,
    probabilities,
    site_roots,
    with_more_labels,
)
from dovetail.adapt.posterior import centred
from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg.tangent import TangentFeatures

SCALES = {"0.weight": 0.5, "2.bias": 3.0}


def problem(n=9, classes=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, classes)).double()
    return net, torch.randn(n, 2).double(), torch.arange(n) % classes


def features_of(net, x, around, scales):
    """Rows of the Jacobian less their mean, times the prior's deviations, and a constant's."""
    roots = [
        torch.full((p.numel(),), scales.get(name, 1.0) ** 0.5).double()
        for name, p in net.named_parameters()
    ]
    rows = (jacobian(net, x) - jacobian(net, around).mean(0)) * torch.cat(roots)
    constant = torch.eye(rows.shape[1]).double().expand(len(x), -1, -1)
    return torch.cat([rows, constant], 2).numpy()


def test_it_is_the_laplace_approximation_over_the_weights():
    net, x, labels = problem()
    mean = 0.3 * torch.randn(9, 3).double()
    new = torch.randn(5, 2).double()
    found = condition_on_labels(TangentFeatures(net, x), labels, mean, SCALES)
    exact = Dense(features_of(net, x, x, SCALES), mean.numpy(), labels.numpy())
    there = features_of(net, new, x, SCALES)
    features = TangentFeatures(net, new)
    np.testing.assert_allclose(
        found.shift(features), exact.logits(there, 0.0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        found.variance(features), exact.variance(there), rtol=1e-5, atol=1e-6
    )
    joint = found.covariance(features)
    for i in range(5):
        np.testing.assert_allclose(joint[i, :, i], exact.variance(there)[i], rtol=1e-5, atol=1e-6)
    assert found.log_evidence == pytest.approx(exact.log_evidence, rel=1e-6)
    by_weights = TangentFeatures(net, new).push(found.weights) + found.constant
    torch.testing.assert_close(by_weights, found.shift(features), rtol=1e-8, atol=1e-8)


def test_more_labels_later_is_all_at_once():
    net, x, labels = problem(12)
    mean = torch.zeros(12, 3).double()
    once = condition_on_labels(TangentFeatures(net, x), labels, mean, SCALES)
    first = condition_on_labels(TangentFeatures(net, x[:8]), labels[:8], mean[:8], SCALES)
    later = with_more_labels(first, TangentFeatures(net, x[8:]), labels, mean)
    new = TangentFeatures(net, torch.randn(4, 2).double())
    torch.testing.assert_close(later.shift(new), once.shift(new), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(later.variance(new), once.variance(new), rtol=1e-8, atol=1e-8)
    assert later.log_evidence == pytest.approx(once.log_evidence, rel=1e-9)


def test_the_roots_are_roots_of_the_whole_hessian():
    chances = torch.rand(6, 4).double().softmax(1)
    root = site_roots(chances)
    exact = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None, :]
    torch.testing.assert_close(root @ root.mT, exact)


def test_newton_gets_there_from_anywhere_and_from_a_wide_prior():
    net, x, labels = problem(30)
    kernel = 1e5 * TangentFeatures(net, x).gram().reshape(90, 90)
    mean = torch.zeros(30, 3).double()
    used = centred(kernel, 3)
    cold = mode_of(used, mean, labels)
    warm = mode_of(used, mean, labels, start=5 * torch.randn(30, 3).double())
    torch.testing.assert_close(cold[0], warm[0], rtol=1e-5, atol=1e-7)
    assert cold[3] == pytest.approx(warm[3], rel=1e-6)


def test_the_scale_found_is_where_the_evidence_is_highest():
    net, x, labels = problem(18)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    features, mean = TangentFeatures(net, x), torch.zeros(18, 3).double()
    kernel = features.gram().reshape(54, 54)
    scale, evidence = tune_label_scale([(kernel, mean, labels)])
    for factor in (0.2, 5.0):
        other = mode_of(centred(factor * scale * kernel, 3), mean, labels)[3]
        assert other < evidence + 1e-3
    parts = tuple(
        g.reshape(54, 54) for g in features.grams({"0": ["0.weight"], "2": ["2.weight"]}).values()
    )
    _, layered = tune_label_layers(parts, mean, labels)
    common = tune_label_scale([(parts[0] + parts[1], mean, labels)])[1]
    assert layered >= common


def test_the_slopes_of_the_evidence_are_its_differences():
    net, x, labels = problem(9)
    features = TangentFeatures(net, x)
    kernels = [
        g.reshape(27, 27) for g in features.grams({"a": ["0.weight"], "b": ["2.weight"]}).values()
    ]
    constant = torch.eye(27).double()
    mean = 0.2 * torch.randn(9, 3).double()

    def value(*scales):
        return label_evidence(constant, kernels, scales, mean, labels)[0]

    _, slopes, _ = label_evidence(constant, kernels, (2.0, 0.7), mean, labels)
    step = 1e-4
    assert slopes[0] == pytest.approx(
        (value(2 + step, 0.7) - value(2 - step, 0.7)) / (2 * step), rel=1e-4
    )
    assert slopes[1] == pytest.approx(
        (value(2, 0.7 + step) - value(2, 0.7 - step)) / (2 * step), rel=1e-4
    )


def test_inputs_that_cannot_be_told_apart_are_refused():
    net, x, labels = problem(6)
    kernel = TangentFeatures(net, x[:1].expand(6, -1).contiguous()).gram().reshape(18, 18)
    with pytest.raises(TaskError, match="tell them apart"):
        tune_label_scale([(0 * kernel, torch.zeros(6, 3).double(), labels)])


def gaussian(m=3, classes=4, seed=0):
    torch.manual_seed(seed)
    mean = 2 * torch.randn(m, classes).double()
    root = torch.randn(m, classes, classes).double()
    return mean, root @ root.mT


def sampled(mean, covariance, count=200_000):
    lower = torch.linalg.cholesky(covariance)
    draws = torch.randn(count, *mean.shape, generator=torch.Generator().manual_seed(5)).double()
    return (mean + torch.einsum("mij,kmj->kmi", lower, draws)).softmax(2).mean(0)


def test_monte_carlo_is_the_integral():
    mean, covariance = gaussian()
    exact = sampled(mean, covariance)
    assert float((probabilities(mean, covariance, "mc") - exact).abs().max()) < 0.03


def test_probit_is_near_it_and_the_mean_is_not():
    mean, covariance = gaussian(20)
    exact = sampled(mean, covariance, 20_000)
    errors = {
        link: float((probabilities(mean, covariance, link) - exact).abs().mean())
        for link in ("probit", "mean", "mc")
    }
    assert errors["mc"] < errors["probit"] < errors["mean"]


@pytest.mark.parametrize(("gap", "variance"), [(2.0, 4.0), (2.0, 16.0), (4.0, 25.0)])
def test_two_classes_are_the_integral_of_a_sigmoid(gap, variance):
    at = torch.linspace(-60, 60, 20001).double()
    density = torch.exp(-((at - gap) ** 2) / (2 * variance)) / (2 * torch.pi * variance) ** 0.5
    exact = float(torch.trapezoid(density * at.sigmoid(), at))
    mean = torch.tensor([[gap / 2, -gap / 2]]).double()
    covariance = variance / 2 * torch.eye(2).double()[None]
    for link in ("probit", "mc"):
        assert float(probabilities(mean, covariance, link)[0, 0]) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("link", ["mc", "probit", "mean"])
def test_what_all_classes_share_changes_nothing(link):
    mean, covariance = gaussian()
    shared = probabilities(mean + 7, covariance + 50, link)
    torch.testing.assert_close(shared, probabilities(mean, covariance, link), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("link", ["mc", "probit", "mean"])
def test_sure_logits_are_a_softmax_and_a_temperature_flattens_it(link):
    mean, covariance = gaussian()
    zero = 0 * covariance
    torch.testing.assert_close(probabilities(mean, zero, link), mean.softmax(1))
    warm = probabilities(mean, zero, link, temperature=3.0)
    torch.testing.assert_close(warm, (mean / 3).softmax(1))


def test_bad_settings():
    mean, covariance = gaussian()
    with pytest.raises(SettingsError, match="did you mean"):
        probabilities(mean, covariance, "probits")
    with pytest.raises(SettingsError, match="above 0"):
        probabilities(mean, covariance, temperature=0.0)


def test_the_draws_do_not_depend_on_the_signs_of_eigenvectors(monkeypatch):
    """Which are any: another processor's may differ, and so may a part's that was kept."""
    root = torch.randn(4, 3, 3).double()
    mean, covariance = torch.randn(4, 3).double(), root @ root.mT
    expected, decompose = probabilities(mean, covariance), torch.linalg.eigh

    def flipped(matrix):
        values, basis = decompose(matrix)
        return values, basis * torch.tensor([1.0, -1.0, -1.0])

    monkeypatch.setattr(torch.linalg, "eigh", flipped)
    torch.testing.assert_close(probabilities(mean, covariance), expected, rtol=1e-12, atol=1e-12)
