"""Training layer by layer: what changes and what does not, against the plain loop and by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.core.errors import CutError, SettingsError, TrainingError
from dovetail.measure.forward import outputs_of
from dovetail.parts.cutting import cut
from dovetail.parts.modules import digest_of
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task
from dovetail.train import features
from dovetail.train.decision import Decision
from dovetail.train.dropouts import GradientDropout, InputDropout
from dovetail.train.features import Keeping
from dovetail.train.layers import layer_points, turns_of, windows
from dovetail.train.stages import Stage
from dovetail.train.supervision import below

CROSS_ENTROPY = nn.functional.cross_entropy


@pytest.fixture(scope="module")
def task():
    return only_classes(dt.load_task("digits"), ("0", "1", "2"))


def net(**more):
    return dt.build("mlp", hidden=(16, 16, 16), classes=3, norm="batch", **more)


def conv_net():
    return dt.build("lenet5", channels=1, size=8, classes=3, norm="batch")


@pytest.mark.parametrize(
    ("name", "args", "ends"),
    [
        ("mlp", {"hidden": (4, 4)}, ("hidden1", "hidden2")),
        ("lenet5", {"size": 8}, ("conv1", "flatten", "fc1", "fc2")),
        ("resnet8", {}, ("stem", "layer1", "layer2", "flatten")),
        (
            "vgg13",
            {"width": 2},
            (
                *(f"stage{s}{end}" for s in range(1, 5) for end in (".act1", "")),
                *("stage5.act1", "flatten", "fc"),
            ),
        ),
    ],
)
def test_a_layer_is_what_has_weights_and_what_follows_it(name, args, ends):
    assert layer_points(dt.build(name, **args)) == ends


def test_blocks_are_not_opened():
    assert not [name for name in layer_points(dt.build("mobilenetv2")) if "inner" in name]


def test_one_segment_of_all_layers_is_plain_training(task):
    """With its own head, the course's own seed and nothing below, it is the same computation."""
    plain = dt.train.end_to_end(net(), task, epochs=2, seed=3)
    whole = dt.train.layerwise(net(), task, segment=3, epochs=2, seed=3)
    assert whole.part.digest == plain.part.digest
    assert [row["loss"] for row in whole.record.rows] == [row["loss"] for row in plain.record.rows]


def test_layers_below_keep_their_bytes(task):
    seen = {}

    def watch(moment):
        module = moment.module
        seen.setdefault(moment.stage, []).append(
            [digest_of(module[i]) for i in range(1, len(module))]
        )

    dt.train.layerwise(net(), task, epochs=2, callbacks=(watch,))
    stages = ["layer1", "layer2", "layer3"]
    assert list(seen) == stages
    start = [digest_of(m) for m in list(net().module)[1:]]
    for i, name in enumerate(stages):
        for digests in seen[name]:
            for j in range(4):
                own = j == i or (i == 2 and j == 3)
                if j > i and not own:
                    assert digests[j] == start[j], "a layer above has not been touched"
                if j < i:
                    assert digests[j] == seen[stages[j]][-1][j], "a layer below is frozen"
        assert seen[name][-1][i] != start[i]


def test_the_start_is_left_as_it_is(task):
    start = net()
    before = start.digest
    dt.train.layerwise(start, task, epochs=1)
    assert start.digest == before


# Dropouts -----------------------------------------------------------------------------------------


def stage(**more):
    whole = conv_net()
    front, _ = cut(whole, at="conv1")
    given = {"decision": Decision(convs=1, channels=4), **more}
    return Stage("layer1", nn.Sequential(front.module), below(whole, None), (6, 4, 4), 3, **given)


def gradients(one, seed=0):
    torch.manual_seed(seed)
    network, x = one.build(), torch.randn(8, 1, 8, 8)
    one.train_once(network, x, torch.arange(8) % 3, CROSS_ENTROPY)
    return {name: p.grad.clone() for name, p in network.named_parameters()}


