r"""A Gaussian process with an RBF kernel, whose hyper-parameters can be carried to another task.

.. math::
    k(x, x') = s^2 \exp\Big(-\tfrac12 \sum_j \frac{(x_j - x'_j)^2}{\ell_j^2}\Big), \qquad
    y = m + g(x) + \varepsilon, \quad \varepsilon \sim \mathcal N(0, \sigma^2) .

With :math:`C = K + \sigma^2 I = L L^\top` everything is exact and float64.  The constant mean
:math:`m` has a flat prior: its estimate is :math:`\hat m = \mathbf 1^\top C^{-1} y / h` with
:math:`h = \mathbf 1^\top C^{-1} \mathbf 1`, the evidence

.. math::
    -2 \log p(y) = (y - \hat m)^\top C^{-1} (y - \hat m) + \log|C| + \log h + (n - 1) \log 2\pi ,

and the variance of a prediction grows by :math:`(1 - k_*^\top C^{-1} \mathbf 1)^2 / h`.  With a
mean that is known, :math:`\log h` and that term are absent and :math:`n - 1` is :math:`n`.
:math:`\log \ell`, :math:`\log s^2` and :math:`\log \sigma^2` are found by L-BFGS on the evidence,
from several starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.estimator_inputs import (
    as_numbers,
    as_rows,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Regressor, Spread

Tasks = list[tuple[Tensor, Tensor]]

FREEDOM = {"length": 1e3, "scale": 1e4, "noise": 1e6}
"""How far, as a factor up or down, the search may go from what the data suggest."""


class RBFRegressor(Regressor):
    """Predict numbers by a Gaussian process with an RBF kernel.

    Args:
        length: The length scale, one or one for each input; ``"auto"`` for the median distance.
        scale: The variance of the process; ``"auto"`` for that of the targets.
        noise: The variance of the noise; ``"auto"`` for a hundredth of that.
        per_input: A length for each input.
        mean: ``"constant"``, unknown with a flat prior, or a number.
        optimise: Whether :meth:`fit` maximises the evidence over length, scale and noise, starting
            from those given; else they are taken as they are.
        restarts: Further starts of the search, at random.
        random_state: For those.

    After :meth:`fit`: ``length_ [d]`` (or ``[1]``), ``scale_``, ``noise_``, ``log_evidence_``.

    There is no ``to_part``: a part is a network that a builder makes from sizes and fills with
    weights, and every prediction here needs all rows that were fitted.  ``shared()`` is what moves.

    Hyper-parameters of one task serve another:

    >>> x = torch.linspace(0, 6, 30)[:, None]
    >>> source = RBFRegressor().fit(x, torch.sin(x[:, 0]))
    >>> target = RBFRegressor(**source.shared()).fit(x[::6], 3 * torch.cos(x[::6, 0]))
    >>> bool(target.length_ == source.length_), target.predict(x[:2]).round(1)
    (True, array([3., 3.]))
    """

    def __init__(
        self,
        length: Any = "auto",
        scale: Any = "auto",
        noise: Any = "auto",
        *,
        per_input: Any = False,
        mean: Any = "constant",
        optimise: Any = True,
        restarts: Any = 2,
        random_state: Any = None,
    ) -> None:
        self.length = length
        self.scale = scale
        self.noise = noise
        self.per_input = per_input
        self.mean = mean
        self.optimise = optimise
        self.restarts = restarts
        self.random_state = random_state

    def fit(self, X: Any, y: Any, others: Sequence[tuple[Any, Any]] = ()) -> RBFRegressor:
        """Find the hyper-parameters, and the posterior of the first task.

        Args:
            X: Inputs ``[n, ...]``; further axes are flattened.
            y: Numbers ``[n]`` or ``[n, k]``; columns share the hyper-parameters, so bring them to
                one scale first.
            others: Pairs of inputs and numbers of other tasks; the evidence is summed.
        """
        rows = as_rows(X, self)
        targets, self.flat_ = as_numbers(y)
        tasks = [(rows, targets), *((as_rows(a), as_numbers(b)[0]) for a, b in others)]
        for inputs, numbers in tasks:
            refuse_other_count(inputs, numbers)
        known = self.mean != "constant"
        self.mean_ = _number("mean", self.mean) if known else None
        if not known and len(rows) < 2:
            raise TaskError("1 sample is its own mean; give at least two, or mean=0.0")
        start = self._start(tasks)
        chosen = self._searched(tasks, start) if self.optimise else start
        self._parts = _Given.of(rows, targets, chosen, self.mean_)
        self.length_, self.scale_, self.noise_ = chosen[:-2].exp(), *chosen[-2:].exp().tolist()
        self.log_evidence_ = float(self._parts.log_evidence())
        self.deviation_scale_ = torch.ones(targets.shape[1], dtype=torch.float64)
        return self

    def shared(self) -> dict[str, Any]:
        """What to construct another with, so that it has the same hyper-parameters.

        A number for the mean is shared too; a constant that was estimated belongs to its task.
        """
        check_is_fitted(self)
        lengths = self.length_.tolist()
        return {
            "length": tuple(lengths) if len(lengths) > 1 else lengths[0],
            "scale": self.scale_,
            "noise": self.noise_,
            "mean": self.mean,
            "optimise": False,
        }

    def _moments(self, X: Any, spread: Spread) -> tuple[Tensor, Tensor | None]:
        """Columns of targets share their variances, which are told for each."""
        mean, shared = self._parts.predict(as_rows(X, self, reset=False), spread)
        if shared is None:
            return mean, None
        return mean, shared[..., None].expand(*shared.shape, mean.shape[1])

    def _start(self, tasks: Tasks) -> Tensor:
        """Logarithms of lengths, scale and noise ``[l + 2]``, as given or as the data suggest."""
        rows = tasks[0][0]
        width = rows.shape[1]
        spread = float(torch.stack([y.var(0, correction=0).mean() for _, y in tasks]).mean())
        level = float(torch.stack([y.square().mean() for _, y in tasks]).mean())
        # Targets that do not vary say nothing; rounding is all that is left to be noise.
        variance = max(spread, 1e-12 * level) or 1.0
        scale = variance if _auto(self.scale) else _positive("scale", self.scale)
        noise = variance / 100 if _auto(self.noise) else _positive("noise", self.noise)
        if _auto(self.length):
            typical = torch.pdist(rows[:1000]).median() if len(rows) > 1 else rows.new_tensor(1.0)
            lengths = [float(typical) or 1.0]
        else:
            several = np.atleast_1d(np.asarray(self.length, dtype=object)).tolist()
            lengths = [_positive("length", each) for each in several]
        if len(lengths) not in (1, width):
            raise SettingsError(
                f"{len(lengths)} lengths for {width} inputs; give one, or one for each input"
            )
        if self.per_input and len(lengths) == 1:
            lengths = lengths * width
        return torch.tensor([*lengths, scale, noise], dtype=torch.float64).log()

    def _searched(self, tasks: Tasks, start: Tensor) -> Tensor:
        if not isinstance(self.restarts, int) or self.restarts < 0:
            raise SettingsError(f"restarts must be a whole number from 0 on, got {self.restarts!r}")
        reach = torch.tensor(
            [math.log(FREEDOM["length"])] * (len(start) - 2)
            + [math.log(FREEDOM["scale"]), math.log(FREEDOM["noise"])],
            dtype=torch.float64,
        )
        low, high = start - reach, start + reach

        def loss(flat: Any) -> tuple[float, Any]:
            at = torch.from_numpy(flat)
            try:
                tries = [_Given.of(x, y, at, self.mean_) for x, y in tasks]
            except SettingsError:  # too little noise to factor: the search turns back
                return 1e25, np.zeros_like(flat)
            value = sum(float(each.log_evidence()) for each in tries)
            return -value, -sum(each.slope().numpy() for each in tries)

        draws = torch.randn(
            self.restarts,
            len(start),
            dtype=torch.float64,
            generator=generator(seed_of(self.random_state), "restarts"),
        )
        tries = [
            minimize(
                loss,
                place.clamp(low, high).numpy(),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(low.tolist(), high.tolist(), strict=True)),
            )
            for place in (start, *(start + draws))
        ]
        return torch.from_numpy(min(tries, key=lambda each: float(each.fun)).x)


@dataclass(frozen=True, eq=False)
class _Given:
    """The process given its data."""

    rows: Tensor  # [n, d]
    at: Tensor  # logarithms [l + 2]
    lower: Tensor  # [n, n]
    residual: Tensor  # [n, k], targets less the mean
    solved: Tensor  # [n, k], C⁻¹ of that
    mean: Tensor  # [k]
    ones: Tensor | None  # [n], C⁻¹ 1 when the mean is not known

    @classmethod
    def of(cls, rows: Tensor, targets: Tensor, at: Tensor, mean: float | None) -> _Given:
        covariance = _kernel(rows, rows, at) + at[-1].exp() * torch.eye(len(rows), dtype=at.dtype)
        lower, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed):
            raise SettingsError(
                f"with a noise of {at[-1].exp().item():.3g} the covariance of these rows cannot be "
                "factored; give more noise"
            )
        if mean is not None:
            middle, ones = targets.new_full((targets.shape[1],), mean), None
        else:
            ones = torch.cholesky_solve(rows.new_ones(len(rows), 1), lower)[:, 0]
            middle = ones @ targets / ones.sum()
        residual = targets - middle
        return cls(rows, at, lower, residual, torch.cholesky_solve(residual, lower), middle, ones)

    def log_evidence(self) -> Tensor:
        n, k = self.residual.shape
        fit = (self.residual * self.solved).sum()
        volume = 2 * self.lower.diagonal().log().sum() + n * math.log(2 * math.pi)
        if self.ones is not None:
            volume = volume + self.ones.sum().log() - math.log(2 * math.pi)
        return -(fit + k * volume) / 2

    def slope(self) -> Tensor:
        r"""The gradient of the log evidence ``[l + 2]``.

        It is :math:`-\langle G, \partial C\rangle` with :math:`2 G = k C^{-1} - \sum_c a_c a_c^\top
        - k\, u u^\top / h`, where :math:`a = C^{-1} (y - \hat m)` and :math:`u = C^{-1} \mathbf 1`;
        :math:`\hat m` is at its maximum and does not count.
        """
        k = self.residual.shape[1]
        outer = k * torch.cholesky_inverse(self.lower) - self.solved @ self.solved.T
        if self.ones is not None:
            outer = outer - k * torch.outer(self.ones, self.ones) / self.ones.sum()
        noise = self.at[-1].exp()
        product = outer * _kernel(self.rows, self.rows, self.at)  # [n, n]
        # Over all pairs, m_ab (x_a - x_b)² is twice the sum of m_ab x_a² less m_ab x_a x_b.
        x = (self.rows - self.rows.mean(0)) / self.at[:-2].exp()
        pairs = 2 * (product.sum(1) @ x.square() - (x * (product @ x)).sum(0))  # [d]
        lengths = pairs if len(self.at) - 2 == len(pairs) else pairs.sum()[None]
        rest = torch.stack([product.sum(), noise * outer.trace()])
        return -torch.cat([lengths, rest]) / 2

    def predict(self, x: Tensor, spread: Spread) -> tuple[Tensor, Tensor | None]:
        """Means ``[m, k]``, and variances ``[m]`` or the whole covariance ``[m, m]`` if wanted."""
        cross = _kernel(x, self.rows, self.at)  # [m, n]
        mean = self.mean + cross @ self.solved
        if spread == "none":
            return mean, None
        half = torch.linalg.solve_triangular(self.lower, cross.T, upper=False)  # [n, m]
        scale, noise = self.at[-2:].exp()
        left = x.new_zeros(len(x), 1)
        if self.ones is not None:
            left = ((1 - cross @ self.ones) / self.ones.sum().sqrt())[:, None]
        if spread == "covariance":
            prior = _kernel(x, x, self.at)
            eye = torch.eye(len(x), dtype=x.dtype)
            return mean, prior - half.T @ half + left @ left.T + noise * eye
        latent = (scale - half.square().sum(0)).clamp(min=0) + left[:, 0].square()
        return mean, latent + noise


def _kernel(a: Tensor, b: Tensor, at: Tensor) -> Tensor:
    lengths, scale = at[:-2].exp(), at[-2].exp()
    a, b = a / lengths, b / lengths
    middle = b.mean(0)  # distances do not change, and fewer digits cancel
    a, b = a - middle, b - middle
    squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return scale * (-squares.clamp(min=0) / 2).exp()


def _auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not math.isfinite(number):
        words = "'constant' or a number" if name == "mean" else "'auto' or a positive number"
        raise SettingsError(f"{name} must be {words}, got {value!r}")
    return number


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if number <= 0:
        raise SettingsError(f"{name} must be 'auto' or a positive number, got {value!r}")
    return number
