"""Several cuts at once: the pieces are the network, and fit each other and nothing else."""

from __future__ import annotations

import pytest
import torch
from references.halves import assert_same, outputs

from dovetail.core.errors import CutError
from dovetail.parts.cutting import cut, cut_all, cut_points
from dovetail.parts.joining import join
from dovetail.parts.part import build


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("lenet5", ["conv1", "conv2", "flatten", "fc1", "fc2"]),
        ("lenet5", ["conv1.conv", "conv1", "conv2.act"]),
        ("resnet8", ["stem", "layer1.0.act2", "layer3"]),
        ("resnet8", ["layer1.0.add", "layer2.0.add"]),
    ],
)
def test_the_pieces_are_the_network(name, at):
    net = build(name, channels=3, size=8)
    x = torch.randn(2, 3, 8, 8)
    pieces = cut_all(net, at=at)
    assert len(pieces) == len(at) + 1
    assert_same(outputs(join(*pieces).module, x), outputs(net.module, x))
    ours = [tensor.data_ptr() for piece in pieces for tensor in piece.module.state_dict().values()]
    assert ours == [tensor.data_ptr() for tensor in net.module.state_dict().values()]


def test_points_of_the_network_will_do_and_none_leaves_it_whole():
    net = build("mlp", shape=(4,), hidden=(8, 8))
    assert len(cut_all(net, at=cut_points(net))) == len(cut_points(net)) + 1
    assert cut_all(net, at=[]) == (net,)


def test_one_point_is_a_cut():
    net = build("mlp", shape=(4,), hidden=(8, 8))
    ours, theirs = cut_all(net, at=["hidden1"]), cut(net, at="hidden1")
    assert [part.contract for part in ours] == [part.contract for part in theirs]
    assert [part.recipe for part in ours] == [part.recipe for part in theirs]


def test_an_example_gives_shapes_to_every_piece():
    module = build("mlp", shape=(4,), hidden=(8, 6)).module
    pieces = cut_all(module, ["hidden1", "hidden2"], torch.zeros(2, 4))
    assert [piece.contract.takes[0].shape for piece in pieces] == [(4,), (8,), (6,)]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (["hidden2", "hidden1"], "'hidden1' does not come after 'hidden2'; give the points in"),
        (["hidden1", "hidden1"], "'hidden1' does not come after 'hidden1'"),
        (["hidden1", "hiden2"], "no cut point 'hiden2'; did you mean hidden2"),
        ("hidden1", r"takes a list of points, as in at=\['hidden1'\]"),
    ],
)
def test_mistakes_are_explained(at, words):
    with pytest.raises(CutError, match=words):
        cut_all(build("mlp", shape=(4,), hidden=(8, 8)), at=at)
