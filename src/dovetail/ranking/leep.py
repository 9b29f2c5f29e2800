r"""LEEP, NCE and N-LEEP: how well the classes of a source foretell the target's labels.

:math:`\theta_i(z)` is the probability that the source network gives its class :math:`z` on target
example :math:`i`, for which the part must come with its head.  N-LEEP needs none: clusters of the
features take the place of the source's classes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import derived_seed
from dovetail.measure.inputs import rows_and_codes

_MOST_CELLS = 200_000_000  # of the table classes × source classes: 1.6 GB
_MOST_RESPONSIBILITIES = 100_000_000  # rows × components


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
    theta, codes, count = _probabilities(source_probs, labels)
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
    theta, codes, _ = _probabilities(source_probs, labels)
    decision = theta.argmax(1)
    cells, counts = torch.unique(codes * theta.shape[1] + decision, return_counts=True)
    joint = counts.double()  # whole numbers would divide to float32
    marginal = torch.bincount(decision, minlength=theta.shape[1])[cells % theta.shape[1]]
    return float((joint * (joint / marginal).log()).sum() / len(codes))


def _probabilities(source_probs: Any, labels: Any) -> tuple[Tensor, Tensor, int]:
    theta, codes, count = rows_and_codes(source_probs, labels, "source_probs")
    # half-precision softmax misses one by a few thousandths; logits miss it by far more
    if (theta < 0).any() or ((theta.sum(1) - 1).abs() > 0.02).any():
        raise TaskError("rows of source_probs must be probabilities that sum to 1; apply softmax")
    return theta, codes, count


def nleep(features: Any, labels: Any, *, seed: int = 0) -> float:
    r"""LEEP of the responsibilities of a Gaussian mixture, fitted to the features without labels.

    Features are projected on the fewest principal components that hold 80 % of the variance and
    scaled to a mean variance of one; a mixture of :math:`K = 5C` Gaussians with diagonal
    covariances (full ones are singular with the few rows a component that a ranking has) is fitted
    by scikit-learn, and its posteriors take the place of the source's probabilities.

    With few rows there are fewer components: one for every ten rows, but at least one a class, and
    never more than there are distinct rows (:func:`components_for`).  The value then depends on n
    as well: compare parts on the same rows only.  The mixture starts from ``seed``; rows are put
    into one order first, so theirs does not matter.

    >>> torch.manual_seed(0); labels = torch.arange(60) % 3
    <torch._C.Generator object at ...>
    >>> nleep(torch.eye(3)[labels] + 0.01 * torch.rand(60, 3), labels) > -0.01
    True
    """
    rows, codes, count = rows_and_codes(features, labels)
    order = torch.from_numpy(np.lexsort(rows.numpy().T[::-1]))
    rows, codes = rows[order], codes[order]
    distinct = 1 + int((rows[1:] != rows[:-1]).any(1).sum())
    components = components_for(len(rows), count, distinct)
    if components * len(rows) > _MOST_RESPONSIBILITIES:
        raise TaskError(
            f"N-LEEP would fit {components} clusters to {len(rows)} rows; "
            "pass a random sample of the rows, or fewer classes"
        )
    return leep(_responsibilities(principal(rows), components, seed), codes)


def components_for(rows: int, classes: int, distinct: int) -> int:
    """How many Gaussians: five a class, where there are rows for them.

    >>> components_for(500, 10, 500), components_for(60, 3, 60), components_for(12, 3, 2)
    (50, 6, 2)
    """
    return min(5 * classes, max(classes, rows // 10), distinct)


def principal(rows: Tensor, energy: float = 0.8) -> Tensor:
    """Scores on the fewest principal components with a share of the variance, variance one on mean.

    >>> principal(torch.tensor([[3.0, 0.1], [-3.0, 0.0]], dtype=torch.float64)).shape
    torch.Size([2, 1])
    """
    from sklearn.decomposition import PCA

    if not (rows != rows[0]).any():
        return torch.zeros_like(rows[:, :1])
    scores = torch.from_numpy(PCA(energy, svd_solver="full").fit_transform(rows.numpy()))
    return scores / scores.square().mean().sqrt()


def _responsibilities(points: Tensor, components: int, seed: int) -> Tensor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(
        components,
        covariance_type="diag",
        reg_covar=1e-3,
        random_state=derived_seed(seed, "nleep") % 2**32,
    )
    with warnings.catch_warnings():
        # a mixture that has not settled after a hundred steps is used as it is
        warnings.simplefilter("ignore", ConvergenceWarning)
        return torch.from_numpy(mixture.fit(points.numpy()).predict_proba(points.numpy()))
