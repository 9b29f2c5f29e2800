"""Folders that lie: each is refused with one clear line, before anything random is made of it."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail.core.errors import DovetailError
from dovetail.core.plain import MOST_BYTES
from dovetail.parts import blueprint
from dovetail.parts.builders import builder
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.part import Part, build
from dovetail.parts.recipe import DEEPEST

WEIGHTS, CONFIG, MANIFEST, PROBE = (
    "model.safetensors",
    "config.json",
    "manifest.json",
    "probe.safetensors",
)


@pytest.fixture
def folder(tmp_path):
    part = build("mlp", shape=(4,), hidden=(5, 5), classes=3)
    return part.save_pretrained(tmp_path / "part")


# Tools of the liar --------------------------------------------------------------------------------


def edit_json(path, change):
    value = json.loads(path.read_text())
    changed = change(value)
    path.write_text(json.dumps(value if changed is None else changed))


def make_consistent(folder, digest=None):
    """Let the manifest vouch for the files as they now are."""

    def change(manifest):
        for name in manifest["files"]:
            data = (folder / name).read_bytes()
            manifest["files"][name] = {
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": len(data),
            }
        if digest is not None:
            manifest["digest"] = digest

    edit_json(folder / MANIFEST, change)


def edit_weights(folder, change):
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file(state, folder / WEIGHTS)
    make_consistent(folder)


def edit_config(folder, change):
    edit_json(folder / CONFIG, change)
    make_consistent(folder)


def refused(folder, reason, *, verify=False):
    """Loading fails with our error, whose first line gives the reason."""
    state = torch.get_rng_state()
    with pytest.raises(DovetailError) as caught:
        Part.from_pretrained(folder, verify=verify)
    assert reason in str(caught.value).splitlines()[0]
    assert caught.value.__cause__ is None
    assert torch.equal(torch.get_rng_state(), state)
    return caught.value


def test_an_honest_folder_loads(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        CONFIG,
        MANIFEST,
        WEIGHTS,
        PROBE,
    ]
    make_consistent(folder)
    assert Part.from_pretrained(folder, verify=True).contract.gives[0].shape == (3,)


# Weights ------------------------------------------------------------------------------------------


def renamed(state):
    state["classifier.weight"] = state.pop("head.weight")
    state["classifier.bias"] = state.pop("head.bias")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (renamed, "tensor 'head.weight' is missing (and 3 more)"),
        (lambda s: s.pop("head.bias") is None, "tensor 'head.bias' is missing"),
        (lambda s: s.update(extra=torch.zeros(1)), "tensor 'extra' is not wanted"),
        (
            lambda s: s.update({"head.weight": torch.zeros(5, 3)}),
            "tensor 'head.weight' is float32 [5, 3], expected float32 [3, 5]",
        ),
        (
            lambda s: s.update({"head.bias": torch.zeros(3, dtype=torch.float64)}),
            "tensor 'head.bias' is float64 [3], expected float32 [3]",
        ),
        (
            lambda s: s.update({"head.bias": torch.zeros(3, dtype=torch.float16)}),
            "is float16 [3], expected float32 [3]",
        ),
        (lambda s: s.clear(), "is missing (and 5 more)"),
    ],
    ids=["renamed", "missing", "extra", "shape", "float64", "float16", "empty"],
)
def test_weights_that_do_not_fit_the_recipe(folder, change, reason):
    edit_weights(folder, change)
    refused(folder, reason)


def test_nothing_is_built_when_the_header_does_not_fit(folder, monkeypatch):
    edit_weights(folder, renamed)
    devices = []
    real = blueprint.rebuild

    def watched(recipe):
        devices.append(torch.get_default_device().type)
        return real(recipe)

    monkeypatch.setattr(blueprint, "rebuild", watched)
    monkeypatch.delattr(blueprint.Blueprint, "with_memory")
    refused(folder, "does not fit its recipe")
    assert devices == ["meta"]


def test_swapped_tensors_of_one_shape(folder):
    def swap(state):
        a, b = "hidden1.linear.bias", "hidden2.linear.bias"
        state[a], state[b] = state[b].clone(), state[a].clone()

    edit_weights(folder, swap)
    refused(folder, "digest differs")


def test_one_flipped_bit(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    refused(folder, "sha256 differs from the manifest")
    make_consistent(folder)
    refused(folder, "digest differs")


def test_truncated_weights(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-8])
    refused(folder, "bytes, the manifest says")
    make_consistent(folder)
    refused(folder, "not a safetensors file")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        struct.pack("<Q", 1 << 62),
        struct.pack("<Q", 1 << 20) + b"{",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{}",
        pickle.dumps({"head.weight": [1.0, 2.0]}),
        b"PK\x03\x04" + bytes(64),
    ],
    ids=["empty", "zeros", "giant-header", "half-header", "list", "nothing", "pickle", "zip"],
)
def test_no_safetensors_at_all(folder, data):
    (folder / WEIGHTS).write_bytes(data)
    make_consistent(folder)
    refused(folder, WEIGHTS)


def test_a_pickle_is_never_run(folder, tmp_path):
    witness = tmp_path / "witness"

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (witness,))

    torch.save({"head.weight": Bomb()}, folder / WEIGHTS)
    make_consistent(folder)
    refused(folder, "not a safetensors file")
    assert not witness.exists()


# Manifest -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format=2), "part format 2, this dovetail reads 1; update"),
        (lambda m: m.update(format="1"), "part format '1'"),
        (lambda m: m.update(format=True), "expected int, found bool"),
        (lambda m: m.pop("format") and None, "part format None"),
        (lambda m: [m], "part format None"),
        (lambda m: m.pop("digest") and None, "field 'digest' is missing"),
        (lambda m: m.update(digest="00"), "digest differs"),
        (lambda m: m.update(more=1), "unknown field 'more'"),
        (lambda m: m["files"].pop(WEIGHTS) and None, f"does not list {WEIGHTS}"),
        (lambda m: m["files"].pop(CONFIG) and None, f"does not list {CONFIG}"),
        (lambda m: m["files"][CONFIG].update(size=1), "bytes, the manifest says 1"),
        (lambda m: m["files"][CONFIG].update(size="1"), "expected int, found str"),
        (lambda m: m["files"][CONFIG].update(sha256="00"), "sha256 differs"),
        (lambda m: m["files"].update({"../x": m["files"][CONFIG]}), "'../x' is not a file of a"),
        (
            lambda m: m["files"].update({"/etc/hosts": m["files"][CONFIG]}),
            "is not a file of a part",
        ),
        (lambda m: m["files"].update({"a.py": m["files"][CONFIG]}), "is not a file of a part"),
        (lambda m: m.update(files=[]), "manifest.json.files: expected dict"),
    ],
)
def test_a_manifest_that_lies(folder, change, reason):
    edit_json(folder / MANIFEST, change)
    refused(folder, reason)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, PROBE, "README.md"])
def test_a_listed_file_that_is_missing(folder, name):
    (folder / name).unlink()
    refused(folder, "missing, or not a plain file")


@pytest.mark.parametrize("name", [CONFIG, MANIFEST])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not readable as JSON"),
        (b"{", "not readable as JSON"),
        (b"\xff\xfe\x00", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"format": NaN}', "NaN is not JSON"),
        (b'{"format": 1' + b"0" * 5000 + b"}", "not readable as JSON"),
        (b" " * (MOST_BYTES + 1), "more than a file of ours"),
    ],
    ids=["empty", "half", "bytes", "deep", "nan", "long-number", "large"],
)
def test_json_that_is_none(folder, name, data, reason):
    (folder / name).write_bytes(data)
    if name == CONFIG:
        make_consistent(folder)
    refused(folder, reason)


def test_no_manifest_no_folder_and_a_file(folder, tmp_path):
    (folder / MANIFEST).unlink()
    refused(folder, "no such file")
    refused(tmp_path / "nowhere", "no such folder")
    refused(folder / CONFIG, "no such folder")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, PROBE])
def test_links_are_not_followed(folder, name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    refused(folder, "not a plain file")


def test_a_folder_in_place_of_a_file(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()
    refused(folder, "not a plain file")


# Config -------------------------------------------------------------------------------------------


def deep_recipe(config):
    for _ in range(DEEPEST + 1):
        config["recipe"] = {"cut": {"of": config["recipe"], "at": "head", "side": "front"}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(recipe={"run": "rm"}), "unknown operator 'run'"),
        (lambda c: c["recipe"].update(build="mlpp"), "unknown builder 'mlpp'"),
        (lambda c: c["recipe"].update(build="dovetail.parts.zoo.mlp"), "unknown builder"),
        (lambda c: c["recipe"]["args"].update(path="x"), "no argument 'path'"),
        (lambda c: c["recipe"]["args"].update(classes="3"), "classes: expected int"),
        (lambda c: c["recipe"]["args"].update(classes=-3), "classes must be at least 1"),
        (lambda c: c["recipe"]["args"].update(classes=10**30), "no tensor is as large as"),
        (lambda c: c["recipe"]["args"].update(classes=2**63 - 1), "the recipe cannot be built"),
        (lambda c: c["recipe"]["args"].update(classes=4), "does not fit its recipe"),
        (lambda c: c["recipe"]["args"].update(hidden=[10**6, 10**6]), "does not fit its recipe"),
        (deep_recipe, "nested deeper than"),
        (
            lambda c: c.update(
                recipe={"cut": {"of": c["recipe"], "at": "hidden9", "side": "front"}}
            ),
            "no cut point 'hidden9'",
        ),
        (
            lambda c: c.update(
                recipe={"cut": {"of": c["recipe"], "at": "hidden1", "side": "front"}}
            ),
            "is not wanted",
        ),
        (lambda c: c.pop("recipe") and None, "'recipe' is missing"),
        (lambda c: c.pop("contract") and None, "'contract' is missing"),
        (lambda c: c.pop("origin") and None, "'origin' is missing"),
        (lambda c: [c], "'contract' is missing"),
        (lambda c: c.update(contract=[]), "contract: expected Contract"),
        (lambda c: c["contract"].update(takes="all"), "contract.takes: expected tuple"),
        (lambda c: c["contract"]["takes"][0].update(shape=["4"]), "shape[0]: expected int"),
        (lambda c: c["contract"]["takes"][0].update(dtype="load"), "unknown dtype 'load'"),
        (lambda c: c["contract"]["takes"][0].update(shape=[-4]), "no tensor has the shape"),
        (lambda c: c["contract"].update(classes={"0": "cat"}), "contract.classes: expected tuple"),
        (lambda c: c["contract"].update(code="import os"), "contract: unknown field 'code'"),
        (lambda c: c["origin"].update(measured={"a": "good"}), "origin.measured.a: expected float"),
        (lambda c: c["origin"].update(parents=[1]), "origin.parents[0]: expected str"),
    ],
)
def test_a_config_that_lies(folder, change, reason):
    edit_config(folder, change)
    refused(folder, reason)


# The probe ----------------------------------------------------------------------------------------


def edit_probe(folder, change):
    stored = load_file(folder / PROBE)
    change(stored)
    save_file(stored, folder / PROBE)
    make_consistent(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.update({"output.0": p["output.0"] + 0.01}), "no longer gives the output"),
        (lambda p: p.update({"output.0": p["output.0"][:1]}), "no longer gives the output"),
        (lambda p: p.update({"output.0": p["output.0"].double()}), "no longer gives the output"),
        (lambda p: p.update({"output.0": p["output.0"] * torch.nan}), "no longer gives the output"),
        (lambda p: p.update({"output.1": p["output.0"].clone()}), "no longer gives the output"),
        (lambda p: p.pop("output.0") is None, "no longer gives the output"),
        (lambda p: p.pop("input.0") is None, "the probe cannot be replayed"),
        (lambda p: p.update({"input.0": torch.zeros(2, 9)}), "the probe cannot be replayed"),
        (lambda p: p.update({"noise": torch.zeros(1)}), "the probe cannot be replayed"),
    ],
)
def test_a_probe_that_drifted_is_caught_by_verify(folder, change, reason):
    edit_probe(folder, change)
    Part.from_pretrained(folder)  # only verify replays it
    refused(folder, reason, verify=True)


def test_a_probe_that_is_no_safetensors(folder):
    (folder / PROBE).write_bytes(b"not tensors")
    make_consistent(folder)
    refused(folder, "the probe cannot be replayed", verify=True)


def test_a_probe_nobody_vouches_for_is_not_read(folder):
    edit_json(folder / MANIFEST, lambda m: m["files"].pop(PROBE) and None)
    (folder / PROBE).write_bytes(b"not tensors")
    Part.from_pretrained(folder, verify=True)


FLAVOUR = {"activation": nn.ReLU}


@builder("hostile/drifting")
def drifting() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), FLAVOUR["activation"](), nn.Linear(5, 2))


def test_a_builder_that_drifted_between_versions_is_caught(tmp_path, monkeypatch):
    part = adopt(drifting(), example=torch.zeros(1, 4))
    saved = part.save_pretrained(tmp_path / "part")
    Part.from_pretrained(saved, verify=True)
    monkeypatch.setitem(FLAVOUR, "activation", nn.Tanh)
    refused(saved, "no longer gives the output it was stored with", verify=True)
