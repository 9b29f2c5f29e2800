"""Packing and its peers, all as bytes from a state dict and back."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import zstandard
from safetensors.torch import load, save
from torch import Tensor

from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress

State = dict[str, Tensor]
INT8, ZIPNN = "int8", "ZipNN, exact"


@dataclass(frozen=True)
class Coder:
    """Bytes from a state dict, and back."""

    encode: Callable[[State], bytes]
    decode: Callable[[bytes], State]


def ours(**settings: Any) -> Coder:
    return Coder(partial(compress, **settings), decompress)


def to_int8(state: State) -> bytes:
    told: State = {}
    for name, tensor in state.items():
        if tensor.ndim < 2:
            told[name] = tensor
            continue
        low, high = tensor.min(), tensor.max()
        step = (high - low) / 255
        told[name] = ((tensor - low) / step).round_().sub_(128).to(torch.int8)
        told[f"{name}/range"] = torch.stack([low, step])
    return save(told)


def from_int8(data: bytes) -> State:
    told, state = load(data), {}
    for name, tensor in told.items():
        if f"{name}/range" in told:
            low, step = told[f"{name}/range"]
            state[name] = tensor.float().add_(128).mul_(step).add_(low)
        elif not name.endswith("/range"):
            state[name] = tensor
    return state


def fixed_coders() -> dict[str, Coder]:
    """Coders that leave nothing to choose; peers only where they are installed."""
    coders = {f"ours, c = {c}": ours(extra_bits=c) for c in (6, 4, 3)}
    coders[INT8] = Coder(to_int8, from_int8)
    squeeze, unfold = zstandard.ZstdCompressor(3), zstandard.ZstdDecompressor()
    coders["int8, zstd"] = Coder(
        lambda state: squeeze.compress(to_int8(state)),
        lambda data: from_int8(unfold.decompress(data)),
    )
    coders["float16"] = Coder(
        lambda state: save({name: tensor.half() for name, tensor in state.items()}),
        lambda data: {name: tensor.float() for name, tensor in load(data).items()},
    )
    coders["ours, exact"] = ours(lossless=("*",))
    with contextlib.suppress(ImportError):
        from zipnn import ZipNN

        zipnn = partial(ZipNN, input_format="byte", bytearray_dtype="float32", threads=1)
        coders[ZIPNN] = Coder(
            lambda state: bytes(zipnn().compress(save(state))),
            lambda data: load(bytes(zipnn().decompress(data))),
        )
    return coders


def nncodec(folder: Path) -> Callable[[int], Coder] | None:
    """A coder for each ``qp``, or nothing where NNCodec is not installed.

    It writes what it encodes to a file, whether one wants it or not: into ``folder``.
    """
    try:
        with stand_ins("cv2", "torchvision"):
            from nncodec.nn import decode, encode
    except ImportError as error:
        print(f"NNCodec is left out: {error}")
        return None

    folder.mkdir(parents=True, exist_ok=True)

    def encoded(state: State, qp: int) -> bytes:
        floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
        arrays = {name: tensor.numpy() for name, tensor in floats.items()}  # it takes no others
        with contextlib.redirect_stdout(io.StringIO()):
            return bytes(encode(arrays, {"qp": qp, "verbose": False, "results": str(folder)}))

    def decoded(data: bytes) -> State:
        with contextlib.redirect_stdout(io.StringIO()):
            arrays = decode(bytearray(data), {"verbose": False})
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    return lambda qp: Coder(partial(encoded, qp=qp), decoded)


@contextlib.contextmanager
def stand_ins(*names: str) -> Iterator[None]:
    """Empty modules of these names, while something that names and never uses them is imported."""
    for name in names:
        sys.modules[name] = MagicMock(**{"datasets.ImageFolder": object})
    yield
    for name in names:
        del sys.modules[name]
