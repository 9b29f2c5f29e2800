"""Numbers predicted from frozen features by Bayesian linear regression, with error bars."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.bayes_linear import BayesLinear, fit_bayes
from dovetail.adapt.front import front_of, with_head
from dovetail.core.errors import SettingsError
from dovetail.measure.estimator_inputs import as_numbers, refuse_other_count
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part

__all__ = ["ProbeRegressor", "told"]


class ProbeRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predict numbers by a linear head on a part's frozen features, or on the inputs themselves.

    The head is Bayesian (:mod:`dovetail.adapt.bayes_linear`): the variance of its weights and that
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> ProbeRegressor:
        """Fit the head to inputs ``[n, ...]`` and numbers ``[n]`` or ``[n, k]``."""
        self.front_ = front_of(self.model, self.at, self.pooling)
        raw = self.front_.read(X, self, reset=True)
        targets, self.flat_ = as_numbers(y)
        refuse_other_count(raw, targets)
        self.shape_ = self.front_.shape(raw)
        self.posterior_: BayesLinear = fit_bayes(self.front_.rows(raw), targets, self.penalty)
        self.log_evidence_ = self.posterior_.log_evidence
        self.noise_, self.scale_ = self.posterior_.noise, self.posterior_.scale
        self.penalty_ = self.posterior_.penalty
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means ``[m]`` or ``[m, k]``; with them their deviations or covariance ``[m, m(, k)]``.

        Deviations and covariance are those of new targets: the noise is in them.
        """
        check_is_fitted(self)
        rows = self.front_.rows(self.front_.read(X, self, reset=False))
        return told(self.posterior_, rows, self.flat_, return_std, return_cov)

    def to_part(self) -> Part:
        """The front and the mean head as one part that gives numbers."""
        check_is_fitted(self)
        origin = Origin(
            how="probe",
            settings={"kind": "bayes", "penalty": self.penalty_.tolist(), "pooling": self.pooling},
            measured={"log evidence": self.log_evidence_},
        )
        found = self.posterior_
        return with_head(self.front_, self.shape_, found.weights, found.intercept, origin)


def told(
    posterior: BayesLinear, rows: Tensor, flat: bool, return_std: bool, return_cov: bool
) -> Any:
    """What ``predict`` returns of a posterior, as arrays; of one column without its axis if flat.

    >>> import torch
    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> told(fit_bayes(x, x), x.double(), True, False, False).round(3)
    array([0., 1., 2.])
    """
    if return_std and return_cov:
        raise SettingsError("ask for deviations or for the covariance, not for both")

    def shaped(values: Tensor) -> Any:
        return (values[..., 0] if flat else values).numpy()

    mean = shaped(posterior.mean(rows))
    if return_std:
        return mean, shaped(posterior.variance(rows).sqrt())
    if return_cov:
        return mean, shaped(posterior.covariance(rows))
    return mean
