r"""The inner products of two blocks of gradients, in float64.

For gradients as sums of outer products the inner products of what went in and of what came back are
multiplied, and a bias beside the matrix adds one to those of what went in; gradients that are the
smaller written out are multiplied as rows.  Features may be float32, every inner product is taken
in float64: a float32 Gram matrix soon has negative eigenvalues.

All is added to a matrix given, panel by panel of its columns, so that what is multiplied and added
stays in the processor's cache.  Of a block with itself only the lower triangle is filled:
:func:`mirror_` completes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dovetail.linalg.gram_blocks import Dense, Outer, in_pairs

__all__ = ["add_inner", "inner", "mirror_", "takes_bias"]

ROOM = 2**25  # bytes of one temporary
PANEL = 128  # columns of the matrix at a time


def inner(
    left: Dense | Outer, right: Dense | Outer, *, diagonal: bool = False, bias: bool = False
) -> Tensor:
    """Inner products of gradients, float64 ``[n, o, m, o]``, or ``[n, m, o]`` for ``diagonal``.

    ``bias`` adds those of the bias beside a matrix; see :func:`takes_bias`.

    >>> inner(Dense(torch.ones(2, 1, 5)), Dense(torch.ones(3, 1, 5))).shape
    torch.Size([2, 1, 3, 1])
    """
    n, m, o = len(left), len(right), left.outputs
    total = torch.zeros(
        (n, m, o) if diagonal else (n, o, m, o), dtype=torch.float64, device=left.device
    )
    add_inner(total, left, right, diagonal=diagonal, bias=bias)
    if left is right:
        mirror_(total)
    return total


def add_inner(
    total: Tensor,
    left: Dense | Outer,
    right: Dense | Outer,
    *,
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
    n, m, o, same = len(left), len(right), left.outputs, right is left
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
    n, m, o, same = len(left), len(right), left.outputs, right is left
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
