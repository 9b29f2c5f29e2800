r"""Gradients of single samples in two forms: written out, or as sums of outer products.

The gradient of output :math:`c` of sample :math:`i` with respect to a weight matrix is a sum over
the positions at which the matrix was used, :math:`g_{ic} = \sum_k G_{ick} A_{ik}^\top`, of what
went in times what came back.  An inner product then needs no gradient at all,

.. math::
    \langle g_{ic}, g_{jd} \rangle
        = \sum_{k,l} \langle A_{ik}, A_{jl} \rangle \, \langle G_{ick}, G_{jdl} \rangle ,

which for one position costs the sum of the two widths instead of their product.  With many
positions the gradients themselves are the smaller ones.  :mod:`dovetail.linalg.gram_products`
multiplies two blocks of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Dense", "Outer", "in_pairs", "summed"]


@dataclass(frozen=True)
class Dense:
    """Gradients written out, ``rows [n, o, p]`` for a parameter of ``p`` numbers."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def outputs(self) -> int:
        """The number of outputs ``o``."""
        return self.rows.shape[1]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.rows.device

    @property
    def nbytes(self) -> int:
        """What it takes to keep."""
        return self.rows.nbytes

    def dense(self) -> Tensor:
        """The gradients ``[n, o, p]``."""
        return self.rows

    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum ``[p]`` with weights ``[n, o]``, of the weights' type."""
        rows = self.rows.to(weights.dtype)
        return weights.flatten() @ rows.flatten(0, 1)

    def along(self, direction: Tensor) -> Tensor:
        """Their inner products ``[n, o]`` with one direction ``[p]``, of its type."""
        return self.rows.to(direction.dtype) @ direction

    def own(self) -> Tensor:
        """Inner products among the outputs of each sample, float64 ``[n, o, o]``."""
        rows = self.rows.double()
        return rows @ rows.transpose(1, 2)

    def part(self, samples: slice) -> Dense:
        """Those of some samples."""
        return Dense(self.rows[samples])

    def compact(self) -> Dense:
        """These gradients: rows are their smallest form already."""
        return self


