r"""A linear head on frozen features: what any cleverer adaptation has to beat.

``"ridge"``
    One-hot columns by ridge regression.  The outputs :math:`f` of such a head are no logits; the
    probabilities are :math:`\operatorname{softmax}(f / T)`, and :math:`T` is fitted to the outputs
    that every row got from a head of *other* rows, so that it is not fooled by rows the head has
    learnt by heart.  The targets are those of :math:`n` rows and one more of which nothing is
    known, :math:`(n + 1/C) / (n + 1)` for a row's own class out of :math:`C`: :math:`T` stays above
    zero when few rows are told apart without a mistake.  The other rows are those of the same
    stratified folds as of logistic regression, and the penalty is the one of the least log loss.
    With more than :data:`MOST_CELLS` numbers to go through, or one row a class, each row is left
    out alone, in closed form, and the penalty is that of the least squared error.  (With few
    rows that is less good: leaving one out makes its class the smallest, and all heads look worse
    than they are.)
``"logistic"``
    :mod:`dovetail.adapt.linear_heads`, the penalty by stratified cross-validation.
``"auto"``
    Both, and the one with the lower log loss on the same rows held out; ridge alone when there
    are more than :data:`MOST_CELLS` numbers, logistic when every class has one row: then nothing
    says how sure a ridge head may be.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.linear_heads import BayesLinear, fit_bayes, fit_logistic, folds_of
from dovetail.adapt.networks import front_of, with_head
from dovetail.core.errors import SettingsError
from dovetail.linalg.ridge import solve
from dovetail.linalg.ridge_sums import Linear, Penalty, judged_penalties
from dovetail.measure.estimator_inputs import (
    as_classes,
    as_numbers,
    names_of,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Classifier, Regressor, Spread, temperature_of
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part

Kind = Literal["ridge", "logistic"]

MOST_CELLS = 1 << 24
"""Of rows × features × classes: beyond, logistic regression takes minutes."""


class Probe(Classifier):
    """Classify by a linear head on a part's frozen features, or on the inputs themselves.

    Args:
        model: A part or module, which is copied; ``None`` for the inputs as they are.
        at: The cut point to take features at; ``None`` for what comes before the last layer of a
            network that ends in a head, else its output; ``"output"`` for the output.
        kind: ``"ridge"``, ``"logistic"`` or ``"auto"``, see the module.
        penalty: On the squared weights: a number, several to choose from, or ``"auto"``.
        pooling: How feature maps become rows: ``"average"`` or ``"flatten"``.
        random_state: For the folds of the cross-validation.

    After :meth:`fit`: ``classes_``, and ``class_names_`` as a part names them; ``kind_``;
    ``penalty_``; ``coef_`` and ``intercept_`` of the head; ``temperature_``, which its outputs are
    divided by (1 for logistic); ``log_loss_``, a row, on rows that were held out (``None`` if there
    was nothing to hold out).

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

    def fit(self, X: Any, y: Any, class_names: Any = None) -> Probe:
        """Fit the head to inputs ``[n, ...]`` and their classes ``[n]``.

        Of labels that are places in a list of names, such as a task's ``classes``, hand that list
        over as ``class_names``: the part that is made of this then knows its classes by name.
        """
        if self.kind not in ("auto", "ridge", "logistic"):
            raise SettingsError(f"kind must be 'auto', 'ridge' or 'logistic', got {self.kind!r}")
        self.front_ = front_of(self.model, self.at, self.pooling)
        raw = self.front_.read(X, self, reset=True)
        codes, self.classes_ = as_classes(y)
        self.class_names_ = names_of(self.classes_, class_names)
        refuse_other_count(raw, codes)
        rows = self.front_.rows(raw)
        self.shape_ = self.front_.shape(raw)
        count, seed = len(self.classes_), seed_of(self.random_state)
        best = fit_head(rows, codes, count, self.kind, self.penalty, seed=seed)
        self.kind_: Kind = best.kind
        self.penalty_ = best.head.penalty
        self.temperature_ = self._fitted_temperature = best.temperature
        self.log_loss_ = best.loss
        self.coef_, self.intercept_ = best.head.weights, best.head.intercept  # [d, c], [c]
        return self

    def logits(self, X: Any) -> Tensor:
        """What the head gives: ``[m, c]``, float64, a column a class, before the temperature."""
        check_is_fitted(self)
        raw = self.front_.read(X, self, reset=False)
        return self.front_.rows(raw) @ self.coef_ + self.intercept_

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
        weights, intercept = (each / self.temperature_ for each in (self.coef_, self.intercept_))
        return with_head(self.front_, self.shape_, weights, intercept, origin, self.class_names_)


