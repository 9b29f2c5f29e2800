r"""Products with curvature matrices, none of which is ever formed.

With outputs :math:`f = f_\theta(x)`, their Jacobian :math:`J` and a likelihood whose negative
logarithm has the Hessian :math:`\Lambda` by :math:`f`,

.. math::
    F = J^\top \Lambda J, \qquad
    \Lambda_{\text{gaussian}} = I / \sigma^2, \qquad
    \Lambda_{\text{softmax}} = \operatorname{diag}(\pi) - \pi\pi^\top \text{ for each row},

is the generalised Gauss-Newton matrix.  For these two, whose outputs are natural parameters, it
equals the Fisher matrix.  All are **sums** over rows; divide by :math:`n` for a mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError, shown
from dovetail.linalg.convolution import TwiceDifferentiable
from dovetail.linalg.jacobian import Jacobian, Parametrised, Vector
from dovetail.linalg.parameters import Choice

Likelihood: TypeAlias = Literal["gaussian", "softmax"]
"""Outputs are means of normal variables, or logits of classes ``[n, o]``."""

STEEP = 1e-2
"""Outputs that move by more than this part of their size may bend on the way."""


def gauss_newton_product(
    jacobian: Jacobian, vector: Vector, output_hessian: Callable[[Tensor], Tensor]
) -> Tensor:
    r"""The product :math:`J^\top \Lambda J v`, flat ``[p]``, for any loss.

    Args:
        jacobian: Of the network's outputs.
        vector: :math:`v`, flat ``[p]`` or tensors by name.
        output_hessian: Multiplies a tensor of the outputs' shape by :math:`\Lambda`.

    >>> jacobian = Jacobian(nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]]))
    >>> gauss_newton_product(jacobian, torch.tensor([1.0]), lambda moved: 10 * moved)
    tensor([50.])
    """
    return jacobian.vjp(output_hessian(jacobian.jvp(vector)))


def fisher_product(
    jacobian: Jacobian, vector: Vector, likelihood: Likelihood = "gaussian", noise: float = 1.0
) -> Tensor:
    r"""The Fisher matrix times :math:`v`, exact, flat ``[p]``: about three forward passes.

    Args:
        jacobian: Of the network's outputs.
        vector: :math:`v`, flat ``[p]`` or tensors by name.
        likelihood: What the outputs mean.
        noise: The variance :math:`\sigma^2` of the Gaussian; the softmax has none.

    >>> jacobian = Jacobian(nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]]))
    >>> fisher_product(jacobian, torch.tensor([1.0]), noise=0.5)
    tensor([10.])
    """
    curvature = output_curvature(jacobian.forward_value, likelihood, noise)
    return gauss_newton_product(jacobian, vector, curvature)


def output_curvature(
    outputs: Tensor, likelihood: Likelihood = "gaussian", noise: float = 1.0
) -> Callable[[Tensor], Tensor]:
    r"""Multiplication by :math:`\Lambda` at these outputs.

    >>> output_curvature(torch.zeros(1, 2), "softmax")(torch.tensor([[1.0, 0.0]]))
    tensor([[ 0.2500, -0.2500]])
    """
    if likelihood not in ("gaussian", "softmax"):
        raise SettingsError(f"likelihood is 'gaussian' or 'softmax', not {shown(likelihood)}")
    if not (isinstance(noise, float | int) and math.isfinite(noise) and noise > 0):
        raise SettingsError(f"noise is a variance, a number above 0, got {shown(noise)}")
    if likelihood == "softmax" and (outputs.ndim != 2 or outputs.shape[1] < 2):
        raise SettingsError(
            f"softmax needs logits [n, classes] of at least two classes, not {list(outputs.shape)}"
        )
    if likelihood == "gaussian":
        return lambda moved: moved / noise
    chances = outputs.softmax(-1)
    return lambda moved: chances * (moved - (chances * moved).sum(-1, keepdim=True))


class LossHessian:
    r"""The Hessian of a loss by the parameters; not positive where the network bends.

    The gradient and its graph are made once; a product then costs about two backward passes.  The
    network needs second derivatives, as nearly every one has.

    Args:
        module: Gives one tensor; taken in evaluation mode.
        inputs: ``[n, ...]``, or a tuple.
        loss: Makes a scalar of the outputs; the labels are its own affair.
        params: Which parameters, see :func:`dovetail.linalg.parameters.chosen_parameters`.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> hessian = LossHessian(net, torch.tensor([[1.0], [2.0]]), lambda out: out.square().sum())
    >>> hessian.product(torch.tensor([1.0]))
    tensor([10.])
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor | tuple[Tensor, ...],
        loss: Callable[[Tensor], Tensor],
        params: Choice = None,
    ) -> None:
        self.function = Parametrised(module, inputs, params)
        self.size = self.function.size
        with TwiceDifferentiable():
            outputs, self._leaves = self.function.forward()
        with torch.inference_mode(False), torch.enable_grad():
            value = loss(outputs)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise SettingsError("the loss must make one number of the outputs; sum or average")
            self.value = float(value.detach())
            if not math.isfinite(self.value):
                raise TaskError(f"the loss is {self.value}; the network or the labels are at fault")
            self._slopes: tuple[Tensor, ...] = tuple(self._leaves.values())
            if value.requires_grad:
                self._slopes = torch.autograd.grad(
                    value, list(self._leaves.values()), create_graph=True, materialize_grads=True
                )
            else:  # a loss that none of the chosen parameters can change
                self._slopes = tuple(torch.zeros_like(leaf) for leaf in self._slopes)

    @property
    def gradient(self) -> Tensor:
        """The loss's gradient, flat ``[p]``."""
        return torch.cat([slope.detach().reshape(-1) for slope in self._slopes])

    def product(self, vector: Vector) -> Tensor:
        r"""The product :math:`H v`, flat ``[p]``."""
        direction = self.function.unflatten(vector)
        return self.function.gradient(self._slopes, self._leaves, tuple(direction.values()))


