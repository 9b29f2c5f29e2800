"""An adapted network kept: as a part on the shelf, as an estimator in a folder."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.core.errors import DovetailError, FormatError, SettingsError, TaskError
from dovetail.measure.evaluate import evaluate
from dovetail.measure.predict import predict
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.testing import check_part

X = np.linspace(-2, 2, 12)[:, None]
Y = np.sin(2 * X[:, 0])
NEW = np.linspace(-3, 3, 7)[:, None]
SIDES = np.where(X[:, 0] < 0, "left", "right")


def network(outputs=1):
    return build("mlp", shape=(1,), hidden=(6, 6), classes=outputs, activation="tanh")


def regressor(**options):
    return LinearizedRegressor(**{"model": network(), "prior": 1.0, "noise": 0.01} | options)


def classifier(**options):
    return LinearizedClassifier(**{"model": network(3), "prior": 1.0} | options)


def says(estimator):
    """Everything that is asked of a fitted estimator, as arrays."""
    if isinstance(estimator, LinearizedRegressor):
        return (
            *estimator.predict(NEW, return_std=True),
            estimator.predict(NEW, return_cov=True)[1],
        )
    known = ("mean", "mc", "probit") if estimator.method in ("auto", "laplace") else ("mean", "mc")
    links = [estimator.predict_proba(NEW, link=link) for link in known]
    return (estimator.decision_function(NEW), *links)


def assert_same(one, other, to=1e-12):
    for mine, theirs in zip(says(one), says(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=to, atol=to)


def assert_same_facts(one, other):
    for name in ("scales_", "log_evidence_", "rows_", "diagnostics_", "plan_", "n_features_in_"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("mean", ["constant", "zero", "network", "origin"])
@pytest.mark.parametrize("method", ["function", "parameter", "cg"])
def test_a_regressor_comes_back(tmp_path, mean, method):
    fitted = regressor(mean=mean, method=method).fit(X, Y)
    twin = LinearizedRegressor.load(fitted.save(tmp_path / "kept"))
    assert_same(fitted, twin)
    assert_same_facts(fitted, twin)
    for estimator in (fitted, twin):
        estimator.update(X[:3] + 0.1, Y[:3])
    assert_same(fitted, twin)
    again = LinearizedRegressor.load(twin.save(tmp_path / "again"))  # data came twice
    # The preconditioner is made of one block then, whose sums round otherwise.
    assert_same(again, twin, to=1e-9 if method == "cg" else 1e-12)


@pytest.mark.parametrize("method", ["laplace", "svi", "map"])
@pytest.mark.parametrize("mean", ["zero", "network"])
def test_a_classifier_comes_back(tmp_path, mean, method):
    options = {"model": network(2), "at": "output"} if mean == "network" else {}
    fitted = classifier(method=method, mean=mean, steps=30, **options).fit(X, SIDES)
    fitted.temperature_ = 1.7
    twin = LinearizedClassifier.load(fitted.save(tmp_path / "kept"))
    assert_same(fitted, twin)
    assert_same_facts(fitted, twin)
    assert twin.predict(NEW).tolist() == fitted.predict(NEW).tolist()
    if method == "laplace":
        for estimator in (fitted, twin):
            estimator.update(X[:3] + 0.1, SIDES[:3])
        assert_same(fitted, twin)
        assert_same(LinearizedClassifier.load(twin.save(tmp_path / "again")), twin)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 5] * 6, dtype=np.int16),
        np.array([0.0, 1.0] * 6),
        np.array([True, False] * 6),
        np.array(["a", "bc"] * 6, dtype=object),
    ],
    ids=["int16", "float", "bool", "object"],
)
@pytest.mark.filterwarnings("ignore:of the labels fitted to")  # which are drawn, not learnt
def test_classes_keep_their_type(tmp_path, labels):
    fitted = classifier().fit(X, labels)
    twin = LinearizedClassifier.load(fitted.save(tmp_path / "kept"))
    assert twin.classes_.dtype == fitted.classes_.dtype
    assert twin.predict(X).tolist() == fitted.predict(X).tolist()


def test_a_default_network_and_its_settings_come_back(tmp_path):
    fitted = LinearizedRegressor(noise=0.01, prior=1.0, params=lambda name, _: "bias" in name)
    fitted.fit(X, np.stack([Y, -Y], 1))
    twin = LinearizedRegressor.load(fitted.save(tmp_path / "kept"))
    assert_same(fitted, twin)
    assert twin.model is None
    assert twin.params == ["hidden1.linear.bias", "hidden2.linear.bias", "head.bias"]
    assert_same(clone(twin).fit(X, np.stack([Y, -Y], 1)), fitted)


def test_a_loaded_estimator_fits_as_the_first_did(tmp_path):
    for fitted, targets in ((classifier(), SIDES), (classifier(at="hidden1"), SIDES)):
        fitted.fit(X, targets)
        kept = fitted.save(tmp_path / str(fitted.at))
        again = clone(LinearizedClassifier.load(kept)).fit(X, targets)
        assert_same(fitted, again)


def test_names_of_columns_and_a_projection_come_back(tmp_path):
    fitted = regressor(model=network(3), projection=np.ones((3, 1))).fit(X, Y)
    expected = fitted.predict(NEW)
    fitted.feature_names_in_ = np.array(["place"], dtype=object)  # as of a data frame
    twin = LinearizedRegressor.load(fitted.save(tmp_path / "kept"))
    assert twin.feature_names_in_.tolist() == ["place"]
    assert twin.projection == [[1.0], [1.0], [1.0]]
    del twin.feature_names_in_
    np.testing.assert_array_equal(twin.predict(NEW), expected)


def test_without_data_there_is_the_mean_alone(tmp_path):
    fitted = regressor().fit(X, Y)
    kept = fitted.save(tmp_path / "kept", data=False)
    twin = LinearizedRegressor.load(kept)
    np.testing.assert_array_equal(twin.predict(NEW), fitted.predict(NEW))
    with pytest.raises(TaskError, match="save it with data=True"):
        twin.predict(NEW, return_std=True)
    with pytest.raises((TaskError, NotFittedError)):
        twin.update(X, Y)
    assert twin.to_part().digest == fitted.to_part().digest
    assert twin.plan(100).method == fitted.plan(100).method
    twin.save(tmp_path / "again")  # of what there is
    whole = fitted.save(tmp_path / "whole")
    assert _size(kept) < _size(whole)
    labels = classifier().fit(X, SIDES)
    point = LinearizedClassifier.load(labels.save(tmp_path / "labels", data=False))
    np.testing.assert_array_equal(point.predict_proba(NEW), labels.predict_proba(NEW))


def _size(folder):
    return (folder / "state.safetensors").stat().st_size


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def test_a_network_without_a_recipe_is_brought_by_the_user(tmp_path):
    net, x = Attentive(), np.random.default_rng(0).normal(size=(9, 5, 4))
    fitted = classifier(model=net).fit(x, ["a", "b", "c"] * 3)
    kept = fitted.save(tmp_path / "kept")
    assert not (kept / "body").exists()
    with pytest.raises(FormatError, match=r"load\(folder, model=\.\.\.\)"):
        LinearizedClassifier.load(kept)
    twin = LinearizedClassifier.load(kept, model=net)
    # Not to the last bit: sums round otherwise where memory is aligned otherwise.
    one, other = (estimator.predict_proba(x, link="mc") for estimator in (twin, fitted))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    assert twin.model is net
    part = fitted.to_part()
    assert part.recipe is None
    with torch.inference_mode():
        found = part(torch.tensor(x).float())
    np.testing.assert_allclose(found.numpy(), fitted.decision_function(x), atol=1e-4)
    with pytest.raises(FormatError, match="weights or its layers differ"):
        LinearizedClassifier.load(kept, model=Attentive())


def test_the_same_weights_in_other_layers_are_another_network(tmp_path):
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    kept = regressor(model=net).fit(X, Y).save(tmp_path / "kept")
    other = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    other.load_state_dict(net.state_dict())
    with pytest.raises(FormatError, match="layers differ"):
        LinearizedRegressor.load(kept, model=other)
    cut_off = regressor(model=net, at="1").fit(X, Y)
    folder = cut_off.save(tmp_path / "cut")
    assert_same(LinearizedRegressor.load(folder, model=net), cut_off)


# Parts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", ["constant", "zero", "network", "origin"])
def test_the_part_of_a_regressor_gives_its_mean(tmp_path, mean):
    fitted = regressor(mean=mean).fit(X, Y)
    part = fitted.to_part()
    assert (part.contract.kind, part.contract.gives[0].shape) == ("regression", (1,))
    assert part.origin.how == "linearized"
    assert part.origin.parents == (network().digest,)
    assert part.origin.settings["labels"] == 12
    assert part.origin.measured == {"log evidence": pytest.approx(fitted.log_evidence_)}
    found = part(torch.tensor(NEW).float())[:, 0].numpy()
    np.testing.assert_allclose(found, fitted.predict(NEW), atol=1e-5)
    twin = from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    assert twin.digest == part.digest
    check_part(part)


def test_a_part_is_its_own_copy():
    fitted = regressor().fit(X, Y)
    before = fitted.predict(NEW)
    part = fitted.to_part()
    with torch.no_grad():
        for tensor in part.module.state_dict().values():
            tensor.zero_()
    np.testing.assert_array_equal(fitted.predict(NEW), before)


def test_the_part_of_a_default_network_standardises(tmp_path):
    fitted = LinearizedClassifier(prior=1.0).fit(100 + 50 * X, SIDES)
    part = from_pretrained(fitted.to_part().save_pretrained(tmp_path / "part"))
    said = predict(part, torch.tensor(100 + 50 * NEW))
    assert said.labels == tuple(fitted.predict(100 + 50 * NEW))
    np.testing.assert_allclose(said.probabilities, fitted.predict_proba(100 + 50 * NEW), atol=1e-5)


def test_the_shelf_story(tmp_path):
    task = load_task("digits")
    x, codes = task.subset("train")
    names = [task.classes[code] for code in codes[:60]]
    source = build("lenet5", size=8)
    fitted = LinearizedClassifier(source, prior=100.0).fit(x[:60], names)
    fitted.calibrate(x[60:120], [task.classes[code] for code in codes[60:120]])
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(source, name="source")
    shelf.add(fitted.to_part(), name="adapted")
    part = shelf.get("adapted")
    assert source.digest in part.origin.parents
    test, wanted = task.subset("test")
    truth = [task.classes[code] for code in wanted]
    assert evaluate(part, task).accuracy == pytest.approx(fitted.score(test, truth))
    said = predict(part, test)
    np.testing.assert_allclose(said.probabilities, fitted.predict_proba(test), atol=1e-4)
    assert part.contract.classes == task.classes


# Folders that lie ---------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path):
    return classifier().fit(X, SIDES).save(tmp_path / "kept")


def consistent(folder):
    contents = json.loads((folder / "contents.json").read_text())
    for name in contents["files"]:
        data = (folder / name).read_bytes()
        contents["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (folder / "contents.json").write_text(json.dumps(contents))


def refused(folder, reason, kind=LinearizedClassifier):
    with pytest.raises(DovetailError) as caught:
        kind.load(folder)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["estimator.json", "state.safetensors"])
def test_a_changed_byte_is_noticed(kept, name):
    data = bytearray((kept / name).read_bytes())
    data[len(data) // 2] ^= 1
    (kept / name).write_bytes(bytes(data))
    refused(kept, "differs from the manifest")


@pytest.mark.parametrize("name", ["estimator.json", "state.safetensors", "contents.json"])
def test_a_file_that_is_missing_or_a_link(kept, tmp_path, name):
    moved = (kept / name).rename(tmp_path / name)
    refused(kept, str(kept))
    (kept / name).symlink_to(moved)
    refused(kept, str(kept))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"estimator": "LinearizedRegressor"}, "holds a 'LinearizedRegressor'"),
        ({"outputs": 10**12}, "expected float64 [1000000000000]"),
        ({"example": [10**12]}, "no input has the shape"),
        ({"names": ["body.nothing"]}, "names parameters that the network does not have"),
        ({"names": []}, "names parameters"),
        ({"names": ["body.hidden1.linear.bias"]}, "'direction' is float64"),
        ({"settings": {"run": 1}}, "is missing or not known"),
        ({"classes": {"names": ["a", "b"], "dtype": "S1000000000"}}, "no classes of"),
        ({"classes": {"names": ["a", "b"], "dtype": "int8"}}, "classes: invalid literal"),
        ({"mean": 3}, "mean: expected str"),
        ({"extra": 3}, "unknown field 'extra'"),
        ({"posterior": {"kind": "pickle"}}, "posterior.kind: expected one of"),
        ({"posterior": {"kind": "labels", "blocks": 10**9}}, "no posterior has"),
        ({"posterior": {"kind": "parameter"}}, "is missing or not wanted"),
        ({"projected": False}, "'projection' is missing or not wanted"),
    ],
)
def test_facts_that_lie(kept, fields, reason):
    facts = json.loads((kept / "estimator.json").read_text())
    (kept / "estimator.json").write_text(json.dumps(facts | fields))
    consistent(kept)
    refused(kept, reason)


def test_another_body_is_noticed(kept, tmp_path):
    other = build("mlp", seed=1, shape=(1,), hidden=(6, 6), classes=3, activation="tanh")
    Part.save_pretrained(other, kept / "body", overwrite=True)
    refused(kept, "another network")


def test_state_that_does_not_belong_together(kept):
    state = load_file(kept / "state.safetensors")
    save_file(state | {"posterior.dual": torch.zeros(3, 2).double()}, kept / "state.safetensors")
    consistent(kept)
    refused(kept, "tensor 'dual' of the posterior is [3, 2], not [12, 2]")
    (kept / "state.safetensors").write_bytes(b"\x80\x04nothing")
    consistent(kept)
    refused(kept, "not a safetensors file")


def test_a_state_of_terabytes_is_not_hashed(kept):
    os.truncate(kept / "state.safetensors", 10 << 40)
    refused(kept, "the manifest says")
    contents = json.loads((kept / "contents.json").read_text())
    contents["files"]["state.safetensors"]["size"] = 10 << 40
    (kept / "contents.json").write_text(json.dumps(contents))
    refused(kept, "and this machine has")


def test_saving_refuses_what_it_cannot_keep(tmp_path):
    with pytest.raises(NotFittedError):
        regressor().save(tmp_path / "a")
    with pytest.raises(NotFittedError):
        regressor().to_part()
    fitted = regressor(random_state=np.random.default_rng(0)).fit(X, Y)
    with pytest.raises(SettingsError, match=r"set_params\(random_state=\.\.\.\)"):
        fitted.save(tmp_path / "a")
    assert not list(tmp_path.iterdir())
    kept = regressor().fit(X, Y).save(tmp_path / "kept")
    with pytest.raises(FormatError, match="overwrite=True"):
        regressor().fit(X, Y).save(kept)
    regressor().fit(X, -Y).save(kept, overwrite=True)
    assert LinearizedRegressor.load(kept).predict([[0.75]])[0] < -0.5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(FormatError, match="holds other files"):
        regressor().fit(X, Y).save(tmp_path / "other", overwrite=True)
    with pytest.raises(FormatError, match="no estimator is kept there"):
        LinearizedRegressor.load(tmp_path / "nowhere")
