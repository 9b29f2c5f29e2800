"""Cutting a module in two, keeping its own child modules, names and storage.

A chain (``nn.Sequential``) is cut between its children.  Any other module is cut in the graph of
its own forward (:mod:`tracing`).  A point inside a child is found by cutting the child the same
way, so only the ancestors of the point are ever opened: ``layer3.0.conv1`` opens the network,
``layer3`` and ``layer3.0``, and leaves every other module whole.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import fx, nn

from dovetail.core.errors import CutError, nearest, shown
from dovetail.parts.modules import shared_tensors
from dovetail.parts.tracing import Untraceable, trace


@dataclass(frozen=True)
class Halves:
    """Front, back, and how many tensors cross from one to the other."""

    front: nn.Module
    back: nn.Module
    crossing: int = 1


class _NoSuchPoint(Exception):
    """The path leads to no child and no operation."""


class Chain(nn.Sequential):
    """A chain whose links may hand over several tensors.

    >>> import torch
    >>> class Both(nn.Module):
    ...     def forward(self, x, y):
    ...         return x + y
    >>> class Twin(nn.Module):
    ...     def forward(self, x):
    ...         return x, x
    >>> Chain(Twin(), Both())(torch.ones(1))
    tensor([2.])
    """

    def forward(self, *inputs):  # type: ignore[no-untyped-def]
        """Each child is called with what the one before it returned."""
        for child in self:
            output = child(*inputs)
            inputs = output if isinstance(output, tuple) else (output,)
        return inputs if len(inputs) > 1 else inputs[0]


def is_chain(module: nn.Module) -> bool:
    """Whether the module just calls its children one after the other."""
    return type(module).forward in (nn.Sequential.forward, Chain.forward)


def split(module: nn.Module, at: str) -> Halves:
    """Cut ``module`` after the child or the operation called ``at``.

    >>> net = nn.Sequential(OrderedDict(a=nn.Linear(3, 2), b=nn.ReLU(), c=nn.Linear(2, 1)))
    >>> halves = split(net, "b")
    >>> list(halves.front.state_dict()), list(halves.back.state_dict())
    (['a.weight', 'a.bias'], ['c.weight', 'c.bias'])
    """
    try:
        halves = _split(module, at)
    except _NoSuchPoint:
        raise CutError(f"no cut point {shown(at)}{_near(module, at)}") from None
    except Untraceable as why:
        raise CutError(
            f"cannot cut at {shown(at)}: {why}; cut outside of it, or build it as an nn.Sequential"
        ) from None
    names = set(module.state_dict())
    front, back = set(halves.front.state_dict()), set(halves.back.state_dict())
    if lost := sorted(names - front - back):
        raise CutError(f"{lost[0]!r} takes no part in the forward pass; it would be lost by a cut")
    # A buffer that is never stored is nobody's: both sides may have it.
    if tied := [name for name in shared_tensors(halves.front, halves.back) if name in front]:
        raise CutError(
            f"cannot cut at {at!r}: {tied[0]!r} is shared by both sides, and two parts cannot own "
            "one tensor; cut elsewhere, or give each side its own copy first"
        )
    return halves


def points(module: nn.Module, *, backwards: bool = False) -> Iterator[str]:
    """The names of all places where exactly one tensor crosses, in the order of the network.

    A module is opened when its turn comes: who looks for a place near the end goes ``backwards``.
    """
    places = list(_single_crossings(module))
    for place in reversed(places) if backwards else places:
        if backwards and not place.last:
            yield place.name
        if place.child is not None:
            inside = points(place.child, backwards=backwards)
            yield from (f"{place.name}.{inner}" for inner in inside)
        if not backwards and not place.last:
            yield place.name


def _near(module: nn.Module, at: str) -> str:
    """What the user may have meant.  Finding the points opens every module, so not of very many."""
    names = [name for name, _ in module.named_modules() if name]
    known = points(module) if len(names) <= 500 else names
    # Where no name is near all are listed, at first those that are not inside of another.
    return nearest(at, sorted(known, key=lambda name: name.count(".")))


def _split(module: nn.Module, at: str) -> Halves:
    return _split_chain(module, at) if is_chain(module) else _split_graph(module, at)


# Chains -------------------------------------------------------------------------------------------


def _split_chain(chain: nn.Module, at: str) -> Halves:
    name, _, rest = at.partition(".")
    children = _links(chain)
    names = [child_name for child_name, _ in children]
    if name not in names:
        raise _NoSuchPoint
    here = names.index(name)
    before, child, after = children[:here], children[here][1], children[here + 1 :]
    joined = isinstance(chain, Chain)
    if not rest:
        front = _chain([*before, (name, child)], joined)
        return Halves(front, _chain(after, joined), _handed_over(chain, child))
    inner = _split(child, rest)
    front = _chain([*before, (name, inner.front)], joined)
    back = _chain([(name, inner.back), *after], joined or inner.crossing > 1)
    return Halves(front, back, inner.crossing)


def _links(chain: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children in order; unlike ``named_children``, with one that stands there twice."""
    return [(name, child) for name, child in chain._modules.items() if child is not None]


def _chain(children: list[tuple[str, nn.Module]], several: bool) -> nn.Sequential:
    return (Chain if several else nn.Sequential)(OrderedDict(children))