class FittedHead(NamedTuple):
    """A head, what its outputs are divided by, and its log loss a row on rows held out.

    >>> line = Linear(torch.ones(1, 2), torch.zeros(2), penalty=1.0)
    >>> FittedHead("ridge", line, 0.5, None).logits(torch.ones(1, 1)).tolist()
    [[2.0, 2.0]]
    """

    kind: Kind
    head: Linear
    temperature: float
    loss: float | None

    def logits(self, rows: Tensor) -> Tensor:
        """Outputs over the temperature ``[n, c]`` for rows ``[n, d]``."""
        return self.head(rows) / self.temperature


def fit_head(
    rows: Tensor,
    codes: Tensor,
    classes: int,
    kind: str = "auto",
    penalty: Penalty = "auto",
    *,
    seed: int = 0,
) -> FittedHead:
    """The head of rows ``[n, d]`` with class codes ``[n]``, see the module.

    >>> x, y = torch.tensor([[0.0], [0.1], [1.0], [1.1]]).double(), torch.tensor([0, 0, 1, 1])
    >>> fit_head(x, y, 2).logits(x).argmax(1)
    tensor([0, 0, 1, 1])
    """
    if rows.shape[1] > len(rows):  # the weights of least length are in the span of the rows
        span = torch.linalg.qr(rows.T).Q  # [d, n]
        inside = fit_head(rows @ span, codes, classes, kind, penalty, seed=seed)
        weights = span @ inside.head.weights
        return inside._replace(head=replace(inside.head, weights=weights))
    several = int(torch.bincount(codes).max()) > 1
    small = rows.numel() * classes <= MOST_CELLS
    ridge = _ridge_by_folds if several and small else _ridge
    if kind == "ridge" or (kind == "auto" and not small):
        return ridge(rows, codes, classes, penalty, seed=seed)
    path = fit_logistic(rows, codes, classes, penalty, seed=seed)
    logistic = FittedHead("logistic", path.head, 1.0, path.loss)
    if kind == "logistic" or not several:
        return logistic
    other = ridge(rows, codes, classes, penalty, seed=seed)
    return min(other, logistic, key=lambda fitted: math.inf if fitted.loss is None else fitted.loss)


def _ridge_by_folds(
    rows: Tensor, codes: Tensor, classes: int, penalty: Penalty, *, seed: int
) -> FittedHead:
    """Penalty and temperature of the least log loss on the folds of :func:`fit_logistic`."""
    targets = F.one_hot(codes, classes).double()
    solved = solve(rows, targets)
    choices = judged_penalties(penalty, solved.penalties)
    folds = folds_of(codes, seed)
    said = rows.new_zeros(len(choices), len(rows), classes)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        others = solve(rows[~held], targets[~held])
        for place, choice in enumerate(choices):
            said[place, held] = others.fit(choice)(rows[held])
    judged = folds >= 0
    temperatures = [temperature_of(each[judged], codes[judged]) for each in said]
    losses = [
        float(F.cross_entropy(each[judged] / temperature, codes[judged]))
        for each, temperature in zip(said, temperatures, strict=True)
    ]
    best = min(range(len(choices)), key=losses.__getitem__)
    return FittedHead("ridge", solved.fit(choices[best]), temperatures[best], losses[best])


