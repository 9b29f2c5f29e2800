"""Rows taken a chunk at a time, as they are and at unit length, in any order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dovetail.ranking.sums.rows_given import CHUNK, LEAST, MOST, lengths_of, rows_a_chunk

__all__ = ["Groups", "Rows"]

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
        self._given = self._raw = self._unit = torch.empty(0, self.width)

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
            self._given = torch.empty(size, dtype=self.values.dtype)
            self._unit = torch.empty(size, dtype=torch.float64)
            same = self.values.dtype == torch.float64
            self._raw = self._given if same else torch.empty_like(self._unit)
        part = slice(len(places))
        given, raw, unit = self._given[part], self._raw[part], self._unit[part]
        torch.index_select(self.values, 0, places, out=given)
        if raw.dtype != given.dtype:
            raw.copy_(given)
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
        found, many = torch.unique_consecutive(sizes, return_counts=True)
        for size, alike in zip(found.tolist(), torch.split(order, many.tolist()), strict=True):
            within = torch.arange(size)
            most = max(CHUNK // (max(size, self.width) * self.width), 1)
            for which in torch.split(alike, most):
                yield which, self.order[self.starts[which][:, None] + within]
