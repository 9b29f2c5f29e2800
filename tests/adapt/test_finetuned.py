"""Fine-tuning as an estimator: which head it trains, what it leaves alone, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.adapt.finetuned import FineTuned
from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.part import build


@pytest.fixture(scope="module")
def blobs():
    draw = np.random.default_rng(0)
    centres = np.array([[0, 0], [4, 0], [0, 4]])
    codes = np.arange(30) % 3
    return draw.normal(size=(30, 2)) * 0.5 + centres[codes], np.array(["a", "b", "c"])[codes]


@pytest.fixture(scope="module")
def knowing():
    """A network that knows five classes by name."""
    part = build("mlp", shape=(2,), hidden=(8,), classes=5)
    return part.changed(contract=replace(part.contract, classes=("c", "x", "a", "y", "b")))


def test_a_new_head_learns_the_classes_and_the_model_stays(blobs):
    x, y = blobs
    part = build("mlp", shape=(2,), hidden=(8,), classes=5)
    before = part.digest
    fitted = FineTuned(part, steps=60, learning_rate=0.03).fit(x, y)
    assert (fitted.predict(x) == y).mean() > 0.9
    assert fitted.predict_proba(x).sum(1) == pytest.approx(1)
    assert part.digest == before
    assert fitted.to_part().contract.classes == ("a", "b", "c")
    assert fitted.to_part().origin.parents == (before,)


def test_known_classes_keep_the_head_that_knows_them(blobs, knowing):
    x, y = blobs
    # A step of no size: what comes out is where it began.
    fitted = FineTuned(knowing, steps=1, learning_rate=0.0).fit(x, y)
    own = outputs_of(knowing, torch.tensor(x, dtype=torch.float32)).double()
    assert fitted.logits(x) == pytest.approx(own[:, [2, 4, 0]], abs=1e-6)


def test_only_the_chosen_parameters_move_and_the_head(blobs):
    x, y = blobs
    part = build("mlp", shape=(2,), hidden=(8, 8), classes=5)
    fitted = FineTuned(part, params="hidden2.*", steps=3).fit(x, y)
    then, now = part.module.state_dict(), fitted.part_.module.state_dict()
    moved = {name: not tensor.equal(now[f"0.{name}"]) for name, tensor in then.items()
             if not name.startswith("head")}  # fmt: skip
    assert moved == {name: name.startswith("hidden2") for name in moved}
    assert all(p.requires_grad for p in fitted.part_.module.parameters())


def test_one_seed_gives_one_network(blobs):
    x, y = blobs
    one, two, other = (FineTuned(steps=5, random_state=s).fit(x, y).logits(x) for s in (1, 1, 2))
    assert one.equal(two)
    assert not one.equal(other)


def test_numbers_come_in_their_own_units():
    x = np.linspace(-2, 2, 40)[:, None]
    y = 1000 + 100 * x[:, 0]
    fitted = FineTuned(kind="regression").fit(x, y)
    assert np.abs(fitted.predict(x) - y).mean() < 20
    assert fitted.predict(x).shape == (40,)
    assert fitted.to_part().contract.kind == "regression"
    both = FineTuned(kind="regression", steps=2).fit(x, np.stack([y, -y], 1))
    assert both.predict(x).shape == (40, 2)
    with pytest.raises(SettingsError, match="numbers have no probabilities"):
        fitted.predict_proba(x)


def test_a_part_that_gives_the_numbers_goes_on_with_its_own_head():
    part = build("mlp", shape=(1,), hidden=(4,), classes=1)
    part = part.changed(contract=replace(part.contract, kind="regression"))
    x = np.linspace(0, 1, 8)[:, None]
    fitted = FineTuned(part, kind="regression", steps=1, learning_rate=0.0).fit(x, x[:, 0])
    # The loop scales the head to its targets and back, so it began as the part's own.
    scaled = outputs_of(part, torch.tensor(x, dtype=torch.float32))[:, 0].double().numpy()
    found = fitted.predict(x)
    assert np.corrcoef(found, scaled)[0, 1] == pytest.approx(1, abs=1e-5)


def test_the_temperature_is_in_the_part(blobs):
    x, y = blobs
    fitted = FineTuned(steps=40).fit(x, y)
    wrong = y.copy()
    wrong[:10] = "a"
    fitted.calibrate(x, wrong)
    assert fitted.temperature_ > 1
    logits = outputs_of(fitted.to_part(), torch.tensor(x, dtype=torch.float32))
    assert logits.softmax(1).double().numpy() == pytest.approx(fitted.predict_proba(x), abs=1e-5)
    with pytest.warns(UserWarning, match="predicted right"):
        assert fitted.calibrate(x, fitted.predict(x)).temperature_ == 1.0


def test_one_label_a_class_and_a_plain_module():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 7))
    fitted = FineTuned(net, steps=3).fit(np.eye(3), ["a", "b", "c"])
    assert fitted.predict(np.eye(3)).shape == (3,)
    assert net[1].num_batches_tracked == 0


def test_labels_held_out_say_when_to_stop(blobs):
    x, y = blobs
    fitted = FineTuned(steps=60, held_out=0.3, learning_rate=0.0).fit(x, y)
    assert "validation loss" in fitted.record_.rows[0]
    assert len(fitted.record_.rows) < 60  # nothing got better


@pytest.mark.parametrize(
    ("x", "y", "options", "error"),
    [
        ([[float("nan")], [1.0]], ["a", "b"], {}, TaskError),
        ([[0.0], [1.0]], ["a", "a"], {}, TaskError),
        ([[0.0], [1.0], [2.0]], ["a", "b"], {}, TaskError),
        ([[0.0], [1.0]], ["a", "b"], {"kind": "numbers"}, SettingsError),
        ([[0.0], [1.0]], ["a", "b"], {"steps": 0}, SettingsError),
        ([[0.0], [1.0]], ["a", "b"], {"held_out": 1.0}, SettingsError),
        ([[0.0], [1.0]], ["a", "b"], {"params": "nowhere.*"}, SettingsError),
        ([[0.0], [1.0]], ["a", "b"], {"model": nn.Linear(3, 2)}, DovetailError),
    ],
)
def test_what_is_refused(x, y, options, error):
    with pytest.raises(error):
        FineTuned(**options).fit(x, y)


def test_labels_to_calibrate_by_must_be_known(blobs):
    x, y = blobs
    with pytest.raises(TaskError, match="not among the classes"):
        FineTuned(steps=1).fit(x, y).calibrate(x[:1], ["z"])


def test_a_part_whose_head_is_all_there_is_begins_anew():
    lone = build("mlp", shape=(2,), hidden=(), classes=2)
    known = Contract((Port((2,)),), (Port((2,)),), classes=("a", "b"))
    fitted = FineTuned(lone.changed(contract=known), steps=2).fit(
        [[0.0, 1.0], [1.0, 0.0]], ["a", "b"]
    )
    assert fitted.predict([[0.0, 1.0]]).shape == (1,)
