r"""How few bits each tensor could have, and in which order to take them away.

A tensor :math:`t` in :math:`b` bits takes :math:`S_t(b)` bytes and differs from the given one by
:math:`D_t(b) = \sum (\hat w - w)^2`; both are known without measuring any loss.  How much the loss
rises with :math:`t` alone in so many bits, :math:`r_t(b)`, is measured at some :math:`b`, drawn as
straight lines between the logarithms of :math:`D` and :math:`r`, and beyond them as
:math:`r \propto D`, which is what a loss does near a minimum.

Of all ways to spend a total rise, those with the fewest bytes minimise
:math:`\sum_t S_t(b_t) + \lambda\, r_t(b_t)` for some price :math:`\lambda`, as if the rises added
up.  As the price falls from infinity, one tensor after another takes a step to fewer bits: the one
that saves most bytes for each unit of loss.  These steps are the *path*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.quantise import carried, divisible, low_and_high
from dovetail.pack.tensors import FLOATING

__all__ = ["Levels", "Step", "in_bits", "levels_of", "path", "quantisable", "rise_curve"]

Step = tuple[str, int]
"""A tensor, and the bits it has from now on."""

_LEAST, _MOST = 1e-15, 1e15
"""Rises are kept within these, so that they have logarithms."""


@dataclass(frozen=True)
class Levels:
    """What a tensor would take in so many bits, and how far it would move; ``exact`` in bytes.

    ``carry`` says how it is rounded: see :mod:`dovetail.pack.quantise`.
    """

    name: str
    exact: int
    sizes: Mapping[int, int]
    distances: Mapping[int, float]
    carry: bool = False

    @property
    def finest(self) -> int:
        """The most bits that were tried."""
        return max(self.sizes)

    def size(self, bits: Mapping[str, int]) -> int:
        """Its bytes when tensors have these bits, and those not named are exact."""
        return self.sizes[bits[self.name]] if self.name in bits else self.exact


def quantisable(tensor: Tensor, smallest: int) -> bool:
    """Whether a tensor is worth bins: of floats, not small, finite, with more than one value.

    >>> import torch
    >>> quantisable(torch.ones(300), 256), quantisable(torch.arange(300.0), 256)
    (False, True)
    """
    if tensor.dtype not in FLOATING or tensor.numel() < max(1, smallest):
        return False
    low, high = low_and_high(tensor.reshape(1, -1))
    return bool(np.isfinite(low + high)[0] and low[0] < high[0] and divisible(low, high))


def in_bits(
    name: str, tensor: Tensor, bits: int, *, channels: bool = False, carry: bool = False
) -> tuple[Tensor, int]:
    """A tensor as it comes back from ``bits`` bits, and the bytes of its container.

    >>> import torch
    >>> back, size = in_bits("w", torch.linspace(0, 1, 8192), 1)
    >>> back.unique().tolist(), size < 2048
    ([0.25, 0.75], True)
    """
    given = carried(tensor, bits) if carry else tensor
    data = compress({name: given}, bits={name: bits}, channels=channels)
    return decompress(data, most_bytes=2 * tensor.nbytes + 1024)[name], len(data)


def levels_of(
    name: str, tensor: Tensor, most_bits: int, *, channels: bool = False, carry: bool = False
) -> Levels:
    """What a tensor takes in 1 to ``most_bits`` bits."""
    sizes, distances = {}, {}
    for bits in range(most_bits, 0, -1):
        back, sizes[bits] = in_bits(name, tensor, bits, channels=channels, carry=carry)
        distances[bits] = float((back.double() - tensor.double()).square().sum())
    exact = len(compress({name: tensor}, lossless=("*",)))
    return Levels(name, exact, sizes, distances, carry)


def rise_curve(
    levels: Levels, measured: Mapping[int, float], least: float = _LEAST
) -> dict[int, float]:
    """The rise at every number of bits, from rises at some; never less with fewer bits.

    Without any the rise is taken for the distance itself, so that only order means anything.

    >>> levels = Levels("w", 100, {1: 10, 2: 20, 3: 30}, {1: 16.0, 2: 4.0, 3: 1.0})
    >>> curve = rise_curve(levels, {2: 0.5})
    >>> [round(curve[bits], 3) for bits in (3, 2, 1)]
    [0.125, 0.5, 2.0]
    """
    known: list[tuple[float, float]] = []
    for bits in sorted(measured, reverse=True):
        distance = max(levels.distances[bits], _LEAST)
        rise = min(max(measured[bits], least), _MOST)
        if known:  # chance may have it otherwise, but what moves further costs more
            rise = max(rise, known[-1][1])
            if distance <= known[-1][0]:
                continue
        known.append((distance, rise))
    known = known or [(1.0, 1.0)]
    curve: dict[int, float] = {}
    highest = 0.0
    for bits in sorted(levels.distances, reverse=True):
        distance = max(levels.distances[bits], _LEAST)
        highest = curve[bits] = max(highest, _on_lines(distance, known))
    return curve


def path(levels: Sequence[Levels], rises: Mapping[str, Mapping[int, float]]) -> list[Step]:
    """The steps from all exact to the fewest bits, by bytes saved for each unit of loss.

    >>> sizes = {2: 20, 1: 10}
    >>> both = [Levels("a", 100, sizes, {}), Levels("b", 100, sizes, {})]
    >>> path(both, {"a": {2: 1.0, 1: 4.0}, "b": {2: 3.0, 1: 9.0}})
    [('a', 2), ('b', 2), ('a', 1), ('b', 1)]
    """
    steps: list[tuple[float, Step]] = []
    for tensor in levels:
        size, rise, bits = tensor.exact, 0.0, tensor.finest + 1
        while bits > 1:
            saved, fewer = max(
                (_saved(size - tensor.sizes[b], rises[tensor.name][b] - rise), -b)
                for b in range(1, bits)
            )
            bits = -fewer
            if saved <= 0:
                break
            size, rise = tensor.sizes[bits], rises[tensor.name][bits]
            steps.append((saved, (tensor.name, bits)))
    steps.sort(key=lambda step: -step[0])  # stable, and falling for each tensor: it stays in order
    return [step for _, step in steps]


def _saved(fewer_bytes: int, more_loss: float) -> float:
    """Bytes for each unit of loss."""
    if fewer_bytes <= 0:
        return -math.inf
    return fewer_bytes / more_loss if more_loss > 0 else math.inf


def _on_lines(distance: float, known: list[tuple[float, float]]) -> float:
    """The rise at a distance: between known ones, or in proportion to the nearest."""
    for (near, low), (far, high) in pairwise(known):
        if near <= distance <= far:
            share = math.log(distance / near) / math.log(far / near)
            return low * math.exp(share * math.log(high / low))
    near, low = known[0] if distance < known[0][0] else known[-1]
    return low * distance / near
