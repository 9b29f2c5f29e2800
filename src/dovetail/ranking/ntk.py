r"""Scores of the whole network: how *fine-tuning* it would begin, rather than a head on it.

Fine-tuning moves all weights, at first along their gradients, so to first order it is a linear
model on the tangent features :math:`\partial f(x) / \partial\theta`, whose kernel

.. math::
    k(x, x') = \frac{1}{o} \sum_{c=1}^{o}
        \Big\langle \frac{\partial f_c(x)}{\partial\theta},
                    \frac{\partial f_c(x')}{\partial\theta} \Big\rangle

says which examples learn together.  The outputs :math:`f_c` are the part's features.  Where there
are more than :data:`OUTPUTS` of them, they are fixed random mixtures :math:`f = P \phi`,
:math:`P_{cj} \sim N(0, 1/d)`, as a fresh head would make: the mean over mixtures estimates the mean
over all :math:`d` features without bias, at a backward pass each.  :math:`P` depends on the seed
and the width only, so that parts of one width are seen through the same mixtures.

Whether they rank parts for fine-tuning better than scores of features do is a question of evidence,
and the answer so far is no: see docs/rank.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, nearest
from dovetail.core.seeds import generator
from dovetail.linalg.ridge import kernel_leave_one_out
from dovetail.linalg.tangent import TangentFeatures
from dovetail.measure.features import Pooling, pooled
from dovetail.measure.forward import outputs_of, prepare
from dovetail.measure.inputs import as_rows, as_targets, refuse_other_count
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part
from dovetail.ranking.heads import coded, explained

OUTPUTS = 4
"""Features beyond so many are seen through so many mixtures."""

_NOISE = 1e-12  # of a centred kernel, beside what it was before


def tangent_kernel(
    part: Part,
    inputs: Tensor,
    *,
    pooling: Pooling = "average",
    outputs: int = OUTPUTS,
    seed: int = 0,
) -> Tensor:
    """The mean tangent kernel of a part's features, float64 ``[n, n]``, see the module's text.

    Exact, in evaluation mode, over all weights of the part.  Time and memory grow with ``outputs``.

    Args:
        part: Gives features for inputs, after its own preprocessing.
        inputs: ``[n, ...]``, as a task holds them.
        pooling: How feature maps become rows.
        outputs: How many mixtures stand for features that are more than so many.
        seed: Of the mixtures.

    >>> from dovetail.parts.part import build
    >>> tangent_kernel(build("mlp", shape=(4,), hidden=(8,)), torch.rand(5, 4)).shape
    torch.Size([5, 5])
    """
    if outputs < 1:
        raise SettingsError(f"outputs must be at least 1, got {outputs}")
    if uses_batch_statistics(part.module):
        raise ContractError(
            "it normalises by the statistics of each batch, so that no example has gradients of "
            "its own; recalibrate its norms first, or rank it by a score of features"
        )
    if not any(True for _ in part.module.parameters()):
        raise ContractError(
            "it has no weights, so there is nothing to fine-tune; rank it by a score of features"
        )
    seen = outputs_of(part, inputs[:2], each=lambda output: pooled(output, pooling))
    width, mixtures = seen.shape[1], None
    if width > outputs:
        draw = generator(seed, "tangent outputs", width)
        mixtures = torch.randn(outputs, width, generator=draw, dtype=torch.float64) / width**0.5
        mixtures = mixtures.to(part.device, seen.dtype)
    x = prepare(inputs, part.contract).to(part.device)
    features = TangentFeatures(_Rows(part.module, pooling, mixtures), x)
    return features.gram(outputs="diagonal").mean(2).cpu()


def ntk_score(kernel: Any, labels: Any, by: str = "ntk-loo") -> float:
    """A score of the whole network from its kernel: what :func:`dovetail.ranking.rank` computes.

    Args:
        kernel: Of the labelled examples ``[n, n]``, such as :func:`tangent_kernel` gives.
        labels: One integer or name a row for classes; floats ``[n]`` or a matrix ``[n, k]`` for
            numbers.
        by: ``"ntk-loo"`` or ``"ntk-centred-al"``.

    >>> rows = torch.tensor([[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]])
    >>> ntk_score(rows @ rows.T, ["low"] * 3 + ["high"] * 3)
    1.0
    """
    if by not in _SCORES:
        raise SettingsError(f"{by!r} is no score of a kernel{nearest(str(by), _SCORES)}")
    return _SCORES[by](as_rows(kernel, "kernel"), as_targets(labels))


def kernel_alignment(kernel: Tensor, targets: Tensor) -> float:
    r"""Alignment of the centred kernel with the labels' (CKA), in [0, 1].

    .. math:: \frac{\langle H K H, L \rangle}{\lVert H K H\rVert_F \lVert L\rVert_F},
        \qquad L = H Y Y^\top H, \quad H = I - 1 1^\top / n

    with one-hot :math:`Y` for classes and standardised columns for numbers.

    >>> rows = torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
    >>> round(kernel_alignment(rows @ rows.T, torch.tensor([0, 0, 1, 1])), 6)
    1.0
    """
    columns, codes = _coded_for(kernel, targets)
    columns = columns - columns.mean(0)
    if codes is None:
        spread = columns.std(0)
        columns = columns[:, spread > 0] / spread[spread > 0]
    means = kernel.mean(0)
    centred = kernel - means - means[:, None] + means.mean()
    size = torch.linalg.matrix_norm(centred)
    if float(size) <= _NOISE * float(torch.linalg.matrix_norm(kernel)):
        raise TaskError("the kernel is the same for all examples: it tells no classes apart")
    shared = torch.einsum("ik,ij,jk->", columns, centred, columns)
    ideal = torch.linalg.matrix_norm(columns.T @ columns)
    return min(float(shared / (size * ideal)), 1.0)


def kernel_loo(kernel: Tensor, targets: Tensor) -> float:
    """Leave-one-out accuracy (of numbers: R²) of kernel ridge regression with an intercept.

    The penalty is the one with the least leave-one-out squared error, so that the scale of the
    kernel makes no difference; classes whose predictions tie share the credit.

    >>> rows = torch.arange(6, dtype=torch.float64)[:, None]
    >>> round(kernel_loo(rows @ rows.T, 3 * rows + 1), 4)
    1.0
    """
    columns, codes = _coded_for(kernel, targets)
    return explained(kernel_leave_one_out(kernel, columns).predictions, columns, codes)


_SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "ntk-centred-al": kernel_alignment,
    "ntk-loo": kernel_loo,
}


def _coded_for(kernel: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Targets ``[n, k]``, one-hot with codes for classes; refuses what is no kernel of them."""
    refuse_other_count(kernel, targets, "the kernel")
    if kernel.shape[1] != len(kernel):
        raise TaskError(f"a kernel is [n, n], got {list(kernel.shape)}")
    if not torch.allclose(kernel, kernel.T, rtol=1e-6, atol=1e-6 * float(kernel.abs().max())):
        raise TaskError("a kernel is symmetric, and this one is not; give that of one network")
    _, columns, codes = coded(targets)
    if codes is None and not bool((columns != columns[0]).any()):
        raise TaskError("all targets are the same number; there is nothing to predict")
    return columns, codes


class _Rows(nn.Module):
    """A part's features as rows, mixed if there are mixtures ``[o, d]``."""

    mixtures: Tensor | None

    def __init__(self, front: nn.Module, pooling: Pooling, mixtures: Tensor | None) -> None:
        super().__init__()
        self.front, self.pooling = front, pooling
        self.register_buffer("mixtures", mixtures)

    def forward(self, x: Tensor) -> Tensor:
        rows = pooled(self.front(x), self.pooling)
        return rows if self.mixtures is None else rows @ self.mixtures.T
