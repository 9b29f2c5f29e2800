"""The tricks: each spoils an honest part's folder, or makes a file for another reader.

A new trick is one function under ``@trick``.  It is given an honest part's folder to spoil (or an
empty one, for a reader of other files) and a path that must never come to exist, and returns what
is to be loaded.  ``says`` is a piece of the refusal's first line.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save, save_file

from dovetail.core.records import load_record
from dovetail.pack.compressing import compress
from dovetail.pack.container import HEAD, write_index
from dovetail.pack.decompressing import Source
from dovetail.parts.packing import with_packed
from dovetail.parts.part import Part, build
from dovetail.tasks.readers import read_idx, read_npz
from dovetail.train.checkpoint import load_checkpoint

WEIGHTS, CONTAINER, CONFIG, MANIFEST, PROBE = (
    "model.safetensors",
    "model.dovepack",
    "config.json",
    "manifest.json",
    "probe.safetensors",
)
GIGABYTE = 1 << 30


def load_part(path: Path) -> None:
    Part.from_pretrained(path, verify=True)


@dataclass(frozen=True)
class Case:
    make: Callable[[Path, Path], Path | None]
    says: str
    load: Callable[[Path], object] = load_part

    @property
    def is_part(self) -> bool:
        return self.load is load_part

    def prepare(self, folder: Path, canary: Path) -> Path:
        if self.is_part:
            honest().save_pretrained(folder)
        else:
            folder.mkdir()
        return self.make(folder, canary) or folder


CASES: dict[str, Case] = {}


def trick(says, load=load_part):
    def register(make):
        name = make.__name__.replace("_", "-")
        assert name not in CASES
        CASES[name] = Case(make, says, load)
        return make

    return register


def several(says, load=load_part, **variants):
    """One trick in several variants: the function takes the variant's value as a third argument."""

    def register(make):
        for name, value in variants.items():
            CASES[f"{make.__name__}-{name}".replace("_", "-")] = Case(
                lambda folder, canary, value=value: make(folder, canary, value), says, load
            )
        return make

    return register


# Tools of the liar --------------------------------------------------------------------------------


def honest() -> Part:
    return build("mlp", shape=(4,), hidden=(5, 5), classes=3)


class Bomb:
    """Unpickling it makes the canary."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return (open, (self.canary, "w"))


def edit_json(path, change):
    value = json.loads(path.read_text())
    changed = change(value)
    # As we write it, or the shelf would see at once that it was not us.
    text = json.dumps(value if changed is None else changed, indent=2, sort_keys=True)
    path.write_text(text + "\n")


def vouch(folder):
    """Let the manifest vouch for the files as they now are."""

    def change(manifest):
        for name in manifest["files"]:
            data = (folder / name).read_bytes()
            manifest["files"][name] = {
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": len(data),
            }

    edit_json(folder / MANIFEST, change)


def put(folder, name, data):
    (folder / name).write_bytes(data)
    if name != MANIFEST:
        vouch(folder)


def recipe(folder, value):
    edit_json(folder / CONFIG, lambda config: config.update(recipe=value))
    vouch(folder)


def arguments(folder, **args):
    edit_json(folder / CONFIG, lambda config: config["recipe"]["args"].update(args))
    vouch(folder)


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def header_of(folder):
    data = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def cuts(of, count, at="hidden1"):
    for _ in range(count):
        of = {"cut": {"of": of, "at": at, "side": "front"}}
    return of


def container(part):
    state = part.module.state_dict()
    bits = {name: 4 for name, tensor in state.items() if tensor.ndim == 2}
    return compress(state, bits=bits)


def pack_folder(folder):
    """Make the honest part's folder one of a packed part."""
    part = honest()
    with_packed(part, container(part)).save_pretrained(folder, overwrite=True)
    return bytearray((folder / CONTAINER).read_bytes())


