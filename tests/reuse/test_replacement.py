import copy

import pytest
import torch
from references.frozen_heads import (
    hidden_with_batch,
    hidden_with_stored,
    minus_log_probability,
    stepped,
)
from torch import nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare
from dovetail.measure.intervals import paired_difference
from dovetail.objectives.pretexts import Jigsaw
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.reuse.judged_replacement import JudgedReplacement, Switch, judge_replacement
from dovetail.reuse.replacement import Replacement, replace_front
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task
from dovetail.train.compatible import compatible


@pytest.fixture(scope="module")
def running(task):
    """What is in production: a front and a head with batch norms, and the heads of its space."""
    net = build("mlp", shape=(1, 4, 4), hidden=(12, 10), classes=3, norm="batch", seed=1)
    return compatible([net], [task], by=("dcc", "rp"), at="hidden1", epochs=8)


@pytest.fixture(scope="module")
def production(running):
    return running.fronts[0], running.heads[0]


def candidate(width=12, norm="none", seed=5):
    return build("mlp", shape=(1, 4, 4), hidden=(width,), classes=3, norm=norm, seed=seed)


def same(a, b):
    one, other = a.module.state_dict(), b.module.state_dict()
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def through(state, features, norms):
    """The production head by hand: a hidden layer with its norm, and the outputs."""
    hidden = {n.removeprefix("hidden2."): v for n, v in state.items() if n.startswith("hidden2.")}
    layer = hidden_with_stored if norms == "stored" else hidden_with_batch
    return layer(hidden, features) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("norms", ["stored", "batch"])
def test_a_step_goes_through_the_head_with_its_norms(production, task, norms):
    _, head = production
    front, _ = cut(candidate(), at="hidden1")
    fit = replace_front(
        front, head, task, norms=norms, epochs=1, batch_size=1000, lr=0.5, momentum=0.0,
        weight_decay=0.0, schedule="constant",
    )  # fmt: skip
    inputs, targets = task.subset("train")
    images = prepare(inputs, fit.parts[0].contract)
    scores = through(head.module.state_dict(), front(images), norms)
    losses = [minus_log_probability(row, int(y)) for row, y in zip(scores, targets, strict=True)]
    wanted = stepped(front.module, sum(losses) / len(losses), lr=0.5)
    found = dict(fit.parts[0].module.named_parameters())
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].detach(), value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("norms", ["stored", "batch", "recalibrated"])
def test_what_is_given_stays_as_it_is(running, task, norms):
    given = {name: copy.deepcopy(part) for name, part in running.auxiliaries.items()}
    head, old = copy.deepcopy(running.heads[0]), copy.deepcopy(running.fronts[0])
    start = candidate(norm="batch")
    held = [head, old, start, *given.values()]
    before = copy.deepcopy(held)
    fit = replace_front(
        start, head, task, old=old, at="hidden1", auxiliaries=given, norms=norms, epochs=2
    )
    for part, was in zip(held, before, strict=True):
        assert same(part, was)
        assert part.contract == was.contract
        assert all(p.requires_grad and p.grad is None for p in part.module.parameters())
        assert part.module.training == was.module.training
    assert same(fit.parts[1], head)
    assert fit.parts[1].digest == head.digest
    assert not same(fit.parts[0], cut(start, at="hidden1")[0])


def test_the_new_front_is_of_the_heads_space(running, production, task, tmp_path):
    old, head = production
    fit = replace_front(
        candidate(), head, task, at="hidden1", auxiliaries=running.auxiliaries, epochs=1
    )
    new = fit.parts[0]
    assert new.contract.gives == head.contract.takes == old.contract.gives
    for other in (head, *running.auxiliaries.values()):
        join(new, other)
    kept = from_pretrained(new.save_pretrained(tmp_path / "new"), verify=True)
    assert kept.contract.mismatches(head.contract) == []
    assert head.digest in new.origin.parents
    assert new.contract.preprocess is not None
    assert new.contract.classes is None


