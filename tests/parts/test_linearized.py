"""A linearised network: its values, its recipe, its folder, and folders that lie about it."""

from __future__ import annotations

import copy
import hashlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail.core.errors import ContractError, CutError, DovetailError, FormatError, RecipeError
from dovetail.core.plain import to_plain
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import cut
from dovetail.parts.linearized import LinearizedNetwork
from dovetail.parts.part import Part, build
from dovetail.parts.recipe import Build, Cut, Linearize, in_words, read_recipe, rebuild
from dovetail.testing import check_part


class Attentive(nn.Module):
    """A transformer that gives one row an input."""

    def __init__(self, width=8):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(2, 3, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0][:, -1]


def convolutional():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2.0)
    return net


BODIES = {
    "dense": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,)),
    "maps": (convolutional, (1, 5, 5)),
    "attention": (Attentive, (4, 8)),
    "tied": (Tied, (3,)),
    "recurrent": (Recurrent, (4, 2)),
    "resnet": (lambda: build("resnet8", size=8, width=4, classes=3, channels=1).module, (1, 8, 8)),
}


def drawn(body, outputs, **options):
    """A linearised network with everything drawn at random."""
    net = LinearizedNetwork(body, outputs, **options)
    for tensor in (*net.direction.buffers(), net.constant):
        tensor.normal_()
    if net.projection is not None:
        net.projection.normal_()
    net.temperature.fill_(1.5)
    return net.eval()


def by_a_step(net, x, step=1e-6):
    """The definition, the derivative by moving the weights there and back, in float64."""
    body = copy.deepcopy(net.body).double().eval()
    value = body(x.double())
    ways = []
    for sign in (1, -1):
        there = copy.deepcopy(body)
        for name, direction in net.direction.named_buffers():
            there.get_parameter(name).data += sign * step * direction.double()
        ways.append(there(x.double()))
    total = (ways[0] - ways[1]) / (2 * step)
    if net.follows_network:
        total = total + value
    if total.ndim > 2:
        total = total.flatten(2).mean(2)
    if net.projection is not None:
        total = total @ net.projection.double()
    return ((total + net.constant.double()) / net.temperature.double()).detach()


@pytest.mark.parametrize("name", list(BODIES))
@pytest.mark.parametrize("follows", [True, False])
def test_the_value_is_the_definition(name, follows):
    make, shape = BODIES[name]
    x = torch.randn(3, *shape)
    net = drawn(make(), 2, projected=3, follows_network=follows)
    torch.testing.assert_close(net(x).double(), by_a_step(net, x), rtol=2e-5, atol=2e-5)


@settings(max_examples=10, deadline=None)
@given(st.sets(st.sampled_from(["0.weight", "0.bias", "2.weight", "2.bias"]), min_size=1))
def test_only_what_is_named_moves(moves):
    torch.manual_seed(0)
    make, shape = BODIES["dense"]
    net = drawn(make(), 3, moves=sorted(moves))
    assert {name for name, _ in net.direction.named_buffers()} == moves
    x = torch.randn(2, *shape)
    torch.testing.assert_close(net(x).double(), by_a_step(net, x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", list(BODIES))
def test_modes_of_torch_and_of_the_module_change_nothing(name):
    make, shape = BODIES[name]
    net = drawn(make(), 3)
    x = torch.randn(3, *shape)
    expected = net(x)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    with torch.no_grad():
        assert torch.equal(net(x), expected)
    with torch.inference_mode():
        assert torch.equal(net(x), expected)
        assert torch.equal(net(torch.randn(3, *shape) * 0 + x), expected)  # of an inference tensor
    assert torch.equal(net.train()(x), expected)
    assert not any(child.training for child in net.body.modules())
    assert not expected.requires_grad
    assert torch.equal(outputs_of(Part(net), x, batch_size=2)[:2], net(x[:2]))
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    with torch.inference_mode():
        born_there = copy.deepcopy(net)
    assert torch.equal(born_there(x), expected)


class NoForwardDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(NoForwardDerivative.apply(self.first(x)))


def test_an_operation_without_a_forward_derivative():
    net, x = drawn(Stubborn(), 2), torch.randn(3, 4)
    torch.testing.assert_close(net(x).double(), by_a_step(net, x), rtol=2e-5, atol=2e-5)


def test_inputs_that_do_not_fit_are_the_bodys_own_error():
    make, _ = BODIES["dense"]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        drawn(make(), 3)(torch.randn(2, 7))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"moves": ["head"]}, "no parameter is called 'head'"),
        ({"moves": ["0.weight", "0.weight"]}, "named twice"),
        ({"moves": []}, "no parameter moves"),
    ],
)
def test_what_cannot_move_is_refused(options, reason):
    with pytest.raises(RecipeError, match=reason):
        LinearizedNetwork(BODIES["dense"][0](), 3, **options)


def test_a_width_that_is_not_the_bodys_is_refused():
    with pytest.raises(ContractError, match="gives 3 numbers an input, not 5"):
        LinearizedNetwork(BODIES["dense"][0](), 5)(torch.zeros(2, 4))
    with pytest.raises(ContractError, match="gives 3 numbers an input, not 1"):
        LinearizedNetwork(BODIES["dense"][0](), 1)(torch.zeros(2, 4))  # which would broadcast


# Recipes ------------------------------------------------------------------------------------------

OF = Build("mlp", {"shape": [4], "hidden": [5], "classes": 3})


@given(
    st.builds(
        Linearize,
        st.just(OF) | st.just(Cut(OF, "hidden1", "front")),
        st.integers(1, 10**6),
        st.none() | st.lists(st.text(max_size=8), max_size=3).map(tuple),
        st.none() | st.integers(1, 10**6),
        st.booleans(),
    )
)
def test_to_json_and_back_changes_nothing(recipe):
    assert read_recipe(json.loads(json.dumps(to_plain(recipe)))) == recipe
    assert in_words(recipe).startswith("linearised ")


