"""New classes for a shared head, learnt behind one extractor."""

import copy
from dataclasses import replace

import pytest
import torch
from references.recombination_training import fine_tuned, right_by_class
from torch import nn

import dovetail.measure.joined as recombined
import dovetail.train.supervision as supervision
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.core.seeds import derived_seed
from dovetail.measure.forward import outputs_of, prepare
from dovetail.parts.cutting import cut
from dovetail.parts.heads import extend_head
from dovetail.parts.joining import join
from dovetail.parts.part import build, from_pretrained
from dovetail.reuse.devices import shared_head
from dovetail.reuse.extension import extend_classes
from dovetail.reuse.judged_extension import judge_extension
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task
from dovetail.train.supervision import Batches

QUICK = {"epochs": 3, "batch_size": 16, "device": "cpu", "lr": 0.05}
PLAIN = {**QUICK, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}


@pytest.fixture(scope="module")
def bars():
    """Four kinds of images."""
    draw = torch.Generator().manual_seed(1)
    targets = torch.arange(160) % 4
    inputs = 0.3 * torch.rand(160, 1, 8, 8, generator=draw)
    for i, target in enumerate(targets.tolist()):
        inputs[i, 0, 2 * target : 2 * target + 2] += 0.6
    return Task(inputs, targets, classes=("a", "b", "c", "d"), name="bars")


@pytest.fixture(scope="module")
def devices(bars):
    """Two extractors, a head for two classes in another order than the task's, a pretext's head."""
    nets = [
        build("resnet8", channels=1, size=8, width=4, classes=2),
        build("resnet8", channels=1, size=8, width=6, classes=2, seed=1),
    ]
    pair = only_classes(bars, ["c", "a"])
    return shared_head(
        nets, pair, at="layer2", channels=6, by=("dcc", "rp"), names=("big", "small"), **QUICK
    )


@pytest.fixture(scope="module")
def frozen(devices, bars):
    return extend_classes(devices.fronts[0], devices.heads[0], bars, **{**QUICK, "epochs": 8})


def plain_halves(task, classes, seed=0):
    net = build("mlp", shape=task.input_shape, hidden=(12, 8), classes=2, norm="none", seed=seed)
    front, head = cut(net, at="hidden1")
    return front, head.changed(contract=replace(head.contract, classes=classes))


def test_behind_a_frozen_reference_it_is_the_plain_loop(bars):
    front, head = plain_halves(bars, ("c", "a"))
    fit = extend_classes(front, head, bars, norms="stored", seed=2, **PLAIN)
    assert fit.head.contract.classes == ("c", "a", "b", "d")
    module = copy.deepcopy(extend_head(head, ["b", "d"], seed=2).module)
    ordered = only_classes(bars, ["c", "a", "b", "d"])
    inputs, targets = ordered.subset("train")
    source = Batches(
        prepare(inputs, front.contract), targets, 16, seed=derived_seed(2, "member", 0)
    )
    whole = nn.Sequential(front.module, module)
    fine_tuned([module], whole, source, epochs=3, lr=0.05)
    for name, tensor in fit.head.module.state_dict().items():
        torch.testing.assert_close(tensor, module.state_dict()[name])


@pytest.mark.parametrize("norms", ["stored", "recalibrated"])
def test_features_kept_or_made_anew_are_the_same(devices, bars, norms, monkeypatch):
    (head,), front = devices.heads, devices.fronts[0]
    kept = extend_classes(front, head, bars, norms=norms, **QUICK)
    monkeypatch.setattr(supervision, "KEPT_BYTES", 0)
    made = extend_classes(front, head, bars, norms=norms, **QUICK)
    for name, tensor in kept.head.module.state_dict().items():
        torch.testing.assert_close(
            tensor, made.head.module.state_dict()[name], atol=1e-4, rtol=1e-3
        )


def test_a_frozen_reference_and_the_old_head_stay_to_the_bit(devices, bars):
    (head,), front = devices.heads, devices.fronts[0]
    before = head.digest, front.digest
    flags = [weight.requires_grad for weight in front.module.parameters()]
    fit = extend_classes(front, head, bars, augment="flip", **QUICK)
    assert (head.digest, front.digest) == before
    assert [weight.requires_grad for weight in front.module.parameters()] == flags
    assert fit.front is front
    assert fit.head.digest != head.digest
    assert fit.head.origin.parents == before


