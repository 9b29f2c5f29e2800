import copy

import pytest
import torch
from references.frozen_heads import rotation_loss, stepped

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare, preprocess_for
from dovetail.objectives.pretexts import Jigsaw
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.joining import join
from dovetail.parts.part import build
from dovetail.reuse.domain import DomainAdaptation, adapt_domain, judge_adaptation
from dovetail.tasks.derive import rotated
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train.compatible import compatible


class Blind(Task):
    """A task whose targets cannot be read."""

    @property
    def targets(self):
        raise AssertionError("the targets were read")

    def subset(self, split):
        raise AssertionError("the targets were read")

    @property
    def fingerprint(self):
        raise AssertionError("the targets were read")


def blinded(task):
    blind = object.__new__(Blind)
    vars(blind).update(vars(task))
    return blind


def source_of(task, norm):
    net = build("mlp", shape=(1, 4, 4), hidden=(16, 12), classes=3, norm=norm, seed=1)
    return compatible([net], [task], by=("rp",), at="hidden1", epochs=6)


@pytest.fixture(scope="module")
def source(task):
    return source_of(task, "batch")


@pytest.fixture(scope="module")
def plain(task):
    return source_of(task, "none")


@pytest.fixture(scope="module")
def target(task):
    """The same blobs, fainter and on a bright ground."""
    return task.derived("faint", inputs=0.5 * task.inputs + 0.3)


def parts_of(fit):
    return fit.fronts[0], fit.auxiliaries["rp"], fit.heads[0]


def same(a, b):
    one, other = a.module.state_dict(), b.module.state_dict()
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def untimed(record):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in record.rows]


def test_a_step_is_the_mean_over_images_and_rotations(plain, target):
    front, rp, _ = parts_of(plain)
    images = prepare(target.subset("train")[0], front.contract)
    wanted = stepped(front.module, rotation_loss(front, rp, images), lr=0.5)
    fit = adapt_domain(front, rp, target, epochs=1, batch_size=1000, lr=0.5, momentum=0.0)
    found = dict(fit.parts[0].module.named_parameters())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].detach(), value, atol=1e-6, rtol=1e-5)
        assert not torch.equal(value, dict(front.module.named_parameters())[name])


def test_labels_do_not_matter(source, target):
    front, rp, head = parts_of(source)
    turned = target.derived(target.name, targets=(target.targets + 1) % 3)
    one, two = (adapt_domain(front, rp, t, head=head, epochs=2) for t in (target, turned))
    assert same(one.parts[0], two.parts[0])
    assert same(one.part, two.part)
    assert one.parts[0].origin == two.parts[0].origin
    assert untimed(one.record) == untimed(two.record)


def test_labels_are_never_read(source, target):
    front, rp, head = parts_of(source)
    seen = adapt_domain(front, rp, target, head=head, norms="recalibrated", epochs=2)
    unseen = adapt_domain(front, rp, blinded(target), head=head, norms="recalibrated", epochs=2)
    assert same(seen.part, unseen.part)


def test_the_guard_of_labels_would_tell(target):
    with pytest.raises(AssertionError, match="were read"):
        evaluate(build("mlp", shape=(1, 4, 4), classes=3), blinded(target))


def test_images_alone_are_enough(source, target):
    front, rp, head = parts_of(source)
    fit = adapt_domain(front, rp, target.inputs, head=head, epochs=1)
    assert fit.part.contract.classes == target.classes
    assert fit.record.task == "images"


def test_what_is_given_stays_as_it_is(source, target):
    given = [part.changed(module=copy.deepcopy(part.module)) for part in parts_of(source)]
    given[0].module.train()
    before = [copy.deepcopy(part) for part in given]
    random = torch.get_rng_state()
    fit = adapt_domain(given[0], given[1], target, head=given[2], lr=0.1, epochs=2)
    for part, old in zip(given, before, strict=True):
        assert same(part, old)
        assert part.contract == old.contract
        assert all(p.requires_grad and p.grad is None for p in part.module.parameters())
    assert given[0].module.training
    assert not fit.parts[0].module.training
    assert torch.equal(torch.get_rng_state(), random)
    assert same(fit.parts[1], given[2])
    assert not same(fit.parts[0], given[0])