def test_gradient_dropout_touches_only_what_goes_back():
    torch.manual_seed(0)
    one = stage()
    plain = gradients(one)
    dropped = gradients(Stage(**{**vars(one), "backward_dropout": 0.5}))
    for name in plain:
        same = torch.equal(plain[name], dropped[name])
        assert same == name.startswith("decision"), name


def test_gradient_dropout_keeps_the_mean_and_the_forward_pass():
    x = torch.randn(200, 50, requires_grad=True)
    layer = GradientDropout(0.6)
    assert torch.equal(layer(x), x)
    layer(x).sum().backward()
    assert set(x.grad.unique().tolist()) == {0.0, x.grad.max().item()}
    torch.testing.assert_close(x.grad.max().item(), 1 / 0.4)
    assert abs((x.grad == 0).float().mean().item() - 0.6) < 0.05
    x.grad = None
    layer.eval()(x).sum().backward()
    assert (x.grad == 1).all()


def test_forward_dropout_fades_as_printed(task):
    rates = []

    class Watched(InputDropout):
        def forward(self, x):
            if self.training:
                rates.append(self.rate)
            return super().forward(x)

    build = Stage.build

    def watched(self):
        network = build(self)
        network.dropout = Watched(self.forward_dropout, self.forward_fade)
        return network

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "build", watched)
        dt.train.layerwise(net(), task, at="hidden1", epochs=3, forward_dropout=0.8, segment=1)
    assert list(dict.fromkeys(rates)) == [0.8, pytest.approx(0.76), pytest.approx(0.722)]


# A smaller step -----------------------------------------------------------------------------------


