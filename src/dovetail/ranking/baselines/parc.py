r"""PARC: do examples of different classes lie farther apart than examples of one class?"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.ranking.inputs import as_rows, class_codes, refuse_other_count

__all__ = ["parc"]

MOST_ROWS = 5_000  # 12.5 million pairs: about 600 MB while they are sorted
_DECIMALS = 12  # what differs by less is float noise, and must tie
_FLAT = 1e-10  # a spread this small beside the values is rounding


def parc(features: Any, labels: Any) -> float:
    r"""Spearman's correlation, times 100, of feature distances with label distances over pairs.

    Columns are standardised; the distance of two rows is one minus their Pearson correlation; the
    distance of two labels is exactly 0 or 1.  Over the :math:`N` pairs :math:`i < j`, a share
    :math:`p` of them of different classes, and as long as no two distances tie,

    .. math:: \mathrm{PARC} = 100\,(2\,\mathrm{AUC} - 1)\sqrt{3p(1-p)}\,\frac{N}{\sqrt{N^2-1}},

    with AUC the chance that a pair of two classes is farther apart than a pair of one: hence not
    comparable between tasks of different balance.  Ties get average ranks, and distances closer
    than 1e-12 tie.  A column without variance is left out of every row; a row that is then
    constant has no correlation, and its distance to every other row is 1.  When all distances tie
    the correlation is 0.

    Args:
        features: ``[n, d]``, n at most 5000: all pairs are held at once.
        labels: ``[n]``; some two rows must share a class.

    >>> rows = [[3.0, 0.1, 0.2], [2.9, 0.0, 0.3], [0.0, 2.0, 0.1], [0.2, 1.8, 0.0]]
    >>> round(parc(rows, [0, 0, 1, 1]), 4)
    82.8079
    """
    rows, (codes, _) = as_rows(features), class_codes(labels)
    refuse_other_count(rows, codes)
    if len(rows) > MOST_ROWS:
        raise TaskError(
            f"PARC ranks all pairs, and {len(rows)} rows have {len(rows) * (len(rows) - 1) // 2:,};"
            f" pass a random sample of at most {MOST_ROWS} rows"
        )
    unit = _standardised_unit(rows)
    first, second = torch.triu_indices(len(rows), len(rows), 1)
    distance = (1 - unit @ unit.T)[first, second].round(decimals=_DECIMALS)
    return 100 * _spearman_with_binary(distance, codes[first] != codes[second])


def _standardised_unit(rows: Tensor) -> Tensor:
    """Rows of standardised columns, centred and scaled to length one; flat ones are zero."""
    spread = rows.std(0, correction=0)
    flat = spread <= _FLAT * rows.abs().amax(0)
    columns = torch.where(flat, 0.0, (rows - rows.mean(0)) / torch.where(flat, 1.0, spread))
    kept = columns[:, ~flat]
    if kept.shape[1] == 0:
        return columns
    centred = kept - kept.mean(1, keepdim=True)
    length = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    none = length <= _FLAT * torch.linalg.vector_norm(kept, dim=1, keepdim=True)
    return torch.where(none, 0.0, centred / torch.where(none, 1.0, length))


def _spearman_with_binary(values: Tensor, different: Tensor) -> float:
    count, ones = len(values), int(different.sum())
    if ones in (0, count):
        raise TaskError("PARC needs two rows of one class and two of different classes")
    in_order, order = values.sort()
    group = F.pad(in_order.diff() > 0, (1, 0)).cumsum(0)
    sizes = torch.bincount(group)
    last = sizes.cumsum(0).double()
    rank = (
        last - (sizes - 1).double() / 2 - (count + 1) / 2
    )  # the average rank of a group, less the mean
    ones_of_group = torch.bincount(group[different[order]], minlength=len(sizes))
    spread = float((sizes * rank.square()).sum())
    if spread == 0:
        return 0.0
    binary = count * (ones / count) * (1 - ones / count)
    return float((ones_of_group * rank).sum()) / math.sqrt(spread * binary)
