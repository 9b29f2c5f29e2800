from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from references import logistic as reference
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from torch import nn

from dovetail.adapt.linear_heads import folds_of
from dovetail.adapt.probe import Probe, ProbeRegressor
from dovetail.core.errors import ContractError, CutError, SettingsError, TaskError
from dovetail.linalg.ridge import fit as fit_ridge
from dovetail.measure.estimators import temperature_of
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare
from dovetail.parts.cutting import cut
from dovetail.parts.part import build, from_pretrained
from dovetail.tasks.task import Task


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order, None] / 16).astype(np.float32)
    return images, data.target[order]


@pytest.mark.parametrize("kind", ["ridge", "logistic", "auto"])
def test_it_tells_digits_apart_and_knows_how_sure_it_is(digits, kind):
    x, y = digits
    probe = Probe(kind=kind).fit(x[:200], y[:200])
    chances = probe.predict_proba(x[200:1200])
    accuracy = (probe.predict(x[200:1200]) == y[200:1200]).mean()
    assert accuracy > 0.88
    assert abs(chances.max(1).mean() - accuracy) < 0.06
    held_out = -np.log(chances[np.arange(1000), y[200:1200]]).mean()
    assert probe.log_loss_ == pytest.approx(held_out, rel=0.35)
    assert probe.kind_ in ("ridge", "logistic")


def test_auto_takes_the_kind_of_lower_held_out_loss(digits):
    x, y = digits
    each = {kind: Probe(kind=kind).fit(x[:100], y[:100]) for kind in ("ridge", "logistic")}
    chosen = Probe().fit(x[:100], y[:100])
    assert chosen.log_loss_ == min(probe.log_loss_ for probe in each.values())
    assert np.array_equal(chosen.predict(x), each[chosen.kind_].predict(x))


def test_the_ridge_head_is_judged_on_the_folds_of_logistic_regression(digits):
    """A slow obvious version: each fold by scikit-learn's ridge, each temperature tried."""
    x, y = digits[0][:60].reshape(60, -1).astype(float), digits[1][:60]
    penalties = (0.1, 10.0)
    folds = folds_of(torch.tensor(y), seed=0)
    losses = {}
    for penalty in penalties:
        said = np.zeros((60, 10))
        for fold in range(int(folds.max()) + 1):
            held = (folds == fold).numpy()
            head = Ridge(penalty).fit(x[~held], np.eye(10)[y[~held]])
            said[held] = head.predict(x[held])
        judged = (folds >= 0).numpy()
        heat = temperature_of(torch.tensor(said[judged]), torch.tensor(y[judged]))
        losses[penalty] = log_loss(y[judged], softmax(said[judged] / heat, 1), labels=range(10))
    probe = Probe(kind="ridge", penalty=penalties).fit(x, y)
    assert probe.penalty_ == min(losses, key=losses.get)
    assert probe.log_loss_ == pytest.approx(min(losses.values()), rel=1e-6)


def test_one_label_a_class_is_better_than_guessing_and_says_so(digits):
    x, y = digits
    first = [int(np.flatnonzero(y == code)[0]) for code in range(10)]
    probe = Probe().fit(x[first], y[first])
    chances = probe.predict_proba(x[200:1200])
    assert log_loss(y[200:1200], chances) < 0.9 * np.log(10)
    assert probe.kind_ == "logistic"
    assert probe.log_loss_ is None


def test_the_ridge_head_is_that_of_linalg(digits):
    x, y = digits
    probe = Probe(kind="ridge", penalty=2.0).fit(x[:50], y[:50])
    head = fit_ridge(x[:50].reshape(50, -1), F.one_hot(torch.tensor(y[:50])), 2.0)
    expected = head(x[50:60].reshape(10, -1))
    torch.testing.assert_close(probe.logits(x[50:60]), expected, rtol=1e-6, atol=1e-6)