def test_recomputed_activations_give_the_same_gradients_and_statistics():
    torch.manual_seed(0)
    one = stage()
    twice = copy.deepcopy(one)
    plain = gradients(one)
    again = gradients(Stage(**{**vars(twice), "checkpoint": True}))
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient)
    for name, tensor in one.layers.state_dict().items():
        torch.testing.assert_close(twice.layers.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("pieces", [2, 3, 8, 20])
def test_a_batch_in_pieces_has_the_gradient_of_the_batch(pieces):
    """Without batch norm, whose statistics are those of a piece."""
    layers, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh()), torch.randn(8, 5)
    entrance = below(dt.build("mlp", shape=(5,)), None)
    one = Stage("layer1", layers, entrance, (7,), 3, Decision())
    plain, split = one.build(), Stage(**{**vars(one), "micro": pieces}).build()
    targets = torch.arange(8) % 3
    value = one.train_once(plain, x, targets, CROSS_ENTROPY)
    wanted = [p.grad.clone() for p in plain.parameters()]
    plain.zero_grad()
    in_pieces = Stage(**{**vars(one), "micro": pieces})
    torch.testing.assert_close(in_pieces.train_once(split, x, targets, CROSS_ENTROPY), value)
    for parameter, gradient in zip(split.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


# Order --------------------------------------------------------------------------------------------


def test_robin_visits_as_algorithm_4(task):
    visits = []
    dt.train.layerwise(
        net(),
        task,
        order="round-robin",
        rounds=2,
        epochs=4,
        callbacks=(lambda moment: visits.append(moment.stage),),
    )
    assert visits == 2 * [f"layer{i}" for i in (1, 2, 3) for _ in range(2)]


def test_random_robin_visits_every_stage_once_a_round():
    turns = turns_of((6,) * 5, "random-robin", 3, seed=1)
    orders = [tuple(i for i, _ in turns[5 * r : 5 * r + 5]) for r in range(3)]
    assert all(sorted(order) == list(range(5)) for order in orders)
    assert len(set(orders)) > 1
    assert [until for _, until in turns] == [2] * 5 + [4] * 5 + [6] * 5


def test_windows_slide():
    assert windows(6, 3, 2) == ((0, 3), (1, 4), (2, 5), (3, 6))
    assert windows(5, 2, 0)[-1] == (4, 5)


def test_rates_and_decay_go_by_depth(task):
    fit = dt.train.layerwise(net(), task, epochs=1, lr=0.1, schedule="constant")
    rates = [stage.rows[0]["lr"] for stage in fit.record.stages]
    assert rates == pytest.approx([0.1, 0.08, 0.064])


def test_transfer_grows_with_depth(task):
    start = dt.train.end_to_end(net(), task, epochs=2).part
    fit = dt.train.layerwise(start, task, schedule="transfer", epochs=5, lr=1e-4)
    assert [len(stage.rows) for stage in fit.record.stages] == [5, 6, 7]
    rates = [stage.rows[-1]["lr"] for stage in fit.record.stages]
    assert rates == pytest.approx([1e-4, 1.2e-4, 1.44e-4])


# Resuming -----------------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"segment": 2, "overlap": 1},
        {"order": "random-robin", "rounds": 2},
        {"grow": 1},
        {"augment": "flip", "forward_dropout": 0.5, "backward_dropout": 0.3},
    ],
    ids=str,
)
@pytest.mark.parametrize("after", [1, 3, 4])
def test_killed_and_resumed_anywhere_the_bytes_are_the_same(task, tmp_path, how, after):
    call = {"epochs": 2, "checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0, **how}
    seen = []

    def kill(moment):
        seen.append(moment.epoch)
        if len(seen) == after:
            raise Killed

    whole = dt.train.layerwise(conv_net(), task, **{**call, "checkpoint": None})
    with pytest.raises(Killed):
        dt.train.layerwise(conv_net(), task, callbacks=(kill,), **call)
    again = dt.train.layerwise(conv_net(), task, **call)
    assert again.part.digest == whole.part.digest
    assert again.record.taken == whole.record.taken


def test_a_finished_stage_is_not_trained_again(task, tmp_path):
    """However seldom a run is saved, the end of a stage is."""
    call = {"epochs": 2, "checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 1e6}

    def kill(moment):
        if moment.stage == "layer3":
            raise Killed

    with pytest.raises(Killed):
        dt.train.layerwise(net(), task, callbacks=(kill,), **call)
    stages = []
    dt.train.layerwise(net(), task, callbacks=(lambda m: stages.append(m.stage),), **call)
    assert set(stages) == {"layer3"}


# Growth -------------------------------------------------------------------------------------------


def test_growth_stops_and_gives_the_shallower_network(task, tmp_path):
    """Layers above the first are narrow enough to lose the classes: growth ends there."""
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid(),
        nn.Linear(1, 1), nn.Sigmoid(), nn.Linear(1, 1), nn.Sigmoid(), nn.Linear(1, 3),
    )  # fmt: skip
    start = dt.adopt(module, example=torch.zeros(2, 1, 8, 8))
    fit = dt.train.layerwise(start, task, epochs=3, grow=1)
    assert fit.record.taken == 1
    assert len(fit.record.stages) == 2
    assert "Growth ended with layer1" in fit.record.notes[0]
    accuracy = dt.evaluate(fit.part, task, split="validation").accuracy
    assert accuracy == pytest.approx(fit.record.final["validation accuracy"])
    assert accuracy > 0.8


def test_a_grown_network_is_saved_and_loaded(task, tmp_path):
    fit = dt.train.layerwise(conv_net(), task, epochs=1, grow=1, lr_by_depth=1e-6)
    again = dt.from_pretrained(fit.part.save_pretrained(tmp_path / "net"), verify=True)
    x = task.inputs[:4]
    assert torch.equal(outputs_of(again, x), outputs_of(fit.part, x))
    assert again.contract.classes == task.classes


# Kept features ------------------------------------------------------------------------------------


def test_on_disk_or_in_memory_the_bytes_are_the_same(task):
    parts = [
        dt.train.layerwise(conv_net(), task, epochs=1, keep=keep).part
        for keep in ("memory", "disk")
    ]
    assert parts[0].digest == parts[1].digest


def test_fed_or_kept_the_network_is_about_the_same(task):
    fed, kept = (
        dt.train.layerwise(conv_net(), task, epochs=1, keep=keep).part
        for keep in ("none", "memory")
    )
    for a, b in zip(fed.module.parameters(), kept.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_a_full_disk_is_one_clear_line(task, monkeypatch):
    monkeypatch.setattr(
        features.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10})
    )
    with pytest.raises(TrainingError, match=r"do not go into .* say keep='none'"):
        dt.train.layerwise(net(), task, keep="disk", epochs=1)


