"""One head for many devices."""

import copy
from dataclasses import replace

import pytest
import torch
from references.recombination_training import one_head_for_all
from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.core.seeds import derived_seed
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare
from dovetail.parts.cutting import cut
from dovetail.parts.heads import fresh_head
from dovetail.parts.joining import join
from dovetail.parts.part import build, from_pretrained
from dovetail.reuse.devices import shared_head
from dovetail.tasks.task import Task
from dovetail.train.supervision import Batches

QUICK = {"epochs": 2, "batch_size": 16, "device": "cpu", "lr": 0.05, "channels": 6}


def mlp(hidden, seed=0, **more):
    return build("mlp", shape=(1, 4, 4), hidden=(hidden,), classes=3, seed=seed, **more)


@pytest.fixture(scope="module")
def images():
    """Three kinds of small images, large enough to be halved twice."""
    draw = torch.Generator().manual_seed(1)
    targets = torch.arange(90) % 3
    inputs = 0.3 * torch.rand(90, 1, 8, 8, generator=draw)
    for i, target in enumerate(targets.tolist()):
        inputs[i, 0, 2 * target : 2 * target + 2] += 0.6
    return Task(inputs, targets, classes=("low", "mid", "high"), name="bars")


@pytest.fixture(scope="module")
def nets():
    return [
        build("resnet8", channels=1, size=8, width=4, classes=3),
        build("mobilenetv2", channels=1, size=8, width=0.125, classes=3, seed=1),
    ]


@pytest.fixture(scope="module")
def fit(nets, images):
    return shared_head(
        nets,
        images,
        at=("layer2", "stage4"),
        by=("dcc", "rp"),
        names=("server", "phone"),
        **{**QUICK, "epochs": 4},
    )


def test_training_is_the_plain_loop(task):
    nets = [mlp(16, norm="none"), mlp(9, seed=1, norm="none")]
    plain = {**QUICK, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "seed": 3}
    start = shared_head(nets, task, at="hidden1", **{**plain, "lr": 0.0, "epochs": 1})
    fit = shared_head(nets, task, at="hidden1", **plain)
    modules = [copy.deepcopy(part.module) for part in (*start.fronts, start.heads[0])]
    inputs, targets = task.subset("train")
    sources = [
        Batches(prepare(inputs, front.contract), targets, 16, seed=derived_seed(3, "member", place))
        for place, front in enumerate(start.fronts)
    ]
    one_head_for_all(modules[:2], modules[2], sources, epochs=2, lr=0.05)
    for part, module in zip((*fit.fronts, fit.heads[0]), modules, strict=True):
        for name, tensor in part.module.state_dict().items():
            torch.testing.assert_close(tensor, module.state_dict()[name])


def test_every_extractor_fits_the_one_head_without_force(fit, images):
    (head,) = fit.heads
    assert head.contract.classes == images.classes
    assert head.contract.takes[0].shape == (6, None, None)  # their maps are of different sizes
    sizes = {front.contract.gives[0].shape for front in fit.fronts}
    assert sizes == {(6, 4, 4), (6, 2, 2)}
    for name, front in zip(("server", "phone"), fit.fronts, strict=True):
        whole = join(front, head, norms="batch")
        found = evaluate(whole, images, split="validation").accuracy
        assert found == fit.record.accuracy[name]
        assert front.origin.measured["validation accuracy"] == found
    assert fit.record.accuracy["server"] > 0.6


def test_the_pretext_head_is_of_the_same_space(fit):
    rotating = fit.auxiliaries["rp"]
    assert rotating.contract.classes == ("0", "90", "180", "270")
    for front in fit.fronts:
        assert front.contract.mismatches(rotating.contract) == []
    assert 0 <= rotating.origin.measured["validation accuracy"] <= 1


def test_networks_are_extractors_with_the_head(fit, images):
    x = torch.rand(5, 1, 8, 8)
    for network, front in zip(fit.networks, fit.fronts, strict=True):
        torch.testing.assert_close(network(x), join(front, *fit.heads, norms="batch")(x))
    with pytest.raises(ContractError):  # the adapter gives a space that others do not
        join(fit.fronts[0], cut(build("resnet8", channels=1, size=8), at="layer2")[1])


