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

:class:`Relations` holds which samples are known to be of one class and which of two; of the other
pairs nobody has said anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dovetail.core.activations import kernel_range
from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.words import counted
from dovetail.objectives.unit import unit_rows


@dataclass(frozen=True, eq=False)
class Relations:
    """Two symmetric masks ``[n, n]`` with an empty diagonal: alike, and different.

    A pair in neither is unknown.  Being alike need not be transitive: of pair labels nobody knows
    the classes behind them.

    >>> relations_of_labels(torch.tensor([4, 4, 9]))
    Relations(3 samples, 1 pair alike, 2 pairs different)
    """

    same: Tensor
    different: Tensor

    @property
    def known(self) -> Tensor:
        """The pairs of which either was said, ``[n, n]``.

        >>> relations_of_labels(torch.tensor([0, 1])).known
        tensor([[False,  True],
                [ True, False]])
        """
        return self.same | self.different

    def __len__(self) -> int:
        return len(self.same)

    def __repr__(self) -> str:
        alike, different = (int(mask.sum()) // 2 for mask in (self.same, self.different))
        pairs = f"{counted(alike, 'pair')} alike, {counted(different, 'pair')} different"
        return f"Relations({len(self)} samples, {pairs})"


def relations_of(
    count: int,
    labels: Tensor | None = None,
    *,
    same: Tensor | None = None,
    different: Tensor | None = None,
) -> Relations:
    """The relations of ``count`` samples, from their labels or else from masks.

    >>> relations_of(2, same=torch.tensor([[False, True], [False, False]]))
    Relations(2 samples, 1 pair alike, 0 pairs different)
    """
    if labels is not None:
        if same is not None or different is not None:
            raise SettingsError("give labels, or the masks same and different, but not both")
        relations = relations_of_labels(labels)
    else:
        relations = relations_of_masks(same, different)
    if len(relations) != count:
        raise TaskError(f"{count} rows of features, but labels or masks for {len(relations)}")
    return relations


def relations_of_labels(labels: Tensor) -> Relations:
    """What labels ``[n]`` say: everything.  Any integers will do; only equality counts.

    >>> relations_of_labels(torch.tensor([-1, 7, 7])).same
    tensor([[False, False, False],
            [False, False,  True],
            [False,  True, False]])
    """
    if not isinstance(labels, Tensor) or labels.ndim != 1:
        shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise TaskError(f"labels must be a tensor of shape [n], one a sample, got {shape}")
    if labels.is_floating_point() or labels.is_complex():
        raise TaskError(
            f"labels must be integers, got {labels.dtype}; whether two numbers are alike "
            "is for you to say, with the masks same and different"
        )
    equal = labels[:, None] == labels[None, :]
    different = ~equal
    return Relations(equal.fill_diagonal_(False), different)


def relations_of_masks(same: Tensor | None, different: Tensor | None) -> Relations:
    """What two boolean masks ``[n, n]`` say; one may be missing.

    A relation holds both ways, so one triangle is enough.  Every sample is like itself, whether or
    not the diagonal of ``same`` says so.

    >>> both = torch.tensor([[False, True], [False, False]])
    >>> relations_of_masks(both, both)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: samples 0 and 1 are given both as alike and as different; ...
    """
    given = same if same is not None else different
    if given is None:
        raise SettingsError("say which samples are alike: give labels, or same= and different=")
    for name, mask in (("same", same), ("different", different)):
        if mask is not None:
            _refuse_no_mask(name, mask)
    nothing = torch.zeros_like(given)
    alike, unlike = (nothing if mask is None else mask | mask.T for mask in (same, different))
    if alike.shape != unlike.shape:
        raise TaskError(f"same is for {len(alike)} samples, different for {len(unlike)}")
    unlike = unlike.to(alike.device)
    itself = unlike.diagonal().nonzero()
    if len(itself):
        raise TaskError(f"sample {int(itself[0])} is given as different from itself")
    alike = alike.clone().fill_diagonal_(False)
    clash = (alike & unlike).nonzero()
    if len(clash):
        i, j = clash[0].tolist()
        raise TaskError(
            f"samples {i} and {j} are given both as alike and as different; "
            "leave out what you do not trust: a pair that is in neither mask counts as unknown"
        )
    return Relations(alike, unlike)


def relations_of_pairs(count: int, first: Tensor, second: Tensor, same: Tensor) -> Relations:
    """What a list of pairs says: rows ``first [m]`` and ``second [m]``, alike where ``same [m]``.

    >>> first, second = torch.tensor([0, 0]), torch.tensor([1, 2])
    >>> relations_of_pairs(4, first, second, torch.tensor([True, False]))
    Relations(4 samples, 1 pair alike, 1 pair different)
    """
    if (first.dtype, second.dtype, same.dtype) != (torch.int64, torch.int64, torch.bool):
        raise TaskError("pairs take int64 rows (first, second) and booleans (same)")
    refuse_misplaced(count, first, second, same)
    masks = torch.zeros(2, count, count, dtype=torch.bool, device=same.device)
    masks[0, first[same], second[same]] = True
    masks[1, first[~same], second[~same]] = True
    return relations_of_masks(masks[0], masks[1])


def refuse_misplaced(
    count: int, first: Tensor, second: Tensor, same: Tensor, noun: str = "sample"
) -> None:
    """Refuse pairs that are not three lists of one length, or not of two of ``count`` samples.

    >>> refuse_misplaced(4, torch.tensor([0]), torch.tensor([9]), torch.tensor([True]))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: a pair names sample 9, but there are 4
    """
    if any(end.ndim != 1 or end.shape != same.shape for end in (first, second)):
        shapes = ", ".join(str(list(end.shape)) for end in (first, second, same))
        raise TaskError(f"pairs take three tensors of one length, got shapes {shapes}")
    both = torch.cat([first, second])
    outside = both[(both < 0) | (both >= count)]
    if len(outside):
        raise TaskError(f"a pair names {noun} {int(outside[0])}, but there are {count}")
    itself = (first == second).nonzero()
    if len(itself):
        raise TaskError(f"pair {int(itself[0])} joins {noun} {int(first[itself[0]])} with itself")


def _refuse_no_mask(name: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TaskError(f"{name} must be a boolean tensor [n, n], got {kind}")
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
        raise TaskError(f"{name} must be a boolean tensor [n, n], got shape {list(mask.shape)}")


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
