r"""A network around its weights, as a linear model in how far they move.

.. math:: f_{\theta + w}(x) \approx f_\theta(x) + J_\theta(x)\, w

with :math:`J_\theta(x) = \partial f_\theta(x) / \partial\theta` of shape :math:`o \times p`.  The
network is frozen; :math:`w` is what inference is about.

What of a network's output is taken for the targets is a :class:`Readout`: all of it, some columns,
or a projection.  A part made for other classes has as many outputs as they were; a fixed projection
:math:`P` of those to the number wanted keeps everything the network computes in play,
:math:`g(x) = \operatorname{pool}(f(x)) P + b`.  It is drawn once and never fitted; the offset
:math:`b` is a parameter like others, with a prior of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, first_line, nearest
from dovetail.core.seeds import generator
from dovetail.linalg.jacobian import Parametrised, evaluating
from dovetail.linalg.parameters import Choice, by_layer, chosen_parameters
from dovetail.linalg.tangent import TangentFeatures

OFFSET = "offset"
"""The name of the offset among the parameters."""


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
        try:
            with evaluating(self.module), torch.no_grad():
                said = [
                    _as_rows(self.module(some), len(some)).double() for some in self._batches(x)
                ]
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, ContractError):
                raise
            raise ContractError(
                f"the network does not take inputs of shape {list(x.shape[1:])}: "
                f"{first_line(error)}"
            ) from error
        return torch.cat(said)

    def features(self, x: Tensor, *, memory: int = 2**31) -> TangentFeatures:
        """The rows of the Jacobian, in factors."""
        return TangentFeatures(self.module, x, list(self.names), memory=memory)

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        r"""How the outputs move, :math:`J_\theta(x) w`, float64 ``[n, o]``: two forward passes."""
        tangents = self.tangents()
        return torch.cat([tangents.at(some).push(w) for some in self._batches(x)])

    def pull(self, x: Tensor, u: Tensor) -> Tensor:
        r"""What outputs ask of the weights, :math:`J_\theta(x)^\top u`, float64 ``[p]``."""
        tangents = self.tangents()
        both = zip(self._batches(x), self._batches(u), strict=True)
        return torch.stack([tangents.at(some).pull(wanted) for some, wanted in both]).sum(0)

    def prior_deviations(self, scales: Mapping[str, float]) -> Tensor:
        """The standard deviation of every weight, float64 ``[p]``, by variances above zero.

        >>> LinearModel(nn.Linear(2, 1)).prior_deviations({"bias": 9.0})
        tensor([1., 1., 3.], dtype=torch.float64)
        """
        for name, scale in scales.items():
            if name not in self.sizes:
                raise SettingsError(f"a scale is given for {name!r}{nearest(name, self.names)}")
            if not 0 < scale < float("inf"):
                raise SettingsError(f"the scale of {name!r} is a variance above 0, got {scale}")
        variances = torch.tensor(
            [scales.get(each, 1.0) for each in self.names], dtype=torch.float64
        )
        return variances.sqrt().repeat_interleave(torch.tensor(list(self.sizes.values())))

    def tangents(self) -> Tangents:
        """Products with the Jacobian at inputs to be named, for weights as they are now."""
        return Tangents(self.module, self.names)

    def _batches(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x, self.batch_size)


class Tangents:
    """Products with the Jacobian at some inputs; weights are read once, at the start.

    The network runs where it is; vectors come and go by the CPU.

    >>> tangents = Tangents(nn.Linear(2, 1, bias=False), ["weight"])
    >>> tangents.at(torch.tensor([[1.0, 2.0]])).push(torch.tensor([3.0, 4.0]))
    tensor([[11.]], dtype=torch.float64)
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._around = Parametrised(module, (), list(names))
        self._graph: tuple[Tensor, dict[str, Tensor]] | None = None
        self._forwards = True

    def at(self, x: Tensor) -> Self:
        """Go to other inputs ``[b, ...]``."""
        self._around.move_to(x)
        self._graph = None
        return self

    def push(self, w: Tensor) -> Tensor:
        """The outputs' change along ``w [p]``, float64 ``[b, o]``: about two forward passes."""
        around, (x,) = self._around, self._around.inputs
        if self._forwards:
            try:
                moved = around.pushed(around.unflatten(w))[1]
                return _as_rows(moved, len(x)).to("cpu", torch.float64)
            except RuntimeError:  # an operation without a forward derivative
                self._forwards = False
        features = TangentFeatures(around.module, x, list(around.theta), memory=0)
        return features.push(w.double()).cpu()

    def pull(self, u: Tensor) -> Tensor:
        """What ``u [b, o]`` asks of the weights, float64 ``[p]``; the forward pass is shared."""
        if self._graph is None:
            self._graph = self._around.forward()
        value, leaves = self._graph
        pulled = self._around.gradient(value, leaves, u.to(value).reshape(value.shape))
        return pulled.to("cpu", torch.float64)