class DifferencedFisher:
    r"""The Fisher matrix times a vector by finite differences: one forward, one backward pass.

    What the network says after a small step shows how the outputs move, and a backward pass at the
    weights themselves pulls that back:

    .. math::
        F v = J^\top \Lambda J v \approx
            J^\top \Lambda \, \frac{f_{\theta + \epsilon v} - f_\theta}{\epsilon}, \qquad
        \epsilon = \sqrt{\varepsilon_{\text{mach}}}\, \lVert\theta\rVert / \lVert v\rVert .

    (The slope of :math:`\operatorname{KL}(p_\theta \,\|\, p_{\theta + \epsilon v})` after the step
    costs the same, but has :math:`J` from beyond the step: several times the error along steep
    directions.)  Where the outputs move by more than a hundredth of their size, as along the
    steepest, a step back as well takes out the error of first order, for one more forward pass.

    For networks with an operation that forward mode does not know; where :class:`Jacobian`
    works, :func:`fisher_product` is exact at the same price.  Expect a relative error of 1e-3 in
    float32: enough for a look at the spectrum, too coarse for solving ill-conditioned systems.

    Args:
        module: Gives one tensor; taken in evaluation mode.
        inputs: ``[n, ...]``, or a tuple.
        likelihood: What the outputs mean.
        noise: The variance of the Gaussian.
        params: Which parameters, see :func:`dovetail.linalg.parameters.chosen_parameters`.

    >>> net = nn.Linear(1, 1, bias=False).double()
    >>> fisher = DifferencedFisher(net, torch.tensor([[1.0], [2.0]]))
    >>> fisher.product(torch.tensor([1.0])).round(decimals=6)
    tensor([5.], dtype=torch.float64)
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor | tuple[Tensor, ...],
        likelihood: Likelihood = "gaussian",
        noise: float = 1.0,
        params: Choice = None,
    ) -> None:
        self.function = Parametrised(module, inputs, params)
        self.size = self.function.size
        self._value, self._leaves = self.function.forward()
        self.forward_value = self._value.detach()
        # Nearly equal numbers are subtracted: the difference is made and scaled in float64, so that
        # only the network's own rounding is left in it.
        self._before = self.forward_value.double()
        self._curvature = output_curvature(self._before, likelihood, noise)
        self._length = float(self.function.flat.double().norm())

    def product(self, vector: Vector) -> Tensor:
        r"""The product :math:`F v`, flat ``[p]``, to about three digits in float32."""
        direction = self.function.unflatten(vector)
        long = float(self.function.flatten(direction).double().norm())
        if long == 0:
            return torch.zeros_like(self.function.flat)
        if not math.isfinite(long):
            raise SettingsError("the vector holds nan or inf")
        first = next(iter(self.function.theta.values()))
        step = math.sqrt(torch.finfo(first.dtype).eps) * (self._length or 1.0) / long
        moved = self._after(step, direction) - self._before
        if moved.norm() > STEEP * self._before.norm():
            moved = (moved + self._before - self._after(-step, direction)) / 2
        slope = self._curvature(moved / step).to(self.forward_value)
        return self.function.gradient(self._value, self._leaves, slope)

    def _after(self, step: float, direction: Mapping[str, Tensor]) -> Tensor:
        """The outputs after a step, in float64."""
        with torch.inference_mode(False), torch.no_grad():
            there = {n: t + step * direction[n] for n, t in self.function.theta.items()}
            value = self.function(there).double()
        if not bool(value.isfinite().all()):
            raise TaskError("the network gives nan or inf near its weights; look for it there")
        return value
