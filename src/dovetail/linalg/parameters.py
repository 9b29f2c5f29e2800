r"""A network as a function of some of its parameters.

Curvature and linearisation treat a network with fixed inputs as a map
:math:`\theta \mapsto f_\theta(x)`.  Here is which entries :math:`\theta` has, and the map itself:
always in evaluation mode, never touching the module it was made from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import UninitializedParameter

from dovetail.core.errors import SettingsError, TaskError, nearest, shown

__all__ = ["Choice", "Parametrised", "Vector", "by_layer", "chosen_parameters", "refuse_lazy"]

Choice: TypeAlias = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""Patterns of names, a test of name and tensor, or None for all of them."""

Vector: TypeAlias = Tensor | Mapping[str, Tensor]
"""A direction in parameter space: flat ``[p]``, or tensors by name, zero where none is given."""


def chosen_parameters(module: nn.Module, params: Choice = None) -> tuple[str, ...]:
    """The names of the parameters asked for, each tensor once, in the module's own order.

    Args:
        module: Any module whose lazy layers have seen an input.
        params: None for all of them, frozen or not; a pattern or several, in which ``*`` stands for
            anything and the name of a child for all that is inside it; or a test of name and
            tensor.  Where two names share one tensor either of them finds it; the first is given.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> chosen_parameters(net, ["2", "*.bias"])
    ('0.bias', '2.weight', '2.bias')
    >>> chosen_parameters(net, lambda name, tensor: tensor.ndim > 1)
    ('0.weight', '2.weight')
    >>> chosen_parameters(net, "3.bias")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: no parameter is called '3.bias'; did you mean ...
    """
    refuse_lazy(module)
    every = dict(module.named_parameters(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in reversed(every.items())}
    wanted = {first[id(every[name])] for name in _matching(every, params)}
    if not wanted:
        raise SettingsError("no parameter was chosen: there is nothing to differentiate by")
    for name in wanted:
        if not every[name].is_floating_point():
            raise SettingsError(
                f"{name!r} is of {every[name].dtype}, but derivatives need real floating point "
                "numbers; leave it out"
            )
    return tuple(name for name in every if name in wanted)


def refuse_lazy(module: nn.Module) -> None:
    """Refuse a module with layers that wait for an input to learn their shapes.

    >>> refuse_lazy(nn.Linear(2, 3))
    """
    if not isinstance(module, nn.Module):
        return  # something else is wrong with it
    for name, tensor in module.named_parameters():
        if isinstance(tensor, UninitializedParameter):
            raise SettingsError(f"{name!r} has no shape yet: call the module once on an input")


def by_layer(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parameters grouped by the layer that holds them, in order.

    >>> by_layer(["0.weight", "0.bias", "head.fc.weight", "scale"])
    {'0': ('0.weight', '0.bias'), 'head.fc': ('head.fc.weight',), '': ('scale',)}
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        layer = name.rpartition(".")[0]
        groups[layer] = (*groups.get(layer, ()), name)
    return groups


def _matching(every: Mapping[str, Tensor], params: Choice) -> Iterator[str]:
    if params is None or callable(params):
        if params is not None:
            _refuse_other_arguments(params)
        yield from (name for name in every if params is None or params(name, every[name]))
        return
    if not isinstance(params, Iterable):
        raise SettingsError(
            "params is a pattern of names or several, a test of (name, tensor), or None for all "
            f"parameters, not {shown(params)}"
        )
    patterns = [params] if isinstance(params, str) else list(params)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise SettingsError(f"a pattern of parameter names is text, not {shown(pattern)}")
        found = [n for n in every if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
        if not found:
            raise SettingsError(f"no parameter is called {shown(pattern)}{nearest(pattern, every)}")
        yield from found


def _refuse_other_arguments(test: Callable[[str, Tensor], bool]) -> None:
    try:
        signature = inspect.signature(test)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind("name", None)
    except TypeError:
        raise SettingsError(
            f"params as a test takes two arguments, (name, tensor); this one takes {signature}"
        ) from None


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
            self.inputs = tuple(map(self._own, inputs if isinstance(inputs, tuple) else (inputs,)))
        self.size = sum(tensor.numel() for tensor in self.theta.values())

    @property
    def flat(self) -> Tensor:
        """The chosen parameters one after the other ``[p]``."""
        return self.flatten(self.theta)

    def __call__(self, theta: Mapping[str, Tensor]) -> Tensor:
        """What the network gives with these parameters instead of its own."""
        everything = {**self._fixed, **theta}
        with _evaluating(self.module), _differentiable():
            value = functional_call(self.module, everything, self.inputs, tie_weights=True)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TaskError(
                f"the network gives {kind}; wrap it so that it gives one tensor of floating point"
            )
        return value

    def forward(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The value at the own parameters, with a graph, and the leaves that it hangs on."""
        return self.forward_at(self.theta)

    def forward_at(self, theta: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The value at other parameters, with a graph, and the leaves that it hangs on."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = {name: t.detach().clone().requires_grad_() for name, t in theta.items()}
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

    def gradient(self, value: Tensor, leaves: Mapping[str, Tensor], cotangent: Tensor) -> Tensor:
        """Pull a cotangent of a value back to its leaves, flat ``[p]``; the graph is kept."""
        if not value.requires_grad:  # none of the chosen parameters takes part
            return torch.zeros_like(self.flat)
        with torch.inference_mode(False):
            found = torch.autograd.grad(
                value,
                list(leaves.values()),
                cotangent,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return torch.cat([tensor.detach().reshape(-1) for tensor in found])

    def _own(self, given: Tensor) -> Tensor:
        if not isinstance(given, Tensor):
            raise TaskError(f"inputs are tensors, or a tuple of them, not {type(given).__name__}")
        like = next(iter(self.theta.values()))
        kind = like.dtype if given.is_floating_point() else given.dtype
        return given.detach().to(device=like.device, dtype=kind, copy=True)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, every flag as before after it; gradients as they are."""
    flags = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
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
