"""Joint and incremental training: what is frozen, what is read, who shares a space."""

import copy
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from train.compatible_setting import (
    all_bytes,
    assert_same_bytes,
    bytes_of,
    lenet,
    pair_of_tasks,
    shapes,
)

from dovetail.core.errors import ContractError
from dovetail.core.records import load_record
from dovetail.measure.evaluate import evaluate
from dovetail.measure.joined import calibrating_batches
from dovetail.measure.predict import predict
from dovetail.measure.recombine import recombine
from dovetail.objectives.pretexts import Rotation
from dovetail.parts.contract import Contract, Port
from dovetail.parts.joining import join
from dovetail.parts.norms import EXCHANGED, with_batch_statistics
from dovetail.parts.part import Part, build
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import inverted, only_classes
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train.compatible import compatible
from dovetail.train.end_to_end import end_to_end
from dovetail.train.group import Auxiliary, Group, Member

OPTIONS = {"at": "conv2", "epochs": 2, "batch_size": 16, "seed": 3}
BOTH = ("dcc", "rp")


@pytest.fixture(scope="module")
def tasks():
    return pair_of_tasks()


@pytest.fixture(scope="module")
def first(tasks):
    """A network trained alone, with auxiliary heads for those to come."""
    return compatible(lenet(1), tasks[0], by=BOTH, common=["ell", "bar"], **OPTIONS)


@pytest.fixture(scope="module")
def second(tasks, first):
    """Another, later, against the frozen heads."""
    given = first.auxiliaries
    return compatible(
        lenet(2), tasks[1], by=BOTH, scheme="incremental", auxiliaries=given, **OPTIONS
    )


def spaces(fit):
    gives = {front.contract.gives[0].space for front in fit.fronts}
    takes = {head.contract.takes[0].space for head in (*fit.heads, *fit.auxiliaries.values())}
    return gives | takes


class Locked(Task):
    """A task that notices when it is read while it is locked."""

    def _look(self):
        if self.lock["locked"]:
            self.lock["read"] = True
            raise AssertionError("the data of another network was read")

    @property
    def inputs(self):
        self._look()
        return vars(self)["inputs"]

    @property
    def targets(self):
        self._look()
        return vars(self)["targets"]

    def subset(self, split):
        self._look()
        return super().subset(split)


def test_frozen_heads_never_change(first, second, tasks):
    """Neither weights nor the statistics of norms; the same parts come back."""
    assert second.auxiliaries["rp"] is first.auxiliaries["rp"]
    heads = copy.deepcopy(first.auxiliaries)
    head = heads["rp"].module.train()
    head.fc1.linear.weight.requires_grad_(False)
    flags = [(p.requires_grad, p.grad) for p in head.parameters()]
    before = bytes_of(*heads.values())
    assert any("running_mean" in name for name in before[0])
    fit = compatible(
        lenet(2), tasks[1], by=BOTH, scheme="incremental", auxiliaries=heads, **OPTIONS
    )
    assert_same_bytes(before, bytes_of(*heads.values()))
    assert [(p.requires_grad, p.grad) for p in head.parameters()] == flags
    assert all(module.training for module in head.modules())
    assert_same_bytes(before, bytes_of(*fit.auxiliaries.values()))
    assert_same_bytes(all_bytes(fit), all_bytes(second))  # nor does the state of the given matter


@pytest.mark.parametrize("scheme", ["joint", "incremental"])
def test_what_is_given_is_never_changed(first, tasks, scheme):
    nets, heads = [lenet(2), lenet(4)], copy.deepcopy(first.auxiliaries)
    parts = (*nets, *heads.values())
    before = bytes_of(*parts)
    flags = [[p.requires_grad for p in part.module.parameters()] for part in parts]
    modes = [[m.training for m in part.module.modules()] for part in parts]
    fit = compatible(nets, tasks, by=BOTH, scheme=scheme, auxiliaries=heads, **OPTIONS)
    assert_same_bytes(before, bytes_of(*parts))
    assert flags == [[p.requires_grad for p in part.module.parameters()] for part in parts]
    assert modes == [[m.training for m in part.module.modules()] for part in parts]
    assert all(p.grad is None for part in parts for p in part.module.parameters())
    assert (fit.auxiliaries["dcc"].digest == heads["dcc"].digest) == (scheme == "incremental")


