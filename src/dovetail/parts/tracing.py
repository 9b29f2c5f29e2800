"""A module's own forward as a graph in which every child stays whole, and what it ends in.

Only the forward of the module itself is traced.  Children keep their class and their behaviour in
training and evaluation, which a deeper trace would freeze in one of the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn

from dovetail.core.activations import is_activation
from dovetail.core.errors import first_line
from dovetail.parts.zoo.layers import UnitLength


class Untraceable(Exception):
    """This module's forward cannot be told as one fixed graph."""


class _ChildrenWhole(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return True

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and a not in self.tensor_attrs:
            known = chain(self.root.parameters(), self.root.buffers())
            if not any(a is tensor for tensor in known):
                # It may be drawn at random, and fx would hang it on the user's module.
                raise TypeError("it makes a tensor that is neither a parameter nor a buffer")
        return super().create_arg(a)


def trace(module: nn.Module, *, to_cut: bool = True) -> fx.Graph:
    """Trace a module's own forward, arguments with a default left at their default.

    A graph to cut must be the same in training and evaluation; one to look at is the evaluation's.

    >>> class Twice(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a = nn.ReLU()
    ...     def forward(self, x):
    ...         return self.a(x) * 2
    >>> [node.op for node in trace(Twice()).nodes]
    ['placeholder', 'call_module', 'call_function', 'output']
    """
    if isinstance(module, fx.GraphModule):
        return module.graph
    with _untouched(module):
        module.training = False
        evaluation = _trace_once(module)
        module.training = True
        training = _trace_once(module) if to_cut else evaluation
    if _calls(training) != _calls(evaluation):
        raise Untraceable("its forward differs between training and evaluation")
    return evaluation


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Undo what a forward under trace leaves behind: flags, attributes, drawn random numbers."""
    before = dict(vars(module))
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for name in set(vars(module)) - set(before):
            del vars(module)[name]
        vars(module).update(before)


def _trace_once(module: nn.Module) -> fx.Graph:
    parameters = inspect.signature(module.forward).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    try:
        graph = _ChildrenWhole().trace(module, concrete_args=defaults or None)
    except Exception as error:  # the user's own forward runs here and may fail in any way
        raise Untraceable(f"its forward cannot be traced ({first_line(error)})") from None
    _forget_defaults(graph, len(defaults))
    return graph


def _forget_defaults(graph: fx.Graph, count: int) -> None:
    """Erase the placeholders of defaulted arguments and the checks that fx hangs on them."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for placeholder in placeholders[len(placeholders) - count :]:
        for node in reversed(_descendants(placeholder)):
            graph.erase_node(node)
        graph.erase_node(placeholder)


def _descendants(node: fx.Node) -> list[fx.Node]:
    reached = {node}
    below = []
    for other in node.graph.nodes:
        if reached & set(other.all_input_nodes):
            reached.add(other)
            below.append(other)
    return below


def _calls(graph: fx.Graph) -> list[tuple[str, str, str]]:
    return [(node.op, str(node.target), f"{node.args} {node.kwargs}") for node in graph.nodes]


# These move or thin out values but keep their sign, so the activation before them still counts.
_PASS_MODULES = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    UnitLength,
)
_PASS_FUNCTIONS = frozenset(
    {
        "flatten",
        "view",
        "reshape",
        "squeeze",
        "contiguous",
        "mean",
        "max_pool1d",
        "max_pool2d",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "dropout",
        "boolean_dispatch",  # how torch spells the functional max pools
    }
)


def trailing_activation(module: nn.Module) -> str:
    """The name of the last activation, or ``"identity"`` when there is none or it is hidden.

    >>> trailing_activation(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Flatten()))
    'relu'
    >>> trailing_activation(nn.Linear(2, 2))
    'identity'
    """
    return _of_module(module) or "identity"


def _of_module(module: nn.Module) -> str | None:
    """The activation; ``""`` for a module that ends in none; ``None`` for one that passes on."""
    if isinstance(module, _PASS_MODULES):
        return None
    name = _named(type(module).__name__)
    if is_activation(name):
        return name
    if isinstance(module, nn.Sequential):
        ends = map(_of_module, reversed(list(module)))
        return next((name for name in ends if name is not None), None)
    if next(module.children(), None) is None and not isinstance(module, fx.GraphModule):
        return ""
    graph = module.graph if isinstance(module, fx.GraphModule) else _graph(module)
    return _of_graph(module, graph) if graph is not None else ""


def _of_graph(module: nn.Module, graph: fx.Graph) -> str | None:
    node = graph.output_node().args[0]
    while isinstance(node, fx.Node):
        if node.op == "placeholder":
            return None
        if node.op == "call_module":
            name = _of_module(module.get_submodule(str(node.target)))
        else:
            name = _of_function(node)
        if name is not None:
            return name
        node = node.args[0] if node.args else None
    return ""


def _of_function(node: fx.Node) -> str | None:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in _PASS_FUNCTIONS:
        return None
    return _named(name.rstrip("_")) if is_activation(_named(name.rstrip("_"))) else ""


def _named(name: str) -> str:
    lowered = name.lower().replace("_", "-")
    return {"leakyrelu": "leaky-relu"}.get(lowered, lowered)


def _graph(module: nn.Module) -> fx.Graph | None:
    try:
        return trace(module, to_cut=False)
    except Untraceable:
        return None
