r"""Solutions kept for right-hand sides to come.

For :math:`B V = C`, of which some columns :math:`C` are asked for now and some later, solutions
span a space that holds much of the next ones.  With a basis :math:`Q` of it,
:math:`Q^\top B Q = I`, and its image :math:`B Q`,

.. math::
    Z = Q^\top C, \qquad R = C - (B Q)\, Z, \qquad C^\top B^{-1} C = Z^\top Z + R^\top B^{-1} R ,

by products with what is kept alone.  So :math:`Z^\top Z` is never too large, and how much too small
it can be is known where :math:`r^\top B^{-1} r` has a bound.  Only columns for which that is more
than is allowed are solved for, the worst first, and their solutions join the basis.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dovetail.linalg.conjugate_gradients import Refined

TOGETHER = 8
"""Columns that are solved for at a time; after them others may not need it any more."""

TRIES = 4
"""Times that a column is solved for; what is left then is rounding."""

NEAREST = 1e-6
"""The smallest relative residual that is asked for at once."""

LEAST = 1e-9
"""Below this share of a whole, what is left of it is rounding."""

ALIKE = 1e-10
"""Below this share of the largest, what is new in a direction is rounding."""


class Recycled:
    r"""Square roots of :math:`C^\top B^{-1} C` for columns, from solutions that are kept.

    Args:
        solve: Solves :math:`B V = C` for columns ``[m, k]`` to a relative residual.
        bound: At least :math:`r^\top B^{-1} r` of each column.
        size: The number of rows :math:`m`.
        tolerance: How much may be missing of a form, in units of what is left of a whole.
        room: The most directions that are kept, ``16 m`` bytes each; once they are so many, columns
            that they do not hold are solved for every time.

    >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0]).double())
    >>> asked = []
    >>> def solve(right, tolerance):
    ...     asked.append(right.shape[1])
    ...     solution = torch.linalg.solve(matrix, right)
    ...     return Refined(solution, matrix @ solution, 0.0, 1)
    >>> kept = Recycled(solve, lambda left: left.square().sum(0), 3, 1e-6)
    >>> columns = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]).double().T
    >>> root = kept.root(columns, torch.full((2,), 5.0))
    >>> root.T @ root
    tensor([[1.5000, 0.5000],
            [0.5000, 0.7500]], dtype=torch.float64)
    >>> root = kept.root(columns.sum(1, keepdim=True), torch.tensor([5.0]))  # nothing new
    >>> root.T @ root, asked
    (tensor([[3.2500]], dtype=torch.float64), [2])
    """

    def __init__(
        self,
        solve: Callable[[Tensor, float], Refined],
        bound: Callable[[Tensor], Tensor],
        size: int,
        tolerance: float,
        *,
        room: int = 512,
    ) -> None:
        self._solve, self._bound = solve, bound
        self._tolerance, self._room = tolerance, room
        self._basis = self._image = torch.zeros(size, 0, dtype=torch.float64)

    @property
    def rank(self) -> int:
        """How many directions are kept."""
        return self._basis.shape[1]

    def root(self, columns: Tensor, wholes: Tensor) -> Tensor:
        r""":math:`E` of columns ``[m, k]``, with :math:`E^\top E \preceq C^\top B^{-1} C`.

        Args:
            columns: :math:`C`.
            wholes: What the forms are taken from, ``[k]``: of the diagonal at most the tolerance
                times :math:`w - e^\top e` is missing.
        """
        basis, image = self._basis, self._image
        parts = [basis.T @ columns]
        residual = columns - image @ parts[0]
        explained = parts[0].square().sum(0)
        tries = torch.zeros(len(wholes), dtype=torch.int64)
        while True:
            allowed = self._tolerance * (wholes - explained).clamp(min=LEAST * wholes)
            excess = self._bound(residual) / allowed
            wanted = (excess > 1) & (tries < TRIES)
            if not bool(wanted.any()):
                break
            worst = torch.where(wanted, excess, 0.0).topk(min(TOGETHER, int(wanted.sum()))).indices
            # A residual smaller by some factor is a form smaller by its square.
            near = min(0.5, max(NEAREST, 0.5 * float(excess[worst].max()) ** -0.5))
            more, image_of_more = _beside(basis, image, self._solve(residual[:, worst], near))
            parts.append(more.T @ residual)
            explained = explained + parts[-1].square().sum(0)
            residual = residual - image_of_more @ parts[-1]
            basis, image = torch.cat([basis, more], 1), torch.cat([image, image_of_more], 1)
            tries[worst] += 1
        if basis.shape[1] > self.rank:
            self._basis, self._image = basis[:, : self._room], image[:, : self._room]
        return torch.cat(parts)


def _beside(basis: Tensor, image: Tensor, refined: Refined) -> tuple[Tensor, Tensor]:
    r"""What solutions have beside a basis, :math:`B`-orthonormal, and its image."""
    vectors, images = refined.solution, refined.image
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
