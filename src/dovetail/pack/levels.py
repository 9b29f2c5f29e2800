r"""How few levels each tensor could have, and in which order to take them away.

A tensor :math:`t` in :math:`K` levels takes about :math:`S_t(K)` bytes and differs from the given
one by :math:`D_t(K) = \sum (\hat w - w)^2`; both are estimated from some of its weights, without
measuring any loss.  How much the loss rises with :math:`t` alone in so many levels,
:math:`r_t(K)`, is measured at some :math:`K`, drawn as straight lines between the logarithms of
:math:`D` and :math:`r`, and beyond them as :math:`r \propto D`, which is what a loss does near a
minimum.

Of all ways to spend a total rise, those with the fewest bytes minimise
:math:`\sum_t S_t(K_t) + \lambda\, r_t(K_t)` for some price :math:`\lambda`, as if the rises added
up.  As the price falls from infinity, one tensor after another takes a step to fewer levels: the
one that saves most bytes for each unit of loss.  These steps are the *path*.
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
from dovetail.pack.quantise import Grid, divisible, low_and_high, ranged
from dovetail.pack.rounding import nearest_cheap, places_of, rounded
from dovetail.pack.rules import entropy
from dovetail.pack.tensors import FLOATING, elements_of

Step = tuple[str, int]
"""A tensor, and the levels it has from now on."""

_LEAST, _MOST = 1e-15, 1e15
"""Rises are kept within these, so that they have logarithms."""

_SAMPLE = 1 << 16
_PLAN, _LEVEL = 64, 0.5
"""Bytes of a tensor that has next to none, and for each level that there is a code for."""


@dataclass(frozen=True)
class Ladder:
    """What a tensor would take in so many levels, and how far it would move.

    ``exact`` is in bytes, ``energy`` the sum of its squares.
    """

    name: str
    exact: int
    sizes: Mapping[int, int]
    distances: Mapping[int, float]
    energy: float = 1.0

    def size(self, levels: Mapping[str, int]) -> int:
        """Its bytes when tensors have these levels, and those not named are exact."""
        return self.sizes[levels[self.name]] if self.name in levels else self.exact

    def below(self, levels: Mapping[str, int]) -> int | None:
        """The next fewer levels than it has, if there are any."""
        now = levels.get(self.name, math.inf)
        return max((rung for rung in self.sizes if rung < now), default=None)


def rungs(most_bits: int) -> list[int]:
    """The numbers of levels that are tried, four to an octave.

    >>> rungs(4)
    [2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16]
    """
    return sorted({round(2 ** (quarter / 4)) for quarter in range(4, 4 * most_bits + 1)})


def quantisable(tensor: Tensor, smallest: int) -> bool:
    """Whether a tensor is worth levels: of floats, not small, finite, with more than one value.

    >>> import torch
    >>> quantisable(torch.ones(300), 256), quantisable(torch.arange(300.0), 256)
    (False, True)
    """
    if tensor.dtype not in FLOATING or tensor.numel() < max(1, smallest):
        return False
    low, high = low_and_high(tensor.reshape(1, -1))
    return bool(np.isfinite(low + high)[0] and low[0] < high[0] and divisible(low, high))


def in_levels(
    name: str, tensor: Tensor, levels: int, *, channels: bool = False, carry: bool = False
) -> tuple[Tensor, int]:
    """A tensor as it comes back from so many levels, and the bytes of its container.

    >>> import torch
    >>> back, size = in_levels("w", torch.linspace(-1, 1, 8192), 3)
    >>> back.unique().tolist(), size < 2048
    ([-1.0, 0.0, 1.0], True)
    """
    rounding = rounded(tensor, levels, channels=channels, carry=carry)
    data = compress({name: rounding}, levels={name: levels}, channels=channels)
    return decompress(data, most_bytes=2 * tensor.nbytes + 1024)[name], len(data)


def ladder_of(name: str, tensor: Tensor, most_bits: int, *, channels: bool = False) -> Ladder:
    """What a tensor takes in 2 to ``2 ** most_bits`` levels, about."""
    matrix = ranged(tensor, channels)
    low, high = low_and_high(matrix)
    some = matrix[:, :: max(1, tensor.numel() // _SAMPLE | 1)]
    weights = elements_of(some).reshape(some.shape)
    side, share = 2 * low.nbytes + _PLAN, tensor.numel() / weights.size
    sizes, distances = {}, {}
    for levels in rungs(most_bits):
        grid = Grid(levels, low, high)
        places = places_of(weights, grid)
        chosen = nearest_cheap(places, levels)
        counts = np.bincount(chosen.reshape(-1))
        code = _LEVEL * np.count_nonzero(counts)
        sizes[levels] = round(side + code + entropy(counts) * tensor.numel() / 8)
        moved = np.square((places - chosen) * grid.step).sum()
        distances[levels] = float(share * moved)
    exact = len(compress({name: tensor}, lossless=("*",)))
    energy = float(share * np.square(weights.astype(np.float64)).sum())
    return Ladder(name, exact, sizes, distances, energy)


def rise_curve(
    ladder: Ladder, measured: Mapping[int, float], least: float = _LEAST
) -> dict[int, float]:
    """The rise at every number of levels, from rises at some; never less with fewer levels.

    Without any, the rise is taken for the share of the tensor's energy that the distance is, so
    that only order means anything: of what a layer gives, about the same share is lost.

    >>> ladder = Ladder("w", 100, {2: 10, 4: 20, 8: 30}, {2: 16.0, 4: 4.0, 8: 1.0})
    >>> curve = rise_curve(ladder, {4: 0.5})
    >>> [round(curve[levels], 3) for levels in (8, 4, 2)]
    [0.125, 0.5, 2.0]
    """
    known: list[tuple[float, float]] = []
    for levels in sorted(measured, reverse=True):
        distance = max(ladder.distances[levels], _LEAST)
        rise = min(max(measured[levels], least), _MOST)
        if known:  # chance may have it otherwise, but what moves further costs more
            rise = max(rise, known[-1][1])
            if distance <= known[-1][0]:
                continue
        known.append((distance, rise))
    known = known or [(max(ladder.energy, _LEAST), 1.0)]
    curve: dict[int, float] = {}
    highest = 0.0
    for levels in sorted(ladder.distances, reverse=True):
        distance = max(ladder.distances[levels], _LEAST)
        highest = curve[levels] = max(highest, _on_lines(distance, known))
    return curve


def path(ladders: Sequence[Ladder], rises: Mapping[str, Mapping[int, float]]) -> list[Step]:
    """The steps from all exact to the fewest levels, by bytes saved for each unit of loss.

    >>> sizes = {4: 20, 2: 10}
    >>> both = [Ladder("a", 100, sizes, {}), Ladder("b", 100, sizes, {})]
    >>> path(both, {"a": {4: 1.0, 2: 4.0}, "b": {4: 3.0, 2: 9.0}})
    [('a', 4), ('b', 4), ('a', 2), ('b', 2)]
    """
    steps: list[tuple[float, Step]] = []
    for ladder in ladders:
        size, rise, coarser = ladder.exact, 0.0, sorted(ladder.sizes)
        while coarser:
            saved, fewer = max(
                (_saved(size - ladder.sizes[k], rises[ladder.name][k] - rise), -k) for k in coarser
            )
            if saved <= 0:
                break
            size, rise = ladder.sizes[-fewer], rises[ladder.name][-fewer]
            coarser = coarser[: coarser.index(-fewer)]
            steps.append((saved, (ladder.name, -fewer)))
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
