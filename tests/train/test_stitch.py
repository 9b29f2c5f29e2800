import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.closed_form.stitch import stitch as least_squares
from dovetail.core.errors import (
    ContractError,
    DovetailError,
    SettingsError,
    TaskError,
    TrainingError,
)
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import outputs_of
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.norms import uses_batch_statistics, with_batch_statistics
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.stitch import stitch
from dovetail.train.supervision import Batches

QUICK = {"epochs": 3, "batch_size": 16, "device": "cpu"}


def halves(task, seed, hidden=16, norm="none", epochs=4):
    shape, classes = task.input_shape, len(task.classes)
    net = build("mlp", shape=shape, hidden=(hidden, 8), classes=classes, norm=norm, seed=seed)
    return cut(end_to_end(net, task, epochs=epochs, batch_size=16, lr=0.05).part, at="hidden1")


@pytest.fixture(scope="module")
def pair(task):
    """The front of one network, the front and the head of another."""
    (front, _), (onto, head) = halves(task, 0), halves(task, 1)
    return front, onto, head


@pytest.fixture(scope="module")
def normed(task):
    """The same with batch norms, some of them in the heads."""
    (front, _), (onto, head) = halves(task, 0, norm="batch"), halves(task, 1, norm="batch")
    return front, onto, head


def slow(front, head, task, start, norms, epochs, lr):
    """Plain SGD on the map alone, written out; the head is run as ``norms`` says."""
    rows = task.indices("train")
    with torch.no_grad():
        features = outputs_of(front, task.inputs[rows])
    after = copy.deepcopy(head.module).eval()
    after = with_batch_statistics(after) if norms == "batch" else after
    weight = start.module.state_dict()["weight"].clone().requires_grad_()
    bias = start.module.state_dict()["bias"].clone().requires_grad_()
    columns = [head.contract.classes.index(name) for name in task.classes]
    batches = Batches(features, task.targets[rows], 16, seed=0)
    for epoch in range(epochs):
        for x, y in batches.epoch(epoch):
            loss = F.cross_entropy(after(x @ weight.T + bias)[:, columns], y)
            moved = torch.autograd.grad(loss, (weight, bias))
            with torch.no_grad():
                weight -= lr * moved[0]
                bias -= lr * moved[1]
    return weight.detach(), bias.detach()


