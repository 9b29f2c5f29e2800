"""Which activation a network's output went through last."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx, nn

from dovetail.core.activations import is_activation
from dovetail.parts.tracing import Untraceable, trace
from dovetail.parts.zoo.layers import UnitLength

__all__ = ["trailing_activation"]

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
        return _last(_of_module(child) for child in reversed(list(module)))
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
            found = _of_module(module.get_submodule(str(node.target)))
        else:
            found = _of_function(node)
        if found is not None:
            return found
        node = node.args[0] if node.args else None
    return ""


def _of_function(node: fx.Node) -> str | None:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in _PASS_FUNCTIONS:
        return None
    return _named(name.rstrip("_")) if is_activation(_named(name.rstrip("_"))) else ""


def _last(found: Iterable[str | None]) -> str | None:
    return next((name for name in found if name is not None), None)


def _named(name: str) -> str:
    lowered = name.lower().replace("_", "-")
    return {"leakyrelu": "leaky-relu"}.get(lowered, lowered)


def _graph(module: nn.Module) -> fx.Graph | None:
    try:
        return trace(module, to_cut=False)
    except Untraceable:
        return None
