"""Packed weights: their file, compared with the recipe before it is decoded; packed parts."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError, argument
from dovetail.core.files import read_plain
from dovetail.pack.container import TAIL, tail_sizes
from dovetail.pack.decompressing import Source, tensors
from dovetail.pack.tensors import dtype_name
from dovetail.parts.modules import Described, described, raw_bytes, refuse_misfit

if TYPE_CHECKING:
    from dovetail.parts.part import Part

_ALWAYS_ALLOWED, _TIMES = 256 << 20, 100
"""A few bytes may truly be gigabytes of zeros, or only claim to: weights of more than this many
bytes, and of more than so many times their container, are not loaded."""


def bytes_of(wanted: Described) -> int:
    """What these tensors take in memory.

    >>> bytes_of({"a": ("float32", (2, 3)), "b": ("int64", ())})
    32
    """
    return sum(
        math.prod(shape) * getattr(torch, dtype).itemsize for dtype, shape in wanted.values()
    )


def read_packed(path: Path, size: int, wanted: Described) -> bytes:
    """The container's ``size`` bytes, unless that is more than these tensors could ever need."""
    # Twice the tensors: ranges of each row, and what does not get smaller by coding.
    most = 2 * bytes_of(wanted) + _longest_index(wanted)
    return read_plain(path, most_bytes=min(most, size), links=False)


def unpacked(data: bytes, wanted: Described, path: Path | None = None) -> dict[str, Tensor]:
    """The tensors in a container whose index says that they are the wanted ones.

    >>> from dovetail.pack.compressing import compress
    >>> unpacked(compress({"a": torch.zeros(2)}), {"a": ("float32", (3,))})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: the container does not fit its recipe: tensor 'a' is ...
    """
    where = "the container" if path is None else str(path)
    try:
        _, _, length = tail_sizes(data[-TAIL:], len(data))
        if length > _longest_index(wanted):
            raise FormatError(f"an index of {length} bytes for {len(wanted)} tensors")
        source = Source.of(data)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None
    refuse_misfit(_said_of(source), wanted, where)
    if (needed := bytes_of(wanted)) > max(_ALWAYS_ALLOWED, _TIMES * len(data)):
        raise FormatError(
            f"{where}: {len(data)} bytes that would become {needed} are not believed; weights that "
            "are constant need no packing"
        )
    try:
        return dict(tensors(source, most_bytes=needed))
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None


def holds(data: bytes, state: Mapping[str, Tensor]) -> bool:
    """Whether a container decodes to exactly these tensors, bit by bit.

    >>> from dovetail.pack.compressing import compress
    >>> state = {"a": torch.arange(3.0)}
    >>> holds(compress(state), state), holds(compress(state), {"a": torch.zeros(3)})
    (True, False)
    """
    source, wanted = Source.of(data), described(state)
    return _said_of(source) == wanted and all(
        np.array_equal(raw_bytes(tensor), raw_bytes(state[name]))
        for name, tensor in tensors(source, most_bytes=bytes_of(wanted))
    )


def _said_of(source: Source) -> Described:
    return {entry.name: (dtype_name(entry.dtype), entry.shape) for entry in source.index.entries}


def _longest_index(wanted: Described) -> int:
    """Bytes that the index of a container of these tensors never exceeds.

    A name can grow sixfold where JSON escapes it, a code has at most 256 intervals, and of every
    block of some hundred thousand elements there is the length.
    """
    lengths = sum(math.prod(shape) // 1024 for _, shape in wanted.values())
    return 65536 + lengths + sum(6 * len(name.encode()) + 8192 for name in wanted)


def with_packed(part: Part, container: bytes, *, settings: Mapping[str, Any] | None = None) -> Part:
    """A new part with the weights that a container of this part's weights decodes to.

    Its contract stays, and with it its spaces: what fitted the part fits the packed one, and the
    features that it knew are those that it knows.  Its origin names the part as parent.  Saved or
    shelved, it is written as the container.

    >>> from dovetail.pack.compressing import compress
    >>> from dovetail.parts.part import build
    >>> part = build("mlp", shape=(64,), hidden=(32,), classes=3)
    >>> small = with_packed(part, compress(part.module.state_dict()))
    >>> small.origin.how, small.contract == part.contract, small.digest == part.digest
    ('pack', True, False)
    """
    module = copy.deepcopy(part.module)
    wanted = described(module.state_dict())
    module.load_state_dict(unpacked(container, wanted), strict=True)
    if not holds(container, module.state_dict()):
        raise FormatError(
            "the container decodes tensors that are tied to different values; pack them by one "
            f"number of bits ({argument('bits', ...)}), or keep them exactly "
            f"({argument('lossless', ...)})"
        )
    facts = part.origin.trained_norms | dict(settings or {})
    origin = part.origin.of_child(part.digest, "pack", facts)
    return part.changed(module=module, origin=origin, packed=container, familiar=part.familiar)


def without_packed(part: Part) -> Part:
    """The same part, to be saved as plain tensors; its weights stay what packing made of them."""
    if part.packed is None:
        raise SettingsError(f"{part.described!r} is not packed; there is nothing to unpack")
    return part.changed(packed=None)
