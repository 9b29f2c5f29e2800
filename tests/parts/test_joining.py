"""Joining: refused with every reason, forced to be measured, and nothing of the inputs changed."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from references.halves import (
    assert_halves,
    assert_same,
    flags_of,
    outputs,
    same_values,
    values_of,
)
from torch import nn

from dovetail.core.errors import ContractError, SettingsError
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.joining import adapter, join
from dovetail.parts.part import Part, build


def halves(at="layer2", seed=0, **args):
    return cut(build("resnet8", size=8, seed=seed, **{"width": 4} | args), at=at)


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def test_an_error_lists_every_reason_and_the_way_out():
    front, _ = cut(build("lenet5", size=8, channels=1, activation="tanh"), at="conv1")
    _, back = cut(build("lenet5", size=28, channels=1, seed=1), at="conv1")
    with pytest.raises(ContractError) as caught:
        join(front, back)
    first, *reasons, way_out = str(caught.value).splitlines()
    assert first == "'back of lenet5 at conv1' cannot follow 'front of lenet5 at conv1':"
    assert reasons[:2] == ["  - shape 6×4×4 -> 6×14×14", "  - activation 'tanh' -> 'relu'"]
    assert reasons[2].startswith("  - space 'conv1/")
    assert "adapters=True" in way_out


def test_a_difference_of_meaning_alone_points_to_force():
    (front, _), (_, back) = halves(), halves(seed=1)
    with pytest.raises(ContractError) as caught:
        join(front, back)
    *_, reason, way_out = str(caught.value).splitlines()
    assert reason.startswith("  - space 'layer2/")
    assert "expect chance accuracy" in way_out
    assert "force=True" in way_out
    assert "adapt" not in way_out


def test_the_number_of_tensors_is_a_reason():
    front, _ = halves("layer1.0.conv1")
    _, back = halves("layer1")
    with pytest.raises(ContractError, match="gives 2 tensors, but 1 are taken"):
        join(front, back, force=True)


def test_with_several_tensors_each_reason_names_its_tensor():
    (front, _), (_, back) = halves("layer1.0.conv1"), halves("layer1.0.conv1", seed=1)
    with pytest.raises(ContractError, match=r"(?s)tensor 0: space .*tensor 1: space "):
        join(front, back)


def test_force_joins_and_says_so():
    (front, _), (_, back) = halves(), halves(seed=1)
    joined = join(front, back, norms="stored", force=True)
    with torch.no_grad():
        expected = back.module.eval()(front.module.eval()(X))
    assert_same(outputs(joined.module, X), (expected,))
    assert joined.origin.settings == {"norms": "stored", "force": True}
    assert joined.origin.parents == (front.digest, back.digest)


def test_force_does_not_bend_shapes_or_dtypes():
    (front, _), (_, back) = halves(), halves(width=6)
    with pytest.raises(ContractError, match="shape 8×4×4 -> 12×4×4"):
        join(front, back, force=True)
    double = back.changed(contract=Contract((Port((8, 4, 4), "float64"),)))
    with pytest.raises(ContractError, match="dtype float32 -> float64"):
        join(front, double, force=True)


def test_behind_a_forced_seam_the_features_have_no_name():
    front, rest = halves("layer1", seed=0)
    middle, head = cut(halves("layer1", seed=1)[1], at="layer2")
    assert middle.contract.mismatches(head.contract) == []
    forced = join(front, middle, force=True)
    assert forced.contract.gives[0].space is None
    with pytest.raises(ContractError, match="space unknown"):
        join(forced, head)
    own = join(front, cut(rest, at="layer2")[0], force=True)  # nothing needed forcing here
    assert own.contract.gives[0].space is not None


def test_plain_modules_join_by_force():
    with pytest.raises(ContractError, match="space unknown -> unknown"):
        join(nn.Linear(3, 2), nn.Linear(2, 1))
    joined = join(nn.Linear(3, 2), nn.Linear(2, 1), force=True)
    assert joined(torch.zeros(1, 3)).shape == (1, 1)
    assert joined.recipe is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"norms": "frozen"},
            "norms must be one of auto, stored, batch, recalibrated; got 'frozen'",
        ),
        ({"norms": "recalibrated"}, "go together"),
        ({"norms": "batch", "data": [X]}, "go together"),
        ({"norms": "recalibrated", "data": []}, "at least one batch"),
        ({"norms": "recalibrated", "data": iter(())}, "at least one batch"),
    ],
)
def test_settings_are_judged(arguments, reason):
    with pytest.raises(SettingsError, match=reason):
        join(*halves(), **arguments)


def test_one_part_is_no_join():
    for parts in ((), halves()[:1]):
        with pytest.raises(SettingsError, match="at least two parts"):
            join(*parts)


@pytest.mark.parametrize("norms", ["stored", "batch", "recalibrated"])
@pytest.mark.parametrize("at", ["layer2", "layer2.0.conv1"])
def test_joining_changes_nothing_of_its_inputs(norms, at):
    for flags in product([True, False], repeat=2):
        front, back = halves(at)
        front.module.train(flags[0])
        back.module.train(flags[1])
        next(iter(back.module.children())).train(not flags[1])
        before = [(values_of(p.module), flags_of(p.module)) for p in (front, back)]
        kinds = [[type(m) for m in p.module.modules()] for p in (front, back)]
        joined = join(front, back, norms=norms, data=[X] if norms == "recalibrated" else None)
        if norms == "stored":  # a call in training mode may move the shared statistics
            joined = joined.changed(module=copy.deepcopy(joined.module))
        joined(X)
        after = [(values_of(p.module), flags_of(p.module)) for p in (front, back)]
        for (values, _), (new_values, _) in zip(before, after, strict=True):
            assert same_values(values, new_values)
        assert [flag for _, flag in before] == [flag for _, flag in after]
        assert kinds == [[type(m) for m in p.module.modules()] for p in (front, back)]


@pytest.mark.parametrize("norms", ["stored", "batch"])
@pytest.mark.parametrize("at", ["layer2", "layer2.0.conv1"])
def test_the_joined_part_shares_storage(norms, at):
    front, back = halves(at)
    joined = join(front, back, norms=norms).module.state_dict()
    for i, half in enumerate((front, back)):
        for name, tensor in half.module.state_dict().items():
            assert joined[f"{i}.{name}"].data_ptr() == tensor.data_ptr()


def test_the_recalibrated_part_has_weights_of_its_own():
    front, back = halves()
    joined = join(front, back, norms="recalibrated", data=[X]).module.state_dict()
    for name, tensor in front.module.state_dict().items():
        assert joined[f"0.{name}"].data_ptr() != tensor.data_ptr()


def test_joining_and_adapting_leave_the_random_numbers_alone():
    (front, _), (_, back) = halves(), halves(width=6)
    state = torch.get_rng_state()
    join(front, back, adapters=True, force=True)
    assert torch.equal(torch.get_rng_state(), state)


# Adapters -----------------------------------------------------------------------------------------


def test_an_adapter_maps_channels_of_maps():
    (front, _), (_, back) = halves(), halves(width=6)
    piece = adapter(front, back, seed=3)
    assert isinstance(piece.module, nn.Conv2d)
    x = torch.randn(2, 8, 4, 4)
    slow = torch.zeros(2, 12, 4, 4)
    for n, c, i, j in product(range(2), range(12), range(4), range(4)):
        slow[n, c, i, j] = piece.module.bias[c] + sum(
            piece.module.weight[c, k, 0, 0] * x[n, k, i, j] for k in range(8)
        )
    torch.testing.assert_close(piece(x), slow)


def test_an_adapter_maps_vectors():
    front, _ = cut(build("mlp", shape=(4,), hidden=(8,)), at="hidden1")
    _, back = cut(build("mlp", shape=(4,), hidden=(5,)), at="hidden1")
    piece = adapter(front, back)
    assert isinstance(piece.module, nn.Linear)
    assert piece(torch.zeros(3, 8)).shape == (3, 5)
    joined = join(front, back, adapters=True, force=True)
    assert joined(torch.zeros(3, 4)).shape == (3, 10)


def test_an_adapter_is_drawn_from_its_seed():
    (front, _), (_, back) = halves(), halves(width=6)
    digests = [adapter(front, back, seed=seed).digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_an_untrained_adapter_joins_but_leaves_no_space(tmp_path):
    (front, _), (_, back) = halves(), halves(width=6)
    with pytest.raises(ContractError, match="adapters=True"):
        join(front, back)
    joined = join(front, back, adapters=True)
    assert all(port.space is None for port in joined.contract.gives)
    assert joined(X).shape == (4, 10)
    loaded = Part.from_pretrained(joined.save_pretrained(tmp_path / "joined"), verify=True)
    assert_same(outputs(loaded.module, X), outputs(joined.module, X))


def test_adapters_go_only_where_they_are_needed():
    front, back = halves()
    assert len(join(front, back, adapters=True).module) == 2


@pytest.mark.parametrize(
    ("given", "taken"),
    [((8, 4, 4), (8, 5, 5)), ((8, 4, 4), (8,)), (None, (8,)), ((8, 4), (6, 4)), ((None,), (8,))],
)
def test_an_adapter_does_not_change_positions(given, taken):
    front = Part(nn.Identity(), Contract(gives=(Port(given),)))
    head = Part(nn.Identity(), Contract(takes=(Port(taken),)))
    with pytest.raises(ContractError, match="an adapter"):
        adapter(front, head)


# The joined part as a part ------------------------------------------------------------------------


@pytest.mark.parametrize("norms", ["stored", "batch", "recalibrated"])
def test_joined_parts_are_saved_and_loaded(norms, tmp_path):
    (front, _), (_, back) = halves(), halves(seed=1)
    data = [X] if norms == "recalibrated" else None
    joined = join(front, back, norms=norms, data=data, force=True)
    loaded = Part.from_pretrained(joined.save_pretrained(tmp_path / "joined"), verify=True)
    assert_same(outputs(loaded.module, X), outputs(joined.module, X))
    assert_same(outputs(loaded.module, X, train=True), outputs(joined.module, X, train=True))
    assert loaded.recipe == joined.recipe


@pytest.mark.parametrize("norms", ["stored", "batch"])
@pytest.mark.parametrize("at", ["layer2", "layer2.0.conv1"])
def test_joined_parts_can_be_cut_at_the_seam(norms, at):
    joined = join(*halves(at), norms=norms)
    assert ("0" in map(str, cut_points(joined))) == (at == "layer2")
    front, back = cut(joined, at="0")
    assert_halves(joined.module, front.module, back.module, X)
    assert_same(outputs(join(front, back).module, X), outputs(joined.module, X))


def test_a_join_of_joins_is_flat_in_meaning():
    net = build("resnet8", size=8, width=4)
    a, rest = cut(net, at="layer1")
    b, c = cut(rest, at="layer2")
    for joined in (join(a, b, c), join(join(a, b), c), join(a, join(b, c))):
        assert_same(outputs(joined.module, X), outputs(net.module, X))


def test_norms_stay_as_they_were_joined_inside_another_join():
    net = build("resnet8", size=8, width=4)
    a, rest = cut(net, at="layer1")
    b, c = cut(rest, at="layer2")
    inner = join(a, b, norms="batch")
    with pytest.raises(ContractError, match="space unknown"):
        join(inner, c)  # other statistics, other features
    whole = join(inner, c, norms="stored", force=True)
    with torch.no_grad():
        expected = copy.deepcopy(c.module).eval()(copy.deepcopy(inner.module).eval()(X))
    assert_same(outputs(whole.module, X), (expected,))
