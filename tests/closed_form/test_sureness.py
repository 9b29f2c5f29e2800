"""Probabilities of a network that was solved for: rows left out, against fits without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import datasets
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import dovetail as dt
from dovetail.closed_form import Block, HeldRows, PlatonicClassifier, platonic
from dovetail.closed_form.estimators import PlatonicRegressor
from dovetail.core.seeds import generator
from dovetail.measure.calibration import expected_calibration_error, fit_temperature


@pytest.mark.parametrize("solver", ["pinv", "eigen", "cholesky", "lstsq"])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("inputs", [5, 40])
def test_a_row_left_out_is_a_fit_without_it(solver, ridge, inputs):
    draw = generator(0, "left out")
    x = torch.randn(20, inputs, generator=draw, dtype=torch.float64)
    y = x[:, :2].sin() + torch.randn(20, 2, generator=draw, dtype=torch.float64)
    found = platonic(HeldRows(x, y), (), solver=solver, ridge=ridge).left_out(Block(x, y))
    if inputs > 20 and not ridge:  # each row alone determines its own score
        torch.testing.assert_close(found, y.mean(0).expand(20, 2))
        return
    for i in range(20):
        others = torch.arange(20) != i
        without = platonic(HeldRows(x[others], y[others]), (), solver=solver, ridge=ridge)
        torch.testing.assert_close(found[i], without(x[i : i + 1])[0], atol=1e-9, rtol=1e-9)


def test_a_weight_is_so_many_copies_of_which_one_is_left_out():
    draw = generator(1, "left out")
    x, y = (torch.randn(15, k, generator=draw, dtype=torch.float64) for k in (3, 1))
    counts = torch.randint(1, 4, (15,), generator=draw)
    weighed = platonic(HeldRows(x, y, counts), (), ridge=0.2)
    copied = platonic(
        HeldRows(*(each.repeat_interleave(counts, 0) for each in (x, y))), (), ridge=0.2
    )
    torch.testing.assert_close(weighed.left_out(Block(x, y)), copied.left_out(Block(x, y)))


def test_a_temperature_of_weighed_rows_is_that_of_copies():
    draw = generator(2, "temperature")
    logits = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    labels = torch.randint(3, (40,), generator=draw)
    counts = torch.randint(0, 4, (40,), generator=draw)
    copied = fit_temperature(
        logits.repeat_interleave(counts, 0), labels.repeat_interleave(counts), unknown=1.0
    )
    weighed = fit_temperature(logits, labels, unknown=1.0, weights=counts.double())
    assert weighed == pytest.approx(copied, rel=1e-9)


DATA = {"digits": "together", "breast_cancer": "each", "wine": "each"}
SEEDS = 6


def apart(name, seed):
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return train_test_split(x, y, test_size=0.4, random_state=seed, stratify=y)


@pytest.mark.parametrize("widths", ["auto", (40, 20)])
@pytest.mark.parametrize("name", DATA)
def test_confidence_is_accuracy_on_rows_that_were_not_fitted(name, widths):
    found = []
    for seed in range(SEEDS):
        x, test, y, wanted = apart(name, seed)
        net = PlatonicClassifier(widths, scale_inputs=DATA[name], random_state=seed).fit(x, y)
        said = net.predict_proba(test)
        even = np.exp(scores := net.outputs(test).numpy())
        even /= even.sum(1, keepdims=True)
        assert np.array_equal(net.classes_[said.argmax(1)], net.classes_[scores.argmax(1)])
        found.append(
            (
                said.max(1).mean() - net.score(test, wanted),
                expected_calibration_error(said, wanted, 10),
                log_loss(wanted, said),
                log_loss(wanted, even),
            )
        )
    surplus, error, loss, before = np.mean(found, 0)
    assert abs(surplus) < 0.05
    assert error < 0.09  # of which 70 rows of wine have some by luck
    assert loss < before / 2


def test_part_estimator_and_prediction_say_the_same():
    task = dt.load_task("digits")
    x, y = task.subset("train")
    net = PlatonicClassifier((60,)).fit(x, np.array(task.classes)[y.numpy()])
    test, _ = task.subset("test")
    said = net.predict_proba(test)
    with torch.no_grad():
        np.testing.assert_allclose(net.to_torch()(test.double()).softmax(1), said, atol=1e-12)
    part = net.to_part()
    np.testing.assert_allclose(dt.predict(part, test).probabilities, said, atol=1e-6)
    assert part.origin.settings["temperature"] == net.temperature_
    assert dt.evaluate(part, task).measures["nll"] < 0.3
    before = net.temperature_
    net.calibrate(test, np.array(task.classes)[task.subset("test")[1].numpy()])
    assert net.temperature_ != before
    assert net.to_part().origin.settings["temperature"] == net.temperature_


def test_rows_that_stream_by_give_the_same_temperature():
    x, _, y, _ = apart("digits", 0)
    batches = [(x[i : i + 200], y[i : i + 200]) for i in range(0, len(x), 200)]
    for widths in ((40,), (30, 20)):
        net = PlatonicClassifier(widths, ridge=0.1, solver="cholesky")
        held = net.fit(x, y).temperature_
        assert net.fit_batches(batches).temperature_ == pytest.approx(held, rel=1e-6)


def test_two_classes_and_labels_by_chance_are_told_modestly():
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = np.random.default_rng(1).integers(0, 2, 200)
    net = PlatonicClassifier((20,)).fit(x, y)
    said = net.predict_proba(np.random.default_rng(2).normal(size=(500, 3)))
    np.testing.assert_allclose(said.sum(1), 1)
    assert said.max(1).mean() < 0.62


def test_numbers_have_no_temperature():
    net = PlatonicRegressor((3,)).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    assert not hasattr(net, "temperature_")
    assert "temperature" not in net.to_part().origin.settings