def test_the_front_keeps_its_space(source, target):
    front, rp, head = parts_of(source)
    fit = adapt_domain(front, rp, target, epochs=1)
    adapted = fit.parts[0]
    assert fit.part is adapted
    assert adapted.contract == front.contract
    assert adapted.contract.gives[0].space is not None
    assert adapted.origin.parents == (front.digest, rp.digest)
    join(adapted, head)
    join(adapted, rp)


def test_it_is_the_batch_that_normalises(source, target):
    front, rp, _ = parts_of(source)
    moved = [part.changed(module=copy.deepcopy(part.module)) for part in (front, rp)]
    for part in moved:
        for name, buffer in part.module.named_buffers():
            if "running" in name:
                buffer += 1.0
    one, two = adapt_domain(front, rp, target, epochs=1), adapt_domain(*moved, target, epochs=1)
    assert same(one.parts[0], two.parts[0])
    assert one.record.before == two.record.before


def test_stored_statistics_become_the_targets(source, target):
    front, rp, _ = parts_of(source)
    adapted = adapt_domain(front, rp, target, epochs=1, lr=0.0).parts[0]
    images = prepare(target.subset("train")[0], front.contract)
    linear = front.module.hidden1.linear(images.flatten(1))
    stored = adapted.module.hidden1.norm
    torch.testing.assert_close(stored.running_mean, linear.mean(0).detach())
    torch.testing.assert_close(stored.running_var, linear.var(0).detach())


@pytest.mark.parametrize("norms", ["stored", "batch", "recalibrated"])
def test_the_joined_network_uses_the_norms_asked_for(source, target, norms):
    front, rp, head = parts_of(source)
    fit = adapt_domain(front, rp, target, head=head, norms=norms, epochs=1)
    found = evaluate(fit.part, target)
    assert found.settings["norms"] == norms
    assert fit.part.origin.task == "faint"


def test_frozen_layers_of_a_front_stay_frozen(source, target):
    front, rp, _ = parts_of(source)
    module = copy.deepcopy(front.module)
    module.hidden1.linear.weight.requires_grad_(False)
    adapted = adapt_domain(front.changed(module=module), rp, target, lr=0.1, epochs=1).parts[0]
    assert torch.equal(adapted.module.hidden1.linear.weight, module.hidden1.linear.weight)
    assert not torch.equal(adapted.module.hidden1.norm.bias, module.hidden1.norm.bias)


def test_another_standardisation(source, target):
    front, rp, _ = parts_of(source)
    how = preprocess_for(target)
    adapted = adapt_domain(front, rp, target, preprocess=how, epochs=1).parts[0]
    assert adapted.contract.preprocess == how != front.contract.preprocess


