import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from train.bare_loop import train_barely

from dovetail.core.errors import ContractError, SettingsError, TaskError, TrainingError
from dovetail.core.records import load_record
from dovetail.measure.evaluate import evaluate
from dovetail.measure.forward import prepare
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part, build
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task
from dovetail.train import end_to_end as module_under_test
from dovetail.train.fit import Training

end_to_end = module_under_test


def weights(part):
    return {name: t.clone() for name, t in part.module.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a) and list(a) == list(b)


def test_what_is_given_stays_as_it_is(task):
    net = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=3, norm="batch")
    net.module.train()
    inputs, before, random = task.inputs.clone(), weights(net), torch.get_rng_state()
    contract = copy.deepcopy(net.contract)
    fit = end_to_end(net, task, epochs=2)
    assert same(before, weights(net))
    assert not same(before, weights(fit.part))
    assert net.module.training
    assert not fit.part.module.training
    assert all(p.grad is None for p in net.module.parameters())
    assert net.contract == contract
    assert torch.equal(task.inputs, inputs)
    assert torch.equal(torch.get_rng_state(), random)


def test_the_seed_decides_everything(task):
    net = Part(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    torch.manual_seed(11)
    one = end_to_end(net, task, epochs=2, seed=5)
    torch.manual_seed(12)
    two = end_to_end(net, task, epochs=2, seed=5)
    other = end_to_end(net, task, epochs=2, seed=6)
    assert same(weights(one.part), weights(two.part))
    assert not same(weights(one.part), weights(other.part))


@pytest.mark.parametrize("kind", ["float", "uint8"])
def test_augmented_training_is_repeatable(net, task, kind):
    inputs = task.inputs.clamp(0, 1)
    if kind == "uint8":
        inputs = (inputs * 255).to(torch.uint8)
    images = Task(inputs, task.targets)
    chosen = {"epochs": 2, "batch_size": 16, "augment": "flip,shift:1"}
    one, two = end_to_end(net, images, **chosen), end_to_end(net, images, **chosen)
    plain = end_to_end(net, images, epochs=2, batch_size=16)
    assert same(weights(one.part), weights(two.part))
    assert not same(weights(one.part), weights(plain.part))
    assert one.record.settings["augment"] == "flip,shift:1"


@pytest.mark.parametrize("kind", ["float", "uint8"])
def test_preparing_once_or_batch_by_batch_is_one(net, task, kind, monkeypatch):
    inputs = task.inputs.clamp(0, 1)
    if kind == "uint8":
        inputs = (inputs * 255).to(torch.uint8)
    images = Task(inputs, task.targets)
    once = end_to_end(net, images, epochs=2, batch_size=16)
    monkeypatch.setattr("dovetail.train.supervision.KEPT_BYTES", 0)
    by_batch = end_to_end(net, images, epochs=2, batch_size=16)
    assert same(weights(once.part), weights(by_batch.part))


def test_augmentation_happens_before_preprocessing(net, task):
    """Cutting out zeros of raw pixels is not cutting out zeros of standardised ones."""
    seen = []

    class Watch(nn.Module):
        def forward(self, x):
            if self.training:
                seen.append(x)
            return x

    watched = Part(nn.Sequential(Watch(), *copy.deepcopy(net.module)))
    how = Preprocess(mean=(10.0,), std=(1.0,))
    end_to_end(watched, task, epochs=1, augment="cutout:20", preprocess=how)
    assert seen
    assert all(bool((x == -10).all()) for x in seen)


def test_rows_of_the_history(net, task):
    fit = end_to_end(net, task, epochs=3, lr=0.05)
    assert [row["epoch"] for row in fit.record.rows] == [1, 2, 3]
    for row in fit.record.rows:
        assert set(row) == {
            "epoch",
            "loss",
            "lr",
            "seconds",
            "validation loss",
            "validation accuracy",
            "validation nll",
        }
        assert row["validation loss"] == pytest.approx(row["validation nll"], rel=1e-5)
    final = evaluate(fit.part, task, split="validation")
    assert fit.record.final["validation accuracy"] == final.accuracy
    assert fit.part.origin.measured["validation accuracy"] == final.accuracy
    assert fit.record.seconds == pytest.approx(sum(r["seconds"] for r in fit.record.rows))


def test_what_the_trained_part_knows(net, task, tmp_path):
    fit = end_to_end(net, task, epochs=1, seed=3)
    assert fit.part.contract.classes == ("0", "1", "2")
    assert fit.part.contract.preprocess.size == (4, 4)
    assert fit.part.origin.parents == (net.digest,)
    assert fit.part.origin.task_fingerprint == task.fingerprint
    assert fit.part.origin.settings["seed"] == 3
    assert fit.part.recipe == net.recipe
    assert load_record(fit.record.save(tmp_path / "t.json")) == fit.record


def test_training_renews_the_space(task, net):
    front, _ = cut(net, at="hidden1")
    head = Part(nn.Sequential(*front.module, nn.Linear(16, 3)), front.contract)
    assert head.contract.gives[0].space is not None
    fit = end_to_end(head, task, epochs=1)
    assert fit.part.contract.gives[0].space is None


def test_a_second_training_keeps_the_first_ones_preprocessing(net, task):
    first = end_to_end(net, task, epochs=1).part
    shifted = Task(task.inputs + 3, task.targets)
    second = end_to_end(first, shifted, epochs=1).part
    assert second.contract.preprocess == first.contract.preprocess
    own = Preprocess(mean=(0.5,), std=(2.0,))
    assert end_to_end(first, shifted, epochs=1, preprocess=own).part.contract.preprocess == own


def test_a_loss_of_ones_own(net, task):
    def smoothed(outputs, targets):
        return F.cross_entropy(outputs, targets, label_smoothing=0.2)

    fit = end_to_end(net, task, epochs=2, loss=smoothed, schedule="constant", lr=0.05)
    expected, losses = train_barely(
        net,
        task,
        lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
        epochs=2,
        loss=smoothed,
    )
    assert same(weights(fit.part), weights(Part(expected)))
    assert fit.record.settings["loss"] == "smoothed"
    assert [row["loss"] for row in fit.record.rows] == pytest.approx(losses)


def test_regression_learns_a_line():
    x = torch.rand(120, 3)
    task = Task(x, x @ torch.tensor([1.0, -2.0, 0.5]) + 3, kind="regression")
    line = build("mlp", shape=(3,), hidden=(), classes=1)
    fit = end_to_end(line, task, epochs=20, lr=0.05, weight_decay=0.0)
    assert fit.record.rows[-1]["loss"] < 1e-2 < fit.record.rows[0]["loss"]
    assert evaluate(fit.part, task).measures["r2"] > 0.99
    assert fit.part.contract.classes is None
    assert fit.record.view()[-1].series[0].name == "validation r2"


@pytest.mark.parametrize(("mean", "std"), [(250_000.0, 80_000.0), (0.0, 1e-4), (5.0, 0.0)])
def test_regression_copes_with_any_unit_and_gives_natural_ones(mean, std):
    x = torch.randn(200, 3)
    y = mean + std * (x @ torch.tensor([1.0, -2.0, 0.5]))
    task = Task(x, y, kind="regression")
    fit = end_to_end(build("mlp", shape=(3,), hidden=(16,), classes=1), task, epochs=15)
    again = end_to_end(fit.part, task, epochs=1, lr=1e-5, schedule="constant")
    for part in (fit.part, again.part):
        measures = evaluate(part, task).measures
        if std:
            assert measures["r2"] > 0.97
            assert measures["rmse"] < 0.5 * std
        else:
            assert measures["rmse"] < 0.1
    final = fit.record.final
    inputs, targets = task.subset("validation")
    natural = fit.part(prepare(inputs, fit.part.contract))[:, 0]
    rmse = (natural - targets).square().mean().sqrt()
    assert final["validation rmse"] == pytest.approx(rmse.item(), rel=1e-3, abs=1e-6)


def test_regression_to_several_numbers():
    x = torch.rand(80, 3)
    task = Task(x, x @ torch.rand(3, 2), kind="regression")
    fit = end_to_end(build("mlp", shape=(3,), hidden=(), classes=2), task, epochs=20, batch_size=8)
    assert evaluate(fit.part, task).measures["r2"] > 0.95


def test_multilabel_learns():
    x = torch.rand(200, 3)
    names = ("red", "green", "blue")
    task = Task(x, (x > 0.5).int(), kind="multilabel", classes=names)
    fit = end_to_end(
        build("mlp", shape=(3,), hidden=(16,), classes=3), task, epochs=15, batch_size=16
    )
    assert fit.record.rows[-1]["loss"] < 0.5 * fit.record.rows[0]["loss"]
    assert evaluate(fit.part, task).accuracy > 0.9
    assert fit.part.contract.classes == names


def test_callbacks_see_every_epoch(net, task):
    seen = []

    def look(moment):
        seen.append((moment.epoch, moment.measures["loss"], weights(Part(moment.module))))

    fit = end_to_end(net, task, epochs=3, callbacks=(look,))
    assert [epoch for epoch, _, _ in seen] == [1, 2, 3]
    assert [loss for _, loss, _ in seen] == [row["loss"] for row in fit.record.rows]
    assert same(seen[-1][2], weights(fit.part))
    assert not same(seen[0][2], seen[1][2])


@pytest.mark.parametrize("answer", [True, 1, None, "stop"])
def test_only_true_stops_a_training(net, task, answer):
    fit = end_to_end(
        net, task, epochs=4, callbacks=(lambda m: answer if m.epoch == 2 else None, lambda m: None)
    )
    assert len(fit.record.rows) == (2 if answer is True else 4)


def with_validation_losses(monkeypatch, losses):
    """Make each epoch's validation loss what the test says."""
    import sys

    given = iter(losses)
    module = sys.modules["dovetail.train.end_to_end"]
    monkeypatch.setattr(
        module, "validation", lambda *_, **__: lambda: {"validation loss": next(given)}
    )


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5, 4, 3, 4, 5, 6, 7, 8], 2, 5, 3),
        ([5, 4, 3, 4, 2, 6, 7, 8], 2, 7, 5),
        ([1, 2, 3, 4, 5, 6, 7, 8], 1, 2, 1),
        ([3, 3, 3, 3, 3, 3, 3, 3], 3, 4, 1),
        ([8, 7, 6, 5, 4, 3, 2, 1], 1, 8, 8),
        ([math.nan, 7, 6, math.nan, 7, 8, 9, 9], 3, 6, 3),
    ],
)
def test_patience_keeps_the_best_epoch(net, task, monkeypatch, losses, patience, epochs, best):
    seen = {}

    def look(moment):
        seen[moment.epoch] = weights(Part(moment.module))

    with_validation_losses(monkeypatch, losses)
    fit = end_to_end(
        net, task, epochs=8, batch_size=32, patience=patience, callbacks=(look,), lr=0.05
    )
    assert len(fit.record.rows) == epochs
    assert fit.record.final["epoch"] == best
    assert same(weights(fit.part), seen[best])
    assert f"the weights of epoch {best} were kept" in fit.record.view()[0].text