def test_an_adapter_where_channels_differ(production, task, tmp_path):
    _, head = production
    start = candidate(width=7)
    fit = replace_front(start, head, task, at="hidden1", epochs=20)
    assert fit.parts[0].contract.mismatches(head.contract) == []
    assert "adapter 7->12" in fit.parts[0].described
    assert fit.record.accuracy["stored"] > 0.6
    kept = from_pretrained(fit.parts[0].save_pretrained(tmp_path / "new"), verify=True)
    assert same(kept, fit.parts[0])
    again = replace_front(start, head, task, at="hidden1", epochs=20)
    assert same(fit.parts[0], again.parts[0])


def test_it_learns_the_task_through_the_head(production, task):
    old, head = production
    fit = replace_front(candidate(norm="batch"), head, task, old=old, at="hidden1", epochs=20)
    assert evaluate(fit.part, task).accuracy > 0.85
    assert evaluate(fit.part, task).settings["norms"] == "stored"
    untrained, _ = cut(candidate(norm="batch"), at="hidden1")
    before = judge_replacement(old, untrained, head, task).change
    after = judge_replacement(old, fit.parts[0], head, task).change
    assert after.after > before.after


@pytest.mark.parametrize("form", ["front", "module", "at", "exact"])
def test_networks_and_fronts_in_every_form(production, task, form):
    _, head = production
    whole = candidate()
    front, _ = cut(whole, at="hidden1")
    nameless = Part(nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU()))
    model = {"front": front, "module": whole.module, "at": whole, "exact": nameless}[form]
    given = {"at": "hidden1"} if form == "at" else {}
    fit = replace_front(model, head, task, epochs=1, **given)
    assert fit.parts[0].contract.mismatches(head.contract) == []
    inside = nameless if form == "exact" else front
    assert len(fit.parts[0].module.state_dict()) == len(inside.module.state_dict())


def pooling(takes, flatten=False):
    inside = [nn.Flatten(), nn.Linear(4 * 2 * 2, 3)]
    layers = inside if flatten else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    ports = (Port(takes, space="maps/1"),), (Port((3,)),)
    return Part(nn.Sequential(*layers), Contract(*ports, classes=("0", "1", "2")))


def maps(channels):
    return Part(nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()))


def test_maps_of_another_size(task):
    head = pooling((4, 2, 2))
    model = nn.Sequential(*maps(6).module, nn.Flatten(), nn.Linear(96, 3))
    fit = replace_front(model, head, task, at="1", epochs=1)
    new, loose = fit.parts
    assert new.contract.gives[0].shape == (4, 4, 4)
    assert loose.contract.takes[0].shape == (4, None, None)
    join(new, loose)
    with pytest.raises(ContractError, match="cannot take"):
        replace_front(model, pooling((4, 2, 2), flatten=True), task, at="1", epochs=1)


def test_a_head_that_says_any_size(task):
    head = pooling((4, None, None))
    model = nn.Sequential(*maps(4).module, nn.Flatten(), nn.Linear(64, 3))
    fit = replace_front(model, head, task, at="1", epochs=1)
    assert fit.parts[1].contract == head.contract
    join(fit.parts[0], head)


def test_a_vector_is_no_map(task):
    with pytest.raises(ContractError, match="one is a vector, the other a map; say at="):
        replace_front(candidate(), pooling((4, 2, 2)), task)


def test_classes_by_name(production, task):
    old, head = production
    order = (2, 0, 1)
    names = tuple(task.classes[i] for i in order)
    places = torch.tensor([order.index(i) for i in range(3)])
    shuffled = task.derived("shuffled", targets=places[task.targets], classes=names)
    one = replace_front(candidate(), head, task, old=old, at="hidden1", epochs=3)
    two = replace_front(candidate(), head, shuffled, old=old, at="hidden1", epochs=3)
    assert same(one.parts[0], two.parts[0])
    assert one.record.accuracy == two.record.accuracy


def test_fewer_classes_than_the_head_knows(production, task):
    old, head = production
    few = only_classes(task, ["0", "1"])
    record = replace_front(candidate(), head, few, old=old, at="hidden1", epochs=1).record
    assert record.unseen == ("2",)
    assert any("is not known" in getattr(block, "text", "") for block in record.view())


