r"""N-LEEP: LEEP with clusters of the features in place of the source's classes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import derived_seed
from dovetail.ranking.baselines.source_probabilities import leep
from dovetail.ranking.inputs import as_rows, class_codes, refuse_other_count

__all__ = ["components_for", "nleep", "principal"]

_MOST_CELLS = 100_000_000  # rows × components


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
    rows, (codes, count) = as_rows(features), class_codes(labels)
    refuse_other_count(rows, codes)
    order = torch.from_numpy(np.lexsort(rows.numpy().T[::-1]))
    rows, codes = rows[order], codes[order]
    distinct = 1 + int((rows[1:] != rows[:-1]).any(1).sum())
    components = components_for(len(rows), count, distinct)
    if components * len(rows) > _MOST_CELLS:
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
    centred = rows - rows.mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    shares = values.square().cumsum(0)
    if float(shares[-1]) == 0:
        return centred[:, :1]
    kept = int((shares < energy * shares[-1]).sum()) + 1
    scores: Tensor = left[:, :kept] * values[:kept]
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