def test_what_comes_back_is_ready_for_use(first, second):
    for fit in (first, second):
        for part in (*fit.networks, *fit.fronts, *fit.heads):
            assert not any(module.training for module in part.module.modules())
            assert all(p.requires_grad and p.grad is None for p in part.module.parameters())


def test_later_networks_change_nothing_of_the_first(first, tasks):
    """One call for both: the first network and the heads are what they are without a second."""
    nets = [lenet(1), lenet(2)]
    both = compatible(nets, tasks, by=BOTH, scheme="incremental", common=["ell", "bar"], **OPTIONS)
    assert_same_bytes(bytes_of(both.networks[0]), bytes_of(first.networks[0]))
    assert_same_bytes(bytes_of(*both.auxiliaries.values()), bytes_of(*first.auxiliaries.values()))


def test_one_call_or_two_give_the_same_second_network(first, second, tasks):
    """The second call never had the first task: so the second stage does not need it."""
    both = compatible(
        [lenet(1), lenet(2)],
        tasks,
        by=BOTH,
        scheme="incremental",
        common=["ell", "bar"],
        **OPTIONS,
    )
    assert_same_bytes(
        bytes_of(both.fronts[1], both.heads[1]), bytes_of(second.fronts[0], second.heads[0])
    )
    assert not torch.equal(  # a test that could not fail would prove nothing
        both.fronts[1].module.conv1.conv.weight, both.fronts[0].module.conv1.conv.weight
    )


def test_the_first_task_is_not_read_while_the_second_network_is_trained(tasks):
    locked = object.__new__(Locked)
    lock = {"locked": True, "read": False}
    vars(locked).update(vars(tasks[0]), lock=lock)
    with pytest.raises(AssertionError, match="was read"):
        locked.subset("train")
    lock.update(locked=False, read=False)
    calls = []

    def at_the_end_of_an_epoch(_moment):
        calls.append(1)
        lock["locked"] = len(calls) in (2, 3)  # after two epochs of the first, until the last's end

    fit = compatible(
        [lenet(1), lenet(2)],
        [locked, tasks[1]],
        by=BOTH,
        scheme="incremental",
        callbacks=(at_the_end_of_an_epoch,),
        **OPTIONS,
    )
    assert len(calls) == 4
    assert not lock["read"]
    assert [stage.networks for stage in fit.record.stages] == [("light",), ("dark",)]


def test_a_frozen_head_is_checked_as_it_is_used(first, tasks):
    """With the statistics of the batch: stored ones are those of the first network's features."""
    member = Member("new", *first_halves(first), tasks[1])
    frozen = Auxiliary("dcc", copy.deepcopy(first.auxiliaries["dcc"]), frozen=True)
    for buffer in frozen.head.module.buffers():
        if buffer.is_floating_point():
            buffer.fill_(1e6)  # nobody may read it
    sound = Auxiliary("dcc", copy.deepcopy(first.auxiliaries["dcc"]), frozen=True)
    rows = [Group([member], [each]).eval().validation(0)() for each in (frozen, sound)]
    assert rows[0] == rows[1]
    assert "new dcc validation accuracy" in rows[0]


def test_a_pretext_is_checked_with_the_statistics_of_its_views(first, tasks):
    """What a front has stored are those of images that nobody turned."""
    rows = []
    for value in (None, 1e6):
        front, head = first_halves(first)
        shared = Auxiliary("rp", copy.deepcopy(first.auxiliaries["rp"]), Rotation())
        for buffer in (*front.module.buffers(), *shared.head.module.buffers()):
            if value is not None and buffer.is_floating_point():
                buffer.fill_(value)  # nobody may read it
        group = Group([Member("new", front, head, tasks[0])], [shared])
        rows.append(group.eval().validation(0)())
    name = "new rp validation accuracy"
    assert rows[0][name] == rows[1][name] > 0.25


def first_halves(fit):
    return copy.deepcopy(fit.fronts[0]), copy.deepcopy(fit.heads[0])


def test_checks_do_not_depend_on_how_the_data_lies(first, tasks):
    """Class by class or mixed: a head that uses the batch gets batches of all classes."""
    task = shapes("many", count=900)
    rows = task.indices("validation")
    sorted_rows = rows[task.targets[rows].sort(stable=True).indices]
    kept = {split: task.indices(split) for split in ("train", "validation", "test")}
    lying = task.derived("many", indices={**kept, "validation": sorted_rows})
    found = []
    for each in (task, lying):
        member = Member("new", *first_halves(first), each)
        frozen = Auxiliary("dcc", copy.deepcopy(first.auxiliaries["dcc"]), frozen=True)
        found.append(Group([member], [frozen]).eval().validation(0)())
    name = "new dcc validation accuracy"
    assert found[0][name] == pytest.approx(found[1][name], abs=0.02)


