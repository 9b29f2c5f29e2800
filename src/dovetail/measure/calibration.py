r"""Whether probabilities mean what they say, and the temperature that makes them: float64 numbers.

Probabilities :math:`p \in \mathbb{R}^{n \times c}`, labels :math:`y \in \{0, \dots, c-1\}^n`.  Of
each row, the confidence :math:`q_i = \max_j p_{ij}` and whether the most probable class is right,
:math:`r_i = [\arg\max_j p_{ij} = y_i]`.  A classifier is calibrated when of all answers given with
confidence q a share q is right: :math:`P(r = 1 \mid q) = q`.

The negative log-likelihood and the Brier score are proper: no other probabilities do better in
expectation than the true ones.  The calibration error is not (always answering with the class
shares has none), so it is read beside an accuracy, never alone.

**Temperature.**  Dividing logits :math:`z \in \mathbb{R}^{n \times c}` by :math:`T > 0` before the
softmax leaves every answer as it is and changes only how sure it is (Guo et al., 2017): T above 1
makes it more modest, below 1 more sure.  In :math:`\beta = 1 / T` the negative log-likelihood

.. math::
    \ell(\beta) = \frac1n \sum_i \log \sum_j e^{\beta z_{ij}} - \beta z_{i y_i} , \qquad
    \ell'(\beta) = \frac1n \sum_i \mathbb{E}_{j \sim p_i} z_{ij} - z_{i y_i} , \qquad
    \ell''(\beta) = \frac1n \sum_i \operatorname{var}_{j \sim p_i} z_{ij} \ge 0

is convex, so its slope has one root, found between bounds.

Callers hand over tensors, arrays or lists.  They become float64 on the CPU: a measure is small, and
not every device has doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator

Scheme = Literal["width", "mass"]


@dataclass(frozen=True)
class Bin:
    """The examples with a confidence in ``(low, high]``: how many, how sure, how often right.

    An empty bin has neither a confidence nor an accuracy.

    >>> Bin(low=0.8, high=0.9, count=20, confidence=0.85, accuracy=0.7).gap
    0.15...
    """

    low: float
    high: float
    count: int
    confidence: float | None = None
    accuracy: float | None = None

    @property
    def gap(self) -> float:
        """Mean confidence less accuracy: above zero is over-confident; 0 for an empty bin."""
        if self.confidence is None or self.accuracy is None:
            return 0.0
        return self.confidence - self.accuracy


def nll(probs: Any, labels: Any) -> float:
    r"""Negative log-likelihood :math:`-\frac1n \sum_i \log p_{i y_i}` in nats, lower is better.

    Infinite when a true class was given probability zero, which float32 does to what is less
    probable than :math:`10^{-45}`; from logits, take
    :func:`dovetail.measure.evaluate.class_measures`.

    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p, y = _rows_and_labels(probs, labels)
    return float(-p.gather(1, y[:, None]).log().mean())


