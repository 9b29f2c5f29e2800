r"""How much two examples help each other: what makes a leave-one-out estimate less sure.

Let :math:`\ell_i` say how well row :math:`i` is predicted by the head of all others, and
:math:`\ell_i^{(j)}` by the head of all others but :math:`j`.  Expanding the square, and renaming
rows that are drawn alike, the leave-one-out mean :math:`\bar\ell` misses the value :math:`A` of the
head of all :math:`n` rows by

.. math::
    \mathbb{E}\,(\bar\ell - A)^2 \approx \frac{\operatorname{var} \ell}{n} + \mathbb{E}_{i \ne j}
    \bigl(\ell_i - \ell_i^{(j)}\bigr)\bigl(\ell_j - \ell_j^{(i)}\bigr) .

The first term is what independent trials would have; the second is how much a row changes the
other's verdict, times the reverse.  For a ridge head both need no refit: with
:math:`R = I - H` and residuals :math:`r_i` of rows left out, adding row :math:`j` changes the
prediction of row :math:`i` by

.. math::
    \frac{-R_{ij} (R_{jj} r_j - R_{ij} r_i)}{R_{ii} R_{jj} - R_{ij}^2} .

A verdict of right or wrong is softened to :math:`\Phi(m / h)` of its margin :math:`m`, because few
pairs flip and their count alone would be a poor estimate.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "agreeing_classes",
    "agreeing_labels",
    "agreeing_numbers",
    "with_shares",
    "with_shares_shifted",
]


def agreeing_classes(
    remainder: Tensor, predictions: Tensor, codes: Tensor, counts: Tensor | None
) -> float:
    """The mean product for verdicts on classes.

    Args:
        remainder: :math:`R` of some rows ``[r, r]``.
        predictions: Of these rows when left out ``[r, k]``, one column a class.
        codes: Their classes ``[r]``.
        counts: How many rows each class has ``[k]``, when the classes keep their shares whoever is
            left out; else ``None``.

    >>> apart, codes = torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 1])
    >>> agreeing_classes(apart, torch.rand(3, 2).double(), codes, None)
    0.0
    """
    rows = torch.arange(len(codes))
    residuals = torch.nn.functional.one_hot(codes, predictions.shape[1]).double() - predictions
    kept = predictions if counts is None else with_shares(predictions, codes, counts)
    others = kept.clone()
    others[rows, codes] = -torch.inf
    rival = others.argmax(1)
    margin = kept[rows, codes] - kept[rows, rival]
    own = predictions[rows, codes][:, None] - _changes(remainder, residuals, codes)
    theirs = predictions[rows, rival][:, None] - _changes(remainder, residuals, rival)
    if counts is not None:
        mine, its = counts[codes][:, None], counts[rival][:, None]
        left = mine - 1 - (codes[:, None] == codes).long()
        own = own * mine / left.clamp(min=1)
        theirs = theirs * its / (its - (rival[:, None] == codes).long()).clamp(min=1)
    return _product(_softened(margin, own - theirs))


def agreeing_labels(remainder: Tensor, predictions: Tensor, targets: Tensor) -> float:
    """The mean product for the share of right labels: targets ``[r, k]`` are zeros and ones.

    >>> apart = torch.eye(3, dtype=torch.float64)
    >>> agreeing_labels(apart, torch.rand(3, 2).double(), torch.ones(3, 2).double())
    0.0
    """
    residuals, total = targets - predictions, torch.zeros_like(remainder)
    for column in range(targets.shape[1]):
        sign = 2 * targets[:, column] - 1
        margin = sign * (predictions[:, column] - 0.5)
        which = torch.full((len(targets),), column)
        changes = _changes(remainder, residuals, which)
        total += _softened(margin, margin[:, None] - sign[:, None] * changes)
    return _product(total / targets.shape[1])


def agreeing_numbers(remainder: Tensor, residuals: Tensor) -> float:
    """The mean product for the squared error of residuals ``[r, k]``, summed over columns.

    >>> agreeing_numbers(torch.eye(3, dtype=torch.float64), torch.ones(3, 1).double())
    0.0
    """
    total = torch.zeros_like(remainder)
    for column in range(residuals.shape[1]):
        which = torch.full((len(residuals),), column)
        without = residuals[:, column][:, None] + _changes(remainder, residuals, which)
        total += residuals[:, column].square()[:, None] - without.square()
    return _product(total)


def with_shares(predictions: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
    r"""Predictions of rows left out, had their class kept its share.

    Leaving out one of :math:`n_c` rows takes :math:`1/n_c` of the class's weight, which a row does
    not lose when it is new: the column of its class is scaled back by :math:`n_c / (n_c - 1)`.

    >>> half = torch.tensor([[0.5, 0.5]])
    >>> with_shares(half, torch.tensor([1]), torch.tensor([3, 3]))
    tensor([[0.5000, 0.7500]])
    """
    own = counts[codes].to(predictions.dtype)
    kept = predictions.clone()
    kept[torch.arange(len(codes)), codes] *= own / (own - 1).clamp(min=1)
    return kept


def with_shares_shifted(predictions: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
    r"""The same, had the class's column moved to its share and its noise hardly grown.

    About its mean :math:`(n_c - 1)/(n - 1)` the column is scaled by :math:`\sqrt{n_c/(n_c - 1)}`
    only, and the mean becomes :math:`n_c/(n - 1)`: without a signal no class is then preferred.

    >>> third = torch.tensor([[0.5, 0.4]])
    >>> with_shares_shifted(third, torch.tensor([1]), torch.tensor([3, 3]))
    tensor([[0.5000, 0.6000]])
    """
    n, own = int(counts.sum()), counts[codes].to(predictions.dtype)
    kept, rows = predictions.clone(), torch.arange(len(codes))
    apart = kept[rows, codes] - (own - 1) / (n - 1)
    kept[rows, codes] = own / (n - 1) + apart * (own / (own - 1).clamp(min=1)).sqrt()
    return kept


def _changes(remainder: Tensor, residuals: Tensor, columns: Tensor) -> Tensor:
    """What adding row ``j`` does to output ``columns[i]`` of row ``i``: ``[i, j]``."""
    diagonal = remainder.diagonal()
    both = torch.outer(diagonal, diagonal)
    determinant = (both - remainder.square()).clamp(min=1e-12 * both.clamp(min=1e-300))
    theirs = residuals[:, columns].T  # [i, j]: the residual of j in the column of i
    own = theirs.diagonal()[:, None]
    changes: Tensor = -remainder * (diagonal * theirs - remainder * own) / determinant
    return changes


def _softened(margin: Tensor, without: Tensor) -> Tensor:
    """The change of verdict ``[i, j]`` from the margins without ``j`` to those with it."""
    low, high = margin.quantile(torch.tensor([0.25, 0.75], dtype=margin.dtype))
    spread = min(float(margin.std()), float(high - low) / 1.349 or torch.inf)
    width = max(0.5 * spread * len(margin) ** -0.2, 1e-12)
    change: Tensor = torch.special.ndtr(margin / width)[:, None] - torch.special.ndtr(
        without / width
    )
    return change


def _product(changes: Tensor) -> float:
    count = len(changes)
    changes = changes - torch.diag(changes.diagonal())
    return float((changes * changes.T).sum()) / (count * (count - 1))