def test_no_other_temperature_fits_better():
    outputs = torch.randn(30, 3, dtype=torch.float64)
    codes = (outputs + torch.randn(30, 3)).argmax(1)
    best = temperature_of(outputs, codes)

    def loss(temperature):
        return reference.temperature_loss(outputs.tolist(), codes.tolist(), temperature)

    assert all(loss(best) <= loss(best * factor) + 1e-9 for factor in (0.5, 0.99, 1.01, 2.0))


def test_few_rows_told_apart_without_mistake_do_not_make_it_certain():
    outputs = torch.eye(2, dtype=torch.float64).repeat(3, 1)
    codes = torch.tensor([0, 1] * 3)
    sure = float((outputs / temperature_of(outputs, codes)).softmax(1).max())
    assert sure == pytest.approx(6.5 / 7, abs=1e-3)  # as if one row of seven were half wrong


def test_features_are_taken_before_the_head_unless_said_otherwise(digits):
    x, y = digits
    net = build("lenet5", size=8)
    assert Probe(net).fit(x[:60], y[:60]).coef_.shape == (84, 10)
    assert Probe(net, at="output").fit(x[:60], y[:60]).coef_.shape == (10, 10)
    assert Probe(net, at="conv2").fit(x[:60], y[:60]).coef_.shape == (16, 10)
    wide = Probe(net, at="conv2", pooling="flatten").fit(x[:60], y[:60])
    assert wide.coef_.shape == (64, 10)
    front, _ = cut(net, at="fc1")
    assert Probe(front).fit(x[:60], y[:60]).coef_.shape == (120, 10)
    assert Probe(nn.Flatten()).fit(x[:60], y[:60]).coef_.shape == (64, 10)


@pytest.mark.parametrize("at", [None, "conv2", "output"])
@pytest.mark.parametrize("pooling", ["average", "flatten"])
def test_the_part_says_what_the_probe_says_and_can_be_saved(digits, tmp_path, at, pooling):
    x, y = digits
    names = np.array(list("abcdefghij"))[y]
    probe = Probe(build("lenet5", size=8), at=at, pooling=pooling).fit(x[:80], names[:80])
    part = probe.to_part()
    kept = from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    assert kept.contract.classes == tuple("abcdefghij")
    inputs = torch.tensor(x[80:90])
    found = kept(prepare(inputs, kept.contract)).double().softmax(1).detach()
    np.testing.assert_allclose(found, probe.predict_proba(x[80:90]), atol=1e-4)


def test_a_probe_of_the_inputs_becomes_a_part_that_can_be_evaluated(digits):
    x, y = digits
    task = Task(x[:600], y[:600].tolist(), name="digits")
    train, targets = task.subset("train")
    probe = Probe(kind="ridge").fit(train, targets)
    test, wanted = task.subset("test")
    found = evaluate(probe.to_part(), task)
    assert found.accuracy == pytest.approx((probe.predict(test) == wanted.numpy()).mean())


def test_pixels_of_bytes_are_read_as_the_part_reads_them(digits):
    x, y = digits
    pixels = (x * 255).astype(np.uint8)
    probe = Probe().fit(pixels[:80], y[:80])
    part = probe.to_part()
    found = part(prepare(torch.tensor(pixels[80:90]), part.contract)).softmax(1).detach()
    np.testing.assert_allclose(found, probe.predict_proba(pixels[80:90]), atol=1e-4)


def test_the_network_it_was_given_is_neither_changed_nor_followed(digits):
    x, y = digits
    net = build("lenet5", size=8).module.train()
    before = copy.deepcopy(net.state_dict())
    probe = Probe(net).fit(x[:60], y[:60])
    said = probe.predict_proba(x[:5])
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    with torch.no_grad():
        for weights in net.parameters():
            weights.zero_()
    assert np.array_equal(probe.predict_proba(x[:5]), said)


