"""A module as facts: its tensors by name, their digest, its structure; and its modes.

Tensors are told by dtype and shape: what a recipe wants, and what a file says it holds.  Two
networks can hold the same tensors and compute different things (another activation, another
stride): the lines of :func:`structure_of` tell them apart, and are the same in every process.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn

from dovetail.core.errors import FormatError
from dovetail.pack.tensors import dtype_name

if TYPE_CHECKING:
    from typing_extensions import Buffer


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


Described = Mapping[str, tuple[str, tuple[int, ...]]]
"""By name, a dtype's name and a shape."""

SAFETENSORS_DTYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
}
"""What a safetensors file calls the dtypes that it can hold."""


def described(state: Mapping[str, Tensor]) -> Described:
    """What a state dict holds.

    >>> import torch
    >>> described({"bias": torch.zeros(3)})
    {'bias': ('float32', (3,))}
    """
    return {name: (dtype_name(t.dtype), tuple(t.shape)) for name, t in state.items()}


def described_slices(file: Any) -> Described:
    """What the header of an open safetensors file says it holds."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    return {
        name: (
            SAFETENSORS_DTYPES.get(part.get_dtype(), part.get_dtype()),
            tuple(part.get_shape()),
        )
        for name, part in slices.items()
    }


def differences(found: Described, wanted: Described) -> list[str]:
    """In words, all that is missing, too much or of another kind.

    >>> differences({"a": ("float32", (2,))}, {"a": ("float32", (3,))})
    ["tensor 'a' is float32 [2], expected float32 [3]"]
    """
    missing = [f"tensor {name!r} is missing" for name in wanted if name not in found]
    extra = [f"tensor {name!r} is not wanted" for name in found if name not in wanted]
    changed = [
        f"tensor {name!r} is {found[name][0]} {list(found[name][1])}, "
        f"expected {wanted[name][0]} {list(wanted[name][1])}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    return missing + extra + changed


def refuse_misfit(found: Described, wanted: Described, where: Path | str) -> None:
    """Refuse a file of weights that are not those the recipe wants."""
    if wrong := differences(found, wanted):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise FormatError(f"{where} does not fit its recipe: {wrong[0]}{more}")


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def structure_of(module: nn.Module) -> tuple[str, ...]:
    """The name, class and settings of every module inside, and the steps of every graph.

    >>> structure_of(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    (':Sequential()', '0:Linear(in_features=2, out_features=1, bias=True)', '1:ReLU()')
    """
    return tuple(_ADDRESS.sub("", line) for line in _lines(module))


def _lines(module: nn.Module) -> Iterator[str]:
    for name, child in module.named_modules(remove_duplicate=False):
        yield f"{name}:{type(child).__name__}({child.extra_repr()})"
        if isinstance(child, fx.GraphModule):
            for node in child.graph.nodes:
                target = getattr(node.target, "__name__", node.target)
                yield f"  {node.op} {target} {node.args} {node.kwargs}"


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside the block; every flag as before after it.

    >>> net = nn.Sequential(nn.Dropout())
    >>> with evaluating(net):
    ...     net.training
    False
    >>> net.training
    True
    """
    flags = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, flag in flags:
            child.training = flag
