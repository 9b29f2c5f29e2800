r"""Nearest rows of rows, and the examples whose neighbours are all of their own class.

An example is **redundant** if its :math:`k` nearest neighbours, itself excluded, all share its
class: it lies far from where classes meet, and says little about the boundary.  **k-filtering**
drops the redundant ones; the share that it drops is the **k-redundancy**.  It grows as a network
separates classes, and with the number of examples: compare it at equal :math:`n` only.

Where distances tie, *every* choice of :math:`k` nearest must be of the class.  That is the same as

.. math::
    \#\{j \ne i : y_j = y_i,\ d_{ij} < \min_{y_l \ne y_i} d_{il}\} \ge k ,

which depends neither on the order of the rows nor on who searched for the neighbours.

Rough distances come from a matrix product in float32, by faiss where it is installed and block by
block in torch elsewhere.  Their error is bounded, and where an answer could turn within the bound
the distances are computed again from differences in float64.  So both give the mask that comparing
each row with each would give.  Rows that are equal are searched for once.  Time :math:`O(n^2 d)`,
memory :math:`O(nd)`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.core.errors import MissingExtraError, SettingsError, TaskError
from dovetail.core.extras import need
from dovetail.core.settings import need_least
from dovetail.measure.inputs import rows_and_codes

Engine = Literal["auto", "faiss", "torch"]

_BLOCK = 8_000_000
"""Distances held at once."""

_SPARE = 5
"""Candidates beyond the k nearest, so that few rows need a second look."""

_MANY = 5_000
"""Rows from which faiss saves more than its import costs."""

_MIXED = -1


def k_redundancy(features: Any, labels: Any, k: int = 10, *, by: Engine = "auto") -> float:
    """The share of rows whose ``k`` nearest other rows are all of their class.

    >>> k_redundancy([[0.0], [0.1], [0.2], [5.0], [5.1]], [0, 0, 0, 1, 1], k=2)
    0.6
    """
    keep = k_filter(features, labels, k, by=by)
    return 1 - int(keep.sum()) / len(keep)


def k_filter(features: Any, labels: Any, k: int = 10, *, by: Engine = "auto") -> Tensor:
    """Which rows to keep, bool ``[n]``: those near another class; see the module's text for ties.

    Args:
        features: ``[n, d]``, finite, n above ``k``.
        labels: ``[n]``, a class each.
        k: How many neighbours must be of a row's class for it to be dropped.
        by: Who searches: ``"faiss"``, ``"torch"``, or faiss for many rows if it is installed.

    >>> k_filter([[0.0], [1.0], [2.0], [3.0]], [0, 0, 0, 1], k=1)
    tensor([False, False,  True,  True])
    """
    rows, codes, _ = rows_and_codes(features, labels, least=1)
    need_least("k", k, 1)
    if len(rows) <= k:
        raise TaskError(
            f"{len(rows)} rows have {len(rows) - 1} neighbours each, fewer than k={k}; "
            "give more rows or a smaller k"
        )
    groups = equal_rows(rows, codes)
    missing = k - (groups.count - 1)  # neighbours of one's own that are not copies of oneself
    redundant = (groups.label != _MIXED) & (missing <= 0)
    pending = ((groups.label != _MIXED) & (missing > 0)).nonzero()[:, 0]
    if len(pending):
        search = Search(rows[groups.first] if len(groups.first) < len(rows) else rows, "float32")
        finder = _Finder(search, _engine(by, len(search.rows)))
        most, wanted = len(search.rows) - 1, k + _SPARE
        while len(pending):
            wanted = min(wanted, most)
            unsure = []
            for who in torch.split(
                pending, len(pending) if wanted < 64 else max(1, _BLOCK // wanted)
            ):
                sure, yes = _judged(search, groups, missing, who, *finder.nearest(who, wanted))
                redundant[who[sure & yes]] = True
                unsure.append(who[~sure])
            # Many rows as far away as the k-th: ask for more of them, at last for all.
            pending, wanted = torch.cat(unsure), 4 * wanted
    return ~redundant[groups.of]


def own_nearer(features: Any, labels: Any, who: Tensor) -> tuple[Tensor, Tensor]:
    r"""How deep in their class some rows lie: ``count`` and squared ``distance``, ``[b]`` each.

    ``count`` is how many others of a row's class are nearer than the nearest of another class,
    which is ``distance`` away (infinite where there is no other class): the largest :math:`k` for
    which :func:`k_filter` drops the row.

    >>> own_nearer([[0.0], [1.0], [2.0], [4.0]], [0, 0, 0, 1], torch.tensor([0, 2]))[0]
    tensor([2, 1])
    """
    rows, codes, _ = rows_and_codes(features, labels, least=1)
    order = codes.argsort(stable=True)  # a class then is a slice, and nothing needs a mask
    search, ends = Search(rows[order], "float32"), torch.bincount(codes).cumsum(0).tolist()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    count = torch.zeros(len(who), dtype=torch.int64)
    distance = torch.full((len(who),), torch.inf, dtype=torch.float64)
    for code, (start, end) in enumerate(pairwise((0, *ends))):
        mine = (codes[who] == code).nonzero()[:, 0]
        for some in torch.split(mine, max(1, _BLOCK // len(rows))):
            count[some], distance[some] = _depth(search, place[who[some]], start, end)
    return count, distance


def _depth(search: Search, who: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Count and distance of rows ``who``, all of the class that lies from ``start`` to ``end``."""
    rough, far = search.rough(who), 2 * search.noise
    own, others = rough[:, start:end], (rough[:, :start], rough[:, end:])
    sides = [side.amin(1, keepdim=True) for side in others if side.shape[1]]
    border = torch.cat(sides, 1).amin(1) if sides else torch.full_like(rough[:, 0], torch.inf)
    # Where rounding could turn the answer, distances are computed again from differences.
    exact = torch.full((len(who),), torch.inf, dtype=torch.float64)
    for side, first in zip(others, (0, end), strict=True):
        row, column = (side <= (border + far)[:, None]).nonzero(as_tuple=True)
        exact.scatter_reduce_(0, row, _exactly(search, who[row], first + column), "amin")
    surely = own < (border - far)[:, None]
    row, column = ((own <= (border + far)[:, None]) & ~surely & own.isfinite()).nonzero(
        as_tuple=True
    )
    nearer = _exactly(search, who[row], start + column) < exact[row]
    return surely.sum(1) + torch.bincount(row[nearer], minlength=len(who)), exact


