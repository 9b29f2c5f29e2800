"""Look into parts: what they learnt, and why they do or do not transfer."""

from dovetail.lens.similarity import JacobianSimilarity, jacobian_similarity

__all__ = ["JacobianSimilarity", "jacobian_similarity"]
