"""Checks for what others plug in, as scikit-learn's ``check_estimator`` is for estimators.

A builder, an objective or a score that passes behaves like ours everywhere else in dovetail.  Put
one line in your own tests::

    dovetail.testing.check_part("my-network", args={"width": 8})

Each check raises :class:`CheckFailed`, which says what is wrong and how to mend it.
"""

from dovetail.testing.failures import CheckFailed
from dovetail.testing.functions import check_objective, check_score
from dovetail.testing.parts import check_part

__all__ = ["CheckFailed", "check_objective", "check_part", "check_score"]
