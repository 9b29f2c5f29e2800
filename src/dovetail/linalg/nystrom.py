r"""A preconditioner from a few columns of a kernel.

Of a positive semi-definite :math:`K` take :math:`r` columns :math:`C = K_{\cdot S}` and the block
:math:`W = K_{SS}` among them.  Then :math:`K \approx C W^{+} C^\top = U \operatorname{diag}(s)
U^\top`, and for :math:`A = K + \sigma^2 I`

.. math::
    P^{-1} = U \operatorname{diag}\Big(\frac{1}{s_i + \sigma^2}\Big) U^\top
           + \frac{1}{s_r + \sigma^2} (I - U U^\top) .

The large eigenvalues, which make a kernel ill-conditioned, become ones; what the columns do not
reach is scaled like the least of what they do (Frangella, Tropp and Udell, 2023).  Any rank gives
the right answer; a higher one in fewer iterations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, shown
from dovetail.core.seeds import generator
from dovetail.linalg.cg import Operator

__all__ = ["Nystrom", "nystrom_preconditioner"]


class Nystrom:
    r"""The preconditioner :math:`P^{-1}` made of columns of :math:`K`.

    Args:
        columns: :math:`C`, ``[m, r]``, without the noise; in the type they were computed in, as
            what counts as rounding in them follows from it.
        rows: Which rows of :math:`K` they are, ``[r]``, all different.
        noise: :math:`\sigma^2 > 0`.

    >>> kernel = torch.diag(torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64))
    >>> half = Nystrom(kernel[:, :2], torch.tensor([0, 1]), noise=1.0)
    >>> half((kernel + torch.eye(3))).diagonal().round(decimals=4)
    tensor([1.0000, 1.0000, 0.1818], dtype=torch.float64)
    """

    def __init__(self, columns: Tensor, rows: Tensor, noise: float) -> None:
        noise = _positive(noise)
        if columns.ndim != 2 or rows.shape != columns.shape[1:] or not columns.numel():
            raise SettingsError(
                f"columns {list(columns.shape)} and rows {list(rows.shape)} do not belong "
                "together: give [m, r] and the r rows of the kernel that they are"
            )
        if not bool(columns.isfinite().all()):
            raise TaskError("the kernel's columns hold nan or inf")
        if len(set(rows.tolist())) != len(rows):
            raise SettingsError("a row is given twice: choose each at most once")
        eps = torch.finfo(columns.dtype).eps
        columns = columns.detach().double()
        block = columns[rows]
        sizes, directions = torch.linalg.eigh((block + block.T) / 2)
        # What is left of the smallest eigenvalues is rounding, and would be divided by.
        sure = sizes > 10 * len(rows) * eps * sizes.abs().max()
        root = columns @ (directions[:, sure] / sizes[sure].sqrt())
        self._basis, lengths, _ = torch.linalg.svd(root, full_matrices=False)
        self._gains = 1 / (lengths.square() + noise)
        # With nothing sure left (a kernel of zeros) all of it is noise.
        self._rest = float(self._gains[-1]) if len(self._gains) else 1 / noise

    @property
    def rank(self) -> int:
        """How many directions are known; fewer than columns where those repeat each other."""
        return len(self._gains)

    def __call__(self, columns: Tensor) -> Tensor:
        """Multiply columns ``[m, k]`` by the approximate inverse."""
        inside = self._basis.T @ columns
        known: Tensor = self._basis @ ((self._gains - self._rest)[:, None] * inside)
        return known + self._rest * columns


def nystrom_preconditioner(
    kernel: Operator, size: int, rank: int, noise: float, *, seed: int = 0
) -> Nystrom:
    r"""Draw :math:`r` columns of an operator and make a preconditioner of them.

    Args:
        kernel: Multiplies float64 columns ``[m, k]`` by :math:`K`, **without** the noise.  It is
            asked for ``rank`` products; where columns come cheaper, give them to :class:`Nystrom`.
        size: The number of rows :math:`m`.
        rank: How many columns; no more than ``size`` are taken.
        noise: :math:`\sigma^2`, as it is in the system.
        seed: Of the choice of columns.

    >>> kernel = torch.diag(torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64))
    >>> nystrom_preconditioner(lambda columns: kernel @ columns, 3, rank=2, noise=0.1).rank
    2
    """
    if not (isinstance(rank, int) and rank >= 1) or not (isinstance(size, int) and size >= 1):
        raise SettingsError(
            f"rank and size are whole numbers from 1, got {shown(rank)} and {shown(size)}"
        )
    rows = torch.randperm(size, generator=generator(seed, "nystrom"))[: min(rank, size)]
    chosen = torch.zeros(size, len(rows), dtype=torch.float64)
    chosen[rows, torch.arange(len(rows))] = 1
    return Nystrom(kernel(chosen), rows, noise)


def _positive(noise: float) -> float:
    if not (isinstance(noise, float | int) and math.isfinite(noise) and noise > 0):
        raise SettingsError(f"noise is a variance, a number above 0, got {shown(noise)}")
    return float(noise)
