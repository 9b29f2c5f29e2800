"""Fit a part to few labels by inference: weights untouched, a posterior added.

``LinearizedClassifier`` and ``LinearizedRegressor`` linearise a network around its weights and
condition the Gaussian process that gives; ``Probe`` and ``ProbeRegressor`` put a linear head on
frozen features.  All are scikit-learn estimators.
"""

from dovetail.adapt.ablr import AdaptiveBayesianRegressor
from dovetail.adapt.calibration_record import (
    Calibration,
    Coverage,
    calibration_of,
    coverage_of,
)
from dovetail.adapt.classifier import LinearizedClassifier
from dovetail.adapt.finetuned import FineTuned
from dovetail.adapt.plan import Plan
from dovetail.adapt.probe import Probe, ProbeRegressor
from dovetail.adapt.rbf import RBFRegressor
from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.linalg.tangent import tangent_gram

__all__ = [
    "AdaptiveBayesianRegressor",
    "Calibration",
    "Coverage",
    "FineTuned",
    "LinearizedClassifier",
    "LinearizedRegressor",
    "Plan",
    "Probe",
    "ProbeRegressor",
    "RBFRegressor",
    "calibration_of",
    "coverage_of",
    "tangent_gram",
]
