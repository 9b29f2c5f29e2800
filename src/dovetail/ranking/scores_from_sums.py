r"""Scores by name, from sums: of the kernel of unit rows, and of the raw rows' covariances.

Sums of the kernel :math:`k_{ij} = \langle\phi_i, \phi_j\rangle` of unit rows over all :math:`n^2`
pairs are norms of sums over rows.  With the classes' sums :math:`s_c`, the whole's :math:`S`,
second moments :math:`M_c` and :math:`M`, and :math:`t` rows that are not zero (each has
:math:`k_{ii} = 1`),

.. math::
    P = \sum_c |s_c|^2,\; N = |S|^2 - P,\; N_P = \sum_c n_c^2,\; N_N = n^2 - N_P,\;
    Q = |M|_F^2,\; Q_N = Q - \sum_c |M_c|_F^2

are the kernel's sum over pairs of one class and of two, the numbers of such pairs, and the sums of
the squared kernel over all pairs and over those of two classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from dovetail.core.activations import KernelRange
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.measure.inputs import CHUNK
from dovetail.ranking.logme import CUT, mean_evidence
from dovetail.ranking.sums import ClassSums, Sums

KINDS = (
    "al",
    "utal",
    "nmse",
    "al-neo",
    "utal-neo",
    "nmse-neo",
    "centred-al",
    "centred-al-unit",
    "logme",
    "hscore",
    "hscore-lw",
    "gbc",
    "gbc-spherical",
)
"""The scores that come from sums."""

NUMBER_KINDS = ("centred-al", "centred-al-unit", "logme")
"""Those of them that targets which are numbers have."""

ALIASES = {"cka": "centred-al"}

_NOISE = torch.finfo(torch.float64).eps ** 2
_FLOOR = 1e-4
_SAFE = 1e-3
"""A triangular factor whose diagonal varies more than this may belong to a singular matrix."""
_MOST_OVERLAPS = 1 << 32


def known_kind(kind: str) -> str:
    """The score's own name.

    >>> known_kind("cka")
    'centred-al'
    >>> known_kind("logmee")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: no sums give 'logmee'; did you mean logme?
    """
    name = ALIASES.get(kind, kind)
    if name not in KINDS:
        raise SettingsError(f"no sums give {kind!r}{nearest(kind, [*KINDS, *ALIASES])}")
    return name


def pair_score(form: str, aligned: float, squares: float, ideal: float, pairs: int) -> float:
    r"""A score of the kernel :math:`k` against an ideal one :math:`t`, from sums over pairs.

    NMSE is :math:`-(\sum k^2 - 2 \sum kt + \sum t^2) / m`, the others are the cosine :math:`\sum kt
    / \sqrt{\sum k^2 \sum t^2}`; 0 where the kernel is nothing but rounding, whose direction is no
    answer.

    Args:
        form: ``"nmse"``, or anything else for the cosine.
        aligned: :math:`\sum kt`.
        squares: :math:`\sum k^2`.
        ideal: :math:`\sum t^2`.
        pairs: How many there are, :math:`m`.

    >>> pair_score("nmse", 2.0, 3.0, 4.0, 6), pair_score("al", 2.0, 4.0, 4.0, 6)
    (-0.5, 0.5)
    """
    if form == "nmse":
        return -max(squares - 2 * aligned + ideal, 0.0) / pairs
    if squares <= 64 * _NOISE * pairs:
        return 0.0
    return min(max(aligned / math.sqrt(squares * ideal), -1.0), 1.0)


class ScoresFromSums:
    """Every score of some sums; higher is better.

    Args:
        sums: Of the rows, or of the rows turned into fewer coordinates: lengths and angles are all
            that counts here, but for GBC.
        span: The range of the kernel.
        width: How many features there were.
        gaussians: The classes' means and squared deviations ``[C, d]`` in the features' own
            coordinates, which only GBC depends on; those of the sums, unless said.
    """

    def __init__(
        self,
        sums: Sums,
        span: KernelRange,
        width: int,
        gaussians: Callable[[], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.sums, self.width, self.gaussians = sums, width, gaussians
        self.beta, self.alpha = span

    def value(self, kind: str) -> float:
        """One score, by a name of :data:`KINDS`."""
        if kind in ("centred-al", "centred-al-unit"):
            return centred_alignment(self.sums, unit=kind == "centred-al-unit")
        if kind == "logme":
            return self.logme()
        classes = self.sums.classes
        if classes is None:
            raise TaskError(
                f"{kind!r} needs one class a row, given as integers; "
                f"targets that are numbers have {', '.join(NUMBER_KINDS)}"
            )
        if kind == "hscore":
            return self.hscore(classes)
        if kind == "hscore-lw":
            return self.hscore_lw(classes)
        if kind in ("gbc", "gbc-spherical"):
            own = classes.raw_mean, classes.raw_square
            means, squares = own if self.gaussians is None else self.gaussians()
            return bhattacharyya(classes.counts, means, squares, spherical=kind != "gbc")
        return self.kernel_score(kind, classes)

    def kernel_score(self, kind: str, classes: ClassSums) -> float:
        r"""AL, UTAL, NMSE or one of their ``-neo`` forms: the ideal kernel is α, or β.

        AL and NMSE go over all pairs: :math:`\alpha P + \beta N`, :math:`Q` and :math:`\alpha^2 N_P
        + \beta^2 N_N`; UTAL leaves the diagonal out of each; the ``-neo`` forms, of which UTAL's is
        AL's, go over pairs of two classes, :math:`\beta N, Q_N, \beta^2 N_N`.
        """
        (same, different, squares), n, lit = self._kernel, self.sums.n, self.sums.lit
        alike = int(classes.counts.square().sum())
        unlike = n**2 - alike
        form, _, neo = kind.partition("-")
        if neo:
            squares = self._squares_different(form, squares, classes)
            return pair_score(form, self.beta * different, squares, self.beta**2 * unlike, unlike)
        aligned, pairs = self.alpha * same + self.beta * different, n**2
        if form == "utal":
            aligned, squares, alike = aligned - self.alpha * lit, squares - lit, alike - n
            pairs -= n
        ideal = self.alpha**2 * alike + self.beta**2 * unlike
        if not ideal:
            few = "one row" if not pairs else "no two rows of one class"
            raise TaskError(
                f"'utal' is undefined for {few}: give more rows a class, or use 'al' or 'nmse'"
            )
        return pair_score(form, aligned, squares, ideal, pairs)

    @cached_property
    def _kernel(self) -> tuple[float, float, float]:
        """:math:`P, N, Q`."""
        n, mean, scatter = self.sums.n, self.sums.unit.mean, self.sums.unit.features
        assert self.sums.classes is not None
        counts, means = self.sums.classes.counts.double(), self.sums.classes.unit_mean
        size = float(mean.dot(mean))
        same = float((counts.square() * means.square().sum(1)).sum())
        # |T + n m m'|^2, term by term: none is negative, so no digit is lost.
        squares = scatter.square().sum() + 2 * n * mean.dot(scatter @ mean) + (n * size) ** 2
        return same, n**2 * size - same, float(squares)

    def _squares_different(self, form: str, squares: float, classes: ClassSums) -> float:
        """:math:`Q_N`, if it is known and the score defined."""
        kind = "nmse-neo" if form == "nmse" else "al-neo"
        if self.beta == 0 and form != "nmse":
            raise SettingsError(
                "'al-neo' and 'utal-neo' are undefined for features that are never negative: "
                "their ideal kernel is 0, and nothing aligns with zero; use 'nmse-neo'"
            )
        if len(classes.ids) < 2:
            raise TaskError(
                f"all rows are of one class, and {kind!r} needs two that differ: "
                "give rows of another class, or use 'al' or 'nmse'"
            )
        energies = classes.energies()
        if energies is None:
            raise SettingsError(
                f"{kind!r} needs second moments of each class: PairStatistics(per_class=True)"
            )
        if energies.isnan().any():
            width = classes.raw_mean.shape[1]
            raise TaskError(
                f"{kind!r} needs a second moment for each of {len(energies)} classes, "
                f"{width} x {width} numbers each, too many to keep, and some classes came in more "
                "than one piece: give all rows in one update, or features of fewer dimensions"
            )
        return max(squares - float(energies.sum()), 0.0)

    def logme(self) -> float:
        """The mean over targets of their greatest log evidence a row; see :mod:`.logme`."""
        raw, classes, n = self.sums.raw, self.sums.classes, self.sums.n
        mean = raw.feature_mean
        if classes is None:
            products = raw.cross.T + n * torch.outer(raw.target_mean, mean)
            total = raw.targets.diagonal() + n * raw.target_mean.square()
        else:
            total = classes.counts.double()
            products = classes.raw_mean * total[:, None]  # F't of one-hot t: the class's sum
        second = raw.features.addr(mean, mean, alpha=n)
        return mean_evidence(second, products, total, n)

    def hscore(self, classes: ClassSums) -> float:
        r""":math:`\operatorname{tr}(T^+ B)`, between 0 and the number of classes less one.

        :math:`T` is the scatter, :math:`B` that of the class means; directions in which nothing
        but rounding varies are left out of the inverse, or it would explode at n near d.
        """
        value = self._explained(self.sums.raw.features, classes)
        return min(value, float(min(self.width, len(classes.ids) - 1)))

    def hscore_lw(self, classes: ClassSums) -> float:
        r"""The H-score with Ledoit and Wolf's covariance :math:`(1 - a) S + a m I`, times 1 - a.

        :math:`m = \operatorname{tr} S / d`, and :math:`a` is how much of :math:`|S - mI|^2` the
        rows' own scatter about :math:`S` explains.  Both covariances divide by n.
        """
        n, d, raw = self.sums.n, self.width, self.sums.raw
        covariance = raw.features / n
        size, middle = float(covariance.square().sum()), float(covariance.trace()) / d
        apart = size / d - middle**2
        noise = (float(raw.fourth) / n - size) / (n * d)
        shrink = min(max(noise, 0.0) / apart, 1.0) if apart > CUT * middle**2 else 0.0
        shrunk = covariance.mul_(1 - shrink)
        shrunk.diagonal().add_(shrink * middle)
        return (1 - shrink) * self._explained(shrunk, classes) / n

    def _explained(self, matrix: Tensor, classes: ClassSums) -> float:
        """The trace of the matrix's (pseudo-)inverse times the scatter of class means."""
        apart = classes.raw_mean - self.sums.raw.feature_mean
        apart = apart * classes.counts.double().sqrt()[:, None]  # [C, d]
        factor, failed = torch.linalg.cholesky_ex(matrix)
        sizes = factor.diagonal()
        if not failed and sizes.min() > _SAFE * sizes.max():
            half = torch.linalg.solve_triangular(factor, apart.T, upper=False)
            return float(half.square().sum())
        values, vectors = torch.linalg.eigh(matrix)  # ten times the work, but sees the rank
        large = values > CUT * values[-1].clamp(min=0)
        along = (apart @ vectors[:, large]).square().sum(0)
        return float((along / values[large]).sum())


