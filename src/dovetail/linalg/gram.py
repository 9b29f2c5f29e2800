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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, shown
from dovetail.linalg.gram_blocks import Dense, Outer, inner, takes_bias
from dovetail.linalg.gram_features import Differentiated
from dovetail.linalg.parameters import Choice, chosen_parameters

__all__ = ["tangent_gram"]

LARGEST = 4096  # rows (samples times outputs) of one block: the products of two stay in 128 MiB
BLOCK = 2**28  # bytes of features of one block


def tangent_gram(
    model: nn.Module,
    x: Tensor,
    x2: Tensor | None = None,
    model2: nn.Module | None = None,
    params: Choice = None,
    *,
    outputs: Literal["full", "diagonal"] = "full",
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

    >>> layer = nn.Linear(2, 1)
    >>> tangent_gram(layer, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).squeeze()  # <x, x'> + 1
    tensor([[ 6., 12.],
            [12., 26.]], dtype=torch.float64)
    """
    if outputs not in ("full", "diagonal"):
        raise SettingsError(f'outputs is "full" or "diagonal", got {shown(outputs)}')
    if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
        raise SettingsError(f"block is a number of samples, at least 1, got {shown(block)}")
    names = _chosen(model, params)
    symmetric = (x2 is None or x2 is x) and (model2 is None or model2 is model)
    diagonal = outputs == "diagonal"
    other = model if model2 is None else model2
    if other is not model:
        _same_parameters(model, other, names, _chosen(other, params))
    _check(model, x, "x")
    _check(other, x if x2 is None else x2, "x2")
    with _as_evaluated(model, other):
        left = _Blocks(Differentiated(model, names), x, block, memory)
        right = left
        if not symmetric:
            right = _Blocks(Differentiated(other, names), x if x2 is None else x2, block, memory)
        if left.width != right.width:
            raise ContractError(
                f"the two networks have {left.width} and {right.width} outputs; a Gram matrix "
                "needs the same number"
            )
        gram = _filled(left, right, diagonal)
    if not bool(gram.isfinite().all()):
        raise TaskError(
            "the gradients are not finite, as of a square root at zero or an overflow; look for "
            "such an operation, or scale the inputs"
        )
    return gram


def _filled(left: _Blocks, right: _Blocks, diagonal: bool) -> Tensor:
    """The matrix, one pair of blocks after the other; each pair once when it is symmetric."""
    n, m, o = len(left.x), len(right.x), left.width
    gram = torch.empty(
        (n, m, o) if diagonal else (n, o, m, o), dtype=torch.float64, device=left.x.device
    )
    for i, here in enumerate(left.slices):
        mine = left.features(i)
        for j, there in enumerate(right.slices):
            if right is left and j < i:
                continue
            theirs = mine if right is left and j == i else right.features(j)
            part = _products(mine, theirs, diagonal)
            if part is None:  # none of the chosen parameters is used at all
                part = gram.new_zeros(())
            elif right is left and i == j:
                part = (part + _mirrored(part)) / 2
            if diagonal:
                gram[here, there] = part
            else:
                gram[here, :, there] = part
            if right is left and j > i:
                turned = _mirrored(part) if part.ndim else part
                if diagonal:
                    gram[there, here] = turned
                else:
                    gram[there, :, here] = turned
    return gram


def _mirrored(part: Tensor) -> Tensor:
    """A block for ``(j, i)`` from the one for ``(i, j)``."""
    return part.transpose(0, 1) if part.ndim == 3 else part.permute(2, 3, 0, 1)


def _products(
    mine: dict[str, Dense | Outer], theirs: dict[str, Dense | Outer], diagonal: bool
) -> Tensor | None:
    """Sum the inner products over the parameters that both blocks depend on."""
    both = [name for name in mine if name in theirs]
    along = {name: takes_bias(mine[name], theirs[name], diagonal) for name in both}
    taken = set(along.values())
    total: Tensor | None = None
    for name in both:
        if name in taken:
            continue
        bias = along[name] is not None
        part = inner(mine[name], theirs[name], diagonal=diagonal, bias=bias)
        total = part if total is None else total.add_(part)
    return total


class _Blocks:
    """The features of all samples, block by block; as many kept as there is room for."""

    def __init__(self, network: Differentiated, x: Tensor, block: int | None, memory: int) -> None:
        self.network, self.x = network, x.clone() if x.is_inference() else x
        network.plan(self.x)
        self.width = network.width
        if block is None:
            block = min(LARGEST // self.width, BLOCK // max(1, network.sample_bytes))
        block = max(1, block)
        self.slices = [slice(i, min(i + block, len(x))) for i in range(0, len(x), block)]
        self.kept: dict[int, dict[str, Dense | Outer]] = {}
        self.room = memory

    def features(self, i: int) -> dict[str, Dense | Outer]:
        """Those of one block."""
        if i in self.kept:
            return self.kept[i]
        found = self.network.features(self.x[self.slices[i]])
        size = sum(feature.nbytes for feature in found.values())
        if size <= self.room:
            self.room -= size
            self.kept[i] = found
        return found


@contextmanager
def _as_evaluated(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode, gradients recorded, full precision; everything as before afterwards."""
    before = {module: module.training for model in models for module in model.modules()}
    kind = next((p.device.type for p in models[0].parameters()), "cpu")
    try:
        for model in models:
            model.eval()
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(kind, enabled=False),
        ):
            yield
    finally:
        for module, training in before.items():
            module.training = training


def _chosen(model: nn.Module, params: Choice) -> list[str]:
    if not isinstance(model, nn.Module):
        raise ContractError(f"a tangent Gram matrix is of an nn.Module, got {shown(model)}")
    return list(chosen_parameters(model, params))


def _same_parameters(one: nn.Module, other: nn.Module, names: list[str], theirs: list[str]) -> None:
    """Refuse networks whose gradients do not live in one space."""
    a, b = dict(one.named_parameters()), dict(other.named_parameters())
    wrong = [f"only one has {name!r}" for name in sorted(set(names) ^ set(theirs))]
    wrong += [
        f"{name!r} is {list(a[name].shape)} and {list(b[name].shape)}"
        for name in names
        if name in theirs and a[name].shape != b[name].shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ContractError(
            f"the two networks do not share their parameters: {'; '.join(wrong[:3])}{more}. "
            "Choose common ones by params=, or compare the Gram matrix of each"
        )


def _check(model: nn.Module, x: Tensor, name: str) -> None:
    """Refuse what cannot be differentiated sample by sample."""
    if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
        what = f"shape {list(x.shape)}" if isinstance(x, Tensor) else shown(x)
        raise TaskError(f"{name} is a tensor [n, ...] of at least one sample, got {what}")
    if not bool(x.isfinite().all()):
        raise TaskError(f"{name} holds numbers that are not finite; drop or fill those samples")