def test_a_front_that_uses_the_batch_is_checked_on_all_classes():
    """In order, whole batches would be of one class, whose mean such a front takes away."""
    targets = torch.cat([torch.arange(4) % 2, torch.arange(1200) // 600])
    split = {"train": torch.arange(4), "validation": torch.arange(4, 1204), "test": []}
    task = Task(2.0 * targets[:, None] - 1, targets, split=split)
    port, by_batch = (Port((1,)),), with_batch_statistics(nn.BatchNorm1d(1, affine=False))
    signs = nn.Linear(1, 2, bias=False)
    signs.load_state_dict({"weight": torch.tensor([[-1.0], [1.0]])})
    member = Member("new", Part(by_batch, Contract(port, port)), Part(signs), task)
    assert Group([member], []).eval().validation(0)()["new validation accuracy"] == 1.0


def test_a_group_shares_one_space(tasks):
    for by in (("dcc",), ("rp",), ("rp", "iiw")):
        fit = compatible([lenet(1), lenet(2)], tasks, by=by, **OPTIONS)
        assert spaces(fit) == {fit.record.space}
        for one in fit.fronts:
            for other in (*fit.heads, *fit.auxiliaries.values()):
                assert join(one, other, norms="batch").contract.classes == other.contract.classes


def test_exchanged_parts_are_joined_with_the_norms_they_were_trained_for(tasks):
    fit = compatible([lenet(1), lenet(2)], tasks, by=("dcc",), **OPTIONS)
    found = recombine(fit.fronts, fit.heads, list(tasks), batch_size=512)
    assert (found.norms, found.norms_why) == (("batch",), EXCHANGED)
    for pair, (front, head) in zip(found.pairs, product(fit.fronts, fit.heads), strict=True):
        mixed = join(front, head)
        own = front.origin == head.origin
        assert mixed.origin.settings["norms"] == ("stored" if own else "batch")
        if not own:
            task = only_classes(tasks[fit.fronts.index(front)], pair.classes)
            reached = evaluate(mixed, task).measures  # in one batch, whose order does not matter
            assert reached["masked accuracy"] == pytest.approx(pair.accuracy["batch"])
            with pytest.raises(ContractError, match="one input has no statistics of a batch"):
                predict(mixed, task.inputs[:1])
            ready = join(front, head, data=calibrating_batches(front, task))
            assert len(predict(ready, task.inputs[:1]).labels) == 1


def test_what_is_trained_against_frozen_heads_joins_their_space(first, second):
    assert spaces(first) == spaces(second) == {first.record.space}
    join(first.fronts[0], second.heads[0])
    join(second.fronts[0], first.heads[0])
    assert first.auxiliaries["rp"].digest in second.fronts[0].origin.parents


def test_trained_on_jointly_heads_make_a_new_space(first, tasks):
    fit = compatible(lenet(2), tasks[1], by=BOTH, auxiliaries=first.auxiliaries, **OPTIONS)
    assert spaces(fit).isdisjoint(spaces(first))
    with pytest.raises(ContractError, match="space"):
        join(fit.fronts[0], first.heads[0])


def test_heads_without_a_space_get_one(first, tasks):
    bare = {
        name: part.changed(
            contract=replace(
                part.contract,
                takes=tuple(replace(port, space=None) for port in part.contract.takes),
            )
        )
        for name, part in first.auxiliaries.items()
    }
    fit = compatible(lenet(2), tasks[1], by=BOTH, scheme="incremental", auxiliaries=bare, **OPTIONS)
    assert spaces(fit) == {fit.record.space}
    assert fit.record.space is not None
    assert bare["rp"].contract.takes[0].space is None


@pytest.mark.parametrize("by", [("iiw",), ()], ids=str)
@pytest.mark.parametrize("channels", [None, 5])
def test_without_a_shared_head_there_is_no_shared_space(tasks, by, channels):
    fit = compatible([lenet(1), lenet(2)], tasks, by=by, channels=channels, **OPTIONS)
    assert fit.record.space is None
    assert len(spaces(fit)) == 2
    with pytest.raises(ContractError, match="space"):
        join(fit.fronts[0], fit.heads[1])
    x = torch.rand(4, 1, 8, 8)
    own = join(fit.fronts[1], fit.heads[1]).module.eval()
    assert torch.equal(own(x), fit.networks[1].module(x))


def test_a_loss_without_weight_makes_no_space(first, tasks):
    alone = compatible([lenet(1), lenet(2)], tasks, by=("dcc",), weights={"dcc": 0.0}, **OPTIONS)
    assert alone.record.space is None
    assert len(spaces(alone) - {None}) == 2
    beside = compatible([lenet(1), lenet(2)], tasks, by=BOTH, weights={"dcc": 0.0}, **OPTIONS)
    assert beside.fronts[0].contract.gives[0].space == beside.record.space is not None
    assert beside.auxiliaries["dcc"].contract.takes[0].space is None
    later = compatible(
        lenet(2),
        tasks[1],
        by=BOTH,
        scheme="incremental",
        auxiliaries=first.auxiliaries,
        weights={"dcc": 0.0, "rp": 0.0},
        **OPTIONS,
    )
    assert later.fronts[0].contract.gives[0].space != first.record.space
    assert later.auxiliaries == first.auxiliaries


def test_parts_still_join_when_they_come_from_a_shelf(first, second, tmp_path):
    kept = {
        "front": first.fronts[0],
        "head": second.heads[0],
        "rp": first.auxiliaries["rp"],
        "network": second.networks[0],
    }
    shelf, loaded = Shelf(tmp_path / "shelf"), {}
    for name, part in kept.items():
        shelf.add(part, name=name)
        loaded[name] = shelf.get(name)
        assert loaded[name].digest == part.digest
    x = torch.rand(6, 1, 8, 8)
    mine = join(loaded["front"], loaded["head"], norms="batch").module.eval()(x)
    theirs = join(first.fronts[0], second.heads[0], norms="batch").module.eval()(x)
    assert torch.equal(mine, theirs)
    join(loaded["front"], loaded["rp"])


def test_the_record_survives_json(second, tmp_path):
    file = tmp_path / "record.json"
    second.record.save(file)
    again = load_record(file)
    assert again == second.record
    assert again.view() == second.record.view()


def test_the_record_says_what_recombining_gives(tasks):
    fit = compatible([lenet(1), lenet(2)], tasks, by=("dcc", "iiw"), **OPTIONS)
    found = fit.record.recombined
    common = tasks[0].derived("same")
    for i in (0, 1):
        for j in (0, 1):
            assert 0 <= found[i][j] <= 1
    assert fit.record.recombination == pytest.approx((found[0][1] + found[1][0]) / 2)
    own = evaluate(join(fit.fronts[0], fit.heads[0], norms="batch"), common, split="validation")
    assert found[0][0] == pytest.approx(own.accuracy)


def test_equal_names_are_told_apart(tasks):
    named = [tasks[0], tasks[0], tasks[0].derived("light-2")]
    fit = compatible([lenet(1), lenet(2), lenet(3)], named, by=("dcc",), **{**OPTIONS, "epochs": 1})
    assert fit.record.networks == ("light", "light-2", "light-2-2")
    assert all(f"{name} validation accuracy" in fit.record.final for name in fit.record.networks)


def test_a_network_alone_is_a_group_of_one(first):
    assert first.whole is first.networks[0]
    assert first.record.recombination is None
    assert set(first.auxiliaries) == {"dcc", "rp"}
    assert first.auxiliaries["dcc"].contract.classes == ("ell", "bar")


def test_own_accuracy_is_not_hurt():
    """Loosely: on digits and their negatives, beside the same networks trained alone."""
    digits = load_task("digits")
    tasks = [digits, inverted(digits)]
    nets = [build("mlp", hidden=(32, 32), seed=seed) for seed in (1, 2)]
    options = {"epochs": 4, "seed": 1}
    fit = compatible(nets, tasks, by=("dcc", "iiw"), **options)
    for net, task, network in zip(nets, tasks, fit.networks, strict=True):
        alone = evaluate(end_to_end(net, task, **options).part, task).accuracy
        assert evaluate(network, task).accuracy > alone - 0.02
    apart = compatible(nets, tasks, by=(), **options)
    assert fit.record.recombination > apart.record.recombination + 0.25
    assert apart.record.recombination < 0.35
