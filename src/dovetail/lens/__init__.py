"""Look into parts: what they learnt, and why they do or do not transfer."""

from dovetail.lens.curvature import HessianSpectrum, hessian_spectrum
from dovetail.lens.gradients import (
    GradientFlow,
    LossVariation,
    WeightProjection,
    gradient_flow,
    loss_variation,
    weight_projection,
)
from dovetail.lens.input_records import DecisionRegions, DiscriminativeIntervals, GradientField
from dovetail.lens.input_space import decision_regions, discriminative_intervals, gradient_field
from dovetail.lens.inspection import inspect
from dovetail.lens.inspection_record import Inspection
from dovetail.lens.landscape import Landscape, landscape
from dovetail.lens.matching import matched_weights
from dovetail.lens.profile import profile, profile_over
from dovetail.lens.profile_record import Profile, ProfileOver
from dovetail.lens.similarity import JacobianSimilarity, jacobian_similarity
from dovetail.lens.study_record import TransferRun, TransferStudy
from dovetail.lens.theory import gram_theory
from dovetail.lens.theory_record import GramTheory
from dovetail.lens.transfer_study import transfer_study
from dovetail.lens.weights import Deviation, WeightMap, deviation, weight_map
from dovetail.measure.entropy import pure_entropy, pure_voronoi_map, selection_entropy
from dovetail.measure.neighbours import k_filter, k_redundancy
from dovetail.measure.separation import class_scatter, dead_features, least_squares_distance
from dovetail.measure.weights import stable_rank, weight_entropy

__all__ = [
    "DecisionRegions",
    "Deviation",
    "DiscriminativeIntervals",
    "GradientField",
    "GradientFlow",
    "GramTheory",
    "HessianSpectrum",
    "Inspection",
    "JacobianSimilarity",
    "Landscape",
    "LossVariation",
    "Profile",
    "ProfileOver",
    "TransferRun",
    "TransferStudy",
    "WeightMap",
    "WeightProjection",
    "class_scatter",
    "dead_features",
    "decision_regions",
    "deviation",
    "discriminative_intervals",
    "gradient_field",
    "gradient_flow",
    "gram_theory",
    "hessian_spectrum",
    "inspect",
    "jacobian_similarity",
    "k_filter",
    "k_redundancy",
    "landscape",
    "least_squares_distance",
    "loss_variation",
    "matched_weights",
    "profile",
    "profile_over",
    "pure_entropy",
    "pure_voronoi_map",
    "selection_entropy",
    "stable_rank",
    "transfer_study",
    "weight_entropy",
    "weight_map",
    "weight_projection",
]
