r"""Scores of the kernel :math:`k_{ij} = \langle\phi_i, \phi_j\rangle` of unit rows, from sums.

Sums over all :math:`n^2` pairs are norms of sums over rows.  With the classes' sums :math:`s_c`,
the whole's :math:`S`, second moments :math:`M_c` and :math:`M`, and :math:`t` rows that are not
zero (each has :math:`k_{ii} = 1`),

.. math::
    P = \sum_c |s_c|^2,\; N = |S|^2 - P,\; N_P = \sum_c n_c^2,\; N_N = n^2 - N_P,\;
    Q = |M|_F^2,\; Q_N = Q - \sum_c |M_c|_F^2

are the kernel's sum over pairs of one class and of two, the numbers of such pairs, and the sums of
the squared kernel over all pairs and over those of two classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail.core.activations import KernelRange
from dovetail.core.errors import SettingsError, TaskError
from dovetail.ranking.sums.all_sums import Sums
from dovetail.ranking.sums.class_sums import ClassSums
from dovetail.ranking.sums.number_sums import NumberSums

__all__ = ["KernelSums", "centred_alignment"]

_NOISE = torch.finfo(torch.float64).eps ** 2


class KernelSums:
    """The sums over pairs, and the scores they give; higher is better."""

    def __init__(self, sums: Sums, classes: ClassSums, span: KernelRange) -> None:
        self.beta, self.alpha = span
        self.n, self.lit = sums.n, sums.lit
        counts, mean, scatter = classes.counts.double(), sums.unit.mean, sums.unit.scatter
        size = float(mean.dot(mean))
        same = float((counts.square() * classes.unit_mean.square().sum(1)).sum())
        self.same, self.different = same, self.n**2 * size - same
        self.pairs_same = int(classes.counts.square().sum())
        self.pairs_different = self.n**2 - self.pairs_same
        # |T + n m m'|^2, term by term: none is negative, so no digit is lost.
        self.squares = float(
            scatter.square().sum() + 2 * self.n * mean.dot(scatter @ mean) + (self.n * size) ** 2
        )
        self.classes = classes

    def al(self) -> float:
        r""":math:`(\alpha P + \beta N) / \sqrt{Q (\alpha^2 N_P + \beta^2 N_N)}`, or 0 if Q is."""
        ideal = self.alpha**2 * self.pairs_same + self.beta**2 * self.pairs_different
        return _cosine(self._aligned(), self.squares, ideal, self.n**2)

    def utal(self) -> float:
        r"""As AL without the diagonal: :math:`P - t`, :math:`Q - t`, :math:`N_P - n`."""
        known = self.n * (self.n - 1)
        alike = self.pairs_same - self.n
        ideal = self.alpha**2 * alike + self.beta**2 * self.pairs_different
        if not ideal:
            few = "one row" if not known else "no two rows of one class"
            raise TaskError(
                f"'utal' is undefined for {few}: give more rows a class, or use 'al' or 'nmse'"
            )
        return _cosine(
            self._aligned() - self.alpha * self.lit, self.squares - self.lit, ideal, known
        )

    def nmse(self) -> float:
        r""":math:`-(Q - 2 (\alpha P + \beta N) + \alpha^2 N_P + \beta^2 N_N) / n^2`."""
        ideal = self.alpha**2 * self.pairs_same + self.beta**2 * self.pairs_different
        return -max(self.squares - 2 * self._aligned() + ideal, 0.0) / self.n**2

    def al_neo(self) -> float:
        r""":math:`\operatorname{sign}(\beta) N / \sqrt{N_N Q_N}`, also UTAL-NEO; 0 if Q_N is."""
        if self.beta == 0:
            raise SettingsError(
                "'al-neo' and 'utal-neo' are undefined for features that are never negative: "
                "their ideal kernel is 0, and nothing aligns with zero; use 'nmse-neo'"
            )
        self._refuse_one_class("al-neo")
        sign = math.copysign(1, self.beta)
        squares = self._squares_different("al-neo")
        return _cosine(sign * self.different, squares, self.pairs_different, self.pairs_different)

    def nmse_neo(self) -> float:
        r""":math:`-(Q_N - 2 \beta N + \beta^2 N_N) / N_N`."""
        self._refuse_one_class("nmse-neo")
        excess = self._squares_different("nmse-neo") - 2 * self.beta * self.different
        excess += self.beta**2 * self.pairs_different
        return -max(excess, 0.0) / self.pairs_different

    def _aligned(self) -> float:
        return self.alpha * self.same + self.beta * self.different

    def _squares_different(self, kind: str) -> float:
        energies = self.classes.energies()
        if energies is None:
            raise SettingsError(
                f"{kind!r} needs second moments of each class: PairStatistics(per_class=True)"
            )
        if energies.isnan().any():
            width = self.classes.raw_mean.shape[1]
            raise TaskError(
                f"{kind!r} needs a second moment for each of {len(energies)} classes, "
                f"{width} x {width} numbers each, too many to keep, and some classes came in more "
                "than one piece: give all rows in one update, or features of fewer dimensions"
            )
        return max(self.squares - float(energies.sum()), 0.0)

    def _refuse_one_class(self, kind: str) -> None:
        if not self.pairs_different:
            raise TaskError(
                f"all rows are of one class, and {kind!r} needs two that differ: "
                "give rows of another class, or use 'al' or 'nmse'"
            )


def centred_alignment(sums: Sums, *, unit: bool) -> float:
    r"""Alignment of the centred kernel with the centred kernel of the targets: linear CKA.

    .. math:: |\tilde Y^\top \tilde X|_F^2 / (|\tilde X^\top \tilde X|_F
        |\tilde Y^\top \tilde Y|_F) \in [0, 1]

    with one-hot :math:`Y` for classes, whose :math:`\tilde Y^\top\tilde Y = \operatorname{diag}
    (n_c) - n_c n_c^\top / n`.  Of the rows as they are, or of ``unit`` rows.
    """
    moments, targets = sums.unit if unit else sums.raw, sums.targets
    if isinstance(targets, NumberSums):
        shared = float((targets.unit_cross if unit else targets.raw_cross).square().sum())
        ideal = float(torch.linalg.matrix_norm(targets.scatter))
        if _vanishes(targets.scatter, targets.mean, sums.n):
            raise TaskError("the targets do not vary, so no kernel can align with theirs")
    else:
        counts = targets.counts.double()
        means = targets.unit_mean if unit else targets.raw_mean
        shared = float(((means - moments.mean) * counts[:, None]).square().sum())
        ideal = _centred_size(counts)
        if len(counts) < 2:
            raise TaskError("all rows are of one class; 'centred-al' needs two")
    if _vanishes(moments.scatter, moments.mean, sums.n):
        raise TaskError("the features are the same for every row: 'centred-al' is undefined")
    return min(shared / (float(torch.linalg.matrix_norm(moments.scatter)) * ideal), 1.0)


def _vanishes(scatter: Tensor, mean: Tensor, n: int) -> bool:
    """Whether the scatter is nothing but the rounding of a mean."""
    return float(scatter.trace()) <= 64 * _NOISE * n * float(mean.dot(mean))


def _centred_size(counts: Tensor) -> float:
    """The Frobenius norm of ``diag(n_c) - n_c n_c' / n``."""
    n = counts.sum()
    pairs = counts.square().sum()
    # Diagonal n_c (n - n_c) / n and the rest n_c n_e / n apart: no difference of near numbers.
    diagonal = (counts * (n - counts)).square().sum()
    others = (counts.square() * (pairs - counts.square())).sum()
    return float((diagonal + others).sqrt() / n)


def _cosine(product: float, squares: float, ideal: float, pairs: int) -> float:
    """A cosine; 0 where the kernel is nothing but rounding, whose direction is no answer."""
    if squares <= 64 * _NOISE * pairs:
        return 0.0
    return min(max(product / math.sqrt(squares * ideal), -1.0), 1.0)
