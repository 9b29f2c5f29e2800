"""What a group of networks is made of: halves that meet at one kind of tensor, and shared heads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from dovetail.core.errors import (
    ContractError,
    CutError,
    SettingsError,
    TaskError,
    argument,
    first_line,
    nearest,
)
from dovetail.core.seeds import derived_seed
from dovetail.objectives.pretext import Pretext
from dovetail.parts.contract import Contract, Port, Shape, shown_shape
from dovetail.parts.cutting import CutPoint, cut, output_point
from dovetail.parts.heads import copy_by_class, head_like
from dovetail.parts.joining import adapter, join
from dovetail.parts.modules import digest_of, evaluating
from dovetail.parts.part import Part
from dovetail.settings.train import Compatible
from dovetail.tasks.task import Task
from dovetail.train.frame import Course
from dovetail.train.group import Auxiliary, Member
from dovetail.train.self_supervised import refuse_other_answers

At = str | CutPoint | Sequence[str | CutPoint] | None


@dataclass(frozen=True)
class Network(Member):
    """A member that was cut: its front up to the seam ``at``, its head behind, and the whole."""

    head: Part
    whole: Part
    at: str


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
    Compatible.check({"channels": channels})
    places = cut_places(wholes, at)
    halves = [cut(whole, place) for whole, place in zip(wholes, places, strict=True)]
    ports = [_only_port(front, place) for (front, _), place in zip(halves, places, strict=True)]
    shapes = [port.shape for port in ports]
    if any(shape is None for shape in shapes):
        raise ContractError(
            "the shape at the seam is not known; adopt the networks with an example: "
            "dt.adopt(module, example=x)"
        )
    counts = [shape[0] for shape in shapes if shape]
    if channels is None and len(set(counts)) > 1:
        channels = min(count for count in counts if count is not None)
    if len({port.activation for port in ports}) > 1:
        # A port says what holds for all that share its space, and no one nonlinearity does.
        bare = [replace(port, activation="identity") for port in ports]
        halves = [
            (front.changed(contract=replace(front.contract, gives=(port,))), head)
            for (front, head), port in zip(halves, bare, strict=True)
        ]
    loose = len({shape[1:] for shape in shapes if shape}) > 1
    networks = []
    for number, (name, whole, task, place) in enumerate(
        zip(names, wholes, tasks, places, strict=True)
    ):
        front, head = halves[number]
        if channels is not None:
            front, head = _adapted(front, head, channels, derived_seed(seed, "adapter", number))
            whole = join(front, head, norms="stored", force=True).changed(origin=whole.origin)
        port = replace(front.contract.gives[0], space=None)
        if loose and port.shape is not None:
            port = replace(port, shape=(port.shape[0], *(None for _ in port.shape[1:])))
        head = head.changed(contract=replace(head.contract, takes=(port,)))
        networks.append(Network(name, front, head, task, whole, place))
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
                f"{first.name!r} and {other.name!r} differ; leave 'iiw' out of "
                f"{argument('by', ...)}"
            )
        other.front.module.load_state_dict(mine)
        other.head.module.load_state_dict(copy_by_class(first.head, other.head))


def identical_starts(networks: Sequence[Network]) -> bool:
    """Whether the fronts of several networks begin with the very same weights."""
    return len(networks) > 1 and len({network.front.digest for network in networks}) == 1


def asked_for(by: Sequence[str], known: Iterable[str], what: str) -> tuple[str, ...]:
    """Those of the known words that were asked for, in their usual order.

    >>> asked_for(("rp", "dcc"), AUXILIARIES, "way to share a head")
    ('dcc', 'rp')
    """
    wanted, known = (by,) if isinstance(by, str) else tuple(by or ()), tuple(known)
    for name in wanted:
        if name not in known:
            raise SettingsError(f"unknown {what} {name!r}{nearest(str(name), known)}")
    return tuple(name for name in known if name in wanted)


def cut_places(wholes: Sequence[Part], at: At) -> list[str]:
    """The point of each network: one for all, one for each, or before the output layer."""
    if at is None:
        return [output_point(whole.module) for whole in wholes]
    if isinstance(at, str | CutPoint):
        return [str(at)] * len(wholes)
    if len(at) != len(wholes):
        raise SettingsError(
            f"{argument('at', ...)} names {len(at)} points for {len(wholes)} networks"
        )
    return [str(place) for place in at]


def _only_port(front: Part, place: str) -> Port:
    if len(front.contract.gives) > 1:
        raise CutError(
            f"{len(front.contract.gives)} tensors cross at {place!r}, and heads are shared through "
            "one; take a point that dt.cut_points lists"
        )
    return front.contract.gives[0]


def _adapted(front: Part, head: Part, channels: int, seed: int) -> tuple[Part, Part]:
    """The front with a map to ``channels`` behind it, the head with a map back before it."""
    gives = front.contract.gives[0]
    port = Port((channels, *(gives.shape or ())[1:]), gives.dtype)
    between = Part(nn.Identity(), Contract((port,), (port,)))
    there = adapter(front, between, seed=derived_seed(seed, "there"))
    back = adapter(between, head, seed=derived_seed(seed, "back"))
    return (
        join(front, there, norms="stored", force=True),
        join(back, head, norms="stored", force=True),
    )


def _refuse_stuck(networks: Sequence[Network]) -> None:
    """Refuse heads that cannot take the maps of another front, before anything is trained."""
    for one in networks:
        shape = one.front.contract.gives[0].shape or ()
        for other in networks:
            if reason := why_stuck(other.head, shape):
                raise ContractError(
                    f"the front of {one.name!r} gives {shown_shape(shape)}, which the head of "
                    f"{other.name!r} cannot take ({reason}); cut where the maps have one size, or "
                    "take heads that pool"
                )


def why_stuck(head: Part, shape: Shape) -> str | None:
    """Why a tensor of this shape (without the batch) does not go through a head, if it does not.

    >>> why_stuck(Part(nn.Linear(2, 1)), (2,)) is None, why_stuck(Part(nn.Linear(2, 1)), (3,))
    (True, 'mat1 and mat2 shapes cannot be multiplied (2x3 and 2x1)')
    """
    try:
        with evaluating(head.module):
            head(torch.zeros(2, *(side or 1 for side in shape), device=head.device))
    except (RuntimeError, ValueError) as error:
        return first_line(error)
    return None


def in_space(part: Part, space: str | None, *, takes: bool = False) -> Part:
    """The part with what it gives, or takes, in a space; itself if it is of that space already."""
    contract = part.contract.in_space(space, takes=takes)
    return part if contract == part.contract else part.changed(contract=contract)


def named_after(prefix: str, heads: Iterable[Auxiliary]) -> str:
    """A name for the space of fronts that these heads were trained with."""
    digests = "".join(digest_of(a.head.module, a.name) for a in heads)
    return f"{prefix}/{hashlib.sha256(digests.encode()).hexdigest()[:12]}"


# The heads that a group shares --------------------------------------------------------------------


AUXILIARIES = ("dcc", "rp")
"""The ways to compatibility that have a head."""


def shared_heads(
    course: Course,
    by: Sequence[str],
    networks: Sequence[Network],
    fixed: Mapping[str, Part],
    common: Sequence[str] | None,
    pretext: Pretext,
    weights: Mapping[str, float],
    frozen: bool,
) -> list[Auxiliary]:
    """The shared heads: copies of given ones, or like the first network's head, drawn anew."""
    if stray := [name for name in fixed if name not in by]:
        raise SettingsError(
            f"{argument('auxiliaries', ...)} has {stray[0]!r}, which "
            f"{argument('by', ...)} does not ask for"
        )
    if frozen:
        _refuse_two_spaces(fixed)
    heads = []
    for name in (each for each in AUXILIARIES if each in by):
        asked = pretext if name == "rp" else None
        if name in fixed:
            _refuse_unfit(fixed[name], name, networks, asked)
            head = course.copied(fixed[name])
            head.module.requires_grad_(True)
        else:
            outputs = _common(networks, common) if asked is None else asked.answers or asked.outputs
            drawn = derived_seed(course.seed, "auxiliary", name)
            head = head_like(networks[0].head, outputs, seed=drawn)
            head.module.to(course.device)
        heads.append(Auxiliary(name, head, asked, weights[name], frozen and name in fixed))
    return heads