def _exactly(search: Search, one: Tensor, other: Tensor) -> Tensor:
    """Distances by differences, a block at a time."""
    if len(one) == 0:
        return torch.zeros(0, dtype=torch.float64)
    size = max(1, _BLOCK // search.rows.shape[1])
    pairs = zip(torch.split(one, size), torch.split(other, size), strict=True)
    return torch.cat([search.between(a, b) for a, b in pairs])


class Search:
    """Squared distances between rows: rough ones by a product, exact ones by differences.

    Rows are scaled by a power of two, which changes no comparison, so that the longest, from their
    mean, has about length one.  ``noise`` bounds the error of what :meth:`rough` says.

    Args:
        rows: ``[n, d]`` of float64.
        precision: Of the products.

    >>> search = Search(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64))
    >>> near, far = search.between(torch.tensor([0, 0]), torch.tensor([1, 2])).tolist()
    >>> far / near
    9.0
    """

    def __init__(self, rows: Tensor, precision: Literal["float32", "float64"] = "float64") -> None:
        centred = rows - rows.mean(0)  # distances stay, and a product loses fewer digits
        longest = float(torch.linalg.vector_norm(centred, dim=1).max())
        scale = 2.0 ** -math.frexp(longest)[1] if longest > 0 else 1.0
        self.rows = rows * scale
        kind = getattr(torch, precision)
        self.centred = (centred * scale).to(kind)
        self.squares = self.centred.square().sum(1)
        # Rounding of the rows, of two sums of squares and of a product, of d terms each, doubled.
        self.noise = 4 * torch.finfo(kind).eps * (rows.shape[1] + 8) * float(self.squares.max())

    def rough(self, who: Tensor) -> Tensor:
        """Distances ``[b, n]`` of some rows to all; to themselves infinite."""
        mine = self.centred[who]
        found = torch.addmm(self.squares, mine, self.centred.T, alpha=-2)
        found += self.squares[who][:, None]
        found[torch.arange(len(who)), who] = torch.inf
        return found

    def between(self, one: Tensor, other: Tensor) -> Tensor:
        """Distances by differences: the same for equal rows, wherever they stand."""
        return (self.rows[one] - self.rows[other]).square().sum(-1)


@dataclass(frozen=True, eq=False)
class EqualRows:
    """Groups of rows that are equal.

    ``of [n]`` is each row's group; of a group ``first`` is its first row, ``count`` how many there
    are, and ``label`` the class of all of them, -1 where they have several.
    """

    of: Tensor
    first: Tensor
    count: Tensor
    label: Tensor


def equal_rows(rows: Tensor, codes: Tensor) -> EqualRows:
    """Which rows ``[n, d]`` of float64 are the same, with class codes ``[n]``.

    >>> rows = torch.tensor([[1.0], [2.0], [1.0]], dtype=torch.float64)
    >>> equal_rows(rows, torch.tensor([0, 0, 1])).label
    tensor([-1,  0])
    """
    array = (rows + 0.0).contiguous().numpy()  # of the two zeros one
    known: dict[bytes, int] = {}
    names = (hashlib.blake2b(row.data, digest_size=16).digest() for row in array)
    of = torch.tensor([known.setdefault(name, len(known)) for name in names])
    size = len(known)
    place = torch.arange(len(rows))
    first = torch.full((size,), len(rows)).scatter_reduce(0, of, place, "amin")
    low = torch.full((size,), int(codes.max())).scatter_reduce(0, of, codes, "amin")
    high = torch.zeros(size, dtype=codes.dtype).scatter_reduce(0, of, codes, "amax")
    label = torch.where(low == high, low, _MIXED)
    return EqualRows(of, first, torch.bincount(of), label)


def _engine(by: Engine, rows: int) -> ModuleType | None:
    """The faiss module, or ``None`` for torch."""
    if by not in ("auto", "faiss", "torch"):
        raise SettingsError(f'by is "auto", "faiss" or "torch", got {by!r}')
    if by == "torch" or (by == "auto" and rows < _MANY):
        return None
    try:
        return need("faiss", feature="This search", extra="neighbours")
    except MissingExtraError:
        if by == "faiss":
            raise
        return None


class _Finder:
    """Who is near whom, by rough distances."""

    def __init__(self, search: Search, faiss: ModuleType | None) -> None:
        self._search = search
        self._index = None
        if faiss is not None:
            self._index = faiss.IndexFlatL2(search.rows.shape[1])
            self._index.add(search.centred.numpy())

    def nearest(self, who: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Rough distances and indices ``[b, k]`` of the nearest others, nearest first."""
        search = self._search
        if self._index is not None:
            whole = len(who) == len(search.rows)
            asked = search.centred if whole else search.centred[who]
            distance, index = map(torch.from_numpy, self._index.search(asked.numpy(), k + 1))
            # Without oneself; who is not among so many that are as near gives way to the last.
            order = (index == who[:, None]).to(torch.int8).argsort(dim=1, stable=True)[:, :k]
            return distance.gather(1, order), index.gather(1, order)
        blocks = torch.split(who, max(1, _BLOCK // len(search.rows)))
        each = [search.rough(some).topk(k, dim=1, largest=False) for some in blocks]
        return torch.cat([e.values for e in each]), torch.cat([e.indices for e in each])


def _judged(
    search: Search, groups: EqualRows, missing: Tensor, who: Tensor, rough: Tensor, near: Tensor
) -> tuple[Tensor, Tensor]:
    """Whether the answer is sure, and the answer, for each of some rows.

    Whoever is not among the candidates is at least ``beyond`` away.
    """
    noise = search.noise
    own = groups.label[near] == groups.label[who][:, None]
    weight = groups.count[near] * own
    all_seen = near.shape[1] == len(search.rows) - 1
    last = torch.full_like(rough[:, -1], torch.inf) if all_seen else rough[:, -1]
    other = torch.where(own, torch.inf, rough).amin(1).minimum(last)
    surely = (weight * (rough < (other - 2 * noise)[:, None])).sum(1)
    perhaps = (weight * (rough <= (other + 2 * noise)[:, None])).sum(1)
    redundant = surely >= missing[who]
    sure = redundant | ((perhaps < missing[who]) & (last > other + 2 * noise))
    doubt = (~sure).nonzero()[:, 0]
    if len(doubt):
        step = max(1, _BLOCK // near.shape[1] // search.rows.shape[1])
        exact = torch.cat(
            [search.between(who[some][:, None], near[some]) for some in torch.split(doubt, step)]
        )
        nearest_other = torch.where(own[doubt], torch.inf, exact).amin(1)
        beyond = last[doubt].double() - noise
        border = nearest_other.minimum(beyond)
        enough = (weight[doubt] * (exact < border[:, None])).sum(1) >= missing[who][doubt]
        redundant[doubt] = enough
        sure[doubt] = enough | (nearest_other <= beyond)
    return sure, redundant
