"""Tricks with packed weights."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace

import torch
from hostile.liar import (
    CONTAINER,
    GIGABYTE,
    MANIFEST,
    WEIGHTS,
    Bomb,
    Tricks,
    arguments,
    container,
    edit_json,
    honest,
    lied,
    pack_folder,
    put,
    shaped,
    vouch,
)

from dovetail.pack.compressing import compress
from dovetail.parts.part import build

TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several


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


@several("", dtype={"dtype": torch.float64}, rows={"rows": 2}, exact={"rows": 0, "code": None})
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
