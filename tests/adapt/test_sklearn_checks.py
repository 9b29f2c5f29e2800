"""Every estimator of `adapt` is a scikit-learn estimator: quick settings here, defaults if slow."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

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


TOO_FINE = "check_sample_weight_equivalence_on_dense_data"
"""It asks for 1e-7 of float32 features, which some processors meet and others do not: it is neither
passed nor failed for sure.  ``test_sample_weights.py`` asks for what those features have."""


def name_of(check):
    return getattr(check, "func", check).__name__


def run(estimator, check):
    linearized = isinstance(estimator, LinearizedClassifier | LinearizedRegressor)
    if linearized and name_of(check) == TOO_FINE:
        pytest.skip("test_sample_weights.py asks for it, with the digits of float32")
    check(estimator)


@parametrize_with_checks([*AS_THEY_COME, *QUICK])
def test_is_a_scikit_learn_estimator(estimator, check):
    run(estimator, check)


@pytest.mark.slow
@parametrize_with_checks([kind() for kind in COSTLY])
def test_is_a_scikit_learn_estimator_with_its_default_arguments(estimator, check):
    run(estimator, check)


def test_only_one_check_is_left_out_and_it_is_there():
    every = [name_of(check) for _, check in estimator_checks_generator(LinearizedClassifier())]
    assert every.count(TOO_FINE) == 1