def lied(data, entry=lambda entry: entry, **more):
    """The container with another index, whose checksum is right."""
    index = Source.of(bytes(data)).index
    at = len(HEAD) + sum(group.size for group in index.groups)
    entries = [entry(each) for each in index.entries]
    settings = {**index.settings, **more}
    return bytes(data[:at]) + write_index(entries, list(index.groups), at, settings)


def shaped(name, shape):
    return lambda entry: replace(entry, shape=shape) if entry.name == name else entry


MLP = {"build": "mlp", "args": {"shape": [4], "hidden": [5, 5], "classes": 3}}


# Pickles and archives in disguise -----------------------------------------------------------------


@trick("not a safetensors file")
def torch_archive_as_weights(folder, canary):
    torch.save({"head.weight": Bomb(canary)}, folder / WEIGHTS)
    vouch(folder)


@trick("not a safetensors file")
def old_torch_file_as_weights(folder, canary):
    torch.save(
        {"head.weight": Bomb(canary)}, folder / WEIGHTS, _use_new_zipfile_serialization=False
    )
    vouch(folder)


@trick("not a safetensors file")
def bare_pickle_as_weights(folder, canary):
    put(folder, WEIGHTS, pickle.dumps(Bomb(canary)))


@trick("not a safetensors file")
def zip_as_weights(folder, canary):
    with zipfile.ZipFile(folder / WEIGHTS, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canary)))
    vouch(folder)


@trick("the probe cannot be replayed")
def pickle_as_probe(folder, canary):
    torch.save({"input.0": Bomb(canary)}, folder / PROBE)
    vouch(folder)


@several("not readable as JSON", config=CONFIG, manifest=MANIFEST)
def pickle_as(folder, canary, name):
    put(folder, name, pickle.dumps(Bomb(canary)))


@trick("no such file")
def pickles_under_the_usual_names(folder, canary):
    for name in ("pytorch_model.bin", "model.pth", "data.pkl", "training_args.bin"):
        torch.save(Bomb(canary), folder / name)
    (folder / MANIFEST).unlink()


@trick("no such folder")
def a_zip_in_place_of_the_folder(folder, canary):
    archive = shutil.make_archive(str(folder), "zip", folder)
    shutil.rmtree(folder)
    os.rename(archive, folder)


# Hashes and names ---------------------------------------------------------------------------------


@trick("sha256 differs")
def one_flipped_bit(folder, canary):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)


@trick("digest differs")
def one_flipped_bit_and_a_new_hash(folder, canary):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    put(folder, WEIGHTS, data)


@several("sha256 differs", empty="", short="00", upper="F" * 64, long="0" * 1_000_000)
def lying_hash(folder, canary, value):
    edit_json(folder / MANIFEST, lambda m: m["files"][CONFIG].update(sha256=value))


@trick("digest differs")
def lying_digest(folder, canary):
    edit_json(folder / MANIFEST, lambda m: m.update(digest="0" * 64))


@several("the manifest says", less=1, negative=-1, more=10 * GIGABYTE, bignum=10**300)
def lying_size(folder, canary, size):
    edit_json(folder / MANIFEST, lambda m: m["files"][WEIGHTS].update(size=size))


@several(
    "is not a file of a part",
    upward="../secret",
    absolute="/etc/passwd",
    detour="config.json/../x",
    same_by_detour="../part/config.json",
    dot="./config.json",
    backslash="..\\config.json",
    null="config.json\0.png",
    script="setup.py",
    empty="",
    long="x" * 1_000_000,
)
def manifest_lists(folder, canary, name):
    edit_json(folder / MANIFEST, lambda m: m["files"].update({name: m["files"][CONFIG]}))


@several("plain file", config=CONFIG, weights=WEIGHTS, probe=PROBE, manifest=MANIFEST)
def link_in_place_of(folder, canary, name):
    elsewhere = folder.with_name(folder.name + "-elsewhere")
    os.rename(folder / name, elsewhere)
    (folder / name).symlink_to(elsewhere)


@several("plain file", config=CONFIG, weights=WEIGHTS, manifest=MANIFEST)
def link_to_the_zero_device(folder, canary, name):
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")


