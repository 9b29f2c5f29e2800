"""Weights by linear algebra: no gradient, no labels, no step size.

>>> from dovetail import closed_form
>>> closed_form.stitch.__name__
'stitch'
"""

from dovetail.closed_form.stitch import stitch

__all__ = ["stitch"]
