"""Networks that are no chains: cut in the graph of their own forward, or refused with a reason."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from references import networks as zoo
from references.halves import assert_halves, assert_same, flags_of, outputs, truth, values_of
from torch import nn

from dovetail.core.errors import ContractError, CutError
from dovetail.parts.builders import builder
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.joining import join
from dovetail.parts.part import Part, build
from dovetail.parts.splitting import Chain, is_chain, points, split
from dovetail.parts.tracing import Untraceable, trace

IMAGES, VECTORS = (2, 3, 8, 8), (3, 12)


def tied_on_one_side():
    class TiedWithin(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(12, 12)
            self.second = nn.Linear(12, 12)
            self.second.weight = self.first.weight
            self.head = nn.Linear(12, 4)

        def forward(self, x):
            return self.head(torch.relu(self.second(torch.relu(self.first(x)))))

    return TiedWithin()


NETWORKS = {
    "vision-resnet": (zoo.VisionResNet, IMAGES),
    "tutorial": (zoo.TutorialCNN, IMAGES),
    "looped": (zoo.Looped, VECTORS),
    "optional": (zoo.Optional, VECTORS),
    "nested": (lambda: nn.Sequential(nn.Tanh(), zoo.Nested(), nn.Linear(8, 4)), VECTORS),
    "tokens": (zoo.Tokens, IMAGES),
    "dense": (zoo.Dense, IMAGES),
    "in-place": (zoo.InPlaceBranch, VECTORS),
    "recording": (zoo.Recording, VECTORS),
    "same-names": (zoo.SameNames, VECTORS),
    "pieces": (zoo.Pieces, VECTORS),
    "tied-within": (tied_on_one_side, VECTORS),
    "leaf-dropout": (
        lambda: nn.Sequential(nn.Linear(12, 12), zoo.FunctionalDropout(), nn.Linear(12, 4)),
        VECTORS,
    ),
    "leaf-branching": (
        lambda: nn.Sequential(nn.Linear(12, 12), zoo.Branching(), nn.Linear(12, 4)),
        VECTORS,
    ),
}


def register(name, make):
    @builder(f"hand-written/{name}")
    def made() -> nn.Module:
        return make()

    return made


MAKERS = {name: register(name, make) for name, (make, _) in NETWORKS.items()}


def example_for(name):
    return torch.randn(NETWORKS[name][1])


def all_places(model):
    """Every name one could try: each module, and each step of each module that can be traced."""
    for path, child in model.named_modules():
        if path:
            yield path
        if not is_chain(child):
            try:
                steps = [node.name for node in trace(child).nodes if node.op.startswith("call")]
            except Untraceable:
                continue
            yield from (f"{path}.{step}".strip(".") for step in steps)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_listed_point_is_bit_identical_in_both_modes(name):
    model, example = MAKERS[name](), example_for(name)
    expected = truth(model, example)
    model.eval()(example.clone())  # a forward may leave attributes; tracing must not
    model.train()
    attributes, flags, values = set(vars(model)), flags_of(model), values_of(model)
    places = cut_points(model, example)
    assert places
    assert len({str(place) for place in places}) == len(places)
    for place in places:
        front, back = cut(model, at=place, example=example)
        assert_halves(model, front.module, back.module, example, expected)
        assert len(front.contract.gives) == 1
        assert front.contract.gives[0].shape == place.shape
        with torch.no_grad():
            crossing = copy.deepcopy(front.module).eval()(example.clone())
        assert tuple(crossing.shape[1:]) == place.shape
    assert set(vars(model)) == attributes  # tracing leaves nothing behind
    assert flags_of(model) == flags
    assert all(torch.equal(model.state_dict()[key], values[key]) for key in values)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_place_that_is_not_refused_is_bit_identical(name, every):
    model, example = MAKERS[name](), example_for(name)
    listed = {str(place) for place in cut_points(model)}
    expected, tried = truth(model, example), 0
    for at in list(all_places(model))[::every]:
        try:
            halves = split(model, at)
        except CutError:
            assert at not in listed
            continue
        tried += 1
        if at in listed:
            assert halves.crossing == 1
        assert_halves(model, halves.front, halves.back, example, expected)
    assert tried >= len(listed) // every


@pytest.mark.parametrize("name", NETWORKS)
def test_halves_saved_loaded_and_joined_are_the_network(name, tmp_path):
    model, example = MAKERS[name](), example_for(name)
    expected, places = truth(model, example), cut_points(model)
    for at in places[:: max(1, len(places) // 3)]:
        front, back = cut(model, at=at, example=example)
        loaded = [
            Part.from_pretrained(half.save_pretrained(tmp_path / f"{at}{side}"), verify=True)
            for side, half in enumerate((front, back))
        ]
        joined = join(*loaded)
        for train in (False, True):
            assert_same(outputs(joined.module, example, train=train), expected[train])


# What each kind of network offers -----------------------------------------------------------------


def test_torchvision_style_points():
    names = list(points(zoo.VisionResNet()))
    assert {"conv1", "bn1", "relu", "maxpool", "layer1", "layer1.0", "layer2.0", "layer2"} <= set(
        names
    )
    assert {"avgpool", "flatten"} <= set(names)
    assert "layer1.0.relu" not in names  # called twice
    assert "layer1.0.conv1" not in names  # two tensors cross
    assert "layer1.0.add" in names


@pytest.mark.parametrize("make", [zoo.VisionResNet, zoo.TutorialCNN, zoo.Looped])
def test_points_backwards_are_the_same_points(make):
    assert list(points(make(), backwards=True)) == list(points(make()))[::-1]


def test_who_looks_for_the_last_point_opens_no_early_module(monkeypatch):
    opened = []

    def watched(module, **words):
        opened.append(type(module).__name__)
        return trace(module, **words)

    monkeypatch.setattr("dovetail.parts.splitting.trace", watched)
    net = zoo.VisionResNet()
    list(points(net))
    all_of_it = len(opened)
    opened.clear()
    next(points(net, backwards=True))
    assert len(opened) < all_of_it


def test_functional_operations_are_points():
    places = {place.name: place for place in cut_points(zoo.TutorialCNN(), torch.randn(IMAGES))}
    assert list(places) == [
        "conv1", "relu", "max_pool2d", "conv2", "relu_1", "max_pool2d_1", "view", "fc1", "relu_2",
    ]  # fmt: skip
    assert places["max_pool2d_1"].shape == (8, 2, 2)
    assert [places[n].activation for n in ("conv1", "relu", "max_pool2d", "view", "fc1")] == [
        "identity", "relu", "relu", "relu", "identity",
    ]  # fmt: skip


def test_a_loop_over_a_module_list_and_an_assertion_do_not_hide_points():
    assert {"layers.0", "tanh", "mul", "layers.1", "layers.2"} <= set(points(zoo.Looped()))


def test_a_buffer_that_is_not_stored_stays_so():
    front, back = cut(zoo.Looped(), at="layers.1")
    assert "scale" not in front.module.state_dict()
    assert "scale" not in back.module.state_dict()


def test_a_parameter_used_later_stays_with_the_back():
    front, back = cut(zoo.Tokens(), at="transpose")
    assert "positions" in back.module.state_dict()
    assert "cls_token" in back.module.state_dict()
    assert "patch.weight" in front.module.state_dict()


def test_the_same_module_twice_in_a_chain_is_kept_twice():
    act = nn.ReLU()
    chain = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 2))
    assert list(points(chain)) == ["0", "1", "2", "3"]
    x = torch.randn(5, 4)
    for at in points(chain):
        halves = split(chain, at)
        assert_halves(chain, halves.front, halves.back, x)
    assert len(split(chain, "2").back) == 2


def test_concatenation_carries_several_tensors(tmp_path):
    model, example = MAKERS["dense"](), torch.randn(IMAGES)
    front, back = cut(model, at="c", example=example)
    assert [port.shape for port in front.contract.gives] == [(4, 8, 8)] * 4
    loaded = [
        Part.from_pretrained(half.save_pretrained(tmp_path / f"{i}"), verify=True)
        for i, half in enumerate((front, back))
    ]
    joined = join(*loaded)
    assert_same(outputs(joined.module, example), outputs(model, example))
    assert_same(outputs(joined.module, example, train=True), outputs(model, example, train=True))


def test_inside_a_nested_block_of_a_foreign_network(tmp_path):
    model, example = MAKERS["vision-resnet"](), torch.randn(IMAGES)
    for at in ("layer1.0.conv1", "layer2.0.bn2", "layer2.0.downsample.0", "layer2.1.bn1"):
        front, back = cut(model, at=at, example=example)
        assert len(front.contract.gives) == 2
        assert_halves(model, front.module, back.module, example)
        loaded = [
            Part.from_pretrained(half.save_pretrained(tmp_path / f"{at}{i}"), verify=True)
            for i, half in enumerate((front, back))
        ]
        assert_same(outputs(join(*loaded).module, example), outputs(model, example))


def test_operations_in_place_keep_their_order():
    model, example = zoo.InPlaceBranch(), torch.randn(VECTORS)
    for at in ("left", "right", "sigmoid", "relu_"):
        halves = split(model, at)
        assert_halves(model, halves.front, halves.back, example)


def test_a_child_wins_over_an_operation_of_its_name():
    model = zoo.SameNames()
    assert list(points(model)).count("relu") == 1
    front, _ = cut(model, at="relu")
    assert front.contract.gives[0].activation == "sigmoid"


def test_what_is_taken_apart_is_no_cut_point():
    model = zoo.Pieces()
    names = list(points(model))
    assert "widen" in names
    assert not {"chunk", "lstm"} & set(names)
    with pytest.raises(CutError, match="'lstm' gives several values"):
        cut(model, at="lstm")
    with pytest.raises(CutError, match="no cut point 'chunk'"):
        cut(model, at="chunk")


def test_a_chain_that_hands_over_a_tuple_is_not_cut_there_when_an_example_shows_it():
    class Last(nn.Module):
        def forward(self, pair):
            return pair[0][:, -1]

    chain = nn.Sequential(nn.Linear(4, 6), nn.LSTM(6, 5, batch_first=True), Last(), nn.Linear(5, 2))
    x = torch.randn(2, 3, 4)
    assert [str(place) for place in cut_points(chain, x)] == ["0", "2"]
    with pytest.raises(CutError, match="2 values cross"):
        cut(chain, at="1", example=x)


def test_tracing_does_not_disturb_the_random_numbers():
    state = torch.get_rng_state()
    for model in (zoo.Noisy(), zoo.Tokens(), zoo.VisionResNet()):
        torch.set_rng_state(state)
        list(points(model))
        assert torch.equal(torch.get_rng_state(), state)


def test_a_chain_of_chains_keeps_its_kind():
    class Twin(nn.Module):
        def forward(self, x):
            return x, x + 1

    class Both(nn.Module):
        def forward(self, x, y):
            return x * y

    chain = Chain(Twin(), Both(), nn.Linear(4, 2))
    halves = split(chain, "1")
    assert_halves(chain, halves.front, halves.back, torch.randn(3, 4))


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (zoo.FunctionalDropout, "differs between training and evaluation"),
        (zoo.Branching, "cannot be traced"),
        (zoo.Noisy, "neither a parameter nor a buffer"),
    ],
)
def test_what_no_graph_can_tell_is_refused_when_opened_and_kept_whole_otherwise(make, reason):
    model = make()
    attributes = set(vars(model))
    assert list(points(model)) == []
    for attempt in (partial(cut, model, at="first"), partial(split, model, "first")):
        with pytest.raises(CutError, match=reason) as caught:
            attempt()
        assert "'first'" in str(caught.value)
        assert type(model).__name__ in str(caught.value)
    assert set(vars(model)) == attributes
    whole = nn.Sequential(nn.Linear(12, 12), model, nn.Linear(12, 4))
    assert [str(place) for place in cut_points(whole)] == ["0", "1"]
    with pytest.raises(CutError, match=r"cannot cut at '1\.first'"):
        cut(whole, at="1.first")
    halves = split(whole, "1")
    assert_halves(whole, halves.front, halves.back, torch.randn(VECTORS))


def test_a_layer_called_twice_names_no_place():
    model = zoo.CalledTwice()
    with pytest.raises(CutError, match="'shared' is called 2 times"):
        cut(model, at="shared")
    with pytest.raises(CutError, match="'act' is called 2 times"):
        cut(model, at="act")
    assert {"shared", "act"}.isdisjoint(map(str, cut_points(model)))
    assert [str(place) for place in cut_points(model)] == ["before"]


@pytest.mark.parametrize("at", ["encoder", "relu", "middle", "relu_1"])
def test_tied_weights_across_a_cut_are_refused_by_name(at):
    with pytest.raises(CutError, match=r"'encoder\.weight' is shared by both sides"):
        cut(zoo.TiedAcross(), at=at)


def test_tied_weights_leave_the_other_points():
    model = zoo.TiedAcross()
    assert [str(place) for place in cut_points(model)] == ["decoder", "relu_2"]
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 1))
    chain[2].weight = chain[0].weight
    assert [str(place) for place in cut_points(chain)] == ["2"]
    with pytest.raises(CutError, match=r"'0\.weight'"):
        cut(chain, at="0")


def test_tied_weights_on_one_side_stay_tied(tmp_path):
    model, example = MAKERS["tied-within"](), torch.randn(VECTORS)
    front, _ = cut(model, at="second", example=example)
    loaded = Part.from_pretrained(front.save_pretrained(tmp_path / "front"), verify=True)
    assert loaded.module.first.weight is loaded.module.second.weight
    assert_same(outputs(loaded.module, example), outputs(front.module, example))


@pytest.mark.parametrize("at", ["first", "second"])
def test_a_parameter_out_of_use_is_never_lost(at):
    model = zoo.Idle()
    with pytest.raises(CutError, match="'unused' takes no part"):
        cut(model, at=at)
    with pytest.raises(CutError, match="'unused' takes no part"):
        cut_points(model)
    whole = nn.Sequential(model, nn.Linear(4, 2))
    assert [str(place) for place in cut_points(whole)] == ["0"]


@pytest.mark.parametrize(
    ("at", "near"),
    [
        ("layer9", "layer1"),
        ("layer1.0.con1", "layer1.0"),
        ("layer1.7", "layer1.0"),
        ("", "conv1"),
        ("fc.nothing", "conv1|bn1|relu"),
        ("..", "conv1"),
        ("layer1..0", "layer1.0"),
    ],
)
def test_an_unknown_point_is_refused_with_near_names(at, near):
    with pytest.raises(CutError, match=r"(?s)no cut point .*" + near) as caught:
        cut(zoo.VisionResNet(), at=at)
    assert repr(at) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_example_is_told_so():
    with pytest.raises(ContractError, match=r"\(2, 5\) does not go through the network"):
        cut(zoo.TutorialCNN(), at="conv1", example=torch.randn(2, 5))
    with pytest.raises(ContractError, match=r"does not go through the network"):
        cut_points(zoo.TutorialCNN(), example=torch.randn(2, 5))

    class Silent(nn.Module):
        def forward(self, x):
            raise AssertionError

    with pytest.raises(ContractError, match="AssertionError"):
        adopt(Silent(), example=torch.zeros(1, 1))


def test_only_parts_and_modules_can_be_cut():
    with pytest.raises(ContractError, match=r"expected a Part or an nn\.Module, got str"):
        cut("resnet", at="layer1")


def test_where_no_name_is_near_the_outermost_points_come_first():
    with pytest.raises(CutError, match="there is conv1, conv2, flatten, fc1, fc2, "):
        cut(build("lenet5"), at="nowhere at all")