def test_what_was_given_is_left_alone_and_the_seed_decides(task):
    nets = [mlp(16), mlp(8, seed=1)]
    before = [net.digest for net in nets]
    one, same, other = (
        shared_head(nets, task, at="hidden1", seed=seed, **QUICK) for seed in (0, 0, 1)
    )
    assert [net.digest for net in nets] == before
    digests = [[part.digest for part in fit.parts] for fit in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert one.fronts[0].contract.gives[0].space != other.fronts[0].contract.gives[0].space


def test_a_given_head_is_trained_on_by_the_names_of_its_classes(task, nets, images):
    head = fresh_head(
        build("resnet8", channels=1, size=8, width=3), "layer2", ("high", "low", "mid")
    )
    assert head.contract.takes[0].shape == (6, 4, 4)
    before = head.digest
    fit = shared_head(nets, images, at=("layer2", "stage4"), head=head, **{**QUICK, "epochs": 4})
    assert head.digest == before != fit.heads[0].digest
    assert fit.heads[0].contract.classes == ("high", "low", "mid")
    assert fit.record.accuracy["resnet8"] > 0.6


def test_plain_modules_and_one_device(task):
    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))

    fit = shared_head([net()], task, at="2", **QUICK)
    assert fit.part is fit.networks[0]
    assert len(fit.heads) == len(fit.fronts) == 1


def test_parts_and_record_come_back_from_disk(fit, tmp_path):
    front = from_pretrained(fit.fronts[1].save_pretrained(tmp_path / "front"), verify=True)
    head = from_pretrained(fit.heads[0].save_pretrained(tmp_path / "head"), verify=True)
    assert front.contract.mismatches(head.contract) == []
    record = load_record(fit.record.save(tmp_path / "r.json"))
    assert record == fit.record
    assert record.title == "One head on bars for server and phone"
    assert len(record.view()) == 3


def test_no_validation_split(task):
    bare = Task(task.inputs, task.targets, split=(0.8, 0.0, 0.2))
    fit = shared_head([mlp(8)], bare, at="hidden1", **QUICK)
    assert fit.record.accuracy == {}
    assert fit.fronts[0].origin.measured == {}
    assert "trained" in repr(fit.record)


def test_one_validation_example_has_no_statistics_of_a_batch(task):
    rows = torch.arange(len(task.targets))
    split = {"train": rows[:-1], "validation": rows[-1:], "test": rows[:0]}
    lone = Task(task.inputs, task.targets, split=split)
    fit = shared_head([mlp(8, norm="batch")], lone, at="hidden1", **QUICK)
    assert fit.record.accuracy == {}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"by": ("rp",)}, SettingsError, "must have 'dcc'"),
        ({"by": ("dcc", "iiw")}, SettingsError, "unknown way"),
        ({"channels": 0}, SettingsError, "channels must be"),
        ({"at": ("hidden1",)}, SettingsError, "1 points for 2 networks"),
        ({"names": ("a", "a")}, SettingsError, "a name of its own"),
        ({"names": ("a",)}, SettingsError, "a name of its own"),
        ({"head": fresh_head(mlp(7), "hidden1", 3)}, ContractError, "say channels=7"),
        ({"head": fresh_head(mlp(6), "hidden1", 4)}, ContractError, "build it with classes=3"),
        ({"head": fresh_head(mlp(6), "hidden1", ("a", "b", "c"))}, ContractError, "apart"),
        ({"epochs": 0}, SettingsError, "epochs"),
    ],
)
def test_settings_that_cannot_be(task, change, error, says):
    with pytest.raises(error, match=says):
        shared_head([mlp(16), mlp(8)], task, **{"at": "hidden1", **QUICK, **change})


def test_tasks_and_models_that_cannot_be(task, nets, images):
    numbers = Task(task.inputs, torch.rand(90), kind="regression")
    with pytest.raises(TaskError, match="kind 'regression'"):
        shared_head([mlp(8)], numbers, at="hidden1", **QUICK)
    with pytest.raises(SettingsError, match="no models"):
        shared_head([], task, at="hidden1", **QUICK)
    with pytest.raises(SettingsError, match="must be a Task"):
        shared_head([mlp(8)], task.inputs, at="hidden1", **QUICK)
    with pytest.raises(ContractError, match="8×8"):  # images of another size
        shared_head([mlp(8)], images, at="hidden1", **QUICK)
    vectors = Task(task.inputs.flatten(1), task.targets)
    flat = build("mlp", shape=(16,), hidden=(8,), classes=3)
    with pytest.raises(TaskError, match="rotat"):  # vectors cannot be turned
        shared_head([flat], vectors, at="hidden1", by=("dcc", "rp"), **QUICK)


def test_a_head_that_does_not_pool_is_refused_before_training(nets, images):
    stuck = build("lenet5", size=8, classes=3)
    with pytest.raises(ContractError, match=r"'resnet8'.*a head that pools"):
        shared_head([stuck, nets[0]], images, at=("conv2", "layer2"), **QUICK)


def test_a_head_of_two_tensors_is_refused(task):
    head = fresh_head(mlp(6), "hidden1", 3)
    double = head.changed(contract=replace(head.contract, takes=head.contract.takes * 2))
    with pytest.raises(ContractError, match="takes 2 tensors"):
        shared_head([mlp(8)], task, at="hidden1", head=double, **QUICK)
