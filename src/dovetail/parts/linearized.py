r"""A network that a direction of its weights was added to, without its weights being moved.

.. math:: g(x) = \big( f_\theta(x) P + J_\theta(x)\, w\, P + b \big) / T

:math:`f` is the body's output, averaged over positions where it gives maps, :math:`P` a fixed
projection (or none), :math:`w` the direction, :math:`b` a constant of each output, :math:`T` a
temperature.  The first term is left out where the network itself was not part of the model.  The
derivative along :math:`w` comes with the value from one forward pass of dual numbers, so nothing of
the data that :math:`w` was found by is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, RecipeError, nearest, shown
from dovetail.linalg.jacobian import Parametrised
from dovetail.linalg.tangent import TangentFeatures


class LinearizedNetwork(nn.Module):
    """The mean of a linearised network, as a network.

    It is for prediction: the body counts as frozen, always runs in evaluation mode, and no gradient
    flows through.  A new one has a direction and a constant of zeros, and the temperature one.

    Args:
        body: Gives ``[n, d]`` or maps ``[n, d, ...]``.  It becomes this module's own, frozen.
        outputs: :math:`o`, what comes out.
        moves: The parameters of the body that have a direction; all of them unless said.
        projected: :math:`d`, where a projection makes :math:`o` numbers of them; else None.
        follows_network: Whether the body's own output counts.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> moved = LinearizedNetwork(net, 1)
    >>> _ = net.weight.fill_(1.0)
    >>> _ = moved.direction.weight.copy_(torch.tensor([[10.0, 0.0]]))
    >>> moved(torch.tensor([[3.0, 4.0]]))  # 3 + 4, and 10 * 3
    tensor([[37.]])
    >>> list(moved.state_dict())
    ['constant', 'temperature', 'body.weight', 'direction.weight']
    """

    projection: Tensor | None
    constant: Tensor
    temperature: Tensor

    def __init__(
        self,
        body: nn.Module,
        outputs: int,
        *,
        moves: Sequence[str] | None = None,
        projected: int | None = None,
        follows_network: bool = True,
    ) -> None:
        super().__init__()
        if any(isinstance(each, LinearizedNetwork) for each in body.modules()):
            # No derivative passes through it, and each one inside another doubles the time.
            raise RecipeError(
                "a linearised network cannot be inside another; linearise the network that it was "
                "made of, or put a trained head behind it"
            )
        every = dict(body.named_parameters())
        self.moves = _names(every, moves)
        self.follows_network = follows_network
        self.body = body.requires_grad_(False)
        self.direction = _tree({name: torch.zeros_like(every[name]) for name in self.moves})
        empty = None if projected is None else torch.zeros(projected, outputs)
        self.register_buffer("projection", empty)
        self.register_buffer("constant", torch.zeros(outputs))
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """``[n, o]``."""
        value, moved = self._both(x)
        if value.shape[1] != len(self.constant):
            raise ContractError(
                f"the network inside gives {value.shape[1]} numbers an input, not "
                f"{len(self.constant)}; there must be a projection to make these of those"
            )
        said = moved + self.constant
        if self.follows_network:
            said = said + value
        return (said / self.temperature).to(self.constant.dtype)

    def train(self, mode: bool = True) -> LinearizedNetwork:
        """Nothing but a flag: the body is always evaluated."""
        super().train(mode)
        self.body.eval()
        return self

    def extra_repr(self) -> str:
        """What no tensor's shape tells."""
        return f"follows_network={self.follows_network}"

    def _both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the body gives and how that moves along the direction, as rows ``[n, o]``."""
        moving = frozenset(self.moves)
        around = Parametrised(self.body, x, lambda name, _: name in moving)
        with torch.inference_mode(False), torch.no_grad():
            tangent = {
                name: tensor.to(around.theta[name], copy=True)
                for name, tensor in self.direction.named_buffers(remove_duplicate=False)
            }
            try:
                value, moved = around.pushed(tangent)
            except RuntimeError as error:  # an operation without a forward derivative
                return self._by_rows(around, tangent, error)
            return as_rows(value, self.projection), as_rows(moved, self.projection)

    def _by_rows(
        self, around: Parametrised, tangent: Mapping[str, Tensor], why: RuntimeError
    ) -> tuple[Tensor, Tensor]:
        """The same from the gradients of every output; or the error, if it was another one."""
        try:
            value = as_rows(around(around.theta), self.projection)
            names = [f"body.{name}" for name in around.theta]
            features = TangentFeatures(_Rows(self.body, self.projection), around.inputs[0], names)
        except Exception:  # the body is code of others; what it said first is what is wrong
            raise why from None
        return value, features.push(around.flatten(tangent)).to(value)


class _Rows(nn.Module):
    """A body whose output is projected."""

    def __init__(self, body: nn.Module, projection: Tensor | None) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("projection", projection)

    def forward(self, x: Tensor) -> Tensor:
        return as_rows(self.body(x), self.projection)  # type: ignore[arg-type]


def as_rows(outputs: Tensor, projection: Tensor | None) -> Tensor:
    """Rows ``[n, o]`` of what a network gave: its maps averaged over positions, projected.

    >>> as_rows(torch.ones(2, 3, 4, 4), torch.eye(3)[:, :1])
    tensor([[1.],
            [1.]])
    """
    if not isinstance(outputs, Tensor) or outputs.ndim == 0:
        raise ContractError(
            f"the network gives {type(outputs).__name__}, not one tensor for each input; wrap it "
            "so that it gives the one to adapt"
        )
    rows = outputs.flatten(2).mean(2) if outputs.ndim > 2 else outputs
    rows = rows[:, None] if rows.ndim == 1 else rows
    return rows if projection is None else rows @ projection.to(rows)


def _names(every: Mapping[str, Tensor], moves: Sequence[str] | None) -> tuple[str, ...]:
    """The parameters that move, in the network's own order."""
    wanted = set(every if moves is None else moves)
    if moves is not None and len(wanted) < len(moves):
        raise RecipeError("a parameter that moves is named twice")
    for name in wanted:
        if name not in every:
            raise RecipeError(f"no parameter is called {shown(name)}{nearest(name, every)}")
        if not every[name].is_floating_point():
            raise RecipeError(f"{name!r} is of {every[name].dtype} and cannot move")
    if not wanted:
        raise RecipeError("no parameter moves: there is nothing to linearise")
    return tuple(name for name in every if name in wanted)


def _tree(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Tensors by dotted name, as the buffers of modules inside each other."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        holder = root
        for step in path:
            if step not in holder._modules:
                holder.add_module(step, nn.Module())
            holder = holder.get_submodule(step)
        holder.register_buffer(leaf, tensor)
    return root