def brier(probs: Any, labels: Any) -> float:
    r"""Brier score :math:`\frac1n \sum_i \sum_j (p_{ij} - [j = y_i])^2`, lower is better.

    The sum over all classes, as Brier defined it, hence from 0 to 2.  For two classes it is twice
    the one-column form that some libraries report.

    >>> brier([[0.0, 1.0], [0.0, 1.0]], [0, 1])
    1.0
    """
    p, y = _rows_and_labels(probs, labels)
    return float((p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())


def overconfidence(probs: Any, labels: Any) -> float:
    r"""Mean confidence less accuracy :math:`\frac1n \sum_i (q_i - r_i)`: negative is too modest.

    >>> overconfidence([[0.25, 0.75], [0.25, 0.75]], [0, 1])
    0.25
    """
    confidence, right = _answers(probs, labels)
    return float((confidence - right).mean())


def reliability(
    probs: Any, labels: Any, bins: int = 15, *, scheme: Scheme = "width"
) -> tuple[Bin, ...]:
    """The examples sorted into bins by confidence, lowest first.

    ``"width"`` cuts [0, 1] into equal intervals, closed on the right.  ``"mass"`` puts about
    equally many examples into each; equal confidences stay together, so there may be fewer bins,
    and the order of the examples never matters.

    >>> found = reliability([[0.1, 0.9], [0.3, 0.7], [0.2, 0.8]], [1, 0, 1], bins=2, scheme="mass")
    >>> [(b.count, round(b.confidence, 3), b.accuracy) for b in found]
    [(1, 0.7, 0.0), (2, 0.85, 1.0)]
    """
    confidence, right = _answers(probs, labels)
    edges = _edges(confidence, bins, scheme)
    place = _places(confidence, edges)
    counts, sure, hits = (
        torch.bincount(place, weights, minlength=len(edges) - 1).tolist()
        for weights in (None, confidence, right)
    )
    return tuple(
        Bin(low, high, n, q / n, r / n) if n else Bin(low, high, 0)
        for (low, high), n, q, r in zip(pairwise(edges.tolist()), counts, sure, hits, strict=True)
    )


def expected_calibration_error(
    probs: Any, labels: Any, bins: int = 15, *, scheme: Scheme = "width"
) -> float:
    r"""Expected calibration error (Guo et al., 2017) over the bins of :func:`reliability`.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \, \lvert \bar q_b - \bar r_b \rvert

    With few examples it is far above zero even for a calibrated classifier: :func:`ece_by_luck`.

    >>> expected_calibration_error([[0.25, 0.75], [0.5, 0.5]], [1, 1])
    0.375
    """
    diagram = reliability(probs, labels, bins, scheme=scheme)
    return sum(each.count * abs(each.gap) for each in diagram) / sum(each.count for each in diagram)


def ece_by_luck(
    probs: Any, bins: int = 15, *, scheme: Scheme = "width", draws: int = 500, seed: int = 0
) -> tuple[float, float]:
    r"""The calibration error that luck alone gives: its mean, and what 95 of 100 draws stay below.

    Keeps the confidences and draws :math:`r_i \sim \mathrm{Bernoulli}(q_i)`, as if they were true.
    An error below the second number does not contradict calibration.

    >>> few, many = torch.full((20, 2), 0.5), torch.full((2000, 2), 0.5)
    >>> [round(ece_by_luck(rows)[0], 2) for rows in (few, many)]
    [0.08, 0.01]
    """
    if draws < 1:
        raise SettingsError(f"draws must be at least 1, got {draws}")
    confidence = checked_probabilities(probs).amax(1)
    edges = _edges(confidence, bins, scheme)
    place = _places(confidence, edges)
    random = generator(seed, "ece")
    errors = torch.empty(draws, dtype=torch.float64)
    for i in range(draws):
        right = torch.rand(len(confidence), generator=random, dtype=torch.float64) < confidence
        # n_b times the gap of a bin is the sum of its members' gaps
        errors[i] = torch.bincount(place, confidence - right.double()).abs().sum() / len(place)
    return float(errors.mean()), float(errors.quantile(0.95))


def _rows_and_labels(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    p = checked_probabilities(probs)
    return p, checked_labels(labels, *p.shape)


def _answers(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """The confidence of each answer ``[n]`` and 1 where it is right ``[n]``."""
    p, y = _rows_and_labels(probs, labels)
    confidence, answer = p.max(1)
    return confidence, (answer == y).double()


def _edges(confidence: Tensor, bins: int, scheme: Scheme) -> Tensor:
    """The ends of the bins ``[bins + 1]``, from 0 to 1."""
    if bins < 1:
        raise SettingsError(f"bins must be at least 1, got {bins}")
    if scheme == "width":
        return torch.linspace(0.0, 1.0, bins + 1, dtype=torch.float64)
    if scheme != "mass":
        raise SettingsError(f"scheme is 'width' or 'mass', not {scheme!r}")
    # The largest member of each bin is its upper end: equal confidences cannot be torn apart.
    last = torch.arange(1, bins) * len(confidence) // bins - 1
    inner = confidence.sort().values[last[last >= 0]]
    inner = torch.unique_consecutive(inner[inner < confidence.max()])
    return torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])


def _places(confidence: Tensor, edges: Tensor) -> Tensor:
    """The bin of each confidence ``[n]``; one on an edge belongs to the bin below it."""
    return torch.bucketize(confidence, edges[1:-1])


_LEAST = 1e-38


def fit_temperature(
    logits: Any,
    labels: Any,
    *,
    least: float = 0.05,
    most: float = 20.0,
    unknown: float = 0.0,
    weights: Tensor | None = None,
) -> float:
    """The temperature with the least negative log-likelihood of logits ``[n, c]``.

    Fit it on examples that neither trained nor test the classifier.  Of probabilities, pass their
    :func:`log_probabilities`.

    Args:
        logits: Finite rows.
        labels: Class indices ``[n]``.
        least: The lowest temperature to find.
        most: The highest.
        unknown: So many further rows, of which nothing is known, count among them: a target is
            then ``(n + unknown / c) / (n + unknown)`` for the label's own class, and a few
            examples told apart without a mistake do not make it certain.
        weights: How many examples each row ``[n]`` stands for; one unless said.

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
    counts = z.new_ones(len(z)) if weights is None else weights
    total = float(counts.sum())
    true = z.gather(1, y[:, None])[:, 0] * (total / (total + unknown))  # z has mean 0

    def slope(log_inverse: float) -> float:
        p = (math.exp(log_inverse) * z).softmax(1)
        return float(counts @ ((p * z).sum(1) - true)) / total

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


_SUM = 1e-3
"""Rows may sum to one this closely: what half-precision softmax leaves."""


def doubles(values: Any) -> Tensor:
    """Numbers of any dtype and device, detached; what holds something else is refused.

    >>> doubles([0.1, 2])
    tensor([0.1000, 2.0000], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        return values.detach().cpu().double()
    try:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError):
        raise TaskError(f"expected a table of numbers, got {type(values).__name__}") from None


def checked_labels(labels: Any, rows: int, classes: int) -> Tensor:
    """Class indices ``[n]`` of as many rows, int64; anything else is refused.

    >>> checked_labels([0, 2], rows=2, classes=3)
    tensor([0, 2])
    """
    codes = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if codes.dtype.kind not in "iub" or codes.shape != (rows,):
        raise TaskError(
            f"labels are one class index a row, integers [{rows}]; got {codes.dtype} "
            f"{list(codes.shape)}. Of names, take their places in the classifier's classes_"
        )
    y = torch.from_numpy(codes.astype(np.int64))
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise TaskError(
            f"labels must lie between 0 and {classes - 1}, the columns of the probabilities; "
            f"found {int(y.min())} to {int(y.max())}"
        )
    return y


def checked_probabilities(probs: Any) -> Tensor:
    """Rows that are distributions over at least two classes ``[n, c]``, float64 on the CPU.

    >>> checked_probabilities([[0.25, 0.75]])
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    p = doubles(probs)
    if p.ndim != 2 or p.shape[1] < 2:
        raise TaskError(
            "probabilities are rows [n, c] with a column for each of at least two classes; got "
            f"{list(p.shape)}. Of one column p, stack 1 - p and p"
        )
    if len(p) == 0:
        raise TaskError("there are no examples: calibration is measured on at least one")
    if not p.isfinite().all():
        raise TaskError("the probabilities hold NaN or infinite values; look for the first of them")
    if p.min() < 0 or (p.sum(1) - 1).abs().max() > _SUM:
        raise TaskError(
            "these are no probabilities: a row must be nonnegative and sum to one, found a least "
            f"value of {float(p.min()):.4g} and sums from {float(p.sum(1).min()):.4g} to "
            f"{float(p.sum(1).max()):.4g}. Of logits take the softmax first"
        )
    return p
