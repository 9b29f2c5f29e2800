r"""A network around its weights, as a linear model in how far they move.

.. math:: f_{\theta + w}(x) \approx f_\theta(x) + J_\theta(x)\, w

with :math:`J_\theta(x) = \partial f_\theta(x) / \partial\theta` of shape :math:`o \times p`.  The
network is frozen; :math:`w` is what inference is about.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from dovetail.core.errors import ContractError, SettingsError, first_line
from dovetail.linalg.parameters import Choice, Parametrised, by_layer, chosen_parameters
from dovetail.linalg.tangent import TangentFeatures

__all__ = ["LinearModel"]

make_dual: Any = forward_ad.make_dual  # which torch has not annotated
unpack_dual: Any = forward_ad.unpack_dual


class LinearModel:
    r"""The features :math:`J_\theta(x)` of a network and what is made of them.

    Args:
        module: Maps prepared inputs ``[n, ...]`` to ``[n, o]``.  It is used as it is, in evaluation
            mode; give a copy if it is to be trained further.
        params: Which parameters may move; see
            :func:`dovetail.linalg.parameters.chosen_parameters`.
        batch_size: Inputs at a time in passes that keep nothing.

    Attributes:
        names: The parameters that may move, in the order of flat vectors.
        groups: The same by layer.
        size: How many numbers they have, :math:`p`.

    >>> model = LinearModel(nn.Linear(2, 1), params="weight")
    >>> model.push(torch.tensor([[1.0, 2.0]]), torch.tensor([10.0, 1.0]))
    tensor([[12.]], dtype=torch.float64)
    >>> model.pull(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]))
    tensor([3., 6.], dtype=torch.float64)
    """

    def __init__(self, module: nn.Module, params: Choice = None, *, batch_size: int = 512) -> None:
        if not (isinstance(batch_size, int) and batch_size >= 1):
            raise SettingsError(f"batch_size is a whole number from 1, got {batch_size!r}")
        self.module, self.batch_size = module, batch_size
        self.names = chosen_parameters(module, params)
        tensors = dict(module.named_parameters())
        self.sizes = {name: tensors[name].numel() for name in self.names}
        self.groups = by_layer(self.names)
        self.size = sum(self.sizes.values())

    @property
    def theta(self) -> Tensor:
        """The parameters as they are, flat ``[p]``, float64."""
        tensors = dict(self.module.named_parameters())
        return torch.cat([tensors[name].detach().double().flatten() for name in self.names])

    def outputs(self, x: Tensor) -> Tensor:
        r"""What the network says, :math:`f_\theta(x)`, float64 ``[n, o]``."""
        said = []
        modes = {child: child.training for child in self.module.modules()}
        self.module.eval()
        try:
            with torch.no_grad():
                for some in self._batches(x):
                    said.append(_as_rows(self.module(some), len(some)).double())
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, ContractError):
                raise
            raise ContractError(
                f"the network does not take inputs of shape {list(x.shape[1:])}: "
                f"{first_line(error)}"
            ) from error
        finally:
            for child, training in modes.items():
                child.training = training
        return torch.cat(said)

    def features(self, x: Tensor, *, memory: int = 2**31) -> TangentFeatures:
        """The rows of the Jacobian, in factors."""
        return TangentFeatures(self.module, x, list(self.names), memory=memory)

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        r"""How the outputs move, :math:`J_\theta(x) w`, float64 ``[n, o]``: two forward passes."""
        moved = []
        for some in self._batches(x):
            around = Parametrised(self.module, some, list(self.names))
            tangent = around.unflatten(w)
            try:
                moved.append(_as_rows(_forward_mode(around, tangent), len(some)).double())
            except RuntimeError:  # an operation without a forward derivative
                moved.append(self.features(some).push(w.double()))
        return torch.cat(moved)

    def pull(self, x: Tensor, u: Tensor) -> Tensor:
        r"""What outputs ask of the weights, :math:`J_\theta(x)^\top u`, float64 ``[p]``."""
        total = torch.zeros(self.size, dtype=torch.float64, device=x.device)
        for some, wanted in zip(self._batches(x), torch.split(u, self.batch_size), strict=True):
            around = Parametrised(self.module, some, list(self.names))
            value, leaves = around.forward()
            cotangent = wanted.to(value).reshape(value.shape)
            total += around.gradient(value, leaves, cotangent).double()
        return total

    def _batches(self, x: Tensor) -> Iterator[Tensor]:
        yield from torch.split(x, self.batch_size)


def _forward_mode(around: Parametrised, tangent: dict[str, Tensor]) -> object:
    """The derivative of a network's outputs along one direction of its parameters."""
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's own, of its internals
        with forward_ad.dual_level():
            duals = {name: make_dual(t, tangent[name]) for name, t in around.theta.items()}
            value = around(duals)
            moved = unpack_dual(value).tangent
    return torch.zeros_like(value) if moved is None else moved


def _as_rows(outputs: object, n: int) -> Tensor:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n:
        what = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ContractError(
            f"the network gives {what} for {n} inputs, not [n, o]; wrap it in a module that "
            "flattens its outputs"
        )
    return outputs