def _refuse_unfit(
    head: Part, name: str, networks: Sequence[Network], pretext: Pretext | None
) -> None:
    """Refuse a given head that cannot follow the fronts, or knows other classes or answers."""
    if not isinstance(head, Part):
        raise SettingsError(
            f"{argument('auxiliaries', ...)} has parts, such as fit.auxiliaries; {name!r} is of "
            f"type {type(head).__name__}"
        )
    for network in networks:
        if obstacles := network.front.contract.obstacles(head.contract):
            raise ContractError(
                f"the {name!r} head cannot follow the front of {network.name!r}: "
                f"{'; '.join(obstacles)}. Cut where the shapes agree, or say "
                f"{argument('channels', ...)}"
            )
    known = head.contract.classes
    if pretext is not None:
        refuse_other_answers(pretext, head)
    elif known is None:
        raise ContractError("the 'dcc' head does not say which classes it tells apart")
    else:
        for network in networks:
            if len(set(known) & set(network.task.classes)) < 2:
                raise TaskError(_few_in_common(known, network.task))


def _refuse_two_spaces(fixed: Mapping[str, Part]) -> None:
    """What is trained against frozen heads joins their space, so they must be of one."""
    held = {
        port.space
        for part in fixed.values()
        if isinstance(part, Part)
        for port in part.contract.takes
    }
    if len(held) > 1:
        listed = " and ".join(sorted("an unknown one" if one is None else one for one in held))
        raise ContractError(
            f"the given auxiliary heads are of two spaces, {listed}; give heads that were trained "
            f"together, or {argument('scheme', 'joint')}, which trains them on"
        )


def _common(networks: Sequence[Network], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The classes that the shared head tells apart, in the first task's order."""
    first = networks[0].task
    if wanted is not None:
        for network in networks:
            for name in wanted:
                if name not in network.task.classes:
                    raise TaskError(
                        f"{network.task.name!r} has no class {name!r} of {argument('common', ...)}"
                    )
        shared = tuple(dict.fromkeys(wanted))
    else:
        shared = tuple(
            name for name in first.classes if all(name in n.task.classes for n in networks)
        )
    if len(shared) < 2:
        raise TaskError(_few_in_common(first.classes, networks[-1].task))
    return shared


def _few_in_common(known: Sequence[str], task: Task) -> str:
    return (
        f"'dcc' needs two classes or more that all know, by name; on one side there is "
        f"{', '.join(known[:8])}, on the other {', '.join(task.classes[:8])}. Rename them, or use "
        f"{argument('by', ('rp',))}, which needs no labels in common"
    )