def centred_alignment(sums: Sums, *, unit: bool) -> float:
    r"""Alignment of the centred kernel with the centred kernel of the targets: linear CKA.

    .. math:: |\tilde Y^\top \tilde X|_F^2 / (|\tilde X^\top \tilde X|_F
        |\tilde Y^\top \tilde Y|_F) \in [0, 1]

    with one-hot :math:`Y` for classes, whose :math:`\tilde Y^\top\tilde Y = \operatorname{diag}
    (n_c) - n_c n_c^\top / n`.  Of the rows as they are, or of ``unit`` rows.
    """
    moments, classes = sums.unit if unit else sums.raw, sums.classes
    mean = moments.feature_mean
    if classes is None:
        shared = float(moments.cross.square().sum())
        ideal = float(torch.linalg.matrix_norm(moments.targets))
        if _vanishes(moments.targets, moments.target_mean, sums.n):
            raise TaskError("the targets do not vary, so no kernel can align with theirs")
    else:
        counts = classes.counts.double()
        means = classes.unit_mean if unit else classes.raw_mean
        shared = float(((means - mean) * counts[:, None]).square().sum())
        ideal = _centred_size(counts)
        if len(counts) < 2:
            raise TaskError("all rows are of one class; 'centred-al' needs two")
    if _vanishes(moments.features, mean, sums.n):
        raise TaskError("the features are the same for every row: 'centred-al' is undefined")
    return min(shared / (float(torch.linalg.matrix_norm(moments.features)) * ideal), 1.0)


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