def test_the_new_head_follows_every_extractor_without_force(devices, frozen, bars):
    for front in devices.fronts:
        whole = join(front, frozen.head, norms="batch")
        assert whole.contract.classes == ("c", "a", "b", "d")
    found = judge_extension(
        dict(zip(("big", "small"), devices.fronts, strict=True)),
        devices.heads[0],
        frozen.head,
        bars,
    )
    assert found.floor == 0.5
    # One was never run with the new head in training: it knows new classes all the same.
    assert found.after["small"].all > 0.5
    assert found.after["small"].new > 0.25


def test_a_moving_reference_is_held_by_the_frozen_pretext_head(devices, bars):
    (head,), front, rotating = devices.heads, devices.fronts[0], devices.auxiliaries["rp"]
    before = head.digest, front.digest, rotating.digest
    fit = extend_classes(front, head, bars, moving=True, rp_head=rotating, **QUICK)
    assert (head.digest, front.digest, rotating.digest) == before
    assert all(weight.requires_grad for weight in rotating.module.parameters())
    assert fit.front.digest != front.digest
    assert fit.front.contract == front.contract  # its space too
    assert fit.front.origin.parents == (front.digest, rotating.digest)
    join(fit.front, fit.head)
    join(devices.fronts[1], fit.head)
    assert fit.parts == (fit.head, fit.front)
    assert fit.record.moving


def test_the_seed_decides(devices, bars):
    one, same, other = (
        extend_classes(devices.fronts[0], devices.heads[0], bars, seed=seed, **QUICK).head.digest
        for seed in (0, 0, 1)
    )
    assert one == same != other


def test_some_of_the_new_classes(devices, bars):
    fit = extend_classes(devices.fronts[0], devices.heads[0], bars, ["d"], **QUICK)
    assert fit.head.contract.classes == ("c", "a", "d")
    assert fit.record.new == ("d",)
    assert fit.record.accuracy.new is not None


def test_judgement_is_counting(devices, frozen, bars):
    front, new, old = devices.fronts[1], frozen.head, devices.heads[0]
    found = judge_extension([front, front], old, new, bars, norms="stored", split="test")
    inputs, targets = bars.subset("test")
    said = outputs_of(join(front, new), inputs)
    counts = right_by_class(said, targets, new.contract.classes, bars.classes)
    for kind, names in (("all", "abcd"), ("old", "ac"), ("new", "bd")):
        total, right = (sum(counts[name][i] for name in names) for i in (0, 1))
        for shares in found.after.values():
            assert getattr(shares, kind) == pytest.approx(right / total)
    assert len(found.after) == 2
    olds = only_classes(bars, ["a", "c"])
    inputs, targets = olds.subset("test")
    counts = right_by_class(outputs_of(join(front, old), inputs), targets, ("c", "a"), ("a", "c"))
    before = sum(right for _, right in counts.values()) / sum(n for n, _ in counts.values())
    assert list(found.before.values()) == [pytest.approx(before)] * 2


def test_batches_of_one_class_do_not_decide(devices, frozen, bars, monkeypatch):
    order = torch.argsort(bars.targets, stable=True)
    rows = {
        split: torch.nonzero(torch.isin(order, bars.indices(split))).flatten()
        for split in ("train", "validation", "test")
    }
    by_class = Task(bars.inputs[order], bars.targets[order], classes=bars.classes, split=rows)
    monkeypatch.setattr(recombined, "_BATCH", 8)
    whole = join(devices.fronts[0], frozen.head, norms="batch")
    images, labels = by_class.subset("test")
    in_order = (outputs_of(whole, images, batch_size=8).argmax(1) == labels).double().mean()
    found = judge_extension({"big": devices.fronts[0]}, devices.heads[0], frozen.head, by_class)
    assert found.after["big"].all > in_order + 0.1


