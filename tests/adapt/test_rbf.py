from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import rbf_process as reference
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from dovetail.adapt.rbf import RBFRegressor, _Given
from dovetail.core.errors import SettingsError, TaskError


def hills(n, d=2, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + 3 + noise * rng.normal(size=n)


FIXED = {"length": (0.7, 2.0), "scale": 1.5, "noise": 0.05, "optimise": False}


def test_with_a_known_mean_it_is_the_joint_gaussian():
    x, y = hills(9)
    new, _ = hills(4, seed=1)
    fitted = RBFRegressor(**FIXED, mean=0.5).fit(x, y)
    known = (np.array([0.7, 2.0]), 1.5, 0.05)
    assert fitted.log_evidence_ == pytest.approx(reference.log_evidence(x, y, *known, 0.5))
    mean, covariance = reference.predict(x, y - 0.5, *known, new)
    found, spread = fitted.predict(new, return_cov=True)
    np.testing.assert_allclose(found, mean + 0.5)
    np.testing.assert_allclose(spread, covariance, atol=1e-9)
    np.testing.assert_allclose(
        fitted.predict(new, return_std=True)[1], np.sqrt(np.diag(covariance))
    )


def test_an_unknown_mean_is_one_of_endless_prior_variance():
    x, y = hills(9)
    new, _ = hills(4, seed=1)
    fitted = RBFRegressor(**FIXED).fit(x, y)
    mean, covariance = reference.predict(x, y, np.array([0.7, 2.0]), 1.5, 0.05, new, constant=1e4)
    found, spread = fitted.predict(new, return_cov=True)
    np.testing.assert_allclose(found, mean, rtol=1e-3)
    np.testing.assert_allclose(spread, covariance, atol=1e-3)
    # ∫ N(y; m, C) dm by the trapezoid rule
    places = np.linspace(-40, 40, 8001)
    logs = [
        reference.log_evidence(x, y - m, np.array([0.7, 2.0]), 1.5, 0.05, 0.0) for m in places[::40]
    ]
    total = math.log(np.trapezoid(np.exp(logs), places[::40]))
    assert fitted.log_evidence_ == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("mean", [None, 0.5])
@pytest.mark.parametrize("lengths", [1, 3])
def test_the_slope_is_that_of_differences(mean, lengths):
    x, y = torch.randn(7, 3).double(), torch.randn(7, 2).double()
    at = 0.3 * torch.randn(lengths + 2).double() + 0.3
    found = _Given.of(x, y, at, mean).slope()
    for j, step in enumerate(1e-5 * torch.eye(lengths + 2).double()):
        ends = [_Given.of(x, y, at + sign * step, mean).log_evidence() for sign in (1, -1)]
        assert float(found[j]) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("per_input", [False, True])
def test_it_finds_what_the_peer_finds(per_input):
    x, y = hills(60)
    y = y - 3
    fitted = RBFRegressor(per_input=per_input, mean=0.0).fit(x, y)
    width = np.ones(2) if per_input else 1.0
    bounds = (1e-3, 1e3)
    kernel = ConstantKernel(1.0, bounds) * RBF(width, bounds) + WhiteKernel(0.1, (1e-6, 10))
    peer = GaussianProcessRegressor(kernel, n_restarts_optimizer=4, random_state=0).fit(x, y)
    assert fitted.log_evidence_ >= peer.log_marginal_likelihood_value_ - 0.01
    new, _ = hills(20, seed=1)
    mean, std = fitted.predict(new, return_std=True)
    peers = peer.predict(new, return_std=True)
    np.testing.assert_allclose(mean, peers[0], atol=0.02)
    np.testing.assert_allclose(std, peers[1], atol=0.02)


def test_hyper_parameters_are_shared_with_another_task():
    x, y = hills(60)
    source = RBFRegressor(per_input=True).fit(x, y)
    few, numbers = hills(8, seed=3)
    target = RBFRegressor(**source.shared()).fit(few, 2 * numbers)
    assert target.length_.tolist() == pytest.approx(source.length_.tolist(), rel=1e-12)
    assert (target.scale_, target.noise_) == pytest.approx((source.scale_, source.noise_))
    assert target.length_[1] > 3 * target.length_[0]  # the second input does not matter
    assert abs(target.predict([[9.0, 9.0]])[0] - 2 * 3) < 1.5  # far away: its own constant


def test_several_tasks_share_the_sum_of_their_evidence():
    tasks = [hills(12, seed=seed) for seed in range(4)]
    fitted = RBFRegressor().fit(*tasks[0], others=tasks[1:])

    def summed(**given):
        return sum(RBFRegressor(**given, optimise=False).fit(*t).log_evidence_ for t in tasks)

    found = {"length": float(fitted.length_), "scale": fitted.scale_, "noise": fitted.noise_}
    best = summed(**found)
    for name in found:
        for factor in (0.8, 1.25):
            assert summed(**(found | {name: found[name] * factor})) < best + 1e-6


@settings(max_examples=10, deadline=None)
@given(st.floats(-100, 100), st.floats(0.1, 10))
def test_shifting_inputs_and_targets_shifts_the_answer(offset, unit):
    x, y = hills(10)
    new, _ = hills(3, seed=1)
    plain = RBFRegressor(**FIXED).fit(x, y).predict(new)
    moved = RBFRegressor(**FIXED).fit(x + offset, y + unit).predict(new + offset)
    np.testing.assert_allclose(moved, plain + unit, atol=1e-6)


def test_columns_share_the_kernel():
    x, y = hills(15)
    fitted = RBFRegressor(**FIXED).fit(x, np.c_[y, -y])
    one = RBFRegressor(**FIXED).fit(x, y)
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(mean, np.c_[one.predict(x), -one.predict(x)], atol=1e-9)
    np.testing.assert_allclose(std[:, 1], one.predict(x, return_std=True)[1])
    assert fitted.predict(x, return_cov=True)[1].shape == (15, 15, 2)
    assert fitted.log_evidence_ == pytest.approx(2 * one.log_evidence_)


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_targets_that_never_vary_are_predicted(value):
    x, _ = hills(8)
    fitted = RBFRegressor().fit(x, np.full(8, value))
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(mean, value, atol=1e-6)
    assert np.isfinite(std).all()


def test_rows_that_are_all_alike_give_the_mean():
    fitted = RBFRegressor().fit(np.ones((4, 2)), [1.0, 2.0, 3.0, 4.0])
    assert fitted.predict(np.ones((1, 2)))[0] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": -1.0}, "length must be"),
        ({"length": (1.0, 2.0, 3.0)}, "3 lengths for 2 inputs"),
        ({"scale": "big"}, "scale must be"),
        ({"noise": float("nan")}, "noise must be"),
        ({"mean": "zero"}, "mean must be"),
        ({"restarts": -1}, "restarts must be"),
        ({"noise": 1e-30, "length": 1e6, "optimise": False}, "more noise"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings, said):
    with pytest.raises(SettingsError, match=said):
        RBFRegressor(**settings).fit(*hills(9))


def test_one_row_needs_a_known_mean():
    with pytest.raises(TaskError, match="1 sample"):
        RBFRegressor().fit([[0.0]], [1.0])
    fitted = RBFRegressor(1.0, 1.0, 0.01, mean=0.0, optimise=False).fit([[0.0]], [1.0])
    assert fitted.predict([[0.0]])[0] == pytest.approx(1 / 1.01)
