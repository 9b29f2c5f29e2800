r"""Scores of the distances between rows: leave-one-out nearest neighbours, and PARC."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.inputs import rows_and_codes
from dovetail.measure.neighbours import Search

_BLOCK = 8_000_000  # distances held at once: 64 MB
_SPARE = 4  # candidates beyond the k nearest, so that small ties need no second look

MOST_ROWS = 5_000  # of PARC; 12.5 million pairs: about 600 MB while they are sorted
_DECIMALS = 12  # what differs by less is float noise, and must tie
_FLAT = 1e-10  # a spread this small beside the values is rounding


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
    rows, codes, _ = rows_and_codes(features, labels)
    if k < 1:
        raise SettingsError(f"k must be at least 1, got {k}")
    k = min(k, len(rows) - 1)
    search = Search(rows)
    step = max(1, _BLOCK // len(rows))
    credit = sum(
        _credit(search, k, codes, torch.arange(start, min(start + step, len(rows))))
        for start in range(0, len(rows), step)
    )
    return credit / len(rows)


def _around(search: Search, k: int, who: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rough distances of a block to all rows, then exact ones and indices of the candidates."""
    rough = search.rough(who)
    most = min(k + _SPARE, len(search.rows) - 1)
    candidates = rough.topk(most, dim=1, largest=False, sorted=False).indices
    exact, order = search.between(who[:, None], candidates).sort(dim=1)
    return rough, exact, candidates.gather(1, order)


def _credit(search: Search, k: int, codes: Tensor, who: Tensor) -> float:
    """How many of a block's rows are told right; a tie counts as a share."""
    own = codes[who]
    rough, exact, near = _around(search, k, who)
    farthest = rough.gather(1, near).amax(1)
    all_seen = near.shape[1] == len(search.rows) - 1
    crowded = (search.at_least(farthest, who) <= exact[:, k - 1]) & (not all_seen)
    tied = (exact[:, : k + 1].diff(dim=1) == 0).any(1) | crowded
    credit = float((_vote(codes[near[:, :k]]) == own)[~tied].sum())
    for place in tied.nonzero()[:, 0].tolist():
        distance, index = exact[place], near[place]
        if crowded[place]:
            least = search.at_least(rough[place], who[place])
            index = (least <= distance[k - 1]).nonzero()[:, 0]
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
    shared = k - int(inside.sum())
    names, voter = torch.unique(classes, return_inverse=True)
    # in units of one vote over the number of rows at the edge, so that counts stay whole
    votes = torch.zeros(len(names), dtype=torch.int64)
    votes.index_add_(0, voter, inside * int(edge.sum()) + edge * shared)
    nearest = torch.full((len(names),), torch.inf, dtype=distance.dtype)
    nearest.scatter_reduce_(0, voter, distance, "amin")
    best = votes == votes.max()
    best &= nearest == nearest[best].min()
    return float(best[names == own].any()) / int(best.sum())


def parc(features: Any, labels: Any) -> float:
    r"""Spearman's correlation, times 100, of feature distances with label distances over pairs.

    Columns are standardised; the distance of two rows is one minus their Pearson correlation; the
    distance of two labels is exactly 0 or 1.  Over the :math:`N` pairs :math:`i < j`, a share
    :math:`p` of them of different classes, and as long as no two distances tie,

    .. math:: \mathrm{PARC} = 100\,(2\,\mathrm{AUC} - 1)\sqrt{3p(1-p)}\,\frac{N}{\sqrt{N^2-1}},

    with AUC the chance that a pair of two classes is farther apart than a pair of one: hence not
    comparable between tasks of different balance.  Ties get average ranks, and distances closer
    than 1e-12 tie.  A column without variance is left out of every row; a row that is then
    constant has no correlation, and its distance to every other row is 1.  When all distances tie
    the correlation is 0.

    Args:
        features: ``[n, d]``, n at most 5000: all pairs are held at once.
        labels: ``[n]``; some two rows must share a class.

    >>> rows = [[3.0, 0.1, 0.2], [2.9, 0.0, 0.3], [0.0, 2.0, 0.1], [0.2, 1.8, 0.0]]
    >>> round(parc(rows, [0, 0, 1, 1]), 4)
    82.8079
    """
    rows, codes, _ = rows_and_codes(features, labels)
    if len(rows) > MOST_ROWS:
        raise TaskError(
            f"PARC ranks all pairs, and {len(rows)} rows have {len(rows) * (len(rows) - 1) // 2:,};"
            f" pass a random sample of at most {MOST_ROWS} rows"
        )
    first, second = torch.triu_indices(len(rows), len(rows), 1)
    different = codes[first] != codes[second]
    pairs, ones = len(different), int(different.sum())
    if ones in (0, pairs):
        raise TaskError("PARC needs two rows of one class and two of different classes")
    unit = _standardised_unit(rows)
    distance = (1 - unit @ unit.T)[first, second].round(decimals=_DECIMALS)
    rank = torch.from_numpy(rankdata(distance.numpy())) - (pairs + 1) / 2
    spread = float(rank.square().sum()) * ones * (1 - ones / pairs)
    return 100 * float(rank[different].sum()) / math.sqrt(spread) if spread else 0.0


def _standardised_unit(rows: Tensor) -> Tensor:
    """Rows of standardised columns, centred and scaled to length one; flat ones are zero."""
    spread = rows.std(0, correction=0)
    flat = spread <= _FLAT * rows.abs().amax(0)
    columns = torch.where(flat, 0.0, (rows - rows.mean(0)) / torch.where(flat, 1.0, spread))
    varying = columns[:, ~flat]
    if varying.shape[1] == 0:
        return columns
    centred = varying - varying.mean(1, keepdim=True)
    length = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    none = length <= _FLAT * torch.linalg.vector_norm(varying, dim=1, keepdim=True)
    return torch.where(none, 0.0, centred / torch.where(none, 1.0, length))
