"""A module's own forward as a graph in which every child stays whole.

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

from dovetail.core.errors import first_line

__all__ = ["Untraceable", "trace"]


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
    if _told(training) != _told(evaluation):
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
    found = []
    for other in node.graph.nodes:
        if reached & set(other.all_input_nodes):
            reached.add(other)
            found.append(other)
    return found


def _told(graph: fx.Graph) -> list[tuple[str, str, str]]:
    return [(node.op, str(node.target), f"{node.args} {node.kwargs}") for node in graph.nodes]
