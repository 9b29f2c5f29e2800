r"""What weights alone say about a layer: how many directions it uses, how much its values vary.

A layer's weight is looked at as a matrix :math:`W` with one row an output (a convolution is out ×
in·k·k).  Its **stable rank**,

.. math::
    \lVert W\rVert_F^2 / \lVert W\rVert_2^2 = \sum_i \sigma_i^2 \,/\, \max_i \sigma_i^2 ,

lies between 1 and the rank, and unlike the rank it does not jump when a tiny singular value
vanishes.  The **entropy** of its values in :math:`2^M` equal bins of :math:`[w_{\min}, w_{\max}]`,

.. math::
    H = -\sum_i p_i \log_2 p_i \quad \text{bits},

is what a value costs when it is told to :math:`M` bits and coded well: 0 for a constant, at most
:math:`M`.  Both do not change when the weights are scaled.  Float64 inside.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator

_MOST_BITS = 16


def stable_rank(weight: Tensor) -> float:
    r""":math:`\lVert W\rVert_F^2 / \lVert W\rVert_2^2` of a weight ``[out, ...]``; 0 for all zeros.

    A vector is one row, so its stable rank is 1.  The largest singular value comes from the Gram
    matrix of the shorter side, whose other eigenvalues would lose half their digits; it does not.

    >>> stable_rank(torch.eye(3)), stable_rank(torch.ones(4, 5))
    (3.0, 1.0)
    """
    values = _finite(weight)
    rows = values.reshape(1, -1) if values.ndim < 2 else values.flatten(1)
    largest = float(rows.abs().max())
    if largest == 0:
        return 0.0
    rows = rows / largest  # squares of 1e300 or 1e-300 would leave float64
    wide = rows if rows.shape[0] <= rows.shape[1] else rows.T
    gram = wide @ wide.T
    # Rounding may put the quotient a hair below one.
    return max(1.0, float(gram.trace() / torch.linalg.eigvalsh(gram)[-1]))


def weight_entropy(
    weights: Tensor, bits: int = 4, sample: float | None = None, *, seed: int = 0
) -> float:
    r"""Entropy in bits of the values in :math:`2^M` equal bins between the least and the largest.

    Args:
        weights: Of any shape.
        bits: :math:`M`, from 1 to 16.
        sample: Count only this share of the values, drawn at random (one at least); the range is
            that of all values.  ``None`` counts all.
        seed: For the draw.

    >>> weight_entropy(torch.tensor([0.0, 1.0, 2.0, 3.0]), bits=2)
    2.0
    >>> weight_entropy(torch.ones(10))
    0.0
    """
    if not (isinstance(bits, int) and 1 <= bits <= _MOST_BITS):
        raise SettingsError(f"bits must be a whole number from 1 to {_MOST_BITS}, got {bits!r}")
    if sample is not None and not 0 < sample <= 1:
        raise SettingsError(f"sample is a share of the weights, above 0 and at most 1: {sample!r}")
    values = _finite(weights).flatten()
    scale = float(values.abs().max())
    if scale == 0:
        return 0.0
    values = values / scale
    low, high = values.aminmax()
    if low == high:
        return 0.0
    if sample is not None:
        draw = generator(seed, "weight entropy")
        count = max(1, round(sample * values.numel()))
        values = values[torch.randperm(values.numel(), generator=draw)[:count]]
    bins = 1 << bits
    symbols = ((values - low) / (high - low) * bins).long().clamp_(max=bins - 1)
    counts = torch.bincount(symbols)
    share = counts[counts > 0].double() / len(symbols)
    return float((share * share.log2()).sum().neg()) + 0.0


def weight_deviation(weight: Tensor, start: Tensor, examples: int = 1) -> float:
    r""":math:`\lVert W - W_0\rVert_F / \sqrt n` of a weight and where its training began.

    >>> weight_deviation(torch.tensor([3.0, 4.0]), torch.zeros(2), examples=25)
    1.0
    """
    moved = _finite(weight) - _finite(start)
    return root_mean_square(moved) * math.sqrt(moved.numel() / examples)


def root_mean_square(values: Tensor) -> float:
    r""":math:`\sqrt{\mathrm{mean}(v^2)}`, of a gradient or of what a weight lost.

    >>> root_mean_square(torch.tensor([3.0, -3.0]))
    3.0
    """
    finite = _finite(values)
    largest = float(finite.abs().max())
    return largest * float((finite / largest).square().mean().sqrt()) if largest > 0 else 0.0


def _finite(weight: Tensor) -> Tensor:
    values = weight.detach().cpu().double()
    if values.numel() == 0:
        raise TaskError("a weight with no values has neither rank nor entropy; leave it out")
    if not bool(values.isfinite().all()):
        raise TaskError("the weights hold NaN or infinity; look for the step that made them")
    return values
