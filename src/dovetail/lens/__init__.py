"""Look into parts: what they learnt, and why they do or do not transfer."""

from dovetail.lens.similarity import JacobianSimilarity, jacobian_similarity
from dovetail.lens.theory import gram_theory
from dovetail.lens.theory_record import GramTheory

__all__ = ["GramTheory", "JacobianSimilarity", "gram_theory", "jacobian_similarity"]