def test_a_disk_that_fills_up_later_loses_no_finished_stage(task, tmp_path, monkeypatch):
    """The features of the third stage do not go in; with room the run goes on with that stage."""
    call = {"epochs": 2, "keep": "disk", "checkpoint": tmp_path / "run.safetensors"}
    whole = dt.train.layerwise(net(), task, **{**call, "checkpoint": None})
    room = iter([10**9] * 4)  # of training and validation features of two stages

    def usage(folder):
        return type("Usage", (), {"free": next(room, 10)})

    with monkeypatch.context() as patch:
        patch.setattr(features.shutil, "disk_usage", usage)
        with pytest.raises(TrainingError, match="layers that were trained are kept"):
            dt.train.layerwise(net(), task, **call)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.layer1.safetensors",
        "run.layer2.safetensors",
    ]
    trained = []
    fit = dt.train.layerwise(net(), task, callbacks=(lambda m: trained.append(m.stage),), **call)
    assert set(trained) == {"layer3"}
    assert fit.part.digest == whole.part.digest


def test_more_features_than_allowed_are_refused():
    part, x = dt.build("mlp", shape=(4,)), torch.zeros(100, 4)
    with pytest.raises(SettingsError, match="say keep_gib=1, or keep='none'"):
        Keeping("memory", 100).kept(part, x, torch.arange(100))


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "kind", "says"),
    [
        ({"segment": 4}, SettingsError, "segment is 1 to 3, as many layers"),
        ({"segment": 2, "overlap": 2}, SettingsError, "less than segment=2"),
        ({"at": "hidden9"}, CutError, "no cut point 'hidden9'"),
        ({"at": ["hidden2", "hidden1"]}, CutError, "order of the network"),
        ({"order": "random-robin", "grow": 1}, SettingsError, "grow goes with order='up' alone"),
        ({"order": "round-robin", "patience": 1}, SettingsError, "patience goes with"),
        ({"order": "round-robin", "rounds": 3}, SettingsError, "rounds is at most 2"),
        ({"rounds": 2}, SettingsError, "rounds goes with order='round-robin'"),
        ({"keep": "disk", "augment": "flip"}, SettingsError, "say keep='none'"),
        ({"keep": "attic"}, SettingsError, "unknown keep 'attic'"),
        ({"forward_dropout": 1.5}, SettingsError, "forward_dropout must be at most"),
    ],
)
def test_mistakes_are_one_clear_line(task, more, kind, says):
    with pytest.raises(kind, match=says) as error:
        dt.train.layerwise(net(), task, **{"epochs": 2, **more})
    assert "\n" not in str(error.value)


def test_a_network_that_cannot_be_cut(task):
    one = dt.adopt(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), example=torch.zeros(2, 1, 8, 8))
    with pytest.raises(CutError, match="cannot be trained layer by layer; use end_to_end"):
        dt.train.layerwise(one, task, epochs=1)


def test_a_forward_that_cannot_be_traced_is_said_to_be_one(task):
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = self.a(x.flatten(1))
            return self.b(x.relu() if x.sum() > 0 else x)

    one = dt.adopt(Choosing(), example=torch.zeros(2, 1, 8, 8))
    with pytest.raises(CutError, match=r"cannot be traced .*; use end_to_end, which takes a mem"):
        dt.train.layerwise(one, task, epochs=1)


