r"""How uncertain classes are: of what a feature selects, and of pure cells around all examples.

A feature **selects** the examples where it is positive, which is what a ReLU lets through.  Its
**selection entropy** is that of their classes, in bits,

.. math::
    H(Y \mid S_+(z)) = -\sum_c p_c \log_2 p_c, \qquad
    p_c = \frac{\#\{i : z_i > 0,\ y_i = c\}}{\#\{i : z_i > 0\}} ,

0 where a feature answers to one class alone, :math:`H(Y)` where it does not tell them apart.

A **pure Voronoi map** is a set of labelled centroids such that the nearest centroid of every
example has its class.  Its **pure entropy** is that of the cells' shares of the examples,

.. math::
    H = -\sum_v p_v \log_2 p_v, \qquad p_v = |v| / n ,

large where the boundary between classes is long and winding, so that it takes many cells.  The
least of all maps, :math:`H^*`, is hard to find.  The map here begins with the mean of every class,
gives each group of examples that lie in another class's cell a centroid of their own, their mean,
until every cell is pure, and then takes cells away, the smallest first, as long as their examples
fall to cells of their own class.  Guaranteed are

* purity: it ends with every example in a cell of its class (where a round of means does not bring
  fewer mistakes the next centroids are examples, and an example that is a centroid stays right);
* that no single cell can be taken away and leave the map pure;
* :math:`H(Y) \le H^* \le H \le \log_2 n`.

It is not the least.  Distances are of float64 products, so all of this holds to their rounding.
Both grow with :math:`n`: compare them at equal :math:`n`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.measure.inputs import rows_and_codes
from dovetail.measure.neighbours import equal_rows

_BLOCK = 1 << 22
"""Distances held at once: 32 MB."""


def selection_entropy(features: Any, labels: Any) -> Tensor:
    """Entropy in bits ``[d]`` of the classes that each feature selects; NaN where it selects none.

    >>> selection_entropy([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0], [3.0, 0.0, 0.0]], [0, 1, 1])
    tensor([0.9183, 0.0000,    nan], dtype=torch.float64)
    """
    rows, codes, _ = rows_and_codes(features, labels, least=1)
    counts = one_hot(codes).double().T @ (rows > 0).double()
    return _entropy(counts / counts.sum(0))


@dataclass(frozen=True, eq=False)
class VoronoiMap:
    """Labelled centroids ``[c, d]`` and ``labels [c]``, and the cell ``of`` every example ``[n]``.

    ``labels`` are class codes, in the order of the classes' names.  ``rounds`` says how often
    centroids were added.
    """

    centroids: Tensor
    labels: Tensor
    of: Tensor
    rounds: int

    @property
    def entropy(self) -> float:
        """Of the cells' shares, in bits."""
        return float(_entropy(self.of.bincount().double() / len(self.of)))


def pure_entropy(features: Any, labels: Any, seed: int = 0) -> float:
    """The entropy in bits of a pure Voronoi map; see the module's text for what it guarantees.

    Args:
        features: ``[n, d]``, finite.  Equal rows of two classes have no pure map, and are refused.
        labels: ``[n]``, a class each.
        seed: Of the order in which cells of one size are tried for removal.

    >>> pure_entropy([[0.0], [1.0], [5.0], [6.0]], [0, 0, 1, 1])
    1.0
    >>> pure_entropy([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
    2.0
    """
    return pure_voronoi_map(features, labels, seed).entropy


def pure_voronoi_map(features: Any, labels: Any, seed: int = 0) -> VoronoiMap:
    """The map of :func:`pure_entropy`.  Time :math:`O(ncd)` for c cells.

    >>> pure_voronoi_map([[0.0], [2.0], [5.0]], ["a", "a", "b"]).centroids
    tensor([[1.],
            [5.]], dtype=torch.float64)
    """
    rows, codes, count = rows_and_codes(features, labels, least=1)
    equal = equal_rows(rows, codes)
    if bool((mixed := equal.label[equal.of] < 0).any()):
        raise TaskError(
            f"{int(mixed.sum())} of {len(rows)} rows equal a row of another class (the first is "
            f"row {int(mixed.nonzero()[0])}): no map is pure; leave them out"
        )
    cells = _Cells(rows, codes)
    cells.add(*_means(rows, codes, torch.arange(len(rows)), codes, count))
    fewest, rounds = len(rows) + 1, 0
    while len(wrong := cells.mistakes()):
        # Examples of one class in one cell of another get a centroid together.
        pairs = cells.cell[wrong] * count + codes[wrong]
        together = torch.unique(pairs, return_inverse=True)[1]
        centroids, classes = _means(rows, codes, wrong, together, int(together.max()) + 1)
        if len(wrong) < fewest:
            cells.add(centroids, classes)
        else:
            cells.add_examples(_nearest_of_each(rows[wrong] - centroids[together], wrong, together))
        fewest = min(fewest, len(wrong))
        rounds += 1
    cells.drop_needless(seed)
    return VoronoiMap(cells.centred + cells.middle, cells.labels, cells.home, rounds)


