"""Numbers by platonic projections."""

from __future__ import annotations

from typing import Any

from sklearn.base import RegressorMixin

from dovetail.closed_form.estimators import PlatonicEstimator
from dovetail.closed_form.targets import NumberTargets

__all__ = ["PlatonicRegressor"]


class PlatonicRegressor(RegressorMixin, PlatonicEstimator):  # type: ignore[misc]
    """Predict numbers by a multi-layer perceptron that is solved for, not trained.

    Arguments and attributes are those of
    :class:`~dovetail.closed_form.classifier.PlatonicClassifier`.  Several columns of numbers are
    fitted by one network.  They are standardised for the fit, so ``distances_`` are in units of
    their variances, added up over the columns.

    >>> import numpy as np
    >>> x = np.linspace(-3, 3, 200)[:, None]
    >>> net = PlatonicRegressor((16, 16), activation="celu").fit(x, np.sin(x[:, 0]))
    >>> bool(abs(net.predict([[1.0]])[0] - np.sin(1.0)) < 0.05)
    True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PlatonicRegressor:
        """Fit to inputs ``[n, ...]`` and numbers ``[n]`` or ``[n, k]``."""
        targets = NumberTargets()
        self._fit(X, y, sample_weight, targets)
        self.flat_ = targets.flat
        return self

    def fit_batches(self, batches: Any, *, distributed: bool = False) -> PlatonicRegressor:
        """Fit to rows that come in batches, as the classifier does."""
        targets = NumberTargets()
        self._fit_batches(batches, targets, distributed)
        self.flat_ = targets.flat
        return self

    def predict(self, X: Any) -> Any:
        """Numbers ``[m]`` or ``[m, k]``, as they were fitted."""
        found = self.outputs(X).numpy()
        return found[:, 0] if self.flat_ else found
