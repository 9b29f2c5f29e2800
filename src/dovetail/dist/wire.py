"""What goes over a link: tensors by name as plain bytes, as halves, or packed.

Processes that average their weights and partitions that hand activations on send the same things:
tensors as they are (``None``), those of floating point as ``"float16"``, or packed by arguments of
``pack.compress``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from dovetail.core.errors import SettingsError, nearest

State = dict[str, Tensor]
Packing = Mapping[str, Any] | None
"""Arguments of ``pack.compress``; ``None`` sends the tensors as they are."""

HALVES = "float16"
PACKED = "packed"

LARGEST = 65504.0
"""Of float16: larger numbers are sent as this one."""


def size_of(state: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors in memory.

    >>> size_of({"w": torch.ones(3), "n": torch.tensor(1)})
    20
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def encoded(state: Mapping[str, Tensor], packing: Packing) -> bytes:
    """Tensors as bytes: safetensors, or a packed container."""
    if packing is None:
        return save(dict(state))
    from dovetail.pack.compressing import compress  # most trainings need no coder

    return compress(dict(state), **packing)


def decoded(
    data: bytes, packing: Packing, size: int, into: Mapping[str, Tensor] | None = None
) -> State:
    """What :func:`encoded` was given, of ``size`` bytes, perhaps in memory that is there already.

    >>> decoded(encoded({"w": torch.ones(3)}, None), None, 12)
    {'w': tensor([1., 1., 1.])}
    """
    if packing is None:
        return load(data)
    from dovetail.pack.decompressing import decompress

    return decompress(data, most_bytes=size, into=into)


def halved(tensor: Tensor) -> Tensor:
    """As float16, if it is of wider floating point; what is larger than that can say is clipped.

    >>> halved(torch.tensor([1e9, -0.5])), halved(torch.tensor([3])).dtype
    (tensor([ 6.5504e+04, -5.0000e-01], dtype=torch.float16), torch.int64)
    """
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    return tensor.clamp(-LARGEST, LARGEST).to(torch.float16)


def check_packing(packing: Any) -> None:
    """Refuse now what ``pack.compress`` would refuse at the first exchange, an hour later.

    >>> check_packing({"extra_bits": 6})
    """
    if packing is None or (isinstance(packing, Mapping) and not packing):
        return
    if not isinstance(packing, Mapping):
        raise SettingsError(f"packing takes arguments of pack.compress by name, got {packing!r}")
    from dovetail.pack.compressing import compress  # most trainings need no coder
    from dovetail.pack.rules import Rules

    known = [name for name in inspect.signature(compress).parameters if name != "state_dict"]
    for name in packing:
        if name not in known:
            raise SettingsError(
                f"packing takes arguments of pack.compress, and {name!r} is none"
                f"{nearest(str(name), known)}"
            )
    looked_up: dict[str, Any] = {"gradients": {}} if packing.get("gradients") is True else {}
    Rules(**{**packing, **looked_up})


def plainly(packing: str | Packing) -> str:
    """The packing in words that can be compared between processes.

    >>> plainly(None), plainly({}), plainly({"bits": 8}), plainly("float16")
    ('none', 'as usual', 'bits=8', 'float16')
    """
    if packing is None or isinstance(packing, str):
        return packing or "none"
    return ", ".join(f"{name}={value!r}" for name, value in sorted(packing.items())) or "as usual"
