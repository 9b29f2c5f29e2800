r"""First and second moments of features and targets together, in one matrix that merges.

For rows :math:`a_i = [z_i \mid y_i] \in \mathbb{R}^{d + k}` with weights :math:`w_i` the sums

.. math::
    \bar a = \frac{\sum_i w_i a_i}{\sum_i w_i}, \qquad
    \Sigma = \sum_i w_i (a_i - \bar a)(a_i - \bar a)^\top
           = \begin{pmatrix} S & C \\ C^\top & R \end{pmatrix}

are all that least squares on the rows, its error and the principal components of the augmented
matrix :math:`[Z \mid \beta Y]` need.  They are kept centred, so that a large common offset costs no
digits; those of two shares of the rows add up, and each row may be forgotten once it is added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["Moments"]


class Moments:
    """Weighted moments of ``d`` features and ``k`` targets, float64.

    >>> z, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    >>> both = Moments(1, 1).update(z[:1], y[:1]).merge(Moments(1, 1).update(z[1:], y[1:]))
    >>> both.features, both.cross, both.targets
    (tensor([[2.]], dtype=torch.float64), tensor([[4.]], dtype=torch.float64),
     tensor([[8.]], dtype=torch.float64))
    """

    def __init__(self, d: int, k: int, device: Any = None) -> None:
        self.d, self.k = d, k
        self.rows = 0
        self.weight = 0.0
        self.mean = torch.zeros(d + k, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(d + k, d + k, dtype=torch.float64, device=device)

    def update(self, z: Tensor, y: Tensor, weights: Tensor | None = None) -> Moments:
        """Add rows ``[b, d]`` with targets ``[b, k]`` and weights ``[b]`` (one unless said)."""
        if z.shape[1:] != (self.d,) or y.shape[1:] != (self.k,) or len(z) != len(y):
            raise TaskError(
                f"these rows are {list(z.shape)} and {list(y.shape)}, the moments are of "
                f"{self.d} features and {self.k} targets"
            )
        if len(z) == 0:
            return self
        a = torch.cat([z, y], dim=1).double()
        if weights is None:
            weight, mean = float(len(a)), a.mean(0)
            a -= mean
            scatter = a.T @ a
        else:
            w = weights.double()
            weight = float(w.sum())
            if weight == 0:
                return self
            mean = w @ a / weight
            a -= mean
            scatter = (a * w[:, None]).T @ a
        # In place: these matrices are the largest thing a streaming fit holds.
        return self._add(len(z), weight, mean, scatter)

    def merge(self, other: Moments) -> Moments:
        """Add the rows another has seen."""
        if (other.d, other.k) != (self.d, self.k):
            raise TaskError(
                f"moments of {other.d} features and {other.k} targets do not add to those of "
                f"{self.d} and {self.k}"
            )
        return self._add(other.rows, other.weight, other.mean, other.scatter)

    def _add(self, rows: int, weight: float, mean: Tensor, scatter: Tensor) -> Moments:
        if weight == 0:
            return self
        total = self.weight + weight
        apart = mean - self.mean
        self.scatter += scatter
        if self.weight > 0:
            self.scatter.addr_(apart, apart, alpha=self.weight * weight / total)
        self.mean = self.mean + apart * (weight / total)
        self.rows, self.weight = self.rows + rows, total
        return self

    @property
    def features(self) -> Tensor:
        """:math:`S`, the scatter of the features ``[d, d]``."""
        return self.scatter[: self.d, : self.d]

    @property
    def cross(self) -> Tensor:
        """:math:`C`, features against targets ``[d, k]``."""
        return self.scatter[: self.d, self.d :]

    @property
    def targets(self) -> Tensor:
        """:math:`R`, the scatter of the targets ``[k, k]``."""
        return self.scatter[self.d :, self.d :]

    @property
    def feature_mean(self) -> Tensor:
        """Means of the features ``[d]``."""
        return self.mean[: self.d]

    @property
    def target_mean(self) -> Tensor:
        """Means of the targets ``[k]``."""
        return self.mean[self.d :]

    def only_targets(self, first: int, last: int) -> Moments:
        """The moments with some of the targets, those from ``first`` up to ``last``.

        >>> m = Moments(1, 2).update(torch.rand(4, 1), torch.rand(4, 2)).only_targets(1, 2)
        >>> m.k, tuple(m.scatter.shape)
        (1, (2, 2))
        """
        chosen = torch.tensor([*range(self.d), *range(self.d + first, self.d + last)])
        part = Moments(self.d, last - first, self.mean.device)
        part.rows, part.weight = self.rows, self.weight
        part.mean = self.mean[chosen]
        part.scatter = self.scatter[chosen][:, chosen]
        return part

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, to send to another process."""
        return {
            "sizes": torch.tensor([self.d, self.k, self.rows]),
            "weight": torch.tensor(self.weight, dtype=torch.float64),
            "mean": self.mean,
            "scatter": self.scatter,
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Moments:
        """What :meth:`state` gave.

        >>> m = Moments(1, 1).update(torch.rand(3, 1), torch.rand(3, 1))
        >>> bool((Moments.from_state(m.state()).scatter == m.scatter).all())
        True
        """
        d, k, rows = (int(each) for each in state["sizes"])
        found = cls(d, k, state["mean"].device)
        found.rows, found.weight = rows, float(state["weight"])
        found.mean, found.scatter = state["mean"], state["scatter"]
        return found
