"""Training in modules: what each module is told, what stays as it is, what comes out."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from train.bare_loop import train_barely

from dovetail.core.errors import SettingsError, TaskError, TrainingError
from dovetail.core.records import load_record
from dovetail.core.seeds import derived_seed
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare
from dovetail.objectives.pairwise import Pairwise, mean_kernel
from dovetail.parts.cutting import cut, output_point
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task
from dovetail.train import modular
from dovetail.train.fit import ModularTraining


def weights(module):
    return {name: t.clone() for name, t in module.state_dict().items()}


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def deep():
    return build("mlp", shape=(1, 4, 4), hidden=(16, 12), norm="batch", classes=3, seed=1)


def test_what_is_given_stays_as_it_is(task, deep):
    before, random, inputs = weights(deep.module), torch.get_rng_state(), task.inputs.clone()
    contract = copy.deepcopy(deep.contract)
    deep.module.train()
    fit = modular(deep, task, epochs=2, at=["hidden1", "hidden2"], head_epochs=2)
    assert same(before, weights(deep.module))
    assert deep.module.training
    assert not any(child.training for child in fit.part.module.modules())
    assert deep.contract == contract
    assert torch.equal(task.inputs, inputs)
    assert torch.equal(torch.get_rng_state(), random)
    for name, tensor in fit.part.module.named_parameters():
        assert not torch.equal(tensor, before[name]), name


def test_a_body_is_what_a_bare_loop_makes_of_it(task, net):
    """No augmentation, batches that divide the split: plain PyTorch gives the same bits."""
    front, _ = cut(net, at="hidden1")
    objective = Pairwise("al", "relu")
    expected, losses = train_barely(
        front,
        task,
        lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
        epochs=3,
        batch_size=21,
        seed=derived_seed(7, "stage", "module1"),
        loss=lambda features, labels: -objective(features, labels),
    )
    chosen = {"lr": 0.05, "schedule": "constant", "clip": None}
    fit = modular(net, task, epochs=3, batch_size=21, seed=7, **chosen)
    assert task.size("train") % 21 == 0
    assert same(weights(fit.parts[0].module), weights(expected))
    assert [row["proxy"] for row in fit.record.modules[0].rows] == pytest.approx(
        [-loss for loss in losses]
    )


def test_the_head_is_an_ordinary_training_on_frozen_features(task, net):
    chosen = {"lr": 0.05, "schedule": "constant", "clip": None}
    fit = modular(net, task, epochs=2, head_epochs=3, batch_size=21, **chosen)
    body, head = fit.parts
    raw, targets = task.subset("train")
    with torch.no_grad():
        features = body(prepare(raw, body.contract))
    start = copy.deepcopy(cut(net, at="hidden1")[1].module)
    optimiser = torch.optim.SGD(
        start.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    for epoch in range(3):
        draw = torch.Generator().manual_seed(
            derived_seed(derived_seed(0, "stage", "head"), "order", epoch)
        )
        for rows in torch.randperm(len(raw), generator=draw).split(21):
            optimiser.zero_grad()
            F.cross_entropy(start(features[rows]), targets[rows]).backward()
            optimiser.step()
    for name, tensor in head.module.state_dict().items():
        torch.testing.assert_close(tensor, start.state_dict()[name])


def test_the_body_never_learns_which_class_is_which(task, deep):
    """Other names in another order: the body's bytes are the same, and only the head differs."""
    split = {s: task.indices(s) for s in ("train", "validation", "test")}
    turned = Task(task.inputs, (task.targets + 1) % 3, classes=["x", "y", "z"], split=split)
    plain = Task(task.inputs, task.targets, split=split)
    fits = [
        modular(deep, t, epochs=2, at=["hidden1", "hidden2"], head_epochs=2)
        for t in (plain, turned)
    ]
    for one, other in zip(fits[0].parts[:-1], fits[1].parts[:-1], strict=True):
        assert same(weights(one.module), weights(other.module))
    assert not same(*(weights(fit.parts[-1].module) for fit in fits))
    assert fits[1].part.contract.classes == ("x", "y", "z")
    bodies = [fit.record.modules[:-1] for fit in fits]
    assert [without_seconds(m.rows) for m in bodies[0]] == [
        without_seconds(m.rows) for m in bodies[1]
    ]


