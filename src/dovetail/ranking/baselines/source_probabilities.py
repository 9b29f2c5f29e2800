r"""Scores of a source classifier: how well its own probabilities foretell the target's labels.

The part must come with its head: :math:`\theta_i(z)` is the probability that the source network
gives its class :math:`z` on target example :math:`i`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.ranking.inputs import as_rows, class_codes, refuse_other_count

__all__ = ["leep", "nce"]

_MOST_CELLS = 200_000_000  # of the table classes × source classes: 1.6 GB


def leep(source_probs: Any, labels: Any) -> float:
    r"""LEEP: the mean log-likelihood of the labels under the expected empirical predictor.

    .. math::
        P(y, z) = \tfrac1n \sum_i [y_i = y]\,\theta_i(z), \qquad
        \mathrm{LEEP} = \tfrac1n \sum_i \log \sum_z P(y_i \mid z)\,\theta_i(z) \le 0 .

    A source class without any mass gives :math:`P(y \mid z) = 0/0`; its term is 0, since
    :math:`\theta_i(z) = 0` for every example.

    Args:
        source_probs: ``[n, classes of the source]``, rows that sum to one.
        labels: ``[n]``.

    >>> leep([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [5, 9])  # the third source class has no mass
    0.0
    """
    theta, codes, count = _checked(source_probs, labels)
    if count * theta.shape[1] > _MOST_CELLS:
        raise TaskError(
            f"LEEP keeps a table of {count} × {theta.shape[1]} classes, which is too large; use nce"
        )
    joint = theta.new_zeros(count, theta.shape[1]).index_add_(0, codes, theta)
    mass = joint.sum(0)
    given_source = joint / torch.where(mass > 0, mass, 1.0)
    likelihood = (given_source[codes] * theta).sum(1)
    return float(likelihood.log().mean())


def nce(source_probs: Any, labels: Any) -> float:
    r"""NCE: the negative conditional entropy of the labels, given the source's hard decisions.

    .. math:: z_i = \arg\max_z \theta_i(z), \qquad
        -H(Y \mid Z) = \sum_{y,z} P(y, z) \log \frac{P(y, z)}{P(z)} \in [-\log C, 0].

    Only cells that occur are counted, so :math:`0 \log 0 = 0` without any epsilon.

    >>> nce([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [0, 0, 1])
    0.0
    """
    theta, codes, _ = _checked(source_probs, labels)
    decision = theta.argmax(1)
    cells, counts = torch.unique(codes * theta.shape[1] + decision, return_counts=True)
    joint = counts.double()  # whole numbers would divide to float32
    marginal = torch.bincount(decision, minlength=theta.shape[1])[cells % theta.shape[1]]
    return float((joint * (joint / marginal).log()).sum() / len(codes))


def _checked(source_probs: Any, labels: Any) -> tuple[Tensor, Tensor, int]:
    theta = as_rows(source_probs, "source_probs")
    codes, count = class_codes(labels)
    refuse_other_count(theta, codes, "source_probs")
    # half-precision softmax misses one by a few thousandths; logits miss it by far more
    if (theta < 0).any() or ((theta.sum(1) - 1).abs() > 0.02).any():
        raise TaskError("rows of source_probs must be probabilities that sum to 1; apply softmax")
    return theta, codes, count
