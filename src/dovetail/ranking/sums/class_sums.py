r"""What is summed for each class, so that pieces add up and can be taken away.

A class has :math:`n_c` rows; of the raw rows it keeps the mean and the squared deviations
:math:`\sum (x - m_c)^2` of each coordinate, of the unit rows :math:`\phi` the mean and, for the
forms that need only pairs of two classes, either the *second moment* :math:`M_c = \sum \phi
\phi^\top` or, where :math:`C d^2` numbers would be too many, only its *energy* :math:`|M_c|_F^2 =
\sum_{ij} k_{ij}^2`, which does not add up: a class that comes in two pieces then loses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["MOST_CELLS", "ClassSums"]

MOST_CELLS = 1 << 27
"""Second moments of all classes together may hold this many numbers: one gibibyte."""


@dataclass
class ClassSums:
    """The sums of ``C`` classes; ``ids [C]`` are sorted, as the user named them.

    ``counts [C]``, ``raw_mean``, ``raw_square`` and ``unit_mean [C, d]``, and at most one of
    ``second [C, d, d]`` and ``energy [C]`` (nan where lost).

    >>> def one(label):
    ...     return ClassSums(torch.tensor([label]), torch.ones(1, dtype=torch.int64),
    ...                      *torch.ones(3, 1, 2), second=None, energy=torch.ones(1))
    >>> seven = one(7)
    >>> seven.absorb(one(3))
    >>> seven.ids, seven.energy
    (tensor([3, 7]), tensor([1., 1.]))
    >>> seven.absorb(one(3)); seven.counts, seven.energy
    (tensor([2, 1]), tensor([nan, 1.]))
    """

    ids: Tensor
    counts: Tensor
    raw_mean: Tensor
    raw_square: Tensor
    unit_mean: Tensor
    second: Tensor | None
    energy: Tensor | None

    def absorb(self, other: ClassSums, sign: int = 1) -> None:
        """Add the rows of another, or with ``sign=-1`` take them away, if they can be."""
        ids = torch.unique(torch.cat([self.ids, other.ids]))
        self._spread_over(ids)
        at = torch.searchsorted(ids, other.ids)
        self._absorb_second(other, at, sign)
        had, more = self.counts[at], other.counts
        n = had + sign * more
        share = (sign * more.double() / n.clamp(min=1))[:, None]
        weight = share * had[:, None]
        gap = other.raw_mean - self.raw_mean[at]
        self.raw_square[at] += sign * other.raw_square + weight * gap.square()
        self.raw_mean[at] += share * gap
        self.unit_mean[at] += share * (other.unit_mean - self.unit_mean[at])
        self.counts[at] = n
        if sign < 0:
            self._keep(self.counts > 0)

    def refuse_taking(self, other: ClassSums) -> None:
        """Refuse to take away more rows of a class than there are."""
        at = torch.searchsorted(self.ids, other.ids).clamp(max=max(len(self.ids) - 1, 0))
        had = torch.where(self.ids[at] == other.ids, self.counts[at], 0)
        short = (had < other.counts).nonzero()
        if len(short):
            first = int(short[0])
            raise TaskError(
                f"cannot take {int(other.counts[first])} rows of class {int(other.ids[first])} "
                f"from {int(had[first])}: only what was added before can be taken away"
            )

    def energies(self) -> Tensor | None:
        """The squared size of each class's second moment, ``[C]``; nan where lost."""
        if self.second is None:
            return self.energy
        return self.second.flatten(1).square().sum(1)

    def _absorb_second(self, other: ClassSums, at: Tensor, sign: int) -> None:
        if self.second is not None and other.second is not None:
            if len(at) == len(self.second):  # the same classes: no copies
                self.second.add_(other.second, alpha=sign)
            else:
                self.second.index_add_(0, at, other.second, alpha=sign)
            return
        mine, theirs = self.energies(), other.energies()
        self.second = None
        if mine is None or theirs is None:
            self.energy = None
            return
        # The energy of a class known from one side only; a class in two pieces has lost it.
        self.energy = mine.clone()
        self.energy[at] = torch.where(self.counts[at] == 0, theirs, torch.nan)

    def _spread_over(self, ids: Tensor) -> None:
        """Room for more classes, zero until something is added."""
        if len(ids) == len(self.ids):
            return
        if self.second is not None and len(ids) * self.second[0].numel() > MOST_CELLS:
            self.energy, self.second = self.energies(), None
        at = torch.searchsorted(ids, self.ids)
        for name, values in self._arrays().items():
            wide = values.new_zeros(len(ids), *values.shape[1:])
            wide[at] = values
            setattr(self, name, wide)
        self.ids = ids

    def _keep(self, mask: Tensor) -> None:
        if not mask.all():
            for name, values in self._arrays().items():
                setattr(self, name, values[mask])
            self.ids = self.ids[mask]

    def _arrays(self) -> dict[str, Tensor]:
        names = ("counts", "raw_mean", "raw_square", "unit_mean", "second", "energy")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}