@several("plain file", config=CONFIG, weights=WEIGHTS, probe=PROBE, manifest=MANIFEST)
def pipe_in_place_of(folder, canary, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)


@several("", config=CONFIG, weights=WEIGHTS, manifest=MANIFEST)
def folder_in_place_of(folder, canary, name):
    (folder / name).unlink()
    (folder / name).mkdir()


@trick("plain file")
def link_to_a_folder(folder, canary):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(folder)


@trick("plain file")
def link_to_itself(folder, canary):
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to(MANIFEST)


# JSON ---------------------------------------------------------------------------------------------


@several(
    "not readable as JSON",
    deep=b"[" * 100_000 + b"]" * 100_000,
    deep_objects=b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    as_deep_as_python_reads=b"[" * 900 + b"]" * 900,
    long_number=b'{"format": ' + b"9" * 1_000_000 + b"}",
    infinite=b'{"format": Infinity}',
    latin1='{"format": "é"}'.encode("latin-1"),
    utf16='{"format": 1}'.encode("utf-16"),
    byte_order_mark=b"\xef\xbb\xbf{}",
    half_a_pair=b'{"format": "\\ud800"}',
    null_bytes=b"\0" * 1000,
    twice=b'{"format": 1, "format": 1}',
)
def manifest_is(folder, canary, data):
    put(folder, MANIFEST, data)


@trick("is there twice")
def key_twice_in_config(folder, canary):
    text = (folder / CONFIG).read_text()
    put(
        folder, CONFIG, text.replace('"recipe":', '"recipe": {"build": "x"}, "recipe":', 1).encode()
    )


@trick("nested deeper")
def deep_argument(folder, canary):
    value = []
    for _ in range(300):
        value = [value]
    arguments(folder, hidden=value)


@trick("more than a file of ours")
def long_json(folder, canary):
    put(folder, CONFIG, b" " * (5 << 20))


@trick("more than a file of ours")
def sparse_json(folder, canary):
    with open(folder / MANIFEST, "r+b") as file:
        file.truncate(10 * GIGABYTE)


@trick("part format 2")
def newer_format(folder, canary):
    edit_json(folder / MANIFEST, lambda m: m.update(format=2))


@trick("unknown field")
def unknown_field_of_a_megabyte(folder, canary):
    edit_json(folder / MANIFEST, lambda m: m.update({"x" * 1_000_000: 1}))


@trick("unknown dtype")
def dtype_that_is_a_function(folder, canary):
    edit_json(folder / CONFIG, lambda c: c["contract"]["takes"][0].update(dtype="load"))
    vouch(folder)


@trick("the contract says 1000000000000")
def contract_of_another_shape(folder, canary):
    edit_json(folder / CONFIG, lambda c: c["contract"]["takes"][0].update(shape=[10**12]))
    vouch(folder)


# Recipes ------------------------------------------------------------------------------------------


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
    name = folder.parent.name if folder.name == "1" else folder.name
    recipe(folder, {"build": name.removeprefix("wide-"), "args": args})


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


# Tensors ------------------------------------------------------------------------------------------


@several(
    "not a safetensors file",
    empty=b"",
    header_of_10_gigabytes=struct.pack("<Q", 10 * GIGABYTE) + b"{}",
    header_of_all=struct.pack("<Q", 2**64 - 1) + b"{}",
    header_beyond_the_file=struct.pack("<Q", 60_000) + b"{}",
    deep_header=safetensors(b'{"a":' * 9_000),
    list_header=safetensors([]),
    tensor_of_10_gigabytes=safetensors({"a": entry([10 * GIGABYTE], 0, 40 * GIGABYTE)}),
    overflowing_shape=safetensors({"a": entry([2**62, 2**62], 0, 16)}, bytes(16)),
    negative_shape=safetensors({"a": entry([-1], 0, 4)}, bytes(4)),
    reversed_offsets=safetensors({"a": entry([1], 4, 0)}, bytes(4)),
    overlapping=safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    hole=safetensors({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)),
    wrong_length=safetensors({"a": entry([3], 0, 4)}, bytes(4)),
    unknown_dtype=safetensors({"a": entry([1], 0, 4, "PICKLE")}, bytes(4)),
    same_name_twice=safetensors(
        b'{"a":%b,"a":%b}' % ((json.dumps(entry([1], 0, 4)).encode(),) * 2), bytes(4)
    ),
)
def weights_are(folder, canary, data):
    put(folder, WEIGHTS, data)