def _ridge(rows: Tensor, codes: Tensor, classes: int, penalty: Penalty, *, seed: int) -> FittedHead:
    """Penalty by leaving out row by row, in closed form; it draws nothing from the seed."""
    solved = solve(rows, F.one_hot(codes, classes).double())
    left_out = solved.leave_one_out(penalty)
    head = solved.fit(left_out.penalty)
    temperature = temperature_of(left_out.predictions, codes)
    loss = float(F.cross_entropy(left_out.predictions / temperature, codes))
    return FittedHead("ridge", head, temperature, loss)


class BayesHead(Regressor):
    """Predicts numbers by a Bayesian linear head on rows of features, whatever those are."""

    posterior_: BayesLinear

    def _rows(self, X: Any) -> Tensor:
        """Features ``[m, d]`` of new inputs, float64."""
        raise NotImplementedError

    def _condition(self, rows: Tensor, targets: Tensor, penalty: Penalty = "auto") -> Self:
        """Fit the head to rows ``[n, d]`` and targets ``[n, k]``."""
        self.posterior_ = fit_bayes(rows, targets, penalty)
        self.log_evidence_ = self.posterior_.log_evidence
        self.noise_, self.scale_ = self.posterior_.noise, self.posterior_.scale
        self.deviation_scale_ = torch.ones_like(self.noise_)
        return self

    def _moments(self, X: Any, spread: Spread) -> tuple[Tensor, Tensor | None]:
        rows, head = self._rows(X), self.posterior_
        if spread == "none":
            return head.mean(rows), None
        return head.mean(rows), getattr(head, spread)(rows)


class ProbeRegressor(BayesHead):
    """Predict numbers by a linear head on a part's frozen features, or on the inputs themselves.

    The head is Bayesian (:mod:`dovetail.adapt.linear_heads`): the variance of its weights and that
    of the noise maximise the evidence.

    Args:
        model: A part or module, which is copied; ``None`` for the inputs as they are.
        at: The cut point to take features at, as for :class:`Probe`.
        penalty: Noise variance over prior variance: a number, several to choose from by evidence,
            or ``"auto"``.
        pooling: How feature maps become rows: ``"average"`` or ``"flatten"``.

    After :meth:`fit`: ``posterior_``; ``log_evidence_``; ``noise_`` and ``scale_``, the two
    variances ``[k]``; ``penalty_``, their ratio.

    >>> line = ProbeRegressor().fit([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.9, 5.1, 7.0])
    >>> mean, std = line.predict([[1.5], [10.0]], return_std=True)
    >>> mean.round(1), bool(std[0] < std[1])
    (array([ 4. , 21.2]), True)
    """

    def __init__(
        self,
        model: Any = None,
        *,
        at: Any = None,
        penalty: Any = "auto",
        pooling: Any = "average",
    ) -> None:
        self.model = model
        self.at = at
        self.penalty = penalty
        self.pooling = pooling

    def fit(self, X: Any, y: Any) -> ProbeRegressor:
        """Fit the head to inputs ``[n, ...]`` and numbers ``[n]`` or ``[n, k]``."""
        self.front_ = front_of(self.model, self.at, self.pooling)
        raw = self.front_.read(X, self, reset=True)
        targets, self.flat_ = as_numbers(y)
        refuse_other_count(raw, targets)
        self.shape_ = self.front_.shape(raw)
        self._condition(self.front_.rows(raw), targets, self.penalty)
        self.penalty_ = self.posterior_.penalty
        return self

    def _rows(self, X: Any) -> Tensor:
        return self.front_.rows(self.front_.read(X, self, reset=False))

    def to_part(self) -> Part:
        """The front and the mean head as one part that gives numbers."""
        check_is_fitted(self)
        origin = Origin(
            how="probe",
            settings={"kind": "bayes", "penalty": self.penalty_.tolist(), "pooling": self.pooling},
            measured={"log evidence": self.log_evidence_},
        )
        posterior = self.posterior_
        return with_head(self.front_, self.shape_, posterior.weights, posterior.intercept, origin)
