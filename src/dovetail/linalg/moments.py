r"""Moments of rows, kept centred, so that pieces add up and can be taken away again.

For rows :math:`a_i = [z_i \mid y_i] \in \mathbb{R}^{d + k}`, features and targets, with weights
:math:`w_i` (one unless said), the sums

.. math::
    W = \sum_i w_i, \qquad \bar a = \frac1W \sum_i w_i a_i, \qquad
    \Sigma = \sum_i w_i (a_i - \bar a)(a_i - \bar a)^\top
           = \begin{pmatrix} S & C \\ C^\top & R \end{pmatrix}

are all that least squares, its error, principal components, correlations and scores of covariances
need.  For two pieces with weights :math:`W_a, W_b` and :math:`\delta = \bar a_b - \bar a_a`

.. math::
    \bar a = \bar a_a + \tfrac{W_b}{W} \delta, \qquad
    \Sigma = \Sigma_a + \Sigma_b + \tfrac{W_a W_b}{W} \delta \delta^\top, \qquad W = W_a + W_b,

and the same with :math:`W_b` negative takes a piece away.  Sums of squares about zero would lose
the scatter of features whose mean is much larger than their spread; these lose nothing.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
from scipy.linalg.blas import dsyrk
from torch import Tensor

from dovetail.core.errors import TaskError


def pooled_share(weight: Any, other: Any, sign: int = 1) -> tuple[Any, Any]:
    r"""How much of a gap between two means moves the mean, and how much of its square is scatter.

    :math:`\pm W_b / W` and :math:`\pm W_a W_b / W` with :math:`W = W_a \pm W_b`, of numbers or of
    tensors of counts; where nothing is left both are of no meaning, but finite.

    >>> pooled_share(1.0, 3.0)
    (0.75, 0.75)
    >>> pooled_share(torch.tensor([4, 2]), torch.tensor([1, 2]), sign=-1)
    (tensor([-0.3333, -2.0000]), tensor([-1.3333, -4.0000]))
    """
    total = weight + sign * other
    total = total.clamp(min=1) if isinstance(total, Tensor) else total
    share = sign * other / total
    return share, share * weight


class Moments:
    """Weighted moments of ``d`` features and ``k`` targets, float64.

    ``rows`` and ``weight`` say how many there were, ``mean [d + k]`` is of features and targets;
    ``features`` is :math:`S`, ``[d, d]``, ``cross`` :math:`C`, ``[d, k]``, and ``targets``
    :math:`R`, ``[k, k]``.

    Args:
        d: How many features.
        k: How many targets.
        device: Where they are summed.
        diagonal: Whose scatter is kept as its diagonal alone, ``[d]`` or ``[k]``: of neither, of
            the targets, or of both.

    >>> z, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    >>> both = Moments(1, 1).update(z[:1], y[:1]).merge(Moments(1, 1).update(z[1:], y[1:]))
    >>> both.features, both.cross, both.targets
    (tensor([[2.]], dtype=torch.float64), tensor([[4.]], dtype=torch.float64),
     tensor([[8.]], dtype=torch.float64))
    """

    def __init__(
        self,
        d: int,
        k: int = 0,
        device: Any = None,
        *,
        diagonal: Literal["neither", "targets", "both"] = "neither",
    ) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.rows, self.weight = 0, 0.0
        self.mean = zeros(d + k)
        self.features = zeros(d) if diagonal == "both" else zeros(d, d)
        self.cross = zeros(d, k)
        self.targets = zeros(k, k) if diagonal == "neither" else zeros(k)

    @classmethod
    def of(
        cls,
        rows: int,
        weight: float,
        mean: Tensor,
        features: Tensor,
        cross: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Self:
        """Moments that are known already; without targets, of features alone.

        >>> Moments.of(2, 2.0, torch.zeros(1), torch.ones(1, 1)).k
        0
        """
        made = cls(0)
        made.rows, made.weight, made.mean, made.features = rows, weight, mean, features
        made.cross = mean.new_zeros(len(features), 0) if cross is None else cross
        made.targets = mean.new_zeros(0, 0) if targets is None else targets
        return made

    @property
    def d(self) -> int:
        """How many features."""
        return self.cross.shape[0]

    @property
    def k(self) -> int:
        """How many targets."""
        return self.cross.shape[1]

    @property
    def feature_mean(self) -> Tensor:
        """Means of the features ``[d]``."""
        return self.mean[: self.d]

    @property
    def target_mean(self) -> Tensor:
        """Means of the targets ``[k]``."""
        return self.mean[self.d :]

    @property
    def scatter(self) -> Tensor:
        r"""All of :math:`\Sigma`, ``[d + k, d + k]``, in memory of its own."""
        left = torch.cat([self.features, self.cross.T])
        return torch.cat([left, torch.cat([self.cross, self.targets])], dim=1)

    def update(self, z: Tensor, y: Tensor | None = None, weights: Tensor | None = None) -> Self:
        """Add rows ``[b, d]`` with targets ``[b, k]`` and weights ``[b]`` (one unless said)."""
        y = z[:, :0] if y is None else y
        if z.shape[1:] != (self.d,) or y.shape[1:] != (self.k,) or len(z) != len(y):
            raise TaskError(
                f"these rows are {list(z.shape)} and {list(y.shape)}, the moments are of "
                f"{self.d} features and {self.k} targets"
            )
        if len(z) == 0:
            return self
        mean = torch.empty_like(self.mean)
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
        # One copy of the rows, centred on its way, whose products are added where they belong:
        # these are what a streaming fit spends its time on, and the largest things it holds.
        a = mean.new_empty(len(z), self.d + self.k)
        torch.sub(z, mean[: self.d], out=a[:, : self.d])
        torch.sub(y, mean[self.d :], out=a[:, self.d :])
        if weights is not None:
            a *= w.sqrt()[:, None]
        z, y = a[:, : self.d], a[:, self.d :]
        for sums, columns in ((self.features, z), (self.targets, y)):
            if sums.ndim == 1:
                sums += torch.linalg.vecdot(columns, columns, dim=0)
            else:
                sums.addmm_(columns.T, columns)
        self.cross.addmm_(z.T, y)
        return self._pool(len(z), weight, mean)

    def merge(self, other: Self, sign: int = 1) -> Self:
        """Add the rows another has seen, or with ``sign=-1`` take them away; never all of them.

        >>> rows = torch.tensor([[1.0], [2.0], [4.0]])
        >>> Moments(1).update(rows).merge(Moments(1).update(rows[2:]), sign=-1).features
        tensor([[0.5000]], dtype=torch.float64)
        """
        if (other.d, other.k) != (self.d, self.k):
            raise TaskError(
                f"moments of {other.d} features and {other.k} targets do not add to those of "
                f"{self.d} and {self.k}"
            )
        for name in ("features", "cross", "targets"):
            getattr(self, name).add_(getattr(other, name), alpha=sign)
        return self._pool(other.rows, other.weight, other.mean, sign)

    def _pool(self, rows: int, weight: float, mean: Tensor, sign: int = 1) -> Self:
        """What follows from rows with another mean, once their own scatter has been added."""
        self.rows += sign * rows
        if weight == 0:
            return self
        if self.weight == 0:
            self.mean, self.weight = mean, weight
            return self
        share, between = pooled_share(self.weight, weight, sign)
        gap = mean - self.mean
        z, y = gap[: self.d], gap[self.d :]
        for sums, own in ((self.features, z), (self.targets, y)):
            if sums.ndim == 1:
                sums.addcmul_(own, own, value=between)
            else:
                sums.addr_(own, own, alpha=between)
        self.cross.addr_(z, y, alpha=between)
        self.mean = self.mean + gap * share
        self.weight += sign * weight
        return self

    @property
    def is_finite(self) -> bool:
        """Whether all rows were finite, and small enough to be squared.

        >>> Moments(1, 1).update(torch.tensor([[1.0], [torch.nan]]), torch.ones(2, 1)).is_finite
        False
        """
        # A column that is not finite, or overflows, shows in its own variance.
        return all(
            bool((each if each.ndim == 1 else each.diagonal()).isfinite().all())
            for each in (self.features, self.targets)
        )

    def only_targets(self, first: int, last: int) -> Moments:
        """The moments with some of the targets, those from ``first`` up to ``last``.

        >>> m = Moments(1, 2).update(torch.rand(4, 1), torch.rand(4, 2)).only_targets(1, 2)
        >>> m.k, tuple(m.scatter.shape)
        (1, (2, 2))
        """
        some = slice(first, last)
        mean = torch.cat([self.feature_mean, self.target_mean[some]])
        targets = self.targets[some] if self.targets.ndim == 1 else self.targets[some, some]
        cross = self.cross[:, some]
        return Moments.of(self.rows, self.weight, mean, self.features, cross, targets)

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, to send to another process."""
        return {
            "rows": torch.tensor(self.rows),
            "weight": torch.tensor(self.weight, dtype=torch.float64),
            "mean": self.mean,
            "features": self.features,
            "cross": self.cross,
            "targets": self.targets,
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """What :meth:`state` gave.

        >>> m = Moments(1, 1).update(torch.rand(3, 1), torch.rand(3, 1))
        >>> bool((Moments.from_state(m.state()).scatter == m.scatter).all())
        True
        """
        tensors = (state[name] for name in ("mean", "features", "cross", "targets"))
        return cls.of(int(state["rows"]), float(state["weight"]), *tensors)


class HigherMoments(Moments):
    r"""Also :math:`\sum |y|^2 y` and :math:`\sum |y|^4` of the centred features :math:`y = z - m`.

    The fourth says how much the scatter of so few rows is to be trusted (Ledoit and Wolf); the
    third is needed to move the fourth to another mean:
    :math:`\sum |y + \delta|^4 = \sum |y|^4 + 4 \delta^\top \sum |y|^2 y + 4 \delta^\top S \delta +
    2 |\delta|^2 \operatorname{tr} S + n |\delta|^4` if :math:`\sum y = 0`.  Rows weigh one.

    >>> pair = HigherMoments(1).update(torch.tensor([[0.0]]))
    >>> pair.merge(HigherMoments(1).update(torch.tensor([[2.0]]))).fourth
    tensor(2., dtype=torch.float64)
    """

    def __init__(self, d: int, k: int = 0) -> None:
        super().__init__(d, k)
        self.third = torch.zeros(d, dtype=torch.float64)
        self.fourth = torch.zeros((), dtype=torch.float64)

    def update(self, z: Tensor, y: Tensor | None = None, weights: Tensor | None = None) -> Self:
        """Add rows ``[b, d]`` with targets ``[b, k]``, each of weight one."""
        assert weights is None
        piece = type(self)(self.d, self.k)
        Moments.update(piece, z, y)
        centred = z.double() - piece.feature_mean
        energy = torch.linalg.vecdot(centred, centred)
        piece.third, piece.fourth = energy @ centred, energy.dot(energy)
        return self.merge(piece)

    def merge(self, other: Self, sign: int = 1) -> Self:
        """As :meth:`Moments.merge`."""
        share, _ = pooled_share(self.weight, other.weight, sign)
        mean = self.feature_mean + (other.feature_mean - self.feature_mean) * share
        third, fourth = self._moved(self.feature_mean - mean)
        more_third, more_fourth = other._moved(other.feature_mean - mean)
        self.third, self.fourth = third + sign * more_third, fourth + sign * more_fourth
        return super().merge(other, sign)

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, to send to another process."""
        return super().state() | {"third": self.third, "fourth": self.fourth}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """What :meth:`state` gave."""
        made = super().from_state(state)
        made.third, made.fourth = state["third"], state["fourth"]
        return made

    def _moved(self, by: Tensor) -> tuple[Tensor, Tensor]:
        """Third and fourth moment when every row is moved by ``[d]`` away from the mean."""
        trace, turned, far = self.features.trace(), self.features @ by, by.dot(by)
        third = self.third + trace * by + 2 * turned + self.rows * far * by
        fourth = self.fourth + 4 * by.dot(self.third + turned) + far * (2 * trace + self.rows * far)
        return third, fourth


class SecondMoment:
    r"""The sum :math:`\sum_i x_i x_i^\top` of rows that come in chunks, about zero.

    The product is symmetric: BLAS' ``syrk`` makes one triangle, for half the work.

    >>> second = SecondMoment(2)
    >>> second.add(torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64))
    >>> second.matrix()
    tensor([[1., 2.],
            [2., 5.]], dtype=torch.float64)
    """

    def __init__(self, width: int) -> None:
        self._sum, self._keep = np.zeros((width, width), order="F"), 0.0

    def add(self, rows: Tensor) -> None:
        """Add ``float64`` rows ``[b, d]``."""
        if len(rows):
            columns = rows.contiguous().numpy().T
            self._sum = dsyrk(1.0, columns, beta=self._keep, c=self._sum, overwrite_c=1)
            self._keep = 1.0

    def restart(self) -> None:
        """Begin anew with the next rows, in the same memory."""
        self._keep = 0.0

    def merge(self, other: SecondMoment) -> None:
        """Add another sum."""
        self._sum, self._keep = np.add(self._sum, other._sum, out=self._sum), 1.0

    def diagonal(self) -> Tensor:
        """The sum of squares of each column, ``[d]``."""
        return torch.from_numpy(self._sum.diagonal().copy())

    def matrix(self, out: Tensor | None = None) -> Tensor:
        """Both triangles, ``[d, d]``."""
        lower = torch.from_numpy(self._sum.T)
        both = torch.add(lower, lower.T, out=out)
        both.diagonal().div_(2)
        return both
