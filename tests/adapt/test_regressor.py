"""The linearised regressor: its parts put together against dense matrices, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.gram import jacobian
from torch import nn

import dovetail as dt
from dovetail.adapt.linear_model import Readout, drawn_projection
from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError
from dovetail.linalg.conjugate_gradients import ConvergenceError


def net(outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def data(n=25, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=n)


class Double(nn.Module):
    """A network in float64 that takes float32 inputs, so that references can be exact."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.double())


def dense(model, x, new, y, scales, noise, mean):
    """Means and latent covariance by the p x p formulas."""
    x, new = (torch.from_numpy(each) for each in (x, new))
    j, k = (jacobian(model, each)[:, 0].numpy() for each in (x, new))
    theta = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    f, g = (model(each).detach().numpy()[:, 0] for each in (x, new))
    prior = np.concatenate(
        [np.full(p.numel(), s) for p, s in zip(model.parameters(), scales, strict=True)]
    )
    if mean == "constant":
        j, k = (np.hstack([each, np.ones((len(each), 1))]) for each in (j, k))
        prior = np.append(prior, 100 * y.var())
    before = (
        {"network": f, "origin": f - j @ theta}.get(mean, np.zeros(len(x)))
        if mean != "constant"
        else np.zeros(len(x))
    )
    after = (
        {"network": g, "origin": g - k @ theta}.get(mean, np.zeros(len(new)))
        if mean != "constant"
        else np.zeros(len(new))
    )
    covariance = np.linalg.inv(np.diag(1 / prior) + j.T @ (j / np.asarray(noise).reshape(-1, 1)))
    centre = y.mean() if mean == "constant" else 0.0
    weights = covariance @ (j.T @ ((y - centre - before) / noise))
    return centre + after + k @ weights, k @ covariance @ k.T


@pytest.mark.parametrize("mean", ["zero", "constant", "network", "origin"])
@pytest.mark.parametrize("method", ["function", "parameter", "cg"])
def test_means_and_covariances_are_the_dense_ones(mean, method):
    model = Double(net())
    x, y = data()
    new = np.random.default_rng(5).normal(size=(6, 2)).astype(np.float32)
    prior = {"inner.0": 0.7, "inner.2": 1.3}
    found = LinearizedRegressor(
        model, mean=mean, prior=prior, noise=0.05, method=method, tolerance=1e-9
    ).fit(x, y)
    exact, spread = dense(model, x, new, y, [0.7, 0.7, 1.3, 1.3], np.full(25, 0.05), mean)
    np.testing.assert_allclose(found.predict(new), exact, rtol=1e-5, atol=1e-6)
    _, joint = found.predict(new, return_cov=True, latent=True)
    np.testing.assert_allclose(joint, spread, rtol=1e-4, atol=1e-6)
    _, std = found.predict(new, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(np.diag(spread) + 0.05), rtol=1e-5)


def test_known_noise_of_each_observation_is_used_as_it_is():
    model = Double(net())
    x, y = data()
    noise = np.linspace(0.01, 1.0, 25)
    found = LinearizedRegressor(model, mean="zero", prior=1.0).fit(x, y, noise=noise)
    exact, spread = dense(model, x, x, y, [1.0] * 4, noise, "zero")
    np.testing.assert_allclose(found.predict(x), exact, rtol=1e-6, atol=1e-7)
    _, std = found.predict(x, return_std=True, noise=noise)
    np.testing.assert_allclose(std, np.sqrt(np.diag(spread) + noise), rtol=1e-6)