def without_seconds(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_pairs_alone_train_a_body(task, net, of_pairs):
    fit = modular(net, of_pairs, head_task=task, labels_per_class=1, epochs=15, batch_size=32)
    assert of_pairs.targets.numel() == 0
    assert fit.record.settings["supervision"] == "pairs"
    assert evaluate(fit.part, task).accuracy > 0.9
    assert fit.part.contract.classes == task.classes
    assert fit.record.modules[0].final["validation k different"] < 0.3


def test_pairs_drawn_from_a_task_of_classes(task, net):
    few_pairs, many = (
        modular(net, task, supervision="pairs", pairs=count, epochs=10, head_epochs=50)
        for count in (8, 500)
    )
    assert evaluate(many.part, task).accuracy > 0.9
    assert (
        many.record.final["validation proxy"] > few_pairs.record.final["validation proxy"]
    )  # more was known
    again = modular(net, task, supervision="pairs", pairs=500, epochs=10, head_epochs=50)
    assert same(weights(again.part.module), weights(many.part.module))


def test_frozen_means_frozen(task, deep):
    """Weights, and the batch norms' statistics, from the end of a module's stage on."""
    seen = {}

    def look(moment):
        seen[moment.stage] = weights(moment.module)

    fit = modular(deep, task, epochs=2, at=["hidden1", "hidden2"], head_epochs=2, callbacks=(look,))
    end = weights(fit.part.module)
    start = weights(deep.module)
    order = ["module1", "module2", "head"]
    assert list(seen) == order
    for number, own in enumerate(["hidden1", "hidden2", "head"]):
        for name, tensor in end.items():
            if not name.startswith(own):
                continue
            for stage in order[:number]:
                assert torch.equal(seen[stage][name], start[name]), (name, stage)
            for stage in order[number:]:
                assert torch.equal(seen[stage][name], tensor), (name, stage)
    assert int(end["hidden1.norm.num_batches_tracked"]) == 2 * (task.size("train") // 64 or 1)


def test_a_module_that_came_frozen_is_left_alone(task, deep):
    trained = modular(deep, task, epochs=2, at="hidden2", head_epochs=2).part
    half = copy.deepcopy(trained.module)
    half.hidden1.requires_grad_(False)
    half.hidden2.requires_grad_(False)
    again = modular(
        trained.changed(module=half), task, epochs=1, at="hidden2", head_epochs=2, seed=5
    )
    assert same(weights(again.parts[0].module), weights(cut(trained, at="hidden2")[0].module))
    assert again.record.modules[0].objective == "frozen"
    assert again.record.modules[0].rows == ()
    assert again.record.view()
    half.head.requires_grad_(False)
    with pytest.raises(TrainingError, match="no weight to train"):
        modular(half, task, epochs=1, at="hidden2")


def test_the_modules_fit_each_other_and_make_the_network(task, deep, tmp_path):
    fit = modular(deep, task, epochs=2, at=["hidden1", "hidden2"], head_epochs=2)
    x = prepare(task.inputs[:7], fit.part.contract)
    whole = join(*fit.parts)
    assert torch.equal(whole(x), fit.part(x))
    assert evaluate(whole, task).measures == evaluate(fit.part, task).measures
    assert fit.parts[0].contract.preprocess == fit.part.contract.preprocess
    assert fit.parts[-1].contract.classes == fit.part.contract.classes == task.classes
    assert fit.part.recipe == deep.recipe
    shelf = Shelf(tmp_path)
    refs = [shelf.add(part, f"net.{i}").ref for i, part in enumerate(fit.parts)]
    assert torch.equal(join(*(shelf.get(ref) for ref in refs))(x), fit.part(x))
    other = modular(deep, task, epochs=1, at=["hidden1", "hidden2"], head_epochs=1, seed=1)
    assert fit.parts[0].contract.mismatches(other.parts[1].contract)


def test_what_the_trained_network_knows(task, net, tmp_path):
    fit = modular(net, task, epochs=2, seed=3, labels_per_class=2, objective="nmse", head_epochs=2)
    origin = fit.part.origin
    assert (origin.how, origin.parents, origin.task) == ("train", (net.digest,), task.name)
    assert origin.settings["how"] == "modular"
    assert origin.settings["objective"] == "nmse"
    assert origin.settings["labels_per_class"] == 2
    assert set(origin.measured) >= {"validation accuracy", "validation proxy"}
    found = evaluate(fit.part, task, split="validation").accuracy
    assert origin.measured["validation accuracy"] == pytest.approx(found)
    assert fit.part.contract.gives[0].space is None
    assert load_record(fit.record.save(tmp_path / "t.json")) == fit.record


def test_rows_and_view_of_the_record(task, deep):
    record = modular(deep, task, epochs=2, at=["hidden1", "hidden2"], head_epochs=3).record
    assert isinstance(record, ModularTraining)
    assert [m.name for m in record.modules] == ["module1", "module2", "head"]
    assert [len(m.rows) for m in record.modules] == [2, 2, 3]
    for module in record.modules[:-1]:
        assert set(module.rows[0]) == {
            *("epoch", "proxy", "lr", "seconds", "validation proxy"),
            *("validation k same", "validation k different"),
        }
        assert -1e-6 <= module.final["validation k different"] <= 1
        assert 0 < module.final["proxy"] <= 1
    assert "validation accuracy" in record.modules[-1].final
    assert [row["module"] for row in record.rows] == [1, 1, 2, 2, 3, 3, 3]
    titles = [block.title for block in record.view()[2:]]
    assert [title.split(":")[0] for title in titles] == ["module1"] * 2 + ["module2"] * 2 + [
        "head"
    ] * 2


def test_few_labels_and_enough_steps(task, net):
    fit = modular(net, task, epochs=3, labels_per_class=2)
    assert len(fit.record.modules[-1].rows) == 300  # six examples are one step an epoch
    every = modular(net, task, epochs=3, batch_size=8)
    assert len(every.record.modules[-1].rows) == 38  # eight steps an epoch
    assert same(
        weights(fit.parts[0].module),
        weights(modular(net, task, epochs=3, head_epochs=1).parts[0].module),
    )
    with pytest.raises(TaskError, match="has 21 of class '0' in train, not 100"):
        modular(net, task, epochs=1, labels_per_class=100)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "hinge", F.cross_entropy])
