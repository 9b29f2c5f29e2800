"""Features at many cut points in one pass equal those of each front alone."""

from __future__ import annotations

import pytest
import torch

import dovetail as dt
from dovetail.core.errors import DovetailError, SettingsError
from dovetail.measure.features import features_along


@pytest.fixture
def task():
    draw = torch.Generator().manual_seed(0)
    return dt.Task(torch.rand(12, 3, 32, 32, generator=draw), [0, 1, 2, 3] * 3)


@pytest.mark.parametrize("pooling", ["average", "flatten"])
@pytest.mark.parametrize("net", ["resnet8", "vgg13"])
def test_equals_each_front_alone(task, net, pooling):
    part = dt.build(net, classes=4, width=4)
    names = [point.name for point in dt.cut_points(part)][::3]
    along = features_along(part, names, task, pooling=pooling)
    assert list(along) == names
    for name in names:
        front, _ = dt.cut(part, at=name)
        alone = dt.features(front, task, pooling=pooling)
        assert torch.equal(along[name].values, alone.values)
        assert torch.equal(along[name].targets, alone.targets)


def test_runs_each_layer_once(task):
    part = dt.build("resnet8", classes=4)
    calls = []
    part.module.stem.register_forward_hook(lambda *_: calls.append(1))
    features_along(part, ["stem", "layer1", "layer2"], task, batch_size=100)
    assert len(calls) <= 2  # one batch; the hook also sees the shapes being looked up


def test_leaves_the_mode_as_it_was(task):
    part = dt.build("resnet8", classes=4)
    part.module.train()
    features_along(part, ["stem", "layer1"], task)
    assert all(child.training for child in part.module.modules())


@pytest.mark.parametrize("names", [[], ["stem", "stem"]])
def test_refuses_no_points_and_twice_the_same(task, names):
    with pytest.raises(SettingsError, match="at least one cut point"):
        features_along(dt.build("resnet8"), names, task)


def test_points_out_of_order_are_an_error(task):
    with pytest.raises(DovetailError):
        features_along(dt.build("resnet8"), ["layer2", "stem"], task)
