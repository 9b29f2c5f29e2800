"""All estimators have one interface: the same methods, class names kept, honest after calibrate."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score, r2_score
from torch import nn

from dovetail.adapt import (
    AdaptiveBayesianRegressor,
    FineTuned,
    LinearizedClassifier,
    LinearizedRegressor,
    Probe,
    ProbeRegressor,
    RBFRegressor,
)
from dovetail.closed_form import PlatonicClassifier, PlatonicRegressor
from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.measure.evaluate import evaluate
from dovetail.measure.intervals import gaussian_nll
from dovetail.measure.predict import predict
from dovetail.tasks.task import Task

CLASSIFIERS = {
    "linearized": LinearizedClassifier(prior=1.0),
    "probe, ridge": Probe(kind="ridge"),
    "probe, logistic": Probe(kind="logistic"),
    "probe of a network": Probe(nn.Sequential(nn.Linear(3, 16), nn.Tanh()), at="output"),
    "fine-tuned": FineTuned(steps=40),
    "platonic": PlatonicClassifier((16,)),
}
REGRESSORS = {
    "linearized": LinearizedRegressor(prior=1.0),
    "probe": ProbeRegressor(),
    "fine-tuned": FineTuned(kind="regression", steps=40),
    "adaptive": AdaptiveBayesianRegressor(steps=5),
    "rbf": RBFRegressor(restarts=0),
    "platonic": PlatonicRegressor((16,)),
}
WITHOUT_BARS = {"fine-tuned", "platonic"}
classifiers = pytest.mark.parametrize("name", CLASSIFIERS)
regressors = pytest.mark.parametrize("name", REGRESSORS)


def labelled(count=90, seed=0):
    """Three classes that overlap, named by text in no order of theirs."""
    rng = np.random.default_rng(seed)
    codes = np.arange(count) % 3
    x = rng.normal(size=(count, 3)) + 1.2 * np.eye(3)[codes]
    return x.astype(np.float32), np.array(["owl", "ant", "cat"])[codes]


def numbered(count=60, columns=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)).astype(np.float32)
    y = np.sin(x @ rng.normal(size=(3, columns))) + 0.2 * rng.normal(size=(count, columns))
    return x, y[:, 0] if columns == 1 else y


@pytest.fixture(scope="module")
def fitted():
    """Each estimator once, as fit left it; who changes one takes a copy."""
    made = {("classes", name): clone(one).fit(*labelled()) for name, one in CLASSIFIERS.items()}
    numbers = {("numbers", n): clone(one).fit(*numbered()) for n, one in REGRESSORS.items()}
    return lambda kind, name: pickle.loads(pickle.dumps((made | numbers)[kind, name]))


def log_loss(model, x, y):
    probs = model.predict_proba(x)
    return -np.log(probs[np.arange(len(y)), np.searchsorted(model.classes_, y)]).mean()


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_the_same_methods_exist(kind):
    every = (CLASSIFIERS if kind == "classes" else REGRESSORS).items()
    wanted = ["fit", "predict", "score", "calibrate"]
    wanted += ["logits", "predict_proba", "decision_function"] if kind == "classes" else []
    for name, model in every:
        methods = [*wanted, *([] if name == "rbf" else ["to_part"])]
        assert [each for each in methods if not hasattr(type(model), each)] == [], name
        assert is_classifier(model) if kind == "classes" else is_regressor(model)


@classifiers
def test_names_of_classes_come_back_and_are_in_the_part(fitted, name):
    model, (x, _) = fitted("classes", name), labelled()
    assert list(model.classes_) == ["ant", "cat", "owl"]
    assert set(model.predict(x)) <= {"ant", "cat", "owl"}
    assert model.to_part().contract.classes == ("ant", "cat", "owl")


@classifiers
def test_classes_are_scored_by_accuracy_and_the_part_agrees(fitted, name):
    model, (x, y) = fitted("classes", name), labelled(300, seed=1)
    assert model.score(x, y) == accuracy_score(y, model.predict(x)) > 0.5
    model.calibrate(x, y)  # then the part is as sure as the estimator
    part, inputs = model.to_part(), torch.from_numpy(x)
    said = predict(part, inputs)
    assert np.mean(np.array(said.labels) == model.predict(x)) > 0.99  # but for rounding
    np.testing.assert_allclose(said.probabilities, model.predict_proba(x), atol=1e-3)
    task = Task(inputs, list(y), name="animals", split={"train": range(30), "test": range(30, 300)})
    assert evaluate(part, task).accuracy == pytest.approx(model.score(x[30:], y[30:]), abs=0.01)


@classifiers
def test_a_temperature_keeps_answers_and_lowers_the_log_loss(fitted, name):
    model, (x, y) = fitted("classes", name), labelled(300, seed=1)
    before = model.predict(x)
    loss = log_loss(model, x, y) if hasattr(model, "predict_proba") else np.log(3)
    assert model.calibrate(x, y) is model
    assert (model.predict(x) == before).all()
    once = log_loss(model, x, y)
    assert once <= loss + 1e-9
    assert model.calibrate(x, y).temperature_ > 0
    assert log_loss(model, x, y) == pytest.approx(once)  # again changes nothing


@classifiers
def test_classes_to_calibrate_by_must_be_known_and_as_many(fitted, name):
    model, (x, y) = fitted("classes", name), labelled()
    with pytest.raises(TaskError, match="'elk' is not among the classes fitted to"):
        model.calibrate(x[:1], ["elk"])
    with pytest.raises(TaskError, match="give one target for each input"):
        model.calibrate(x, y[1:])


@regressors
def test_numbers_are_scored_by_r2_and_the_part_agrees(fitted, name):
    model, (x, y) = fitted("numbers", name), numbered(40, seed=0)
    assert model.score(x, y) == r2_score(y, model.predict(x))
    if name == "rbf":
        return  # no network
    part = model.to_part()
    assert part.contract.kind == "regression"
    task = Task(torch.from_numpy(x), torch.from_numpy(y).float(), kind="regression", name="waves")
    rows = task.indices("test")
    rmse = float(np.sqrt(np.mean((model.predict(x[rows]) - y[rows]) ** 2)))
    assert evaluate(part, task).measures["rmse"] == pytest.approx(rmse, rel=1e-3)


@pytest.mark.parametrize("columns", [1, 2])
@regressors
def test_a_scale_of_deviations_keeps_means_and_lowers_the_log_loss(name, columns):
    model = clone(REGRESSORS[name]).fit(*numbered(columns=columns))
    x, y = numbered(200, columns, seed=0)
    x, y = x[60:], y[60:]
    before = model.predict(x)
    loss = np.inf
    if name in WITHOUT_BARS:
        with pytest.raises(SettingsError, match="no error bars of its own"):
            model.predict(x, return_std=True)
    else:
        loss = gaussian_nll(*model.predict(x, return_std=True), y)
    model.calibrate(x, y)
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_array_equal(mean, before)
    assert std.shape == mean.shape
    once = gaussian_nll(mean, std, y)
    assert once <= loss + 1e-9
    np.testing.assert_allclose((((y - mean) / std) ** 2).mean(0), 1.0)
    assert gaussian_nll(*model.calibrate(x, y).predict(x, return_std=True), y) == pytest.approx(
        once
    )
    _, joint = model.predict(x[:5], return_cov=True)
    flat = joint if columns == 1 or joint.ndim == 3 else joint.diagonal(axis1=1, axis2=3)
    diagonal = np.diagonal(flat) if columns == 1 else np.stack([flat[i, i] for i in range(5)])
    np.testing.assert_allclose(np.sqrt(diagonal), std[:5], rtol=1e-5)


@regressors
def test_fitting_again_forgets_what_was_calibrated(name):
    data = numbered()
    model = clone(REGRESSORS[name]).fit(*data).calibrate(data[0], data[1] + 5.0).fit(*data)
    scale = model.deviation_scale_
    assert scale is None if name in WITHOUT_BARS else bool((scale == 1).all())


@regressors
def test_numbers_to_calibrate_by_must_be_as_many(fitted, name):
    model, (x, y) = fitted("numbers", name), numbered()
    with pytest.raises(TaskError, match="give one target for each input"):
        model.calibrate(x, y[1:])
    with pytest.raises(TaskError, match="2 columns"):
        model.calibrate(x, np.stack([y, y], 1))


def test_targets_that_are_met_exactly_leave_error_bars_as_they_were(fitted):
    model, (x, _) = fitted("numbers", "probe"), numbered()
    with pytest.warns(UserWarning, match="met exactly"):
        model.calibrate(x, model.predict(x))
    assert bool((model.deviation_scale_ == 1).all())


@pytest.mark.parametrize("model", [*CLASSIFIERS.values(), *REGRESSORS.values()])
def test_an_estimator_that_is_not_fitted_says_so(model):
    x, y = labelled(6)
    for call in (lambda: model.predict(x), lambda: model.calibrate(x, y)):
        with pytest.raises((DovetailError, ValueError, AttributeError), match="not fitted"):
            call()
