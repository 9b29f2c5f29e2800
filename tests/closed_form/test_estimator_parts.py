"""A fitted network as a module and as a part gives what the estimator gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.closed_form import PlatonicClassifier, PlatonicRegressor
from dovetail.closed_form.layers import ACTIVATIONS
from dovetail.core.errors import FormatError, SettingsError
from dovetail.parts.zoo.layers import activation_layer


@pytest.fixture(scope="module")
def digits():
    task = dt.load_task("digits")
    x, y = task.subset("train")
    return task, x.numpy(), np.array(task.classes)[y.numpy()]


def module_outputs(net, x):
    """What the module gives, times the temperature that is in a classifier's head."""
    with torch.no_grad():
        found = net.to_torch()(torch.from_numpy(np.asarray(x, dtype=np.float64))).numpy()
    return found * getattr(net, "temperature_", 1.0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_module_gives_the_scores(activation):
    draw = np.random.default_rng(0)
    x = 2 + draw.normal(size=(90, 3))
    y = np.digitize(((x - 2) ** 2).sum(1), [1.5, 4.0])
    net = PlatonicClassifier((9, 7), activation).fit(x, y)
    found = module_outputs(net, x)
    assert abs(found - net.decision_function(x)).max() < 1e-9
    assert net.classes_[found.argmax(1)].tolist() == net.predict(x).tolist()
    two = PlatonicClassifier((9,), activation).fit(x, y > 0)
    found = module_outputs(two, x)
    assert found.shape == (90, 2)
    assert abs(found[:, 1] - found[:, 0] - two.decision_function(x)).max() < 1e-9
    assert two.classes_[found.argmax(1)].tolist() == two.predict(x).tolist()
    line = PlatonicRegressor((9,), activation).fit(x, np.stack([y, 5 + 100 * y], 1))
    assert abs(module_outputs(line, x) - line.predict(x)).max() < 1e-9 * 500


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_zoo_knows_the_same_activations(name):
    x = torch.linspace(-9, 9, 101).double()
    assert torch.equal(activation_layer(name)(x), ACTIVATIONS[name](x))


def test_badly_conditioned_rows_too():
    """The spirals want every digit: weights of thousands, conditions of billions."""
    draw = np.random.default_rng(0)
    t, arm = 3 * np.pi * np.sqrt(draw.uniform(size=5000)), np.arange(5000) % 2
    x = np.stack([t * np.cos(t + np.pi * arm), t * np.sin(t + np.pi * arm)], 1) / 10
    net = PlatonicClassifier((32,) * 4, "tanh").fit(x, arm)
    assert net.score(x, arm) > 0.995
    found = module_outputs(net, x)
    assert abs(found[:, 1] - found[:, 0] - net.decision_function(x)).max() < 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_part_is_one_like_any_other(digits, tmp_path, dtype):
    task, x, y = digits
    net = PlatonicClassifier((96, 48), random_state=3).fit(x, y)
    part = net.to_part(dtype)
    assert part.contract.classes == task.classes
    assert part.contract.takes[0].shape == (1, 8, 8)
    assert part.origin.how == "closed-form"
    assert part.origin.settings["seed"] == 3
    assert part.origin.measured["least squares distance"] == pytest.approx(net.distances_[-1])
    assert {each.dtype for each in part.module.parameters()} == {dtype}
    found = dt.evaluate(part, task)
    inputs, targets = task.subset("test")
    told = np.array(task.classes)[targets.numpy()]
    assert found.accuracy == pytest.approx(net.score(inputs.numpy(), told), abs=0.003)
    assert dt.predict(part, inputs[:9]).labels == tuple(net.predict(inputs[:9].numpy()))

    loaded = dt.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    assert (loaded.digest, loaded.contract, loaded.recipe) == (
        part.digest,
        part.contract,
        part.recipe,
    )
    shelf = dt.Shelf(tmp_path / "shelf")
    shelf.add(part, "solved")
    assert dt.evaluate(shelf.get("solved"), task).accuracy == found.accuracy

    front, head = dt.cut(part, at="hidden2")
    assert front.contract.gives[0].shape == (48,)
    assert front.contract.gives[0].activation == "relu"
    assert dt.evaluate(dt.join(front, head), task).accuracy == found.accuracy
    again = dt.from_pretrained(front.save_pretrained(tmp_path / "front"), verify=True)
    assert again.digest == front.digest


def test_bytes_are_divided_for_the_part_too():
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    y = np.where(images[:, 0, 1, 1] > 127, "bright", "dark")
    net = PlatonicClassifier((24,), ridge=1e-3).fit(images, y)
    task = dt.Task(torch.from_numpy(images), y.tolist(), name="bytes")
    held = task.subset("test")[0]
    assert dt.predict(net.to_part(), held).labels == tuple(net.predict(held.numpy()))
    assert dt.evaluate(net.to_part(), task).n == len(held)


def test_numbers_are_a_regression_part(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(80, 3)).astype(np.float32)
    y = 10 + 3 * np.sin(x[:, 0])
    net = PlatonicRegressor((12,), "celu").fit(x, y)
    part = net.to_part()
    assert (part.contract.kind, part.contract.classes) == ("regression", None)
    assert part.contract.gives[0].shape == (1,)
    task = dt.Task(torch.from_numpy(x), y, kind="regression", name="wave")
    inputs, targets = task.subset("test")
    errors = net.predict(inputs.numpy()) - targets.numpy().ravel()
    rmse = dt.evaluate(part, task).measures["rmse"]
    assert rmse == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
    dt.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)


@pytest.mark.parametrize("activation", [torch.atan, nn.Softsign()])
def test_a_function_of_ones_own_goes_along_but_is_not_saved(activation, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    net = PlatonicClassifier((8,), activation).fit(x, x[:, 0] > 0)
    found = module_outputs(net, x)
    assert abs(found[:, 1] - found[:, 0] - net.decision_function(x)).max() < 1e-9
    with pytest.raises(FormatError, match="recipe"):
        net.to_part().save_pretrained(tmp_path / "part")


def test_only_two_types_are_offered():
    net = PlatonicRegressor((2,)).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(SettingsError, match=r"torch.float64 or torch.float32"):
        net.to_torch(torch.float16)


def test_a_network_of_float64_takes_either_type():
    part = dt.build("mlp", shape=(2, 3), hidden=(4,), classes=2, dtype="float64")
    assert part.contract.takes[0].dtype == "float32"
    assert part.contract.gives[0].dtype == "float64"
    x = torch.rand(5, 2, 3)
    assert torch.equal(part(x), part(x.double()))
