"""Segments that run again: the same gradients, weights and statistics to the last bit."""

import copy

import pytest
import torch
from torch import nn

from dovetail.core.errors import SettingsError, TrainingError
from dovetail.parts.part import build
from dovetail.tasks.task import Task
from dovetail.train.checkpointing import Checkpointed, a_block_at_a_time, links_of
from dovetail.train.end_to_end import end_to_end


class Branching(nn.Module):
    """No chain: opened at its cut points."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = x + self.inner(x)
        return self.head(x.mean((2, 3)))


def chain(*more):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=None),
        nn.ReLU(),
        *more,
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 2),
    )


NETWORKS = {
    "a chain": chain(),
    "with dropout": chain(nn.Dropout(0.5)),
    "residual": build("resnet8", size=8).module,
    "no chain": Branching(),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_statistics_are_the_same_bits(name):
    torch.manual_seed(0)
    plain = copy.deepcopy(NETWORKS[name]).train()
    again = copy.deepcopy(plain)
    x = torch.randn(6, 3, 8, 8)
    links = links_of(again)
    checkpointed = Checkpointed(again, a_block_at_a_time(links))
    assert len(links) > 3
    for network in (plain, checkpointed):
        torch.manual_seed(1)
        for _ in range(2):
            network(x).square().sum().backward()
    for a, b in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(plain.buffers(), again.buffers(), strict=True):
        assert torch.equal(a, b)


def test_random_numbers_behind_a_segment_are_the_same():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    drawn = []
    for network in (net, Checkpointed(net, [(0, 2)])):
        torch.manual_seed(3)
        network(torch.ones(5, 4)).sum().backward()
        drawn.append(torch.rand(2))
    assert torch.equal(*drawn)


def test_without_gradients_nothing_is_wrapped():
    net = chain().eval()
    with torch.no_grad():
        x = torch.rand(2, 3, 8, 8)
        assert torch.equal(Checkpointed(net, [(0, 3)])(x), net(x))


@pytest.fixture(scope="module")
def deep():
    net = build("vgg13", channels=1, size=8, width=4, classes=3)
    draw = torch.Generator().manual_seed(0)
    task = Task(torch.rand(60, 1, 8, 8, generator=draw), torch.arange(60) % 3, name="noise")
    return net, task


@pytest.mark.parametrize("budget", [0.9, "90%"])
def test_a_training_within_a_budget_gives_the_same_weights(deep, budget):
    net, task = deep
    plain = end_to_end(net, task, epochs=2, batch_size=32)
    within = end_to_end(net, task, epochs=2, batch_size=32, memory_budget=budget)
    told = within.record.settings
    assert told["recomputed"]
    assert told["peak_bytes"] <= 0.9 * told["full_bytes"]
    assert plain.part.digest == within.part.digest


def test_a_budget_with_room_runs_nothing_twice(deep):
    net, task = deep
    fit = end_to_end(net, task, epochs=1, batch_size=32, memory_budget="1GiB")
    assert fit.record.settings["recomputed"] == []


def test_too_small_a_budget_names_the_floor_and_the_layer(deep):
    net, task = deep
    with pytest.raises(TrainingError, match=r"is 1000 B.* at least .* which 'stage\d\.\w+' sets"):
        end_to_end(net, task, epochs=1, batch_size=32, memory_budget=1000)


@pytest.mark.parametrize("budget", [0, 0.0, -1, 1.5, True, "much", "3 kilos", float("nan"), "-5%"])
def test_what_is_no_budget_is_refused(deep, budget):
    net, task = deep
    with pytest.raises(SettingsError, match="memory_budget is a share above 0"):
        end_to_end(net, task, epochs=1, memory_budget=budget)
