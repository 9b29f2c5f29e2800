"""Tricks with the file of familiar features."""

from __future__ import annotations

import json
import math
import pickle

import torch
from hostile.liar import Bomb, Tricks, edit_json, honest, put, safetensors, vouch
from safetensors import safe_open
from safetensors.torch import save

from dovetail.measure.familiar import fit_familiar

FILE = "familiar.safetensors"
TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several


def knowing(folder):
    """Make the honest part's folder one of a part that knows features; its tensors and words."""
    draw = torch.Generator().manual_seed(0)
    made = fit_familiar(
        torch.rand(40, 5, generator=draw), None, torch.rand(20, 5, generator=draw), at="head"
    )
    honest().changed(familiar=made).save_pretrained(folder, overwrite=True)
    with safe_open(folder / FILE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["familiar"])


def write(folder, tensors, about):
    text = about if isinstance(about, str) else json.dumps(about)
    put(folder, FILE, save(tensors, {"familiar": text}))


@trick("not a safetensors file")
def pickle_as_familiar(folder, canary):
    knowing(folder)
    put(folder, FILE, pickle.dumps(Bomb(canary)))


@trick("not readable as JSON")
def pickle_in_its_words(folder, canary):
    tensors, _ = knowing(folder)
    write(folder, tensors, pickle.dumps(Bomb(canary), protocol=0).decode())


@trick("sha256 differs")
def familiar_exchanged(folder, canary):
    knowing(folder)
    data = bytearray((folder / FILE).read_bytes())
    data[-1] ^= 1
    (folder / FILE).write_bytes(data)


@trick("missing, or not a plain file")
def familiar_gone(folder, canary):
    knowing(folder)
    (folder / FILE).unlink()


@trick("more than a file of ours ever has")
def familiar_too_large(folder, canary):
    tensors, about = knowing(folder)
    tensors["calibration"] = torch.ones(1 << 18)
    write(folder, tensors, about)


@trick("a header of")
def familiar_of_a_long_header(folder, canary):
    knowing(folder)
    put(folder, FILE, safetensors({"__metadata__": {"familiar": " " * 200_000}}))


@several("is missing", **{name: name for name in ("mean", "basis", "scale", "calibration")})
def familiar_without(folder, canary, name):
    tensors, about = knowing(folder)
    del tensors[name]
    write(folder, tensors, about)


@trick("is not wanted")
def familiar_with_more(folder, canary):
    tensors, about = knowing(folder)
    write(folder, {**tensors, "weight": torch.zeros(2)}, about)


@several(
    "familiar.safetensors: tensor ",
    mean=("mean", (4,)),
    matrix=("mean", (5, 1)),
    basis=("basis", (5,)),
    spread=("spread", (99,)),
    centres=("centres", (7,)),
    rest=("rest", (1,)),
    scale=("scale", (3,)),
    calibration=("calibration", ()),
)
def familiar_of_another_shape(folder, canary, lie):
    tensors, about = knowing(folder)
    name, shape = lie
    write(folder, {**tensors, name: torch.ones(shape)}, about)


@several("tensors without numbers", centres=("centres", (0, 5)), scores=("calibration", (0,)))
def familiar_of_nothing(folder, canary, lie):
    tensors, about = knowing(folder)
    write(folder, {**tensors, lie[0]: torch.ones(lie[1])}, about)


@several("not float32", double=torch.float64, half=torch.float16, whole=torch.int64)
def familiar_of_another_dtype(folder, canary, dtype):
    tensors, about = knowing(folder)
    write(folder, {**tensors, "mean": tensors["mean"].to(dtype)}, about)


@several("NaN or infinite", nan=math.nan, infinite=math.inf)
def familiar_that_is(folder, canary, value):
    tensors, about = knowing(folder)
    tensors["basis"][0, 0] = value
    write(folder, tensors, about)


@several("must be above zero", spread="spread", rest="rest", scale="scale")
def familiar_without_spread(folder, canary, name):
    tensors, about = knowing(folder)
    write(folder, {**tensors, name: torch.zeros_like(tensors[name])}, about)


@trick("must be ascending")
def familiar_in_disorder(folder, canary):
    tensors, about = knowing(folder)
    write(folder, {**tensors, "calibration": tensors["calibration"].flip(0)}, about)


@several("no layer", other="hidden9", upward="../head", method="forward")
def familiar_at(folder, canary, at):
    tensors, about = knowing(folder)
    write(folder, tensors, {**about, "at": at})


@trick("takes 4 numbers, not 5")
def familiar_at_another_layer(folder, canary):
    tensors, about = knowing(folder)
    first = next(
        name
        for name, layer in honest().module.named_modules()
        if name and hasattr(layer, "in_features")
    )
    write(folder, tensors, {**about, "at": first})


@several("a share of", none=0.0, all=1.0, negative=-1.0)
def familiar_of_a_share(folder, canary, share):
    tensors, about = knowing(folder)
    write(folder, tensors, {**about, "share": share})


@several("familiar.safetensors", text="5 %", flag=True)
def familiar_whose_share_is(folder, canary, share):
    tensors, about = knowing(folder)
    write(folder, tensors, {**about, "share": share})


@trick("missing, or not a plain file")
def familiar_is_a_link(folder, canary):
    knowing(folder)
    (folder / FILE).rename(folder / "other.safetensors")
    (folder / FILE).symlink_to("other.safetensors")


@trick("is not a file of a part")
def familiar_under_another_name(folder, canary):
    knowing(folder)
    (folder / FILE).rename(folder / "known.safetensors")
    edit_json(
        folder / "manifest.json",
        lambda m: m["files"].update({"known.safetensors": m["files"].pop(FILE)}),
    )
    vouch(folder)