def test_without_patience_the_last_epoch_is_kept(net, task, monkeypatch):
    with_validation_losses(monkeypatch, [1, 2, 3])
    assert end_to_end(net, task, epochs=3).record.final["epoch"] == 3


def test_without_a_validation_split_the_last_epoch_is_kept(net, task):
    rows = {"train": range(80), "validation": [], "test": range(80, 90)}
    bare = Task(task.inputs, task.targets, split=rows)
    seen = {}
    fit = end_to_end(
        net,
        bare,
        epochs=3,
        patience=1,
        callbacks=(lambda m: seen.update({m.epoch: weights(Part(m.module))}),),
    )
    assert len(fit.record.rows) == 3
    assert fit.record.final["epoch"] == 3
    assert same(weights(fit.part), seen[3])
    assert "validation loss" not in fit.record.rows[0]


def test_a_loss_that_explodes_is_an_error(net, task):
    with pytest.raises(TrainingError, match=r"the loss became .* in epoch \d+; lower the learning"):
        end_to_end(net, task, epochs=5, lr=1e30, schedule="constant")


def test_a_step_that_fails_says_why(net, task):
    normed = build("mlp", shape=(1, 4, 4), hidden=(8,), classes=3, norm="batch")
    with pytest.raises(TrainingError, match="a training step failed: Expected more than 1 value"):
        end_to_end(normed, task, epochs=1, batch_size=1)
    with pytest.raises(TrainingError, match="grad can be implicitly created only for scalar"):
        end_to_end(net, task, epochs=1, loss=lambda z, y: F.cross_entropy(z, y, reduction="none"))


