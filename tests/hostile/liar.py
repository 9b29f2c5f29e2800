"""The tools of the liar.

A new trick is one function under ``@trick``, in the file of what it spoils.  It is given an honest
part's folder to spoil (or an empty one, for a reader of other files) and a path that must never
come to exist, and returns what is to be loaded.  ``says`` is a piece of the refusal's first line.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail.pack.compressing import compress
from dovetail.pack.container import HEAD, write_index
from dovetail.pack.decompressing import Source
from dovetail.parts.packed import with_packed
from dovetail.parts.part import Part, build

WEIGHTS, CONTAINER, CONFIG, MANIFEST, PROBE, CARD = (
    "model.safetensors",
    "model.dovepack",
    "config.json",
    "manifest.json",
    "probe.safetensors",
    "README.md",
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

    def prepare(self, folder: Path, canary: Path, good: Path) -> Path:
        if self.is_part:
            shutil.copytree(good, folder)
        else:
            folder.mkdir()
        return self.make(folder, canary) or folder


class Tricks(dict[str, Case]):
    """The tricks of one file, by name."""

    def one(self, says, load=load_part):
        def register(make):
            self._keep(make.__name__, Case(make, says, load))
            return make

        return register

    def several(self, says, load=load_part, /, **variants):
        """One trick in variants: the function takes the variant's value as a third argument."""

        def register(make):
            for name, value in variants.items():

                def spoil(folder, canary, value=value):
                    return make(folder, canary, value)

                self._keep(f"{make.__name__}-{name}", Case(spoil, says, load))
            return make

        return register

    def _keep(self, name, case):
        name = name.replace("_", "-")
        assert name not in self
        self[name] = case


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
