"""The heads that a group of networks shares."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.seeds import derived_seed
from dovetail.objectives.pretext import Pretext
from dovetail.parts.heads import head_like
from dovetail.parts.part import Part
from dovetail.tasks.task import Task
from dovetail.train.fitting.cuts import Network
from dovetail.train.fitting.group import Auxiliary

__all__ = ["AUXILIARIES", "shared_heads"]

AUXILIARIES = ("dcc", "rp")
"""The ways to compatibility that have a head."""


def shared_heads(
    by: tuple[str, ...],
    networks: Sequence[Network],
    given: Mapping[str, Part],
    common: Sequence[str] | None,
    pretext: Pretext,
    shares: Mapping[str, float],
    scheme: str,
    device: torch.device,
    seed: int,
) -> list[Auxiliary]:
    """The shared heads: copies of given ones, or like the first network's head, drawn anew."""
    if stray := [name for name in given if name not in by]:
        raise SettingsError(f"auxiliaries= has {stray[0]!r}, which by= does not ask for")
    if scheme == "incremental":
        _refuse_two_spaces(given)
    found = []
    for name in (each for each in AUXILIARIES if each in by):
        asked = pretext if name == "rp" else None
        if name in given:
            head = _given_head(given[name], name, networks, asked)
        else:
            outputs = _common(networks, common) if asked is None else asked.answers or asked.outputs
            drawn = derived_seed(seed, "auxiliary", name)
            head = head_like(networks[0].head, outputs, seed=drawn)
        head.module.to(device)
        frozen = name in given and scheme == "incremental"
        found.append(Auxiliary(name, head, asked, shares[name], frozen))
    return found


def _given_head(
    part: Part, name: str, networks: Sequence[Network], pretext: Pretext | None
) -> Part:
    if not isinstance(part, Part):
        raise SettingsError(
            f"auxiliaries= has parts, such as fit.auxiliaries; {name!r} is of type "
            f"{type(part).__name__}"
        )
    head = part.changed(module=copy.deepcopy(part.module).requires_grad_(True))
    for network in networks:
        obstacles = network.front.contract.obstacles(head.contract)
        if obstacles:
            raise ContractError(
                f"the {name!r} head cannot follow the front of {network.name!r}: "
                f"{'; '.join(obstacles)}. Cut where the shapes agree, or say channels="
            )
    width = (head.contract.gives[0].shape or (None,))[0]
    if pretext is not None and width != pretext.outputs:
        raise ContractError(
            f"the {name!r} head gives {width} numbers, {pretext.name} needs {pretext.outputs}; "
            "give the pretext that it was trained for"
        )
    known = head.contract.classes
    if pretext is not None and known and pretext.answers and known != pretext.answers:
        raise ContractError(
            f"the {name!r} head was trained for other answers, {', '.join(known[:4])}, than those "
            f"of {pretext.name}, {', '.join(pretext.answers[:4])}; say its pretext="
        )
    if pretext is None:
        if known is None:
            raise ContractError("the 'dcc' head does not say which classes it tells apart")
        for network in networks:
            if len(set(known) & set(network.task.classes)) < 2:
                raise TaskError(_few_in_common(known, network.task))
    return head


def _refuse_two_spaces(given: Mapping[str, Part]) -> None:
    """What is trained against frozen heads joins their space, so they must be of one."""
    held = {
        port.space
        for part in given.values()
        if isinstance(part, Part)
        for port in part.contract.takes
    }
    if len(held) > 1:
        listed = " and ".join(sorted("an unknown one" if one is None else one for one in held))
        raise ContractError(
            f"the given auxiliary heads are of two spaces, {listed}; give heads that were trained "
            "together, or scheme='joint', which trains them on"
        )


def _common(networks: Sequence[Network], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The classes that the shared head tells apart, in the first task's order."""
    first = networks[0].task
    if wanted is not None:
        for network in networks:
            for name in wanted:
                if name not in network.task.classes:
                    raise TaskError(f"{network.task.name!r} has no class {name!r} of common=")
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
        "by=('rp',), which needs no labels in common"
    )