@pytest.mark.parametrize("norms", ["batch", "stored"])
def test_it_is_the_slow_descent(normed, task, norms):
    front, onto, head = normed
    start = least_squares(front, onto, task)
    plain = {"lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    fit = stitch(front, head, task, start=start, norms=norms, **plain, **QUICK)
    weight, bias = slow(front, head, task, start, norms, 3, 0.05)
    state = fit.parts[0].module.state_dict()
    assert torch.allclose(state["weight"], weight, atol=1e-5)
    assert torch.allclose(state["bias"], bias, atol=1e-5)
    assert not torch.allclose(weight, start.module.state_dict()["weight"], atol=1e-3)


@pytest.mark.parametrize("norms", ["batch", "stored"])
def test_front_and_head_are_bit_identical_afterwards(normed, task, norms):
    front, onto, head = normed
    start = least_squares(front, onto, task)
    parts = front, head, start
    for part in parts:
        part.module.zero_grad(set_to_none=True)
    before = [part.digest for part in parts]
    modes = [[m.training for m in part.module.modules()] for part in parts]
    fit = stitch(front, head, task, start=start, norms=norms, **QUICK)
    assert [part.digest for part in parts] == before
    assert [[m.training for m in part.module.modules()] for part in parts] == modes
    for part in parts:
        assert all(p.grad is None and p.requires_grad for p in part.module.parameters())
    assert fit.parts[0].digest != start.digest
    assert fit.whole.origin.parents == (front.digest, fit.parts[0].digest, head.digest)


@pytest.mark.parametrize("norms", ["batch", "stored"])
def test_the_whole_is_the_three_in_a_row(normed, task, norms):
    front, _, head = normed
    fit = stitch(front, head, task, norms=norms, **QUICK)
    (made,) = fit.parts
    assert uses_batch_statistics(fit.whole.module) == (norms == "batch")
    after = copy.deepcopy(head.module).eval()
    after = with_batch_statistics(after) if norms == "batch" else after
    x = task.inputs[:20]
    features = outputs_of(front, x)
    weight, bias = (made.module.state_dict()[name] for name in ("weight", "bias"))
    assert torch.allclose(outputs_of(fit.whole, x), after(features @ weight.T + bias), atol=1e-5)
    measured = evaluate(fit.whole, task, split="validation")
    assert fit.record.final["validation accuracy"] == pytest.approx(measured.accuracy)
    assert made.origin.measured["validation accuracy"] == pytest.approx(measured.accuracy)


def test_what_the_contract_says(pair, task, tmp_path):
    front, _, head = pair
    fit = stitch(front, head, task, **QUICK)
    (made,) = fit.parts
    assert made.contract.takes == front.contract.gives
    assert made.contract.gives == head.contract.takes
    assert (made.origin.how, made.origin.settings["by"]) == ("stitch", "trained")
    assert join(front, made, head).contract.classes == head.contract.classes
    back = from_pretrained(made.save_pretrained(tmp_path / "made"), verify=True)
    assert back.digest == made.digest
    whole = from_pretrained(fit.whole.save_pretrained(tmp_path / "whole"), verify=True)
    assert torch.equal(outputs_of(whole, task.inputs), outputs_of(fit.whole, task.inputs))


def test_without_a_start_it_begins_with_the_join_by_force(pair, task):
    front, _, head = pair
    still = stitch(front, head, task, norms="stored", lr=0.0, **QUICK)
    forced = evaluate(join(front, head, force=True), task, split="validation").accuracy
    assert still.record.final["validation accuracy"] == pytest.approx(forced)
    trained = stitch(front, head, task, **{**QUICK, "epochs": 20})
    assert trained.record.final["validation accuracy"] > forced + 0.2


def test_other_channel_counts_begin_at_random(pair, task):
    _, _, head = pair
    front, _ = halves(task, 3, hidden=5)
    one, same, other = (stitch(front, head, task, seed=s, **QUICK) for s in (0, 0, 1))
    assert one.parts[0].contract.takes[0].shape == (5,)
    assert one.parts[0].digest == same.parts[0].digest != other.parts[0].digest


def test_classes_are_matched_by_name(task):
    """A head that knows the classes in another order, and one more."""
    classes = ("extra", *reversed(task.classes))
    net = build("mlp", shape=task.input_shape, hidden=(16,), classes=4, seed=1)
    named = net.changed(contract=replace(net.contract, classes=classes))
    _, head = cut(named, at="hidden1")
    front, _ = halves(task, 0)
    start = least_squares(front, cut(named, at="hidden1")[0], task)
    plain = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    fit = stitch(front, head, task, start=start, **plain, **QUICK)
    weight, _ = slow(front, head, task, start, "batch", 3, 0.1)
    assert torch.allclose(fit.parts[0].module.state_dict()["weight"], weight, atol=1e-5)
    assert fit.whole.contract.classes == classes
    masked = evaluate(fit.whole, task, split="validation").measures["masked accuracy"]
    assert masked == pytest.approx(fit.record.final["validation accuracy"])


def test_regression_and_labels(task):
    x = task.inputs.flatten(1)
    numbers = Task(x, x[:, :1] * 2, kind="regression", name="numbers")
    labels = Task(x, (x[:, :2] > 0.3).float(), kind="multilabel", classes=("a", "b"), name="l")
    for each in (numbers, labels):
        nets = [
            build("mlp", shape=(16,), hidden=(8,), classes=each.outputs, seed=s) for s in (0, 1)
        ]
        front, _ = cut(end_to_end(nets[0], each, **QUICK).part, at="hidden1")
        _, head = cut(end_to_end(nets[1], each, **QUICK).part, at="hidden1")
        fit = stitch(front, head, each, lr=0.01, **{**QUICK, "epochs": 10})
        rows = fit.record.rows
        assert rows[-1]["validation loss"] < rows[0]["validation loss"]


def test_a_killed_training_goes_on_where_it_was(pair, task, tmp_path):
    front, _, head = pair
    whole = stitch(front, head, task, **QUICK)

    class Killed(Exception):
        pass

    def kill(moment):
        if moment.epoch == 2:
            raise Killed

    file = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}
    with pytest.raises(Killed):
        stitch(front, head, task, callbacks=(kill,), **file, **QUICK)
    assert (tmp_path / "c").exists()
    resumed = stitch(front, head, task, **file, **QUICK)
    assert resumed.parts[0].digest == whole.parts[0].digest
    with pytest.raises(SettingsError, match="another training"):
        stitch(front, head, task, norms="stored", **file, **QUICK)


