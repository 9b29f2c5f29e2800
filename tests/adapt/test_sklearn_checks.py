"""Every competitor is a scikit-learn estimator with its default arguments."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.adapt.ablr import AdaptiveBayesianRegressor
from dovetail.adapt.probe import Probe
from dovetail.adapt.probe_regressor import ProbeRegressor
from dovetail.adapt.rbf import RBFRegressor


@parametrize_with_checks([Probe(), ProbeRegressor(), AdaptiveBayesianRegressor(), RBFRegressor()])
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)