def many_tensors():
    one = json.dumps(entry([0], 0, 0))
    return safetensors(("{" + ",".join(f'"t{i}":{one}' for i in range(200_000)) + "}").encode())


@trick("not a safetensors file")
def weights_of_200_000_tensors(folder, canary):
    put(folder, WEIGHTS, many_tensors())


@trick("not a safetensors file")
def sparse_weights(folder, canary):
    with open(folder / WEIGHTS, "r+b") as file:
        file.truncate(64 << 20)
    vouch(folder)


@trick("not a safetensors file")
def tied_by_offsets(folder, canary):
    header, data = header_of(folder)
    header["hidden2.linear.bias"]["data_offsets"] = header["hidden1.linear.bias"]["data_offsets"]
    put(folder, WEIGHTS, safetensors(header, data))


@trick("digest differs")
def unordered_offsets(folder, canary):
    """Both biases have one shape; the header gives each the other's bytes, in a legal file."""
    header, data = header_of(folder)
    a, b = header["hidden1.linear.bias"], header["hidden2.linear.bias"]
    a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]
    put(folder, WEIGHTS, safetensors(header, data))


@trick("digest differs")
def swapped_tensors(folder, canary):
    state = load_file(folder / WEIGHTS)
    a, b = "hidden1.linear.bias", "hidden2.linear.bias"
    state[a], state[b] = state[b].clone(), state[a].clone()
    save_file(state, folder / WEIGHTS)
    vouch(folder)


@trick("not a safetensors file")
def truncated_tensors(folder, canary):
    put(folder, WEIGHTS, (folder / WEIGHTS).read_bytes()[:-4])


@trick("not a safetensors file")
def more_behind_the_tensors(folder, canary):
    put(folder, WEIGHTS, (folder / WEIGHTS).read_bytes() + pickle.dumps(Bomb(canary)))


@trick("is missing (and 3 more)")
def renamed_head(folder, canary):
    state = load_file(folder / WEIGHTS)
    for leaf in ("weight", "bias"):
        state[f"classifier.{leaf}"] = state.pop(f"head.{leaf}")
    save_file(state, folder / WEIGHTS)
    vouch(folder)


@trick("the probe cannot be replayed")
def probe_of_200_000_tensors(folder, canary):
    put(folder, PROBE, many_tensors())


# Packed weights -----------------------------------------------------------------------------------


@trick("sha256 differs")
def packed_one_flipped_bit(folder, canary):
    data = pack_folder(folder)
    data[20] ^= 1
    (folder / CONTAINER).write_bytes(data)


@several("…/model.dovepack: ", head=0, blocks=20, index=-60, tail=-20, end=-1)
def packed_flipped_bit_and_a_new_hash(folder, canary, place):
    data = pack_folder(folder)
    data[place] ^= 1
    put(folder, CONTAINER, data)


@trick("digest differs")
def packed_weights_of_another_part(folder, canary):
    pack_folder(folder)
    put(folder, CONTAINER, container(build("mlp", shape=(4,), hidden=(5, 5), classes=3, seed=1)))


@several(
    "does not fit its recipe",
    wider={"hidden": (5, 6)},
    deeper={"hidden": (5, 5, 5)},
    more_classes={"classes": 4},
)
def packed_weights_for_another_recipe(folder, canary, args):
    pack_folder(folder)
    other = build("mlp", **{"shape": (4,), "hidden": (5, 5), "classes": 3, **args})
    put(folder, CONTAINER, container(other))


