"""Arrangements of things that differ in as many places as can be."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations
from random import Random

import torch

from dovetail.core.errors import SettingsError

__all__ = ["ALPHABET", "spread_out"]

ALPHABET = "0123456789abcdefghijklmno"
"""A letter a thing, so that an arrangement is a word."""

_POOL = 2000


@cache
def spread_out(things: int, count: int) -> tuple[tuple[int, ...], ...]:
    """So many arrangements of ``things``, far from one another; the same ones on every machine.

    The first leaves everything in place.  Each next one is, of all there are or of 2000 fixed ones
    when there are more, the one whose nearest among those chosen differs in the most places.

    >>> spread_out(4, 4)
    ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
    """
    if math.factorial(things) <= _POOL:
        pool = list(permutations(range(things)))
    else:
        # Python promises the same numbers in every version; torch does not.
        chance = Random(things)
        drawn = (sorted(range(things), key=lambda _: chance.random()) for _ in range(_POOL))
        pool = [tuple(range(things)), *map(tuple, drawn)]
    if count > len(pool):
        raise SettingsError(f"{things} things have {len(pool)} arrangements, not {count}")
    places = torch.tensor(pool)
    chosen = [0]
    distance = (places != places[0]).sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (places != places[chosen[-1]]).sum(1))
    return tuple(pool[number] for number in chosen)
