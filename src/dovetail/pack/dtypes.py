"""The dtypes a container can hold, and a tensor as the numbers its bytes spell.

Elements are stored little-endian, whatever they mean: an exact tensor is its bytes and nothing
else, so NaN payloads, complex numbers and eight-bit floats come back as they were.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.core.errors import TaskError, nearest

__all__ = ["DTYPES", "FLOATING", "checked", "elements_of", "name_of", "raw_bytes"]

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    )
}
"""What a container's header may name."""

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What can be quantised; everything else is kept exactly."""


def name_of(dtype: torch.dtype) -> str:
    """The name a header gives a dtype.

    >>> name_of(torch.bfloat16)
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
    if name_of(value.dtype) not in DTYPES:
        raise TaskError(
            f"{name!r} is {name_of(value.dtype)}, which a container cannot hold"
            f"{nearest(name_of(value.dtype), DTYPES)}"
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
