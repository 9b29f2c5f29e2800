"""Regions against the network, gradients against differences, intervals against all of them."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from references.pure_map import bits
from torch import nn

import dovetail as dt
from dovetail import lens
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens.input_space import best_intervals


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))


@pytest.fixture
def task():
    x = torch.rand(90, 2) * torch.tensor([2.0, 5.0])
    return dt.Task(x, torch.arange(90) % 3, name="plane")


def test_regions_are_what_the_network_says(net, task, tmp_path):
    found = lens.decision_regions(net, task, resolution=11, region=((0, 2), (-1, 4)))
    assert (found.x, found.y) == ((0.0, 2.0), (-1.0, 4.0))
    for i, j in itertools.product((0, 3, 10), (0, 7, 10)):
        node = torch.tensor([[0.2 * j, -1 + 0.5 * i]])
        assert found.values[i][j] == int(net(node).argmax())
    assert sum(found.areas) == pytest.approx(1)
    x, y = task.subset("train")
    assert found.accuracy == pytest.approx(float((net(x).argmax(1) == y).double().mean()))
    assert load_record(found.save(tmp_path / "r.json")) == found


def test_classes_go_by_name(task):
    part = dt.build("mlp", shape=(2,), hidden=(8,), classes=3)
    part = part.changed(contract=replace(part.contract, classes=("c", "b", "a")))
    named = dt.Task(task.inputs, [("a", "b", "c")[int(y)] for y in task.targets])
    plain = dt.Part(part.module)
    one, other = (
        lens.decision_regions(p, t, resolution=5) for p, t in ((part, named), (plain, task))
    )
    assert one.values == tuple(tuple(2 - v for v in row) for row in other.values)


def test_gradients_are_differences_of_each_examples_loss(net, task, tmp_path):
    found = lens.gradient_field(net, task, limit=12)
    loss, wide = nn.CrossEntropyLoss(), net.double().requires_grad_(False)
    for (x, y, dx, dy), label in zip(found.arrows, found.labels, strict=True):
        for axis, expected in ((0, dx), (1, dy)):
            step = torch.zeros(2, dtype=torch.float64)
            step[axis] = 1e-5
            at = torch.tensor([x, y], dtype=torch.float64)
            up, down = (
                loss(wide((at + sign * step)[None]), torch.tensor([label])) for sign in (1, -1)
            )
            assert expected == pytest.approx(float(up - down) / 2e-5, abs=1e-4)
    assert load_record(found.save(tmp_path / "g.json")) == found
    assert found.view()


def test_preprocessing_is_part_of_the_gradient(net, task):
    from dovetail.measure.forward import preprocess_for
    from dovetail.parts.contract import Contract

    scaled = dt.Part(net, contract=Contract(preprocess=preprocess_for(task)))
    plain = lens.gradient_field(nn.Sequential(_Standard(task), net), task, limit=10)
    found = lens.gradient_field(scaled, task, limit=10)
    torch.testing.assert_close(
        torch.tensor(found.arrows), torch.tensor(plain.arrows), atol=1e-5, rtol=1e-4
    )


class _Standard(nn.Module):
    def __init__(self, task):
        super().__init__()
        x = task.subset("train")[0]
        self.mean, self.std = x.mean(0), x.std(0, correction=0)

    def forward(self, x):
        return (x - self.mean) / self.std


def test_opposed_gradients_of_twins_of_two_classes(net):
    """Two classes in one place pull against each other."""
    x = torch.rand(40, 2)
    pairs = torch.cat([x, x + 1e-4])
    task = dt.Task(pairs, [0] * 40 + [1] * 40, name="twins")
    every = lens.gradient_field(nn.Sequential(net[0], net[1], nn.Linear(16, 2)), task, limit=None)
    assert every.opposed > 0.5


def interval_by_hand(values, labels):
    """Every interval between two of the values."""
    everywhere = bits(Counter(labels).values())
    best = -math.inf
    for low, high in itertools.product(sorted(set(values)), repeat=2):
        inside = [y for v, y in zip(values, labels, strict=True) if low <= v <= high]
        if inside:
            gain = len(inside) / len(labels) * (everywhere - bits(Counter(inside).values()))
            best = max(best, gain)
    return best


@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("distinct", [3, 20, 1000])
def test_the_interval_is_the_best_of_all(classes, distinct):
    values = (torch.rand(40, 3, dtype=torch.float64) * distinct).round()
    labels = (torch.arange(40) * 7) % classes
    for column, found in zip(values.T, best_intervals(values, labels), strict=True):
        assert found.gain == pytest.approx(
            interval_by_hand(column.tolist(), labels.tolist()), abs=1e-9
        )
        inside = (column >= found.low) & (column <= found.high)
        assert found.share == pytest.approx(float(inside.double().mean()))
        assert found.entropy == pytest.approx(bits(labels[inside].bincount().tolist()), abs=1e-9)


def test_few_edges_come_near(task):
    values, labels = torch.randn(500, 2) + (torch.arange(500) % 2)[:, None], torch.arange(500) % 2
    for full, few in zip(
        best_intervals(values, labels, 1000), best_intervals(values, labels, 64), strict=True
    ):
        assert 0.8 * full.gain <= few.gain <= full.gain + 1e-9


def test_intervals_of_a_network(net, task, tmp_path):
    found = lens.discriminative_intervals(net, task, "1")
    assert len(found.intervals) == 16
    assert found.best == max(found.intervals, key=lambda i: i.gain)
    assert load_record(found.save(tmp_path / "i.json")) == found
    assert len(lens.discriminative_intervals(net, task).intervals) == 3


def test_refuses_in_a_sentence(net, task):
    wide = dt.Task(torch.rand(40, 3), [0, 1] * 20)
    with pytest.raises(TaskError, match=r"plane.*\[3\]"):
        lens.decision_regions(net, wide)
    with pytest.raises(SettingsError, match="region"):
        lens.decision_regions(net, task, region=((1, 0), (0, 1)))
    with pytest.raises(TaskError, match="lie in this region"):
        lens.gradient_field(net, task, region=((90, 91), (0, 1)))
    with pytest.raises(ContractError, match="each of the 3 classes"):
        lens.decision_regions(nn.Linear(2, 2), task)
    with pytest.raises(DovetailError, match="kind regression"):
        lens.gradient_field(net, dt.Task(torch.rand(40, 2), torch.rand(40), kind="regression"))
    with torch.no_grad():
        net[0].weight.fill_(torch.nan)
    with pytest.raises(TaskError, match="NaN"):
        lens.gradient_field(net, task)
