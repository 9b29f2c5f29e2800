r"""The exact tangent Gram matrix of a network, without its Jacobian.

With the Jacobian :math:`J(x) = \partial f(x) / \partial \theta` the tangent kernel of two sets of
inputs, of one network or of two with the same parameters, is

.. math::
    K_{ic,jd} = \sum_p \frac{\partial f_c(x_i)}{\partial \theta_p}
                       \frac{\partial f'_d(x'_j)}{\partial \theta'_p} .

One forward pass and one backward pass for each output give what went into every place a parameter
is used and what came back to it; :mod:`dovetail.linalg.gram_layers` reads the gradients of single
samples off those, :mod:`dovetail.linalg.gram_blocks` multiplies them.  For a matrix of
:math:`a \times b` numbers a pair of samples costs :math:`a + b` products instead of :math:`a b`.
"""

from __future__ import annotations

from torch import Tensor, nn

from dovetail.core.errors import ContractError
from dovetail.linalg.parameters import Choice
from dovetail.linalg.tangent import Outputs, TangentFeatures

__all__ = ["tangent_gram"]


def tangent_gram(
    model: nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    model2: nn.Module | None = None,
    params: Choice = None,
    *,
    outputs: Outputs = "full",
    block: int | None = None,
    memory: int = 2**30,
) -> Tensor:
    r"""Inner products of the gradients of a network's outputs (the finite tangent kernel).

    Exact: equal to :math:`J J^\top` up to rounding.  The features are of the network's own type,
    the products are float64, which is where the precision is needed.  The network is run in
    evaluation mode and left as it was, frozen parameters count like others, and it makes no
    difference whether the caller records gradients.

    Args:
        model: Maps ``[n, ...]`` to ``[n, o]``, each sample by itself.
        x: Inputs ``[n, ...]``; integers for a network that begins with a table.
        x2: Other inputs ``[m, ...]``; ``x`` when left out.
        model2: Another network with parameters of the same names and shapes, for ``x2``.
        params: The parameters that count, by pattern, such as ``"head.*"`` or several; all by
            default.  A parameter that is used under two names is one.
        outputs: ``"full"`` for all pairs of outputs, ``"diagonal"`` for each with itself.
        block: Samples at a time; chosen by their size when left out.
        memory: Bytes of features to keep; what does not fit is computed again when it is needed.

    Returns:
        float64 ``[n, o, m, o]``, or ``[n, m, o]`` for ``outputs="diagonal"``.  Without ``x2`` and
        ``model2`` exactly symmetric.

    >>> import torch
    >>> layer = nn.Linear(2, 1)
    >>> tangent_gram(layer, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).squeeze()  # <x, x'> + 1
    tensor([[ 6., 12.],
            [12., 26.]], dtype=torch.float64)
    """
    left = TangentFeatures(model, x, params, block=block, memory=memory)
    if (x2 is None or x2 is x) and (model2 is None or model2 is model):
        return left.gram(outputs=outputs)
    other = model if model2 is None else model2
    right = TangentFeatures(other, x if x2 is None else x2, params, block=block, memory=memory)
    if other is not model:
        _same_parameters(left, right)
    return left.gram(right, outputs=outputs)


def _same_parameters(one: TangentFeatures, other: TangentFeatures) -> None:
    """Refuse networks whose gradients do not live in one space."""
    wrong = [f"only one has {name!r}" for name in sorted(set(one.names) ^ set(other.names))]
    wrong += [
        f"{name!r} is {list(shape)} and {list(other.shapes[name])}"
        for name, shape in one.shapes.items()
        if name in other.shapes and other.shapes[name] != shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ContractError(
            f"the two networks do not share their parameters: {'; '.join(wrong[:3])}{more}. "
            "Choose common ones by params=, or compare the Gram matrix of each"
        )
