"""The tensors a container can hold: their dtypes, the numbers their bytes spell, and shared memory.

Elements are stored little-endian, whatever they mean: an exact tensor is its bytes and nothing
else, so NaN payloads, complex numbers and eight-bit floats come back as they were.  Names that are
one tensor must be rounded alike, or the module could not hold both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.core.errors import TaskError, nearest

_NAMES = """float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool
complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"""

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split()}
"""What a container's header may name."""

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What can be quantised; everything else is kept exactly."""


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name without the package, as headers have it.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def checked(name: str, value: object) -> Tensor:
    """A dense tensor on the CPU, contiguous, or a refusal that says what to do instead.

    >>> checked("bias", [1.0])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 'bias' is a list, not a tensor: only tensors can be packed
    """
    if not isinstance(value, Tensor):
        raise TaskError(
            f"{name!r} is a {type(value).__name__}, not a tensor: only tensors can be packed"
        )
    if value.layout is not torch.strided:
        raise TaskError(f"{name!r} is sparse: pack its to_dense(), zeros cost next to nothing")
    if value.device.type == "meta":
        raise TaskError(f"{name!r} is on the meta device and has no values to pack")
    if dtype_name(value.dtype) not in DTYPES:
        raise TaskError(
            f"{name!r} is {dtype_name(value.dtype)}, which a container cannot hold"
            f"{nearest(dtype_name(value.dtype), DTYPES)}"
        )
    return value.detach().cpu().resolve_conj().resolve_neg().contiguous()


def raw_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes ``[elements, bytes each]`` of a contiguous CPU tensor, shared with it.

    >>> raw_bytes(torch.tensor([1.0, -1.0])).tolist()
    [[0, 0, 128, 63], [0, 0, 128, 191]]
    """
    flat = tensor.reshape(-1).view(torch.uint8)
    return np.asarray(flat.numpy().reshape(tensor.numel(), tensor.element_size()))


def elements_of(tensor: Tensor) -> NDArray[np.floating]:
    """A floating tensor ``[...]`` as a flat array numpy can calculate with; bfloat16 is widened.

    >>> elements_of(torch.tensor([[0.5], [2.0]], dtype=torch.bfloat16))
    array([0.5, 2. ], dtype=float32)
    """
    flat = tensor.reshape(-1)
    return np.asarray((flat.float() if flat.dtype == torch.bfloat16 else flat).numpy())


Ties = dict[str, tuple[str, ...]]
"""For the first name of each tensor, all of its names, the first included."""


def ties_of(state: Mapping[str, Tensor]) -> tuple[Ties, set[str]]:
    """All names of each tensor, and the names of tensors that overlap without being the same.

    What overlaps in part (a slice, a transposed view) has other ranges than what it overlaps with:
    only kept exactly do both come back to the same memory.  Views of one memory that lie apart are
    tensors of their own.

    >>> import torch
    >>> w, flat = torch.zeros(4, 4), torch.zeros(6)
    >>> ties_of({"in": w, "out": w.detach(), "a": flat[:3], "b": flat[3:]})
    ({'in': ('in', 'out'), 'a': ('a',), 'b': ('b',)}, set())
    >>> ties, overlapping = ties_of({"in": w, "out": w.T})
    >>> ties, sorted(overlapping)
    ({'in': ('in',), 'out': ('out',)}, ['in', 'out'])
    """
    same: dict[object, list[str]] = {}
    for name, tensor in state.items():
        view = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        same.setdefault(view if tensor.numel() else name, []).append(name)
    ties = {names[0]: tuple(names) for names in same.values()}
    spans = sorted(
        ((str(state[name].device), *_span(state[name]), name) for name in ties),
        key=lambda span: span[:2],
    )
    overlapping: set[str] = set()
    device, reached, last = "", 0, ""
    for where, start, stop, name in spans:
        if where == device and start < reached:
            overlapping |= {*ties[last], *ties[name]}
        if where != device or stop > reached:
            device, reached, last = where, stop, name
    return ties, overlapping


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor and the one after its last; empty ones have none."""
    if not tensor.numel():
        return 0, 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()
