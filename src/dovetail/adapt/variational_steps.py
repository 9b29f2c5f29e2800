"""What one step of variational inference is made of: a likelihood, and products with a Jacobian."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import jvp

from dovetail.core.errors import (
    ContractError,
    DovetailError,
    SettingsError,
    TaskError,
    first_line,
    nearest,
)
from dovetail.linalg.parameters import Parametrised
from dovetail.linalg.tangent import TangentFeatures

__all__ = ["Likelihood", "Tangents", "checked_data", "paired"]

_BATCH = 512  # inputs of one forward pass that keeps nothing


class Likelihood:
    r"""Targets given functions :math:`g`: of classes, or of numbers with Gaussian noise.

    Functions are ``[draws, b, o]``, rows say which of the targets they are about.

    >>> likelihood = Likelihood(torch.tensor([0, 1]), None)
    >>> g = torch.zeros(1, 1, 2, dtype=torch.float64)
    >>> likelihood.slope(g, slice(0, 1))
    tensor([[[ 0.5000, -0.5000]]], dtype=torch.float64)
    """

    def __init__(self, targets: Tensor, noise: float | None) -> None:
        self.targets, self.noise = targets.cpu(), noise

    def log_density(self, g: Tensor, rows: Tensor | slice) -> Tensor:
        """Of each target, ``[draws, b]``."""
        target = self.targets[rows]
        if self.noise is None:
            codes = target.expand(g.shape[:-1])[..., None]
            return g.log_softmax(-1).gather(-1, codes)[..., 0]
        constant = math.log(2 * math.pi * self.noise)
        return -0.5 * ((target.double() - g).square() / self.noise + constant).sum(-1)

    def slope(self, g: Tensor, rows: Tensor | slice) -> Tensor:
        r"""The gradient :math:`u = \nabla_g \log p`, ``[draws, b, o]``."""
        target = self.targets[rows]
        if self.noise is None:
            return nn.functional.one_hot(target, g.shape[-1]) - g.softmax(-1)
        return (target.double() - g) / self.noise

    def drawn_slope(self, g: Tensor, draw: torch.Generator) -> Tensor:
        r"""A random ``[b, o]`` of mean 0 and covariance :math:`-\nabla_g^2 \log p`, each row alone.

        For classes that is :math:`\operatorname{diag} p - p p^\top = R R^\top` with
        :math:`R = \operatorname{diag}\sqrt p - p \sqrt{p}^\top`; of several draws the mean.
        """
        signs = torch.randint(0, 2, g.shape, generator=draw).double() * 2 - 1
        if self.noise is None:
            p = g.softmax(-1)
            part = p.sqrt() * signs
            signs = part - p * part.sum(-1, keepdim=True)
        else:
            signs = signs / math.sqrt(self.noise)
        return signs.sum(0) / math.sqrt(len(g))


class Tangents:
    """Products with the Jacobian at some inputs; weights are read once, at the start.

    The network runs where it is; vectors come and go by the CPU.

    >>> tangents = Tangents(nn.Linear(2, 1, bias=False), ["weight"])
    >>> tangents.push(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, 4.0]))
    tensor([[11.]], dtype=torch.float64)
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.names = list(names)
        self.around = Parametrised(module, (), self.names)
        self._graph: tuple[Tensor, dict[str, Tensor]] | None = None
        self._forwards = True

    def root(self, scales: Mapping[str, float]) -> Tensor:
        """The prior's standard deviation of every weight, float64 ``[p]``."""
        theta = self.around.theta
        for name, scale in scales.items():
            if name not in theta:
                raise SettingsError(f"a scale is given for {name!r}{nearest(name, theta)}")
            if not 0 < scale < math.inf:
                raise SettingsError(f"the scale of {name!r} is a variance above 0, got {scale}")
        parts = [
            torch.full((tensor.numel(),), math.sqrt(scales.get(name, 1.0)), dtype=torch.float64)
            for name, tensor in theta.items()
        ]
        return torch.cat(parts)

    def at(self, x: Tensor) -> None:
        """Go to other inputs."""
        like = next(iter(self.around.theta.values()))
        kind = like.dtype if x.is_floating_point() else x.dtype
        self.around.inputs = (x.to(device=like.device, dtype=kind),)
        self._graph = None

    def refuse_other_width(self, x: Tensor, width: int) -> None:
        """Refuse a network that does not give ``width`` numbers for such inputs."""
        self.at(x[:1])
        try:
            with torch.no_grad():
                said = self.around(self.around.theta)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, DovetailError):
                raise
            raise ContractError(
                f"the network does not take inputs of shape {list(x.shape)}: {first_line(error)}"
            ) from error
        if said.shape != (1, width):
            raise ContractError(
                f"the network gives {list(said.shape)} for one input where the mean has [1, "
                f"{width}]; both are [n, o], a column for each class or number"
            )

    def pushed(self, w: Tensor) -> Tensor:
        """The outputs' change along ``w [p]``, float64 ``[b, o]``: about two forward passes."""
        tangent = self.around.unflatten(w)
        if self._forwards:
            try:
                # torch warns of its own internals at the first forward derivative of a process.
                with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
                    warnings.simplefilter("ignore")
                    moved: Tensor = jvp(self.around, (self.around.theta,), (tangent,))[1]
                return moved.to("cpu", torch.float64)
            except RuntimeError:  # an operation without a forward derivative
                self._forwards = False
        features = TangentFeatures(self.around.module, self.around.inputs[0], self.names, memory=0)
        return features.push(w).cpu()

    def pull(self, u: Tensor) -> Tensor:
        """What ``u [b, o]`` asks of the weights, float64 ``[p]``; the forward pass is shared."""
        if self._graph is None:
            self._graph = self.around.forward()
        value, leaves = self._graph
        return self.around.gradient(value, leaves, u.to(value).reshape(value.shape)).to(
            "cpu", torch.float64
        )

    def push(self, x: Tensor, w: Tensor) -> Tensor:
        """:meth:`pushed` for many inputs ``[n, ...]``, some at a time."""
        moved = []
        for some in torch.split(x, _BATCH):
            self.at(some)
            moved.append(self.pushed(w))
        return torch.cat(moved)


