"""Which statistics batch norms use, against batch norm computed by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from references.batch_norm import normalised_by_hand, statistics_by_hand
from references.halves import flags_of, outputs, same_values, values_of
from torch import nn

from dovetail.core.errors import SettingsError
from dovetail.parts.cutting import cut
from dovetail.parts.norms import recalibrate, shallow_copy, with_batch_statistics
from dovetail.parts.part import build

CASES = [
    (nn.BatchNorm1d, (6, 3)),
    (nn.BatchNorm1d, (6, 3, 5)),
    (nn.BatchNorm2d, (4, 3, 5, 2)),
    (nn.BatchNorm3d, (2, 3, 2, 3, 2)),
]


def norm_of(kind):
    norm = kind(3)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.copy_(torch.rand(3) + 0.5)
    return norm


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_stored_statistics(kind, shape):
    norm, x = norm_of(kind), torch.randn(shape)
    expected = normalised_by_hand(
        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps
    )
    torch.testing.assert_close(norm.eval()(x), expected)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_batch_statistics(kind, shape, train):
    norm, x = norm_of(kind), torch.randn(shape) * 3 + 2
    net = nn.Sequential(norm).train(train)
    before = values_of(net)
    mean, biased, _ = statistics_by_hand(x)
    expected = normalised_by_hand(x, mean, biased, norm.weight, norm.bias, norm.eps)
    twin = with_batch_statistics(net)
    torch.testing.assert_close(twin(x), expected)
    assert same_values(before, values_of(net))  # nothing is remembered
    assert list(twin.state_dict()) == list(net.state_dict())
    assert type(net[0]) is kind


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_recalibrated_statistics(kind, shape):
    norm = norm_of(kind)
    batches = [torch.randn(shape) * 2 + i for i in range(3)]
    twin = recalibrate(nn.Sequential(norm).eval(), iter(batches))
    statistics = [statistics_by_hand(batch) for batch in batches]
    mean = sum(mean for mean, _, _ in statistics) / 3
    variance = sum(unbiased for _, _, unbiased in statistics) / 3
    torch.testing.assert_close(twin[0].running_mean, mean)
    torch.testing.assert_close(twin[0].running_var, variance)
    x = torch.randn(shape)
    expected = normalised_by_hand(x, mean, variance, norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(twin(x), expected)


def test_recalibrating_a_stack_feeds_each_norm_what_the_one_before_gives():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Dropout(0.9), nn.BatchNorm1d(2))
    x = torch.randn(50, 3) * 4 + 1
    twin = recalibrate(net, [x])
    mean, biased, _ = statistics_by_hand(x)
    first = normalised_by_hand(x, mean, biased, net[0].weight, net[0].bias, net[0].eps)
    mean, _, unbiased = statistics_by_hand(net[1](first).detach())
    torch.testing.assert_close(twin[3].running_mean, mean)
    torch.testing.assert_close(twin[3].running_var, unbiased)


def test_recalibrating_touches_nothing_else():
    net = build("resnet8", size=8, width=4).module
    net.train()
    net.layer1.eval()
    before, flags = values_of(net), flags_of(net)
    twin = recalibrate(net, [torch.randn(4, 3, 8, 8)])
    assert same_values(before, values_of(net))
    assert flags_of(net) == flags == flags_of(twin)
    moving = ("running_mean", "running_var", "num_batches_tracked")
    for name, tensor in twin.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.endswith(moving), name
    assert all(m.momentum == 0.1 for m in twin.modules() if isinstance(m, nn.BatchNorm2d))


def test_recalibrating_on_nothing_is_refused():
    with pytest.raises(SettingsError, match="at least one batch"):
        recalibrate(nn.Sequential(nn.BatchNorm1d(2)), [])


def test_recalibrating_takes_tuples_of_tensors():
    _, back = cut(build("resnet8", size=8, width=4), at="layer1.0.conv1")
    batch = (torch.randn(3, 4, 8, 8), torch.randn(3, 4, 8, 8))
    twin = recalibrate(back.module, [batch])
    assert twin.get_submodule("layer1.0.norm1").num_batches_tracked == 1


def test_norms_that_use_the_batch_have_nothing_to_recalibrate():
    net = nn.Sequential(norm_of(nn.BatchNorm1d))
    before = values_of(net)
    assert same_values(
        before, values_of(recalibrate(with_batch_statistics(net), [torch.rand(4, 3)]))
    )


@pytest.mark.parametrize("at", [None, "layer2.0.conv1"])
def test_a_shallow_copy_shares_every_tensor_and_no_module(at):
    net = build("resnet8", size=8, width=4)
    module = net.module if at is None else cut(net, at=at)[0].module
    twin = shallow_copy(module)
    for (name, mine), (other, theirs) in zip(
        module.state_dict(keep_vars=True).items(),
        twin.state_dict(keep_vars=True).items(),
        strict=True,
    ):
        assert name == other
        assert mine is theirs
    assert not set(map(id, module.modules())) & set(map(id, twin.modules()))


def test_inside_a_graph_norms_are_exchanged_too():
    net = build("resnet8", size=8, width=4)
    front, _ = cut(net, at="layer2.0.conv1")
    x = torch.randn(4, 3, 8, 8)
    twin = with_batch_statistics(front.module).eval()
    reference = copy.deepcopy(front.module).train()
    for mine, theirs in zip(outputs(twin, x), reference(x), strict=True):
        torch.testing.assert_close(mine, theirs)
