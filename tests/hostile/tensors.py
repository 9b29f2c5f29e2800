"""Tricks with the file of weights and with the probe."""

from __future__ import annotations

import json
import pickle
import struct

from hostile.liar import (
    GIGABYTE,
    PROBE,
    WEIGHTS,
    Bomb,
    Tricks,
    entry,
    header_of,
    put,
    safetensors,
    vouch,
)
from safetensors.torch import load_file, save_file

TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several


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
