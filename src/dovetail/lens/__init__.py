"""Look into parts: what they learnt, and why they do or do not transfer."""

from dovetail.lens.curvature import HessianSpectrum, hessian_spectrum
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
    # Jacobians
    "JacobianSimilarity",
    "jacobian_similarity",
]
