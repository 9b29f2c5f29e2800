"""Where networks are cut, which weights they start from, and what lies between their channels."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from train.compatible_setting import bytes_of, lenet, pair_of_tasks, shapes

from dovetail.core.errors import ContractError, CutError, SettingsError
from dovetail.parts.cutting import CutPoint
from dovetail.parts.joining import join
from dovetail.parts.part import build
from dovetail.train.compatible import compatible
from dovetail.train.frame import Course
from dovetail.train.group_parts import cut_networks, identical_starts, start_alike

OPTIONS = {"epochs": 1, "batch_size": 16, "seed": 3}


@pytest.fixture(scope="module")
def tasks():
    return pair_of_tasks()


def resnet(seed, **more):
    return build(
        "resnet8", seed=seed, **({"size": 8, "width": 4, "channels": 1, "classes": 3} | more)
    )


def seams(nets, tasks, at=None, channels=None, seed=0):
    wholes = [
        Course("compatible", task, {"device": "cpu"}).twin(net, task)
        for net, task in zip(nets, tasks, strict=True)
    ]
    return cut_networks(wholes, tasks, [task.name for task in tasks], at, channels, seed)


def test_without_adapters_nothing_is_added(tasks):
    nets = [lenet(1), lenet(2)]
    for net, network in zip(nets, seams(nets, tasks, "conv2"), strict=True):
        x = torch.rand(3, 1, 8, 8)
        net.module.eval(), network.front.module.eval(), network.head.module.eval()
        assert torch.equal(network.head(network.front(x)), net(x))
        assert network.at == "conv2"
        assert network.head.contract.takes[0].space is None


def test_identical_starts_by_hand(tasks):
    """Fronts equal, and each row of the output layer that of the class of its name."""
    networks = seams([lenet(1), lenet(2)], tasks, "conv2")
    own = bytes_of(networks[1].head)[0]
    assert not identical_starts(networks)
    start_alike(networks)
    assert identical_starts(networks)
    front, other = bytes_of(*(network.front for network in networks))
    assert all(torch.equal(front[name], other[name]) for name in front)
    mine, theirs = bytes_of(*(network.head for network in networks))
    assert tasks[0].classes == ("bar", "dot", "ell")
    assert tasks[1].classes == ("ell", "box", "bar")
    for name in ("head.weight", "head.bias"):
        assert torch.equal(theirs[name][0], mine[name][2])
        assert torch.equal(theirs[name][2], mine[name][0])
        assert torch.equal(theirs[name][1], own[name][1])  # nobody else knows a box
    for name in mine.keys() - {"head.weight", "head.bias"}:
        assert torch.equal(theirs[name], mine[name])


def test_with_other_numbers_of_classes_rows_still_go_by_name(tasks):
    few = shapes("few", ("ell", "bar"), count=40)
    networks = seams([lenet(1), lenet(2, classes=2)], [tasks[0], few], "fc1")
    start_alike(networks)
    mine, theirs = bytes_of(*(network.head for network in networks))
    assert torch.equal(theirs["head.weight"], mine["head.weight"][[2, 0]])


def test_iiw_starts_training_there(tasks):
    """With a rate of nothing the networks stay what they began as."""
    fit = compatible([lenet(1), lenet(2)], tasks, by=("iiw",), lr=0.0, **OPTIONS)
    weights = [dict(front.module.named_parameters()) for front in fit.fronts]
    start = dict(lenet(1).module.named_parameters())
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name])
        assert torch.equal(weight, start[name])


def test_networks_that_came_alike_are_told_of(tasks):
    alike = compatible([lenet(1), lenet(1)], tasks, by=("dcc",), **OPTIONS).record
    assert alike.settings["identical_starts"]
    warnings = [b.text for b in alike.view() if getattr(b, "style", "") == "warning"]
    assert "although 'iiw' was not asked for" in warnings[0]
    for nets, by in (([lenet(1), lenet(2)], ("dcc",)), ([lenet(1), lenet(1)], ("iiw",))):
        record = compatible(nets, tasks, by=by, **OPTIONS).record
        assert not [b for b in record.view() if getattr(b, "style", "") == "warning"]


def test_another_architecture_cannot_start_alike(tasks):
    for other in (resnet(2), lenet(2, norm="none")):
        with pytest.raises(ContractError, match="leave 'iiw' out"):
            compatible([lenet(1), other], tasks, by=("iiw",), **OPTIONS)


def test_maps_of_other_sizes_meet_in_heads_that_pool(tasks):
    """resnet8 at two depths: 4×8×8 and 8×4×4, mapped to four channels; heads pool."""
    nets = [resnet(1), build("resnet20", size=8, width=4, channels=1, classes=3, seed=2)]
    fit = compatible(nets, tasks, by=("dcc", "rp"), at=["layer1", "layer2"], **OPTIONS)
    shapes_given = [front.contract.gives[0].shape for front in fit.fronts]
    assert shapes_given == [(4, 8, 8), (4, 4, 4)]
    for part in (*fit.heads, *fit.auxiliaries.values()):
        assert part.contract.takes[0].shape == (4, None, None)
    x = torch.rand(5, 1, 8, 8)
    for front in fit.fronts:
        for head in (*fit.heads, *fit.auxiliaries.values()):
            assert join(front, head)(x).shape == (5, len(head.contract.classes))
    for network, front, head in zip(fit.networks, fit.fronts, fit.heads, strict=True):
        assert torch.equal(network(x), head(front(x)))


def test_lenet_and_resnet_meet_where_maps_are_alike(tasks):
    nets = [lenet(1), resnet(2)]
    fit = compatible(nets, tasks, by=("rp",), at=["conv2", "layer3"], **OPTIONS)
    assert [front.contract.gives[0].shape for front in fit.fronts] == [(16, 2, 2)] * 2
    wide = compatible(nets, tasks, by=("rp",), at=["conv2", "layer3"], channels=5, **OPTIONS)
    assert [front.contract.gives[0].shape for front in wide.fronts] == [(5, 2, 2)] * 2
    for each in (fit, wide):
        join(each.fronts[0], each.heads[1])
        join(each.fronts[1], each.heads[0])


def test_adapters_are_trained(tasks):
    nets = [lenet(1), resnet(2)]
    still, moved = (
        compatible(nets, tasks, by=("rp",), at=["conv2", "layer3"], channels=5, lr=lr, **OPTIONS)
        for lr in (0.0, 0.1)
    )
    for one, other in zip(
        (*still.fronts, *still.heads), (*moved.fronts, *moved.heads), strict=True
    ):
        before, after = bytes_of(one, other)
        assert not [
            name for name in before if "weight" in name and torch.equal(before[name], after[name])
        ]


def test_heads_that_flatten_are_refused_before_training(tasks):
    seen = []
    with pytest.raises(ContractError, match=r"cannot take .*cut where the maps have one size"):
        compatible(
            [lenet(1), resnet(2)],
            tasks,
            by=("rp",),
            at=["conv2", "layer1"],
            callbacks=(seen.append,),
            **OPTIONS,
        )
    assert not seen


def test_other_activations_share_a_space_that_promises_none(tasks):
    nets = [lenet(1), lenet(2, activation="tanh")]
    fit = compatible(nets, tasks, by=("rp",), at="conv2", **OPTIONS)
    assert {front.contract.gives[0].activation for front in fit.fronts} == {"identity"}
    for front in fit.fronts:
        for head in (*fit.heads, *fit.auxiliaries.values()):
            assert front.contract.mismatches(head.contract) == []
    alike = compatible([lenet(1), lenet(2)], tasks, by=("rp",), at="conv2", **OPTIONS)
    assert alike.fronts[0].contract.gives[0].activation == "relu"


def test_a_point_for_all_or_one_each(tasks):
    nets = [lenet(1), lenet(2)]
    assert [n.at for n in seams(nets, tasks)] == ["fc2", "fc2"]
    assert [n.at for n in seams(nets, tasks, CutPoint("conv1"))] == ["conv1", "conv1"]
    assert [n.at for n in seams(nets, tasks, ["fc1", CutPoint("fc1")])] == ["fc1", "fc1"]
    with pytest.raises(SettingsError, match="at= names 1 points for 2 networks"):
        seams(nets, tasks, ["fc1"])
    with pytest.raises(CutError, match="no cut point 'cnv1'"):
        seams(nets, tasks, "cnv1")
    with pytest.raises(CutError, match="2 tensors cross"):
        seams([resnet(1), resnet(2)], tasks, "layer1.0.conv1")


@pytest.mark.parametrize("channels", [0, -1, 2.5, "5"])
def test_channels_are_counted(tasks, channels):
    with pytest.raises(
        SettingsError, match=r"channels must be (a whole number|a number|at least 1)"
    ):
        seams([lenet(1), lenet(2)], tasks, "conv2", channels)


def test_a_seam_of_unknown_shape_is_refused(tasks):
    net = lenet(1)
    takes = tuple(replace(port, shape=None) for port in net.contract.takes)
    whole = net.changed(contract=replace(net.contract, takes=takes))
    with pytest.raises(ContractError, match="adopt the networks with an example"):
        cut_networks([whole], tasks[:1], ["a"], "conv2", None, 0)


def test_plain_modules_will_do(tasks):
    def plain():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))

    fit = compatible([plain(), plain()], tasks, by=("dcc", "rp", "iiw"), **OPTIONS)
    join(fit.fronts[0], fit.heads[1])
    several = compatible(nn.ModuleList([plain(), plain()]), tasks, by=("rp",), **OPTIONS)
    assert len(several.networks) == 2
