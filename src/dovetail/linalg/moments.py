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
        mean = self.mean.new_empty(self.d + self.k)
        if weights is None:
            weight = float(len(z))
            mean[: self.d] = z.mean(0, dtype=mean.dtype)
            mean[self.d :] = y.mean(0, dtype=mean.dtype)
        else:
            w = weights.double()
            if bool((w < 0).any()):
                raise TaskError("a row's weight is negative; weights are zero or more")
            weight = float(w.sum())
            if weight == 0:
                self.rows += len(z)
                return self
            mean[: self.d], mean[self.d :] = w @ z.double() / weight, w @ y.double() / weight
        # One copy of the rows, centred on its way, and one product, added where it belongs: these
        # are what a streaming fit spends its time on, and the largest things it holds.
        a = mean.new_empty(len(z), self.d + self.k)
        torch.sub(z, mean[: self.d], out=a[:, : self.d])
        torch.sub(y, mean[self.d :], out=a[:, self.d :])
        if weights is not None:
            a *= w.sqrt()[:, None]
        self.scatter.addmm_(a.T, a)
        return self._moved(len(z), weight, mean)

    def merge(self, other: Moments) -> Moments:
        """Add the rows another has seen."""
        if (other.d, other.k) != (self.d, self.k):
            raise TaskError(
                f"moments of {other.d} features and {other.k} targets do not add to those of "
                f"{self.d} and {self.k}"
            )
        self.scatter += other.scatter
        return self._moved(other.rows, other.weight, other.mean)

    def _moved(self, rows: int, weight: float, mean: Tensor) -> Moments:
        """What follows from rows with another mean, once their own scatter has been added."""
        self.rows += rows
        if weight == 0:
            return self
        if self.weight == 0:
            self.mean, self.weight = mean, weight
            return self
        total = self.weight + weight
        apart = mean - self.mean
        self.scatter.addr_(apart, apart, alpha=self.weight * weight / total)
        self.mean = self.mean + apart * (weight / total)
        self.weight = total
        return self

    @property
    def is_finite(self) -> bool:
        """Whether all rows were finite, and small enough to be squared.

        >>> Moments(1, 1).update(torch.tensor([[1.0], [torch.nan]]), torch.ones(2, 1)).is_finite
        False
        """
        # A column that is not finite, or overflows, shows in its own variance.
        return bool(self.scatter.diagonal().isfinite().all())

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
