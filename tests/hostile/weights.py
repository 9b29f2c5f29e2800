"""Tricks with weights that others trained, which a network is given by name."""

from __future__ import annotations

import io
import os
import pickle
import zipfile

import torch
from hostile.liar import GIGABYTE, MLP, Bomb, Tricks, entry, honest, safetensors
from safetensors.torch import save

from dovetail.parts.foreign.adopting import adopt

TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several


def load(path):
    """Also as features, which look further for what the file could be for."""
    adopt(MLP["build"], args=MLP["args"], weights=path, features=True)


def saved(value, **how):
    data = io.BytesIO()
    torch.save(value, data, **how)
    return data.getvalue()


def state(**changes):
    return {**honest().module.state_dict(), **changes}


def with_first(tensor):
    name, _ = next(iter(state().items()))
    return state(**{name: tensor})


OLD = {"_use_new_zipfile_serialization": False}


@several(
    "not a file of weights",
    load,
    pickle=lambda canary: pickle.dumps(Bomb(canary)),
    code=lambda canary: saved({**state(), "more": Bomb(canary)}),
    old_code=lambda canary: saved({**state(), "more": Bomb(canary)}, **OLD),
    code_in_place_of_weights=lambda canary: saved(Bomb(canary)),
    module=lambda canary: saved(honest().module),
    empty=lambda canary: b"",
    text=lambda canary: b"weights" * 1000,
    half=lambda canary: saved(state(), **OLD)[:700],
    longer_than_it_is=lambda canary: longer(saved(with_first(torch.zeros(7919)), **OLD)),
)
def weights_that_are(folder, canary, data):
    path = folder / "weights.pth"
    path.write_bytes(data(canary))
    return path


def longer(data):
    """A storage of 7919 numbers that says it has 2147483647."""
    assert data.count(b"M\xef\x1e") > 0
    return data.replace(b"M\xef\x1e", b"J\xff\xff\xff\x7f")


@several(
    "",
    load,
    list=[1, 2],
    nothing={},
    numbers={"weight": 3.0},
    tensor=torch.zeros(3),
    numbered={0: torch.zeros(3)},
    two_sets={"state_dict": {"a": torch.zeros(1)}, "state_dict_ema": {"a": torch.zeros(1)}},
    sparse=with_first(torch.eye(4).to_sparse()),
    on_meta=with_first(torch.zeros(5, 4, device="meta")),
    far_too_large=with_first(torch.zeros(1).expand(10**12)),
    stretched=with_first(torch.zeros(1).expand(10**6, 10**6)),
    nan=with_first(torch.full((5, 4), float("nan"))),
    whole_numbers=with_first(torch.ones(5, 4, dtype=torch.int64)),
    truths=with_first(torch.ones(5, 4, dtype=torch.bool)),
    number_instead_of_a_layer=with_first(torch.tensor(1.0)),
    classes_without_end=state(
        **{
            "head.weight": torch.zeros(1, 5).expand(10**9, 5),
            "head.bias": torch.zeros(1).expand(10**9),
        }
    ),
    strange_names={"\x1b[2J" + "x" * 100_000 + str(i): torch.zeros(1) for i in range(50)},
)
def weights_with(folder, canary, value):
    path = folder / "weights.pth"
    path.write_bytes(saved(value))
    return path


@trick("compressed inside", load)
def weights_that_swell(folder, canary):
    """Four gigabytes of zeros in four megabytes."""
    path = folder / "weights.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights/version", "3")
        with archive.open("weights/data.pkl", "w", force_zip64=True) as member:
            for _ in range(1024):
                member.write(bytes(4 << 20))
    return path


@trick("it unpacks to more", load)
def weights_that_overlap(folder, canary):
    """A thousand names for one megabyte."""
    path = folder / "weights.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights/data/0", bytes(1 << 20))
        first = archive.infolist()[0]
        archive.filelist.extend([first] * 1000)
    return path


@trick("a damaged archive", load)
def archive_without_an_end(folder, canary):
    path = folder / "weights.pth"
    path.write_bytes(saved(state())[:-100])
    return path


@several("and", load, pth="weights.pth", safetensors="weights.safetensors")
def weights_of_terabytes(folder, canary, name):
    with open(folder / name, "wb") as file:
        file.truncate(4096 * GIGABYTE)
    return folder / name


@several("it is for another network", load, pth="weights.pth", safetensors="weights.safetensors")
def weights_of_a_gigabyte(folder, canary, name):
    with open(folder / name, "wb") as file:
        file.truncate(GIGABYTE)
    return folder / name


@trick("a pipe", load)
def weights_that_are_a_pipe(folder, canary):
    os.mkfifo(folder / "weights.pth")
    return folder / "weights.pth"


@trick("a folder", load)
def weights_that_are_a_folder(folder, canary):
    return folder


@trick("no such file", load)
def weights_that_are_not_there(folder, canary):
    return folder / "weights.safetensors"


@several(
    "",
    load,
    giant_header=safetensors(b"{}", length=10 * GIGABYTE),
    overlapping=safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    beyond_the_end=safetensors({"a": entry([2], 0, 8)}),
    twice=safetensors(b'{"a":{},"a":{}}'),
    pickle_in_disguise=saved(honest().module.state_dict()),
    names_of_others=save({"a": torch.zeros(5, 4)}),
    nothing=save({}),
)
def safetensors_that_are(folder, canary, data):
    path = folder / "weights.safetensors"
    path.write_bytes(data)
    return path
