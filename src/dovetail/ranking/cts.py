r"""CTS and CTS-NEO, which no sums of features give: every pair, or a sample with its error.

With unit rows :math:`u_i` (zero rows stay zero), :math:`k_{ij} = \langle u_i, u_j \rangle`, and the
ordered pairs :math:`P` (one class, :math:`i \ne j`) and :math:`N` (two classes),

.. math::
    \mathrm{CTS} = \frac{\sum_P e^{k}}{\sum_P e^{k} + \sum_N e^{k}}, \qquad
    \mathrm{CTS\text{-}NEO} = -\frac{1}{|N|} \sum_N e^{k} .

Neither depends on the range of the kernel.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.inputs import rows_and_codes
from dovetail.objectives.unit import unit_length

EXACT_ROWS = 10_000
_SIDE = 1024  # rows of a block: 8 MB of kernel values
_DRAWN = 4_000_000  # numbers gathered at once when pairs are drawn


class Estimate(NamedTuple):
    """A value and its standard error; 0 when every pair was visited."""

    value: float
    standard_error: float

    def __float__(self) -> float:
        return self.value


def cts(
    features: Any, labels: Any, *, exact_rows: int = EXACT_ROWS, pairs: int = 500_000, seed: int = 0
) -> Estimate:
    r"""CTS of features ``[n, d]`` and classes ``[n]``, in (0, 1]; higher is better.

    Exact, block by block, up to ``exact_rows`` rows.  Beyond, ``pairs`` pairs of one class and as
    many of two are drawn, uniformly with replacement; with their mean exponentials :math:`a` and
    :math:`b` of variance :math:`s_a^2, s_b^2` the standard error of
    :math:`v = |P|a/(|P|a + |N|b)` is :math:`v(1-v)\sqrt{s_a^2/a^2 + s_b^2/b^2}`.

    >>> value, error = cts([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], [0, 0, 1])
    >>> round(value, 6), error  # 2e / (2e + 4)
    (0.576117, 0.0)
    """
    same, different = _strata(features, labels, exact_rows, pairs, seed)
    if same.pairs == 0:
        raise TaskError("CTS needs two rows of one class; every class here has a single one")
    pull, push = same.pairs * same.mean, different.pairs * different.mean
    value = pull / (pull + push)
    relative = math.hypot(same.error / same.mean, different.error / different.mean)
    return Estimate(value, value * (1 - value) * relative)


def cts_neo(
    features: Any, labels: Any, *, exact_rows: int = EXACT_ROWS, pairs: int = 500_000, seed: int = 0
) -> Estimate:
    r"""CTS-NEO, in [-e, -1/e]; only pairs of two classes count.  Exact or sampled as :func:`cts`.

    >>> cts_neo([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], [0, 0, 1])
    Estimate(value=-1.0, standard_error=0.0)
    """
    _, different = _strata(features, labels, exact_rows, pairs, seed)
    return Estimate(-different.mean, different.error)


class _Stratum(NamedTuple):
    """Ordered pairs of one sort: how many, their mean exponential, and that mean's error."""

    pairs: int
    mean: float
    error: float = 0.0


def _strata(
    features: Any, labels: Any, exact_rows: int, pairs: int, seed: int
) -> tuple[_Stratum, _Stratum]:
    if pairs < 2:
        raise SettingsError(f"pairs must be at least 2, got {pairs}")
    rows, codes, count = rows_and_codes(features, labels)
    order = codes.argsort(stable=True)  # then a block meets few classes, and most blocks none twice
    unit, codes = unit_length(rows[order]), codes[order]
    sizes = torch.bincount(codes, minlength=count)
    if len(rows) <= exact_rows:
        return _every_pair(unit, codes, sizes)
    return _drawn_pairs(unit, codes, sizes, pairs, seed)


def _every_pair(unit: Tensor, codes: Tensor, sizes: Tensor) -> tuple[_Stratum, _Stratum]:
    alike = apart = 0.0
    for top in range(0, len(unit), _SIDE):
        for column in range(top, len(unit), _SIDE):
            a, b = slice(top, top + _SIDE), slice(column, column + _SIDE)
            values = (unit[a] @ unit[b].T).exp_()
            twice = 1 if top == column else 2
            if top == column:
                values.fill_diagonal_(0.0)
            if codes[a][-1] < codes[b][0]:  # sorted: these blocks share no class
                apart += twice * float(values.sum())
                continue
            one_class = codes[a][:, None] == codes[b]
            alike += twice * float(values[one_class].sum())
            apart += twice * float(values[~one_class].sum())
    positive = int((sizes * (sizes - 1)).sum())
    negative = len(unit) ** 2 - int(sizes.square().sum())
    return _Stratum(positive, alike / max(positive, 1)), _Stratum(negative, apart / negative)


def _drawn_pairs(
    unit: Tensor, codes: Tensor, sizes: Tensor, pairs: int, seed: int
) -> tuple[_Stratum, _Stratum]:
    size = sizes[codes]
    start = (sizes.cumsum(0) - sizes)[codes]
    strata = []
    for name, partners in (("same", size - 1), ("different", len(unit) - size)):
        total = int(partners.sum())
        if total == 0:
            strata.append(_Stratum(0, 0.0))
            continue
        draw = generator(seed, "cts", name)
        # a row as often as it has partners
        places = torch.randint(total, (pairs,), generator=draw)
        first = torch.searchsorted(partners.cumsum(0), places, right=True)
        share = torch.rand(pairs, generator=draw, dtype=torch.float64)
        place = (share * partners[first]).long().clamp(max=partners[first] - 1)
        if name == "same":
            second = start[first] + place
            second += second >= first  # step over the row itself
        else:
            second = place + (place >= start[first]) * size[first]  # step over its class
        ends, step = torch.stack([first, second]), max(1, _DRAWN // unit.shape[1])
        blocks = torch.split(ends, step, dim=1)
        values = torch.cat([torch.linalg.vecdot(unit[i], unit[j]) for i, j in blocks]).exp_()
        strata.append(_Stratum(total, float(values.mean()), float(values.std()) / pairs**0.5))
    return strata[0], strata[1]
