r"""A linear head on frozen features: what any cleverer adaptation has to beat.

``"ridge"``
    One-hot columns by ridge regression, the penalty by closed-form leave-one-out.  The outputs
    :math:`f` of such a head are no logits; the probabilities are
    :math:`\operatorname{softmax}(f / T)`, and :math:`T` is fitted to the outputs that every row got
    from the head of all *other* rows, so that it costs no further fit and is not fooled by rows the
    head has learnt by heart.  The targets are those of :math:`n` rows and one more of which
    nothing is known, :math:`(n + 1/C) / (n + 1)` for a row's own class out of :math:`C`:
    :math:`T` stays above zero when few rows are told apart without a mistake.
``"logistic"``
    :mod:`dovetail.adapt.logistic`, the penalty by stratified cross-validation.
``"auto"``
    Both, and the one with the lower log loss on rows it was not fitted to; ridge alone when
    there are more than :data:`MOST_CELLS` numbers to go through.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.front import front_of, with_head
from dovetail.adapt.logistic import fit_logistic
from dovetail.core.errors import SettingsError
from dovetail.linalg.ridge import solve
from dovetail.linalg.ridge_sums import Linear, Penalty
from dovetail.measure.estimator_inputs import (
    as_classes,
    class_names,
    refuse_other_count,
    seed_of,
)
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part

__all__ = ["Probe", "temperature_of"]

Kind = Literal["ridge", "logistic"]

MOST_CELLS = 1 << 24
"""Of rows × features × classes: beyond, logistic regression takes minutes."""


class Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify by a linear head on a part's frozen features, or on the inputs themselves.

    Args:
        model: A part or module, which is copied; ``None`` for the inputs as they are.
        at: The cut point to take features at; ``None`` for what comes before the last layer of a
            network that ends in a head, else its output; ``"output"`` for the output.
        kind: ``"ridge"``, ``"logistic"`` or ``"auto"``, see the module.
        penalty: On the squared weights: a number, several to choose from, or ``"auto"``.
        pooling: How feature maps become rows: ``"average"`` or ``"flatten"``.
        random_state: For the folds of the cross-validation.

    After :meth:`fit`: ``classes_``; ``kind_``; ``penalty_``; ``temperature_`` (1 for logistic);
    ``log_loss_``, a row, on rows that were held out (``None`` if there was nothing to hold out).

    >>> x = [[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]]
    >>> probe = Probe().fit(x, ["low", "low", "low", "high", "high", "high"])
    >>> probe.predict([[-1.0], [2.0]]).tolist()
    ['low', 'high']
    """

    def __init__(
        self,
        model: Any = None,
        *,
        at: Any = None,
        kind: Any = "auto",
        penalty: Any = "auto",
        pooling: Any = "average",
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.at = at
        self.kind = kind
        self.penalty = penalty
        self.pooling = pooling
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Probe:
        """Fit the head to inputs ``[n, ...]`` and their classes ``[n]``."""
        if self.kind not in ("auto", "ridge", "logistic"):
            raise SettingsError(f"kind must be 'auto', 'ridge' or 'logistic', got {self.kind!r}")
        self.front_ = front_of(self.model, self.at, self.pooling)
        raw = self.front_.read(X, self, reset=True)
        codes, self.classes_ = as_classes(y)
        refuse_other_count(raw, codes)
        rows = self.front_.rows(raw)
        self.shape_ = self.front_.shape(raw)
        best = self._best(rows, codes)
        self.kind_: Kind = best.kind
        self.penalty_, self.temperature_ = best.head.penalty, best.temperature
        self.log_loss_ = best.loss
        self.coef_ = best.head.weights / best.temperature  # [d, c]
        self.intercept_ = best.head.intercept / best.temperature
        return self

    def logits(self, X: Any) -> Tensor:
        """What the softmax makes probabilities of: ``[m, c]``, float64, a column a class."""
        check_is_fitted(self)
        raw = self.front_.read(X, self, reset=False)
        return self.front_.rows(raw) @ self.coef_ + self.intercept_

    def decision_function(self, X: Any) -> Any:
        """The logits ``[m, c]``; for two classes the second less the first ``[m]``."""
        logits = self.logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def predict_proba(self, X: Any) -> Any:
        """Probabilities ``[m, c]`` in the order of ``classes_``."""
        return self.logits(X).softmax(1).numpy()

    def predict(self, X: Any) -> Any:
        """The most probable class of each input."""
        chosen = self.logits(X).argmax(1).numpy()  # first, so that an unfitted one says so
        return self.classes_[chosen]

    def to_part(self) -> Part:
        """The front and the head as one part that knows its classes: to evaluate, save, shelve."""
        check_is_fitted(self)
        measured = {} if self.log_loss_ is None else {"held-out log loss": self.log_loss_}
        origin = Origin(
            how="probe",
            settings={
                "kind": self.kind_,
                "penalty": self.penalty_,
                "temperature": self.temperature_,
                "pooling": self.pooling,
            },
            measured=measured,
        )
        names = class_names(self.classes_)
        return with_head(self.front_, self.shape_, self.coef_, self.intercept_, origin, names)

    def _best(self, rows: Tensor, codes: Tensor) -> _Fitted:
        count = len(self.classes_)
        if self.kind == "ridge":
            return _ridge(rows, codes, count, self.penalty)
        if self.kind == "auto" and rows.numel() * count > MOST_CELLS:
            return _ridge(rows, codes, count, self.penalty)
        path = fit_logistic(rows, codes, count, self.penalty, seed=seed_of(self.random_state))
        logistic = _Fitted("logistic", path.head, 1.0, path.loss)
        if self.kind == "logistic":
            return logistic
        ridge = _ridge(rows, codes, count, self.penalty)
        # Of one row a class none could be held out; only ridge can leave one out.
        return ridge if path.loss is None or (ridge.loss or 0.0) <= path.loss else logistic


class _Fitted(NamedTuple):
    kind: Kind
    head: Linear
    temperature: float
    loss: float | None


def temperature_of(outputs: Tensor, codes: Tensor) -> float:
    """What to divide outputs ``[n, c]`` by so that their softmax says how sure they are.

    The outputs must come from heads that did not see the row.

    >>> import torch
    >>> told = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64).repeat(50, 1)
    >>> sure = temperature_of(told, torch.tensor([0, 1]).repeat(50))
    >>> misled = temperature_of(told, torch.tensor([0, 1, 0, 1, 1, 0]).repeat(17)[:100])
    >>> sure < misled
    True
    """
    n, count = outputs.shape
    targets = (n * F.one_hot(codes, count) + 1 / count) / (n + 1)
    spread = float(outputs.std(1).mean()) or 1.0

    def loss(log_sharpness: float) -> float:
        logits = outputs * (np.exp(log_sharpness) / spread)
        return float(F.cross_entropy(logits, targets))

    found = minimize_scalar(loss, bounds=(-7.0, 7.0), method="bounded", options={"xatol": 1e-6})
    return float(spread / np.exp(found.x))


def _ridge(rows: Tensor, codes: Tensor, classes: int, penalty: Penalty) -> _Fitted:
    solved = solve(rows, F.one_hot(codes, classes).double())
    left_out = solved.leave_one_out(penalty)
    head = solved.fit(left_out.penalty)
    temperature = temperature_of(left_out.predictions, codes)
    loss = float(F.cross_entropy(left_out.predictions / temperature, codes))
    return _Fitted("ridge", head, temperature, loss)
