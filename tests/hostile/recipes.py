"""Tricks with recipes: they ask for code, for what is not there, or for far too much."""

from __future__ import annotations

from hostile.liar import MLP, WEIGHTS, Tricks, arguments, cuts, recipe
from safetensors.torch import load_file, save_file

TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several


@several(
    "unknown operator",
    call={"call": "os.system", "args": ["true"]},
    python={"py/reduce": []},
    empty={},
    long={"x" * 1_000_000: 1},
)
def operator(folder, canary, value):
    recipe(folder, value)


@several(
    "unknown builder",
    dotted="os.system",
    path="../../mlp",
    dunder="__import__",
    module="dovetail.parts.zoo.mlp:mlp",
    long="x" * 4_000_000,
)
def builder(folder, canary, name):
    recipe(folder, {"build": name, "args": {}})


@several(
    "",  # whether timm is installed or not: never asked, or asked and refused
    pretrained={"build": "timm/resnet18", "args": {"pretrained": True}},
    checkpoint={"build": "timm/resnet18", "args": {"checkpoint_path": "/tmp/x.pth"}},
    config={"build": "timm/resnet18", "args": {"pretrained_cfg": {"url": "http://localhost/"}}},
    hub={"build": "timm/hf-hub:someone/something", "args": {}},
    folder={"build": "timm/local-dir:/tmp", "args": {}},
    upward={"build": "timm/../resnet18", "args": {}},
)
def timm(folder, canary, value):
    recipe(folder, value)


@several(
    "",
    unknown={"path": "/etc/passwd"},
    star={"**": {}},
    self={"self": 1},
    text={"classes": "3"},
    boolean={"classes": True},
    fraction={"classes": 3.5},
    negative={"classes": -3},
    none={"classes": None},
)
def argument(folder, canary, args):
    arguments(folder, **args)


@several(
    "",
    classes={"classes": 10**12},
    beyond_int64={"classes": 10**30},
    long_number={"classes": 10**4000},
    layers={"hidden": [1_000_000] * 10_000},
    small_layers={"hidden": [1] * 4_000},
    axes={"shape": [10**4000] * 500},
    many_axes={"shape": [2] * 4_000},
)
def argument_bomb(folder, canary, args):
    arguments(folder, **args)


@several(
    "",
    resnet8={"width": 10**9},
    resnet56={"width": 10**6},
    vgg13={"width": 10**9},
    wideresnet16={"widen": 10**9},
    mobilenetv2={"width": 1e12},
    lenet5={"channels": 10**12, "size": 10**9},
)
def wide(folder, canary, args):
    recipe(folder, {"build": folder.name.removeprefix("wide-"), "args": args})


@trick("does not fit its recipe")
def whole_network_for_one_layer(folder, canary):
    """The kept side of the cut is as small as the file; what is cut off would be 40 GB."""
    whole = {"build": "mlp", "args": {"shape": [4], "hidden": [5, 5, 100_000, 100_000]}}
    recipe(folder, cuts(whole, 1, at="hidden2"))


@trick("digest differs")
def whole_network_for_one_layer_that_fits(folder, canary):
    whole = {"build": "mlp", "args": {"shape": [4], "hidden": [5, 5, 100_000, 100_000]}}
    state = load_file(folder / WEIGHTS)
    save_file({k: v for k, v in state.items() if "head" not in k}, folder / WEIGHTS)
    recipe(folder, cuts(whole, 1, at="hidden2"))


@trick("is not wanted")
def cuts_31_deep(folder, canary):
    recipe(folder, cuts(MLP, 31))


@trick("nested deeper")
def cuts_40_deep(folder, canary):
    recipe(folder, cuts(MLP, 40))


@several("no cut point", unknown="hidden9", long="hidden1." * 100_000, dots="....", empty="")
def cut_at(folder, canary, at):
    recipe(folder, {"cut": {"of": MLP, "at": at, "side": "front"}})


@trick("no cut point")
def cut_nowhere_in_a_long_network(folder, canary):
    long = {"build": "mlp", "args": {"shape": [4], "hidden": [5] * 1500}}
    recipe(folder, {"cut": {"of": long, "at": "nowhere", "side": "front"}})


@several("", thousand=1_000, hundred_thousand=50_000)
def join_of(folder, canary, count):
    recipe(folder, {"join": {"parts": [{"build": "mlp"}] * count}})


@trick("more than 10000 pieces")
def join_of_large_ones(folder, canary):
    recipe(folder, {"join": {"parts": [{"build": "resnet56"}] * 600}})


@trick("an adapter maps")
def adapter_of_nothing(folder, canary):
    recipe(folder, {"adapter": {"takes": 0, "gives": -1, "maps": True}})


@trick("")
def adapter_of_everything(folder, canary):
    recipe(folder, {"adapter": {"takes": 2**62, "gives": 2**62, "maps": False}})


@several("cannot be inside another", thirty=30, in_a_join=1)
def linearised_within_linearised(folder, canary, count):
    """Run, each level would take twice as long as the one inside it."""
    of = {"linearise": {"of": MLP, "outputs": 3}}
    if count == 1:
        of = {"join": {"parts": [of, {"adapter": {"takes": 3, "gives": 3, "maps": False}}]}}
    for _ in range(count):
        of = {"linearise": {"of": of, "outputs": 3}}
    recipe(folder, of)
