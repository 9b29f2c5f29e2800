r"""Losses whose gradient at the outputs is not squashed: amplified by an exponential, or a cubic.

A softmax bounds the first gradient of back-propagation, :math:`y - t`, to :math:`[-1, 1]`.  These
losses keep :math:`y - t` as it is, with outputs that do not saturate.  For outputs :math:`x` and
targets :math:`t` (one value for the class, another for all others):

.. math::
    \text{exp:}\quad & y = \alpha e^x, && \textstyle\sum_k |y_k| - t_k \ln y_k,
        && \partial / \partial x_k = \alpha e^{x_k} - t_k \\
    \text{cubic:}\quad & y = \alpha x^3 + \beta, && \textstyle\sum_k \tfrac14 \alpha x_k^4
        + \beta x_k - t_k x_k, && \partial / \partial x_k = \alpha x_k^3 + \beta - t_k \\
    \text{linear:}\quad & y = x, && \textstyle\sum_k \tfrac12 (x_k - t_k)^2,
        && \partial / \partial x_k = x_k - t_k

The first is cross-entropy with an L1 penalty on what it calls likely.  All are called as
``loss(outputs, targets)`` with class indices, and summed over the classes; a network of maps is
told a class for every position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from dovetail.core.errors import SettingsError, TaskError

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, kw_only=True)
class _Amplified:
    """What the three have in common: target values, classes summed, examples averaged.

    Attributes:
        targets: The value for all other classes, and that for the class.
        reduction: Over examples and positions: their ``"mean"``, or the ``"sum"``, whose gradient
            is :math:`y - t` itself.
        ignore: Positions of this class count for nothing.
    """

    targets: tuple[float, float]
    reduction: Reduction = "mean"
    ignore: int = -100

    def __post_init__(self) -> None:
        low, high = self.targets
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise SettingsError(f"targets are two values, the lower first, got {self.targets}")
        if self.reduction not in ("mean", "sum"):
            raise SettingsError(f"reduction is 'mean' or 'sum', got {self.reduction!r}")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of outputs ``[n, c]`` or ``[n, c, ...]``, a scalar to be minimised.

        Args:
            outputs: What the network gives, with no activation.
            targets: Class indices ``[n]`` or ``[n, ...]``; or shares between 0 and 1 of the shape
                of the outputs.
        """
        x = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        values, counted = self._values(x, targets)
        each = self._each(x, values).sum(1)
        if counted is not None:
            each = each * counted
        total = each.sum()
        if self.reduction == "sum":
            return total
        return total / (each.numel() if counted is None else counted.sum().clamp(min=1))

    def deltas(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What back-propagation begins with, :math:`y - t`, of the shape of the outputs."""
        values, counted = self._values(outputs, targets)
        deltas = self.activation(outputs) - values
        return deltas if counted is None else deltas * counted.unsqueeze(1)

    def activation(self, outputs: Tensor) -> Tensor:
        """The outputs :math:`y` that the targets are compared with."""
        raise NotImplementedError

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Class probabilities along axis 1: where :math:`y` lies between the targets, normalised.

        An output below the lower target says zero; where all do, nothing is preferred.
        """
        low, high = self.targets
        share = ((self.activation(outputs) - low) / (high - low)).clamp(min=0)
        total = share.sum(1, keepdim=True)
        return torch.where(total > 0, share / total, torch.ones_like(share) / share.shape[1])

    def _each(self, x: Tensor, values: Tensor) -> Tensor:
        raise NotImplementedError

    def _values(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """The target value of every output, and where there is one to count; nothing for all."""
        if x.ndim < 2:
            raise TaskError(f"outputs are [n, classes, ...], got shape {list(x.shape)}")
        low, high = self.targets
        if targets.shape == x.shape and targets.is_floating_point():
            return low + (high - low) * targets.to(x), None
        if targets.shape != (*x.shape[:1], *x.shape[2:]) or targets.is_floating_point():
            raise TaskError(
                f"outputs {list(x.shape)} need class indices {[*x.shape[:1], *x.shape[2:]]}, got "
                f"{str(targets.dtype).removeprefix('torch.')} {list(targets.shape)}"
            )
        counted = targets != self.ignore
        known = targets.masked_fill(~counted, 0)
        if not _has_values(targets):  # a step that is measured before it is taken
            hot = torch.zeros_like(x).scatter(1, known.unsqueeze(1), 1.0)
            return low + (high - low) * hot, counted.to(x)
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < x.shape[1]:
            raise TaskError(f"a class index is not one of 0 to {x.shape[1] - 1}")
        hot = F.one_hot(known, x.shape[1]).movedim(-1, 1).to(x)
        return low + (high - low) * hot, None if bool(counted.all()) else counted.to(x)


@dataclass(frozen=True, kw_only=True)
class _Straightened(_Amplified):
    """What is too steep far out.

    Attributes:
        straight: Where :math:`|y|` is so many times the upper target, the loss goes on as a
            straight line: one wild output cannot throw all weights about.
    """

    straight: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.straight < math.inf:
            raise SettingsError(f"straight must be above 1, got {self.straight}")

    @property
    def _steepest(self) -> float:
        """The largest output that a target is compared with."""
        return self.straight * max(abs(self.targets[0]), abs(self.targets[1]))


def _has_values(tensor: Tensor) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


@dataclass(frozen=True, kw_only=True)
class SparseCrossEntropy(_Straightened):
    r"""Exponential amplification: :math:`\sum_k |y_k| - t_k \ln y_k` with :math:`y = \alpha e^x`.

    The gradient is :math:`y - t`, exactly, up to :math:`x_m`, where :math:`y` is ``straight`` times
    the upper target (a target of 16 lies at 5.1, twice as much at 5.8).  Beyond it the loss
    goes on as a straight line.

    >>> loss, x = SparseCrossEntropy(reduction="sum"), torch.zeros(1, 3, requires_grad=True)
    >>> loss(x, torch.tensor([2])).backward(); x.grad
    tensor([[  0.1000,   0.1000, -15.9000]])
    >>> SparseCrossEntropy().probabilities(torch.tensor([[0.0, 0.0]]))
    tensor([[0.5000, 0.5000]])
    """

    alpha: float = 0.1
    targets: tuple[float, float] = (0.0, 16.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf:
            raise SettingsError(f"alpha must be above 0, got {self.alpha}")
        if self.targets[0] < 0:
            raise SettingsError(f"an exponential is never negative, got targets {self.targets}")

    @property
    def far(self) -> float:
        r""":math:`x_m`, from where on the loss is a straight line."""
        return math.log(self._steepest / self.alpha)

    def activation(self, outputs: Tensor) -> Tensor:
        r""":math:`\alpha e^x`, and as much as at :math:`x_m` beyond it."""
        return self.alpha * outputs.clamp(max=self.far).exp()

    def probabilities(self, outputs: Tensor) -> Tensor:
        r"""Class probabilities along axis 1, :math:`y / \sum y`: the softmax of the outputs."""
        return outputs.softmax(1)

    def _each(self, x: Tensor, values: Tensor) -> Tensor:
        near = x.clamp(max=self.far)
        y = self.alpha * near.exp()
        return y + y.detach() * (x - near) - values * (math.log(self.alpha) + x)


@dataclass(frozen=True, kw_only=True)
class NegativeCorrelation(_Straightened):
    r"""Cubic amplification: :math:`\sum_k \frac14\alpha x_k^4 + \beta x_k - t_k x_k`.

    The gradient is :math:`\alpha x^3 + \beta - t`: flat around zero, steep far out on both
    sides.  From where :math:`\alpha|x|^3` is ``straight`` times the upper target (at 27) the loss
    goes on as a straight line.

    >>> loss = NegativeCorrelation(reduction="sum")
    >>> x = torch.tensor([[0.0, 10.0]], requires_grad=True)
    >>> loss(x, torch.tensor([1])).backward(); x.grad
    tensor([[ 0.4000, -8.6000]])
    """

    alpha: float = 0.001
    beta: float = 0.4
    targets: tuple[float, float] = (0.0, 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf or not 0 <= self.beta < math.inf:
            raise SettingsError(
                f"alpha must be above 0 and beta at least 0, got {self.alpha} and {self.beta}"
            )

    @property
    def far(self) -> float:
        r""":math:`x_m`, from where on, on both sides, the loss is a straight line."""
        return float((self._steepest / self.alpha) ** (1 / 3))

    def activation(self, outputs: Tensor) -> Tensor:
        r""":math:`\alpha x^3 + \beta`, and as much as at :math:`\pm x_m` beyond it."""
        return self.alpha * outputs.clamp(-self.far, self.far) ** 3 + self.beta

    def _each(self, x: Tensor, values: Tensor) -> Tensor:
        near = x.clamp(-self.far, self.far)
        cube = near * near * near
        line = self.alpha * cube.detach() * (x - near)
        return self.alpha / 4 * cube * near + line + (self.beta - values) * x


@dataclass(frozen=True, kw_only=True)
class SquaredError(_Amplified):
    r"""No amplification, and no squashing: :math:`\sum_k \frac12 (x_k - t_k)^2` with target values.

    >>> SquaredError()(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))
    tensor(2.)
    """

    targets: tuple[float, float] = (-1.0, 1.0)

    def activation(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs

    def _each(self, x: Tensor, values: Tensor) -> Tensor:
        return 0.5 * (x - values).square()