def test_auxiliaries_hold_the_front_in_its_space(running, production, task):
    _, head = production
    other = running.auxiliaries["dcc"]
    alone, held = (
        replace_front(candidate(), head, task, at="hidden1", auxiliaries=given, epochs=15)
        for given in (None, running.auxiliaries)
    )
    nll = [
        evaluate(join(fit.parts[0], other, norms="batch"), task).measures["nll"]
        for fit in (alone, held)
    ]
    assert nll[1] < nll[0]
    assert "rp validation accuracy" in held.record.final


def test_weights_of_auxiliaries(running, production, task):
    _, head = production
    given = {"dcc": running.auxiliaries["dcc"]}
    plain = replace_front(candidate(), head, task, at="hidden1", epochs=2)
    none = replace_front(
        candidate(), head, task, at="hidden1", auxiliaries=given, weights={"dcc": 0.0}, epochs=2
    )
    some = replace_front(candidate(), head, task, at="hidden1", auxiliaries=given, epochs=2)
    assert same(plain.parts[0], none.parts[0])
    assert not same(plain.parts[0], some.parts[0])


def test_a_killed_run_goes_on(production, task, tmp_path):
    _, head = production
    chosen = {"at": "hidden1", "epochs": 4, "batch_size": 16}
    whole = replace_front(candidate(), head, task, **chosen)

    def stop(moment):
        if moment.epoch == 2:
            raise KeyboardInterrupt

    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        replace_front(candidate(), head, task, callbacks=(stop,), **kept, **chosen)
    assert same(whole.parts[0], replace_front(candidate(), head, task, **kept, **chosen).parts[0])


def test_the_record(production, task, tmp_path):
    old, head = production
    fit = replace_front(candidate(norm="batch"), head, task, old=old, at="hidden1", epochs=2)
    record = fit.record
    assert isinstance(record, Replacement)
    assert load_record(record.save(tmp_path / "r.json")) == record
    assert list(record.accuracy) == ["stored", "batch"]
    for how in ("stored", "batch"):
        found = evaluate(join(fit.parts[0], head, norms=how), task, split="validation").accuracy
        assert record.accuracy[how] == pytest.approx(found)
    assert [switch.norms for switch in record.switches] == ["stored", "batch"]
    assert record.switches[0].change.after == pytest.approx(record.accuracy["stored"])
    assert record.final["validation accuracy"] == pytest.approx(record.accuracy["stored"])
    assert fit.parts[0].origin.measured["validation accuracy"] == record.accuracy["stored"]


def test_without_validation_images_there_is_nothing_to_compare(production, task):
    old, head = production
    split = {"train": torch.arange(60), "validation": torch.arange(0), "test": torch.arange(60, 90)}
    record = replace_front(
        candidate(), head, task.derived("all", indices=split), old=old, at="hidden1", epochs=1
    ).record
    assert record.accuracy == {}
    assert record.switches == ()
    assert record.view()


# Judging ------------------------------------------------------------------------------------------


def test_the_judge_agrees_with_evaluating(production, task):
    old, head = production
    new, _ = cut(candidate(norm="batch"), at="hidden1")
    new = new.changed(
        contract=Contract(new.contract.takes, new.contract.gives, old.contract.preprocess)
    )
    found = judge_replacement(old, new, head, task)
    for switch in found.switches:
        before, after = (
            evaluate(join(front, head, norms=switch.norms, force=True), task)
            for front in (old, new)
        )
        assert switch.change.before == pytest.approx(before.accuracy)
        assert switch.change.after == pytest.approx(after.accuracy)
        for i, name in enumerate(task.classes):
            row = after.confusion[i]
            assert switch.classes[name].after == pytest.approx(row[i] / sum(row))
            assert switch.classes[name].n == sum(row)
    drops = [change.difference for change in found.classes.values()]
    assert drops == sorted(drops)
    assert found.change is found.switches[0].change


def test_the_norms_asked_for_come_first(production, task):
    old, head = production
    kinds = {
        norms: [s.norms for s in judge_replacement(old, old, head, task, norms=norms).switches]
        for norms in ("stored", "batch", "recalibrated")
    }
    assert kinds == {
        "stored": ["stored", "batch"],
        "batch": ["batch", "stored"],
        "recalibrated": ["recalibrated", "stored", "batch"],
    }
    plain, back = cut(candidate(), at="hidden1")
    back = back.changed(
        contract=Contract(back.contract.takes, back.contract.gives, classes=task.classes)
    )
    assert len(judge_replacement(plain, plain, back, task).switches) == 1


