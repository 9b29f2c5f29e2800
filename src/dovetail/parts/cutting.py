"""Cutting a network into two parts that fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dovetail.core.errors import ContractError, CutError, argument, first_line
from dovetail.core.plain import dumps
from dovetail.parts.contract import Contract, Port, Shape, shown_shape
from dovetail.parts.modules import digest_of, evaluating, meta_copy, structure_of
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.parts.recipe import Cut
from dovetail.parts.splitting import Halves, points, split
from dovetail.parts.tracing import trailing_activation


@dataclass(frozen=True)
class CutPoint:
    """A place where exactly one tensor crosses; pass it, or its name, as ``at``.

    >>> str(CutPoint("layer3", (64, 8, 8), "relu"))
    'layer3'
    """

    name: str
    shape: Shape | None = None
    activation: str = "identity"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        after = "" if self.activation == "identity" else f" after {self.activation}"
        return f"CutPoint({self.name!r}, {shown_shape(self.shape)}{after})"


def cut_points(model: Part | nn.Module, example: Tensor | None = None) -> list[CutPoint]:
    """Places where exactly one tensor crosses, in the order of the network.

    Shapes are known when an ``example`` is given or the part's contract says what goes in.

    >>> from dovetail.parts.part import build
    >>> cut_points(build("mlp", shape=(4,), hidden=(8,)))[2:]
    [CutPoint('hidden1.norm', 8), CutPoint('hidden1', 8 after relu)]
    """
    part = as_part(model)
    module, inputs = _shapes_only(part.module, _inputs(part, example))
    seen = {} if inputs is None else _seen_by_children(module, inputs)
    places, refused = [], None
    for name in points(module):
        try:
            front = split(module, name).front
        except CutError as error:  # a tensor that both sides share, or that neither uses
            refused = refused or error
            continue
        shape = None
        if inputs is not None:
            ports = seen[name] if name in seen else _run(front, inputs)
            if len(ports) > 1:
                continue
            shape = ports[0].shape
        places.append(CutPoint(name, shape, trailing_activation(front)))
    if refused and not places:
        raise refused
    return places


def cut(
    model: Part | nn.Module, at: str | CutPoint, example: Tensor | None = None
) -> tuple[Part, Part]:
    """Cut a network after ``at``; both halves share their storage with it.

    The tensor that crosses gets a new space, named after the front's weights and the point, so the
    two halves fit each other and nothing else.  Inside a residual block two tensors cross: then the
    front gives two and the back takes two.

    >>> from dovetail.parts.part import build
    >>> front, back = cut(build("lenet5", size=8), at="conv2")
    >>> front.contract.mismatches(back.contract)
    []
    >>> front.contract.gives[0].shape, front.contract.gives[0].activation
    ((16, 2, 2), 'relu')
    """
    part, name = as_part(model, example=example), str(at)
    halves = split(part.module, name)
    space = _mint_space(halves.front, name, part.contract)
    crossing = tuple(replace(port, space=space) for port in _crossing_ports(part, halves, example))
    takes = part.contract.takes if example is None else ports_of(example)
    # A whole network's halves keep its statistics; what is itself a part stays trained for others.
    outer = (*part.contract.takes, *part.contract.gives)
    said = part.origin.trained_norms if any(port.space for port in outer) else {}
    origin = part.origin.of_child(part.digest, "cut", {"at": name, **said})
    return (
        Part(
            halves.front,
            Contract(takes, crossing, part.contract.preprocess, inputs=part.contract.inputs),
            None if part.recipe is None else Cut(part.recipe, name, "front"),
            origin,
        ),
        Part(
            halves.back,
            replace(part.contract, takes=crossing, preprocess=None, inputs=None),
            None if part.recipe is None else Cut(part.recipe, name, "back"),
            origin,
        ),
    )


def cut_all(
    model: Part | nn.Module, at: Sequence[str | CutPoint], example: Tensor | None = None
) -> tuple[Part, ...]:
    """Cut a network after each of several points, in the order of the network.

    One part more than points; each fits the next, and all share their storage with the network.

    >>> from dovetail.parts.part import build
    >>> pieces = cut_all(build("lenet5", size=8), at=["conv2", "fc2"])
    >>> [str(piece.contract.takes[0].shape) for piece in pieces]
    ['(1, 8, 8)', '(16, 2, 2)', '(84,)']
    """
    if isinstance(at, str | CutPoint):
        raise CutError(f"cut_all takes a list of points, as in at=[{str(at)!r}]")
    rest = as_part(model, example=example)
    pieces: list[Part] = []
    for place in at:
        try:
            front, rest = cut(rest, place, example if not pieces else None)
        except CutError as error:
            if pieces and str(place) in points(as_part(model).module):
                raise CutError(
                    f"{str(place)!r} does not come after {str(at[len(pieces) - 1])!r}; give the "
                    "points in the order of the network, each once"
                ) from None
            raise error
        pieces.append(front)
    return _in_shared_spaces(as_part(model, example=example), [*map(str, at)], [*pieces, rest])


def _in_shared_spaces(network: Part, at: list[str], chain: list[Part]) -> tuple[Part, ...]:
    """The pieces with the spaces that single cuts of the whole would mint: they are the same."""
    spaces = [_mint_space(split(network.module, name).front, name, network.contract) for name in at]
    for i, space in enumerate(spaces):
        before, after = chain[i], chain[i + 1]
        chain[i] = before.changed(contract=before.contract.in_space(space))
        chain[i + 1] = after.changed(contract=after.contract.in_space(space, takes=True))
    return tuple(chain)


def cut_first(*parts: Part) -> str | None:
    """What to do where halves are asked for and whole networks are given; nothing if none is.

    What names a space on one side, as every cut does, is no whole network.

    >>> from dovetail.parts.part import build
    >>> net = build("mlp")
    >>> print(cut_first(*cut(net, at="hidden1")), cut_first(net), sep="; ")  # doctest: +ELLIPSIS
    None; This is a whole network: 'mlp'. Cut first: front, head = dt.cut(network, at=...), at ...
    """
    networks = [
        part.described
        for part in parts
        if not any(port.space for port in (*part.contract.takes, *part.contract.gives))
    ]
    if not networks:
        return None
    names = " and ".join(repr(name) for name in dict.fromkeys(networks))
    they = "This is a whole network" if len(networks) == 1 else "These are whole networks"
    return (
        f"{they}: {names}. Cut first: front, head = dt.cut(network, at=...), at a point of "
        "dt.cut_points(network); or dovetail cut NAME --at POINT"
    )


def output_point(module: nn.Module) -> str:
    """The last point with weights on both sides: behind it lies the output layer alone.

    >>> layers = nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.LogSoftmax(1)
    >>> output_point(nn.Sequential(*layers))
    '1'
    """
    for name in points(module, backwards=True):
        halves = split(module, name)
        if all(any(True for _ in half.parameters()) for half in (halves.front, halves.back)):
            return name
    raise CutError(
        "no point of this network has weights on both sides, so there are no two modules to "
        f"train; use end_to_end, or say {argument('at', ...)} for a network that "
        "cannot be cut in the usual places"
    )


def _shapes_only(
    module: nn.Module, inputs: tuple[Tensor, ...] | None
) -> tuple[nn.Module, tuple[Tensor, ...] | None]:
    """The network and its inputs on the meta device, where only shapes are computed.

    Where that cannot be (a result depends on values, a module cannot be copied), both as they are.
    """
    if inputs is None:
        return module, None
    ghosts = tuple(x.to("meta") for x in inputs)
    try:
        twin = meta_copy(module)
        _run(twin, ghosts)
    except (RuntimeError, ContractError):
        return module, inputs
    return twin, ghosts


def _seen_by_children(module: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, tuple[Port, ...]]:
    """What each child that runs once gives, from one pass of the whole network."""
    seen: dict[str, list[tuple[Port, ...]]] = {}

    def watch(name: str, child: nn.Module) -> RemovableHandle:
        return child.register_forward_hook(
            lambda _child, _inputs, output: seen.setdefault(name, []).append(ports_of(output))
        )

    handles = [watch(name, child) for name, child in module.named_modules() if name]
    try:
        _run(module, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {name: ports[0] for name, ports in seen.items() if len(ports) == 1}


def _mint_space(front: nn.Module, at: str, contract: Contract) -> str:
    """A name for what ``front`` makes of what it takes: other inputs make it another space."""
    spaces = [str(port.space) for port in contract.takes]
    facts = (at, *structure_of(front), *spaces, dumps(contract.preprocess))
    return f"{at}/{digest_of(front, *facts)[:12]}"


def _crossing_ports(part: Part, halves: Halves, example: Tensor | None) -> tuple[Port, ...]:
    activation = trailing_activation(halves.front) if halves.crossing == 1 else "identity"
    inputs = _inputs(part, example)
    if inputs is None:
        return (Port(activation=activation),) * halves.crossing
    ports = _run(halves.front, inputs, activation)
    if len(ports) != halves.crossing:
        raise CutError(
            f"{len(ports)} values cross here, but the next layer takes them as one; cut elsewhere"
        )
    return ports


def _inputs(part: Part, example: Tensor | None) -> tuple[Tensor, ...] | None:
    """The example, or zeros as the contract describes, or nothing when it does not."""
    if example is not None:
        return (example,)
    if any(port.shape is None or None in port.shape for port in part.contract.takes):
        return None
    return tuple(
        torch.zeros(
            2,
            *(s or 1 for s in port.shape or ()),
            dtype=getattr(torch, port.dtype),
            device=part.device,
        )
        for port in part.contract.takes
    )


def _run(front: nn.Module, inputs: tuple[Tensor, ...], activation: str = "") -> tuple[Port, ...]:
    try:
        with evaluating(front):
            return ports_of(front(*inputs), activation)
    except Exception as error:  # foreign code; the example is the likeliest cause
        shapes = " and ".join(str(tuple(x.shape)) for x in inputs)
        raise ContractError(
            f"an example of shape {shapes} does not go through the network: {first_line(error)}"
        ) from None
