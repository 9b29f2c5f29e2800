"""Every estimator of `adapt` is a scikit-learn estimator: quick settings here, defaults if slow."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.adapt.ablr import AdaptiveBayesianRegressor
from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.probe import Probe, ProbeRegressor
from dovetail.adapt.rbf import RBFRegressor
from dovetail.adapt.regressor import LinearizedRegressor

AS_THEY_COME = [Probe(), ProbeRegressor(), LinearizedRegressor()]
COSTLY = [LinearizedClassifier, AdaptiveBayesianRegressor, RBFRegressor]
QUICK = [
    LinearizedClassifier(prior=1.0),
    AdaptiveBayesianRegressor(steps=10),
    RBFRegressor(restarts=0),
]


def too_fine(estimator):
    """Checks with a tolerance that float32 features meet on some processors only."""
    if not isinstance(estimator, LinearizedClassifier):
        return {}
    why = "asks for 1e-7 of float32 features; test_sample_weights.py asks for what they have"
    return {"check_sample_weight_equivalence_on_dense_data": why}


@parametrize_with_checks([*AS_THEY_COME, *QUICK], expected_failed_checks=too_fine)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([kind() for kind in COSTLY], expected_failed_checks=too_fine)
def test_is_a_scikit_learn_estimator_with_its_default_arguments(estimator, check):
    check(estimator)