def never(*_args):
    raise AssertionError("an epoch was run")


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (
            build("mlp", shape=(1, 4, 4), hidden=(8,), classes=4),
            TaskError,
            "build it with classes=3",
        ),
        (build("mlp", shape=(1, 4, 4), hidden=(8,), classes=2), TaskError, "'blobs' needs 3"),
        (nn.Conv2d(1, 3, 3), TaskError, r"gives \(3, 2, 2\) numbers"),
        (build("mlp", shape=(1, 5, 5), classes=3), ContractError, "takes 1×5×5"),
        (nn.Linear(7, 3), ContractError, "does not take inputs"),
        (nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), TaskError, "needs 3"),
        ("lenet", ContractError, "expected a Part or an"),
    ],
)
def test_a_network_that_does_not_fit_fails_before_the_first_epoch(task, model, error, words):
    with pytest.raises(error, match=words):
        end_to_end(model, task, epochs=1, callbacks=(never,), loss=never)


def test_nothing_to_train_is_an_error(task):
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).requires_grad_(False)
    with pytest.raises(TrainingError, match="no parameter to train"):
        end_to_end(frozen, task, epochs=1)


def test_frozen_weights_stay(net, task):
    half = copy.deepcopy(net.module)
    half.hidden1.requires_grad_(False)
    fit = end_to_end(half, task, epochs=1)
    assert torch.equal(fit.part.module.hidden1.linear.weight, half.hidden1.linear.weight)
    assert not torch.equal(fit.part.module.head.weight, half.head.weight)


def test_pairs_are_refused(net, task):
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([True, False]))
    of_pairs = Task(
        task.inputs[:6],
        kind="pairs",
        pairs=pairs,
        split={"train": range(4), "validation": [], "test": [4, 5]},
    )
    with pytest.raises(TaskError, match="pair labels only"):
        end_to_end(net, of_pairs, epochs=1, callbacks=(never,))


def test_augmenting_vectors_is_an_error():
    task = Task(torch.rand(20, 4), [0, 1] * 10)
    with pytest.raises(SettingsError, match="needs float images"):
        end_to_end(build("mlp", shape=(4,), classes=2), task, epochs=1, augment="flip")


def test_the_view_has_a_curve_for_each_loss(net, task):
    record = end_to_end(net, task, epochs=2).record
    assert isinstance(record, Training)
    _, _, losses, measures = record.view()
    assert [series.name for series in losses.series] == ["loss", "validation loss"]
    assert [series.name for series in measures.series] == ["validation accuracy"]