def test_the_judgement_as_a_file(production, task, tmp_path):
    old, head = production
    found = judge_replacement(old, old, head, task)
    assert load_record(found.save(tmp_path / "j.json")) == found
    assert found.change.difference == 0
    assert "cannot be ruled out" in found.view()[0].text


def test_what_comes_first_still_does_after_reading(production, task, tmp_path):
    """JSON keeps no order of names: neither of classes nor of policies."""
    _, head = production
    right = torch.tensor([True, True, False])
    worse, same_as_before = paired_difference(right, ~right), paired_difference(right, right)
    switch = Switch("stored", worse, {"b": worse, "a": same_as_before})
    found = JudgedReplacement(task="t", split="test", switches=(switch,), chance=0.5)
    read = load_record(found.save(tmp_path / "j.json"))
    assert list(read.classes) == list(found.classes) == ["b", "a"]
    assert read.view() == found.view()
    fit = replace_front(candidate(norm="batch"), head, task, at="hidden1", epochs=2)
    assert fit.record.accuracy["stored"] != fit.record.accuracy["batch"]
    assert repr(load_record(fit.record.save(tmp_path / "r.json"))) == repr(fit.record)


# Mistakes -----------------------------------------------------------------------------------------


def test_heads_and_tasks_that_do_not_know_each_other(production, task):
    _, head = production
    strange = task.derived("strange", classes=("0", "1", "owl"))
    with pytest.raises(TaskError, match="does not know the class 'owl'"):
        replace_front(candidate(), head, strange)
    nameless = head.changed(contract=Contract(head.contract.takes, head.contract.gives))
    with pytest.raises(ContractError, match="which classes it tells apart"):
        replace_front(candidate(), nameless, task)
    numbers = Task(task.inputs, torch.rand(90), kind="regression")
    with pytest.raises(TaskError, match="only classes"):
        replace_front(candidate(), head, numbers)
    with pytest.raises(TaskError, match="one class"):
        replace_front(candidate(), head, task.derived("one", classes=("0",)))
    with pytest.raises(SettingsError, match="must be a Task"):
        replace_front(candidate(), head, task.inputs)


def test_auxiliaries_that_do_not_belong(running, production, task):
    _, head = production
    other = compatible([candidate()], [task], by=("rp",), at="hidden1", epochs=1)
    with pytest.raises(ContractError, match="of the training that made the head"):
        replace_front(candidate(), head, task, at="hidden1", auxiliaries=other.auxiliaries)
    with pytest.raises(SettingsError, match="unknown auxiliary head 'rpp'"):
        replace_front(candidate(), head, task, auxiliaries={"rpp": running.auxiliaries["rp"]})
    with pytest.raises(ContractError, match="answers 0, 90"):
        replace_front(
            candidate(), head, task, at="hidden1", auxiliaries={"rp": running.auxiliaries["rp"]},
            pretext=Jigsaw(permutations=4),
        )  # fmt: skip
    for wrong in ({"dcc": 1.0}, {"rp": -1.0}):
        given = {"rp": running.auxiliaries["rp"]}
        with pytest.raises(SettingsError, match="weight"):
            replace_front(candidate(), head, task, at="hidden1", auxiliaries=given, weights=wrong)


def test_unknown_norms_and_two_tensors(production, task):
    _, head = production
    with pytest.raises(SettingsError, match="norms must be one of"):
        replace_front(candidate(), head, task, norms="instance")
    two = head.changed(
        contract=Contract(head.contract.takes * 2, head.contract.gives, classes=task.classes)
    )
    with pytest.raises(ContractError, match="takes 2 tensors"):
        replace_front(candidate(), two, task)


def test_inputs_that_the_network_does_not_take(production, task):
    _, head = production
    wide = Task(torch.rand(30, 5), [0, 1, 2] * 10)
    with pytest.raises(ContractError):
        replace_front(candidate(), head, wide, at="hidden1")
