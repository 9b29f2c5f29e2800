"""Look into parts: what they learnt, and why they do or do not transfer."""

from dovetail.lens.similarity import jacobian_similarity
from dovetail.lens.similarity_record import JacobianSimilarity

__all__ = ["JacobianSimilarity", "jacobian_similarity"]
