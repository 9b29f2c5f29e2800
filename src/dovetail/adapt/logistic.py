r"""Multinomial logistic regression with an :math:`L_2` penalty, its strength by cross-validation.

For rows :math:`x_i \in \mathbb{R}^d` of class :math:`y_i`,

.. math::
    \min_{W, b} \; -\sum_i \log \operatorname{softmax}(W^\top x_i + b)_{y_i}
                   + \tfrac{\lambda}{2} \lVert W\rVert_F^2 ,

float64, by L-BFGS.  The penalty does not change under rotation, so the rows are first expressed in
their principal directions: at most :math:`\min(n, d)` columns, whatever :math:`d`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from dovetail.core.seeds import generator
from dovetail.linalg.ridge_sums import Linear, Penalty, judged_penalties

__all__ = ["Path", "fit_logistic"]

FOLDS = 5
STEPS = tuple(10.0**step for step in range(2, -7, -1))
"""Penalties that ``"auto"`` tries, strong to weak, in units of the mean eigenvalue of the scatter:
from a hundred to a millionth, one a decade."""

PATIENCE = 2
"""So many weaker penalties in a row that do worse end the search."""


class Path(NamedTuple):
    """A fitted head, the penalties tried and their held-out log losses (empty if none were)."""

    head: Linear
    penalties: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def loss(self) -> float | None:
        """The held-out log loss of the chosen penalty, a row."""
        return min(self.losses) if self.losses else None


def fit_logistic(
    rows: Tensor, codes: Tensor, classes: int, penalty: Penalty = "auto", *, seed: int = 0
) -> Path:
    """The head of rows ``[n, d]`` with class codes ``[n]``.

    Among several penalties the one with the least log loss on rows held out is taken: five folds
    that are stratified by class, or as many as the largest class has rows.  A class with one row
    stays in every fold that is fitted.  When every class has one row there is nothing to hold out,
    and the middle penalty of those tried is taken.

    >>> x, y = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    >>> fit_logistic(x, y, 2, penalty=0.1).head(x).argmax(1)
    tensor([0, 0, 1, 1])
    """
    rows = rows.double()
    mean = rows.mean(0)
    _, s, vt = torch.linalg.svd(rows - mean, full_matrices=False)
    kept = max(1, int((s > s[0] * 1e-12).sum()))
    strength = float(s.square().sum()) / kept or 1.0
    unit = (strength / len(rows)) ** 0.5
    basis = vt[:kept].T / unit  # [d, r]
    z = (rows - mean) @ basis
    choices = judged_penalties(penalty, lambda: tuple(step * strength for step in STEPS))
    choices = tuple(sorted(choices, reverse=True))  # each starts from the solution of a stronger
    losses: tuple[float, ...] = ()
    best = choices[len(choices) // 2]
    if len(choices) > 1 and int(torch.bincount(codes).max()) > 1:
        losses = _held_out(z, codes, classes, [each / unit**2 for each in choices], seed)
        best = choices[int(np.argmin(losses))]
    start = torch.zeros(kept + 1, classes, dtype=torch.float64)
    solution = _solve(z, codes, best / unit**2, start)
    weights = basis @ solution[:-1]
    return Path(Linear(weights, solution[-1] - mean @ weights, best), choices, losses)


def _held_out(
    z: Tensor, codes: Tensor, classes: int, penalties: Sequence[float], seed: int
) -> tuple[float, ...]:
    """The mean log loss of held-out rows for each penalty; infinite where the search had ended."""
    folds = _folds(codes, seed)
    parts = [(folds != fold, folds == fold) for fold in range(int(folds.max()) + 1)]
    starts = [torch.zeros(z.shape[1] + 1, classes, dtype=torch.float64) for _ in parts]
    losses: list[float] = []
    for penalty in penalties:
        since = len(losses) - 1 - int(np.argmin(losses)) if losses else 0
        if since >= PATIENCE:
            losses.append(float("inf"))
            continue
        total, count = 0.0, 0
        for i, (fitted, held) in enumerate(parts):
            starts[i] = _solve(z[fitted], codes[fitted], penalty, starts[i], precision=1e-4)
            outputs = z[held] @ starts[i][:-1] + starts[i][-1]
            total += float(F.cross_entropy(outputs, codes[held], reduction="sum"))
            count += int(held.sum())
        losses.append(total / count)
    return tuple(losses)


def _folds(codes: Tensor, seed: int) -> Tensor:
    """Which fold holds each row out ``[n]``; -1 for the only row of a class, which none does."""
    counts = torch.bincount(codes)
    number = min(FOLDS, int(counts.max()))
    drawn = torch.randperm(len(codes), generator=generator(seed, "folds"))
    order = drawn[torch.argsort(codes[drawn], stable=True)]
    order = order[counts[codes[order]] > 1]
    folds = torch.full_like(codes, -1)
    folds[order] = torch.arange(len(order)) % number  # dealt out class by class
    return folds


def _solve(
    z: Tensor, codes: Tensor, penalty: float, start: Tensor, precision: float = 1e-9
) -> Tensor:
    """Weights and, in the last row, intercepts ``[r + 1, c]``.

    In principal directions the curvature is nearly diagonal, about a tenth of the squares and the
    penalty; divided by its root, all directions are alike and few iterations do.
    """
    targets = F.one_hot(codes, start.shape[1]).double()
    curvature = torch.cat([z.square().sum(0) / 10 + penalty, z.new_tensor([len(z) / 10])])
    root = curvature.sqrt()[:, None]  # [r + 1, 1]

    def loss(flat: Any) -> tuple[float, Any]:
        solution = torch.from_numpy(flat).reshape(start.shape) / root
        logs = torch.log_softmax(z @ solution[:-1] + solution[-1], dim=1)
        surplus = logs.exp() - targets  # [n, c]
        slope = torch.cat([z.T @ surplus + penalty * solution[:-1], surplus.sum(0)[None]])
        value = penalty / 2 * solution[:-1].square().sum() - (logs * targets).sum()
        return float(value), (slope / root).flatten().numpy()

    options = {"maxiter": 1000, "ftol": 1e-3 * precision, "gtol": precision * len(z) ** 0.5}
    first = (start * root).flatten().numpy()
    found = minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x).reshape(start.shape) / root
