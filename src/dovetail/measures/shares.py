r"""How sure is a share: so many successes of so many trials.

The interval is the exact one of Clopper and Pearson (1934): all probabilities :math:`p` under which
neither so few nor so many successes :math:`k` of :math:`n` would be rarer than
:math:`\alpha / 2`.  Binomial tails are incomplete beta functions, so its ends are their quantiles,

.. math::
    p_\text{low} = B^{-1}_{\alpha/2}(k, n - k + 1) , \qquad
    p_\text{high} = B^{-1}_{1-\alpha/2}(k + 1, n - k) .

It is never too narrow, which matters for the few examples that one bin of a diagram holds.
"""

from __future__ import annotations

from scipy.special import betaincinv

from dovetail.core.errors import SettingsError, TaskError

__all__ = ["share_interval"]


def share_interval(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The ends of the exact interval for the probability of a success.

    >>> [round(bound, 3) for bound in share_interval(18, 20)]
    [0.683, 0.988]
    """
    if not 0 < confidence < 1:
        raise SettingsError(f"confidence must be above 0 and below 1, got {confidence}")
    if not 0 <= successes <= trials or trials < 1:
        raise TaskError(f"{successes} successes of {trials} trials cannot be")
    tail, failures = (1 - confidence) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high
