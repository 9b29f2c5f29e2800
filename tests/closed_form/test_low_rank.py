"""Layers of low rank: the best there are, and a module with as many weights as they need."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import dovetail as dt
from dovetail.closed_form.estimators import PlatonicClassifier, PlatonicRegressor
from dovetail.closed_form.layers import Layer, activation_of, cut_to_rank, factors_of, network_part
from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import HeldRows, moments_of
from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator
from dovetail.parts.facts import Origin


def drawn(seed, *shape):
    return torch.randn(*shape, generator=generator(seed, *shape), dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 7), st.integers(1, 8), st.booleans())
def test_what_enters_the_activation_is_the_best_of_its_rank(seed, d, width, rank, weighed):
    z = drawn(seed, 30, d) * torch.arange(1, d + 1) + 3.0
    heavy = torch.arange(30).double() % 4 if weighed else None
    rows = HeldRows(z, z[:, :1], heavy)
    layer = Layer(drawn(seed, d, width), drawn(seed, width), torch.relu)
    found = cut_to_rank(layer, moments_of(rows), rank)

    share = np.ones(30) if heavy is None else heavy.numpy()
    centred = z.numpy() - np.average(z.numpy(), axis=0, weights=share)
    wanted = np.sqrt(share)[:, None] * centred @ layer.weights.numpy()
    u, s, vh = np.linalg.svd(wanted, full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ vh[:rank]
    got = np.sqrt(share)[:, None] * centred @ found.weights.numpy()
    np.testing.assert_allclose(got, best, atol=1e-9 * (1 + s[0]))
    means = [
        np.average((z @ each.weights + each.bias).numpy(), axis=0, weights=share)
        for each in (layer, found)
    ]
    np.testing.assert_allclose(*means, atol=1e-9 * (1 + s[0]))


def in_factors(net):
    """The network as a module; layers of low rank are two each."""
    layers = [piece for layer in net.layers for piece in factors_of(layer)]
    inputs = net.layers[0].weights.shape[0]
    origin = Origin(how="closed-form")
    return network_part([*layers, net.head], "relu", (inputs,), torch.float64, origin).module


def test_a_network_of_low_rank_as_a_module():
    x = drawn(0, 300, 20)
    y = (x[:, :1] * x[:, 1:2]).sign()
    whole = platonic(HeldRows(x, y), (40, 30))
    net = platonic(HeldRows(x, y), (40, 30), rank=5)
    assert [int(torch.linalg.matrix_rank(each.weights)) for each in net.layers] == [5, 5]
    module = in_factors(net)
    torch.testing.assert_close(module(x), net(x), atol=1e-9, rtol=0)
    torch.testing.assert_close(in_factors(whole)(x), whole(x))
    numbers = sum(p.numel() for p in module.parameters())
    biases = 5 + 40 + 5 + 30 + 1
    assert numbers == 5 * (20 + 40) + 5 * (40 + 30) + 30 + biases


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:600] / 16, y[:600]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        (PlatonicClassifier, "relu"),
        (PlatonicClassifier, "identity"),
        (PlatonicRegressor, "tanh"),
        (PlatonicRegressor, nn.Softsign()),
    ],
)
def test_estimators_of_low_rank_are_modules_of_fewer_weights(digits, kind, activation, streamed):
    x, y = digits
    asked = kind((60, 50), activation, rank=7, ridge=1e-2, solver="eigen")
    net = asked.fit_batches([(x, y)]) if streamed else asked.fit(x, y)
    assert [np.linalg.matrix_rank(each) for each in net.coefs_[:-1]] == [7, 7]
    for (down, up), weights in zip(net.factors_, net.coefs_, strict=False):
        np.testing.assert_allclose(down @ up, weights, atol=1e-12 * abs(weights).max())
    module = net.to_torch()
    with torch.no_grad():
        found = module(torch.from_numpy(x))
    found = found * getattr(net, "temperature_", 1.0)
    assert float((found - net.outputs(x)).abs().max()) < 1e-9
    outputs = found.shape[1]
    counted = sum(p.numel() for p in module.parameters())
    assert counted == 7 * (64 + 60 + 1) + 60 + 7 * (60 + 50 + 1) + 50 + 51 * outputs
    z = torch.from_numpy(x)
    for weights, bias in zip(net.coefs_[:-1], net.intercepts_[:-1], strict=True):
        z = activation_of(activation)(z @ torch.from_numpy(weights) + torch.from_numpy(bias))
    slow = z @ torch.from_numpy(net.coefs_[-1]) + torch.from_numpy(net.intercepts_[-1])
    torch.testing.assert_close(found, slow, atol=1e-9, rtol=1e-9)


def test_badly_conditioned_factors_too():
    draw = np.random.default_rng(0)
    t, arm = 3 * np.pi * np.sqrt(draw.uniform(size=2000)), np.arange(2000) % 2
    x = np.stack([t * np.cos(t + np.pi * arm), t * np.sin(t + np.pi * arm)], 1) / 10
    net = PlatonicClassifier((32,) * 4, "tanh", rank=14).fit(x, arm)
    assert net.conditions_.max() > 1e6
    assert [each is None for each in net.factors_] == [True, False, False, False]
    with torch.no_grad():
        found = net.to_torch()(torch.from_numpy(x)).numpy() * net.temperature_
    assert abs(found[:, 1] - found[:, 0] - net.decision_function(x)).max() < 1e-9


def test_a_part_of_low_rank_is_one_like_any_other(tmp_path):
    task = dt.load_task("digits")
    x, y = task.subset("train")
    net = PlatonicClassifier((60, 50), rank=10).fit(x, np.array(task.classes)[y.numpy()])
    part = net.to_part(torch.float32)
    assert part.origin.settings["rank"] == 10
    loaded = dt.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    assert (loaded.digest, loaded.recipe) == (part.digest, part.recipe)
    accuracy = dt.evaluate(loaded, task).accuracy
    assert accuracy > 0.9
    front, head = dt.cut(part, at="1")  # behind the two factors of the first layer
    assert front.contract.gives[0].shape == (60,)
    assert front.contract.gives[0].activation == "relu"
    assert dt.evaluate(dt.join(front, head), task).accuracy == accuracy


def test_a_rank_is_an_argument_like_any_other(digits):
    x, y = digits
    net = PlatonicClassifier((40,), rank=3)
    assert net.get_params()["rank"] == clone(net).rank == 3
    search = GridSearchCV(net, {"rank": [1, 20, None]}, cv=2).fit(x, y)
    assert search.best_params_["rank"] != 1
    before = search.best_estimator_.predict(x)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert np.array_equal(again.predict(x), before)


@parametrize_with_checks([PlatonicClassifier(rank=2), PlatonicRegressor(rank=2)])
def test_an_estimator_of_low_rank_is_one_of_scikit_learn(estimator, check):
    check(estimator)


def test_a_rank_that_cuts_nothing_leaves_the_estimator_as_it_was(digits):
    x, y = digits
    one, other = (PlatonicClassifier((30, 20), rank=rank).fit(x, y) for rank in (None, 64))
    assert np.array_equal(one.decision_function(x), other.decision_function(x))
    assert other.factors_ == [None, None]
    assert one.to_part().recipe == other.to_part().recipe


def test_a_rank_that_cuts_nothing_changes_nothing():
    x = drawn(1, 50, 4)
    rows = HeldRows(x, x[:, :1].sin())
    one, other = (platonic(rows, (6, 5), rank=rank) for rank in (None, 6))
    assert torch.equal(one(x), other(x))


def test_one_that_never_answers_is_one_number_wide():
    silent = Layer(torch.zeros(4, 3).double(), torch.ones(3).double(), torch.relu)
    x, pieces = drawn(2, 5, 4), factors_of(silent)
    for piece in pieces:
        x = piece(x)
    assert torch.equal(x, torch.ones(5, 3).double())


def test_what_cannot_be_is_refused():
    rows = HeldRows(drawn(3, 9, 2), drawn(3, 9, 1))
    with pytest.raises(SettingsError, match="rank is one or more"):
        platonic(rows, (4,), rank=0)
