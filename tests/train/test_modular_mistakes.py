"""What cannot be trained in modules is refused, with the way out."""

import pytest
import torch
from torch import nn

from dovetail.core.errors import CutError, SettingsError, TaskError, TrainingError
from dovetail.parts.part import build
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task
from dovetail.train import modular


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.one, self.two = nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        x = self.flat(x)
        return self.two(x + self.one(x))


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), {}, CutError, "no two modules"),
        (lambda: Residual(), {"at": "one"}, CutError, "2 tensors cross at 'one'"),
        (None, {"at": "hiden1"}, CutError, "no cut point 'hiden1'"),
        (None, {"at": []}, CutError, "names no point"),
        (None, {"at": "head"}, TrainingError, "no weight to train"),
        (None, {"loss": "mae"}, SettingsError, "unknown loss 'mae'"),
        (None, {"head_epochs": 0}, SettingsError, "head_epochs must be at least 1"),
        (
            None,
            {"supervision": "none"},
            SettingsError,
            "unknown supervision 'none'; there is labels, pairs",
        ),
        (None, {"pairs": 5}, SettingsError, "only supervision='pairs'"),
        (None, {"unlabelled": torch.rand(4, 1, 4, 4)}, SettingsError, "say augment="),
        (None, {"unlabelled": torch.rand(4, 1, 5, 5), "augment": "flip"}, TaskError, r"\[1, 5, 5"),
        (None, {"unlabelled": [1], "augment": "flip"}, TaskError, "a task, or a tensor"),
        (lambda: build("mlp", shape=(1, 4, 4), classes=4), {}, TaskError, "classes=3"),
    ],
)
def test_mistakes_are_told_before_the_first_epoch(task, net, make, options, error, words):
    def never(_moment):
        raise AssertionError("an epoch was run")

    with pytest.raises(error, match=words):
        modular(net if make is None else make(), task, epochs=1, callbacks=(never,), **options)


def test_tasks_that_have_no_classes_are_refused(net, task, of_pairs):
    x = torch.rand(30, 1, 4, 4)
    numbers = Task(x, torch.rand(30), kind="regression")
    labels = Task(x, torch.ones(30, 3).int(), kind="multilabel")
    for wrong in (numbers, labels):
        with pytest.raises(TaskError, match="training in modules is about pairs"):
            modular(net, wrong, epochs=1)
        with pytest.raises(TaskError, match="the output module needs classes"):
            modular(net, task, head_task=wrong, epochs=1)
    with pytest.raises(TaskError, match="as head_task="):
        modular(net, of_pairs, epochs=1)
    wide = Task(torch.rand(30, 1, 5, 5), [0, 1, 2] * 10)
    with pytest.raises(TaskError, match=r"the inputs of 'task' are \[1, 5, 5\]"):
        modular(net, of_pairs, head_task=wide, epochs=1)


def test_a_batch_of_one_class_is_told_of(task, net):
    rows = (task.targets == 0).nonzero()[:, 0]
    one_class = {"train": rows[:20], "validation": [], "test": rows[20:]}
    lonely = Task(task.inputs, task.targets, split=one_class)
    with pytest.raises(TaskError, match="known to differ"):
        modular(net, lonely, epochs=1, objective="nmse-neo")


def test_contradicting_pairs_are_refused(task, net):
    i, j = task.indices("train")[:2].tolist()
    pairs = Pairs(torch.tensor([i, j]), torch.tensor([j, i]), torch.tensor([True, False]))
    split = {s: task.indices(s) for s in ("train", "validation", "test")}
    wrong = Task(task.inputs, kind="pairs", pairs=pairs, split=split)
    with pytest.raises(TaskError, match="given both as alike and as different"):
        modular(net, wrong, head_task=task, epochs=1)


def test_what_cannot_teach_a_body_is_refused_before_the_first_epoch(task):
    net = build("mlp", shape=(1, 4, 4), hidden=(16,), classes=3)
    with pytest.raises(SettingsError, match="one example makes no pair"):
        modular(net, task, batch_size=1)
    drawn = task.pairs("train", count=60)
    alike = drawn.take(drawn.same)
    rows = {split: task.indices(split) for split in ("train", "validation", "test")}
    of_alike = Task(task.inputs, kind="pairs", pairs=alike, split=rows)
    with pytest.raises(TaskError, match="known to differ"):
        modular(net, of_alike, head_task=task)
    layers = [nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU()]
    mixed, seen = nn.Sequential(*layers, nn.Linear(8, 3)), []
    with pytest.raises(SettingsError, match="undefined after 'relu'"):
        modular(mixed, task, objective="al-neo", at=["2", "4"], callbacks=(seen.append,))
    assert seen == []
