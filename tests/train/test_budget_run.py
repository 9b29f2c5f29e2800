"""A budget is kept by the whole run: by a counter that knows nothing of the package's own."""

import pytest
import torch
from train.alive import Alive

import dovetail as dt
from dovetail.parts.part import build
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.layerwise import layerwise


@pytest.fixture(scope="module")
def task():
    return only_classes(dt.load_task("digits"), ("0", "1", "2"))


@pytest.mark.parametrize("keep", ["auto", "none", "disk", "memory"])
def test_no_moment_of_a_training_layer_by_layer_is_above_its_budget(task, keep):
    net = build("lenet5", channels=1, size=8, classes=3, norm="batch")
    _run_within(task, net, keep, 0.95 if keep == "memory" else 0.65, {})


@pytest.mark.parametrize(
    "more",
    [
        {"grow": 1, "segment": 2, "overlap": 1},
        {"patience": 1, "optimiser": "adam", "lr": 0.001},
        {"order": "round-robin", "rounds": 2},
        {"augment": "shift:1", "checkpoint_seconds": 0},
    ],
    ids=str,
)
def test_whatever_is_asked_for_beside(task, more, tmp_path):
    net = build("lenet5", channels=1, size=8, classes=3, norm="batch")
    file = {"checkpoint": tmp_path / "run.safetensors"} if "checkpoint_seconds" in more else {}
    _run_within(task, net, "auto", 0.8, {**more, **file})


def _run_within(task, net, keep, budget, more):
    with Alive(net, task) as alive:
        fit = layerwise(net, task, epochs=2, memory_budget=budget, keep=keep, **more)
    assert alive.peak <= budget * fit.record.full_bytes, alive.where
    # and it counts: the network alone is in it several times
    assert alive.peak > 0.5 * max(s.peak_bytes for s in fit.record.stages if s.peak_bytes)


@pytest.mark.parametrize("more", [{}, {"patience": 1}, {"augment": "shift:1"}], ids=str)
@pytest.mark.parametrize("budget", [0.9, 1.0])
def test_no_moment_of_plain_training_is_above_its_budget(task, budget, more):
    net = build("lenet5", channels=1, size=8, classes=3, norm="batch")
    with Alive(net, task) as alive:
        fit = end_to_end(net, task, epochs=2, memory_budget=budget, **more)
    told = fit.record.settings
    assert alive.peak <= budget * told["full_bytes"], alive.where
    assert alive.peak >= 0.98 * told["peak_bytes"]  # what is left goes to a prepared copy


def test_numbers_to_predict_are_within_their_budget_as_well():
    x = torch.randn(500, 30)
    task = Task(x, 1000 + 100 * x[:, 0], kind="regression")
    net = build("mlp", shape=(30,), hidden=(64, 64), classes=1)
    with Alive(net, task) as alive:
        fit = layerwise(net, task, epochs=2, memory_budget=0.95)
    assert alive.peak <= 0.95 * fit.record.full_bytes, alive.where
