r"""Hidden layers of low rank: wider for the same number of weights.

A layer's weights :math:`W \in \mathbb{R}^{d \times w}` are replaced by the matrix of rank
:math:`r` that changes least what enters the activation,

.. math:: \min_{\operatorname{rank} W_r \le r} \lVert \tilde Z (W - W_r) \rVert_F ,
          \qquad W_r = W Q Q^\top ,

with :math:`Q` the first :math:`r` eigenvectors of :math:`W^\top S W`: the principal components of
:math:`\tilde Z W`.  Kept as :math:`(W Q)\,Q^\top` they are :math:`r (d + w)` numbers, not
:math:`d w`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dovetail.closed_form.layers import Layer
from dovetail.closed_form.network import Applied
from dovetail.linalg.moments import Moments

__all__ = ["cut_to_rank", "factored", "factors_of"]


def cut_to_rank(layer: Layer, moments: Moments, rank: int) -> Layer:
    """The layer with weights of a rank, for rows with these moments.

    The mean of what enters the activation stays what it was.

    >>> rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> layer = Layer(torch.eye(2).double(), torch.zeros(2).double(), torch.relu)
    >>> moments = Moments(2, 1).update(rows, rows[:, :1])
    >>> int(torch.linalg.matrix_rank(cut_to_rank(layer, moments, 1).weights))
    1
    """
    if rank >= min(layer.weights.shape):
        return layer
    inner = layer.weights.T @ moments.features @ layer.weights
    axes = torch.linalg.eigh(inner)[1][:, -rank:]
    weights = layer.weights @ axes @ axes.T
    bias = layer.bias + moments.feature_mean @ (layer.weights - weights)
    return Layer(weights, bias, layer.activation)


def factors_of(layer: Layer, rank: int | None = None) -> tuple[Layer, ...]:
    r"""A layer as two, the first linear, where that is fewer numbers; else as it is.

    Weights :math:`U \Sigma V^\top` become :math:`U \Sigma^{1/2}` and
    :math:`\Sigma^{1/2} V^\top`, so that what goes between is neither large nor small.

    Args:
        layer: One whose weights are of low rank.
        rank: Which, if that is known; else what rounding leaves of the singular values says.

    >>> line = Layer(torch.ones(4, 4).double(), torch.zeros(4).double(), torch.relu)
    >>> [tuple(each.weights.shape) for each in factors_of(line)]
    [(4, 1), (1, 4)]
    """
    d, w = layer.weights.shape
    u, s, vh = torch.linalg.svd(layer.weights, full_matrices=False)
    if rank is None:
        rank = max(1, int((s > max(d, w) * torch.finfo(s.dtype).eps * s[0]).sum()))
    if rank * (d + w + 1) >= d * w:
        return (layer,)
    size = s[:rank].sqrt()
    # Laid out as a module holds them, so that it multiplies in the same order.
    down, up = (u[:, :rank] * size).T.contiguous().T, (vh[:rank].T * size).contiguous().T
    return Layer(down, down.new_zeros(rank), nn.Identity()), Layer(up, layer.bias, layer.activation)


def factored(layers: Sequence[Layer]) -> nn.Sequential:
    """Layers as a float64 module; those of low rank become two where that is fewer numbers.

    >>> line = Layer(torch.ones(4, 4).double(), torch.zeros(4).double(), torch.relu)
    >>> [tuple(p.shape) for p in factored([line]).parameters()]
    [(1, 4), (4, 1), (4,)]
    """
    modules: list[nn.Module] = []
    for layer in layers:
        pieces = factors_of(layer)
        linear = [_linear(each, bias=each is pieces[-1]) for each in pieces]
        modules += [linear[0] if len(linear) == 1 else nn.Sequential(*linear)]
        modules += [Applied(layer.activation)]
    return nn.Sequential(*modules).requires_grad_(False)


def _linear(layer: Layer, *, bias: bool) -> nn.Linear:
    d, w = layer.weights.shape
    linear = nn.Linear(d, w, bias=bias, dtype=torch.float64)
    state = {"weight": layer.weights.T} | ({"bias": layer.bias} if bias else {})
    linear.load_state_dict(state)
    return linear