def _means(
    rows: Tensor, codes: Tensor, who: Tensor, together: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """The mean of each group of some rows, and its class."""
    sums = rows.new_zeros(groups, rows.shape[1]).index_add_(0, together, rows[who])
    classes = codes.new_zeros(groups).scatter_(0, together, codes[who])
    return sums / together.bincount(minlength=groups)[:, None], classes


def _nearest_of_each(apart: Tensor, who: Tensor, together: Tensor) -> Tensor:
    """Of each group of examples the one that is least apart ``[b, d]`` from its mean."""
    order = apart.square().sum(1).argsort(stable=True)
    order = order[together[order].argsort(stable=True)]
    return who[order[together[order].diff(prepend=torch.tensor([-1])) > 0]]


class _Cells:
    """Examples and the centroids so far.

    ``home`` and ``near`` are the nearest centroid of each example's own class and how far it is,
    ``cell`` and ``other`` the nearest of another class.  Rows and centroids are ``centred``.
    """

    def __init__(self, rows: Tensor, codes: Tensor) -> None:
        self.middle = rows.mean(0)
        self.rows, self.codes = rows - self.middle, codes
        self.squares = self.rows.square().sum(1)
        self.centred, self.lengths, self.labels = self.rows[:0], self.squares[:0], codes[:0]
        self.near, self.other = (torch.full_like(self.squares, torch.inf) for _ in range(2))
        self.home, self.cell = (torch.zeros_like(codes) for _ in range(2))

    def add(self, centroids: Tensor, classes: Tensor) -> None:
        """Add centroids ``[c, d]`` with a class each."""
        first = len(self.labels)
        centred = centroids - self.middle
        self.labels = torch.cat([self.labels, classes])
        self.centred = torch.cat([self.centred, centred])
        self.lengths = torch.cat([self.lengths, centred.square().sum(1)])
        for who in torch.split(torch.arange(len(self.rows)), max(1, _BLOCK // len(classes))):
            distance = self._distances(who, first)
            own = self.codes[who][:, None] == classes
            self._nearer(self.near, self.home, who, distance.masked_fill(~own, torch.inf), first)
            self._nearer(self.other, self.cell, who, distance.masked_fill(own, torch.inf), first)

    def add_examples(self, who: Tensor) -> None:
        """Make some examples centroids; they are at home from then on, whatever rounding says."""
        first = len(self.labels)
        self.add(self.rows[who] + self.middle, self.codes[who])
        self.home[who], self.near[who] = torch.arange(first, len(self.labels)), -torch.inf

    def mistakes(self) -> Tensor:
        """Examples that are nearer to a centroid of another class than to any of their own."""
        return (self.near > self.other).nonzero()[:, 0]

    def drop_needless(self, seed: int) -> None:
        """Take cells away, the smallest first, until none can be; those left are numbered anew."""
        draw = torch.rand(len(self.labels), generator=generator(seed, "pure entropy"))
        dropped = True
        while dropped:
            sizes = self.home.bincount(minlength=len(self.labels))
            draw = self._only(sizes > 0, draw)
            dropped = self._sweep(draw)

    def _sweep(self, draw: Tensor) -> bool:
        """Try every cell once; whether any is empty now."""
        sizes = self.home.bincount(minlength=len(self.labels))
        members = [m.tolist() for m in torch.split(self.home.argsort(stable=True), sizes.tolist())]
        own = [self.labels == label for label in range(int(self.codes.max()) + 1)]
        gone = torch.zeros(len(members), dtype=torch.bool)
        order = sorted(range(len(members)), key=lambda c: (int(sizes[c]), float(draw[c])))
        for some in _stretches(order, members, _BLOCK // len(members)):
            # Who comes to a cell of this stretch meanwhile comes from another cell of it.
            examples = torch.tensor([example for c in some for example in members[c]])
            distances, place_of = (
                self._distances(examples),
                {e: i for i, e in enumerate(examples.tolist())},
            )
            for c in some:
                gone[c] = True
                mine = own[int(self.labels[c])]
                distance = distances[[place_of[e] for e in members[c]]].masked_fill_(
                    gone, torch.inf
                )
                near, place = distance.masked_fill(~mine, torch.inf).min(1)
                other = distance.masked_fill_(mine, torch.inf).amin(1)
                if bool(((near <= other) & near.isfinite()).all()):
                    self.home[members[c]] = place
                    for example, where in zip(members[c], place.tolist(), strict=True):
                        members[where].append(example)
                else:
                    gone[c] = False
        return bool(gone.any())

    def _only(self, alive: Tensor, draw: Tensor) -> Tensor:
        """Forget empty cells; the draws of those that are left."""
        number = alive.cumsum(0) - 1
        self.home = number[self.home]
        self.centred, self.lengths = self.centred[alive], self.lengths[alive]
        self.labels = self.labels[alive]
        return draw[alive]

    def _distances(self, who: Tensor, first: int = 0) -> Tensor:
        """Squared distances ``[b, c]`` to the centroids from the first, by a product."""
        distances = torch.addmm(
            self.lengths[first:], self.rows[who], self.centred[first:].T, alpha=-2
        )
        return distances.add_(self.squares[who][:, None])

    @staticmethod
    def _nearer(best: Tensor, where: Tensor, who: Tensor, distance: Tensor, first: int) -> None:
        least, place = distance.min(1)
        better = least < best[who]
        best[who] = torch.where(better, least, best[who])
        where[who] = torch.where(better, place + first, where[who])


def _stretches(order: list[int], members: list[list[int]], most: int) -> Iterator[list[int]]:
    """Cells in order, as many at once as have at most so many members now; one at least."""
    some: list[int] = []
    size = 0
    for c in order:
        if some and size + len(members[c]) > most:
            yield some
            some, size = [], 0
        some.append(c)
        size += len(members[c])
    yield some


def _entropy(share: Tensor) -> Tensor:
    """In bits, along the first axis; nothing counts as nothing."""
    bits: Tensor = torch.special.entr(share).sum(0) / math.log(2) + 0.0
    return bits
