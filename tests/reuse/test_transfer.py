"""Extractors tried with a head that is ready."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.recombination_training import fine_tuned
from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare
from dovetail.parts.cutting import cut
from dovetail.parts.heads import head_like
from dovetail.parts.joining import join
from dovetail.parts.part import build
from dovetail.reuse.transfer import READY, TransferTrial, Tried, transfer
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.supervision import Batches

QUICK = {"batch_size": 16, "device": "cpu"}


@pytest.fixture(scope="module")
def halves(task):
    """A trained network in two, and a front that has nothing to do with it."""
    net = build("mlp", shape=(1, 4, 4), hidden=(16, 8), classes=3)
    front, head = cut(end_to_end(net, task, epochs=8, batch_size=16).part, at="hidden1")
    stranger = build("mlp", shape=(1, 4, 4), hidden=(16, 8), classes=3, seed=1)
    return front, head, cut(stranger, at="hidden1")[0]


@pytest.fixture(scope="module")
def fit(task, halves):
    front, head, stranger = halves
    return transfer({"stranger": stranger, "own": front}, head, task, steps=(2,), **QUICK)


def test_a_head_that_fits_is_good_at_once_and_a_fresh_one_is_not(fit, task):
    record = fit.record
    assert record.ranked() == record.ranked(0) == ("own", "stranger")
    assert record.chosen == "own"
    own, fresh = record.of("own"), record.of("own", "reinitialised")
    assert own.fits
    assert not fresh.fits
    assert not record.of("stranger").fits
    assert own.direct > 0.8 > fresh.direct
    assert own.steps == fresh.steps == (0, 2, 4)  # 63 images in batches of 16
    assert fresh.first_with(own.direct) is None or fresh.first_with(own.direct) > 0
    assert record.chance == pytest.approx(1 / 3)


@pytest.mark.parametrize("norms", ["stored", "batch", "recalibrated"])
def test_at_once_is_what_joining_gives(task, halves, norms):
    front, head, _ = halves
    found = transfer({"own": front}, head, task, norms=norms, epochs=0, against=(), **QUICK)
    inputs, _ = task.subset("train")
    data = [prepare(inputs, front.contract)] if norms == "recalibrated" else None
    whole = join(front, head, norms=norms, data=data)
    tried = found.record.of("own")
    assert tried.steps == (0,)
    assert tried.direct == tried.final == evaluate(whole, task, split="validation").accuracy
    assert tried.test == (evaluate(whole, task).accuracy,)
    torch.testing.assert_close(found.part(inputs), whole(inputs))
    assert found.part.origin.how == "join"


def test_fine_tuning_is_the_plain_loop(task):
    net = build("mlp", shape=(1, 4, 4), hidden=(16, 8), classes=3, norm="none")
    start = end_to_end(net, task, epochs=1, batch_size=16).part
    front, head = cut(start, at="hidden1")
    plain = {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "lr": 0.02, "epochs": 2}
    fit = transfer({"own": front}, head, task, seed=4, **QUICK, **plain)
    inputs, targets = task.subset("train")
    source = Batches(prepare(inputs, front.contract), targets, 16, seed=4)
    for name, behind in (
        (READY, head),
        ("reinitialised", head_like(head, head.contract.classes, seed=4)),
    ):
        whole = nn.Sequential(copy.deepcopy(front.module), copy.deepcopy(behind.module))
        fine_tuned([whole], whole, source, epochs=2, lr=0.02)
        rows, wanted = task.subset("validation")
        said = whole(prepare(rows, front.contract)).argmax(1)
        assert fit.record.of("own", name).final == pytest.approx(
            float((said == wanted).double().mean())
        )
        if name == READY:
            ours = list(fit.part.module.state_dict().values())
            for mine, theirs in zip(ours, whole.state_dict().values(), strict=True):
                torch.testing.assert_close(mine, theirs)


def test_the_chosen_is_chosen_on_validation_and_reported_on_test(fit, task):
    for name, network in fit.networks.items():
        row = fit.record.of(name)
        assert row.final == evaluate(network, task, split="validation").accuracy
        assert row.test[1] == evaluate(network, task).accuracy
    assert fit.part is fit.networks["own"]


def test_other_test_images_leave_the_order(task, halves):
    front, head, stranger = halves
    wrong = task.targets.clone()
    rows = task.indices("test")
    wrong[rows] = (wrong[rows] + 1) % 3
    split = {name: task.indices(name) for name in ("train", "validation", "test")}
    other = Task(task.inputs, wrong, split=split)
    fronts = {"stranger": stranger, "own": front}
    one, two = (transfer(fronts, head, each, against=(), **QUICK) for each in (task, other))
    assert one.record.ranked() == two.record.ranked()
    assert one.record.of("own").accuracy == two.record.of("own").accuracy
    assert one.record.of("own").test != two.record.of("own").test
    assert one.part.digest == two.part.digest


def test_what_was_given_is_left_alone_and_the_seed_decides(task, halves):
    front, head, _ = halves
    before = front.digest, head.digest
    runs = [transfer({"own": front}, head, task, seed=seed, **QUICK) for seed in (0, 0, 1)]
    assert (front.digest, head.digest) == before
    assert runs[0].part.digest == runs[1].part.digest != runs[2].part.digest
    assert runs[0].part.origin.parents == before


def test_other_heads_and_their_order_of_classes(task, halves):
    front, head, _ = halves
    turned = head_like(head, ("2", "0", "1"))
    for name, tensor in turned.module.state_dict().items():
        given = head.module.state_dict()[name]
        tensor.copy_(given[[2, 0, 1]] if name.startswith("head.") else given)
    fit = transfer({"own": front}, head, task, against=(), others={"turned": turned}, **QUICK)
    ready, other = fit.record.of("own"), fit.record.of("own", "turned")
    assert fit.record.heads == (READY, "turned")
    assert other.accuracy == pytest.approx(ready.accuracy)


def test_steps_beyond_the_end_are_left_out(task, halves):
    front, head, _ = halves
    found = transfer({"own": front}, head, task, steps=(0, 1, 3, 100), epochs=2, **QUICK).record
    assert found.of("own").steps == (0, 1, 3, 8)
    usual = transfer({"own": front}, head, task, epochs=3, against=(), **QUICK).record
    assert usual.of("own").steps == (0, 1, 3, 10, 12)


def test_a_frozen_front_is_tuned_too(task, halves):
    front, head, _ = halves
    still = front.changed(module=copy.deepcopy(front.module).requires_grad_(False))
    fit = transfer({"own": still}, head, task, against=(), **QUICK)
    assert not any(weight.requires_grad for weight in still.module.parameters())
    names = [name for name, _ in still.module.named_parameters()]
    tuned = dict(zip(names, fit.part.module.parameters(), strict=False))
    assert not all(torch.equal(tuned[name], w) for name, w in still.module.named_parameters())


def test_the_record_comes_back_from_disk(fit, tmp_path):
    record = load_record(fit.record.save(tmp_path / "r.json"))
    assert record == fit.record
    text, table, *figures = record.view()
    assert "own is first" in text.text
    assert len(table.rows) == 4
    assert [figure.kind for figure in figures] == ["line", "line"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5))
def test_the_order_is_by_accuracy_and_ties_stay(found):
    tried = tuple(Tried(f"f{i}", READY, (0, 10), pair) for i, pair in enumerate(found))
    record = TransferTrial(task="t", chance=0.5, tried=tried)
    for step, place in ((None, 1), (0, 0), (9, 0), (10, 1)):
        ranked = record.ranked(step)
        places = [int(name[1:]) for name in ranked]
        values = [found[i][place] for i in places]
        assert sorted(places) == list(range(len(found)))
        for (i, a), (j, b) in zip(
            zip(places, values, strict=True),
            list(zip(places, values, strict=True))[1:],
            strict=False,
        ):
            assert a > b or (a == b and i < j)
    assert record.chosen == record.ranked()[0]


def test_a_record_is_asked_for_what_is_there(fit):
    with pytest.raises(SettingsError, match=r"no head 'redy'.*ready"):
        fit.record.ranked(head="redy")
    with pytest.raises(SettingsError, match="not tried"):
        fit.record.of("own", "redy")
    with pytest.raises(SettingsError, match="at least 0"):
        fit.record.ranked(-1)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"against": ("fresh",)}, SettingsError, "others="),
        ({"epochs": -1}, SettingsError, "at least 0"),
        ({"epochs": 1.5}, SettingsError, "whole number"),
        ({"checkpoint": "c"}, SettingsError, "leave checkpoint="),
        ({"patience": 2}, SettingsError, "patience= out"),
        ({"norms": "mine"}, SettingsError, "norms must be one of"),
        ({"lr": -1.0}, SettingsError, "lr must be"),
    ],
)
def test_settings_that_cannot_be(task, halves, change, error, says):
    front, head, _ = halves
    with pytest.raises(error, match=says):
        transfer({"own": front}, head, task, **{**QUICK, **change})


def test_parts_and_tasks_that_cannot_be(task, halves):
    front, head, _ = halves
    fronts = {"own": front}
    with pytest.raises(SettingsError, match="candidates by name"):
        transfer({}, head, task, **QUICK)
    with pytest.raises(SettingsError, match="candidates by name"):
        transfer([front], head, task, **QUICK)
    with pytest.raises(SettingsError, match="may not be called 'ready'"):
        transfer(fronts, head, task, others={"ready": head}, **QUICK)
    wide = cut(build("mlp", shape=(1, 4, 4), hidden=(20,), classes=3), at="hidden1")[0]
    with pytest.raises(ContractError, match=r"extractor 'wide': shape 20 -> 16"):
        transfer({"wide": wide}, head, task, **QUICK)
    strange = Task(task.inputs, task.targets, classes=("x", "y", "z"))
    with pytest.raises(TaskError, match="does not know x, y, z"):
        transfer(fronts, head, strange, **QUICK)
    with pytest.raises(TaskError, match="kind 'classes'"):
        transfer(fronts, head, Task(task.inputs, torch.rand(90), kind="regression"), **QUICK)
    bare = Task(task.inputs, task.targets, split=(0.8, 0.0, 0.2))
    with pytest.raises(TaskError, match="no validation split"):
        transfer(fronts, head, bare, **QUICK)
    silent = head.changed(contract=replace(head.contract, classes=None))
    four = Task(task.inputs, torch.arange(90) % 4)
    with pytest.raises(ContractError, match="for 4 classes"):
        transfer(fronts, silent, four, against=(), **QUICK)
    vectors = Task(task.inputs.flatten(1), task.targets)
    with pytest.raises(ContractError):
        transfer(fronts, head, vectors, **QUICK)
