r"""One head for many devices: extractors of different architectures that one head follows.

Each extractor :math:`f_d` ends in a 1×1 map :math:`A_d` to a common number of channels.  All of
them and the head :math:`h` are trained together, a batch of each in turn:

.. math:: \min_{f, A, h} \sum_d \frac1n \sum_i \ell\big(h(A_d f_d(x_i)), y_i\big)

The head solves the task and is what makes the extractors compatible.  Where they give maps of
different sizes, a head that pools takes them all.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Unpack

import torch
from torch import nn

from dovetail.core.device import choose_device
from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line, nearest
from dovetail.core.seeds import derived_seed
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import accuracy
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import pretext_named
from dovetail.parts.contract import Preprocess, shown_shape
from dovetail.parts.cutting import CutPoint
from dovetail.parts.heads import head_like
from dovetail.parts.joining import join
from dovetail.parts.modes import evaluating
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, as_part
from dovetail.parts.weights import digest_of
from dovetail.reuse.device_record import DeviceTraining
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.fitting.cuts import At, Network, cut_networks
from dovetail.train.fitting.group import Auxiliary, Group, Member
from dovetail.train.fitting.record import OWN, CompatibleFit, Stage
from dovetail.train.options import LoopOptions, Options
from dovetail.train.supervision import augmentation, starting_facts, twin

__all__ = ["shared_head"]

_WAYS = ("dcc", "rp")


def shared_head(
    models: Sequence[Part | nn.Module],
    task: Task,
    *,
    at: At,
    channels: int = 64,
    head: Part | None = None,
    by: Sequence[str] = ("dcc",),
    names: Sequence[str] | None = None,
    pretext: str | Pretext = "rotation",
    augment: str | Augment | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> CompatibleFit:
    """Train copies of several extractors, of any architectures, with one head for all.

    Args:
        models: Networks whose fronts become the extractors; their weights are the starting points.
        task: With classes.
        at: Where each extractor ends: a point for each model, or one for all.
        channels: What an adapter behind each extractor maps its channels to.
        head: What follows them, to be trained on from its weights: it takes ``channels`` channels
            and tells the task's classes apart (see :func:`~dovetail.parts.heads.fresh_head`).  By
            default the rest of the first model, behind an adapter of its own.
        by: ``("dcc",)``, the head alone; with ``"rp"`` also a shared head for a pretext, which
            later lets an extractor move without leaving the others.
        names: Of the devices; by default what the models are.
        pretext: For ``"rp"``: ``"rotation"``, ``"jigsaw"``, ``"views"``, or one's own.
        augment: Such as ``"flip,shift:2"``.
        preprocess: Default: each part's own, else standardisation by the training split.
        seed: Adapters, the pretext's head, order of batches, augmentation, views.
        options: See :class:`Options`.

    Returns:
        ``fit.fronts`` in one space; ``fit.heads``, the one head; ``fit.networks``, each extractor
        with the head and batch statistics; ``fit.auxiliaries``; and the record.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> nets = [build("mlp", hidden=(48,)), build("mlp", hidden=(24,), seed=1)]
    >>> digits = load_task("digits")
    >>> fit = shared_head(nets, digits, at="hidden1", channels=16, lr=0.05, epochs=4)
    >>> min(fit.record.accuracy.values()) > 0.85
    True
    >>> [front.contract.mismatches(fit.heads[0].contract) for front in fit.fronts]
    [[], []]
    """
    starts = [as_part(model) for model in _listed(models)]
    chosen, changes, asked = Options(**options), augmentation(augment), pretext_named(pretext)
    by = _checked(by, starts, task, channels)
    called = _names(starts, names)
    device = choose_device(chosen.device)
    networks = _extractors(starts, task, called, at, channels, preprocess, device, seed)
    if "rp" in by:
        for network in networks:
            asked.check(tuple(side or 1 for side in network.front.contract.takes[0].shape or ()))
    shared = _one_head(head, networks, task, device)
    auxiliaries = [Auxiliary("dcc", shared)]
    if "rp" in by:
        drawn = derived_seed(seed, "auxiliary", "rp")
        rotating = head_like(shared, asked.answers or asked.outputs, seed=drawn)
        rotating.module.to(device)
        auxiliaries.append(Auxiliary("rp", rotating, asked))
    settings = {
        "how": "shared-head",
        "by": list(by),
        "at": [network.at for network in networks],
        "channels": channels,
        "head": None if head is None else head.digest,
        "pretext": asked.described() if "rp" in by else None,
        "augment": None if changes is None else str(changes),
        "seed": seed,
        "task_fingerprint": task.fingerprint,
        "start_digests": [start.digest for start in starts],
        "device": str(device),
        **chosen.described(),
    }
    group = Group([Member(n.name, n.front, None, task) for n in networks], auxiliaries)
    rows = group.train_on(
        chosen,
        seed=seed,
        augment=changes,
        identity={
            "preprocess": [network.front.contract.preprocess for network in networks],
            "starts": [starting_facts(start) for start in starts],
            "given": None if head is None else starting_facts(head),
            **settings,
        },
        label=f"one head for {len(networks)}",
    )
    stage = Stage.of(tuple(called), rows, chosen.patience)
    return _finished(networks, starts, auxiliaries, task, by, stage, settings)


def _listed(models: Sequence[Part | nn.Module] | Part | nn.Module) -> Sequence[Part | nn.Module]:
    if isinstance(models, nn.ModuleList):
        return list(models)
    return [models] if isinstance(models, Part | nn.Module) else models


def _checked(
    by: Sequence[str], starts: Sequence[Part], task: Task, channels: int
) -> tuple[str, ...]:
    wanted = (by,) if isinstance(by, str) else tuple(by)
    for name in wanted:
        if name not in _WAYS:
            raise SettingsError(f"unknown way to share a head {name!r}{nearest(name, _WAYS)}")
    if "dcc" not in wanted:
        raise SettingsError("the shared head tells the classes apart: by= must have 'dcc'")
    if not starts:
        raise SettingsError("there are no models to share a head")
    if not isinstance(task, Task):
        raise SettingsError(f"a task must be a Task, got {type(task).__name__}")
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; a head is shared for classes")
    if not isinstance(channels, int) or channels < 1:
        raise SettingsError(f"channels must be a whole number of at least 1, got {channels!r}")
    return tuple(name for name in _WAYS if name in wanted)


def _names(starts: Sequence[Part], names: Sequence[str] | None) -> list[str]:
    if names is None:
        found: list[str] = []
        for start in starts:
            name, number = start.described, 2
            while name in found:
                name, number = f"{start.described}-{number}", number + 1
            found.append(name)
        return found
    given = [names] if isinstance(names, str) else [str(name) for name in names]
    if len(given) != len(starts) or len(set(given)) < len(given):
        raise SettingsError(
            f"names= must give each of {len(starts)} models a name of its own, got "
            f"{', '.join(given)}"
        )
    return given


def _extractors(
    starts: Sequence[Part],
    task: Task,
    names: Sequence[str],
    at: At,
    channels: int,
    preprocess: Preprocess | None,
    device: torch.device,
    seed: int,
) -> list[Network]:
    """Copies of the models, each cut, with an adapter behind the front."""
    places: Sequence[str | CutPoint | None]
    places = [at] * len(starts) if at is None or isinstance(at, str | CutPoint) else at
    if len(places) != len(starts):
        raise SettingsError(f"at= names {len(places)} points for {len(starts)} models")
    few = task.inputs[task.indices("train")[:2]]
    found = []
    for number, (start, name, place) in enumerate(zip(starts, names, places, strict=True)):
        whole = twin(start, task, preprocess, device)
        drawn = derived_seed(seed, "device", number)
        (network,) = cut_networks([whole], [task], [name], place, channels, drawn)
        network.front.module.to(device), network.head.module.to(device)
        outputs_of(network.front, few)  # fail before the first epoch
        found.append(network)
    return found


def _one_head(
    given: Part | None, networks: Sequence[Network], task: Task, device: torch.device
) -> Part:
    """The head that all share: it takes what every extractor gives and knows the classes."""
    first = networks[0]
    head = first.head
    if given is not None:
        head = given.changed(module=copy.deepcopy(given.module).requires_grad_(True).to(device))
    ports = [network.front.contract.gives[0] for network in networks]
    shapes = [port.shape or () for port in ports]
    _refuse_other_channels(head, shapes[0])
    known = head.contract.classes or task.classes
    for network, shape in zip(networks, shapes, strict=True):
        _try(head, network.name, shape, known)
    if set(known) != set(task.classes):
        raise ContractError(
            f"the head tells {', '.join(known[:8])} apart, {task.name!r} has "
            f"{', '.join(task.classes[:8])}; make one with dovetail.parts.heads.fresh_head"
        )
    alike = len({shape[1:] for shape in shapes}) == 1
    sides = shapes[0][1:] if alike else tuple(None for _ in shapes[0][1:])
    port = replace(ports[0], shape=(shapes[0][0], *sides), space=None)
    return head.changed(
        contract=replace(head.contract, takes=(port,), classes=known, kind="classes")
    )


def _refuse_other_channels(head: Part, shape: tuple[int | None, ...]) -> None:
    takes = head.contract.takes
    if len(takes) != 1:
        raise ContractError(f"a head that takes {len(takes)} tensors cannot be shared")
    taken = takes[0].shape
    if taken is not None and (len(taken) != len(shape) or taken[0] not in (None, shape[0])):
        raise ContractError(
            f"the head takes {shown_shape(taken)}, the extractors give {shown_shape(shape)}; say "
            f"channels={taken[0] if taken else 1}, and cut where the tensors are of one kind"
        )


def _try(head: Part, name: str, shape: tuple[int | None, ...], classes: Sequence[str]) -> None:
    x = torch.zeros(2, *(side or 1 for side in shape), device=head.device)
    try:
        with evaluating(head.module):
            output = head(x)
    except (RuntimeError, ValueError) as error:
        raise ContractError(
            f"the extractor of {name!r} gives {shown_shape(shape)}, which the head cannot take "
            f"({first_line(error)}); cut where the maps have one size, or take a head that pools"
        ) from None
    if output.shape != (2, len(classes)):
        raise ContractError(
            f"the head gives {shown_shape(tuple(output.shape[1:]))} numbers an example for "
            f"{len(classes)} classes; build it with classes={len(classes)}"
        )


def _finished(
    networks: Sequence[Network],
    starts: Sequence[Part],
    auxiliaries: Sequence[Auxiliary],
    task: Task,
    by: tuple[str, ...],
    stage: Stage,
    settings: dict[str, Any],
) -> CompatibleFit:
    """Everything in one space, with where it came from and what it reached."""
    digests = "".join(digest_of(a.head.module, a.name) for a in auxiliaries)
    space = f"shared/{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
    fronts = [_giving(network.front, space) for network in networks]
    heads = {a.name: _taking(a.head, space) for a in auxiliaries}
    head, reached = heads["dcc"], {}
    if task.size("validation") > 1:  # one has no statistics of a batch
        reached = {
            network.name: accuracy(front, head, task, "batch", split="validation")
            for network, front in zip(networks, fronts, strict=True)
        }
    record = DeviceTraining(
        task=task.name,
        by=by,
        stage=stage,
        accuracy=reached,
        sizes={n.name: sum(p.numel() for p in n.front.module.parameters()) for n in networks},
        space=space,
        settings=settings,
    )

    def origin(parents: tuple[str, ...], found: Iterable[float]) -> Origin:
        return Origin(
            how="train",
            parents=parents,
            task=task.name,
            task_fingerprint=task.fingerprint,
            settings=settings,
            measured={OWN: fmean(values)} if (values := list(found)) else {},
        )

    fronts = [
        front.changed(origin=origin((start.digest,), _those(reached, network.name)))
        for front, start, network in zip(fronts, starts, networks, strict=True)
    ]
    head = head.changed(origin=origin((), reached.values()))
    solved = [stage.final[f"{n} rp {OWN}"] for n in reached if "rp" in by]
    rest = {
        name: part.changed(origin=origin((), solved))
        for name, part in heads.items()
        if name != "dcc"
    }
    wholes = [join(front, head, norms="batch").changed(origin=front.origin) for front in fronts]
    return CompatibleFit(
        (*fronts, head, *rest.values()),
        record,
        wholes[0] if len(wholes) == 1 else None,
        tuple(wholes),
        tuple(fronts),
        (head,),
        rest,
    )


def _those(values: dict[str, float], name: str) -> list[float]:
    return [values[name]] if name in values else []


def _giving(front: Part, space: str) -> Part:
    gives = tuple(replace(port, space=space) for port in front.contract.gives)
    return front.changed(contract=replace(front.contract, gives=gives))


def _taking(head: Part, space: str) -> Part:
    takes = tuple(replace(port, space=space) for port in head.contract.takes)
    return head.changed(contract=replace(head.contract, takes=takes))
