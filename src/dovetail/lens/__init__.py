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
from dovetail.lens.landscape import Landscape, landscape
from dovetail.lens.similarity import JacobianSimilarity, jacobian_similarity
from dovetail.lens.weights import Deviation, WeightMap, deviation, weight_map

__all__ = [
    # weights
    "Deviation",
    "WeightMap",
    "deviation",
    "weight_map",
    # curvature
    "HessianSpectrum",
    "hessian_spectrum",
    # landscapes
    "Landscape",
    "landscape",
    # gradients
    "GradientFlow",
    "LossVariation",
    "WeightProjection",
    "gradient_flow",
    "loss_variation",
    "weight_projection",
    # Jacobians
    "JacobianSimilarity",
    "jacobian_similarity",
]
