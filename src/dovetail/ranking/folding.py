r"""Rows folded into sums, once through, in chunks that fit a processor's cache.

Two products of :math:`n d^2` are all that costs: of raw rows, :math:`\sum x x^\top`, and of unit
rows, :math:`\sum \phi \phi^\top`.  Rows are taken class by class, so that both are made from one
copy of them and each class's own comes for nothing.  Where the mean is most of a row's length,
rows are moved by an estimate of it first, or else the scatter about the mean would be a small
difference of large numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import dovetail.ranking.sums as sums_module
from dovetail.linalg.moments import HigherMoments, Moments, SecondMoment
from dovetail.measure.inputs import CHUNK, LEAST, MOST, lengths_of, rows_a_chunk
from dovetail.ranking.sums import ClassSums, Sums

_MOST_OF_IT = 0.99
"""The mean's share in the rows' energy from which on rows are moved: two digits are given away."""


def fold(rows: Tensor, targets: Tensor, *, per_class: bool, mergeable: bool = True) -> Sums:
    """The sums of rows ``[n, d]`` and their targets.

    Args:
        rows: Floats of any width; at least one.
        targets: Labels ``int64 [n]``, or numbers ``float64 [n, k]``.
        per_class: Keep what the forms over pairs of two classes need,
        mergeable: in a form that adds up, unless that is too large.

    >>> rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> sums = fold(rows, torch.tensor([5, 5]), per_class=True)
    >>> sums.n, sums.lit, sums.unit.mean
    (2, 1, tensor([0.3000, 0.4000], dtype=torch.float64))
    """
    source = Rows(rows)
    if targets.is_floating_point():
        return _fold_numbers(source, targets)
    return _ClassFold(source, targets, per_class, mergeable).sums()


def class_gaussians(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Means and sums of squared deviations of each class, both ``[C, d]``, classes sorted.

    >>> rows = torch.tensor([[1.0], [3.0], [5.0]], dtype=torch.float64)
    >>> class_gaussians(rows, torch.tensor([7, 7, 2]))
    (tensor([[5.],
            [2.]], dtype=torch.float64), tensor([[0.],
            [2.]], dtype=torch.float64))
    """
    ids, codes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(ids), rows.shape[1], dtype=torch.float64)
    means = zeros.index_add(0, codes, rows) / counts[:, None]
    return means, zeros.index_add(0, codes, (rows - means[codes]).square())


class _Raw:
    """Sums of raw rows, of their products and of powers three and four, about a shift."""

    def __init__(self, source: Rows) -> None:
        self.n, self.lengths = len(source), source.lengths
        pilot = source.pilot()
        mean = pilot.mean(0)
        moved = mean.dot(mean) * len(pilot) > _MOST_OF_IT * pilot.square().sum()
        self.shift = mean if moved else torch.zeros_like(mean)
        self.moved, self.second = bool(moved), SecondMoment(source.width)
        self.sums = torch.zeros(2, source.width, dtype=torch.float64)  # of x and of |x|^2 x
        self.fourth = torch.zeros((), dtype=torch.float64)

    def add(self, places: Tensor, rows: Tensor, second: SecondMoment | None = None) -> Tensor:
        """Add rows, which are moved in place; gives their total ``[d]`` about the shift."""
        if self.moved:
            rows.sub_(self.shift)
            energy = torch.linalg.vecdot(rows, rows)
        else:
            energy = self.lengths[places].square()
        more = torch.stack([torch.ones_like(energy), energy]) @ rows
        self.sums += more
        self.fourth += energy.dot(energy)
        (second or self.second).add(rows)
        return more[0]

    def moments(self) -> HigherMoments:
        n, (total, third) = self.n, self.sums
        second, away = self.second.matrix(), total / n
        scatter = second.addmm(total[:, None], total[None, :], alpha=-1 / n)
        moments = HigherMoments.of(n, float(n), self.shift + away, scatter)
        # About the mean y = z - away, from sums of z about the shift.
        trace, far, turned = second.trace(), away.dot(away), second @ away
        moments.fourth = (
            self.fourth - 4 * away.dot(third - turned) + far * (2 * trace - 3 * n * far)
        )
        moments.third = third - 2 * turned - (trace - 2 * n * far) * away
        return moments


