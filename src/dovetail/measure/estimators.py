r"""One interface for all estimators: those of classes, and those of numbers.

An estimator fits, and says what it computes: logits, or means and how far from them numbers may be.
All else is here, the same for each: predictions, probabilities, error bars, and ``calibrate``,
which makes them honest by data that were not fitted to.  Estimators that are networks also have
``to_part``, the network as a part that knows its classes by name.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.calibration import fit_temperature
from dovetail.measure.estimator_inputs import as_numbers, codes_among, refuse_other_count

Spread = Literal["none", "variance", "covariance"]
"""What is told beside means: nothing, a variance each, or covariances among the inputs."""


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Classes with probabilities :math:`\operatorname{softmax}(z / T)` of logits :math:`z`.

    An estimator gives :meth:`logits`; its ``fit`` sets ``classes_`` and ``temperature_``.
    ``score`` is the accuracy.
    """

    classes_: np.ndarray[Any, Any]
    temperature_: float
    _fitted_temperature = 1.0
    """What ``fit`` sets ``temperature_`` to."""

    def logits(self, X: Any) -> Tensor:
        """``[m, c]``, float64, a column a class, before any temperature."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> Any:
        """The logits ``[m, c]``; for two classes the second less the first ``[m]``."""
        logits = self.logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def predict(self, X: Any) -> Any:
        """The class of the highest logit, as the labels spelt it."""
        chosen = self.logits(X).argmax(1).numpy()  # first, so that an unfitted one says so
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities ``[m, c]`` in the order of ``classes_``."""
        logits = self.logits(X)
        return (logits / self.temperature_).softmax(1).numpy()

    def calibrate(self, X: Any, y: Any) -> Self:
        """Set ``temperature_`` by labels that were not fitted to: the one of the least log loss.

        Predictions stay as they are.  Where all of them are right nothing is learnt of mistakes:
        the temperature is then that of ``fit``, with a warning.
        """
        logits = self.logits(X)
        codes = codes_among(y, self.classes_)
        refuse_other_count(logits, codes)
        self.temperature_ = self._temperature_for(logits, codes)
        return self

    def _temperature_for(self, logits: Tensor, codes: Tensor) -> float:
        before = self._fitted_temperature
        factor = fit_temperature(logits / before, codes) if has_mistakes(logits, codes) else 1.0
        return before * factor


class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Numbers, and how sure they are.

    An estimator gives :meth:`_moments`, or without error bars of its own :meth:`_means`.  Its
    ``fit`` sets ``flat_`` (whether targets came as ``[n]``) and ``deviation_scale_``, a factor for
    each column of targets: ones, or None without error bars.  ``score`` is :math:`R^2`.
    """

    flat_: bool
    deviation_scale_: Tensor | None = None

    def _means(self, X: Any) -> Tensor:
        """Of new targets, ``[m, k]``, float64."""
        raise NotImplementedError

    def _moments(self, X: Any, spread: Spread) -> tuple[Tensor, Tensor | None]:
        """Means ``[m, k]``; and variances ``[m, k]`` or covariances ``[m, m, k]`` if asked for."""
        means = self._means(X)
        if spread == "none":
            return means, None
        if spread == "variance":
            return means, torch.ones_like(means)
        return means, torch.eye(len(means), dtype=means.dtype)[:, :, None].repeat(
            1, 1, means.shape[1]
        )

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means ``[m]`` or ``[m, k]``; with them their deviations or covariance ``[m, m(, k)]``.

        Deviations and covariance are those of new targets: the noise is in them.
        """
        check_is_fitted(self)
        mean, variance = self._moments(X, self._spread_asked(return_std, return_cov))
        if variance is None or self.deviation_scale_ is None:
            return self._shaped(mean)
        variance = variance * self.deviation_scale_.square()
        return self._shaped(mean), self._shaped(variance.sqrt() if return_std else variance)

    def calibrate(self, X: Any, y: Any) -> Self:
        r"""Set how wide error bars are by targets that were not fitted to; means stay.

        ``deviation_scale_`` multiplies the deviations of each column.  It becomes the one of the
        least Gaussian log loss, :math:`s^2 = \frac1n \sum_i (y_i - \mu_i)^2 / \sigma_i^2`: as if
        the prior's variance and the noise were both :math:`s^2` times what they are.  An estimator
        without error bars of its own gets a deviation for each column, its root mean squared error
        here.
        """
        check_is_fitted(self)
        targets, _ = as_numbers(y)
        before = self.deviation_scale_
        said = self.predict(X) if before is None else self.predict(X, return_std=True)
        mean, std = (said, np.ones_like(said)) if before is None else said
        refuse_other_count(mean, targets)
        if mean.size != targets.numel():
            raise TaskError(
                f"targets have {targets.shape[1]} columns, this predicts {mean.size // len(mean)}"
            )
        shares = (targets.numpy() - mean.reshape(targets.shape)) / std.reshape(targets.shape)
        factor = torch.from_numpy(shares).square().mean(0).sqrt()
        if bool((factor > 0).all()):
            self.deviation_scale_ = factor if before is None else before * factor
        else:
            warnings.warn(
                "a column of targets to calibrate by is met exactly, and error bars of nothing are "
                "none; they stay as they were. Give more targets, or noisier ones.",
                stacklevel=2,
            )
        return self

    def _spread_asked(self, return_std: bool, return_cov: bool) -> Spread:
        if return_std and return_cov:
            raise SettingsError("ask for the deviations or for the covariance, not for both")
        if not (return_std or return_cov):
            return "none"
        if self.deviation_scale_ is None:
            raise SettingsError(
                f"a {type(self).__name__} has no error bars of its own; calibrate(X, y) it by "
                "targets that it was not fitted to"
            )
        return "variance" if return_std else "covariance"

    def _shaped(self, values: Tensor) -> Any:
        """As arrays, and as the targets came: of ``[n]`` without the last axis."""
        return (values[..., 0] if self.flat_ else values).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def has_mistakes(scores: Tensor, codes: Tensor) -> bool:
    """Whether scores ``[n, c]`` are highest for another class than the label's, at least once.

    If not, no temperature is too low, and there is nothing to calibrate by: it warns.

    >>> has_mistakes(torch.eye(2), torch.tensor([0, 0]))
    True
    """
    wrong = bool((scores.argmax(1) != codes).any())
    if not wrong:
        warnings.warn(
            "every label to calibrate by is predicted right, so no temperature is too low; it "
            "stays what fit found. Give more labels, or harder ones.",
            stacklevel=4,
        )
    return wrong


def temperature_of(scores: Tensor, codes: Tensor, weights: Tensor | None = None) -> float:
    """What to divide scores ``[n, c]`` by so that their softmax says how sure they are.

    Scores of least squares are no logits and have any unit: the search is relative to their spread.
    They must be of rows that were not fitted to; one with a weight (``[n]``) counts as so many.
    One more row, of which nothing is known, keeps the temperature above zero when few rows are told
    apart without a mistake.

    >>> told = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64).repeat(50, 1)
    >>> sure = temperature_of(told, torch.tensor([0, 1]).repeat(50))
    >>> misled = temperature_of(told, torch.tensor([0, 1, 0, 1, 1, 0]).repeat(17)[:100])
    >>> sure < misled
    True
    """
    spread = float(scores.std(1).mean()) or 1.0
    least, most = spread / math.exp(7.0), spread * math.exp(7.0)
    return fit_temperature(scores, codes, least=least, most=most, unknown=1.0, weights=weights)