def test_stages_tell_how_their_features_separate_the_classes(task):
    fit = dt.train.layerwise(net(), task, epochs=2)
    told = fit.record
    rows = task.indices("validation")
    assert {stage.examples for stage in told.stages} == {len(rows)}
    for stage in told.stages:
        assert 0 <= stage.distance <= 1
        assert 0 <= stage.redundancy <= 1
    front, _ = cut(fit.part, at="hidden3")
    kept = outputs_of(front, task.inputs[rows])
    last, labels = fit.record.stages[-1], task.targets[rows]
    assert last.distance == pytest.approx(dt.lens.least_squares_distance(kept, labels), rel=1e-4)
    assert last.redundancy == pytest.approx(dt.lens.k_redundancy(kept, labels, 10), abs=1e-9)
    full = dt.train.end_to_end(net(), task, epochs=2).record
    beside = fit.record.beside(full)
    assert [other.name for other in beside.others] == ["all layers at once"]
    assert beside.others[0].reached == full.final["validation accuracy"]
    assert any("All layers at once" in str(block) for block in beside.view())


def test_a_layer_without_weights_is_joined_to_the_next_and_said(task):
    fit = dt.train.layerwise(net(), task, at=["flatten", "hidden1", "hidden2"], epochs=1)
    assert fit.record.notes == ("flatten has no weights: joined to the layer behind it.",)
    assert [stage.layers for stage in fit.record.stages] == [("hidden1",), ("hidden2", "head")]


def test_regression_is_in_natural_units():
    x = torch.randn(200, 3)
    task = Task(x, 1000 + 100 * x[:, 0], kind="regression")
    start = dt.build("mlp", shape=(3,), hidden=(16, 16), classes=1)
    fit = dt.train.layerwise(start, task, epochs=30, batch_size=16, lr=0.03)
    assert fit.record.final["validation r2"] > 0.9
    assert dt.evaluate(fit.part, task).measures["r2"] > 0.9


# Losses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["sparse-cross-entropy", "negative-correlation"])
def test_amplified_losses_train_within_a_budget(task, loss):
    fit = dt.train.layerwise(conv_net(), task, epochs=4, lr=0.005, loss=loss, memory_budget=0.8)
    assert fit.record.final["validation accuracy"] > 0.5  # chance is a third
    assert all(stage.peak_bytes for stage in fit.record.stages)


def test_a_loss_that_explodes_names_the_rate_that_was_asked_for(task):
    def explodes(outputs, targets):
        return outputs.sum() * torch.inf

    first = nn.functional.cross_entropy

    calls = []

    def later(outputs, targets):
        calls.append(len(outputs))
        return explodes(outputs, targets) if len(calls) > 40 else first(outputs, targets)

    with pytest.raises(TrainingError, match=r"\(lr=0.5, which is 0.4 in this stage\)"):
        dt.train.layerwise(net(), task, epochs=4, lr=0.5, loss=later)


def test_where_there_are_no_targets_a_loss_is_refused(task):
    with pytest.raises(SettingsError, match="has no targets; leave it out"):
        dt.train.self_supervised(conv_net(), task, loss="squared-error")


def test_heads_of_compatible_networks_and_of_modules_take_a_loss(task):
    modular = dt.train.modular(net(), task, epochs=1, loss="squared-error")
    assert modular.record.settings["loss"] == "squared-error"
    nets = [conv_net(), conv_net()]
    losses = ("squared-error", None)
    fits = [dt.train.compatible(nets, [task, task], epochs=1, loss=loss) for loss in losses]
    assert [fit.record.settings["loss"] for fit in fits] == ["squared-error", "cross_entropy"]
    assert fits[0].networks[0].digest != fits[1].networks[0].digest
