r"""Leave-one-out accuracy of the nearest neighbours, exact, in blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError
from dovetail.ranking.inputs import as_rows, class_codes, refuse_other_count

__all__ = ["knn"]

_BLOCK = 8_000_000  # distances held at once: 64 MB
_SPARE = 4  # candidates beyond the k nearest, so that small ties need no second look


def knn(features: Any, labels: Any, k: int = 1) -> float:
    r"""The share of rows whose k nearest other rows (Euclidean) vote for their class.

    A row is excluded by its index, so its duplicates do count.  Two classes with as many votes: the
    one that holds the nearer neighbour wins.  Rows at exactly the distance of the k-th neighbour
    share the votes that are left among them, and classes that still tie share the credit: so
    neither the order of the rows nor the names of the classes matter.  With fewer than k other
    rows all of them vote.

    Distances come from a matrix product, block by block, and those near the k-th are computed
    again from differences, so that equal distances are equal.  Time :math:`O(n^2 d)`, memory
    :math:`O(nd)` and a block.

    >>> knn([[0.0], [0.1], [5.0], [5.1], [0.25]], [0, 0, 1, 1, 1])
    0.8
    """
    rows, (codes, _) = as_rows(features), class_codes(labels)
    refuse_other_count(rows, codes)
    if k < 1:
        raise SettingsError(f"k must be at least 1, got {k}")
    k = min(k, len(rows) - 1)
    search = _Search(rows, k)
    step = max(1, _BLOCK // len(rows))
    credit = sum(
        _credit(search, codes, torch.arange(start, min(start + step, len(rows))))
        for start in range(0, len(rows), step)
    )
    return credit / len(rows)


class _Search:
    """The nearest rows of rows, by exact squared distances."""

    def __init__(self, rows: Tensor, k: int) -> None:
        self.rows, self.k = rows, k
        self.centred = rows - rows.mean(0)  # distances stay, and a product loses fewer digits
        self.squares = self.centred.square().sum(1)
        digits = 4 * torch.finfo(rows.dtype).eps * (rows.shape[1] + 8)
        self.noise = digits * float(self.squares.max())

    def around(self, who: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Distances of a block to all rows, then distances and indices of the candidates."""
        rough = self.squares[who][:, None] + self.squares - 2 * self.centred[who] @ self.centred.T
        rough[torch.arange(len(who)), who] = torch.inf
        most = min(self.k + _SPARE, len(self.rows) - 1)
        candidates = rough.topk(most, dim=1, largest=False, sorted=False).indices
        exact = self.between(who[:, None], candidates)
        exact, order = exact.sort(dim=1)
        return rough, exact, candidates.gather(1, order)

    def between(self, one: Tensor, other: Tensor) -> Tensor:
        """Squared distances by differences: the same for equal rows, wherever they stand."""
        return (self.rows[one] - self.rows[other]).square().sum(-1)


def _credit(search: _Search, codes: Tensor, who: Tensor) -> float:
    """How many of a block's rows are told right; a tie counts as a share."""
    k, own = search.k, codes[who]
    rough, exact, near = search.around(who)
    farthest = rough.gather(1, near).amax(1)
    all_seen = near.shape[1] == len(search.rows) - 1
    crowded = (farthest <= exact[:, k - 1] + 2 * search.noise) & (not all_seen)
    tied = (exact[:, : k + 1].diff(dim=1) == 0).any(1) | crowded
    credit = float((_vote(codes[near[:, :k]]) == own)[~tied].sum())
    for place in tied.nonzero()[:, 0].tolist():
        distance, index = exact[place], near[place]
        if crowded[place]:
            reach = distance[k - 1] + 2 * search.noise
            index = (rough[place] <= reach).nonzero()[:, 0]
            distance = search.between(who[place], index)
        credit += _shared_credit(distance, codes[index], int(own[place]), k)
    return credit


def _vote(classes: Tensor) -> Tensor:
    """The class with most votes in each row ``[b, k]``, nearest first; a tie goes to the nearer."""
    votes = (classes[:, :, None] == classes[:, None, :]).sum(2)
    return classes.gather(1, votes.argmax(1, keepdim=True))[:, 0]


def _shared_credit(distance: Tensor, classes: Tensor, own: int, k: int) -> float:
    reach = distance.kthvalue(k).values
    inside, edge = distance < reach, distance == reach
    left = k - int(inside.sum())
    names, voter = torch.unique(classes, return_inverse=True)
    # in units of one vote over the number of rows at the edge, so that counts stay whole
    votes = torch.zeros(len(names), dtype=torch.int64)
    votes.index_add_(0, voter, inside * int(edge.sum()) + edge * left)
    nearest = torch.full((len(names),), torch.inf, dtype=distance.dtype)
    nearest.scatter_reduce_(0, voter, distance, "amin")
    best = votes == votes.max()
    best &= nearest == nearest[best].min()
    return float(best[names == own].any()) / int(best.sum())
