"""A weight is how many times a row counts: the same as so many rows alike, or none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.evidence import Problem, label_evidence, tune, tune_label_layers, tune_layers
from dovetail.adapt.laplace import mode_of
from dovetail.adapt.posterior import centred
from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.core.errors import TaskError

TIMES = np.array([2, 0, 1, 3, 1, 1, 0, 2, 1, 4, 1, 1])
CLOSE = {"rtol": 1e-8, "atol": 1e-8}


class Double(nn.Module):
    """A network in float64 that takes float32 inputs: rows are then the same in any batch."""

    def __init__(self, outputs):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double()

    def forward(self, x):
        return self.inner(x.double())


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(TIMES), 2)).astype(np.float32)
    labels = np.array(["ant", "bee", "cow"])[(x[:, 0] > 0).astype(int) + (x[:, 1] > 0)]
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=len(x)), labels


def repeated(*arrays):
    return (np.repeat(each, TIMES, axis=0) for each in arrays)


@pytest.mark.parametrize("method", ["function", "parameter", "cg"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("mean", ["constant", "network"])
def test_numbers_that_count_are_numbers_repeated(method, known, mean):
    x, y, _ = data()
    noise = np.linspace(0.05, 0.2, len(x)) if known else None
    make = {"mean": mean, "method": method, "prior": 0.5, "noise": 0.1, "tolerance": 1e-10}
    weighed = LinearizedRegressor(Double(1), **make).fit(x, y, noise, sample_weight=TIMES)
    many_x, many_y = repeated(x, y)
    many_noise = None if noise is None else next(repeated(noise))
    twin = LinearizedRegressor(Double(1), **make).fit(many_x, many_y, many_noise)
    new = data(1)[0]
    for mine, theirs in zip(
        weighed.predict(new, return_std=True), twin.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(weighed.predict(new), twin.predict(new), **CLOSE)
    near = 1e-5 if method == "cg" else 1e-9  # the one is an estimate
    assert weighed.log_evidence_ == pytest.approx(twin.log_evidence_, rel=near)
    for each, times in ((weighed, [2, 0, 1]), (twin, None)):
        rows = slice(0, 3) if times else [0, 0, 2]
        later = None if noise is None else noise[rows]
        each.update(new[rows], y[rows], later, sample_weight=times)
    np.testing.assert_allclose(weighed.predict(x), twin.predict(x), **CLOSE)
    assert weighed.log_evidence_ == pytest.approx(twin.log_evidence_, rel=near)


@pytest.mark.parametrize("prior", ["evidence", "layers"])
def test_what_is_tuned_is_the_same_as_well(prior):
    x, y, labels = data()
    new = data(1)[0]
    for make, target in (
        (LinearizedRegressor(Double(1), prior=prior, noise=0.1), y),
        (LinearizedClassifier(Double(3), prior=prior, around="start"), labels),
    ):
        weighed = clone(make).fit(x, target, sample_weight=TIMES)
        twin = clone(make).fit(*repeated(x, target))
        for name, scale in twin.scales_.items():
            assert weighed.scales_[name] == pytest.approx(scale, rel=0.02, abs=1e-6), name
        said = "predict" if target is y else "decision_function"
        np.testing.assert_allclose(
            getattr(weighed, said)(new), getattr(twin, said)(new), rtol=0.02, atol=0.02
        )
        assert weighed.log_evidence_ == pytest.approx(twin.log_evidence_, rel=1e-3)


@pytest.mark.parametrize("method", ["laplace", "map"])
def test_labels_that_count_are_labels_repeated(method):
    x, _, labels = data()
    make = {"prior": 0.5, "method": method}
    weighed = LinearizedClassifier(Double(3), **make).fit(x, labels, sample_weight=TIMES)
    twin = LinearizedClassifier(Double(3), **make).fit(*repeated(x, labels))
    new = data(1)[0]
    to = CLOSE if method == "laplace" else {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(weighed.logits(new), twin.logits(new), **to)
    if method == "map":
        return
    for link in ("mc", "probit"):
        np.testing.assert_allclose(
            weighed.predict_proba(new, link=link), twin.predict_proba(new, link=link), **CLOSE
        )
    assert weighed.log_evidence_ == pytest.approx(twin.log_evidence_, rel=1e-9)
    joint, other = (
        each.posterior_.covariance(each.linear_.features(torch.from_numpy(new[:3])))
        for each in (weighed, twin)
    )
    torch.testing.assert_close(joint, other, rtol=1e-8, atol=1e-8)
    weighed.update(new[:3], labels[:3], sample_weight=[2, 0, 1])
    twin.update(new[[0, 0, 2]], labels[[0, 0, 2]])
    np.testing.assert_allclose(weighed.logits(x), twin.logits(x), rtol=1e-7, atol=1e-7)


def test_variational_inference_sees_weights_in_mean_and_spread():
    x, _, labels = data()
    found = [
        LinearizedClassifier(Double(3), prior=0.5, method="svi", steps=300).fit(*given)
        for given in ((x, labels, TIMES), tuple(repeated(x, labels)))
    ]
    new = data(1)[0]
    spread = found[1].posterior_.deviations
    np.testing.assert_allclose(found[0].logits(new), found[1].logits(new), atol=0.3)
    assert float((found[0].posterior_.deviations / spread).log().abs().mean()) < 0.03


@pytest.mark.parametrize("make", [LinearizedRegressor, LinearizedClassifier])
def test_weights_of_nothing_leave_rows_out_and_of_one_change_nothing(make):
    x, y, labels = data()
    target = y if make is LinearizedRegressor else labels
    outputs = 1 if make is LinearizedRegressor else 3
    kept = TIMES > 0

    def fitted(x, target, weight=None):
        estimator = make(Double(outputs), prior=0.5).fit(x, target, sample_weight=weight)
        said = estimator.predict(x) if outputs == 1 else estimator.decision_function(x)
        return said, estimator.log_evidence_

    zero = make(Double(outputs), prior=0.5).fit(x, target, sample_weight=kept.astype(float))
    less = make(Double(outputs), prior=0.5).fit(x[kept], target[kept])
    said = "predict" if outputs == 1 else "decision_function"
    np.testing.assert_array_equal(getattr(zero, said)(x), getattr(less, said)(x))
    ones, plain = fitted(x, target, np.ones(len(x))), fitted(x, target)
    np.testing.assert_array_equal(ones[0], plain[0])
    assert ones[1] == plain[1]


def test_a_weighed_estimator_comes_back(tmp_path):
    x, y, labels = data()
    new = data(1)[0]
    for number, fitted in enumerate(
        [
            LinearizedClassifier(prior=0.5).fit(x, labels, sample_weight=TIMES),
            LinearizedRegressor(prior=0.5, method="cg").fit(x, y, sample_weight=TIMES),
        ]
    ):
        twin = type(fitted).load(fitted.save(tmp_path / str(number)))
        assert twin.log_evidence_ == pytest.approx(fitted.log_evidence_, rel=1e-9)
        for each in (fitted, twin):
            each.update(new[:2], labels[:2] if number == 0 else y[:2], sample_weight=[1, 3])
        said = [e.logits(x) if number == 0 else e.predict(x) for e in (fitted, twin)]
        np.testing.assert_allclose(*said, rtol=1e-9, atol=1e-9)
        assert twin.log_evidence_ == pytest.approx(fitted.log_evidence_, rel=1e-7)


def problem(seed=0):
    """A kernel for each of two layers, and whole counts of its rows."""
    source = torch.Generator().manual_seed(seed)
    roots = torch.randn(2, 10, 4, generator=source, dtype=torch.float64)
    target = torch.randn(10, generator=source, dtype=torch.float64)
    return [root @ root.T for root in roots], target, torch.tensor(TIMES[TIMES > 0]).double()


def test_the_evidence_of_numbers_is_that_of_rows_alike():
    kernels, target, counts = problem()
    every = torch.arange(10).repeat_interleave(counts.long())
    free, relative = torch.ones(10, 1).double(), torch.linspace(0.5, 2, 10).double()
    once = Problem(tuple(kernels), target, relative, free, counts)
    many = Problem(
        tuple(k[every][:, every] for k in kernels), target[every], relative[every], free[every]
    )
    for noise in (0.01, 0.5):
        mine, theirs = (tune([each], scale=0.7, noise=noise).log_evidence for each in (once, many))
        assert mine == pytest.approx(theirs, rel=1e-9)
    mine, theirs = tune_layers([once]), tune_layers([many])
    assert mine.noise == pytest.approx(theirs.noise, rel=1e-3)
    assert mine.log_evidence == pytest.approx(theirs.log_evidence, rel=1e-6)


def test_the_slopes_of_weighed_labels_are_differences_of_their_evidence():
    kernels, _, _ = problem()
    labels, counts = torch.arange(5) % 2, torch.tensor([1.0, 2.5, 1.0, 0.3, 4.0]).double()
    mean, constant = torch.zeros(5, 2).double(), torch.eye(10).double()

    def height(a, b):
        whole = constant + a * kernels[0] + b * kernels[1]
        return mode_of(whole, mean, labels, counts=counts)[3]

    value, slopes, _ = label_evidence(constant, kernels, (0.6, 0.2), mean, labels, None, counts)
    assert value == pytest.approx(height(0.6, 0.2), rel=1e-9)
    step = 1e-4
    assert slopes[0] == pytest.approx(
        (height(0.6 + step, 0.2) - height(0.6 - step, 0.2)) / (2 * step), rel=1e-3
    )
    assert slopes[1] == pytest.approx(
        (height(0.6, 0.2 + step) - height(0.6, 0.2 - step)) / (2 * step), rel=1e-3
    )
    scales, best = tune_label_layers(tuple(kernels), mean, labels, counts=counts)
    assert len(scales) == 2
    whole = sum(scale * kernel for scale, kernel in zip(scales, kernels, strict=True))
    found = mode_of(centred(whole, 2, counts), mean, labels, counts=counts)[3]
    assert found == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("make", [LinearizedRegressor, LinearizedClassifier])
@pytest.mark.parametrize(
    ("weights", "says"),
    [(np.zeros(12), "zero"), (-np.ones(12), "negative"), (np.ones(3), "one for each row")],
)
def test_weights_that_are_none_are_refused(make, weights, says):
    x, y, labels = data()
    target = y if make is LinearizedRegressor else labels
    with pytest.raises(TaskError, match=says):
        make(prior=1.0).fit(x, target, sample_weight=weights)