def _handed_over(chain: nn.Module, child: nn.Module) -> int:
    """How many tensors a child hands to the next: several at the seam of a cut inside a block."""
    if not isinstance(chain, Chain):
        return 1
    if isinstance(child, fx.GraphModule):
        returned = child.graph.output_node().args[0]
        return len(returned) if isinstance(returned, tuple) else 1
    links = _links(child) if is_chain(child) else []
    return _handed_over(chain, links[-1][1]) if links else 1


# Graphs -------------------------------------------------------------------------------------------

# Their result is a number or a shape, never a tensor to cut at.
_NOT_TENSORS = frozenset({"size", "dim", "numel", "getattr", "getitem", "len", "eq"})


def _split_graph(module: nn.Module, at: str) -> Halves:
    try:
        graph = trace(module)
    except Untraceable as why:
        raise Untraceable(f"{type(module).__name__} would be opened, and {why}") from None
    node, rest = _find(module, graph, at)
    front_nodes = _upto(node)
    crossing = _crossing(graph, node, front_nodes)
    inner = _split(module.get_submodule(str(node.target)), rest) if rest else None
    others = [value for value in crossing if value is not node]

    front = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for old in graph.nodes:
        if old in front_nodes:
            copies[old] = front.node_copy(old, lambda n: copies[n])
    count = inner.crossing if inner else 1
    outputs = (
        [copies[node]]
        if count == 1
        else [front.call_function(operator.getitem, (copies[node], i)) for i in range(count)]
    )
    outputs += [copies[value] for value in others]
    front.output(outputs[0] if len(outputs) == 1 else tuple(outputs))

    back = fx.Graph()
    fed = [back.placeholder(f"{node.name}_{i}" if count > 1 else node.name) for i in range(count)]
    placed = {value: back.placeholder(value.name) for value in others}
    placed[node] = back.call_module(str(node.target), tuple(fed)) if inner else fed[0]
    for old in graph.nodes:
        if old not in front_nodes:
            placed[old] = back.node_copy(old, lambda n: placed[n])

    halves = [_module_of(module, graph) for graph in (front, back)]
    if inner:
        halves[0].set_submodule(str(node.target), inner.front)
        halves[1].set_submodule(str(node.target), inner.back)
    return Halves(halves[0], halves[1], len(outputs))


def _module_of(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    half = fx.GraphModule(root, graph, class_name=type(root).__name__)
    half.training = root.training
    stored = set(root.state_dict())
    for path, child in half.named_modules():
        for name in child._buffers:  # fx makes every buffer it copies a stored one
            if (f"{path}.{name}" if path else name) not in stored:
                child._non_persistent_buffers_set.add(name)
    return half


def _find(module: nn.Module, graph: fx.Graph, at: str) -> tuple[fx.Node, str]:
    """The node that computes ``at`` or contains it, and the rest of the path."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        target = str(node.target)
        if node.op == "call_module" and (at == target or at.startswith(target + ".")):
            if calls[node.target] > 1:
                raise CutError(
                    f"{target!r} is called {calls[node.target]} times, so it names no one place"
                    f"{_near(module, at)}"
                )
            if at == target and _gives_several(node):
                raise CutError(f"{target!r} gives several values; cut before or after it")
            return node, at[len(target) + 1 :]
    for node in graph.nodes:
        if node.name == at and _is_operation(node) and not _gives_several(node):
            return node, ""
    raise _NoSuchPoint


def _is_operation(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name not in _NOT_TENSORS


def _gives_several(node: fx.Node) -> bool:
    """Whether its value is taken apart by position, so that it is no tensor."""
    return any(
        user.target is operator.getitem and isinstance(user.args[1], int) for user in node.users
    )


def _upto(node: fx.Node) -> set[fx.Node]:
    """All that runs before ``node``, in the order of the network, and ``node`` itself.

    The order matters to operations in place and to random ones.  Parameters that only later steps
    use (and what is made of nothing else) stay with those steps.
    """
    needed, waiting = {node}, [node]
    while waiting:
        fresh = [n for n in waiting.pop().all_input_nodes if n not in needed]
        needed.update(fresh)
        waiting += fresh
    fed: set[fx.Node] = set()
    for other in node.graph.nodes:
        if other.op == "placeholder" or fed & set(other.all_input_nodes):
            fed.add(other)
        if other is node:
            break
    return needed | fed


def _crossing(graph: fx.Graph, node: fx.Node, front: set[fx.Node]) -> list[fx.Node]:
    """Every value that the front computes and the back needs, ``node`` first."""
    used = {n for other in graph.nodes if other not in front for n in other.all_input_nodes}
    return [node, *(n for n in graph.nodes if n in front and n in used and n is not node)]


class _Crossing(NamedTuple):
    name: str
    child: nn.Module | None
    last: bool  # a cut after the last operation leaves nothing; one at a seam of several, more


def _single_crossings(module: nn.Module) -> Iterator[_Crossing]:
    """The children and operations of this module after which one tensor crosses."""
    if is_chain(module):
        children = _links(module)
        for i, (name, child) in enumerate(children):
            last = i == len(children) - 1 or _handed_over(module, child) > 1
            yield _Crossing(name, child, last)
        return
    try:
        graph = trace(module)
    except Untraceable:
        return
    returned = graph.output_node().args[0]
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        if len(_crossing(graph, node, _upto(node))) > 1:
            continue
        if node.op == "call_module" and calls[node.target] == 1:
            child = module.get_submodule(str(node.target))
            yield _Crossing(str(node.target), child, node is returned or _gives_several(node))
        elif (
            _is_operation(node)
            and node is not returned
            and node.name not in calls
            and not _gives_several(node)
        ):
            yield _Crossing(node.name, None, last=False)
