"""Weights that others trained, put into a network by name, or by order where the names differ.

Nothing is left as it was drawn: what does not fit is an error that lists every tensor.  By order
means that the tensors whose names only one side knows are as many on both sides, and that each pair
in the order of the layers has the same shape and the same role (weight, bias, running mean, ...).
That is evidence, not proof: two layers of one shape could be swapped, so it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dovetail.core.errors import FormatError, shown
from dovetail.core.words import listed
from dovetail.parts.foreign.weight_files import ForeignState
from dovetail.parts.modules import Described, dtype_name

__all__ = ["Match", "matched"]

_ROLES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Match:
    """The state for the network, and how many of its tensors were found in which way."""

    state: dict[str, Tensor]
    by_name: int
    by_order: int


def matched(given: ForeignState, wanted: Described, path: str | Path) -> Match:
    """Each tensor that the network wants from what the file gave, or an error that lists all.

    >>> given = ForeignState({"fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)}, True)
    >>> wanted = {"head.weight": ("float32", (2, 3)), "head.bias": ("float32", (2,))}
    >>> match = matched(given, wanted, "net.pth")
    >>> match.by_name, match.by_order, list(match.state)
    (0, 2, ['head.weight', 'head.bias'])
    """
    given = given.without_wrappers(wanted)
    found = dict(given.tensors)
    counters = [name for name in wanted if _role(name) == _COUNTER]
    if any(_role(name) == _COUNTER for name in found):
        counters = []
    found |= {name: torch.zeros((), dtype=torch.int64) for name in counters}  # once there were none
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    source = {name: name for name in wanted if name in found}
    if missing or unexpected:
        source |= _in_order(missing, unexpected, found, wanted, given.ordered, path)
    wrong = [
        f"{shown(name)} is {_told(found[source[name]])}, expected {dtype} {list(shape)}"
        for name, (dtype, shape) in wanted.items()
        if not _may_become(found[source[name]], dtype, shape)
    ]
    if wrong:
        raise FormatError(f"{path} is for another network: {listed(wrong, most=4)}")
    state = {n: found[source[n]].to(getattr(torch, wanted[n][0])).contiguous() for n in wanted}
    _refuse_not_finite(state, path)
    return Match(state, len(wanted) - len(missing) - len(counters), len(missing))


def _in_order(
    missing: list[str],
    unexpected: list[str],
    found: Mapping[str, Tensor],
    wanted: Described,
    ordered: bool,
    path: str | Path,
) -> dict[str, str]:
    """For each missing name the unexpected one in its place."""
    pairs = dict(zip(missing, unexpected, strict=False))
    fit = len(missing) == len(unexpected) and all(
        _may_become(found[theirs], *wanted[ours]) and _role(ours) == _role(theirs)
        for ours, theirs in pairs.items()
    )
    if fit and ordered:
        return pairs
    sorts = "; a safetensors file has no order of layers, a .pth has"
    raise FormatError(
        f"{path} does not fit the network: missing {_names(missing)}; "
        f"unexpected {_names(unexpected)}{sorts if missing and unexpected and not ordered else ''}"
    )


def _role(name: str) -> str:
    """What a tensor is in its layer, as far as its name says."""
    leaf = name.rpartition(".")[2]
    return leaf if leaf in _ROLES else ""


def _may_become(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether it has the shape, and numbers of that kind, whatever their precision."""
    like = getattr(torch, dtype)
    same = tensor.dtype == like or (
        tensor.is_floating_point() == like.is_floating_point
        and tensor.is_complex() == like.is_complex
        and torch.bool not in (tensor.dtype, like)
    )
    return same and tuple(tensor.shape) == shape


def _refuse_not_finite(state: Mapping[str, Tensor], path: str | Path) -> None:
    broken = [n for n, t in state.items() if t.is_floating_point() and not t.isfinite().all()]
    if broken:
        raise FormatError(f"{path}: NaN or infinite numbers in {_names(broken)}")


def _told(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def _names(names: list[str]) -> str:
    return listed([shown(name) for name in names]) or "none"
