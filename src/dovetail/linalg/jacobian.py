r"""Products with the Jacobian of a network's outputs by its parameters, which is never formed.

For fixed inputs let :math:`J = \partial f_\theta(x) / \partial \theta` of shape
:math:`no \times p`.  A direction :math:`v` in the space of parameters moves the outputs by
:math:`J v` (forward mode), a direction :math:`u` among the outputs is pulled back to
:math:`J^\top u` (reverse mode).  The forward pass runs once for each of the two; after that a
:math:`J v` costs about one forward, a :math:`J^\top u` about one backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import jvp, linearize

from dovetail.core.errors import DovetailError, SettingsError, TaskError, first_line
from dovetail.linalg.parameters import Choice, Parametrised, Vector

__all__ = ["Linearised", "LinearisationError"]

_ALIKE = 1e-3
"""Two passes may differ by rounding, relative to the largest output, but not by more."""


class LinearisationError(DovetailError, NotImplementedError):
    """A network has an operation that forward-mode differentiation does not know.

    >>> issubclass(LinearisationError, NotImplementedError)
    True
    """


class Linearised:
    r"""A network around its parameters: :math:`f_{\theta + v}(x) \approx f_\theta(x) + J v`.

    In evaluation mode, at the weights as they are now; the module itself is left alone and may be
    trained further.  Everything is of the module's floating point type: where digits matter, as in
    ill-conditioned systems, make it of ``module.double()``.

    Args:
        module: Gives one tensor, ``[n, o]`` or any other shape.
        inputs: ``[n, ...]``, or a tuple where it takes several.
        params: Which parameters may move, see :func:`dovetail.linalg.parameters.chosen_parameters`.

    Attributes:
        forward_value: :math:`f_\theta(x)`, of the output's shape.
        size: The number of parameters :math:`p`.

    >>> net = nn.Linear(2, 1)
    >>> around = Linearised(net, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> around.jvp(torch.tensor([10.0, 0.0, 1.0])).T
    tensor([[11., 31.]])
    >>> around.jvp({"bias": torch.ones(1)}).T
    tensor([[1., 1.]])
    >>> around.vjp(torch.ones(2, 1))
    tensor([4., 6., 2.])
    """

    def __init__(
        self, module: nn.Module, inputs: Tensor | tuple[Tensor, ...], params: Choice = None
    ) -> None:
        self.function = Parametrised(module, inputs, params)
        self._value, self._leaves = self.function.forward()
        self.forward_value = self._value.detach()
        self.size = self.function.size

    def jvp(self, tangent: Vector) -> Tensor:
        r"""How the outputs move: :math:`J v`, of the outputs' shape.

        Args:
            tangent: :math:`v`, flat ``[p]`` or tensors by name; a name left out does not move.

        Raises:
            LinearisationError: Where an operation has no forward derivative.
        """
        return self._push(self.function.unflatten(tangent)).detach()

    def vjp(self, cotangent: Tensor) -> Tensor:
        r"""The gradient :math:`J^\top u`, flat ``[p]``, of :math:`\langle u, f_\theta(x)\rangle`.

        Args:
            cotangent: :math:`u`, of the outputs' shape, or as one flat vector.
        """
        own = self._value
        if cotangent.shape not in (own.shape, (own.numel(),)):
            raise SettingsError(
                f"the outputs have shape {list(own.shape)}, the cotangent {list(cotangent.shape)}; "
                "give one number for each output"
            )
        shaped = cotangent.detach().reshape(own.shape).to(self.forward_value)
        return self.function.gradient(own, self._leaves, shaped)

    def gram_product(self, cotangent: Tensor) -> Tensor:
        r"""The tangent kernel times a vector, :math:`J J^\top u`, of the cotangent's shape.

        >>> around = Linearised(nn.Linear(1, 1), torch.tensor([[1.0], [2.0]]))
        >>> around.gram_product(torch.tensor([1.0, 0.0]))
        tensor([2., 3.])
        """
        return self.jvp(self.vjp(cotangent)).reshape(cotangent.shape)

    def unflatten(self, flat: Vector) -> dict[str, Tensor]:
        """A flat vector ``[p]`` as tensors by name."""
        return self.function.unflatten(flat)

    @cached_property
    def _push(self) -> Callable[[dict[str, Tensor]], Tensor]:
        """Made at the first use: who needs gradients only does not pay for it."""
        function, theta = self.function, self.function.theta
        # torch warns of its own internals here, once in a process and at every trace.
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                value, push = linearize(function, theta)
            except RuntimeError:  # not to be traced, as where it looks at its data to decide
                value, push = self._retraced()
        scale = float(self.forward_value.abs().max()) if value.numel() else 0.0
        if not torch.allclose(value, self.forward_value, rtol=0, atol=_ALIKE * scale):
            raise TaskError(
                "the network gives different outputs for the same inputs in evaluation mode; "
                "remove what draws random numbers or counts its calls"
            )
        return push

    def _retraced(self) -> tuple[Tensor, Callable[[dict[str, Tensor]], Tensor]]:
        """The forward pass with every product anew: about twice the price, but fewer demands."""

        def push(tangent: dict[str, Tensor]) -> Tensor:
            with torch.inference_mode(False), torch.no_grad():
                moved: Tensor = jvp(self.function, (self.function.theta,), (tangent,))[1]
            return moved

        still = {name: torch.zeros_like(tensor) for name, tensor in self.function.theta.items()}
        try:
            value: Tensor = jvp(self.function, (self.function.theta,), (still,))[0]
        except RuntimeError as error:
            raise LinearisationError(
                f"this network cannot be differentiated forwards: {first_line(error)}\n"
                "Products with the Fisher matrix by finite differences need no forward mode: "
                "DifferencedFisher in dovetail.linalg.curvature."
            ) from error
        return value, push