def _unit_moments(source: Rows, total: Tensor, second: Tensor) -> Moments:
    """Moments of the unit rows from their sums about zero, or in a second pass if these lack it."""
    n = len(source)
    mean = total / n
    if total.dot(total) > _MOST_OF_IT * n * second.trace():
        about = SecondMoment(source.width)
        total = torch.zeros_like(mean)
        for places in source.chunks():
            _, unit = source.take(places)
            unit.sub_(mean)
            total += unit.sum(0)
            about.add(unit)
        second = about.matrix()
    else:
        mean = torch.zeros_like(mean)
    scatter = second.addmm(total[:, None], total[None, :], alpha=-1 / n)
    return Moments.of(n, float(n), mean + total / n, scatter)


def _fold_numbers(source: Rows, targets: Tensor) -> Sums:
    mean = targets.mean(0)
    centred = targets - mean
    raw, second = _Raw(source), SecondMoment(source.width)
    total = torch.zeros(source.width, dtype=torch.float64)
    cross = torch.zeros(2, source.width, targets.shape[1], dtype=torch.float64)
    for places in source.chunks():
        rows, unit = source.take(places)
        second.add(unit)
        total += unit.sum(0)
        raw.add(places, rows)
        for own, part in zip(cross, (rows, unit), strict=True):
            own.addmm_(part.T, centred[places])  # a shift of the rows makes no difference
    sums = Sums(raw.moments(), _unit_moments(source, total, second.matrix()), source.lit)
    for moments, own in zip((sums.raw, sums.unit), cross, strict=True):
        moments.mean = torch.cat([moments.mean, mean])
        moments.cross, moments.targets = own.clone(), centred.T @ centred
    return sums


class _ClassFold:
    """Everything that is summed of rows with labels, class by class."""

    def __init__(self, source: Rows, labels: Tensor, per_class: bool, mergeable: bool) -> None:
        self.source, self.width = source, source.width
        self.ids, codes, self.counts = torch.unique(labels, return_inverse=True, return_counts=True)
        self.groups = Groups(codes, self.counts, self.width)
        self.raw, self.unit = _Raw(source), SecondMoment(self.width)
        self.own = SecondMoment(self.width), SecondMoment(self.width)  # of one class at a time
        shape = (len(self.ids), self.width)
        # Totals of raw rows, of their squares (both about the shift), and of unit rows.
        self.total, self.square, self.unit_total = torch.zeros(3, *shape, dtype=torch.float64)
        few = len(self.ids) * self.width**2 <= sums_module.MOST_CELLS
        self.second = self.energy = None
        if per_class and mergeable and few:
            self.second = torch.empty(*shape, self.width, dtype=torch.float64)
        elif per_class:
            self.energy = torch.zeros(len(self.ids), dtype=torch.float64)

    def sums(self) -> Sums:
        for which, places in self.groups.batches():
            if len(which) == 1 and places.shape[1] > self.width:
                self._large(int(which), places[0])
            else:
                self._small(which, places)
        each = self.counts[:, None]
        whole = self.unit.matrix() if self.second is None else self.second.sum(0)
        classes = ClassSums(
            self.ids,
            self.counts,
            self.total / each + self.raw.shift,
            (self.square - self.total.square() / each).clamp_(min=0),
            self.unit_total / each,
            self.second,
            self.energy,
        )
        unit = _unit_moments(self.source, self.unit_total.sum(0), whole)
        return Sums(self.raw.moments(), unit, self.source.lit, classes)

    def _large(self, which: int, places: Tensor) -> None:
        """A class of more rows than features, a chunk at a time."""
        raw, unit = self.own
        raw.restart()
        unit.restart()
        for part in torch.split(places, self.source.step):
            rows, phi = self.source.take(part)
            self.total[which] += self.raw.add(part, rows, raw)
            self.unit_total[which] += phi.sum(0)
            unit.add(phi)
        self.raw.second.merge(raw)
        self.square[which] = raw.diagonal()
        if self.second is None:
            self.unit.merge(unit)
        else:
            unit.matrix(out=self.second[which])
        if self.energy is not None:
            self.energy[which] = unit.matrix().square().sum()

    def _small(self, which: Tensor, places: Tensor) -> None:
        """Classes of one size, all at once."""
        rows, phi = self.source.take(places.flatten())
        self.raw.add(places.flatten(), rows)
        each = rows.view(*places.shape, self.width)  # [g, size, d]
        self.total[which], self.square[which] = each.sum(1), each.square().sum(1)
        unit = phi.view(*places.shape, self.width)
        self.unit_total[which] = unit.sum(1)
        if self.second is not None:
            self.second[which] = unit.mT @ unit
            return
        self.unit.add(phi)
        if self.energy is not None:
            small = unit.mT @ unit if places.shape[1] > self.width else unit @ unit.mT
            self.energy[which] = small.square().sum((1, 2))