@several(
    "",
    large=(10 * GIGABYTE, 4),
    beyond_memory=(2**40, 2**40),
    negative=(-5, 4),
    transposed=(4, 5),
    many_axes=(1,) * 70,
    other_axes=(5, 4, 1),
    longer=(5, 5),
    empty=(0, 4),
)
def packed_index_with_a_shape(folder, canary, shape):
    data = pack_folder(folder)
    put(folder, CONTAINER, lied(data, shaped("hidden1.linear.weight", shape)))


@several("", dtype={"dtype": torch.float64}, rows={"rows": 2}, exact={"rows": 0, "plan": None})
def packed_index_with_another(folder, canary, fields):
    data = pack_folder(folder)
    put(
        folder,
        CONTAINER,
        lied(data, lambda e: replace(e, **fields) if e.name == "head.weight" else e),
    )


@trick("is there twice")
def packed_name_twice(folder, canary):
    data = pack_folder(folder)
    put(folder, CONTAINER, lied(data, lambda entry: replace(entry, name="head.bias")))


@trick("are not believed")
def packed_zeros_without_end(folder, canary):
    """A few hundred bytes that honestly are forty gigabytes, for a recipe that wants them."""
    pack_folder(folder)
    large = {"hidden1.linear.weight": (10**5, 4), "hidden1.linear.bias": (10**5,)}
    large |= {"hidden2.linear.weight": (10**5, 10**5), "hidden2.linear.bias": (10**5,)}
    large |= {"head.weight": (3, 10**5), "head.bias": (3,)}
    small = compress({name: torch.zeros(2) for name in large}, bits=dict.fromkeys(large, 4))
    put(folder, CONTAINER, lied(small, lambda e: replace(e, shape=large[e.name])))
    arguments(folder, hidden=[10**5, 10**5])


@trick("an index of")
def packed_index_of_a_megabyte(folder, canary):
    data = pack_folder(folder)
    put(folder, CONTAINER, lied(data, note="x" * 1_000_000))


