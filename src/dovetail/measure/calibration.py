r"""Whether probabilities mean what they say: tensors or arrays in, float64 numbers out.

Probabilities :math:`p \in \mathbb{R}^{n \times c}`, labels :math:`y \in \{0, \dots, c-1\}^n`.  Of
each row, the confidence :math:`q_i = \max_j p_{ij}` and whether the most probable class is right,
:math:`r_i = [\arg\max_j p_{ij} = y_i]`.  A classifier is calibrated when of all answers given with
confidence q a share q is right: :math:`P(r = 1 \mid q) = q`.

The negative log-likelihood and the Brier score are proper: no other probabilities do better in
expectation than the true ones.  The calibration error is not (always answering with the class
shares has none), so it is read beside an accuracy, never alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator
from dovetail.measure.arrays import checked_labels, checked_probabilities

__all__ = [
    "Bin",
    "Scheme",
    "brier",
    "ece_by_luck",
    "expected_calibration_error",
    "nll",
    "overconfidence",
    "reliability",
]

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
    :func:`dovetail.measure.outputs.class_measures`.

    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p, y = _checked(probs, labels)
    return float(-p.gather(1, y[:, None]).log().mean())


def brier(probs: Any, labels: Any) -> float:
    r"""Brier score :math:`\frac1n \sum_i \sum_j (p_{ij} - [j = y_i])^2`, lower is better.

    The sum over all classes, as Brier defined it, hence from 0 to 2.  For two classes it is twice
    the one-column form that some libraries report.

    >>> brier([[0.0, 1.0], [0.0, 1.0]], [0, 1])
    1.0
    """
    p, y = _checked(probs, labels)
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
    counts = torch.bincount(place, minlength=len(edges) - 1).tolist()
    sure = torch.bincount(place, confidence, minlength=len(edges) - 1).tolist()
    hits = torch.bincount(place, right, minlength=len(edges) - 1).tolist()
    ends = edges.tolist()
    return tuple(
        Bin(low, high, n, q / n, r / n) if n else Bin(low, high, 0)
        for low, high, n, q, r in zip(ends[:-1], ends[1:], counts, sure, hits, strict=True)
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
    found = reliability(probs, labels, bins, scheme=scheme)
    return sum(each.count * abs(each.gap) for each in found) / sum(each.count for each in found)


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
    found = torch.empty(draws, dtype=torch.float64)
    for i in range(draws):
        right = torch.rand(len(confidence), generator=random, dtype=torch.float64) < confidence
        # n_b times the gap of a bin is the sum of its members' gaps
        found[i] = torch.bincount(place, confidence - right.double()).abs().sum() / len(place)
    return float(found.mean()), float(found.quantile(0.95))


def _checked(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    p = checked_probabilities(probs)
    return p, checked_labels(labels, *p.shape)


def _answers(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """The confidence of each answer ``[n]`` and 1 where it is right ``[n]``."""
    p, y = _checked(probs, labels)
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
