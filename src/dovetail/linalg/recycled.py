r"""Solutions kept for right-hand sides to come.

For :math:`B V = C` with :math:`B \succeq I`, of which some columns :math:`C` are asked for now and
some later, solutions span a space that holds much of the next ones.  With a basis :math:`Q` of it,
:math:`Q^\top B Q = I`, and its image :math:`B Q`,

.. math::
    Z = Q^\top C, \qquad R = C - (B Q)\, Z, \qquad
    C^\top B^{-1} C = Z^\top Z + R^\top B^{-1} R, \qquad R^\top B^{-1} R \preceq R^\top R ,

by products with what is kept alone.  So :math:`Z^\top Z` is never too large and how much too small
is measured.  Only columns whose :math:`\lVert R \rVert` is above the tolerance are solved for, the
worst first, and their solutions join the basis.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dovetail.linalg.conjugate_gradients import Refined

__all__ = ["Recycled"]

TOGETHER = 8
"""Columns that are solved for at a time; after them others may not need it any more."""

ALIKE = 1e-10
"""Below this share of the largest, what is new in a direction is rounding."""


class Recycled:
    r"""Square roots of :math:`C^\top B^{-1} C` for columns, from solutions that are kept.

    Args:
        solve: Solves :math:`B V = C` for columns ``[m, k]`` to the tolerance.
        size: The number of rows :math:`m`.
        tolerance: How long :math:`R` may be, relative to a column.
        room: The most directions that are kept, ``16 m`` bytes each; once they are so many, columns
            that they do not hold are solved for every time.

    >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0]).double())
    >>> asked = []
    >>> def solve(right):
    ...     asked.append(right.shape[1])
    ...     solution = torch.linalg.solve(matrix, right)
    ...     return Refined(solution, matrix @ solution, 0.0, 1)
    >>> kept = Recycled(solve, 3, 1e-6)
    >>> columns = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]).double().T
    >>> root = kept.root(columns)
    >>> root.T @ root
    tensor([[1.5000, 0.5000],
            [0.5000, 0.7500]], dtype=torch.float64)
    >>> root = kept.root(columns.sum(1, keepdim=True))  # nothing new
    >>> root.T @ root, asked
    (tensor([[3.2500]], dtype=torch.float64), [2])
    """

    def __init__(
        self, solve: Callable[[Tensor], Refined], size: int, tolerance: float, *, room: int = 512
    ) -> None:
        self._solve, self._tolerance, self._room = solve, tolerance, room
        self._basis = self._image = torch.zeros(size, 0, dtype=torch.float64)

    @property
    def rank(self) -> int:
        """How many directions are kept."""
        return self._basis.shape[1]

    def root(self, columns: Tensor) -> Tensor:
        r""":math:`E` of columns ``[m, k]``, with :math:`E^\top E \preceq C^\top B^{-1} C`.

        On the diagonal they differ by at most the square of the tolerance times
        :math:`\lVert c \rVert^2`.
        """
        basis, image = self._basis, self._image
        parts = [basis.T @ columns]
        left = columns - image @ parts[0]
        lengths = columns.norm(dim=0)
        wanted = lengths > 0
        while bool((wanted := wanted & (left.norm(dim=0) > self._tolerance * lengths)).any()):
            shares = torch.where(wanted, left.norm(dim=0) / lengths, 0.0)
            worst = shares.topk(min(TOGETHER, int(wanted.sum()))).indices
            more, image_of_more = _beside(basis, image, self._solve(left[:, worst]))
            parts.append(more.T @ left)
            left = left - image_of_more @ parts[-1]
            basis, image = torch.cat([basis, more], 1), torch.cat([image, image_of_more], 1)
            wanted[worst] = False  # what was solved for is as good as was asked
        if basis.shape[1] > self.rank:
            self._basis, self._image = basis[:, : self._room], image[:, : self._room]
        return torch.cat(parts)


def _beside(basis: Tensor, image: Tensor, found: Refined) -> tuple[Tensor, Tensor]:
    r"""What solutions have beside a basis, :math:`B`-orthonormal, and its image."""
    vectors, images = found.solution, found.image
    for _ in range(2):
        within = image.T @ vectors
        vectors, images = vectors - basis @ within, images - image @ within
    sizes = (vectors * images).sum(0).clamp(min=torch.finfo(vectors.dtype).tiny).sqrt()
    vectors, images = vectors / sizes, images / sizes
    inner = vectors.T @ images
    values, turns = torch.linalg.eigh((inner + inner.T) / 2)
    new = values > ALIKE * values[-1]
    turned = turns[:, new] / values[new].sqrt()
    return vectors @ turned, images @ turned
