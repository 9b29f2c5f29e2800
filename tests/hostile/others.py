"""Tricks with other files: records, checkpoints, data."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import torch
from hostile.liar import GIGABYTE, Bomb, Tricks, entry, safetensors
from safetensors.torch import save

from dovetail.core.records import load_record
from dovetail.tasks.array_files import read_idx, read_npz
from dovetail.train.checkpoint import load_checkpoint

TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several

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
