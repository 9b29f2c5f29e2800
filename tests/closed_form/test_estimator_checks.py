"""The platonic estimators are scikit-learn estimators with their default arguments."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.closed_form.estimators import PlatonicClassifier, PlatonicRegressor


@parametrize_with_checks([PlatonicClassifier(), PlatonicRegressor()])
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)
