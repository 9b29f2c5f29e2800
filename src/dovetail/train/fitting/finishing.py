"""What a training for compatibility gives: parts in their space, with origins and measures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.measure.joined import judged
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.parts.weights import digest_of
from dovetail.tasks.derive import only_classes
from dovetail.train.fitting.cuts import Network
from dovetail.train.fitting.group import Auxiliary
from dovetail.train.fitting.record import OWN, CompatibleFit, CompatibleTraining, Stage

__all__ = ["finished_group"]


def finished_group(
    networks: Sequence[Network],
    starts: Sequence[Part],
    heads: Sequence[Auxiliary],
    given: Mapping[str, Part],
    by: tuple[str, ...],
    scheme: str,
    stages: tuple[Stage, ...],
    settings: dict[str, Any],
) -> CompatibleFit:
    """Everything in its space, with where it came from and what it reached."""
    space = _space(networks[0].at, heads, given)
    matrix = _recombined(networks)
    record = CompatibleTraining(
        networks=tuple(network.name for network in networks),
        by=by,
        scheme=scheme,
        stages=stages,
        recombined=matrix,
        space=space,
        settings=settings,
    )
    frozen = {n: part for n, part in given.items() if scheme == "incremental"}
    parents = tuple(part.digest for part in frozen.values())
    wholes, fronts, backs = [], [], []
    for number, (network, start) in enumerate(zip(networks, starts, strict=True)):
        measured = _measured(record, network.name, number)
        origin = Origin(
            how="train",
            parents=(start.digest, *parents),
            task=network.task.name,
            task_fingerprint=network.task.fingerprint,
            settings=settings,
            measured=measured,
        )
        front, head = _in_space(network, space)
        network.whole.module.eval()  # its layers are, but the modules around them are its own
        wholes.append(network.whole.changed(origin=origin))
        fronts.append(front.changed(origin=origin))
        backs.append(head.changed(origin=origin))
    shared = {
        a.name: _shared(a, frozen.get(a.name), space if a.weight else None, record, settings)
        for a in heads
    }
    parts = (*(part for pair in zip(fronts, backs, strict=True) for part in pair), *shared.values())
    return CompatibleFit(
        parts,
        record,
        wholes[0] if len(wholes) == 1 else None,
        tuple(wholes),
        tuple(fronts),
        tuple(backs),
        shared,
    )


def _space(at: str, heads: Sequence[Auxiliary], given: Mapping[str, Part]) -> str | None:
    """The group's space: that of the frozen heads, or named after the heads that it shares."""
    heads = [a for a in heads if a.weight]  # a loss without weight makes nothing agree
    if not heads:
        return None
    for auxiliary in heads:
        held = given[auxiliary.name].contract.takes[0].space if auxiliary.frozen else None
        if held is not None:
            return held
    digests = "".join(digest_of(a.head.module, a.name) for a in heads)
    return f"{at}/{hashlib.sha256(digests.encode()).hexdigest()[:12]}"


def _in_space(network: Network, space: str | None) -> tuple[Part, Part]:
    front, head = network.front, network.head
    if space is None:  # nothing was shared: each network has a space of its own
        space = f"{network.at}/{digest_of(front.module, network.at)[:12]}"
    gives = tuple(replace(port, space=space) for port in front.contract.gives)
    return front.changed(contract=replace(front.contract, gives=gives)), _taking(head, space)


def _taking(head: Part, space: str | None) -> Part:
    """The head for a space; the very part that was given, if it is of that space already."""
    if all(port.space == space for port in head.contract.takes):
        return head
    takes = tuple(replace(port, space=space) for port in head.contract.takes)
    return head.changed(contract=replace(head.contract, takes=takes))


def _shared(
    auxiliary: Auxiliary,
    frozen: Part | None,
    space: str | None,
    record: CompatibleTraining,
    settings: dict[str, Any],
) -> Part:
    """The head as it was given, if it was frozen; else with what it was trained to."""
    if frozen is not None:
        return frozen if space is None else _taking(frozen, space)
    found = [
        record.final[f"{name} {auxiliary.name} {OWN}"]
        for name in record.networks
        if f"{name} {auxiliary.name} {OWN}" in record.final
    ]
    head = auxiliary.head
    head.module.requires_grad_(True)
    return _taking(head, space).changed(
        origin=Origin(
            how="train",
            task=" and ".join(record.networks),
            settings=settings,
            measured={OWN: sum(found) / len(found)} if found else {},
        ),
    )


def _measured(record: CompatibleTraining, name: str, place: int) -> dict[str, float]:
    found = {}
    if f"{name} {OWN}" in record.final:
        found[OWN] = record.final[f"{name} {OWN}"]
    others = [
        value
        for i, row in enumerate(record.recombined)
        for j, value in enumerate(row)
        if value is not None and i != j and place in (i, j)
    ]
    if others:
        found["validation recombination"] = sum(others) / len(others)
    return found


def _recombined(networks: Sequence[Network]) -> tuple[tuple[float | None, ...], ...]:
    """Each front with each head, on the validation images of the front's task."""
    return tuple(tuple(_together(one, other) for other in networks) for one in networks)


def _together(one: Network, other: Network) -> float | None:
    shared = [name for name in one.task.classes if name in other.task.classes]
    if len(shared) < 2 or one.task.size("validation") < 2:
        return None
    task = only_classes(one.task, shared)
    if task.size("validation") < 2:
        return None
    measures = judged(one.front, other.head, task, "batch", split="validation").measures
    return measures.get("masked accuracy", measures["accuracy"])
