r"""Gradients of single samples in two forms, and the inner products of two blocks of them.

The gradient of output :math:`c` of sample :math:`i` with respect to a weight matrix is a sum over
the positions at which the matrix was used, :math:`g_{ic} = \sum_k G_{ick} A_{ik}^\top`, of what
went in times what came back.  An inner product then needs no gradient at all,

.. math::
    \langle g_{ic}, g_{jd} \rangle
        = \sum_{k,l} \langle A_{ik}, A_{jl} \rangle \, \langle G_{ick}, G_{jdl} \rangle ,

which for one position costs the sum of the two widths instead of their product; a bias beside the
matrix adds one to what went in.  With many positions the gradients themselves are the smaller ones,
and are multiplied as rows.  Features may be float32, every inner product is taken in float64: a
float32 Gram matrix soon has negative eigenvalues.

All is added to a matrix given, panel by panel of its columns, so that what is multiplied and added
stays in the processor's cache.  Of a block with itself only the lower triangle is filled:
:func:`mirror_` completes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

ROOM = 2**25  # bytes of one temporary
ROWS = 2**27  # bytes of gradients that are written out
PIECE = 2**23  # bytes of features that are changed to another type at once
PANEL = 128  # columns of the matrix at a time


@dataclass(frozen=True)
class Dense:
    """Gradients written out, ``rows [n, o, p]`` for a parameter of ``p`` numbers."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

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
        columns = self.columns(0, self.grads.shape[4], self.grads.dtype)
        return (columns.transpose(3, 4) if self.input_first else columns).flatten(2)

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
        # Samples a few at a time: among many positions the intermediate is large.
        step = max(1, ROWS // (8 * self.grads[0].numel() * max(1, self.inputs[0].numel())))
        if step < len(self):
            some = [self.part(slice(i, i + step)) for i in range(0, len(self), step)]
            return torch.cat([each.own() for each in some])
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


def pieces(one: Dense | Outer, dtype: torch.dtype) -> Iterator[tuple[slice, Dense | Outer]]:
    """Samples as many at a time as are changed to a type in the cache, all where none need be."""
    tensor = one.rows if isinstance(one, Dense) else one.grads
    count, step = len(tensor), len(tensor)
    if tensor.dtype != dtype:
        step = max(1, PIECE * count // max(1, one.nbytes))
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        yield some, one if step >= count else one.part(some)


def in_pairs(left: Outer, right: Outer, diagonal: bool = False) -> bool:
    """Whether pairs of positions cost fewer products than gradients written out."""
    outputs = left.grads.shape[1] * (1 if diagonal else right.grads.shape[1])
    k, b = left.grads.shape[3:]
    size = 1 if left.looks_up else left.size
    return k * right.grads.shape[3] * (size + outputs * (b + 1)) <= outputs * left.size * b


def add_inner(
    total: Tensor,
    left: Dense | Outer,
    right: Dense | Outer,
    diagonal: bool = False,
    bias: bool = False,
) -> None:
    """Add inner products to a matrix, only on and below its diagonal where ``left is right``."""
    if not (isinstance(left, Outer) and isinstance(right, Outer) and left.like(right)):
        rows = left.dense()
        _add_rows(total, rows, rows if right is left else right.dense(), diagonal)
    elif in_pairs(left, right, diagonal):
        _add_by_positions(total, left, right, diagonal, bias)
    else:
        _add_by_columns(total, left, right, diagonal)


def takes_bias(left: Dense | Outer, right: Dense | Outer, diagonal: bool) -> str | None:
    """The bias that :func:`add_inner` can take along at no cost, if there is one."""
    if isinstance(left, Outer) and isinstance(right, Outer) and left.like(right):
        same = left.bias == right.bias
        return left.bias if same and in_pairs(left, right, diagonal) else None
    return None


def mirror_(total: Tensor) -> None:
    """Copy what is below the diagonal of samples ``[n, o, n, o]`` or ``[n, n, o]`` above it.

    >>> square = torch.tensor([[1.0, 9.0], [2.0, 3.0]]).reshape(2, 2, 1)
    >>> mirror_(square)
    >>> square.squeeze()
    tensor([[1., 2.],
            [2., 3.]])
    """
    square = total.permute(2, 0, 1) if total.ndim == 3 else _flat(total)
    for start in range(0, square.shape[-1], PANEL):
        here, rest = slice(start, start + PANEL), slice(start + PANEL, None)
        square[..., here, rest] = square[..., rest, here].mT
        corner = square[..., here, here]
        corner.copy_(corner.tril() + corner.tril(-1).mT)


def _flat(total: Tensor) -> Tensor:
    """``[n, o, m, o]`` as ``[n o, m o]``, on the same storage."""
    n, o, m, _ = total.shape
    return total.view(n * o, m * o)


def _panels(n: int, m: int, same: bool, width: int = PANEL) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of a matrix, all of it, or what is not above its diagonal."""
    for start in range(0, m, width):
        yield slice(start if same else 0, n), slice(start, min(start + width, m))


def _tiles(n: int, m: int, same: bool, side: int) -> Iterator[tuple[slice, slice]]:
    """Squares of a matrix, all of them, or those that are not above its diagonal."""
    for i in range(0, n, side):
        for j in range(0, min(i + 1, m) if same else m, side):
            yield slice(i, i + side), slice(j, j + side)


def _add_rows(total: Tensor, left: Tensor, right: Tensor, diagonal: bool) -> None:
    """Inner products of rows ``[n, o, p]`` and ``[m, o, p]``."""
    n, o, p = left.shape
    m, same = len(right), right is left
    step = max(1, ROOM // (8 * max(n, m) * o))
    for start in range(0, p, step):
        a = left[..., start : start + step].double()
        b = a if same else right[..., start : start + step].double()
        if diagonal:
            for one, other in _panels(n, m, same, max(1, PANEL // o)):
                by_output = a[one].transpose(0, 1) @ b[other].permute(1, 2, 0)
                total[one, other] += by_output.permute(1, 2, 0)
            continue
        a, b = a.reshape(n * o, -1), b.reshape(m * o, -1)
        flat = _flat(total)
        for one, other in _panels(n * o, m * o, same):
            flat[one, other].addmm_(a[one], b[other].T)


def _add_by_columns(total: Tensor, left: Outer, right: Outer, diagonal: bool) -> None:
    """Write the gradients out, some columns at a time."""
    wide = left.grads.shape[4]
    n, o, g = left.grads.shape[:3]
    step = max(1, ROOM // (8 * max(n, len(right)) * o * g * left.size))
    for start in range(0, wide, step):
        stop = min(start + step, wide)
        here = left.columns(start, stop, torch.float64).flatten(2)
        there = here
        if right is not left:
            there = right.columns(start, stop, torch.float64).flatten(2)
        _add_rows(total, here, there, diagonal)


def _add_by_positions(total: Tensor, left: Outer, right: Outer, diagonal: bool, bias: bool) -> None:
    """Multiply the inner products of inputs and of output gradients, group by group."""
    k, l_ = left.grads.shape[3], right.grads.shape[3]
    for group in range(left.grads.shape[2]):
        if k == l_ == 1 and not left.looks_up:
            _add_one_position(total, left, right, group, diagonal, bias)
        else:
            _add_positions(total, left, right, group, diagonal, bias)


def _add_one_position(
    total: Tensor, left: Outer, right: Outer, group: int, diagonal: bool, bias: bool
) -> None:
    """Where a matrix was used once a sample."""
    n, m, o, same = len(left), len(right), left.grads.shape[1], right is left
    a, g = left.inputs[:, group, 0].double(), left.grads[:, :, group, 0].double()
    b, h = a, g
    if not same:
        b, h = right.inputs[:, group, 0].double(), right.grads[:, :, group, 0].double()
    for one, other in _panels(n, m, same, max(1, PANEL // o)):
        between = a[one] @ b[other].T
        if bias:
            between += 1
        if diagonal:
            back = (g[one].transpose(0, 1) @ h[other].permute(1, 2, 0)).permute(1, 2, 0)
            total[one, other].addcmul_(between[:, :, None], back)
        else:
            back = g[one].flatten(0, 1) @ h[other].flatten(0, 1).T
            back = back.view(len(between), o, -1, o)
            total[one, :, other].addcmul_(between[:, None, :, None], back)


def _add_positions(
    total: Tensor, left: Outer, right: Outer, group: int, diagonal: bool, bias: bool
) -> None:
    """Where it was used at several positions, or a table was read."""
    n, m, o, same = len(left), len(right), left.grads.shape[1], right is left
    side = max(1, math.isqrt(ROOM // (8 * left.grads.shape[3] * right.grads.shape[3])))
    for one, other in _tiles(n, m, same, side):
        between = _between(left.inputs[one, group], right.inputs[other, group])
        if bias:
            between += 1
        g, h = left.grads[one, :, group].double(), right.grads[other, :, group].double()
        for c in range(o):
            for d in (c,) if diagonal else range(o):
                into = total[one, other, c] if diagonal else total[one, c, other, d]
                back = torch.einsum("ikx,jlx->ikjl", g[:, c], h[:, d])
                into += back.mul_(between).sum((1, 3))


def _between(a: Tensor, b: Tensor) -> Tensor:
    """Inner products ``[i, k, j, l]`` of what went in, or whether the rows of a table agree."""
    if not a.is_floating_point():
        return (a[:, :, None] == b[None, None, :, :, 0]).double()
    return torch.einsum("ikx,jlx->ikjl", a.double(), b.double())
