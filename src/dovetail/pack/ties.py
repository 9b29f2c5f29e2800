"""Names that are one tensor: they must be rounded alike, or the module could not hold both."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["Ties", "ties_of"]

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