def test_it_pickles(digits):
    x, y = digits
    probe = Probe(build("lenet5", size=8)).fit(x[:60], y[:60])
    again = pickle.loads(pickle.dumps(probe))
    assert np.array_equal(again.predict_proba(x[:5]), probe.predict_proba(x[:5]))


def test_one_example_a_class_is_enough():
    x = np.eye(3)
    for kind in ("auto", "ridge", "logistic"):
        probe = Probe(kind=kind).fit(x, ["a", "b", "c"])
        assert np.allclose(probe.predict_proba(x).sum(1), 1)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"kind": "svm"}, SettingsError, "kind must be"),
        ({"penalty": -1.0}, SettingsError, "penalties must be positive"),
        ({"pooling": "max"}, SettingsError, "pooling must be"),
        ({"at": "conv1"}, SettingsError, "no model to cut"),
        ({"model": "lenet5"}, ContractError, "expected a Part"),
        ({"model": build("lenet5", size=8), "at": "conv9"}, CutError, "conv9"),
        ({"model": build("lenet5", size=28)}, ContractError, "takes 1×28×28"),
    ],
)
def test_wrong_settings_say_what_is_wrong(digits, settings, error, said):
    x, y = digits
    with pytest.raises(error, match=said):
        Probe(**settings).fit(x[:30], y[:30])


def test_wrong_data_say_what_is_wrong(digits):
    x, y = digits
    with pytest.raises(TaskError, match="one class"):
        Probe().fit(x[:3], [1, 1, 1])
    with pytest.raises(TaskError, match="5 inputs but 4"):
        Probe().fit(x[:5], y[:4])
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.weight, float("nan"))
    with pytest.raises(ContractError, match="NaN or infinite features"):
        Probe(broken).fit([[0.0, 1.0], [1.0, 0.0]], [0, 1])


def test_a_regressor_on_features_becomes_a_part_that_gives_the_mean(digits, tmp_path):
    x, y = digits
    front = build("lenet5", size=8)
    numbers = np.c_[y, -2.0 * y]
    probe = ProbeRegressor(front, at="conv1").fit(x[:100], numbers[:100])
    mean, std = probe.predict(x[100:110], return_std=True)
    assert mean.shape == std.shape == (10, 2)
    assert np.allclose(mean[:, 1], -2 * mean[:, 0], atol=1e-6)
    part = from_pretrained(probe.to_part().save_pretrained(tmp_path / "part"))
    assert part.contract.kind == "regression"
    found = part(prepare(torch.tensor(x[100:110]), part.contract)).detach()
    np.testing.assert_allclose(found, mean, atol=1e-3)


def test_covariances_agree_with_deviations_and_both_are_not_given_at_once(digits):
    x, y = digits
    probe = ProbeRegressor().fit(x[:80], y[:80].astype(float))
    _, covariance = probe.predict(x[80:90], return_cov=True)
    _, std = probe.predict(x[80:90], return_std=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std)
    with pytest.raises(SettingsError, match="not for both"):
        probe.predict(x[:2], return_std=True, return_cov=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_networks_of_other_types_of_numbers_are_taken(dtype):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(30, 3)
    y = (2 * x[:, 0]).numpy()
    near = 1e-4 if dtype == torch.float64 else 0.2
    found = ProbeRegressor(copy.deepcopy(net).to(dtype)).fit(x, y).predict(x)
    np.testing.assert_allclose(found, ProbeRegressor(net).fit(x, y).predict(x), atol=near)
    probe = Probe(copy.deepcopy(net).to(dtype), kind="ridge").fit(x, y > 0)
    assert probe.score(x, y > 0) > 0.8


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("make", [Probe, ProbeRegressor])
def test_layers_without_a_shape_are_refused(make):
    with pytest.raises(SettingsError, match="call the module once on an input"):
        make(nn.Sequential(nn.LazyLinear(4), nn.Tanh())).fit(torch.rand(6, 3), [0, 1] * 3)