PLAIN = to_plain(OF)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outputs": 3}, "recipe.linearise.of: expected an operator"),
        ({"of": {"build": "os.system"}, "outputs": 3}, "unknown builder 'os.system'"),
        ({"of": PLAIN}, "field 'outputs' is missing"),
        ({"of": PLAIN, "outputs": 0}, "at least one number"),
        ({"of": PLAIN, "outputs": 2, "projected": -1}, "at least one number"),
        ({"of": PLAIN, "outputs": "3"}, "recipe.linearise.outputs: expected int"),
        ({"of": PLAIN, "outputs": 3, "moves": "head"}, "recipe.linearise.moves"),
        ({"of": PLAIN, "outputs": 3, "moves": [1]}, "recipe.linearise.moves"),
        ({"of": PLAIN, "outputs": 3, "follows_network": 1}, "follows_network: expected bool"),
        ({"of": PLAIN, "outputs": 3, "run": "x"}, "unknown field 'run'"),
        ({"of": PLAIN, "outputs": 2**70}, "no tensor is as large"),
        ({"of": PLAIN, "outputs": 3, "moves": ["x"] * 5000}, "more than 4096 values"),
        ([], "needs named fields"),
    ],
)
def test_hostile_recipes_are_refused_by_name(fields, reason):
    with pytest.raises(RecipeError) as caught:
        read_recipe({"linearise": fields})
    assert reason in str(caught.value)


def test_it_nests_to_the_common_limit():
    value = PLAIN
    for _ in range(33):
        value = {"linearise": {"of": value, "outputs": 3}}
    with pytest.raises(RecipeError, match="nested deeper than 32"):
        read_recipe(value)


# Folders ------------------------------------------------------------------------------------------


def part_of(moves=("head.weight",)):
    recipe = Linearize(OF, 2, moves, projected=3)
    net = drawn(rebuild(OF), 2, moves=moves, projected=3)
    contract = Contract((Port((4,)),), (Port((2,)),), classes=("cat", "dog"))
    return Part(net, contract, recipe)


@pytest.fixture
def folder(tmp_path):
    return part_of().save_pretrained(tmp_path / "part")


def consistent(folder):
    """Let the manifest vouch for the files as they now are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def with_fields(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["linearise"] |= fields
    (folder / "config.json").write_text(json.dumps(config))
    consistent(folder)


def test_a_part_of_it_satisfies_what_every_part_does():
    check_part(part_of())


def test_a_folder_gives_the_same_part_back(folder):
    part, twin = part_of(), Part.from_pretrained(folder, verify=True)
    x = torch.randn(3, 4)
    torch.manual_seed(0)
    part = part_of()
    assert sorted(twin.module.state_dict()) == [
        "body.head.bias",
        "body.head.weight",
        "body.hidden1.linear.bias",
        "body.hidden1.linear.weight",
        "constant",
        "direction.head.weight",
        "projection",
        "temperature",
    ]
    assert twin.digest == part.digest
    assert torch.equal(twin(x), part(x))
    assert twin.described == "linearised mlp"


def test_a_direction_that_is_missing_is_noticed(folder):
    state = load_file(folder / "model.safetensors")
    del state["direction.head.weight"]
    save_file(state, folder / "model.safetensors")
    consistent(folder)
    with pytest.raises(FormatError, match=r"'direction\.head\.weight' is missing"):
        Part.from_pretrained(folder)


def test_another_direction_is_noticed_by_the_probe(folder):
    state = load_file(folder / "model.safetensors")
    state["direction.head.weight"] += 1.0
    save_file(state, folder / "model.safetensors")
    consistent(folder)
    with pytest.raises(FormatError):
        Part.from_pretrained(folder, verify=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outputs": 10**12}, "tensor 'projection' is float32 [3, 2]"),
        ({"outputs": 2**62}, "cannot be built"),
        ({"projected": 10**9}, "tensor 'projection'"),
        ({"projected": None}, "tensor 'projection' is not wanted"),
        ({"moves": None}, "tensor 'direction.hidden1.linear.weight' is missing"),
        ({"moves": ["head.scale"]}, "no parameter is called 'head.scale'"),
        ({"of": {"build": "mlp", "args": {"shape": [4], "hidden": [10**9], "classes": 3}}}, "body"),
    ],
)
def test_recipes_that_the_weights_do_not_fit_allocate_nothing(folder, fields, reason, monkeypatch):
    with_fields(folder, **fields)
    monkeypatch.delattr("dovetail.parts.blueprint.Blueprint.with_memory")
    with pytest.raises(DovetailError) as caught:
        Part.from_pretrained(folder)
    assert reason in str(caught.value)


def test_following_the_network_is_part_of_what_it_is(folder, tmp_path):
    with_fields(folder, follows_network=False)
    with pytest.raises(FormatError):  # the same tensors, other values
        Part.from_pretrained(folder, verify=True)
    part = part_of()
    part.module.follows_network = False
    with pytest.raises(FormatError, match="does not rebuild this module"):
        part.save_pretrained(tmp_path / "other")


def test_it_is_not_cut_open():
    with pytest.raises(CutError):
        cut(part_of(), "body.hidden1")


def test_a_linearised_network_inside_another_is_refused():
    inner = LinearizedNetwork(nn.Linear(2, 2), 2)
    with pytest.raises(RecipeError, match="cannot be inside another"):
        LinearizedNetwork(nn.Sequential(inner, nn.Linear(2, 1)), 1)
