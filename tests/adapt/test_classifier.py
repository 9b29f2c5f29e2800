"""The linearised classifier: what it takes for logits, how sure it is, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.laplace import condition_on_labels
from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg.tangent import TangentFeatures


def around_its_start(model=None, **settings):
    """The network as it is; test_around.py has the other places to linearise it at."""
    return LinearizedClassifier(model, around="start", **settings)


def net(outputs=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))


def data(n=24, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    x = centres[codes] + rng.normal(size=(n, 2)) * 0.7
    return x.astype(np.float32), np.array(["ant", "bee", "cow"])[codes]


def part_for(classes, seed=0):
    built = dt.build("mlp", shape=(2,), hidden=(8,), classes=len(classes), seed=seed)
    return dt.adopt(
        built.module, example=torch.zeros(1, 2), builder="mlp",
        args={"shape": (2,), "hidden": (8,), "classes": len(classes)}, classes=classes,
    )  # fmt: skip


def test_it_is_laplace_on_the_networks_own_outputs():
    model, (x, y) = net(), data()
    found = around_its_start(model, prior=0.5).fit(x, y)
    codes = torch.from_numpy(np.unique(y, return_inverse=True)[1])
    features = TangentFeatures(model, torch.from_numpy(x))
    exact = condition_on_labels(
        features, codes, torch.zeros(24, 3).double(), dict.fromkeys(features.names, 0.5)
    )
    np.testing.assert_allclose(found.logits(x), exact.shift(features), rtol=1e-4, atol=1e-4)
    assert found.log_evidence_ == pytest.approx(exact.log_evidence, rel=1e-5)
    assert found.score(x, y) == 1.0
    chances = found.predict_proba(x)
    np.testing.assert_allclose(chances.sum(1), 1.0)
    assert (found.classes_[chances.argmax(1)] == found.predict(x)).all()


@pytest.mark.parametrize("method", ["svi", "map"])
def test_other_methods_agree_on_what_is_clear(method):
    x, y = data(60)
    found = around_its_start(net(), method=method, steps=300).fit(x, y)
    exact = around_its_start(net()).fit(x, y)
    new, truth = data(60, seed=1)
    assert found.score(new, truth) > exact.score(new, truth) - 0.1
    np.testing.assert_allclose(found.predict_proba(new, link="mc").sum(1), 1.0)
    assert (found.log_evidence_ is None) == (method == "map")
    if method == "map":
        np.testing.assert_allclose(found.logits(new), exact.logits(new), rtol=0, atol=0.1)
    with pytest.raises(SettingsError, match="probit"):
        found.predict_proba(new, link="probit")
    with pytest.raises(TaskError, match="not updated exactly"):
        found.update(x, y)


def test_classes_that_the_part_knows_are_its_own_outputs():
    part = part_for(("cow", "dog", "bee", "ant"))
    x, y = data()
    found = around_its_start(part).fit(x, y)
    assert found.mean_ == "network"
    with torch.no_grad():
        own = part.module(torch.from_numpy(x))[:, [3, 2, 0]].double()
    torch.testing.assert_close(found.means_, own)


def test_other_classes_take_the_part_without_its_head():
    x, y = data()
    found = around_its_start(part_for(("cow", "dog", "emu"))).fit(x, y)
    assert found.mean_ == "zero"
    assert found.network_.projection.shape == (8, 3)
    assert not any("head" in name for name in found.linear_.names)
    whole = around_its_start(part_for(("cow", "dog", "emu")), at="output").fit(x, y)
    assert any("head" in name for name in whole.linear_.names)


def test_more_labels_later_is_all_at_once():
    x, y = data(30)
    later = around_its_start(net()).fit(x[:18], y[:18]).update(x[18:], y[18:])
    once = around_its_start(net(), prior=later.scales_).fit(x, y)
    np.testing.assert_allclose(later.logits(x), once.logits(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        later.predict_proba(x, link="probit"), once.predict_proba(x, link="probit"), atol=1e-7
    )
    with pytest.raises(TaskError, match="not among the classes"):
        later.update(x[:1], ["emu"])
    with pytest.raises(TaskError):
        later.update(x[:1], None)


@pytest.mark.parametrize("tried", [True, False])
def test_with_many_labels_the_start_is_not_tried(monkeypatch, tried):
    asked = []
    monkeypatch.setattr(
        LinearizedClassifier, "_start_held_out", lambda *_: asked.append(1) or float("inf")
    )
    x, y = data(30)
    most = len(y) * len(set(y)) - (0 if tried else 1)
    monkeypatch.setattr("dovetail.adapt.classifier.MOST_JUDGED", most)
    found = LinearizedClassifier(net()).fit(x, y)
    assert found.chosen_ != "start"
    assert bool(asked) == tried


def test_an_update_that_fails_leaves_all_as_it_was(monkeypatch):
    x, y = data(12)
    found = around_its_start(net()).fit(x, y)
    before = found.logits(x)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dovetail.adapt.classifier.with_more_labels", stopped)
    with pytest.raises(KeyboardInterrupt):
        found.update(x, y)
    monkeypatch.undo()
    np.testing.assert_array_equal(found.logits(x), before)
    found.update(x, y)
    assert found.rows_ == 72


def test_uncertainty_makes_probabilities_milder_and_far_away_milder_still():
    x, y = data()
    found = around_its_start(net()).fit(x, y)
    plain, mild = (found.predict_proba(x, link=link).max(1).mean() for link in ("mean", "probit"))
    assert mild < plain


def test_a_temperature_is_fitted_to_other_labels():
    x, y = data(12)
    found = around_its_start(net(), prior=100.0).fit(x, y)
    new, truth = data(300, seed=3)
    rng = np.random.default_rng(0)
    truth = np.where(rng.random(300) < 0.3, rng.permutation(truth), truth)
    before = found.predict_proba(new).max(1).mean()
    found.calibrate(new, truth)
    assert found.temperature_ > 1
    assert found.predict_proba(new).max(1).mean() < before
    with pytest.warns(UserWarning, match="stays what fit found"):
        found.calibrate(x, found.predict(x))
    assert found.temperature_ == 1.0


def test_a_prior_shared_by_tasks():
    shared = around_its_start(net()).sharing([data(24, 1), data(15, 2)])
    assert shared.prior > 0
    assert shared.fit(*data(6)).scales_["0"] == shared.prior


def test_a_scale_a_layer_explains_no_less():
    x, y = data(30)
    one, layers = (
        around_its_start(net(), prior=prior).fit(x, y) for prior in ("evidence", "layers")
    )
    assert layers.log_evidence_ >= one.log_evidence_ - 0.1


def test_a_plan_comes_before_a_fit():
    x, _ = data()
    plan = around_its_start(net()).plan(500, x[:1], ["ant", "bee", "cow"])
    assert (plan.sizes.inputs, plan.sizes.outputs) == (500, 3)
    assert plan.method == "laplace"


def test_two_classes_decide_by_one_number():
    x, y = data()
    few = y != "cow"
    found = around_its_start(net(2)).fit(x[few], y[few])
    assert found.decision_function(x).shape == (24,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y: (x, np.array(["ant"] * 24)), "one class"),
        (lambda x, y: (x[:0], y[:0]), "0 sample"),
        (lambda x, y: (x * np.nan, y), "NaN"),
        (lambda x, y: (x[:3], y), "3 inputs but 24"),
        (lambda x, y: (0 * x, y), "tell them apart"),
    ],
)
def test_data_that_cannot_be_are_refused(change, says):
    with pytest.raises(TaskError, match=says):
        around_its_start(net()).fit(*change(*data()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "cg"}, "method is one of"),
        ({"mean": "constant"}, "mean is one of"),
        ({"prior": 0.0}, "prior is"),
        ({"memory": 500}, "fits in"),
        ({"link": "probitt"}, "no link"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, says):
    with pytest.raises(SettingsError, match=says):
        around_its_start(net(), **options).fit(*data())
    with pytest.raises(SettingsError, match="no link"):
        around_its_start(net()).fit(*data()).predict_proba(data()[0], link="logit")