def test_losses_of_the_head(task, net, loss):
    fit = modular(net, task, epochs=5, batch_size=16, loss=loss)
    assert evaluate(fit.part, task).accuracy > 0.9


@pytest.mark.parametrize("kind", ["al", "utal", "cts", "nmse", "al-neo", "cts-neo", "nmse-neo"])
def test_every_objective_improves_on_itself(task, kind):
    net = build("mlp", shape=(1, 4, 4), hidden=(16,), classes=3, activation="tanh", seed=1)
    fit = modular(net, task, epochs=8, batch_size=21, objective=kind, head_epochs=1)
    rows = fit.record.modules[0].rows
    assert rows[-1]["proxy"] > rows[0]["proxy"]
    untrained = cut(net, at="hidden1")[0](prepare(task.inputs, fit.part.contract))
    before = mean_kernel(untrained, task.targets)
    assert rows[-1]["validation k different"] < before.different - 0.2


def test_the_activation_before_the_cut_decides_the_kernels_range(task):
    tanh = build("mlp", shape=(1, 4, 4), hidden=(16,), classes=3, activation="tanh")
    modular(tanh, task, epochs=1, objective="al-neo", head_epochs=1)
    with pytest.raises(SettingsError, match="'al-neo' is undefined after 'relu'"):
        modular(build("mlp", shape=(1, 4, 4), classes=3), task, epochs=1, objective="al-neo")


def test_objectives_of_ones_own(task, net):
    def apart(features, same, different):
        unit = F.normalize(features)
        return -(unit @ unit.T)[different].mean()

    fit = modular(net, task, objective=apart, epochs=2, head_epochs=1)
    assert "apart" in fit.record.settings["objective"]
    own = modular(net, task, objective=Pairwise("al", "relu"), epochs=2, head_epochs=1)
    by_name = modular(net, task, objective="al", epochs=2, head_epochs=1)
    assert same(weights(own.part.module), weights(by_name.part.module))
    with pytest.raises(SettingsError, match="called as objective"):
        modular(net, task, objective=lambda features, labels: features.sum(), epochs=1)
    with pytest.raises(SettingsError, match="unknown pairwise objective 'all'"):
        modular(net, task, objective="all", epochs=1)


def test_keeping_features_or_making_them_again_is_one(task, deep, monkeypatch):
    chosen = {"epochs": 2, "at": ["hidden1", "hidden2"], "batch_size": 16, "head_epochs": 3}
    once = weights(modular(deep, task, **chosen).part.module)
    monkeypatch.setattr("dovetail.train.supervision.KEPT_BYTES", 0)
    again = weights(modular(deep, task, **chosen).part.module)
    for name, tensor in once.items():
        torch.testing.assert_close(again[name], tensor)