class Readout(nn.Module):
    """A network, the mean over positions of what it gives, a projection, an offset.

    Args:
        body: Gives ``[n, d]`` or maps ``[n, d, ...]``.
        width: :math:`o`, what comes out.
        projection: ``[d, o]``; None where the network gives ``o`` numbers already.

    >>> net = Readout(nn.Linear(3, 4), 2, drawn_projection(4, 2))
    >>> net(torch.zeros(5, 3)).shape, [name for name, _ in net.named_parameters()]
    (torch.Size([5, 2]), ['offset', 'body.weight', 'body.bias'])
    """

    projection: Tensor | None

    def __init__(self, body: nn.Module, width: int, projection: Tensor | None = None) -> None:
        super().__init__()
        self.body = body
        own = (each.dtype for each in body.parameters() if each.is_floating_point())
        dtype = next(own, torch.float32)  # what the body computes in
        self.register_buffer("projection", None if projection is None else projection.to(dtype))
        self.offset = nn.Parameter(torch.zeros(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``[n, o]``."""
        return self.projected(self.body(x)) + self.offset

    def projected(self, outputs: Tensor) -> Tensor:
        """What the network gave, as rows of the width wanted."""
        if not isinstance(outputs, Tensor):
            raise ContractError(
                f"the network gives {type(outputs).__name__}, not one tensor; wrap it so that it "
                "gives the one to adapt"
            )
        rows = outputs.flatten(2).mean(2) if outputs.ndim > 2 else outputs
        rows = rows.reshape(-1, 1) if rows.ndim < 2 else rows
        return rows if self.projection is None else rows @ self.projection


def drawn_projection(takes: int, gives: int, *, seed: int = 0) -> Tensor:
    r"""A fixed random matrix ``[takes, gives]``, entries :math:`\mathcal N(0, 1 / \text{takes})`.

    >>> drawn_projection(3, 2).equal(drawn_projection(3, 2))
    True
    """
    if takes < 1 or gives < 1:
        raise SettingsError(f"a projection of {takes} to {gives} numbers is none")
    draw = generator(seed, "projection")
    return torch.randn(takes, gives, generator=draw).div(takes**0.5)


def chosen_columns(takes: int, columns: list[int]) -> Tensor:
    """The projection ``[takes, len(columns)]`` that keeps some outputs, in this order.

    >>> torch.tensor([[5.0, 6.0, 7.0]]) @ chosen_columns(3, [2, 0])
    tensor([[7., 5.]])
    """
    projection = torch.zeros(takes, len(columns))
    projection[columns, torch.arange(len(columns))] = 1.0
    return projection


def _as_rows(outputs: object, n: int) -> Tensor:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != n:
        what = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ContractError(
            f"the network gives {what} for {n} inputs, not [n, o]; wrap it in a module that "
            "flattens its outputs"
        )
    return outputs
