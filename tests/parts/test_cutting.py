"""Spaces: which halves fit which, and what the halves remember."""

from __future__ import annotations

import copy

import pytest
import torch
from references.halves import assert_same, outputs
from torch import nn

from dovetail.parts.contract import Port, Preprocess
from dovetail.parts.cutting import CutPoint, cut, cut_points
from dovetail.parts.facts import Origin
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build


def space(front):
    (port,) = front.contract.gives
    return port.space


def test_own_halves_fit_and_those_of_another_seed_do_not():
    halves = [cut(build("lenet5", size=8, seed=seed), at="conv2") for seed in range(3)]
    for i, (front, _) in enumerate(halves):
        for j, (_, back) in enumerate(halves):
            reasons = front.contract.mismatches(back.contract)
            assert front.contract.obstacles(back.contract) == []
            if i == j:
                assert reasons == []
            else:
                assert len(reasons) == 1
                assert reasons[0].startswith("space 'conv2/")


def test_cutting_twice_gives_one_space_and_another_point_another():
    net = build("lenet5", size=8)
    assert space(cut(net, at="conv2")[0]) == space(cut(net, at="conv2")[0])
    spaces = [space(cut(net, at=place)[0]) for place in cut_points(net)]
    assert len(set(spaces)) == len(spaces)


def test_the_space_is_the_same_in_another_copy_and_after_loading(tmp_path):
    net = build("resnet8", size=8, width=4)
    loaded = Part.from_pretrained(net.save_pretrained(tmp_path / "net"))
    for at in ("layer2", "layer1.0.add", "layer2.0.act2"):
        names = {space(cut(part, at=at)[0]) for part in (net, loaded)}
        names |= {space(cut(copy.deepcopy(net.module), at=at)[0])}
        assert len(names) == 1


def test_retraining_renews_the_space():
    net = build("mlp", shape=(4,), hidden=(8,))
    old = cut(net, at="hidden1")
    with torch.no_grad():
        net.module.hidden1.linear.weight += 1e-3
    new = cut(net, at="hidden1")
    assert space(old[0]) != space(new[0])
    assert new[0].contract.mismatches(old[1].contract)
    with torch.no_grad():
        net.module.head.weight += 1  # behind the cut: the features are what they were
    assert space(cut(net, at="hidden1")[0]) == space(new[0])


def test_running_statistics_are_part_of_the_representation():
    net = build("resnet8", size=8, width=4)
    before = space(cut(net, at="layer1")[0])
    net.module.train()(torch.randn(4, 3, 8, 8))
    assert space(cut(net, at="layer1")[0]) != before


def test_equal_weights_in_another_architecture_are_another_space():
    relu, tanh = (build("mlp", shape=(4,), activation=name) for name in ("relu", "tanh"))
    assert relu.digest == tanh.digest
    assert space(cut(relu, at="hidden2.linear")[0]) != space(cut(tanh, at="hidden2.linear")[0])


def test_fronts_without_weights_have_spaces_too():
    a = cut(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)), at="1")
    b = cut(nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(4, 2)), at="1")
    assert space(a[0]) != space(b[0])
    assert a[0].contract.mismatches(a[1].contract) == []


@pytest.mark.parametrize(
    ("name", "early", "late"),
    [
        ("lenet5", "conv1", "fc1"),
        ("lenet5", "conv1.norm", "conv2.act"),
        ("resnet8", "layer1", "layer3"),
        ("resnet8", "layer2.0.add", "layer3.0.add"),
        ("resnet8", "stem.conv", "layer2.0.add"),
    ],
)
def test_nested_cuts_fit_in_all_compatible_combinations(name, early, late):
    net = build(name, channels=3, size=8)
    x = torch.randn(2, 3, 8, 8)
    early_front, early_back = cut(net, at=early)
    late_front, late_back = cut(net, at=late)
    inner_front, inner_back = cut(late_front, at=early)
    middle_front, middle_back = cut(early_back, at=late)
    expected = outputs(net.module, x)
    chains = [
        (inner_front, inner_back, late_back),
        (early_front, inner_back, late_back),
        (inner_front, early_back),
        (early_front, middle_front, middle_back),
        (inner_front, middle_front, middle_back),
    ]
    for chain in chains:
        assert_same(outputs(join(*chain).module, x), expected)
    assert early_front.contract.mismatches(late_back.contract)


def test_contract_and_origin_are_handed_to_the_right_half():
    net = build("mlp", shape=(4,), hidden=(8,), classes=2)
    preprocess = Preprocess(scale=2.0)
    contract = net.contract.__class__(
        net.contract.takes, net.contract.gives, preprocess, ("cat", "dog")
    )
    net = net.changed(contract=contract, origin=Origin(how="train", task="pets"))
    front, back = cut(net, at="hidden1")
    assert front.contract.preprocess == preprocess
    assert back.contract.preprocess is None
    assert back.contract.classes == ("cat", "dog")
    assert front.contract.classes is None
    for half in (front, back):
        assert half.origin.how == "cut"
        assert half.origin.parents == (net.digest,)
        assert half.origin.task == "pets"
        assert half.origin.settings == {"at": "hidden1"}
    joined = join(front, back).contract
    assert (joined.preprocess, joined.classes) == (preprocess, ("cat", "dog"))


def test_the_digest_follows_the_weights():
    part = build("mlp", shape=(4,))
    before = part.digest
    with torch.no_grad():
        part.module.head.bias += 1
    assert part.digest != before


def test_an_example_tells_what_the_back_gives():
    front, back = cut(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "0", torch.zeros(1, 4))
    assert front.contract.takes == (Port((4,)),)
    assert back.contract.gives == (Port((2,)),)


def test_without_an_example_shapes_are_unknown_and_the_halves_fit():
    front, back = cut(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), at="0")
    assert front.contract.gives[0].shape is None
    assert front.contract.mismatches(back.contract) == []
    assert front.recipe is None


def test_a_cut_point_or_its_name_will_do():
    net = build("mlp", shape=(4,))
    assert space(cut(net, at=CutPoint("hidden1"))[0]) == space(cut(net, at="hidden1")[0])


def test_other_dtypes_are_in_the_contract():
    part = adopt(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double(),
                 example=torch.zeros(1, 4, dtype=torch.float64))  # fmt: skip
    front, back = cut(part, at="0")
    assert front.contract.gives[0].dtype == back.contract.takes[0].dtype == "float64"


def test_a_middle_part_behind_another_front_gives_another_space():
    one, other = (build("mlp", shape=(4,), hidden=(8, 8, 8), seed=seed) for seed in (0, 1))
    other.module.hidden2.load_state_dict(one.module.hidden2.state_dict())
    (front, back), (_, other_back) = (cut(net, at="hidden1") for net in (one, other))
    (middle, tail), (other_middle, _) = (cut(b, at="hidden2") for b in (back, other_back))
    assert middle.digest == other_middle.digest
    assert middle.contract.mismatches(tail.contract) == []
    assert other_middle.contract.mismatches(tail.contract)
    assert front.contract.mismatches(middle.contract) == []