@dataclass(frozen=True)
class Outer:
    """Gradients as sums of outer products over positions, in ``g`` groups of columns.

    ``inputs [n, g, k, a]`` (or integers ``[n, 1, k, 1]``, rows of a table of ``size`` rows),
    ``grads [n, o, g, k, b]``.  The parameter reads ``[g, b, a]``, or ``[g, a, b]`` with
    ``input_first``.  ``bias`` names the parameter that was added at the same places.
    """

    inputs: Tensor
    grads: Tensor
    size: int
    input_first: bool = False
    bias: str | None = None

    def __len__(self) -> int:
        return len(self.grads)

    @property
    def outputs(self) -> int:
        """The number of outputs ``o``."""
        return self.grads.shape[1]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.grads.device

    @property
    def nbytes(self) -> int:
        """What it takes to keep."""
        return self.inputs.nbytes + self.grads.nbytes

    @property
    def looks_up(self) -> bool:
        """Whether the inputs are rows of a table."""
        return not self.inputs.is_floating_point()

    def like(self, other: Dense | Outer) -> bool:
        """Whether the two can be contracted as they are."""
        return (
            isinstance(other, Outer)
            and (self.size, self.input_first, self.looks_up)
            == (other.size, other.input_first, other.looks_up)
            and self.grads.shape[2] == other.grads.shape[2]
            and self.grads.shape[4] == other.grads.shape[4]
        )

    def columns(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """The gradients ``[n, o, g, stop - start, a]`` of some of the columns of ``grads``."""
        grads = self.grads[..., start:stop].to(dtype)
        n, o, g, k, b = grads.shape
        if self.looks_up:
            where = self.inputs.expand(n, o, k, b)  # g is 1
            table = grads.new_zeros(n, o, self.size, b)
            return table.scatter_add_(2, where, grads[:, :, 0]).transpose(2, 3)[:, :, None]
        left = grads.permute(0, 2, 1, 4, 3).reshape(n, g, o * b, k)
        product = left @ self.inputs.to(dtype)
        return product.reshape(n, g, o, b, self.size).transpose(1, 2)

    def dense(self) -> Tensor:
        """The gradients ``[n, o, p]`` in the order of the parameter."""
        found = self.columns(0, self.grads.shape[4], self.grads.dtype)
        return (found.transpose(3, 4) if self.input_first else found).flatten(2)

    def weighted(self, weights: Tensor) -> Tensor:
        """Their sum ``[p]`` with weights ``[n, o]``, of the weights' type; none is written out."""
        grads = torch.einsum("no,nogkb->gnkb", weights, self.grads.to(weights.dtype))
        g, n, k, b = grads.shape
        grads = grads.reshape(g, n * k, b)
        if self.looks_up:
            table = grads.new_zeros(self.size, b)
            return table.index_add_(0, self.inputs.flatten(), grads[0]).flatten()
        inputs = self.inputs.to(weights.dtype).transpose(0, 1).reshape(g, n * k, self.size)
        total = grads.transpose(1, 2) @ inputs  # [g, b, a]
        return (total.transpose(1, 2) if self.input_first else total).flatten()

    def along(self, direction: Tensor) -> Tensor:
        """Their inner products ``[n, o]`` with one direction ``[p]``, of its type."""
        n, _, g, k, b = self.grads.shape
        shape = (g, self.size, b) if self.input_first else (g, b, self.size)
        matrix = direction.reshape(shape)
        if not self.input_first:
            matrix = matrix.transpose(1, 2)  # [g, a, b]
        if self.looks_up:
            moved = matrix[0][self.inputs.flatten()].reshape(n, 1, k, b)
        else:
            inputs = self.inputs.to(direction.dtype).transpose(0, 1).reshape(g, n * k, self.size)
            moved = (inputs @ matrix).reshape(g, n, k, b).transpose(0, 1)
        return torch.einsum("nogkb,ngkb->no", self.grads.to(direction.dtype), moved)

    def own(self) -> Tensor:
        """Inner products among the outputs of each sample, float64 ``[n, o, o]``."""
        n, o, g, k, b = self.grads.shape
        if self.looks_up or k * (self.size + o * b) > o * b * self.size:
            written = self.columns(0, b, torch.float64).flatten(2)
            return written @ written.transpose(1, 2)
        inputs = self.inputs.double()
        between = inputs @ inputs.transpose(2, 3)  # [n, g, k, k]
        grads = self.grads.double()
        rows = grads.permute(0, 2, 3, 1, 4).reshape(n, g, k, o * b)
        moved = (between @ rows).reshape(n, g, k, o, b)
        left = grads.reshape(n, o, g * k * b)
        right = moved.permute(0, 3, 1, 2, 4).reshape(n, o, g * k * b)
        return left @ right.transpose(1, 2)

    def part(self, samples: slice) -> Outer:
        """Those of some samples."""
        return replace(self, inputs=self.inputs[samples], grads=self.grads[samples])

    def compact(self) -> Dense | Outer:
        """As rows ``[n, o, p]`` where they take less room than factors, and products less time."""
        n, o, g, _, b = self.grads.shape
        numbers = n * o * g * b * self.size
        if numbers <= self.inputs.numel() + self.grads.numel() and not in_pairs(self, self):
            return Dense(self.dense())
        return self


def summed(several: list[Dense | Outer]) -> Dense | Outer:
    """One parameter used at several places: its gradient is the sum over all of them.

    >>> a, g = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 1, 3)
    >>> twice = summed([Outer(a, g, 2), Outer(a, g, 2)])
    >>> twice.dense()
    tensor([[[2., 2., 2., 2., 2., 2.]]])
    """
    first = several[0]
    if len(several) == 1:
        return first
    if isinstance(first, Outer) and all(first.like(other) for other in several[1:]):
        outers = [one for one in several if isinstance(one, Outer)]
        inputs = torch.cat([one.inputs for one in outers], 2)
        return replace(first, inputs=inputs, grads=torch.cat([one.grads for one in outers], 3))
    total = first.dense().clone()
    for other in several[1:]:
        total += other.dense()
    return Dense(total)


def in_pairs(left: Outer, right: Outer, diagonal: bool = False) -> bool:
    """Whether pairs of positions cost fewer products than gradients written out."""
    outputs = left.grads.shape[1] * (1 if diagonal else right.grads.shape[1])
    k, b = left.grads.shape[3:]
    size = 1 if left.looks_up else left.size
    return k * right.grads.shape[3] * (size + outputs * (b + 1)) <= outputs * left.size * b
