"""Every cut point of every network of the zoo: the halves are the network, bit for bit."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from references.halves import assert_halves, assert_same, flags_of, outputs, truth

from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build

NORMS = ("batch", "layer", "instance", "none")
SMALL = ("mlp", "lenet5", "resnet8")
DEEP = ("resnet20", "resnet56", "wideresnet16", "vgg13", "mobilenetv2")
NARROW = {"wideresnet16": {"widen": 1}, "mobilenetv2": {"width": 0.1}, "mlp": {}, "lenet5": {}}
SHORTCUTS = {("act1", "layer1.0"), ("conv1", "layer2.0"), ("norm2", "layer3.0")}
CASES = [
    (name, norm, size, channels)
    for name, norm, channels, size in product(SMALL, NORMS, (1, 3), (8, 32))
]
CASES += [
    (name, norm, size, channels)
    for name in DEEP
    for norm, size, channels in zip(NORMS, (8, 32, 28, 96), (1, 3, 1, 3), strict=True)
]


def in_every_run(name, norm, size, channels):
    """Every norm, size and number of channels meets every small network, not each the others."""
    if name in DEEP:  # built of the same blocks as the small ones, and more of them
        return norm == "batch" and not name.startswith("resnet")
    return (size == 8) == (norm in ("batch", "none")) and (channels == 1) == (size == 8)


def cases(of=CASES):
    """All of them under `make slow`."""
    marks = {True: (), False: pytest.mark.slow}
    return pytest.mark.parametrize(
        ("name", "norm", "size", "channels"),
        [pytest.param(*case, marks=marks[in_every_run(*case)]) for case in of],
    )


def network(name, norm, size, channels, seed=0):
    if name == "mlp":
        return build(name, shape=(channels, size, size), hidden=(9, 7), norm=norm, seed=seed)
    narrow = NARROW.get(name, {"width": 4})
    return build(name, channels=channels, size=size, norm=norm, seed=seed, **narrow)


def lived_in(part, size, channels):
    """The part after a few batches in training mode: running statistics that are not 0 and 1."""
    module = copy.deepcopy(part.module).train()
    with torch.no_grad():
        module(torch.randn(4, channels, size, size))
    return part.changed(module=module)


@cases()
def test_halves_are_the_network_at_every_cut_point(name, norm, size, channels):
    net = lived_in(network(name, norm, size, channels), size, channels)
    net.module[1].eval()  # a frozen stage, to see whether its flag survives
    flags = flags_of(net.module)
    example = torch.randn(2, channels, size, size)
    places = cut_points(net)
    assert len(places) >= 4
    expected = truth(net.module, example)
    for place in places:
        front, back = cut(net, at=place)
        assert_halves(net.module, front.module, back.module, example, expected)
        assert front.contract.gives[0].shape == place.shape
        assert front.contract.gives[0].activation == place.activation
    assert flags_of(net.module) == flags


@cases([case for case in CASES if case[2] == 8 and case[3] == 1])
def test_halves_saved_and_loaded_are_the_network(name, norm, size, channels, tmp_path):
    net = lived_in(network(name, norm, size, channels), size, channels)
    example = torch.randn(2, channels, size, size)
    expected = truth(net.module, example)
    places = cut_points(net)
    for place in places[:: max(1, len(places) // 3)]:
        front, back = cut(net, at=place)
        assert_same(outputs(join(front, back).module, example), expected[False])
        loaded = [
            Part.from_pretrained(half.save_pretrained(tmp_path / f"{place}-{i}"), verify=True)
            for i, half in enumerate((front, back))
        ]
        for half, original in zip(loaded, (front, back), strict=True):
            assert (half.contract, half.recipe) == (original.contract, original.recipe)
            assert (half.origin, half.digest) == (original.origin, original.digest)
        for train in (False, True):
            assert_same(outputs(join(*loaded).module, example, train=train), expected[train])


@pytest.mark.parametrize("name", SMALL)
def test_cut_points_are_in_the_order_of_the_network_and_unique(name):
    names = [str(place) for place in cut_points(network(name, "batch", 8, 1))]
    assert len(set(names)) == len(names)
    net = network(name, "batch", 8, 1)
    counts = [len(cut(net, at=place)[0].module.state_dict()) for place in names]
    assert counts == sorted(counts)


@pytest.mark.parametrize("name", SMALL)
def test_shapes_and_activations_are_those_seen_by_hooks(name):
    net = network(name, "batch", 8, 3)
    seen = {}
    for path, child in net.module.named_modules():
        child.register_forward_hook(
            lambda _m, _i, y, path=path: seen.update({path: tuple(y.shape[1:])})
        )
    twin = copy.deepcopy(net.module).eval()
    places = cut_points(net.module, example=torch.randn(5, 3, 8, 8))
    seen.clear()
    twin(torch.randn(5, 3, 8, 8))
    compared = [place for place in places if place.name in seen]
    assert len(compared) > len(places) / 2
    for place in compared:
        assert place.shape == seen[place.name]
    ends = {"mlp": "hidden1", "lenet5": "conv2", "resnet8": "layer2"}
    activations = {place.name: place.activation for place in places}
    assert activations[ends[name]] == "relu"
    assert activations[
        {"mlp": "hidden1.linear", "lenet5": "conv1.conv"}.get(name, "stem.conv")
    ] == ("identity")


def test_the_activation_is_the_one_the_network_was_built_with():
    for activation in ("relu", "tanh", "sigmoid", "gelu"):
        front, _ = cut(build("lenet5", size=8, activation=activation), at="flatten")
        assert front.contract.gives[0].activation == activation


INSIDE = [
    # In every run one place of each sort of shortcut: plain, a convolution, and its end.
    pytest.param(inside, block, marks=() if (inside, block) in SHORTCUTS else pytest.mark.slow)
    for inside in ("conv1", "norm1", "act1", "conv2", "norm2")
    for block in ("layer1.0", "layer2.0", "layer3.0")
]


@pytest.mark.parametrize(("inside", "block"), INSIDE)
def test_inside_a_residual_block_two_tensors_cross(inside, block, tmp_path):
    net = lived_in(network("resnet8", "batch", 8, 1), 8, 1)
    example = torch.randn(2, 1, 8, 8)
    at = f"{block}.{inside}"
    assert at not in [str(place) for place in cut_points(net)]
    front, back = cut(net, at=at)
    assert len(front.contract.gives) == len(back.contract.takes) == 2
    assert front.contract.mismatches(back.contract) == []
    assert_halves(net.module, front.module, back.module, example)
    joined = join(front, back)
    assert_same(outputs(joined.module, example), outputs(net.module, example))
    loaded = Part.from_pretrained(joined.save_pretrained(tmp_path / "joined"), verify=True)
    assert_same(outputs(loaded.module, example), outputs(net.module, example))
    again = cut(loaded, at="0")
    assert len(again[0].contract.gives) == 2
    assert_halves(loaded.module, again[0].module, again[1].module, example)
    expected = truth(loaded.module, example)
    for place in cut_points(loaded)[::9]:
        halves = cut(loaded, at=place)
        assert_halves(loaded.module, halves[0].module, halves[1].module, example, expected)


def test_a_cut_after_the_last_layer_leaves_an_empty_back():
    net = build("mlp", shape=(4,))
    assert "head" not in [str(place) for place in cut_points(net)]
    front, back = cut(net, at="head")
    assert_halves(net.module, front.module, back.module, torch.randn(3, 4))
    assert not back.module.state_dict()
