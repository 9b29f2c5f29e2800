"""Files that change between the check and the use; and names that ask another library to fetch."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from hostile.liar import CONFIG, CONTAINER, PROBE, WEIGHTS, container, honest, pack_folder
from torch import nn

from dovetail.core import folders
from dovetail.core.errors import DovetailError, FormatError, RecipeError
from dovetail.parts import blueprint, builders
from dovetail.parts.packed import with_packed
from dovetail.parts.part import Part, build


@pytest.fixture
def folder(tmp_path):
    return honest().save_pretrained(tmp_path / "part")


@pytest.fixture
def other(tmp_path):
    """The same network with other weights."""
    part = build("mlp", shape=(4,), hidden=(5, 5), classes=3, seed=1)
    return part.save_pretrained(tmp_path / "other")


def when_hashed(monkeypatch, hashed, exchange):
    """Exchange a file as soon as the hash of another (or the same) has been taken."""
    real = folders.sha256_of

    def sha256_of(path):
        digest = real(path)
        if path.name == hashed:
            exchange()
        return digest

    monkeypatch.setattr(folders, "sha256_of", sha256_of)


def test_weights_exchanged_after_their_hash_was_checked(folder, other, monkeypatch):
    when_hashed(monkeypatch, WEIGHTS, lambda: os.replace(other / WEIGHTS, folder / WEIGHTS))
    with pytest.raises(FormatError, match="digest differs"):
        Part.from_pretrained(folder)


def test_a_container_exchanged_after_it_was_read_is_not_seen(folder, tmp_path, monkeypatch):
    pack_folder(folder)
    mine = Part.from_pretrained(folder).digest
    part = build("mlp", shape=(4,), hidden=(5, 5), classes=3, seed=1)
    other = with_packed(part, container(part)).save_pretrained(tmp_path / "other")
    before_loading(monkeypatch, lambda: os.replace(other / CONTAINER, folder / CONTAINER))
    assert Part.from_pretrained(folder).digest == mine


def test_a_config_exchanged_after_the_files_were_checked(folder, tmp_path, monkeypatch):
    part = build("mlp", shape=(4,), hidden=(5, 5), classes=3, activation="tanh")
    lie = part.save_pretrained(tmp_path / "lie")  # the same tensors, another network
    when_hashed(monkeypatch, PROBE, lambda: os.replace(lie / CONFIG, folder / CONFIG))
    with pytest.raises(FormatError, match=r"config.json: sha256 differs"):
        Part.from_pretrained(folder)


def test_a_probe_exchanged_after_its_hash_was_checked(folder, other, monkeypatch):
    when_hashed(monkeypatch, PROBE, lambda: os.replace(other / PROBE, folder / PROBE))
    with pytest.raises(FormatError, match="no longer gives the output"):
        Part.from_pretrained(folder, verify=True)


def before_loading(monkeypatch, exchange):
    real = blueprint.Blueprint.with_memory

    def with_memory(self):
        exchange()
        return real(self)

    monkeypatch.setattr(blueprint.Blueprint, "with_memory", with_memory)


def test_weights_exchanged_after_their_header_was_checked_are_not_seen(folder, other, monkeypatch):
    before_loading(monkeypatch, lambda: os.replace(other / WEIGHTS, folder / WEIGHTS))
    assert Part.from_pretrained(folder).digest == honest().digest


def test_weights_overwritten_after_their_header_was_checked(folder, other, monkeypatch):
    def overwrite():
        with open(folder / WEIGHTS, "r+b") as file:
            file.write((other / WEIGHTS).read_bytes())

    before_loading(monkeypatch, overwrite)
    with pytest.raises(FormatError, match="digest differs"):
        Part.from_pretrained(folder)


def test_files_the_manifest_does_not_list_are_not_looked_at(folder):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (folder / "setup.py").write_text("raise SystemExit")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    assert Part.from_pretrained(folder, verify=True).digest == honest().digest


# What is kept of a large network ------------------------------------------------------------------


def test_one_side_of_a_cut_loads_without_the_other(tmp_path, monkeypatch):
    from dovetail.parts.cutting import cut

    front, _ = cut(build("mlp", shape=(4,), hidden=(5, 5)), at="hidden1")
    saved = front.save_pretrained(tmp_path / "front")
    with monkeypatch.context() as patched:
        patched.setattr(blueprint, "rebuild", _only_on_meta(blueprint.rebuild))
        loaded = Part.from_pretrained(saved, verify=True)
    assert loaded.digest == front.digest
    assert loaded.module.hidden1.linear.weight.requires_grad


def _only_on_meta(real):
    def rebuild(recipe):
        assert torch.get_default_device().type == "meta"
        return real(recipe)

    return rebuild


class Hidden(nn.Module):
    """Tensors that its state dict does not hold, of every kind."""

    def __init__(self, kind):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        table = torch.arange(2.0)
        if kind == "buffer":
            self.register_buffer("table", table, persistent=False)
        else:
            self.kept = {"attribute": table, "inside": [{"a": (table,)}]}[kind]

    def forward(self, x):
        kept = self.table if hasattr(self, "table") else self.kept
        return self.linear(x) + (kept[0]["a"][0] if isinstance(kept, list) else kept)


@builders.builder("hostile/hidden")
def hidden(*, kind: str = "buffer") -> nn.Module:
    return Hidden(kind)


@builders.builder("hostile/tied")
def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    net[1].bias.requires_grad_(False)
    return net


@pytest.mark.parametrize("kind", ["buffer", "attribute", "inside"])
def test_tensors_outside_the_state_dict_come_back(kind, tmp_path):
    from dovetail.parts.foreign.adopting import adopt

    part = adopt(hidden(kind=kind), example=torch.zeros(1, 4))
    loaded = Part.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True)
    x = torch.rand(3, 4)
    assert torch.equal(loaded(x), part(x))


def test_ties_and_frozen_parameters_come_back(tmp_path):
    from dovetail.parts.foreign.adopting import adopt

    part = adopt(tied(), example=torch.zeros(1, 4))
    loaded = Part.from_pretrained(part.save_pretrained(tmp_path / "part"), verify=True).module
    assert loaded[0].weight is loaded[1].weight
    assert [p.requires_grad for p in loaded.parameters()] == [True, True, False]


def test_what_must_be_built_in_vain_has_a_limit(tmp_path, monkeypatch):
    from dovetail.parts.foreign.adopting import adopt

    part = adopt(hidden(), example=torch.zeros(1, 4))
    saved = part.save_pretrained(tmp_path / "part")
    monkeypatch.setattr(blueprint, "SPARE_BYTES", -1000)
    with pytest.raises(RecipeError, match="the recipe builds 48 bytes to keep 40"):
        Part.from_pretrained(saved)


def test_a_config_that_nobody_could_read_again_is_not_written(tmp_path):
    from dataclasses import replace

    part = honest()
    origin = replace(part.origin, settings={"log": "x" * (5 << 20)})
    with pytest.raises(FormatError, match="at most 4194304 are read"):
        part.changed(origin=origin).save_pretrained(tmp_path / "part")
    origin = replace(part.origin, settings={"log": "\ud800"})
    with pytest.raises(FormatError, match="not readable as JSON"):
        part.changed(origin=origin).save_pretrained(tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


# Another library ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("timm/net", {"pretrained": True}, "no argument 'pretrained'"),
        ("timm/net", {"checkpoint_path": "/x.pth"}, "no argument 'checkpoint_path'"),
        ("timm/net", {"pretrained_cfg": {}}, "no argument 'pretrained_cfg'"),
        ("timm/hf-hub:a/b", {}, "no architecture 'hf-hub:a/b'"),
        ("timm/local-dir:/tmp", {}, "no architecture 'local-dir:/tmp'"),
        ("timm/" + "x" * 100_000, {}, "no architecture 'xxx"),
    ],
)
def test_timm_is_never_asked_to_fetch(name, args, reason, monkeypatch):
    asked = []
    fake = SimpleNamespace(
        list_models=lambda: ["net"],
        get_pretrained_cfg=lambda architecture: None,
        create_model=lambda *given, **named: asked.append(named) or nn.Linear(1, 1),
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    monkeypatch.setattr(builders, "_KNOWN", dict(builders._KNOWN))
    with pytest.raises(RecipeError, match=reason):
        builders.find_builder(name).build(args)
    assert asked == []
    builders.find_builder("timm/net").build({})
    assert [named["pretrained"] for named in asked] == [False]


def test_a_package_that_cannot_start_is_our_error(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(DovetailError, match=r"needs timm \(operator does not exist\)"):
        builders.find_builder("timm/some-other-net")
