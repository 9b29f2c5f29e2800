r"""One number that makes a classifier's confidence honest: its temperature.

Dividing logits :math:`z \in \mathbb{R}^{n \times c}` by :math:`T > 0` before the softmax leaves
every answer as it is and changes only how sure it is (Guo et al., 2017): T above 1 makes it more
modest, below 1 more sure.  In :math:`\beta = 1 / T` the negative log-likelihood

.. math::
    \ell(\beta) = \frac1n \sum_i \log \sum_j e^{\beta z_{ij}} - \beta z_{i y_i} , \qquad
    \ell'(\beta) = \frac1n \sum_i \mathbb{E}_{j \sim p_i} z_{ij} - z_{i y_i} , \qquad
    \ell''(\beta) = \frac1n \sum_i \operatorname{var}_{j \sim p_i} z_{ij} \ge 0

is convex, so its slope has one root, found between bounds.  All in float64.
"""

from __future__ import annotations

import math
from typing import Any

from scipy.optimize import brentq
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.arrays import checked_labels, checked_probabilities, doubles

__all__ = ["fit_temperature", "log_probabilities", "tempered"]

_LEAST = 1e-38


def fit_temperature(logits: Any, labels: Any, *, least: float = 0.05, most: float = 20.0) -> float:
    """The temperature with the least negative log-likelihood of logits ``[n, c]``.

    Fit it on examples that neither trained nor test the classifier.  Of probabilities, pass their
    :func:`log_probabilities`.

    Returns:
        The temperature, between ``least`` and ``most``.  Where every answer is right the
        likelihood only grows with confidence and the result is ``least``: so few or so easy
        examples say nothing about how often the classifier errs, and 1 is the safer choice.
        Where the answers are worse than a guess it is ``most``.  Logits without any difference
        give 1.

    >>> logits = [[2.0, 0.0]] * 10
    >>> labels = [0] * 8 + [1] * 2  # sure of 88 %, right in 80 %
    >>> temperature = fit_temperature(logits, labels)
    >>> round(temperature, 3), round(float(tempered(logits, temperature)[0, 0]), 3)
    (1.443, 0.8)
    """
    if not 0 < least < most < math.inf:
        raise SettingsError(f"bounds must be 0 < least < most, got {least} and {most}")
    z = _logits(logits)
    if len(z) == 0:
        raise TaskError("a temperature is fitted to at least one example, there are none")
    y = checked_labels(labels, *z.shape)
    z = z - z.mean(1, keepdim=True)
    if not z.any():
        return 1.0
    true = z.gather(1, y[:, None])[:, 0]

    def slope(log_inverse: float) -> float:
        p = (math.exp(log_inverse) * z).softmax(1)
        return float(((p * z).sum(1) - true).mean())

    coldest, hottest = -math.log(least), -math.log(most)
    if slope(coldest) <= 0:
        return least
    if slope(hottest) >= 0:
        return most
    return math.exp(-brentq(slope, hottest, coldest, xtol=1e-12))


def tempered(logits: Any, temperature: float) -> Tensor:
    """The probabilities at a temperature ``[n, c]``, float64.

    >>> tempered([[0.0, 2.0]], 2.0).round(decimals=4)
    tensor([[0.2689, 0.7311]], dtype=torch.float64)
    """
    if not 0 < temperature < math.inf:
        raise SettingsError(f"a temperature is above zero and finite, got {temperature}")
    return (_logits(logits) / temperature).softmax(1)


def log_probabilities(probs: Any) -> Tensor:
    """Probabilities ``[n, c]`` as logits, float64: their softmax gives them back.

    What is less probable than 1e-38 counts as that: near there float32 ends, and a zero has no
    logarithm.

    >>> tempered(log_probabilities([[0.2, 0.8]]), 1.0).tolist()
    [[0.2, 0.8]]
    """
    return checked_probabilities(probs).clamp(min=_LEAST).log()


def _logits(logits: Any) -> Tensor:
    """Finite rows ``[n, c]`` of at least two classes, float64 on the CPU."""
    z = doubles(logits)
    if z.ndim != 2 or z.shape[1] < 2:
        raise TaskError(
            "logits are rows [n, c] with a column for each of at least two classes; got "
            f"{list(z.shape)}. Of one column z, stack 0 and z"
        )
    if not z.isfinite().all():
        raise TaskError("the logits hold NaN or infinite values; leave masked classes out")
    return z
