r"""Mean and scatter of rows, kept centred, so that pieces add up and can be taken away.

For two pieces with :math:`n_a, n_b` rows, means :math:`m_a, m_b` and scatters
:math:`T = \sum_i (x_i - m)(x_i - m)^\top`, with :math:`\delta = m_b - m_a`,

.. math::
    m = m_a + \tfrac{n_b}{n} \delta, \qquad
    T = T_a + T_b + \tfrac{n_a n_b}{n} \delta \delta^\top,

and the same with :math:`n_b` negative takes the piece away again.  Sums of squares about zero
would lose the scatter of features whose mean is much larger than their spread; these do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg.blas import dsyrk
from torch import Tensor

__all__ = ["HigherMoments", "Moments", "SecondMoment"]


class SecondMoment:
    r"""The sum :math:`\sum_i x_i x_i^\top` of rows that come in chunks.

    The product is symmetric: BLAS' ``syrk`` makes one triangle, for half the work.

    >>> second = SecondMoment(2)
    >>> second.add(torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64))
    >>> second.matrix()
    tensor([[1., 2.],
            [2., 5.]], dtype=torch.float64)
    """

    def __init__(self, width: int) -> None:
        self._sum, self._keep = np.zeros((width, width), order="F"), 0.0

    def add(self, rows: Tensor) -> None:
        """Add ``float64`` rows ``[b, d]``."""
        if len(rows):
            columns = rows.contiguous().numpy().T
            self._sum = dsyrk(1.0, columns, beta=self._keep, c=self._sum, overwrite_c=1)
            self._keep = 1.0

    def restart(self) -> None:
        """Begin anew with the next rows, in the same memory."""
        self._keep = 0.0

    def merge(self, other: SecondMoment) -> None:
        """Add another sum."""
        self._sum, self._keep = np.add(self._sum, other._sum, out=self._sum), 1.0

    def diagonal(self) -> Tensor:
        """The sum of squares of each column, ``[d]``."""
        return torch.from_numpy(self._sum.diagonal().copy())

    def matrix(self, out: Tensor | None = None) -> Tensor:
        """Both triangles, ``[d, d]``."""
        lower = torch.from_numpy(self._sum.T)
        both = torch.add(lower, lower.T, out=out)
        both.diagonal().div_(2)
        return both


@dataclass
class Moments:
    r"""Number, ``mean [d]`` and ``scatter [d, d]`` of rows.

    >>> one, two = Moments.of_one(torch.tensor([1.0, 0.0])), Moments.of_one(torch.zeros(2))
    >>> one.absorb(two)
    >>> one.scatter
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """

    n: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of_one(cls, row: Tensor) -> Moments:
        """A single row, which has no scatter."""
        return Moments(1, row.clone(), torch.zeros(len(row), len(row), dtype=row.dtype))

    def second(self) -> Tensor:
        r"""About zero: :math:`\sum x x^\top`, ``[d, d]``.

        >>> Moments.of_one(torch.tensor([2.0])).second()
        tensor([[4.]])
        """
        return self.scatter.addmm(self.mean[:, None], self.mean[None, :], alpha=self.n)

    def absorb(self, other: Moments, sign: int = 1) -> None:
        """Add the rows of another, or with ``sign=-1`` take them away; never all of them."""
        n = self.n + sign * other.n
        gap = other.mean - self.mean
        self.scatter.add_(other.scatter, alpha=sign)
        weight = sign * self.n * other.n / n
        self.scatter.addmm_(gap[:, None], gap[None, :], alpha=weight)
        self.mean = self.mean + gap * (sign * other.n / n)
        self.n = n


@dataclass
class HigherMoments(Moments):
    r"""Also :math:`\sum |y|^2 y` and :math:`\sum |y|^4` of the centred rows :math:`y = x - m`.

    The fourth says how much the scatter of so few rows is to be trusted (Ledoit and Wolf); the
    third is needed to move the fourth to another mean:
    :math:`\sum |y + \delta|^4 = \sum |y|^4 + 4 \delta^\top \sum |y|^2 y + 4 \delta^\top T \delta +
    2 |\delta|^2 \operatorname{tr} T + n |\delta|^4` if :math:`\sum y = 0`.

    >>> cls, zero = HigherMoments, torch.zeros(1)
    >>> pair = cls(1, zero, torch.zeros(1, 1), zero, zero[0])
    >>> pair.absorb(cls(1, zero + 2, torch.zeros(1, 1), zero, zero[0]))
    >>> pair.fourth
    tensor(2.)
    """

    third: Tensor
    fourth: Tensor

    def absorb(self, other: Moments, sign: int = 1) -> None:
        """As :meth:`Moments.absorb`."""
        assert isinstance(other, HigherMoments)
        mean = self.mean + (other.mean - self.mean) * (sign * other.n / (self.n + sign * other.n))
        third, fourth = self.moved(self.mean - mean)
        more_third, more_fourth = other.moved(other.mean - mean)
        self.third, self.fourth = third + sign * more_third, fourth + sign * more_fourth
        super().absorb(other, sign)

    def moved(self, by: Tensor) -> tuple[Tensor, Tensor]:
        """Third and fourth moment when every row is moved by ``[d]`` away from the mean."""
        trace, turned, far = self.scatter.trace(), self.scatter @ by, by.dot(by)
        third = self.third + trace * by + 2 * turned + self.n * far * by
        fourth = self.fourth + 4 * by.dot(self.third + turned) + far * (2 * trace + self.n * far)
        return third, fourth
