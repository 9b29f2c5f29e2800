r"""Rounding that hands each weight's error on to the next one.

A row of weights :math:`w_1, \dots, w_m` meets inputs :math:`x_1, \dots, x_m`.  Rounded to the
nearest centres, the errors are as good as independent, and what the row gives is off by
:math:`\sum_j x_j \varepsilon_j`.  Here a weight is rounded after adding what the weights before it
lost: with :math:`v_j = w_j + c_{j-1}`, its centre :math:`\hat w_j` and the carry
:math:`c_j = v_j - \hat w_j`, at most half a bin, the row is off by

.. math::
    \sum_j x_j (\hat w_j - w_j) = \sum_j x_j (c_{j-1} - c_j)
    = \sum_{j<m} c_j (x_{j+1} - x_j) - c_m x_m .

What counts is no longer the inputs but how much neighbours *differ*: little for the pixels of an
image or under a convolution's kernel, and less than the inputs where they share a mean, as after a
ReLU.  For unrelated inputs of mean zero it is :math:`\sqrt 2` times worse, so it has to be measured
which is better.  A decoder needs to know nothing of it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dovetail.pack.dtypes import elements_of
from dovetail.pack.quantise import Grid, low_and_high

__all__ = ["carried", "carries"]

_MOST_COLUMNS = 1 << 16


def carries(tensor: Tensor) -> bool:
    """Whether a tensor has rows to carry errors along: two axes, and rows that are not too long.

    >>> carries(torch.zeros(3, 4)), carries(torch.zeros(4))
    (True, False)
    """
    return tensor.ndim >= 2 and 1 < tensor[0].numel() <= _MOST_COLUMNS


def carried(tensor: Tensor, bits: int) -> Tensor:
    """A tensor whose nearest centres are those that carrying errors along its rows chooses.

    Its smallest and largest element stay as they are, so that it has the same range, and
    ``compress({name: carried(tensor, bits)}, bits=bits)`` the bins that were chosen here.

    >>> weights = torch.tensor([[0.0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 1.0]])
    >>> carried(weights, 1)[0].tolist()
    [0.0, 0.25, 0.25, 0.25, 0.75, 0.25, 0.25, 1.0]
    """
    matrix = tensor.detach().reshape(len(tensor), -1)
    flat = matrix.reshape(1, -1)
    low, high = low_and_high(flat)
    grid = Grid(bits, low, high)
    begin = float(low[0])
    step = (float(high[0]) - begin) / 2.0**bits
    weights = elements_of(matrix).reshape(matrix.shape).astype(np.float64)
    places = np.ascontiguousarray(
        (weights - begin).T / step - 0.5
    )  # [columns, rows]; centres whole
    carry = np.zeros(len(matrix))
    for place in places:
        place += carry
        centre = np.clip(np.rint(place), 0, 2**bits - 1)
        # Beyond the last bin nothing can be made up for, and no debt is kept.
        carry = np.clip(place - centre, -0.5, 0.5)
        place[:] = centre
    centres = grid.centres(np.ascontiguousarray(places.T).reshape(1, -1).astype(np.uint16))
    rounded = torch.from_numpy(centres).to(tensor.dtype).reshape(flat.shape)
    for end in (flat.argmin(), flat.argmax()):
        rounded[0, end] = flat[0, end]
    return rounded.reshape(tensor.shape)
