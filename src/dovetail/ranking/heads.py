"""The ridge head on frozen features: the cheapest way to use a part, in closed form.

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
from dovetail.linalg.ridge import Penalty, fit
from dovetail.measure.outputs import label_measures, number_measures
from dovetail.ranking.inputs import as_rows, as_targets, refuse_other_count

__all__ = ["Head", "HeadKind", "coded", "fit_head"]

MOST_CELLS = 1 << 27
"""Of one-hot targets, rows × classes: a gibibyte."""

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
            given = torch.as_tensor(targets).reshape(outputs.shape)
            return label_measures(outputs, given)["accuracy"]
        # A class the head has never met is wrong whatever it says.
        codes = {name: code for code, name in enumerate(self.classes)}
        given = torch.tensor([codes.get(name, -1) for name in _listed(targets)])
        refuse_other_count(outputs, given)
        return float((outputs.argmax(1) == given).double().mean())


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
    found = fit(rows, columns, penalty)
    # Labels are zeros and ones, so that half-way is where a label begins to be said.
    intercept = found.intercept - 0.5 if kind == "multilabel" else found.intercept
    ids = tuple(sorted(set(_listed(targets)))) if kind == "classes" else ()
    return Head(found.weights, intercept, found.penalty, kind, ids)


def coded(targets: Any, kind: HeadKind | None = None) -> tuple[HeadKind, Tensor, Tensor | None]:
    """What to predict, as columns ``[n, k]`` of numbers; for classes also their codes ``[n]``.

    >>> kind, columns, codes = coded([5, 2, 5])
    >>> kind, columns.tolist(), codes.tolist()
    ('classes', [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [1, 0, 1])
    >>> coded([[0, 1], [1, 1]])[0], coded([0.5, 1.5])[0]
    ('multilabel', 'regression')
    """
    given = as_targets(targets)
    if kind is None:
        kind = "classes" if not given.is_floating_point() else _kind(targets, given)
    if kind != "classes":
        columns = given.double().reshape(len(given), -1)
        if kind == "multilabel" and not bool(((columns == 0) | (columns == 1)).all()):
            raise TaskError("several labels are a matrix of zeros and ones")
        return kind, columns, None
    if given.is_floating_point():
        raise TaskError("classes are one integer a row; several labels or numbers are another kind")
    count = int(given.max()) + 1
    if count < 2:
        raise TaskError("all labels are of one class; a head needs two")
    if len(given) * count > MOST_CELLS:
        raise TaskError(
            f"a head for {count} classes and {len(given)} rows is too much to hold; "
            "use fewer rows, or fewer classes"
        )
    return kind, F.one_hot(given, count).double(), given


def _kind(targets: Any, given: Tensor) -> HeadKind:
    matrix = np.ndim(targets) == 2
    binary = bool(((given == 0) | (given == 1)).all())
    return "multilabel" if matrix and binary else "regression"


def _listed(targets: Any) -> list[Any]:
    listed: list[Any] = targets.tolist() if hasattr(targets, "tolist") else list(targets)
    return listed
