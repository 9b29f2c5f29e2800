"""Weights by linear algebra: no gradient, no step size.

``PlatonicClassifier`` and ``PlatonicRegressor`` are scikit-learn estimators; ``platonic`` is the
recurrence they fit by; ``stitch`` maps the features of one network to those of another.

>>> from dovetail import closed_form
>>> closed_form.stitch.__name__
'stitch'
"""

from dovetail.closed_form.estimators import PlatonicClassifier, PlatonicRegressor
from dovetail.closed_form.fit_record import PlatonicFit
from dovetail.closed_form.patches import patch_layer
from dovetail.closed_form.platonic import LayerFit, Platonic, platonic
from dovetail.closed_form.rows import Block, HeldRows, StreamedRows
from dovetail.closed_form.stitch import stitch

__all__ = [
    "Block",
    "HeldRows",
    "LayerFit",
    "Platonic",
    "PlatonicClassifier",
    "PlatonicFit",
    "PlatonicRegressor",
    "StreamedRows",
    "patch_layer",
    "platonic",
    "stitch",
]