def test_a_thousand_steps_unless_said(source, target):
    front, rp, _ = parts_of(source)
    record = adapt_domain(front, rp, target, batch_size=8, patience=1, lr=0.0).record
    steps = record.settings["epochs"] * -(-target.size("train") // 8)
    assert 1000 <= steps < 1000 + target.size("train")
    settings = record.settings
    assert (settings["schedule"], settings["weight_decay"]) == ("constant", 0.0)


def test_the_seed_decides_and_a_killed_run_goes_on(source, target, tmp_path):
    front, rp, _ = parts_of(source)
    chosen = {"pretext": Jigsaw(permutations=4), "epochs": 4, "batch_size": 16}
    # a head that nobody has named answers whatever it is asked
    rp = rp.changed(contract=Contract(rp.contract.takes, rp.contract.gives), origin=Origin())
    one = adapt_domain(front, rp, target, **chosen)
    other = adapt_domain(front, rp, target, seed=1, **chosen)
    assert not same(one.parts[0], other.parts[0])

    def stop(moment):
        if moment.epoch == 2:
            raise KeyboardInterrupt

    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        adapt_domain(front, rp, target, callbacks=(stop,), **kept, **chosen)
    again = adapt_domain(front, rp, target, **kept, **chosen)
    assert same(one.parts[0], again.parts[0])
    assert again.record.before == one.record.before


def test_the_record(source, target, tmp_path):
    front, rp, head = parts_of(source)
    record = adapt_domain(front, rp, target, head=head, epochs=2).record
    assert isinstance(record, DomainAdaptation)
    assert load_record(record.save(tmp_path / "r.json")) == record
    assert record.chance == 0.25
    assert 0 <= record.before["validation solved"] <= 1
    assert "answered rightly before" in record.view()[0].text


def test_a_record_says_what_not_to_hope_for():
    def said(before, after):
        row = {"epoch": 1, "loss": 1.0, "seconds": 0.1, "validation solved": after}
        return (
            DomainAdaptation(
                part="net",
                task="far",
                rows=(row,),
                pretext="rotation",
                chance=0.25,
                before={"validation solved": before},
                space="s",
            )
            .view()[0]
            .text
        )

    assert "no better than guessing" in said(0.2, 0.9)
    assert "gained nothing" in said(0.8, 0.7)
    assert "only labels can tell" in said(0.5, 0.9)


def test_parts_of_another_space_are_refused(source, plain, target):
    front, rp, head = parts_of(source)
    for wrong in ({"rp_head": plain.auxiliaries["rp"]}, {"head": plain.heads[0]}):
        given = {"rp_head": rp, "head": head} | wrong
        with pytest.raises(ContractError, match=r"space .* -> "):
            adapt_domain(front, given["rp_head"], target, head=given["head"])


def test_one_side_without_a_space_is_refused_and_two_are_trusted(target):
    net = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=4)
    front, head = cut(net, at="hidden1")
    nameless = Port((8,), activation="relu")
    of_none = front.changed(contract=Contract(front.contract.takes, (nameless,)))
    head_of_none = head.changed(contract=Contract((nameless,), head.contract.gives))
    with pytest.raises(ContractError, match="unknown"):
        adapt_domain(front, head_of_none, target, epochs=1)
    fit = adapt_domain(of_none, head_of_none, target, head=head_of_none, epochs=1)
    assert fit.parts[0].contract.gives[0].space is None
    assert any("on trust" in getattr(block, "text", "") for block in fit.record.view())


def test_tensors_that_do_not_flow_are_refused(source, target):
    front, _, _ = parts_of(source)
    other = cut(build("mlp", shape=(1, 4, 4), hidden=(9,), classes=4), at="hidden1")[1]
    with pytest.raises(ContractError, match="shape 16 -> 9"):
        adapt_domain(front, other, target)


def test_a_head_for_other_questions_is_refused(source, target):
    front, rp, head = parts_of(source)
    with pytest.raises(ContractError, match="asks for 0123"):
        adapt_domain(front, rp, target, pretext=Jigsaw(permutations=4))
    with pytest.raises(ContractError, match="rotation asks for 0, 90"):
        adapt_domain(front, head, target)
    nameless = head.changed(contract=Contract(head.contract.takes, head.contract.gives))
    with pytest.raises(ContractError, match="rotation needs 4"):
        adapt_domain(front, nameless, target)


@pytest.mark.parametrize(
    ("images", "error"),
    [
        (torch.full((20, 1, 4, 4), float("nan")), TaskError),
        (torch.rand(0, 1, 4, 4), TaskError),
        (torch.rand(20, 16), ContractError),
        (torch.rand(20, 1, 4, 5), None),
        ([[0.0]], SettingsError),
    ],
    ids=["nan", "none", "vectors", "not square", "a list"],
)
def test_hostile_images(source, images, error):
    front, rp, _ = parts_of(source)
    if error is None:  # resized by the front's preprocessing
        assert adapt_domain(front, rp, images, epochs=1).record.rows
        return
    with pytest.raises(error):
        adapt_domain(front, rp, images, epochs=1)