@several(
    "…/model.dovepack: ",
    empty=lambda data, canary: b"",
    truncated=lambda data, canary: data[:-30],
    half=lambda data, canary: data[: len(data) // 2],
    longer=lambda data, canary: data + bytes(8),
    twice=lambda data, canary: data + data,
    pickle=lambda data, canary: pickle.dumps(Bomb(canary)),
    zeros=lambda data, canary: bytes(1000),
)
def packed_weights_are(folder, canary, change):
    data = pack_folder(folder)
    put(folder, CONTAINER, change(bytes(data), canary))


@trick("…/model.dovepack: ")
def packed_weights_that_are_safetensors(folder, canary):
    plain = (folder / WEIGHTS).read_bytes()
    pack_folder(folder)
    put(folder, CONTAINER, plain)


@trick("not a safetensors file")
def a_container_as_safetensors(folder, canary):
    put(folder, WEIGHTS, container(honest()))


@trick("lists weights twice")
def packed_weights_beside_plain_ones(folder, canary):
    plain = (folder / WEIGHTS).read_bytes()
    pack_folder(folder)
    (folder / WEIGHTS).write_bytes(plain)
    edit_json(folder / MANIFEST, lambda m: m["files"].update({WEIGHTS: m["files"][CONTAINER]}))
    vouch(folder)


@trick("more than a file of ours")
def packed_weights_that_are_sparse(folder, canary):
    pack_folder(folder)
    with open(folder / CONTAINER, "r+b") as file:
        file.truncate(64 << 20)
    vouch(folder)


@several("plain file", link="elsewhere", zeros="/dev/zero", itself=CONTAINER)
def packed_weights_linked_to(folder, canary, target):
    pack_folder(folder)
    os.rename(folder / CONTAINER, folder / "elsewhere")
    (folder / CONTAINER).symlink_to(target)


@trick("plain file")
def packed_weights_that_are_a_pipe(folder, canary):
    pack_folder(folder)
    (folder / CONTAINER).unlink()
    os.mkfifo(folder / CONTAINER)


# Records ------------------------------------------------------------------------------------------


def record(**fields):
    return {"record": "new", "format": 1, "title": "T", "data": {}, "view": [], **fields}


@several(
    "",
    load_record,
    newer=record(format=2),
    kind_that_is_a_list=record(record=["training"]),
    no_view=record(view={}),
    block_that_runs=record(view=[{"script": {"text": "alert(1)"}}]),
    unknown_style=record(view=[{"text": {"text": "a", "style": "script"}}]),
    ragged=record(view=[{"table": {"columns": ["a"], "rows": [[1, 2]]}}]),
    training_of_wrong_types=record(record="training", data={"part": 1}),
)
def record_with(folder, canary, value):
    path = folder / "r.json"
    path.write_text(json.dumps(value))
    return path


@several(
    "",
    load_record,
    pickle=lambda canary: pickle.dumps(Bomb(canary)),
    deep=lambda canary: b"[" * 1_000_000,
    deep_data=lambda canary: (
        json.dumps(record(data="X")).replace('"X"', '{"a":' * 500 + "1" + "}" * 500).encode()
    ),
    empty=lambda canary: b"",
)
def record_that_is(folder, canary, data):
    path = folder / "r.json"
    path.write_bytes(data(canary))
    return path


@trick("plain file", load_record)
def record_that_is_a_pipe(folder, canary):
    os.mkfifo(folder / "r.json")
    return folder / "r.json"


@trick("more than a file of ours", load_record)
def record_of_10_gigabytes(folder, canary):
    with open(folder / "r.json", "wb") as file:
        file.truncate(10 * GIGABYTE)
    return folder / "r.json"


# Checkpoints --------------------------------------------------------------------------------------


def resume(path):
    load_checkpoint(path, {"seed": 0})


def checkpoint(facts):
    return save({"module/a": torch.zeros(1)}, metadata={"dovetail": facts})


@several(
    "",
    resume,
    pickle=lambda canary: pickle.dumps(Bomb(canary)),
    giant_header=lambda canary: struct.pack("<Q", 10 * GIGABYTE) + b"{}",
    no_facts=lambda canary: save({"a": torch.zeros(1)}),
    deep_facts=lambda canary: checkpoint("[" * 100_000),
    list_of_facts=lambda canary: checkpoint("[]"),
    newer=lambda canary: checkpoint('{"format": 2, "identity": {}, "facts": {}}'),
    another=lambda canary: checkpoint('{"format": 1, "identity": {"seed": 1}, "facts": {}}'),
    wrong_types=lambda canary: checkpoint('{"format": 1, "identity": [], "facts": 3}'),
    overlapping=lambda canary: safetensors(
        {"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)
    ),
)
def checkpoint_that_is(folder, canary, data):
    path = folder / "checkpoint.safetensors"
    path.write_bytes(data(canary))
    return path


# Data ---------------------------------------------------------------------------------------------


@trick("", read_idx)
def gzip_bomb_as_idx(folder, canary):
    """A header that promises little, before 4 GB of zeros packed into 4 MB."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as file:
        file.write(bytes([0, 0, 8, 1, 0, 0, 0, 4]))
    member = gzip.compress(bytes(4 << 20), 9)
    path = folder / "labels.gz"
    path.write_bytes(packed.getvalue() + member * 1024)
    return path


@trick("", read_idx)
def idx_that_promises_4_gigabytes(folder, canary):
    path = folder / "labels"
    path.write_bytes(bytes([0, 0, 8, 1, 255, 255, 255, 255]) + b"1234")
    return path


@trick("", read_npz)
def npz_with_a_pickle(folder, canary):
    path = folder / "data.npz"
    np.savez(path, x=np.array([Bomb(canary)], dtype=object), y=np.array([1]))
    return path


@trick("", read_npz)
def npz_that_promises_terabytes(folder, canary):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (117 - len(header)) + b"\n"
    path = folder / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    return path