def test_records_and_parts_come_back_from_disk(devices, frozen, bars, tmp_path):
    assert load_record(frozen.record.save(tmp_path / "fit.json")) == frozen.record
    found = judge_extension(devices.fronts, devices.heads[0], frozen.head, bars)
    assert load_record(found.save(tmp_path / "judged.json")) == found
    assert len(found.view()) == 2
    head = from_pretrained(frozen.head.save_pretrained(tmp_path / "head"), verify=True)
    assert head.contract == frozen.head.contract


def test_no_validation_split(bars):
    bare = Task(bars.inputs, bars.targets, classes=bars.classes, split=(0.8, 0.0, 0.2))
    front, head = plain_halves(bars, ("a", "b"))
    fit = extend_classes(front, head, bare, **QUICK)
    assert fit.record.accuracy is None
    assert fit.head.origin.measured == {}
    assert len(fit.record.view()) == 1


def test_one_validation_example_is_refused_before_training(devices, bars):
    rows = torch.arange(len(bars.targets))
    split = {"train": rows[:-1], "validation": rows[-1:], "test": rows[:0]}
    lone = Task(bars.inputs, bars.targets, classes=bars.classes, split=split)
    seen = []
    with pytest.raises(TaskError, match="no statistics of a batch"):
        extend_classes(devices.fronts[0], *devices.heads, lone, callbacks=(seen.append,), **QUICK)
    assert seen == []


def refused(error, says, head, front, task, *args, **more):
    with pytest.raises(error, match=says) as caught:
        extend_classes(front, head, task, *args, **{**QUICK, **more})
    assert isinstance(caught.value, DovetailError)


def test_what_cannot_be_extended(devices, bars):
    (head,), front, rotating = devices.heads, devices.fronts[0], devices.auxiliaries["rp"]
    stranger = replace(front.contract.gives[0], space="other/1")
    other = front.changed(contract=replace(front.contract, gives=(stranger,)))
    unnamed = head.changed(contract=replace(head.contract, classes=None))
    numbers = Task(bars.inputs, torch.rand(160), kind="regression")
    refused(TaskError, "it would forget", head, front, only_classes(bars, ["b", "d"]))
    refused(TaskError, "knows all classes", head, front, only_classes(bars, ["a", "c"]))
    refused(TaskError, "no class 'z'", head, front, bars, ["z"])
    refused(ContractError, "knows the class 'a' already", head, front, bars, ["a"])
    refused(SettingsError, "lists names", head, front, bars, "d")
    refused(TaskError, "kind 'classes'", head, front, numbers)
    refused(ContractError, "does not say which classes", unnamed, front, bars)
    refused(ContractError, "of the head's space", head, other, bars)
    refused(SettingsError, "norms must be one of", head, front, bars, norms="frozen")
    refused(SettingsError, "say moving=True", head, front, bars, rp_head=rotating)
    refused(SettingsError, "needs rp_head=", head, front, bars, moving=True)
    refused(
        ContractError,
        "does not hold",
        head,
        front,
        bars,
        moving=True,
        rp_head=unnamed.changed(contract=replace(rotating.contract, takes=(stranger,))),
    )
    refused(
        ContractError, "answers c, a, rotation asks", head, front, bars, moving=True, rp_head=head
    )


def test_what_cannot_be_judged(devices, frozen, bars):
    heads = devices.heads[0], frozen.head
    with pytest.raises(SettingsError, match="no extractors"):
        judge_extension([], *heads, bars)
    with pytest.raises(TaskError, match="does not know the class 'b'"):
        judge_extension(devices.fronts, heads[0], heads[0], bars)
    unnamed = heads[1].changed(contract=replace(heads[1].contract, classes=None))
    with pytest.raises(ContractError, match="does not say which classes"):
        judge_extension(devices.fronts, heads[0], unnamed, bars)
    empty = Task(bars.inputs, bars.targets, classes=bars.classes, split=(0.8, 0.2, 0.0))
    with pytest.raises(TaskError, match="no examples in its test split"):
        judge_extension(devices.fronts, *heads, empty)
    rows = {"train": range(9, 160), "validation": range(1, 9), "test": [0]}
    lone = Task(bars.inputs, bars.targets, classes=bars.classes, split=rows)
    with pytest.raises(TaskError, match="say norms='stored'"):
        judge_extension(devices.fronts, *heads, lone)
    assert judge_extension(devices.fronts, *heads, lone, norms="stored").n == 1