def test_one_image_is_too_few(source):
    front, rp, _ = parts_of(source)
    split = {"train": [0], "validation": [1], "test": []}
    lone = Task(torch.rand(2, 1, 4, 4), torch.zeros(2), kind="regression", split=split)
    with pytest.raises(TaskError, match="no two training images"):
        adapt_domain(front, rp, lone)


def test_unknown_settings_are_refused_at_once(source, target):
    front, rp, _ = parts_of(source)
    with pytest.raises(SettingsError, match="norms must be one of"):
        adapt_domain(front, rp, target, norms="instance")
    with pytest.raises(SettingsError, match="unknown pretext"):
        adapt_domain(front, rp, target, pretext="rotations")
    with pytest.raises(SettingsError, match="batch_size"):
        adapt_domain(front, rp, target, batch_size=0)


# Judging ------------------------------------------------------------------------------------------


def test_the_judge_agrees_with_evaluating(source, target):
    front, rp, head = parts_of(source)
    adapted = adapt_domain(front, rp, target, lr=0.05, epochs=3).parts[0]
    found = judge_adaptation(front, adapted, head, target)
    stored = evaluate(join(front, head), target).accuracy
    batch = evaluate(join(front, head, norms="batch"), target).accuracy
    after = evaluate(join(adapted, head, norms="batch"), target).accuracy
    assert list(found.accuracy.values()) == pytest.approx([stored, batch, after])
    assert (found.gain.before, found.gain.after) == pytest.approx((batch, after))
    assert found.gain.n == target.size("test")
    assert found.chance == pytest.approx(1 / 3)


def test_with_stored_norms_there_is_one_source(source, target):
    front, _, head = parts_of(source)
    found = judge_adaptation(front, front, head, target, norms="stored")
    assert list(found.accuracy) == ["source, stored norms", "adapted, stored norms"]
    assert found.gain.difference == 0


def test_the_mean_of_the_classes_weighs_them_alike(source, task):
    front, _, head = parts_of(source)
    rows = task.indices("test")
    few = torch.cat([rows[task.targets[rows] != 2], rows[task.targets[rows] == 2][:1]])
    uneven = task.derived(
        "uneven", indices={**dict.fromkeys(("train", "validation"), rows[:0]), "test": few}
    )
    reading = judge_adaptation(front, front, head, uneven, norms="stored").readings[0]
    table = evaluate(join(front, head), uneven).confusion
    assert reading.class_mean == pytest.approx(
        sum(row[i] / sum(row) for i, row in enumerate(table)) / 3
    )


def test_the_judgement_as_a_file(source, target, tmp_path):
    front, _, head = parts_of(source)
    found = judge_adaptation(front, front, head, target, norms="recalibrated")
    assert load_record(found.save(tmp_path / "j.json")) == found
    assert "may be chance" in found.summary


def test_a_judge_needs_classes_that_the_head_knows(source, target):
    front, _, head = parts_of(source)
    renamed = target.derived("renamed", classes=("a", "b", "c"))
    with pytest.raises(TaskError, match="does not know the class 'a'"):
        judge_adaptation(front, front, head, renamed)
    numbers = target.derived("numbers", kind="regression", classes=())
    with pytest.raises(TaskError, match="only classes"):
        judge_adaptation(front, front, head, numbers)
    with pytest.raises(TaskError):
        judge_adaptation(
            front,
            front,
            head,
            target.derived(
                "none", indices=dict.fromkeys(("train", "validation", "test"), torch.arange(0))
            ),
        )


def test_turned_digits_gain_by_it():
    digits = load_task("digits")
    net = build("mlp", hidden=(64, 64), norm="batch")
    fit = compatible([net], [digits], by=("rp",), at="hidden1", epochs=15)
    front, rp, head = parts_of(fit)
    turned = rotated(digits, 20)
    adapted = adapt_domain(front, rp, turned, lr=0.01, epochs=20)
    found = judge_adaptation(front, adapted.parts[0], head, turned)
    assert found.gain.low > 0
    assert adapted.record.final["validation solved"] > adapted.record.before["validation solved"]
