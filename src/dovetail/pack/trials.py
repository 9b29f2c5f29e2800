r"""What other weights cost: the rise of a loss, example by example, with its standard error.

The loss of example :math:`i` with the given weights is :math:`\ell_i`, with other weights
:math:`\ell_i'`.  Both are of the same example, so that the mean rise

.. math::
    r = \frac1n \sum_i d_i, \qquad d_i = \ell_i' - \ell_i, \qquad
    s = \sqrt{\frac{1}{n (n - 1)} \sum_i (d_i - r)^2}

has a standard error :math:`s` far below that of either mean.  On other examples of the same kind
the rise will hardly exceed :math:`r + z s`, and it is this that must stay within a budget.

Where losses are mistakes, 0 or 1, few examples change sides or none at all, and :math:`s` is too
small: that none of 100 did does not show that one in a thousand will not.  Half an example is then
added to each of the four ways an example can go (right or wrong, before and after), as Agresti and
Min do for matched pairs: with :math:`b` new mistakes and :math:`c` old ones mended,

.. math::
    s = \frac{1}{n + 2} \sqrt{b + c + 1 - \frac{(b - c)^2}{n + 2}} .
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError

__all__ = ["Measure", "Rise", "Trials"]

Measure = Callable[[dict[str, Tensor]], Any]
"""The loss of a state dict: a number, or one an example ``[n]``; lower is better."""

Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Rise:
    """A mean rise; its standard error, zero where only means are known; and what it may reach."""

    mean: float
    error: float
    most: float

    @staticmethod
    def between(before: Losses, after: Losses, margin: float) -> Rise:
        """The rise from losses ``[n]`` to others of the same examples.

        >>> Rise.between(np.zeros(4), np.array([0.0, 0, 2, 6]), margin=1.0)
        Rise(mean=2.0, error=1.4142135623730951, most=3.414213562373095)
        """
        if not np.isfinite(after).all():
            return Rise(math.inf, 0.0, math.inf)
        rises = after - before
        mean, n = float(rises.mean()), len(rises)
        error = 0.0
        if n > 1:
            error = _error_of_mistakes(before, after) or float(rises.std(ddof=1)) / math.sqrt(n)
        return Rise(mean, error, mean + margin * error)


class Trials:
    """Measures weights against the given ones, and counts how often.

    >>> import torch
    >>> trials = Trials(lambda state: state["w"].square(), {"w": torch.tensor([1.0, 1.0])})
    >>> trials.rise({"w": torch.tensor([1.0, 2.0])}, "larger").mean, trials.calls
    (1.5, 2)
    """

    def __init__(
        self,
        measure: Measure,
        state: Mapping[str, Tensor],
        *,
        margin: float = 0.0,
        most_calls: int = 100,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._measure, self._margin, self._progress = measure, margin, progress
        self.calls, self.most_calls = 0, most_calls
        self._before = self._losses(state)
        if not np.isfinite(self._before).all():
            raise TaskError(
                f"the loss of the given weights is {self._before.mean()}: no rise can be measured "
                "from there; look for weights or examples that are not finite"
            )
        self._told(f"loss {self.baseline:.4g}")

    @property
    def baseline(self) -> float:
        """The mean loss of the given weights."""
        return float(self._before.mean())

    @property
    def examples(self) -> int:
        """How many losses a measurement gives."""
        return len(self._before)

    @property
    def left(self) -> int:
        """How many measurements are allowed still."""
        return self.most_calls - self.calls

    def rise(self, state: Mapping[str, Tensor], words: str) -> Rise:
        """How much more these weights lose than the given ones; infinite if that is no number."""
        after = self._losses(state)
        if after.shape != self._before.shape:
            raise TaskError(
                f"measure gave {len(self._before)} losses at first and {len(after)} now; it must "
                "measure the same examples in the same order every time"
            )
        rise = Rise.between(self._before, after, self._margin)
        self._told(f"{words}: loss {rise.mean:+.2g}")
        return rise

    def _told(self, words: str) -> None:
        if self._progress is not None:
            self._progress(words)

    def _losses(self, state: Mapping[str, Tensor]) -> Losses:
        self.calls += 1
        given = self._measure(dict(state))
        if isinstance(given, Tensor):
            given = given.detach().cpu().double().numpy()
        try:
            losses = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            raise SettingsError(
                f"measure gave a {type(given).__name__}; it must give a number, or one an example"
            ) from None
        if losses.ndim > 1 or losses.size == 0:
            raise SettingsError(
                f"measure gave losses of shape {list(losses.shape)}; it must give a number, or "
                "one an example, [n]"
            )
        return losses.reshape(-1).copy()


def _error_of_mistakes(before: Losses, after: Losses) -> float | None:
    """The standard error of mean losses that are 0 or one other number; None for others.

    >>> _error_of_mistakes(np.zeros(98), np.zeros(98))
    0.01
    >>> _error_of_mistakes(np.zeros(2), np.array([1.0, 2.0]))
    """
    both = np.stack([before, after])
    one = float(both.max()) or 1.0
    if not np.isin(both, (0.0, one)).all():
        return None
    rises = (after - before) / one
    changed, more, n = float(np.abs(rises).sum()), float(rises.sum()), len(rises) + 2
    return one * math.sqrt(changed + 1 - more**2 / n) / n
