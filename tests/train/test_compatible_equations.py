"""The objective of compatible training, against loops over images, rotations and weights."""

import copy

import pytest
import torch
from references import compatible as slow
from references.pretexts import rearranged
from torch import nn

from dovetail.objectives.compatible_losses import project_conflicts
from dovetail.objectives.pretexts import Jigsaw, Rotation
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.heads import fresh_head
from dovetail.parts.part import Part, build
from dovetail.tasks.task import Task
from dovetail.train.compatible import compatible
from dovetail.train.group import Auxiliary, Group, Member

AT = "hidden1"
WAYS = {"dcc": ("dcc",), "rp": ("rp",), "both": ("dcc", "rp")}


def images_of(names, seed, name):
    """Small images with much noise; all of them are for training."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(len(names), (11 + seed,), generator=draw)
    targets[: 2 * len(names)] = torch.arange(2 * len(names)) % len(names)
    inputs = torch.rand(len(targets), 1, 4, 4, generator=draw)
    split = {"train": torch.arange(len(targets)), "validation": [], "test": []}
    return Task(inputs, targets, classes=names, split=split, name=name)


@pytest.fixture(scope="module")
def tasks():
    """Two classes in common, in another order, and one that each knows alone."""
    return images_of(("cat", "dog", "owl"), 1, "a"), images_of(("owl", "bat", "cat"), 3, "b")


@pytest.fixture(scope="module")
def nets():
    made = {"shape": (1, 4, 4), "hidden": (7, 6), "classes": 3, "activation": "tanh"}
    return [build("mlp", seed=seed, **made) for seed in (1, 2)]


@pytest.fixture(scope="module")
def heads(nets):
    return {
        # drawn so that what it wants is opposed to what both networks' own heads want
        "dcc": fresh_head(nets[0], AT, ("cat", "owl"), seed=10),
        "rp": fresh_head(nets[0], AT, ("0", "90", "180", "270"), seed=6),
    }


@pytest.fixture
def slowly(nets, tasks, heads):
    """Double precision copies for the reference: networks, shared heads, batches."""

    def copies(by):
        networks = []
        for net, task in zip(nets, tasks, strict=True):
            front, head = cut(net, AT)
            networks.append(
                {
                    "front": slow.in_double(front.module),
                    "head": slow.in_double(head.module),
                    "classes": task.classes,
                }
            )
        shared = {name: slow.in_double(heads[name].module) for name in by}
        return networks, shared | {"common": ("cat", "owl")}, [batch_of(task) for task in tasks]

    return copies


def batch_of(task):
    return task.inputs, [task.classes[i] for i in task.targets.tolist()]


def trained(nets, tasks, heads, by, **more):
    settings = {
        "at": AT,
        "preprocess": Preprocess(),
        "batch_size": 99,
        "epochs": 1,
        "lr": 0.5,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
    }
    given = {name: heads[name] for name in by}
    return compatible(nets, tasks, by=by, auxiliaries=given, **(settings | more))


def assert_same(module, reference, start=None):
    """As computed slowly; and, against a test of nothing, not what it was at first."""
    expected = reference.state_dict()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=1e-6)
        if start is not None:
            assert (tensor - start.state_dict()[name]).abs().max() > 1e-3, name


def assert_as_computed_slowly(fit, networks, shared, nets=None, heads=None):
    for k, network in enumerate(networks):
        front, head = (None, None) if nets is None else cut(nets[k], AT)
        assert_same(fit.fronts[k].module, network["front"], front and front.module)
        assert_same(fit.heads[k].module, network["head"], head and head.module)
    for name, part in fit.auxiliaries.items():
        assert_same(part.module, shared[name], heads and heads[name].module)


@pytest.mark.parametrize("by", WAYS.values(), ids=WAYS)
def test_a_step_of_each_network(nets, tasks, heads, slowly, by):
    """Both turns of the alternation: the second starts from heads that the first has changed."""
    networks, shared, batches = slowly(by)
    fit = trained(nets, tasks, heads, by)
    slow.train(networks, shared, batches, lr=0.5)
    assert_as_computed_slowly(fit, networks, shared, nets, heads)


def test_the_loss_that_the_record_shows_is_the_mean_of_both_turns(nets, tasks, heads, slowly):
    networks, shared, batches = slowly(("dcc", "rp"))
    row = trained(nets, tasks, heads, ("dcc", "rp")).record.stages[0].rows[0]
    first = sum(slow.losses(networks[0], shared, *batches[0]).values())
    slow.train(networks, shared, batches, lr=0.5, turns=1)
    second = sum(slow.losses(networks[1], shared, *batches[1]).values())
    assert row["loss"] == pytest.approx((first + second).item() / 2, abs=1e-6)


def test_momentum_and_decay_leave_alone_whose_turn_it_is_not(nets, tasks, heads, slowly):
    options = {"lr": 0.2, "momentum": 0.9}
    seen = set()
    for conflicts, how in ((False, slow.plain_sum), (True, slow.without_conflicts)):
        networks, shared, batches = slowly(("dcc",))
        more = {"epochs": 3, "weight_decay": 0.1, "project_conflicts": conflicts, **options}
        fit = trained(nets, tasks, heads, ("dcc",), **more)
        slow.train(networks, shared, batches, decay=0.1, turns=6, gradient=how, **options)
        assert_as_computed_slowly(fit, networks, shared)
        seen.add(fit.fronts[0].digest)
    assert len(seen) == 2  # there were conflicts


@pytest.mark.parametrize("weights", [{"dcc": 0.25, "rp": 3.0}, {"dcc": 0.0}], ids=str)
def test_weights_scale_the_losses(nets, tasks, heads, slowly, weights):
    networks, shared, batches = slowly(("dcc", "rp"))
    fit = trained(nets, tasks, heads, ("dcc", "rp"), weights=weights)
    slow.train(networks, shared, batches, lr=0.5, weights=weights)
    assert_as_computed_slowly(fit, networks, shared)
    if weights.get("dcc") == 0:
        assert fit.auxiliaries["dcc"].digest == heads["dcc"].digest


def test_few_examples_may_teach_common_classes(nets, tasks, heads, slowly):
    """Two of each common class; the others count as examples of no common class."""
    found = set()
    for limit, taught in ((4, 2), (5, 2), (None, None)):
        networks, shared, batches = slowly(("dcc", "rp"))
        fit = trained(nets, tasks, heads, ("dcc", "rp"), common_limit=limit)
        slow.train(networks, shared, batches, lr=0.5, taught=taught)
        assert_as_computed_slowly(fit, networks, shared)
        found.add(fit.auxiliaries["dcc"].digest)
    assert len(found) == 2


def test_three_networks_take_turns(nets, tasks, heads, slowly):
    networks, shared, batches = slowly(("dcc",))
    networks.append({**slowly(("dcc",))[0][0], "classes": tasks[0].classes})
    fit = trained([*nets, nets[0]], [*tasks, tasks[0]], heads, ("dcc",), epochs=2)
    slow.train(networks, shared, [*batches, batches[0]], lr=0.5, turns=6)
    for k, network in enumerate(networks):
        assert_same(fit.fronts[k].module, network["front"])
    assert_same(fit.auxiliaries["dcc"].module, shared["dcc"])


def group_of(nets, tasks, heads, asked, **more):
    """The engine itself, with copies that it may change."""
    members = [
        Member(task.name, *copy.deepcopy(cut(net, AT)), task)
        for net, task in zip(nets, tasks, strict=True)
    ]
    auxiliaries = [
        Auxiliary(name, copy.deepcopy(heads[name]), pretext) for name, pretext in asked.items()
    ]
    return Group(members, auxiliaries, **more)


def gradient_of(group, place):
    task = group.members[place].task
    loss = group.step((place, (task.inputs, task.targets)))
    group.zero_grad(set_to_none=True)
    loss.backward()
    modules = [group.fronts[place], group.heads[place], *group.shared]
    return loss, [weight.grad for module in modules for weight in module.parameters()]


@pytest.mark.parametrize("place", [0, 1])
def test_another_pretext(nets, tasks, slowly, place):
    """Of a jigsaw there is one view an image, drawn from torch's global generator."""
    jigsaw = Jigsaw()
    heads = {"rp": fresh_head(nets[0], AT, jigsaw.answers, seed=6)}
    group = group_of(nets, tasks, heads, {"rp": jigsaw})
    torch.manual_seed(8)
    loss, gradient = gradient_of(group, place)
    torch.manual_seed(8)
    drawn = torch.randint(24, (len(tasks[place].inputs),)).tolist()
    assert len(set(drawn)) > 5
    networks, _, batches = slowly(())
    shared = {"rp": slow.in_double(heads["rp"].module)}
    views = slow.jigsaws(jigsaw.answers, drawn)
    found = slow.losses(networks[place], shared, *batches[place], views=views)
    assert loss.item() == pytest.approx(sum(found.values()).item(), abs=1e-6)
    expected = slow.plain_sum(found, slow.touched(networks[place], shared))
    for mine, theirs in zip(gradient, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("place", [0, 1])
def test_conflicts_of_three_losses(nets, tasks, heads, slowly, place):
    """The order in which conflicts are met is drawn: the gradient is that of one of the orders."""
    networks, shared, batches = slowly(("dcc", "rp"))
    found = slow.losses(networks[place], shared, *batches[place])
    weights = slow.touched(networks[place], shared)
    rows = slow.flat_gradients(found, weights)
    assert any(float(a @ b) < -1e-4 for a in rows for b in rows), "no conflict, no test"
    orders = list(slow.freed_sums(rows))
    group = group_of(nets, tasks, heads, {"dcc": None, "rp": Rotation()}, conflicts=True)
    loss, gradient = gradient_of(group, place)
    assert loss.item() == pytest.approx(sum(found.values()).item(), abs=1e-6)
    mine = torch.cat([each.flatten() for each in gradient]).double()
    assert min(float((mine - each).abs().max()) for each in orders) < 1e-6
    assert float((mine - sum(rows)).abs().max()) > 1e-4  # the plain sum is something else


@pytest.mark.parametrize("conflicts", [False, True])
def test_the_other_network_has_no_gradient(nets, tasks, heads, conflicts):
    """Not even one of zeros, which momentum and weight decay would take for a step."""
    group = group_of(nets, tasks, heads, {"dcc": None, "rp": Rotation()}, conflicts=conflicts)
    for place in (0, 1):
        gradient_of(group, place)
        for module in (group.fronts[1 - place], group.heads[1 - place]):
            assert all(weight.grad is None for weight in module.parameters())


def test_a_front_without_weights_runs_where_its_head_is(tasks):
    task = tasks[0]
    port = (Port((16,)),)
    head = Part(nn.Linear(16, 3, device="meta"), Contract(port, (Port((3,)),)))
    group = Group([Member("kept", Part(nn.Identity(), Contract(port, port)), head, task)], [])
    loss = group.step((0, (task.inputs.flatten(1), task.targets)))
    assert loss.device.type == "meta"


def test_a_batch_without_common_examples_teaches_its_own_head_only(nets, tasks, heads):
    task = tasks[0]
    dogs = (task.targets == task.classes.index("dog")).nonzero()[:, 0]
    group = group_of(nets, tasks, heads, {"dcc": None})
    found = group.losses(0, task.inputs[dogs], task.targets[dogs])
    assert found["dcc"].item() == 0.0
    found["dcc"].backward()
    assert all(not weight.grad.any() for weight in group.shared[0].parameters())


def test_unit_length_is_a_loss_of_its_own(nets, tasks, heads):
    group = group_of(nets, tasks, heads, {"dcc": None}, unit_weight=0.5)
    task = tasks[1]
    total = 0.0
    for image in task.inputs:
        features = group.fronts[1](image[None])[0]
        total += (features.square().sum().item() ** 0.5 - 1) ** 2
    expected = 0.5 * total / len(task.inputs)
    found = group.losses(1, task.inputs, task.targets)
    assert found["unit"].item() == pytest.approx(expected, abs=1e-6)
    assert expected > 0.01


def test_views_leave_no_trace_in_the_stored_statistics(tasks):
    """Batch norms of a front store the statistics of upright images, whatever else they see."""
    made = {"shape": (1, 4, 4), "hidden": (7, 6), "classes": 3, "norm": "batch"}
    net = build("mlp", seed=1, **made)
    head = fresh_head(net, AT, 4, seed=6)
    states = []
    for asked in ({}, {"rp": Rotation()}):
        group = group_of([net], tasks[:1], {"rp": head}, asked).train()
        group.losses(0, tasks[0].inputs, tasks[0].targets)
        states.append(dict(group.fronts[0].named_buffers()))
    assert states[0]
    for name, buffer in states[0].items():
        assert torch.equal(buffer, states[1][name]), name
        assert not torch.equal(buffer, dict(cut(net, AT)[0].module.named_buffers())[name])


def test_the_reference_on_answers_that_are_known():
    """Loops can be wrong too."""
    scores = torch.tensor([0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert slow.cross_entropy(scores, 2).item() == pytest.approx(slow.surely(0.25))
    image = torch.arange(16.0).reshape(1, 4, 4)
    assert rearranged(image, 2, [3, 1, 2, 0])[0, 0].tolist() == [10.0, 11.0, 2.0, 3.0]
    away, along = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    assert next(slow.freed_sums([away, along])).tolist() == [0.5, 1.5]
    assert project_conflicts([[away], [along]])[0].tolist() == [0.5, 1.5]
