r"""Products with the Jacobian of a network's outputs by its parameters, which is never formed.

A network with fixed inputs is a map :math:`\theta \mapsto f_\theta(x)` of some of its parameters
(:class:`Parametrised`): always in evaluation mode, never touching the module it was made from.  Let
:math:`J = \partial f_\theta(x) / \partial \theta` of shape :math:`no \times p`.  A direction
:math:`v` in the space of parameters moves the outputs by :math:`J v` (forward mode), a direction
:math:`u` among the outputs is pulled back to :math:`J^\top u` (reverse mode).  :class:`Jacobian`
runs the forward pass once for each of the two; after that a :math:`J v` costs about one forward, a
:math:`J^\top u` about one backward pass.  :func:`sample_jacobians` writes :math:`J` out, sample by
sample, for few outputs and parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, jacrev, linearize, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dovetail.core.errors import (
    DovetailError,
    SettingsError,
    TaskError,
    first_line,
    nearest,
    shown,
)
from dovetail.linalg.parameters import Choice, chosen_parameters

Vector: TypeAlias = Tensor | Mapping[str, Tensor]
"""A direction in parameter space: flat ``[p]``, or tensors by name, zero where none is given."""

_ALIKE = 1e-3
"""Two passes may differ by rounding, relative to the largest output, but not by more."""

_make_dual: Any = forward_ad.make_dual  # which torch has not annotated
_unpack_dual: Any = forward_ad.unpack_dual


class ForwardModeError(DovetailError, NotImplementedError):
    """A network has an operation that forward-mode differentiation does not know.

    >>> issubclass(ForwardModeError, NotImplementedError)
    True
    """


class Parametrised:
    r"""The map :math:`\theta \mapsto f_\theta(x)` for fixed inputs, as of now.

    Weights, buffers and inputs are copied, so that training the module further changes nothing
    here.  Inputs of floating point are brought to the first parameter's type and device.

    Args:
        module: Gives one tensor of floating point numbers; its mode does not matter.
        inputs: What it takes: a tensor, or several in a tuple.
        params: Which parameters :math:`\theta` is made of, see :func:`chosen_parameters`.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> function = Parametrised(net, torch.tensor([[1.0, 2.0]]))
    >>> function(function.unflatten(torch.tensor([3.0, 4.0])))
    tensor([[11.]])
    """

    def __init__(
        self, module: nn.Module, inputs: Tensor | tuple[Tensor, ...], params: Choice = None
    ) -> None:
        chosen = chosen_parameters(module, params)
        tensors = dict(module.named_parameters())
        self.module = module
        with torch.inference_mode(False), torch.no_grad():
            self.theta = {name: tensors[name].detach().clone() for name in chosen}
            rest = [*tensors.items(), *module.named_buffers()]
            self._fixed = {name: t.detach().clone() for name, t in rest if name not in self.theta}
        self.size = sum(tensor.numel() for tensor in self.theta.values())
        self.move_to(*(inputs if isinstance(inputs, tuple) else (inputs,)))

    @property
    def flat(self) -> Tensor:
        """The chosen parameters one after the other ``[p]``."""
        return self.flatten(self.theta)

    def __call__(self, theta: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """What the network gives with these parameters instead of its own, and other inputs."""
        everything = {**self._fixed, **theta}
        with evaluating(self.module), _differentiable():
            value = functional_call(self.module, everything, inputs or self.inputs)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TaskError(
                f"the network gives {kind}; wrap it so that it gives one tensor of floating point"
            )
        return value

    def move_to(self, *inputs: Tensor) -> None:
        """Go to other inputs, brought to the parameters' type and device."""
        with torch.inference_mode(False), torch.no_grad():
            self.inputs = tuple(map(self._own, inputs))

    def forward(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The value at the own parameters, with a graph, and the leaves that it hangs on."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {name: t.clone().requires_grad_() for name, t in self.theta.items()}
            value = self(leaves)
        if not bool(value.isfinite().all()):
            raise TaskError("the network gives nan or inf for these inputs; look for it there")
        return value, leaves

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Tensors by name, one after the other ``[p]``; zeros where a name is left out."""
        if stray := [name for name in tensors if name not in self.theta]:
            raise SettingsError(
                f"{shown(stray[0])} is not among the chosen parameters"
                f"{nearest(str(stray[0]), self.theta)}"
            )
        for name, tensor in tensors.items():
            if tensor.shape != self.theta[name].shape:
                raise SettingsError(
                    f"{name!r} has shape {list(self.theta[name].shape)}, but its direction "
                    f"{list(tensor.shape)}"
                )
        parts = [tensors.get(name, torch.zeros_like(own)) for name, own in self.theta.items()]
        return torch.cat([part.detach().reshape(-1) for part in parts])

    def unflatten(self, flat: Vector) -> dict[str, Tensor]:
        """A vector ``[p]`` as tensors by name, each of its parameter's shape and type."""
        if not isinstance(flat, Tensor):
            flat = self.flatten(flat)
        if flat.shape != (self.size,):
            raise SettingsError(
                f"a direction in the space of these parameters has shape [{self.size}], not "
                f"{list(flat.shape)}"
            )
        pieces = torch.split(flat.detach(), [own.numel() for own in self.theta.values()])
        owns = self.theta.items()
        return {n: piece.reshape(t.shape).to(t) for (n, t), piece in zip(owns, pieces, strict=True)}

    def pushed(self, tangent: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        r"""The value and how it moves along a direction, :math:`f_\theta(x)` and :math:`J v`.

        Forward mode, by dual numbers: about two forward passes, and nothing is kept.

        Args:
            tangent: :math:`v`, a tensor for every parameter, as :meth:`unflatten` gives them.

        Raises:
            RuntimeError: Where an operation has no forward derivative.
        """
        # torch warns of its own internals at the first forward derivative of a process.
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            with forward_ad.dual_level():
                both = _unpack_dual(
                    self({name: _make_dual(t, tangent[name]) for name, t in self.theta.items()})
                )
                value, moved = both.primal, both.tangent
        return value, torch.zeros_like(value) if moved is None else moved

    def gradient(
        self,
        value: Tensor | Sequence[Tensor],
        leaves: Mapping[str, Tensor],
        cotangent: Tensor | Sequence[Tensor],
    ) -> Tensor:
        """Pull a cotangent of a value, or of several, back to the leaves, flat ``[p]``.

        The graph is kept.  A value that none of the leaves takes part in asks nothing of them.
        """
        if isinstance(value, Tensor):
            value, cotangent = (value,), (cotangent,)  # type: ignore[assignment]
        pairs = [(v, u) for v, u in zip(value, cotangent, strict=True) if v.requires_grad]
        if not pairs:
            return torch.zeros_like(self.flat)
        with torch.inference_mode(False):
            gradients = torch.autograd.grad(
                [v for v, _ in pairs],
                list(leaves.values()),
                [u for _, u in pairs],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return torch.cat([tensor.detach().reshape(-1) for tensor in gradients])

    def _own(self, inputs: Tensor) -> Tensor:
        if not isinstance(inputs, Tensor):
            raise TaskError(f"inputs are tensors, or a tuple of them, not {type(inputs).__name__}")
        like = next(iter(self.theta.values()))
        kind = like.dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.detach().to(device=like.device, dtype=kind, copy=True)


class Jacobian:
    r"""How outputs move with the weights, :math:`f_{\theta + v}(x) \approx f_\theta(x) + J v`.

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
    >>> jacobian = Jacobian(net, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> jacobian.jvp(torch.tensor([10.0, 0.0, 1.0])).T
    tensor([[11., 31.]])
    >>> jacobian.jvp({"bias": torch.ones(1)}).T
    tensor([[1., 1.]])
    >>> jacobian.vjp(torch.ones(2, 1))
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
            ForwardModeError: Where an operation has no forward derivative.
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

        >>> jacobian = Jacobian(nn.Linear(1, 1), torch.tensor([[1.0], [2.0]]))
        >>> jacobian.gram_product(torch.tensor([1.0, 0.0]))
        tensor([2., 3.])
        """
        return self.jvp(self.vjp(cotangent)).reshape(cotangent.shape)

    def unflatten(self, flat: Vector) -> dict[str, Tensor]:
        """A flat vector ``[p]`` as tensors by name."""
        return self.function.unflatten(flat)

    @cached_property
    def _push(self) -> Callable[[dict[str, Tensor]], Tensor]:
        """Made at the first use: who needs gradients only does not pay for it."""
        function = self.function
        # torch warns of its own internals here, once in a process and at every trace.
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                value, push = linearize(function, function.theta)
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
        function = self.function
        still = {name: torch.zeros_like(tensor) for name, tensor in function.theta.items()}
        try:
            value, _ = function.pushed(still)
        except RuntimeError as error:
            raise ForwardModeError(
                f"this network cannot be differentiated forwards: {first_line(error)}\n"
                "Products with the Fisher matrix by finite differences need no forward mode: "
                "DifferencedFisher in dovetail.linalg.curvature."
            ) from error
        return value, lambda tangent: function.pushed(tangent)[1]


def sample_jacobians(
    function: Callable[..., Tensor],
    theta: Mapping[str, Tensor],
    *inputs: Tensor,
    chunk: int | None = None,
) -> dict[str, Tensor]:
    """The Jacobian of every sample by itself, by parameter ``[n, o, *shape]``.

    Args:
        function: Makes ``[o]`` of parameters by name and one sample of each of the inputs.
        theta: Where the derivatives are taken.
        inputs: ``[n, ...]`` each.
        chunk: Samples at a time; all of them when left out.

    Raises:
        RuntimeError: Where ``vmap`` cannot run an operation for many samples at once.

    >>> w = {"w": torch.tensor([1.0, 2.0])}
    >>> sample_jacobians(lambda held, x: (held["w"] * x).sum()[None], w, torch.eye(2))["w"]
    tensor([[[1., 0.]],
    <BLANKLINE>
            [[0., 1.]]])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that vmap runs in a loop
        each = vmap(jacrev(function), (None, *(0 for _ in inputs)), chunk_size=chunk)
        jacobians: dict[str, Tensor] = each(dict(theta), *inputs)
    return jacobians


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, every flag as before after it; gradients as they are."""
    flags = [(child, child.training) for module in modules for child in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for child, flag in flags:
            child.training = flag


@contextmanager
def _differentiable() -> Iterator[None]:
    """Attention by plain products: its fused kernels have no forward or second derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
