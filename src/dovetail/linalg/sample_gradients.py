r"""Gradients of single samples of one network: read off its graph, checked, or taken one by one.

Which rows of a graph belong to which sample is an assumption, so it is checked: for random weights
:math:`r` the sum :math:`\sum_{ic} r_{ic} \, \partial f_c(x_i) / \partial\theta` of what was read
must be the gradient of :math:`\sum_{ic} r_{ic} f_c(x_i)` that autograd finds.  Three samples settle
it for a network whose graph is always the same; where rows can be reordered by the data, or where
the three leave a parameter without any gradient, every block is checked.  A parameter that fails
has its gradients taken sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import functional_call

from dovetail.core.errors import ContractError, TaskError, first_line
from dovetail.linalg.gradient_factors import ROOM, Dense, Outer
from dovetail.linalg.gradient_rules import (
    BATCH_STATISTICS,
    RULES,
    feature_of,
    uses_of,
    with_biases,
)
from dovetail.linalg.jacobian import sample_jacobians

LAYOUTS = ("first", "second")
NONE = "none"  # no layout is right


class Differentiated:
    """A network in evaluation mode and the parameters its gradients are taken for.

    >>> network = Differentiated(nn.Linear(2, 1), ["weight"])
    >>> network.plan(torch.ones(5, 2))
    >>> network.features(torch.ones(5, 2))["weight"].dense().shape
    torch.Size([5, 1, 2])
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        for name, module in model.named_modules():
            statistics = isinstance(module, nn.modules.batchnorm._BatchNorm)
            if statistics and module.running_mean is None:
                raise ContractError(f"{name or 'the network'}: {BATCH_STATISTICS}")
        self.model = model
        # Copies that share storage: flags and gradients of the network's own stay untouched.
        values = {name: _plain(p) for name, p in model.named_parameters()}
        self.leaves = {name: values.pop(name).requires_grad_() for name in names}
        self.rest = values
        self.layouts: dict[str, str] = {}  # of parameters for which it is settled
        self.width = 0
        self.sample_bytes = 0

    def plan(self, x: Tensor) -> None:
        """Settle on three samples how gradients are read, and refuse what has none."""
        three = torch.stack([x[0], x[len(x) // 2], x[-1]])
        outputs = self.outputs(three)
        self.width = outputs.shape[1]
        self._each_by_itself(x, outputs[0].detach())
        features = self._features(three, outputs, settle=True)
        self.sample_bytes = sum(feature.nbytes for feature in features.values()) // 3

    def features(self, x: Tensor) -> dict[str, Dense | Outer]:
        """The gradients of samples, by parameter; parameters without any use are left out."""
        return self._features(x, self.outputs(x), settle=False)

    def outputs(self, x: Tensor) -> Tensor:
        """``[n, o]``, or an error that says what came instead."""
        try:
            outputs = functional_call(self.model, {**self.rest, **self.leaves}, (x,))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise TaskError(
                f"the network does not take inputs of shape {list(x.shape)} and type {x.dtype}: "
                f"{first_line(error)}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(x):
            what = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ContractError(
                f"the network gives {what} for {len(x)} samples, not [n, o]; wrap it in a module "
                "that flattens its outputs"
            )
        if outputs.shape[1] == 0 or not outputs.is_floating_point():
            raise ContractError(f"the network gives no real outputs: {outputs.dtype}, [n, 0]")
        if not bool(outputs.isfinite().all()):
            raise TaskError("the network's outputs are not finite; look at its weights and inputs")
        if not outputs.requires_grad:
            raise ContractError(
                "no chosen parameter reaches the outputs: none is used, or the network detaches "
                "them; choose others by params="
            )
        return outputs

    def _each_by_itself(self, x: Tensor, one: Tensor) -> None:
        """Refuse a network in which a sample's outputs depend on the others, or on chance."""
        other = torch.stack([x[0], x[0] if len(x) > 1 else torch.zeros_like(x[0])])
        again = self.outputs(other)[0].detach()
        near = torch.finfo(one.dtype).eps ** 0.5
        if not torch.allclose(one, again, rtol=near, atol=near * float(one.abs().max())):
            raise ContractError(
                "the outputs of a sample change with the other samples of the batch, or from call "
                "to call, so it has no Jacobian of its own: look for statistics of the batch or "
                "dropout that evaluation mode does not switch off"
            )

    def _features(self, x: Tensor, outputs: Tensor, *, settle: bool) -> dict[str, Dense | Outer]:
        uses, shuffles = uses_of(outputs, self.leaves)
        uses = {name: several for name, several in uses.items() if several}
        read = {
            name: several
            for name, several in uses.items()
            if all(use.node.name() in RULES for use in several) and self.layouts.get(name) != NONE
        }
        nodes = list(dict.fromkeys(use.node for several in read.values() for use in several))
        open_ = [name for name in read if shuffles or name not in self.layouts]
        try:
            grads = _grads(outputs, nodes)
            weights, truth = self._weighted(outputs, open_)
        except RuntimeError as error:
            raise ContractError(
                f"the network cannot be differentiated: {first_line(error)}"
            ) from error
        features: dict[str, Dense | Outer] = {}
        with torch.no_grad():
            for name, several in read.items():
                layouts = LAYOUTS if name in truth else (self.layouts[name],)
                for layout in layouts:
                    one = feature_of(several, grads, self.leaves[name].shape, len(x), layout)
                    if one is None or (name in truth and not _agrees(one, weights, truth[name])):
                        continue
                    features[name] = one
                    break
                else:
                    layout = NONE
                if settle and not shuffles and float(truth[name].norm()) > 0:
                    self.layouts[name] = layout
            features = with_biases(features, uses)
            features = {name: one.compact() for name, one in features.items()}
        missing = [name for name in uses if name not in features]
        if missing:
            del outputs, grads, nodes, read  # the graph, before another one is made
            features |= self._one_by_one(x, missing)
        return features

    def _weighted(self, outputs: Tensor, names: list[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """Random weights of the outputs, and the gradients of their weighted sum."""
        chance = torch.Generator().manual_seed(0)  # the caller's random numbers stay as they are
        weights = torch.randn(outputs.shape, generator=chance, dtype=torch.float64).to(outputs)
        if not names:
            return weights, {}
        leaves = [self.leaves[name] for name in names]
        total = (outputs * weights).sum()
        gradients = torch.autograd.grad(
            total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return weights, {name: one.flatten() for name, one in zip(names, gradients, strict=True)}

    def _one_by_one(self, x: Tensor, names: list[str]) -> dict[str, Dense | Outer]:
        """Gradients sample by sample: together where vmap can, else in a loop."""
        wanted = {name: self.leaves[name].detach() for name in names}
        others = {name: p.detach() for name, p in self.leaves.items() if name not in wanted}

        def of_one(values: dict[str, Tensor], sample: Tensor) -> Tensor:
            tensors = {**self.rest, **others, **values}
            outputs: Tensor = functional_call(self.model, tensors, (sample[None],))
            return outputs.reshape(self.width)

        numbers = self.width * sum(value.numel() for value in wanted.values())
        chunk = max(1, 4 * ROOM // (8 * numbers))
        try:
            jacobians = sample_jacobians(of_one, wanted, x, chunk=chunk)
        except RuntimeError:
            return self._in_a_loop(x, names)
        return {
            n: Dense(rows.detach().reshape(*rows.shape[:2], -1)) for n, rows in jacobians.items()
        }

    def _in_a_loop(self, x: Tensor, names: list[str]) -> dict[str, Dense | Outer]:
        leaves = [self.leaves[name] for name in names]
        rows: dict[str, list[Tensor]] = {name: [] for name in names}
        for i in range(len(x)):
            outputs = self.outputs(x[i : i + 1])[0]
            for one in outputs:
                gradients = torch.autograd.grad(
                    one, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for name, grad in zip(names, gradients, strict=True):
                    rows[name].append(grad.flatten())
        return {
            name: Dense(torch.stack(grads).reshape(len(x), self.width, -1))
            for name, grads in rows.items()
        }


def _plain(parameter: Tensor) -> Tensor:
    """The values of a parameter, apart from its flags."""
    return parameter.detach().clone() if parameter.is_inference() else parameter.detach()


def _grads(outputs: Tensor, nodes: list[Any]) -> dict[Any, Tensor]:
    """What comes back to each node for each output, ``[o, ...]``."""
    if not nodes:
        return {}
    edges = [GradientEdge(node, 0) for node in nodes]
    by_output = []
    for c in range(outputs.shape[1]):
        chosen = torch.zeros_like(outputs)
        chosen[:, c] = 1
        by_output.append(
            torch.autograd.grad(outputs, edges, chosen, retain_graph=True, allow_unused=True)
        )
    gradients: dict[Any, Tensor] = {}
    for node, several in zip(nodes, zip(*by_output, strict=True), strict=True):
        shape = next(one for one in several if one is not None)
        every = [torch.zeros_like(shape) if one is None else one for one in several]
        gradients[node] = every[0][None] if len(every) == 1 else torch.stack(every)
    return gradients


def _agrees(feature: Dense | Outer, weights: Tensor, truth: Tensor) -> bool:
    """Whether gradients of single samples add up to the gradient of the weighted sum."""
    weights = weights.to(truth.dtype)
    error = float((feature.weighted(weights) - truth).norm())
    near: float = torch.finfo(truth.dtype).eps ** 0.5
    if error <= near * float(truth.norm()):
        return True
    # What cancels in the sum leaves its rounding behind: measure by what was added, not by the sum.
    if isinstance(feature, Outer):
        inputs = feature.inputs if feature.looks_up else feature.inputs.abs()
        sizes: Dense | Outer = replace(feature, inputs=inputs, grads=feature.grads.abs())
    else:
        sizes = Dense(feature.rows.abs())
    return error <= near * float(sizes.weighted(weights.abs()).norm())