# Rows taken a chunk at a time, as they are and at unit length, in any order -----------------------


_PILOT = 1024


class Rows:
    """Rows ``[n, d]`` of floats; ``lengths [n]`` of those that have been taken.

    >>> rows = Rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    >>> raw, unit = rows.take(torch.tensor([1, 0]))
    >>> unit
    tensor([[0.0000, 0.0000],
            [0.6000, 0.8000]], dtype=torch.float64)
    """

    def __init__(self, values: Tensor) -> None:
        self.values, self.width = values, values.shape[1]
        self.lengths = torch.zeros(len(values), dtype=torch.float64)
        self.step = rows_a_chunk(self.width)
        self._stored = self._raw = self._unit = torch.empty(0, self.width)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def lit(self) -> int:
        """How many of the rows taken are not zero."""
        return int((self.lengths > LEAST).sum())

    def take(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Some rows in ``float64``, as they are and at unit length.

        Both are in memory that the next call uses again: large pieces of fresh memory cost more
        than what is done with them.  Rows that are not finite, or too long, are refused.
        """
        if len(places) > len(self._raw):
            size = (max(len(places), min(self.step, len(self))), self.width)
            self._stored = torch.empty(size, dtype=self.values.dtype)
            self._unit = torch.empty(size, dtype=torch.float64)
            same = self.values.dtype == torch.float64
            self._raw = self._stored if same else torch.empty_like(self._unit)
        part = slice(len(places))
        stored, raw, unit = self._stored[part], self._raw[part], self._unit[part]
        torch.index_select(self.values, 0, places, out=stored)
        if raw.dtype != stored.dtype:
            raw.copy_(stored)
        lengths = torch.linalg.vector_norm(raw, dim=1)
        if not (lengths <= MOST).all():
            lengths_of(self.values)  # says which row
        self.lengths[places] = lengths
        inverse = torch.where(lengths > LEAST, 1 / lengths, 0.0)
        return raw, torch.mul(raw, inverse[:, None], out=unit)

    def pilot(self) -> Tensor:
        """About a thousand rows, evenly from all of them."""
        return self.values[:: -(-len(self) // _PILOT)].double()

    def chunks(self) -> tuple[Tensor, ...]:
        """The places of all rows, a chunk at a time."""
        return torch.split(torch.arange(len(self)), self.step)


class Groups:
    """The rows of each class; classes of one size come together, a batch at a time.

    >>> groups = Groups(torch.tensor([1, 0, 2, 1]), torch.tensor([1, 2, 1]), width=5)
    >>> [(which.tolist(), places.tolist()) for which, places in groups.batches()]
    [([0, 2], [[1], [2]]), ([1], [[0, 3]])]
    """

    def __init__(self, codes: Tensor, counts: Tensor, width: int) -> None:
        self.order = torch.argsort(codes, stable=True)
        self.starts = counts.cumsum(0) - counts
        self.counts, self.width = counts, width

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Some classes ``[g]`` of one size, and the places of their rows ``[g, size]``."""
        sizes, order = torch.sort(self.counts, stable=True)
        sizes_there, many = torch.unique_consecutive(sizes, return_counts=True)
        for size, alike in zip(
            sizes_there.tolist(), torch.split(order, many.tolist()), strict=True
        ):
            within = torch.arange(size)
            most = max(CHUNK // (max(size, self.width) * self.width), 1)
            for which in torch.split(alike, most):
                yield which, self.order[self.starts[which][:, None] + within]