def test_augmented_and_unlabelled_training_is_repeatable(net, task):
    chosen = {"epochs": 2, "batch_size": 16, "augment": "shift:1", "head_epochs": 2}
    one, two = (weights(modular(net, task, **chosen).part.module) for _ in range(2))
    assert same(one, two)
    extra = torch.rand(40, 1, 4, 4)
    more, again = (
        weights(modular(net, task, unlabelled=extra, **chosen).part.module) for _ in range(2)
    )
    assert same(more, again)
    assert not same(one, more)
    as_task = Task(extra, [0, 1] * 20, split={"train": range(40), "validation": [], "test": []})
    assert same(more, weights(modular(net, task, unlabelled=as_task, **chosen).part.module))


def test_without_a_validation_split(net, task):
    rows = {"train": range(80), "validation": [], "test": range(80, 90)}
    bare = Task(task.inputs, task.targets, split=rows)
    fit = modular(net, bare, epochs=2, patience=1, head_epochs=2)
    assert len(fit.record.modules[0].rows) == 2
    assert "validation proxy" not in fit.record.modules[0].final


def test_patience_keeps_the_best_epoch_of_each_module(net, task):
    seen = {}

    def look(moment):
        seen[moment.stage, moment.epoch] = weights(moment.module)

    chosen = {"epochs": 12, "lr": 3.0, "schedule": "constant", "patience": 1, "head_epochs": 3}
    fit = modular(net, task, callbacks=(look,), **chosen)
    body = fit.record.modules[0]
    assert len(body.rows) < 12
    best = max(range(len(body.rows)), key=lambda i: body.rows[i]["validation proxy"]) + 1
    assert body.kept == best
    kept = seen["module1", best]
    ours = weights(fit.parts[0].module)
    assert all(torch.equal(kept[name], tensor) for name, tensor in ours.items())


def test_callbacks_count_on_and_stop_one_module(net, task):
    seen = []

    def look(moment):
        seen.append((moment.stage, moment.epoch))
        return moment.stage == "module1" and moment.epoch == 2

    modular(net, task, epochs=5, head_epochs=2, callbacks=(look,))
    assert seen == [("module1", 1), ("module1", 2), ("head", 3), ("head", 4)]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), "2"),
        (build("lenet5", size=8).module, "fc2"),
        (build("lenet5", size=8, unit=True).module, "unit"),
        (build("resnet8", size=8).module, "flatten"),
        (build("vgg13", size=8).module, None),
    ],
)
def test_by_default_the_last_layer_is_the_output_module(module, expected):
    point = output_point(module)
    _, back = cut(module, at=point)
    assert expected in (None, point)
    assert [type(child) for child in back.module.modules() if not list(child.children())] == [
        nn.Linear
    ]


def test_a_network_without_a_recipe(task):
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    fit = modular(Part(layers), task, epochs=5, batch_size=16)
    assert evaluate(join(*fit.parts), task).accuracy > 0.9


def test_gradients_are_clipped_unless_said_otherwise(task, net):
    kept = {"epochs": 1, "head_epochs": 1, "batch_size": 21}
    assert modular(net, task, **kept).record.settings["clip"] == 1.0
    free = modular(net, task, clip=None, **kept)
    assert free.record.settings["clip"] is None
    short = modular(net, task, clip=1e-9, weight_decay=0.0, **kept)
    for name, tensor in short.part.module.state_dict().items():
        torch.testing.assert_close(tensor, net.module.state_dict()[name], atol=1e-6, rtol=0)


def test_a_collapse_is_told(task):
    """All units silent but for their biases: nothing can be told apart."""
    net = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=3)
    with torch.no_grad():
        net.module.hidden1.linear.weight.zero_()
        net.module.hidden1.linear.bias.fill_(1.0)
    fit = modular(net, task, epochs=1, head_epochs=1, lr=1e-9)
    assert fit.record.modules[0].collapsed
    assert any("makes all examples alike" in getattr(b, "text", "") for b in fit.record.view())
    fine = modular(build("mlp", shape=(1, 4, 4), classes=3), task, epochs=5, head_epochs=1)
    assert not fine.record.modules[0].collapsed
    assert not any(getattr(b, "style", "") == "warning" for b in fine.record.view())
