r"""The ridge head on frozen features, and its leave-one-out accuracy, in closed form.

Classes become one-hot columns and the greatest output decides; of several labels each is a column
of zeros and ones and counts as said when its output is positive; numbers are predicted as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.ridge import fit, leave_one_out
from dovetail.linalg.ridge_sums import Penalty
from dovetail.measure.evaluate import label_measures, number_measures
from dovetail.measure.inputs import as_rows, as_targets, refuse_other_count

_MOST_CELLS = 200_000_000
"""Of one-hot targets and predictions, rows × classes: 1.6 GB."""

_TIED = 1e-9
"""Outputs closer than this tie, and the classes that tie share the credit."""

HeadKind = Literal["classes", "multilabel", "regression"]


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head: ``weights [d, k]``, ``intercept [k]``; its columns are ``classes``, if any.

    >>> head = fit_head([[0.0], [0.1], [1.0], [1.1]], [7, 7, 9, 9])
    >>> head.classes, head.accuracy([[0.2], [2.0]], [7, 7])
    ((7, 9), 0.5)
    """

    weights: Tensor
    intercept: Tensor
    penalty: float
    kind: HeadKind
    classes: tuple[Any, ...] = ()

    def __call__(self, features: Any) -> Tensor:
        """Outputs ``[n, k]``, float64, for rows ``[n, d]``."""
        return as_rows(features) @ self.weights + self.intercept

    def accuracy(self, features: Any, targets: Any) -> float:
        """Its accuracy on other examples: share of right classes or labels, or R² for numbers."""
        outputs = self(features)
        if self.kind == "regression":
            return number_measures(outputs, torch.as_tensor(targets))["r2"]
        if self.kind == "multilabel":
            truths = torch.as_tensor(targets).reshape(outputs.shape)
            return label_measures(outputs, truths)["accuracy"]
        # A class the head has never met is wrong whatever it says.
        codes = {name: code for code, name in enumerate(self.classes)}
        truths = torch.tensor([codes.get(name, -1) for name in _names(targets)])
        refuse_other_count(outputs, truths)
        return float((outputs.argmax(1) == truths).double().mean())


def fit_head(
    features: Any, targets: Any, penalty: Penalty = "auto", *, kind: HeadKind | None = None
) -> Head:
    """The ridge head of all these labels: the one whose accuracy ``expected_accuracy`` estimates.

    ``targets`` are integers ``[n]`` for classes, a matrix ``[n, k]`` of zeros and ones for several
    labels, other numbers ``[n]`` or ``[n, k]`` for regression; ``kind`` overrides what they seem.

    >>> fit_head([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0], penalty=1e-9).weights.round(decimals=4)
    tensor([[2.]], dtype=torch.float64)
    """
    rows = as_rows(features)
    kind, columns, _ = coded(targets, kind)
    refuse_other_count(rows, columns)
    solved = fit(rows, columns, penalty)
    # Labels are zeros and ones, so that half-way is where a label begins to be said.
    intercept = solved.intercept - 0.5 if kind == "multilabel" else solved.intercept
    ids = tuple(sorted(set(_names(targets)))) if kind == "classes" else ()
    return Head(solved.weights, intercept, solved.penalty, kind, ids)


def ridge_loo(features: Any, targets: Any, *, penalty: Penalty = "auto") -> float:
    r"""How well a ridge head on all other rows predicts each row.

    Classes become one-hot columns, the greatest prediction decides, and the value is the accuracy
    in [0, 1]; classes whose predictions tie share the credit.  Numbers ``[n, k]`` (regression, or
    zeros and ones of several labels) give

    .. math:: R^2 = 1 - \frac{\sum_i (y_i - \hat y_{-i})^2}{\sum_i (y_i - \bar y)^2} \le 1,

    the mean over the columns that vary.  ``penalty="auto"`` takes the one with the least
    leave-one-out squared error, which makes the value invariant to the scale of the features.

    >>> rows = [[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]]
    >>> ridge_loo(rows, [0, 0, 0, 1, 1, 1]), round(ridge_loo(rows, [0.0, 1, 2, 10, 11, 12]), 4)
    (1.0, 1.0)
    """
    rows = as_rows(features)
    _, columns, codes = coded(targets)
    refuse_other_count(rows, columns)
    return explained(leave_one_out(rows, columns, penalty).predictions, columns, codes)


def explained(predictions: Tensor, columns: Tensor, codes: Tensor | None) -> float:
    """The accuracy for classes with ``codes [n]``, else R², the mean over columns that vary."""
    if codes is not None:
        return float(right_shares(predictions, codes).mean())
    varies = (columns != columns[0]).any(0)
    if not varies.any():
        raise TaskError("all targets are the same number; there is nothing to predict")
    y = columns[:, varies]
    spread = (y - y.mean(0)).square().sum(0)
    return float((1 - (predictions[:, varies] - y).square().sum(0) / spread).mean())


def right_shares(predictions: Tensor, codes: Tensor) -> Tensor:
    """One for each row ``[n, k]`` whose greatest output is its class, shared where classes tie.

    >>> right_shares(torch.tensor([[0.2, 0.8], [0.5, 0.5]]), torch.tensor([1, 1]))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    best = predictions >= predictions.amax(1, keepdim=True) - _TIED
    return best.gather(1, codes[:, None])[:, 0].double() / best.sum(1)


def coded(targets: Any, kind: HeadKind | None = None) -> tuple[HeadKind, Tensor, Tensor | None]:
    """What to predict, as columns ``[n, k]`` of numbers; for classes also their codes ``[n]``.

    >>> kind, columns, codes = coded([5, 2, 5])
    >>> kind, columns.tolist(), codes.tolist()
    ('classes', [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [1, 0, 1])
    >>> coded([[0, 1], [1, 1]])[0], coded([0.5, 1.5])[0]
    ('multilabel', 'regression')
    """
    labels = as_targets(targets)
    if kind is None:
        kind = "classes" if not labels.is_floating_point() else _kind(targets, labels)
    if kind != "classes":
        columns = labels.double().reshape(len(labels), -1)
        if kind == "multilabel" and not bool(((columns == 0) | (columns == 1)).all()):
            raise TaskError("several labels are a matrix of zeros and ones")
        return kind, columns, None
    if labels.is_floating_point():
        raise TaskError("classes are one integer a row; several labels or numbers are another kind")
    count = int(labels.max()) + 1
    if count < 2:
        raise TaskError("all labels are of one class; a head needs two")
    if len(labels) * count > _MOST_CELLS:
        raise TaskError(
            f"a ridge head would predict {count} classes for {len(labels)} rows, which is too much "
            "to hold; use logme or centred-al, or pass fewer rows or classes"
        )
    return kind, F.one_hot(labels, count).double(), labels


def _kind(targets: Any, codes: Tensor) -> HeadKind:
    matrix = np.ndim(targets) == 2
    binary = bool(((codes == 0) | (codes == 1)).all())
    return "multilabel" if matrix and binary else "regression"


def _names(targets: Any) -> list[Any]:
    """The classes of the rows, as they were given."""
    return list(targets.tolist() if hasattr(targets, "tolist") else targets)
