from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from references import bayes_linear as reference
from torch import nn

from dovetail.adapt.ablr import AdaptiveBayesianRegressor
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.parts.part import build


def wave(n, phase=0.0, height=1.0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, size=(n, 1)).astype(np.float32)
    return x, height * np.sin(2 * x[:, 0] + phase) + 0.05 * rng.normal(size=n)


@pytest.mark.parametrize("n", [6, 40])
def test_without_steps_it_is_bayes_on_the_last_layer(n):
    x, y = wave(n)
    net = build("mlp", shape=(1,), hidden=(9,), classes=1, activation="tanh")
    fitted = AdaptiveBayesianRegressor(net, steps=0).fit(x, y)
    with torch.no_grad():
        phi = copy.deepcopy(net.module[:-1]).double()
        rows = phi(torch.tensor(x).double()).numpy()
        at = phi(torch.linspace(-4, 4, 5)[:, None].double()).numpy()
    scale, noise = float(fitted.scale_), float(fitted.noise_)
    assert fitted.log_evidence_ == pytest.approx(
        reference.log_evidence(rows, y, scale, noise), rel=1e-6
    )
    mean, covariance = reference.predict(rows, y, scale, noise, at)
    found, std = fitted.predict(np.linspace(-4, 4, 5)[:, None], return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), rtol=1e-3)


def test_steps_raise_the_evidence_and_leave_the_given_network_alone():
    x, y = wave(30)
    net = build("mlp", shape=(1,), hidden=(20,), classes=1, activation="tanh")
    before = net.digest
    fitted = AdaptiveBayesianRegressor(net, steps=30, learning_rate=1e-2, held_out=0).fit(x, y)
    still = AdaptiveBayesianRegressor(net, steps=0).fit(x, y)
    assert fitted.log_evidence_ > still.log_evidence_ + 1
    assert fitted.log_evidence_ == pytest.approx(max(fitted.history_), rel=1e-6)
    assert net.digest == before


def test_features_trained_on_other_tasks_serve_a_task_of_few_rows():
    waves = [(1, 2), (2, 1), (4, 3), (5, 1)]
    others = [wave(40, phase=p, height=h, seed=i) for i, (p, h) in enumerate(waves)]
    x, y = wave(10, phase=3.0, seed=9)
    far, truth = wave(200, phase=3.0, seed=10)
    options = {"learning_rate": 1e-2, "random_state": 0}
    alone = AdaptiveBayesianRegressor(steps=0, **options).fit(x, y)
    together = AdaptiveBayesianRegressor(steps=60, **options).fit(x, y, others=others)

    def error(fitted):
        return float(np.mean((fitted.predict(far) - truth) ** 2))

    assert together.step_ > 0
    assert error(together) < 0.5 * error(alone)


def test_rows_held_out_keep_the_error_bars_honest():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    y = x[:, 0] + rng.normal(size=200)
    share = {}
    for held_out in (0.0, 0.2):
        fitted = AdaptiveBayesianRegressor(learning_rate=1e-2, held_out=held_out)
        mean, std = fitted.fit(x[:40], y[:40]).predict(x[40:], return_std=True)
        share[held_out] = float(np.mean(np.abs(mean - y[40:]) < 1.645 * std))
    assert share[0.0] < 0.5  # the evidence alone is fooled by features that move
    assert share[0.2] > 0.7


def test_another_head_on_the_same_features():
    x, y = wave(30)
    fitted = AdaptiveBayesianRegressor(steps=5).fit(x, y)
    weights = copy.deepcopy(fitted.network_.state_dict())
    other = -3 * y + 1
    mean = fitted.refit(x, other).predict(x)
    assert np.corrcoef(mean, other)[0, 1] > 0.9
    assert all(torch.equal(weights[k], v) for k, v in fitted.network_.state_dict().items())


def test_columns_have_variances_of_their_own():
    x, y = wave(30)
    both = AdaptiveBayesianRegressor(steps=0).fit(x, np.c_[y, 100 * y])
    one = AdaptiveBayesianRegressor(steps=0).fit(x, y)
    assert both.predict(x).shape == (30, 2)
    np.testing.assert_allclose(both.predict(x)[:, 0], one.predict(x), atol=1e-6)
    assert float(both.noise_[1] / both.noise_[0]) == pytest.approx(1e4, rel=1e-3)


def test_two_fits_are_the_same_numbers():
    x, y = wave(20)
    first, second = (AdaptiveBayesianRegressor(steps=8).fit(x, y).predict(x) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"steps": -1}, SettingsError, "steps must be"),
        ({"steps": 2.5}, SettingsError, "steps must be"),
        ({"learning_rate": 0.0}, SettingsError, "learning_rate must be"),
        ({"held_out": 0.9}, SettingsError, "held_out must be"),
        ({"model": nn.Flatten()}, ContractError, "no weights to train"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings, error, said):
    with pytest.raises(error, match=said):
        AdaptiveBayesianRegressor(**settings).fit(*wave(10))


def test_tasks_of_one_row_and_of_other_counts_are_refused():
    x, y = wave(10)
    with pytest.raises(TaskError, match="1 sample"):
        AdaptiveBayesianRegressor().fit(x, y, others=[(x[:1], y[:1])])
    with pytest.raises(TaskError, match="10 inputs but 9"):
        AdaptiveBayesianRegressor().fit(x, y, others=[(x, y[:9])])


class Several(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(1, 3), kind

    def forward(self, x):
        found = self.layer(x)
        return (found, found) if self.kind is tuple else {"features": found}


@pytest.mark.parametrize("kind", [tuple, dict])
def test_networks_that_give_several_tensors_are_refused(kind):
    with pytest.raises(ContractError, match=r"gives .* tensors, not one"):
        AdaptiveBayesianRegressor(Several(kind), steps=1).fit(*wave(8))


def test_inputs_that_do_not_fit_the_network_are_refused():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    fitted = AdaptiveBayesianRegressor(net, steps=1).fit(torch.rand(6, 1, 5, 5), np.arange(6.0))
    with pytest.raises(ContractError, match=r"does not take inputs of shape \(2, 3, 5, 5\)"):
        AdaptiveBayesianRegressor(net, steps=1).fit(torch.rand(6, 3, 5, 5), np.arange(6.0))
    with pytest.raises(ContractError, match="does not take inputs of shape"):
        fitted.predict(torch.rand(2, 1, 2, 2))


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_layers_without_a_shape_are_refused():
    with pytest.raises(SettingsError, match="call the module once on an input"):
        AdaptiveBayesianRegressor(nn.Sequential(nn.LazyLinear(4), nn.Tanh())).fit(*wave(8))


def test_a_large_offset_of_the_targets_is_added_back():
    x, y = wave(30)
    plain, moved = (AdaptiveBayesianRegressor(steps=0).fit(x, y + by) for by in (0.0, 1e7))
    np.testing.assert_allclose(moved.predict(x) - 1e7, plain.predict(x), atol=1e-3)
    np.testing.assert_allclose(
        moved.predict(x, return_std=True)[1], plain.predict(x, return_std=True)[1], rtol=1e-2
    )
