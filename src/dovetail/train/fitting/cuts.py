"""Where the networks of a group are cut, and how their fronts come to give one kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from dovetail.core.errors import ContractError, CutError, SettingsError, first_line
from dovetail.core.seeds import derived_seed, seeded
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.heads import copy_by_class
from dovetail.parts.joining import join
from dovetail.parts.modes import evaluating
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Adapter, rebuild
from dovetail.tasks.task import Task

__all__ = ["At", "Network", "cut_networks", "identical_starts", "start_alike"]

At = str | CutPoint | Sequence[str | CutPoint] | None


@dataclass(frozen=True)
class Network:
    """A network of a group: the whole, its front up to the seam, and the head behind it."""

    name: str
    whole: Part
    at: str
    front: Part
    head: Part
    task: Task


def cut_networks(
    wholes: Sequence[Part],
    tasks: Sequence[Task],
    names: Sequence[str],
    at: At,
    channels: int | None,
    seed: int,
) -> list[Network]:
    """Cut each network; where channel counts differ, or ``channels`` is said, put adapters.

    An adapter behind a front maps its channels to the common count, one before the head maps them
    back to what the head takes.  Both belong to the parts from then on and are trained with them.
    """
    places = _places(wholes, at)
    halves = [cut(whole, place) for whole, place in zip(wholes, places, strict=True)]
    ports = [_only_port(front, place) for (front, _), place in zip(halves, places, strict=True)]
    shapes = [port.shape for port in ports]
    if any(shape is None for shape in shapes):
        raise ContractError(
            "the shape at the seam is not known; adopt the networks with an example: "
            "dt.adopt(module, example=x)"
        )
    counts = [shape[0] for shape in shapes if shape]
    if channels is not None and not (isinstance(channels, int) and channels >= 1):
        raise SettingsError(f"channels must be a whole number of at least 1, got {channels!r}")
    if channels is None and len(set(counts)) > 1:
        channels = min(count for count in counts if count is not None)
    if len({port.activation for port in ports}) > 1:
        # A port says what holds for all that share its space, and no one nonlinearity does.
        halves = [(_without_activation(front), head) for front, head in halves]
    loose = len({shape[1:] for shape in shapes if shape}) > 1
    networks = []
    for number, (name, whole, task, place) in enumerate(
        zip(names, wholes, tasks, places, strict=True)
    ):
        front, head = halves[number]
        if channels is not None:
            front, head = _adapted(front, head, channels, derived_seed(seed, "adapter", number))
            whole = join(front, head, force=True).changed(origin=whole.origin)
        head = _taking(head, front.contract.gives[0], loose)
        networks.append(Network(name, whole, place, front, head, task))
    if loose:
        _refuse_stuck(networks)
    return networks


def start_alike(networks: Sequence[Network]) -> None:
    """Give every network the first one's weights; the output layers go by the classes' names."""
    first = networks[0]
    for other in networks[1:]:
        mine, theirs = (n.front.module.state_dict() for n in (first, other))
        alike = mine.keys() == theirs.keys() and all(
            mine[name].shape == theirs[name].shape for name in mine
        )
        if not alike:
            raise ContractError(
                f"identical initial weights need one architecture, but the fronts of "
                f"{first.name!r} and {other.name!r} differ; leave 'iiw' out of by="
            )
        other.front.module.load_state_dict(mine)
        other.head.module.load_state_dict(copy_by_class(first.head, other.head))


def identical_starts(networks: Sequence[Network]) -> bool:
    """Whether the fronts of several networks begin with the very same weights."""
    return len(networks) > 1 and len({network.front.digest for network in networks}) == 1


def _places(wholes: Sequence[Part], at: At) -> list[str]:
    if at is None:
        return [output_point(whole.module) for whole in wholes]
    if isinstance(at, str | CutPoint):
        return [str(at)] * len(wholes)
    if len(at) != len(wholes):
        raise SettingsError(f"at= names {len(at)} points for {len(wholes)} networks")
    return [str(place) for place in at]


def _only_port(front: Part, place: str) -> Port:
    if len(front.contract.gives) > 1:
        raise CutError(
            f"{len(front.contract.gives)} tensors cross at {place!r}, and heads are shared through "
            "one; take a point that dt.cut_points lists"
        )
    return front.contract.gives[0]


def _without_activation(front: Part) -> Part:
    gives = tuple(replace(port, activation="identity") for port in front.contract.gives)
    return front.changed(contract=replace(front.contract, gives=gives))


def _adapted(front: Part, head: Part, channels: int, seed: int) -> tuple[Part, Part]:
    given, taken = front.contract.gives[0], head.contract.takes[0]
    between = replace(given, shape=(channels, *(given.shape or ())[1:]), activation="identity")
    there = _adapter(given, between, derived_seed(seed, "there"))
    back = _adapter(between, taken, derived_seed(seed, "back"))
    return join(front, there, force=True), join(back, head, force=True)


def _adapter(takes: Port, gives: Port, seed: int) -> Part:
    """A linear map of channels, position by position, drawn from ``seed``."""
    inputs, outputs = takes.shape or (), gives.shape or ()
    recipe = Adapter(inputs[0] or 0, outputs[0] or 0, maps=len(inputs) == 3)
    with seeded(seed, "adapter"):
        module = rebuild(recipe)
    origin = Origin(how="adapter", settings={"seed": seed})
    return Part(module, Contract((takes,), (gives,)), recipe, origin)


def _taking(head: Part, given: Port, loose: bool) -> Part:
    shape = given.shape
    if loose and shape is not None:
        shape = (shape[0], *(None for _ in shape[1:]))
    port = replace(given, shape=shape, space=None)
    return head.changed(contract=replace(head.contract, takes=(port,)))


def _refuse_stuck(networks: Sequence[Network]) -> None:
    """Refuse heads that cannot take the maps of another front, before anything is trained."""
    for one in networks:
        shape = one.front.contract.gives[0].shape or ()
        x = torch.zeros(2, *(side or 1 for side in shape), device=one.front.device)
        for other in networks:
            _try(other.head.module, x, one.name, other.name, shown_shape(shape))


def _try(head: nn.Module, x: torch.Tensor, front: str, other: str, shape: str) -> None:
    try:
        with evaluating(head):
            head(x)
    except (RuntimeError, ValueError) as error:
        raise ContractError(
            f"the front of {front!r} gives {shape}, which the head of {other!r} cannot take "
            f"({first_line(error)}); cut where the maps have one size, or take heads that pool"
        ) from None
