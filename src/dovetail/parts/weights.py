"""A module's tensors as facts: their digest, their shapes, and which of them are one."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from dovetail.core.errors import FormatError
from dovetail.core.files import open_plain
from dovetail.core.plain import parse_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "check_header",
    "digest_of",
    "dtype_name",
    "longest_header",
    "meta_copy",
    "raw_bytes",
    "shared_tensors",
]


def check_header(path: Path, names: Collection[str]) -> None:
    """Refuse a safetensors header that is no JSON, or far longer than these names need.

    The library would read a hundred megabytes of it, and take a name that is there twice.
    """
    where = f"{path}: not a safetensors file"
    most = longest_header(names)
    with open_plain(path, links=False) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > most:
            raise FormatError(f"{where} (a header of {length} bytes for {len(names)} tensors)")
        parse_json(file.read(length), where)


def longest_header(names: Collection[str]) -> int:
    """Bytes that a safetensors header of these names never exceeds.

    >>> longest_header(["weight", "bias"])
    66620
    """
    # A name can grow sixfold where JSON escapes it; the rest of an entry is short.
    return 65536 + sum(6 * len(name.encode()) + 512 for name in names)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name without the package.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def digest_of(module: nn.Module, *also: str) -> str:
    """The sha256 of every name, dtype, shape and byte of a module's state, and of ``also``.

    >>> net = nn.Linear(2, 1)
    >>> digest_of(net) == digest_of(net), digest_of(net) == digest_of(net, "layer1")
    (True, False)
    """
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        sha.update(f"{name}|{dtype_name(tensor.dtype)}|{tuple(tensor.shape)}|".encode())
        sha.update(raw_bytes(tensor))
    for word in also:
        sha.update(f"|{word}".encode())
    return sha.hexdigest()


def raw_bytes(tensor: Tensor) -> Buffer:
    """The tensor's bytes in row-major order, without a copy where it can be helped."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return cast("Buffer", flat.view(torch.uint8).numpy())


def meta_copy(module: nn.Module) -> nn.Module:
    """A copy of the structure whose tensors have shapes but no values; ties stay ties.

    >>> meta_copy(nn.Linear(2, 1)).weight.device
    device(type='meta')
    """
    memo: dict[int, Tensor] = {}
    for tensor in _tensors(module).values():
        ghost: Tensor = tensor.detach().to("meta")
        if isinstance(tensor, nn.Parameter):
            ghost = nn.Parameter(ghost, requires_grad=tensor.requires_grad)
        memo.setdefault(id(tensor), ghost)
    return copy.deepcopy(module, memo=cast("dict[int, object]", memo))


def shared_tensors(a: nn.Module, b: nn.Module) -> list[str]:
    """Names in ``a`` of tensors that ``b`` holds too.

    >>> one = nn.Linear(2, 2)
    >>> shared_tensors(nn.Sequential(one), nn.Sequential(nn.ReLU(), one))
    ['0.weight', '0.bias']
    """
    theirs = {_identity(tensor) for tensor in _tensors(b).values()}
    return [name for name, tensor in _tensors(a).items() if _identity(tensor) in theirs]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _identity(tensor: Tensor) -> int:
    # Two parameters can be views of one storage; a meta tensor has no storage to compare.
    if tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    return tensor.untyped_storage().data_ptr()
