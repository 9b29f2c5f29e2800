"""Tensors by name as dtype and shape: what a recipe wants, and what a file says it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dovetail.core.errors import FormatError
from dovetail.parts.weights import dtype_name

__all__ = ["Described", "described", "described_slices", "differences", "refuse_misfit"]

Described = Mapping[str, tuple[str, tuple[int, ...]]]
"""By name, a dtype's name and a shape."""

_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


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
            _SAFETENSORS_DTYPES.get(part.get_dtype(), part.get_dtype()),
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
