r"""Scores of the raw features' means and covariances: LogME, H-scores and GBC, from sums."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.ranking.sums.all_sums import Sums
from dovetail.ranking.sums.class_sums import ClassSums
from dovetail.ranking.sums.logme import CUT, mean_evidence
from dovetail.ranking.sums.number_sums import NumberSums
from dovetail.ranking.sums.rows_given import CHUNK

__all__ = ["CovarianceScores", "bhattacharyya"]

_FLOOR = 1e-4
_SAFE = 1e-3
"""A triangular factor whose diagonal varies more than this may belong to a singular matrix."""
_MOST_OVERLAPS = 1 << 32


class CovarianceScores:
    """LogME and both H-scores.

    Args:
        sums: Of the rows, or of rows turned into fewer coordinates: lengths and angles are all
            that counts here.
        width: How many features there were before that.
    """

    def __init__(self, sums: Sums, width: int) -> None:
        self.sums, self.width = sums, width

    def logme(self) -> float:
        """The mean over targets of their greatest log evidence a row; see :mod:`.logme`."""
        raw, targets, n = self.sums.raw, self.sums.targets, self.sums.n
        if isinstance(targets, NumberSums):
            products = targets.raw_cross + n * torch.outer(targets.mean, raw.mean)
            total = targets.scatter.diagonal() + n * targets.mean.square()
        else:
            total = targets.counts.double()
            products = targets.raw_mean * total[:, None]  # F't of one-hot t: the class's sum
        return mean_evidence(raw.second(), products, total, n)

    def hscore(self) -> float:
        r""":math:`\operatorname{tr}(T^+ B)`, between 0 and the number of classes less one.

        :math:`T` is the scatter, :math:`B` that of the class means; directions in which nothing
        but rounding varies are left out of the inverse, or it would explode at n near d.
        """
        value = self._explained(self.sums.raw.scatter)
        return min(value, float(min(self.width, len(self._classes.ids) - 1)))

    def hscore_lw(self) -> float:
        r"""The H-score with Ledoit and Wolf's covariance :math:`(1 - a) S + a m I`, times 1 - a.

        :math:`m = \operatorname{tr} S / d`, and :math:`a` is how much of :math:`|S - mI|^2` the
        rows' own scatter about :math:`S` explains.  Both covariances divide by n.
        """
        n, d, raw = self.sums.n, self.width, self.sums.raw
        covariance = raw.scatter / n
        size, middle = float(covariance.square().sum()), float(covariance.trace()) / d
        apart = size / d - middle**2
        noise = (float(raw.fourth) / n - size) / (n * d)
        shrink = min(max(noise, 0.0) / apart, 1.0) if apart > CUT * middle**2 else 0.0
        shrunk = covariance.mul_(1 - shrink)
        shrunk.diagonal().add_(shrink * middle)
        return (1 - shrink) * self._explained(shrunk) / n

    @property
    def _classes(self) -> ClassSums:
        assert isinstance(self.sums.targets, ClassSums)
        return self.sums.targets

    def _explained(self, matrix: Tensor) -> float:
        """The trace of the matrix's (pseudo-)inverse times the scatter of class means."""
        classes, mean = self._classes, self.sums.raw.mean
        apart = (classes.raw_mean - mean) * classes.counts.double().sqrt()[:, None]  # [C, d]
        factor, failed = torch.linalg.cholesky_ex(matrix)
        sizes = factor.diagonal()
        if not failed and sizes.min() > _SAFE * sizes.max():
            half = torch.linalg.solve_triangular(factor, apart.T, upper=False)
            return float(half.square().sum())
        values, vectors = torch.linalg.eigh(matrix)  # ten times the work, but sees the rank
        kept = values > CUT * values[-1].clamp(min=0)
        along = (apart @ vectors[:, kept]).square().sum(0)
        return float((along / values[kept]).sum())


def bhattacharyya(counts: Tensor, means: Tensor, squares: Tensor, *, spherical: bool) -> float:
    r"""Minus the overlap of class Gaussians, over ordered pairs of classes: GBC.

    :math:`-\sum_{i \ne j} e^{-D_{ij}}`, :math:`D_{ij} = \frac18 \sum (m_i - m_j)^2 / v +
    \frac12 \sum \log v - \frac14 \sum \log v_i - \frac14 \sum \log v_j` with :math:`v = (v_i +
    v_j) / 2`; variances divide by :math:`n_c` and are at least 1e-4; ``spherical`` takes the mean
    variance of a class for each of its coordinates.

    >>> import math
    >>> one = torch.ones(2, dtype=torch.float64)
    >>> means = torch.tensor([[0.0], [4.0]], dtype=torch.float64)
    >>> overlap = bhattacharyya(one, means, one[:, None], spherical=False)
    >>> math.isclose(overlap, -2 * math.exp(-2))
    True
    """
    classes, width = means.shape
    if classes < 2:
        raise TaskError("all rows are of one class; 'gbc' compares classes and needs two")
    if classes * (classes - 1) // 2 * width > _MOST_OVERLAPS:
        raise TaskError(
            f"'gbc' compares each of {classes} classes with every other in {width} features, which "
            "would take hours: use 'logme' or 'centred-al', whose cost grows with classes only"
        )
    variance = squares / counts[:, None]
    if spherical:
        variance = variance.mean(1, keepdim=True).expand_as(variance)
    variance = variance.clamp(min=_FLOOR)
    logs = variance.log().sum(1) / 4
    overlap, step = 0.0, max(CHUNK // width, 1)
    for i in range(classes - 1):
        for j in range(i + 1, classes, step):
            other = slice(j, j + step)
            middle = (variance[i] + variance[other]) / 2  # [b, d]
            distance = ((means[i] - means[other]).square() / middle).sum(1) / 8
            distance += middle.log().sum(1) / 2 - logs[i] - logs[other]
            overlap += float(torch.exp(-distance.clamp(min=0)).sum())
    return -2 * overlap
