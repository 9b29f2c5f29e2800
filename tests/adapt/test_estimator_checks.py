"""The linearised estimators are scikit-learn estimators with their default arguments."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.regressor import LinearizedRegressor


@parametrize_with_checks([LinearizedRegressor(), LinearizedClassifier()])
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)