def paired(middle: Tensor, step: Tensor) -> Tensor:
    """Both sides of a middle ``[n, o]``, stacked ``[2, n, o]``.

    >>> paired(torch.ones(1), torch.ones(1)).flatten()
    tensor([2., 0.])
    """
    return torch.stack([middle + step, middle - step])


def checked_data(x: Tensor, labels: Tensor, mean: Tensor, noise: float | None) -> Tensor:
    """Refuse data that no posterior can be found for; the mean, float64.

    >>> checked_data(torch.zeros(1, 2), torch.tensor([2]), torch.zeros(1, 2), None)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: labels are codes from 0 to 1, but there is 2
    """
    if len(x) == 0:
        raise TaskError("there are no inputs; give at least one")
    if mean.ndim != 2 or not len(mean) == len(labels) == len(x):
        raise TaskError(
            f"{len(x)} inputs, {len(labels)} labels and a mean of {list(mean.shape)}; give one "
            "label and one row of the mean [n, o] for each input"
        )
    for name, values in (("inputs", x), ("mean", mean), ("labels", labels)):
        if not bool(values.isfinite().all()):
            raise TaskError(f"the {name} hold numbers that are not finite; drop or fill them")
    if noise is not None:
        if not 0 < noise < math.inf:
            raise SettingsError(f"noise is a variance above 0, got {noise!r}")
        if labels.shape != mean.shape:
            raise TaskError(f"targets are {list(labels.shape)}, the mean {list(mean.shape)}")
        return mean.detach().to("cpu", torch.float64)
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise TaskError(f"labels are whole numbers [n], got {labels.dtype} {list(labels.shape)}")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= mean.shape[1]:
        wrong = least if least < 0 else most
        raise TaskError(f"labels are codes from 0 to {mean.shape[1] - 1}, but there is {wrong}")
    return mean.detach().to("cpu", torch.float64)
