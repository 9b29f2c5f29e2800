"""What a user hands over, and what is ranked of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.core.errors import SettingsError
from dovetail.ranking.candidates import candidate, named, points_of, sampled


def trained(net):
    """A network that knows its classes, as training leaves it."""
    return net.changed(
        contract=net.contract.__class__(
            net.contract.takes, net.contract.gives, classes=tuple("0123456789")
        )
    )


def test_a_network_with_a_head_is_ranked_before_it():
    assert candidate("a", trained(dt.build("lenet5"))).at == ("fc2",)
    assert candidate("a", trained(dt.build("resnet8"))).at == ("flatten",)


def test_a_front_is_ranked_as_it_is():
    front, _ = dt.cut(dt.build("lenet5"), at="conv2")
    assert candidate("front", front).at is None
    assert candidate("whole", trained(dt.build("lenet5")), at="output").at is None


def test_points_are_put_in_the_order_of_the_network():
    assert candidate("a", dt.build("lenet5"), at=["fc1", "conv1", "fc1"]).at == ("conv1", "fc1")


def test_a_network_in_one_block_is_looked_into():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()))
    assert "0.1" in points_of(dt.Part(net))


def test_names():
    net = dt.build("mlp")
    assert list(named(net)) == ["mlp"]
    assert list(named([net, net, net])) == ["mlp", "mlp #2", "mlp #3"]
    assert list(named({"mine": net})) == ["mine"]
    assert list(named(nn.ReLU())) == ["ReLU"]
    for nothing in ([], {}):
        with pytest.raises(SettingsError, match="no parts"):
            named(nothing)


def test_a_sample_keeps_the_shares_of_the_classes():
    labels = torch.tensor([0] * 700 + [1] * 200 + [2] * 100)
    task = dt.Task(torch.rand(1000, 2), labels, split=(0.8, 0.1, 0.1))
    small = sampled(task, 90, "train", seed=3)
    chosen = small.targets[small.indices("train")]
    whole = task.targets[task.indices("train")]
    shares = chosen.bincount() / 90 - whole.bincount() / len(whole)
    assert shares.abs().max() < 0.02
    assert small.size() == 90


def test_every_class_is_in_a_sample_that_has_room_for_it():
    task = dt.Task(torch.rand(400, 2), torch.arange(400) % 40, split=(0.8, 0.1, 0.1))
    small = sampled(task, 40, "train", seed=0)
    assert small.targets[small.indices("train")].unique().numel() == 40


def test_the_sample_depends_on_the_seed_alone():
    task = dt.load_task("digits")
    one, same, other = (sampled(task, 50, "train", seed=s).indices("train") for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_test_split_is_refused():
    with pytest.raises(SettingsError, match="not ranked on the test split"):
        sampled(dt.load_task("digits"), 50, "test", seed=0)
