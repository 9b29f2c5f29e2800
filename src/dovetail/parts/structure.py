"""A module's structure as facts: what its weights alone do not tell.

Two networks can hold the same tensors and compute different things (another activation, another
stride).  These lines tell them apart, and are the same in every process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import fx, nn

__all__ = ["structure_of"]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def structure_of(module: nn.Module) -> tuple[str, ...]:
    """The name, class and settings of every module inside, and the steps of every graph.

    >>> structure_of(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    (':Sequential()', '0:Linear(in_features=2, out_features=1, bias=True)', '1:ReLU()')
    """
    return tuple(_ADDRESS.sub("", line) for line in _lines(module))


def _lines(module: nn.Module) -> Iterator[str]:
    for name, child in module.named_modules(remove_duplicate=False):
        yield f"{name}:{type(child).__name__}({child.extra_repr()})"
        if isinstance(child, fx.GraphModule):
            for node in child.graph.nodes:
                target = getattr(node.target, "__name__", node.target)
                yield f"  {node.op} {target} {node.args} {node.kwargs}"
