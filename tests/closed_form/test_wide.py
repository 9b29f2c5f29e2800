"""More inputs than rows: solved in the span of the rows, the same to rounding as without."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from dovetail.closed_form import HeldRows, PlatonicClassifier, PlatonicRegressor, platonic

module = sys.modules[platonic.__module__]  # by its name the package gives the function


@pytest.fixture(scope="module")
def wide():
    draw = np.random.default_rng(0)
    x, y = 3 + draw.normal(size=(50, 400)), np.arange(50) % 3
    x[:, :30] += y[:, None]
    return x, y


def among_inputs(monkeypatch, fit):
    with monkeypatch.context() as patched:
        patched.setattr(module, "_in_their_span", lambda rows: (rows, None))
        return fit()


@pytest.mark.parametrize(
    "asked",
    [
        {"hidden_layer_sizes": ()},
        {"hidden_layer_sizes": (), "ridge": 0.1, "solver": "cholesky"},
        {"hidden_layer_sizes": (), "ridge": 0.1, "solver": "lstsq"},
        {"projection": "sorted-pca", "hidden_layer_sizes": (20, 30)},
        {"projection": "random", "hidden_layer_sizes": (20, 8)},
        {"projection": "random", "hidden_layer_sizes": (70,), "activation": "tanh"},
        {"projection": "pca", "hidden_layer_sizes": (20,), "ridge": 0.1, "solver": "eigen"},
        {"projection": "labels", "hidden_layer_sizes": (1,), "ridge": 0.1},
        {"projection": "elm", "hidden_layer_sizes": (9,)},
        {"projection": "random", "hidden_layer_sizes": (20, 8), "rank": 5, "ema": 0.3},
    ],
)
@pytest.mark.parametrize("kind", [PlatonicClassifier, PlatonicRegressor])
def test_the_span_gives_what_the_inputs_give(wide, monkeypatch, asked, kind):
    x, y = wide
    weights = np.random.default_rng(1).uniform(0.5, 2, len(x))
    net = kind(**asked).fit(x, y, weights)
    slow = among_inputs(monkeypatch, lambda: kind(**asked).fit(x, y, weights))
    for mine, theirs in zip(net.coefs_, slow.coefs_, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-10 * abs(theirs).max())
    others = np.random.default_rng(2).normal(size=(9, 400))
    np.testing.assert_allclose(net.outputs(others), slow.outputs(others), rtol=1e-9, atol=1e-9)
    assert net.record_.start.width == slow.record_.start.width == 400
    assert net.record_.start.penalty == pytest.approx(slow.record_.start.penalty, rel=1e-9)
    if kind is PlatonicClassifier:
        assert net.temperature_ == pytest.approx(slow.temperature_, rel=1e-6)


@pytest.mark.parametrize("seed", [1, 5])
def test_tries_that_differ_in_scale_alone_are_not_chosen_by_rounding(seed):
    """One unit towards one target: of its sign all tries are the same but for their size."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(60, 400))
    y = x[:, 0] + 0.1 * draw.normal(size=60)
    turn = np.linalg.qr(draw.normal(size=(400, 400)))[0]  # says the same in other digits
    asked = {"projection": "labels", "hidden_layer_sizes": (1,), "ridge": 0.1, "n_tries": 8}
    asked |= {"random_state": seed, "scale_inputs": "together"}
    plain, turned = (PlatonicRegressor(**asked).fit(each, y) for each in (x, x @ turn))
    mine, theirs = plain.coefs_[0], turn @ turned.coefs_[0]
    np.testing.assert_allclose(mine, theirs, atol=1e-8 * abs(mine).max())


def test_the_span_is_of_rows_that_were_not_centred(wide, monkeypatch):
    rows = HeldRows(torch.from_numpy(wide[0]), torch.from_numpy(np.eye(3)[wide[1]]))
    net = platonic(rows, (10, 10), ridge=0.1)
    slow = among_inputs(monkeypatch, lambda: platonic(rows, (10, 10), ridge=0.1))
    torch.testing.assert_close(net(rows.z), slow(rows.z), atol=1e-9, rtol=1e-9)


def test_nothing_as_large_as_the_inputs_squared_is_made(monkeypatch):
    """2000 inputs of 30 rows: a matrix of all inputs' products would be 32 MB."""
    largest = []
    whole = module.Moments.__init__

    def noted(self, d, *args, **options):
        largest.append(d)
        whole(self, d, *args, **options)

    monkeypatch.setattr(module.Moments, "__init__", noted)
    x = np.random.default_rng(0).normal(size=(40, 2000))
    PlatonicClassifier((20,)).fit(x, np.arange(40) % 2)
    diagonal = [d for d in largest if d == 2000]  # of the spread: a number for each
    assert len(diagonal) == 1
    assert max(d for d in largest if d != 2000) <= 40
