r"""Eight objectives that need to know only which samples are alike and which differ.

With features of unit length :math:`u_i` the kernel is :math:`k_{ij} = \langle u_i, u_j\rangle
\in [\beta, \alpha]`, where :math:`\alpha = 1` and :math:`\beta` is 0 after an activation that is
never negative and -1 otherwise.  Let :math:`P` be the ordered pairs of two samples that are alike,
:math:`N` those that differ, :math:`D` the diagonal, and the ideal kernel :math:`k^*` be
:math:`\alpha` on :math:`P` and :math:`D`, and :math:`\beta` on :math:`N`.  To be **maximised**:

.. math::
    \mathrm{AL} &= \frac{\sum_{P \cup N \cup D} k k^*}
        {\sqrt{\sum_{P \cup N \cup D} k^2} \sqrt{\sum_{P \cup N \cup D} k^{*2}}}, &
    \mathrm{UTAL} &= \text{the same over } P \cup N, \\
    \mathrm{CTS} &= \sum_P e^k \Big/ \sum_{P \cup N} e^k, &
    \mathrm{NMSE} &= -\operatorname{mean}_{P \cup N \cup D} (k - k^*)^2, \\
    \mathrm{AL\text{-}NEO} &= \frac{\beta \sum_N k}{|\beta| \sqrt{|N|} \sqrt{\sum_N k^2}}, &
    \mathrm{CTS\text{-}NEO} &= -\operatorname{mean}_N e^k, \\
    \mathrm{NMSE\text{-}NEO} &= -\operatorname{mean}_N (k - \beta)^2 .

UTAL is defined on the upper triangle; both triangles give the same quotient, as the kernel is
symmetric.  For that reason UTAL-NEO is AL-NEO.  The ``-neo`` forms need only pairs that differ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dovetail.core.activations import kernel_range
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.objectives.relations import Relations, relations_of
from dovetail.objectives.unit import unit_rows

__all__ = ["KINDS", "MeanKernel", "Pairwise", "mean_kernel"]

KINDS = ("al", "utal", "cts", "nmse", "al-neo", "utal-neo", "cts-neo", "nmse-neo")
"""The eight kinds by name; ``-neo`` are those of different pairs only."""


class Pairwise(nn.Module):
    """One of the eight objectives, on a batch; **higher is better**.

    Args:
        kind: One of :data:`KINDS`.
        activation: The activation the features went through, hence the least value of their kernel.

    >>> objective = Pairwise("nmse", activation="relu")
    >>> features = torch.eye(2)[[0, 0, 1, 1]]  # as far apart as a ReLU lets them be
    >>> print(objective(features, torch.tensor([5, 5, 8, 8])).item())
    -0.0
    >>> print(objective(features, torch.tensor([5, 8, 5, 8])).item())
    -0.5
    """

    def __init__(self, kind: str, activation: str = "relu") -> None:
        super().__init__()
        if kind not in KINDS:
            raise SettingsError(f"unknown pairwise objective {kind!r}{nearest(kind, KINDS)}")
        self.kind, self.activation = kind, activation
        self.beta, self.alpha = kernel_range(activation)
        self._form, _, neo = kind.partition("-")
        self._only_different = bool(neo)
        if self.beta == 0 and kind in ("al-neo", "utal-neo"):
            raise SettingsError(
                f"{kind!r} is undefined after {activation!r}: features that are never negative "
                "have an ideal kernel of 0, and nothing aligns with zero; use 'nmse-neo' or "
                "'cts-neo', or 'al' or 'utal' if pairs that are alike are known too"
            )

    def forward(
        self,
        features: Tensor,
        labels: Tensor | None = None,
        *,
        same: Tensor | None = None,
        different: Tensor | None = None,
    ) -> Tensor:
        """The objective of a batch, a scalar attached to the features.

        A kernel of nothing but zeros aligns with nothing: its AL and UTAL are 0.

        Args:
            features: ``[n, ...]``, as the activation left them; scaled to unit length here.
            labels: ``[n]``, any integers; or instead of them
            same: ``[n, n]`` boolean, pairs that are alike;
            different: ``[n, n]`` boolean, pairs that differ.  What is in neither is left out.
        """
        rows = unit_rows(features)
        relations = relations_of(len(rows), labels, same=same, different=different)
        relations = Relations(relations.same.to(rows.device), relations.different.to(rows.device))
        self._refuse_missing(relations)
        # As torch's own losses do, in full precision also where autocast is on.
        with torch.autocast(rows.device.type, enabled=False):
            kernel = rows @ rows.T  # [n, n]
            if self._form == "cts":
                return self._contrast(kernel.exp(), relations)
            counted = self._counted(relations)
            ideal = torch.where(relations.different, self.beta, self.alpha).to(kernel) * counted
            kernel = kernel * counted
            if self._form == "nmse":
                return -(kernel - ideal).square().sum() / counted.sum()
            return _alignment(kernel, ideal, counted)

    def _counted(self, relations: Relations) -> Tensor:
        """The pairs that the sums run over, ``[n, n]``."""
        if self._only_different:
            return relations.different
        known = relations.known
        return known if self._form == "utal" else known.fill_diagonal_(True)

    def _contrast(self, exponentials: Tensor, relations: Relations) -> Tensor:
        different = (exponentials * relations.different).sum()
        if self._only_different:
            return -different / relations.different.sum()
        same = (exponentials * relations.same).sum()
        return same / (same + different)

    def _refuse_missing(self, relations: Relations) -> None:
        """Refuse pairs that leave the objective undefined, or the same whatever the features."""
        needs_different = self._only_different or self.kind == "cts"
        needs_same = self.kind == "cts" or (self.kind == "utal" and self.beta == 0)
        if needs_different and not relations.different.any():
            raise TaskError(
                f"no two of these {len(relations)} samples are known to differ, and {self.kind!r} "
                "needs such a pair: draw batches of two or more classes, or use 'al' or 'nmse'"
            )
        if needs_same and not relations.same.any():
            raise TaskError(
                f"no two of these {len(relations)} samples are known to be alike, and "
                f"{self.kind!r} needs such a pair: draw larger batches, "
                "or use 'nmse-neo' or 'cts-neo', which need only pairs that differ"
            )
        if self.kind == "utal" and not relations.known.any():
            raise TaskError(
                f"nothing is known of any two of these {len(relations)} samples, and 'utal' needs "
                "such a pair: draw larger batches, or more pairs"
            )

    def extra_repr(self) -> str:
        """What ``print`` shows between the brackets.

        >>> Pairwise("utal-neo", "tanh")
        Pairwise('utal-neo', activation='tanh')
        """
        return f"{self.kind!r}, activation={self.activation!r}"


class MeanKernel(NamedTuple):
    """The mean kernel of the pairs that are alike and of those that differ; None without any.

    >>> MeanKernel(0.9, None).same
    0.9
    """

    same: float | None
    different: float | None


@torch.no_grad()
def mean_kernel(
    features: Tensor,
    labels: Tensor | None = None,
    *,
    same: Tensor | None = None,
    different: Tensor | None = None,
) -> MeanKernel:
    """How near pairs are on average, ``i`` with itself left out.

    AL, UTAL and their ``-neo`` forms do not change when the whole kernel is scaled, so a perfect
    value does not say that the classes are far apart: this does.

    >>> features = torch.eye(2)[[0, 0, 1, 1]]
    >>> mean_kernel(features, torch.tensor([0, 0, 1, 1]))
    MeanKernel(same=1.0, different=0.0)
    """
    rows = unit_rows(features).double()
    relations = relations_of(len(rows), labels, same=same, different=different)
    kernel = rows @ rows.T
    masks = (relations.same.to(rows.device), relations.different.to(rows.device))
    return MeanKernel(*(float(kernel[mask].mean()) if mask.any() else None for mask in masks))


def _alignment(kernel: Tensor, ideal: Tensor, counted: Tensor) -> Tensor:
    """The cosine between two kernels, both zero where not ``counted``; 0 if one is zero."""
    size = kernel.square().sum()
    # Entries below the rounding of a product of unit rows are noise; its direction is no answer.
    noise = torch.finfo(kernel.dtype).eps ** 2 * counted.sum()
    size = torch.where(size > noise, size, 1.0)
    return (kernel * ideal).sum() / (size * ideal.square().sum()).sqrt()
