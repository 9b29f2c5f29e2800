"""Laplace's approximation in function space against one over the weights, by other means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.classification_posterior import Dense
from references.gram import jacobian
from torch import nn

from dovetail.adapt.label_priors import label_evidence, tune_label_layers, tune_label_scale
from dovetail.adapt.laplace import (
    condition_on_labels,
    mode_of,
    site_roots,
    with_more_labels,
)
from dovetail.adapt.posterior import centred
from dovetail.core.errors import TaskError
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
    scale, evidence = tune_label_scale(kernel, mean, labels)
    for factor in (0.2, 5.0):
        other = mode_of(centred(factor * scale * kernel, 3), mean, labels)[3]
        assert other < evidence + 1e-3
    parts = tuple(
        g.reshape(54, 54) for g in features.grams({"0": ["0.weight"], "2": ["2.weight"]}).values()
    )
    _, layered = tune_label_layers(parts, mean, labels)
    common = tune_label_scale(parts[0] + parts[1], mean, labels)[1]
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
        tune_label_scale(0 * kernel, torch.zeros(6, 3).double(), labels)