def test_fronts_that_use_the_batch_see_the_training_batches(normed, task):
    front, _, head = normed
    moving = front.changed(module=with_batch_statistics(front.module))
    fit = stitch(moving, head, task, **QUICK)
    kept = stitch(front, head, task, **QUICK)
    assert fit.parts[0].digest != kept.parts[0].digest
    assert torch.isfinite(outputs_of(fit.whole, task.inputs)).all()


def test_validation_rows_that_are_sorted_by_class_do_not_mislead(normed, task):
    """Batches of one class would give a head that normalises by the batch other statistics."""
    front, _, head = normed
    targets = torch.arange(1800) // 600
    inputs = task.inputs[task.indices("train")][:60].repeat(30, 1, 1, 1)
    kinds = task.targets[task.indices("train")][:60].repeat(30).argsort(stable=True)
    split = {"train": range(0, 1800, 9), "test": [1]}
    split["validation"] = [i for i in range(1800) if i % 9 and i > 1]
    large = Task(inputs[kinds], targets, classes=task.classes, split=split)
    fit = stitch(front, head, large, **{**QUICK, "epochs": 10})
    images, labels = large.subset("validation")
    in_order = (outputs_of(fit.whole, images).argmax(1) == labels).double().mean()
    assert fit.record.final["validation accuracy"] > in_order + 0.1


def test_mistakes_are_told(pair, task, of_pairs):
    front, onto, head = pair
    with pytest.raises(SettingsError, match="norms must be"):
        stitch(front, head, task, norms="recalibrated", **QUICK)
    with pytest.raises(SettingsError, match="must be a Task"):
        stitch(front, head, task.inputs, **QUICK)
    with pytest.raises(TaskError, match="pair labels only"):
        stitch(front, head, of_pairs, **QUICK)
    renamed = Task(task.inputs, task.targets, classes=("0", "1", "other"))
    with pytest.raises(TaskError, match="does not know the class 'other'"):
        stitch(front, head, renamed, **QUICK)
    numbers = Task(task.inputs, task.targets.float(), kind="regression")
    with pytest.raises(TaskError, match="a task of kind regression"):
        stitch(front, head, numbers, **QUICK)
    with pytest.raises(ContractError, match="start must be a stitch"):
        stitch(front, head, task, start=head, **QUICK)
    narrow, _ = halves(task, 3, hidden=5)
    with pytest.raises(ContractError, match="start is an adapter 5->16"):
        stitch(front, head, task, start=least_squares(narrow, onto, task), **QUICK)
    unnamed = head.changed(contract=replace(head.contract, classes=None))
    two = Task(task.inputs, task.targets % 2)
    with pytest.raises(TaskError, match=r"gives \(3,\) numbers an example"):
        stitch(front, unnamed, two, **QUICK)
    unknown = Part(nn.Linear(16, 3))
    with pytest.raises(ContractError, match="has none"):
        stitch(front, unknown, task, **QUICK)
    image, _ = cut(build("lenet5", size=8), at="conv1")
    with pytest.raises(ContractError, match="one is a vector"):
        stitch(image, head, task, **QUICK)
    with pytest.raises(TrainingError, match="the loss became"):
        stitch(front, head, task, lr=1e30, **QUICK)


def test_a_checkpoint_of_other_layers_with_the_same_weights_is_refused(pair, task, tmp_path):
    front, _, head = pair
    kept = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0, **QUICK}
    stitch(front, head, task, **kept)
    other = copy.deepcopy(head)
    for parent in list(other.module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Tanh())
    assert other.digest == head.digest
    with pytest.raises(DovetailError):
        stitch(front, other, task, **kept)


def test_a_good_start_survives_a_steep_head(task, pair):
    """A head whose logits are large has long gradients; clipped by default, they undo nothing."""
    front, onto, head = pair
    steep = copy.deepcopy(head.module)
    with torch.no_grad():
        for weight in list(steep.parameters())[-2:]:
            weight.mul_(1000.0)
    head = head.changed(module=steep)
    start = least_squares(front, onto, task)
    before = evaluate(join(front, start, head), task, split="validation").accuracy
    after, unclipped = (
        stitch(front, head, task, start=start, norms="stored", **QUICK, **more).record.final
        for more in ({}, {"clip": None})
    )
    assert after["validation accuracy"] >= before - 0.1
    assert after["validation loss"] < unclipped["validation loss"]
