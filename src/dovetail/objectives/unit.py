r"""Features scaled to unit length, so that their kernel has a known range.

.. math::
    u = \phi / \lVert\phi\rVert, \qquad u = 0 \text{ where } \phi = 0 .

A row of zeros (every unit of a ReLU layer silent) has no direction.  It stays zero, is orthogonal
to everything, and gets a gradient of zero instead of a NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.core.errors import TaskError


def unit_length(features: Tensor) -> Tensor:
    """Features ``[..., d]`` scaled to unit length along the last axis.

    Each row is divided by its largest entry first: the squares of 1e30 or of 1e-30 are beyond
    float32, their direction is not.

    >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    if features.shape[-1] == 0:
        raise TaskError(f"features of shape {list(features.shape)} have no columns")
    largest = features.detach().abs().amax(-1, keepdim=True)
    # What is not a number is not smaller either, so it stays seen.
    silent = largest < torch.finfo(features.dtype).tiny
    scaled = features / largest.masked_fill(silent, 1.0)
    squares = scaled.square().sum(-1, keepdim=True)
    return (scaled / squares.masked_fill(silent, 1.0).sqrt()).masked_fill(silent, 0.0)


def unit_rows(features: Tensor) -> Tensor:
    """Features or feature maps ``[n, ...]`` as rows ``[n, d]`` of unit length.

    Half precision becomes float32: a sum over pairs soon leaves the range of float16.

    >>> unit_rows(torch.ones(2, 1, 2, 2))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000, 0.5000]])
    """
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise TaskError(f"features must be a tensor of floating-point numbers, got {kind}")
    if features.ndim == 0 or len(features) == 0:
        raise TaskError(f"features must have a row a sample, got shape {list(features.shape)}")
    if features.dtype in (torch.float16, torch.bfloat16):
        features = features.float()
    return unit_length(features.flatten(1) if features.ndim > 1 else features[:, None])