@pytest.mark.parametrize("method", ["function", "parameter"])
def test_more_data_later_is_all_data_at_once(method):
    model, (x, y) = Double(net()), data(40)
    later = LinearizedRegressor(model, method=method).fit(x[:25], y[:25]).update(x[25:], y[25:])
    once = LinearizedRegressor(
        model, prior=later.scales_, noise=later.noise_, centre=later.centre_, method=method
    ).fit(x, y)
    assert later.diagnostics_["method"] == method
    for a, b in zip(
        later.predict(x, return_std=True), once.predict(x, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    assert later.log_evidence_ == pytest.approx(once.log_evidence_, rel=1e-9)


def test_several_outputs_and_another_number_of_them_by_projection():
    x, y = data()
    both = np.stack([y, -2 * y], 1)
    found = LinearizedRegressor(net(2).float()).fit(x, both)
    assert found.predict(x).shape == (25, 2)
    assert found.predict(x, return_cov=True)[1].shape == (25, 2, 25, 2)
    projected = LinearizedRegressor(net(5).float(), random_state=3).fit(x, both)
    assert torch.equal(projected.network_.projection, drawn_projection(5, 2, seed=3))
    assert projected.score(x, both) > 0.5
    own = LinearizedRegressor(net(5).float(), projection=np.eye(5)[:, :2]).fit(x, both)
    assert own.predict(x).shape == (25, 2)
    with pytest.raises(SettingsError, match=r"\[5, 2\]"):
        LinearizedRegressor(net(5).float(), projection=np.eye(3)).fit(x, both)


def test_a_readout_averages_maps():
    readout = Readout(nn.Conv2d(1, 3, 1), 2, drawn_projection(3, 2))
    x = torch.rand(4, 1, 5, 5)
    maps = readout.body(x).mean((2, 3)) @ readout.projection
    torch.testing.assert_close(readout(x), maps)


def test_only_some_layers_move():
    x, y = data()
    last = LinearizedRegressor(net().float(), params="2", mean="network").fit(x, y)
    assert set(last.scales_) == {"2"}
    assert last.linear_.size == 9
    with pytest.raises(SettingsError, match="no parameter is called"):
        LinearizedRegressor(net().float(), params="head.*").fit(x, y)


def test_a_mapping_tells_a_bias_from_its_matrix():
    x, y = data()
    prior = {"0.weight": 2.0, "*.bias": 0.1, "2": 1.0}
    found = LinearizedRegressor(net().float(), prior=prior, mean="zero").fit(x, y)
    assert found.scales_ == {"0.weight": 2.0, "0.bias": 0.1, "2": 1.0}


@pytest.mark.parametrize("far", [1e5, 1e8])
def test_targets_far_from_zero_are_fitted_like_others(far):
    x, y = data(60)
    near = LinearizedRegressor(net().float()).fit(x, y)
    away = LinearizedRegressor(net().float()).fit(x, y + far)
    np.testing.assert_allclose(away.predict(x) - far, near.predict(x), atol=1e-3)
    assert away.noise_ == pytest.approx(near.noise_, rel=1e-2)


def test_a_network_that_squeezes_is_told_so():
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 3)

        def forward(self, x):
            return self.inner(x).squeeze(0)

    with pytest.raises(ContractError, match="squeeze"):
        LinearizedRegressor(Squeezed()).fit(*data())


def test_a_scale_a_layer_explains_no_less():
    x, y = data(60)
    one = LinearizedRegressor(net().float()).fit(x, y)
    layers = LinearizedRegressor(net().float(), prior="layers").fit(x, y)
    assert layers.log_evidence_ >= one.log_evidence_ - 0.5
    assert len(set(layers.scales_.values())) > 1


def test_a_prior_shared_by_tasks_is_kept():
    tasks = [data(20, seed) for seed in range(3)]
    shared = LinearizedRegressor(net().float()).sharing(tasks)
    fitted = shared.fit(*data(8, 9))
    assert fitted.noise_ == shared.noise
    assert fitted.scales_["0"] == shared.prior["0"]
    with pytest.raises(TaskError, match="no task"):
        LinearizedRegressor(net().float()).sharing([])


def test_a_part_prepares_its_inputs():
    part = dt.build("mlp", shape=(1, 4, 4), hidden=(8,), classes=1)
    x = (np.random.default_rng(0).random((20, 1, 4, 4)) * 255).astype(np.uint8)
    y = x.reshape(20, -1).mean(1) / 255
    assert LinearizedRegressor(part).fit(x, y).score(x, y) > 0.9


def test_the_plan_is_told_before_and_refused_before():
    x, y = data()
    model = LinearizedRegressor(net().float(), mean="constant").fit(x, y)
    plan = model.plan(10_000_000)
    assert plan.method == "parameter"
    assert "10000000 inputs" in str(plan)
    before = LinearizedRegressor(net().float(), mean="constant").plan(10_000_000, x[:1], y[:1])
    assert before.method == "parameter"
    assert before.sizes.parameters == plan.sizes.parameters
    with pytest.raises(SettingsError, match="fit to at most"):
        LinearizedRegressor(net().float(), memory=1000).fit(x, y)
    with pytest.raises(SettingsError, match="params="):
        LinearizedRegressor(memory=10_000, method="function").fit(x, y)


@pytest.mark.parametrize(("shift", "mean"), [(0.0, "network"), (40.0, "constant")])
def test_evidence_says_where_the_prior_is_centred(shift, mean):
    """A function that the network knows, or one far from it."""
    model = net().float()
    x = np.linspace(-1, 1, 12)[:, None].astype("float32") * np.ones((1, 2), dtype="float32")
    with torch.no_grad():
        known = model(torch.from_numpy(x)).numpy()[:, 0]
    wave = known if mean == "network" else shift + np.sin(5 * x[:, 0])
    noisy = wave + 0.01 * np.random.default_rng(0).normal(size=12)
    found = LinearizedRegressor(model).fit(x, noisy)
    assert found.mean_ == mean
    each = found.evidence_of_means_
    assert each[mean] == max(each.values())
    fixed = LinearizedRegressor(model, mean=mean).fit(x, noisy)
    assert each[mean] == pytest.approx(fixed.log_evidence_)
    np.testing.assert_allclose(found.predict(x), fixed.predict(x), rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_observations_are_enough(n):
    x, y = data(n)
    mean, std = LinearizedRegressor(net().float()).fit(x, y).predict(x + 1, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_constant_targets_and_equal_rows():
    x, _ = data()
    constant = LinearizedRegressor(net().float()).fit(x, np.full(25, 3.0))
    np.testing.assert_allclose(constant.predict(x), 3.0, atol=1e-3)
    again = np.repeat(x[:3], 8, axis=0)
    y = np.arange(24) % 2 + np.repeat([0.0, 5.0, 9.0], 8)
    found = LinearizedRegressor(net().float()).fit(again, y)
    assert (found.predict(again, return_std=True)[1] > 0).all()
    assert found.noise_ == pytest.approx(0.25, rel=0.5)


class Broken(nn.Module):
    """No parameter reaches the outputs."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x):
        return self.inner(x).detach()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda x, y: (x[:0], y[:0]), TaskError, "0 sample"),
        (lambda x, y: (np.where(x > 1, np.nan, x), y), TaskError, "NaN"),
        (lambda x, y: (x, np.where(y > 0, np.inf, y)), TaskError, "infinity"),
        (lambda x, y: (x[:5], y), TaskError, "5 inputs but 25 targets"),
        (lambda x, y: (x[:, :1], y), ContractError, "does not take inputs"),
    ],
)
def test_data_that_cannot_be_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        LinearizedRegressor(net().float()).fit(*change(*data()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "fast"}, "method is one of"),
        ({"mean": "median"}, "mean is one of"),
        ({"noise": 0.0}, "variance above 0"),
        ({"noise": "some"}, "variance above 0"),
        ({"prior": -1.0}, "prior is"),
        ({"prior": {"0": 1.0}}, "says nothing of '2.weight'"),
        ({"prior": {"*": 1.0, "haed": 5.0}}, "names 'haed'"),
        ({"prior": {"*": 1.0, "offset": -1.0}}, "'offset'"),
        ({"tolerance": "a"}, "between 0 and 1"),
        ({"noise": 1e-30}, "more noise"),
        ({"centre": [1.0, 2.0]}, "centre is 1 finite"),
        ({"projection": "yes"}, "projection is"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, says):
    with pytest.raises((SettingsError, TaskError), match=says):
        LinearizedRegressor(net().float(), **options).fit(*data())


def test_what_else_goes_wrong_is_said():
    x, y = data()
    with pytest.raises(DovetailError, match="no chosen parameter reaches"):
        LinearizedRegressor(Broken()).fit(x, y)
    with pytest.raises(TaskError, match="a variance for each"):
        LinearizedRegressor(net().float()).fit(x, y, noise=np.ones(3))
    fitted = LinearizedRegressor(net().float()).fit(x, y)
    with pytest.raises(SettingsError, match="without noise"):
        fitted.predict(x, return_std=True, latent=True, noise=np.ones(25))
    with pytest.raises(SettingsError, match="not for both"):
        fitted.predict(x, return_std=True, return_cov=True)
    with pytest.raises(TaskError, match="2 columns"):
        fitted.update(x, np.stack([y, y], 1))


def test_conjugate_gradients_that_do_not_arrive_say_so():
    x, y = data(200)
    with pytest.raises(ConvergenceError):
        LinearizedRegressor(
            net().float(), method="cg", tolerance=1e-14, prior=1e12, noise=1e-12, mean="zero"
        ).fit(x, y)
